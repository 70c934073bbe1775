//! What can be done to one process of a simulated fleet besides killing it: it can be frozen, cut off from the store or from the brokers, and
//! have a clock that is off. And a witness of what it hands over.

use super::halt::Halt;
use super::link::Link;
use super::terms::Terms;
use super::world::{ROUTE, SimClock, World};
use crate::broker::{Happened, Marker, Outgoing, Report, Sent, Target, Transactional, Transactors};
use crate::clock::Clock;
use crate::model::ShardId;
use crate::model::header_name::ORIGIN;
use async_trait::async_trait;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

/// A handle; clones are the same process.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) number: usize,
    pub(crate) clock: Rc<SimClock>,
    /// From the store.
    pub(crate) is_cut_off: Rc<Cell<bool>>,
    pub(crate) link: Rc<Link>,
    pub(crate) terms: Rc<Terms>,
    /// Of its rewriter alone.
    pub(crate) rewriter: Rc<Halt>,
    frozen: Rc<Halt>,
}

impl Member {
    pub(crate) fn new(world: &World, number: usize) -> Self {
        let clock = world.clock();
        Self {
            number,
            clock,
            is_cut_off: Rc::default(),
            link: Rc::default(),
            terms: Rc::default(),
            rewriter: Rc::default(),
            frozen: Rc::default(),
        }
    }

    /// With a clock of its own.
    pub(crate) fn timed(world: &World, number: usize) -> Self {
        Self {
            clock: world.another_clock(),
            ..Self::new(world, number)
        }
    }

    pub(crate) fn freeze(&self, is_frozen: bool) {
        if !is_frozen {
            self.terms.woke();
        }
        self.frozen.set(is_frozen);
    }

    /// A loop of the process: it is not polled while that is frozen.
    pub(crate) fn run<F: Future>(&self, body: F) -> impl Future<Output = F::Output> + use<F> {
        self.frozen.over(body)
    }
}

/// A target, or transactors, that note what they are handed by whom, and whether they may be.
pub(crate) struct Witness<T: ?Sized> {
    world: World,
    member: Member,
    target: Box<T>,
    /// What is in transactions under way, by their transactor.
    under_way: BTreeMap<u64, Vec<String>>,
}

impl<T: ?Sized> Witness<T> {
    pub(crate) fn new(world: &World, member: &Member, target: Box<T>) -> Self {
        Self {
            world: world.clone(),
            member: member.clone(),
            target,
            under_way: BTreeMap::new(),
        }
    }

    /// Answers which message it is of.
    fn see(&self, record: &Outgoing<'_>) -> String {
        let text = |wanted: &str| {
            let value = record
                .out_headers()
                .find(|(name, _)| *name == wanted.as_bytes())?
                .1?;
            std::str::from_utf8(value).ok()
        };
        let uid = String::from_utf8_lossy(record.payload.unwrap_or_default()).into_owned();
        if let Some(partition) =
            text(ORIGIN).and_then(|origin| origin.split('/').nth(3)?.parse().ok())
        {
            self.world.saw_sent(
                uid.clone(),
                partition,
                (self.member.number, self.member.clock.now()),
            );
        } else {
            self.world.tell(
                &uid,
                format!("process {} sends {uid} back", self.member.number),
            );
        }
        uid
    }

    /// What was in a transaction, when that has ended.
    fn tell_end(&mut self, number: u64, end: &str) {
        for uid in self.under_way.remove(&number).unwrap_or_default() {
            self.world.tell(
                &uid,
                format!("process {}: what {uid} was in {end}", self.member.number),
            );
        }
    }
}

#[async_trait(?Send)]
impl Target for Witness<dyn Target> {
    fn send(&mut self, record: &Outgoing<'_>, ticket: u64) -> Sent {
        let sent = self.target.send(record, ticket);
        if sent == Sent::Taken {
            self.see(record);
        }
        sent
    }

    async fn reports(&mut self) -> Vec<Report> {
        self.target.reports().await
    }

    async fn close(&mut self) {
        self.target.close().await;
    }
}

#[async_trait(?Send)]
impl Transactors for Witness<dyn Transactors> {
    fn expect(&mut self, name: &Transactional) {
        self.target.expect(name);
    }

    fn open(&mut self, number: u64, name: &Transactional) {
        self.world.note(format!(
            "process {} opens transactor {number} of {}",
            self.member.number, name.partition
        ));
        // Whoever opens one fences who had the name before, and that one may hold the shard.
        if let Some(objection) = self
            .member
            .terms
            .objection(&ShardId::new(ROUTE, name.partition.clone()))
        {
            let process = self.member.number;
            self.world.accuse(format!(
                "process {process} opens a transactor of {}, {objection}",
                name.partition
            ));
        }
        self.target.open(number, name);
    }

    fn send(&mut self, number: u64, record: &Outgoing<'_>, ticket: u64) -> Sent {
        let sent = self.target.send(number, record, ticket);
        if sent == Sent::Taken {
            let uid = self.see(record);
            self.under_way.entry(number).or_default().push(uid);
        }
        sent
    }

    fn commit(&mut self, number: u64, marker: Marker) {
        self.target.commit(number, marker);
    }

    fn abort(&mut self, number: u64) {
        self.target.abort(number);
    }

    fn end(&mut self, number: u64) {
        self.tell_end(number, "is given up");
        self.target.end(number);
    }

    async fn happened(&mut self) -> Vec<(u64, Happened)> {
        let happened = self.target.happened().await;
        for (number, happened) in &happened {
            match happened {
                Happened::Opened(_) | Happened::Reports(_) => {}
                Happened::Committed => self.tell_end(*number, "is committed"),
                Happened::Aborted => self.tell_end(*number, "is undone"),
                Happened::Lost { reason, .. } => {
                    self.world.note(format!(
                        "process {} has lost transactor {number}: {reason}",
                        self.member.number
                    ));
                    self.tell_end(*number, "has an unknown end");
                }
            }
        }
        happened
    }

    async fn close(&mut self) {
        self.target.close().await;
    }
}
