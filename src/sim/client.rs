//! Producers at the near end of a link: what is sent while that is cut waits here, and goes out when it heals; what the brokers tell is not
//! heard before. When producers fail, nobody knows what became of what was under way.

use super::link::Link;
use super::world::World;
use crate::broker::memory::{MemoryTarget, MemoryTransactors};
use crate::broker::{
    Failure, FailureKind, Happened, Marker, Outgoing, Report, Sent, Target, Transactional,
    Transactors,
};
use crate::model::{Headers, Reason};
use async_trait::async_trait;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// Records that a client takes before the first of them is reported on.
const IN_CLIENT_MAX: usize = 1_000;

/// What a record is, as long as it waits.
struct Record {
    topic: String,
    partition: Option<i32>,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Vec<u8>,
    stays: fn(&[u8]) -> bool,
    extra: Vec<(String, Vec<u8>)>,
}

impl Record {
    fn new(record: &Outgoing<'_>) -> Self {
        Self {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: record.key.map(<[u8]>::to_vec),
            payload: record.payload.map(<[u8]>::to_vec),
            headers: record.headers.as_block().to_vec(),
            stays: record.stays,
            extra: record
                .extra
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.to_vec()))
                .collect(),
        }
    }

    fn send(&self, send: impl FnOnce(&Outgoing<'_>) -> Sent) -> Sent {
        let extra: Vec<(&str, &[u8])> = self
            .extra
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
            .collect();
        send(&Outgoing {
            topic: &self.topic,
            partition: self.partition,
            key: self.key.as_deref(),
            payload: self.payload.as_deref(),
            headers: Headers::from_block(&self.headers),
            stays: self.stays,
            extra: &extra,
        })
    }
}

fn closed() -> Failure {
    Failure {
        kind: FailureKind::Closed,
        reason: Reason::TimedOut,
        detail: "the producer has failed for good".to_owned(),
    }
}

fn failed(ticket: u64, failure: Failure) -> Report {
    Report {
        ticket,
        place: None,
        outcome: Err(failure),
    }
}

/// A target.
pub(super) struct Producer {
    world: World,
    link: Rc<Link>,
    target: MemoryTarget,
    /// Of the link, when the target was made.
    failures: u64,
    waiting: VecDeque<(Record, u64)>,
    /// Tickets of what went out and was not reported on.
    sent: BTreeSet<u64>,
    told: Vec<Report>,
}

impl Producer {
    pub(super) fn new(world: &World, link: &Rc<Link>) -> Self {
        Self {
            world: world.clone(),
            link: link.clone(),
            target: world.cluster().target(IN_CLIENT_MAX),
            failures: link.failures(),
            waiting: VecDeque::new(),
            sent: BTreeSet::new(),
            told: Vec::new(),
        }
    }

    /// What has failed is replaced, and what waits goes out, if that can be.
    fn go_on(&mut self) {
        if self.failures != self.link.failures() {
            self.failures = self.link.failures();
            self.target = self.world.cluster().target(IN_CLIENT_MAX);
            let lost = std::mem::take(&mut self.sent)
                .into_iter()
                .chain(self.waiting.drain(..).map(|(_, ticket)| ticket));
            self.told
                .extend(lost.map(|ticket| failed(ticket, closed())));
        }
        while !self.link.is_cut()
            && let Some((record, ticket)) = self.waiting.pop_front()
        {
            match record.send(|record| self.target.send(record, ticket)) {
                Sent::Taken => _ = self.sent.insert(ticket),
                Sent::Failed(failure) => self.told.push(failed(ticket, failure)),
                Sent::Full => unreachable!("it holds no more than its target takes"),
            }
        }
    }
}

#[async_trait(?Send)]
impl Target for Producer {
    fn send(&mut self, record: &Outgoing<'_>, ticket: u64) -> Sent {
        self.go_on();
        if self.link.have_producers_failed() {
            return Sent::Failed(closed());
        }
        if self.waiting.len() + self.sent.len() >= IN_CLIENT_MAX {
            return Sent::Full;
        }
        if self.link.is_cut() {
            self.waiting.push_back((Record::new(record), ticket));
            return Sent::Taken;
        }
        let sent = self.target.send(record, ticket);
        if sent == Sent::Taken {
            self.sent.insert(ticket);
        }
        sent
    }

    /// Dropping it loses nothing: reports leave only with the answer.
    async fn reports(&mut self) -> Vec<Report> {
        loop {
            self.go_on();
            if !self.told.is_empty() {
                return std::mem::take(&mut self.told);
            }
            let is_cut = self.link.is_cut();
            tokio::select! {
                biased;
                () = self.link.changed() => {}
                reports = self.target.reports(), if !is_cut => {
                    reports.iter().for_each(|report| _ = self.sent.remove(&report.ticket));
                    return reports;
                }
            }
        }
    }

    async fn close(&mut self) {
        self.target.close().await;
    }
}

enum Asked {
    Open(Transactional),
    Send(Record, u64),
    Commit(Marker),
    Abort,
}

/// Transactors.
pub(super) struct Exchange {
    link: Rc<Link>,
    transactors: MemoryTransactors,
    failures: u64,
    waiting: VecDeque<(u64, Asked)>,
    /// Those that were opened and are neither lost nor given up.
    open: BTreeSet<u64>,
    told: Vec<(u64, Happened)>,
}

impl Exchange {
    pub(super) fn new(world: &World, link: &Rc<Link>) -> Self {
        Self {
            link: link.clone(),
            transactors: world.cluster().transactors(),
            failures: link.failures(),
            waiting: VecDeque::new(),
            open: BTreeSet::new(),
            told: Vec::new(),
        }
    }

    fn lose(&mut self, number: u64) {
        self.transactors.end(number);
        self.told.push((
            number,
            Happened::Lost {
                is_fenced: false,
                reason: closed().detail,
            },
        ));
    }

    fn go_on(&mut self) {
        if self.failures != self.link.failures() {
            self.failures = self.link.failures();
            self.waiting.clear();
            std::mem::take(&mut self.open)
                .into_iter()
                .for_each(|number| self.lose(number));
        }
        while !self.link.is_cut()
            && let Some((number, asked)) = self.waiting.pop_front()
        {
            self.pass_on(number, asked);
        }
    }

    fn pass_on(&mut self, number: u64, asked: Asked) {
        match asked {
            Asked::Open(name) => self.transactors.open(number, &name),
            Asked::Send(record, ticket) => {
                if let Sent::Failed(failure) =
                    record.send(|record| self.transactors.send(number, record, ticket))
                {
                    self.told
                        .push((number, Happened::Reports(vec![failed(ticket, failure)])));
                }
            }
            Asked::Commit(marker) => self.transactors.commit(number, marker),
            Asked::Abort => self.transactors.abort(number),
        }
    }

    fn ask(&mut self, number: u64, asked: Asked) {
        self.go_on();
        if !self.open.contains(&number) {
            return;
        }
        if self.link.is_cut() {
            self.waiting.push_back((number, asked))
        } else {
            self.pass_on(number, asked)
        }
    }
}

#[async_trait(?Send)]
impl Transactors for Exchange {
    fn expect(&mut self, name: &Transactional) {
        self.transactors.expect(name);
    }

    fn open(&mut self, number: u64, name: &Transactional) {
        self.go_on();
        if self.link.have_producers_failed() {
            return self.lose(number);
        }
        self.open.insert(number);
        self.ask(number, Asked::Open(name.clone()));
    }

    fn send(&mut self, number: u64, record: &Outgoing<'_>, ticket: u64) -> Sent {
        self.go_on();
        if !self.open.contains(&number) {
            return Sent::Failed(closed());
        }
        if !self.link.is_cut() {
            return self.transactors.send(number, record, ticket);
        }
        self.waiting
            .push_back((number, Asked::Send(Record::new(record), ticket)));
        Sent::Taken
    }

    fn commit(&mut self, number: u64, marker: Marker) {
        self.ask(number, Asked::Commit(marker));
    }

    fn abort(&mut self, number: u64) {
        self.ask(number, Asked::Abort);
    }

    /// What was in it stays open at the brokers until the next of its name.
    fn end(&mut self, number: u64) {
        self.open.remove(&number);
        self.waiting.retain(|(of, _)| *of != number);
        self.told.retain(|(of, _)| *of != number);
        self.transactors.end(number);
    }

    /// Dropping it loses nothing: what happened leaves only with the answer.
    async fn happened(&mut self) -> Vec<(u64, Happened)> {
        loop {
            self.go_on();
            if !self.told.is_empty() {
                return std::mem::take(&mut self.told);
            }
            let is_cut = self.link.is_cut();
            tokio::select! {
                biased;
                () = self.link.changed() => {}
                happened = self.transactors.happened(), if !is_cut => {
                    for (number, _) in happened.iter().filter(|(_, happened)| matches!(happened, Happened::Lost { .. })) {
                        self.open.remove(number);
                    }
                    return happened;
                }
            }
        }
    }

    async fn close(&mut self) {
        self.transactors.close().await;
    }
}
