//! The port of transactions on the cluster of memory: names that fence, transactions that hide what follows them until they end, and
//! markers that are there with the records or not at all.

use super::log::Stored;
use super::target::{Send, failure, is_name};
use super::{MemoryCluster, State};
use crate::broker::{
    Failure, FailureKind, Happened, Marker, Outgoing, Report, Sent, Transactional, Transactors,
};
use crate::model::{Partition, Reason};
use crate::mutant::{self, Mutant};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What brokers keep of transactions, and what is on its way to and from them.
#[derive(Default)]
pub(super) struct Transactions {
    names: BTreeMap<String, Name>,
    /// By the process and its own number.
    lines: BTreeMap<(u64, u64), Line>,
}

/// A transactional id.
#[derive(Default)]
struct Name {
    /// Who bears it, as the cluster numbers them.
    bearer: u64,
    written: BTreeSet<Partition>,
}

/// One transactor.
struct Line {
    name: Transactional,
    /// As the cluster numbers it; given with the opening.
    bearer: Option<u64>,
    asked: VecDeque<Asked>,
    held: VecDeque<Happened>,
    told: Vec<Happened>,
    /// One of the transaction's records was not taken.
    has_failed: bool,
    is_lost: bool,
    is_dead: bool,
    /// The marker as it was before the opening, where that is looked at too soon.
    early: Option<Option<String>>,
}

enum Asked {
    Open,
    Send(Send),
    Commit(Marker),
    Abort,
}

impl Transactions {
    pub(super) fn lose_the_dead(&mut self) {
        self.lines.retain(|_, line| !line.is_dead);
    }
}

impl State {
    /// Does what was asked for and can be done.
    pub(super) fn transact(&mut self) {
        if self.faults.down || self.faults.hold_sends {
            return;
        }
        let mut lines = std::mem::take(&mut self.transactions.lines);
        for line in lines.values_mut() {
            if self.faults.producers_failed {
                line.lose();
            }
            while !line.is_lost
                && let Some(asked) = line.asked.pop_front()
            {
                let happened = self.answer(line, asked);
                line.held.push_back(happened);
            }
            if !self.faults.hold_reports {
                line.told.extend(line.held.drain(..));
            }
        }
        lines.retain(|_, line| !line.is_dead);
        self.transactions.lines = lines;
    }

    fn answer(&mut self, line: &mut Line, asked: Asked) -> Happened {
        let id = &line.name.id;
        if let Asked::Open = asked {
            self.finish(id, false);
            let bearer = self.count();
            self.transactions
                .names
                .entry(id.clone())
                .or_default()
                .bearer = bearer;
            line.bearer = Some(bearer);
            let marker = self.marker(&line.name);
            return Happened::Opened(line.early.take().unwrap_or(marker));
        }
        let bearer = line.bearer.filter(|bearer| {
            self.transactions
                .names
                .get(id)
                .is_some_and(|name| name.bearer == *bearer)
        });
        let Some(bearer) = bearer else {
            line.is_lost = true;
            line.asked.clear();
            return Happened::Lost {
                is_fenced: true,
                reason: "another bears its name".into(),
            };
        };
        match asked {
            Asked::Open => unreachable!("it was answered above"),
            Asked::Send(send) => Happened::Reports(vec![self.send_in(line, bearer, send)]),
            Asked::Commit(marker) => {
                assert!(
                    !line.has_failed,
                    "a transaction with a record that was not taken is committed"
                );
                self.finish(id, true);
                let Transactional {
                    group, partition, ..
                } = &line.name;
                self.groups.entry(group.clone()).or_default().mark(
                    partition.clone(),
                    marker.offset,
                    marker.text,
                );
                Happened::Committed
            }
            Asked::Abort => {
                self.finish(id, false);
                line.has_failed = false;
                Happened::Aborted
            }
        }
    }

    fn marker(&self, name: &Transactional) -> Option<String> {
        Some(
            self.groups
                .get(&name.group)?
                .commit(&name.partition)?
                .1
                .clone(),
        )
    }

    fn send_in(&mut self, line: &mut Line, bearer: u64, send: Send) -> Report {
        let ticket = send.ticket;
        let outcome = if line.has_failed {
            Err(closed("its transaction is to be aborted"))
        } else {
            self.store(send, Some(bearer))
        };
        let outcome = outcome.map(|partition| {
            let name = self
                .transactions
                .names
                .get_mut(&line.name.id)
                .expect("a name that is borne");
            name.written.insert(partition);
        });
        line.has_failed |= outcome.is_err();
        Report {
            ticket,
            place: None,
            outcome,
        }
    }

    /// Ends the transaction under way of a name.
    fn finish(&mut self, id: &str, is_committed: bool) {
        let Some(name) = self.transactions.names.get_mut(id) else {
            return;
        };
        let (bearer, written) = (name.bearer, std::mem::take(&mut name.written));
        for partition in written {
            if let Some(log) = self.log(&partition) {
                log.finish(bearer, is_committed);
            }
        }
    }
}

impl Line {
    fn lose(&mut self) {
        if !self.is_lost {
            self.is_lost = true;
            self.asked.clear();
            // What was answered and not heard is never heard.
            self.held.clear();
            self.held.push_back(Happened::Lost {
                is_fenced: false,
                reason: "the producer has failed for good".into(),
            });
        }
    }
}

fn closed(detail: &str) -> Failure {
    failure(FailureKind::Closed, Reason::TimedOut, detail)
}

/// The transactors of one process.
pub(crate) struct MemoryTransactors {
    cluster: MemoryCluster,
    process: u64,
}

impl MemoryTransactors {
    pub(super) fn new(cluster: MemoryCluster) -> Self {
        let process = cluster.change(State::count);
        Self { cluster, process }
    }

    fn ask(&self, number: u64, asked: Asked) {
        self.cluster.change(|state| {
            if let Some(line) = state
                .transactions
                .lines
                .get_mut(&(self.process, number))
                .filter(|line| !line.is_lost)
            {
                line.asked.push_back(asked);
            }
            state.deliver();
        });
    }

    fn leave(&self, is_mine: impl Fn(u64) -> bool) {
        self.cluster.change(|state| {
            // As with what is sent without a transaction: the network still carries what it has.
            let in_network = state.faults.hold_sends && !state.faults.down;
            let process = self.process;
            let lines = &mut state.transactions.lines;
            lines
                .iter_mut()
                .filter(|((of, number), _)| *of == process && is_mine(*number))
                .for_each(|(_, line)| line.is_dead = true);
            lines.retain(|_, line| !line.is_dead || in_network && !line.asked.is_empty());
        });
    }
}

#[async_trait(?Send)]
impl Transactors for MemoryTransactors {
    fn expect(&mut self, _: &Transactional) {}

    fn open(&mut self, number: u64, name: &Transactional) {
        self.cluster.change(|state| {
            let early = mutant::active(Mutant::MarkerBeforeFence).then(|| state.marker(name));
            let line = Line {
                name: name.clone(),
                bearer: None,
                asked: VecDeque::from([Asked::Open]),
                held: VecDeque::new(),
                told: Vec::new(),
                has_failed: false,
                is_lost: false,
                is_dead: false,
                early,
            };
            state
                .transactions
                .lines
                .insert((self.process, number), line);
            state.deliver();
        });
    }

    fn send(&mut self, number: u64, record: &Outgoing<'_>, ticket: u64) -> Sent {
        let is_open = self
            .cluster
            .state()
            .transactions
            .lines
            .get(&(self.process, number))
            .is_some_and(|line| !line.is_lost);
        if !is_open {
            return Sent::Failed(closed("the transactor is lost"));
        }
        if !is_name(record.topic) {
            return Sent::Failed(failure(
                FailureKind::Refused,
                Reason::InvalidTarget,
                "no topic can have that name",
            ));
        }
        let now = self.cluster.state().clock.now();
        let stored = Stored::new(
            now,
            Some(now),
            (record.key, record.payload),
            record.out_headers(),
        );
        self.ask(
            number,
            Asked::Send(Send {
                topic: record.topic.into(),
                partition: record.partition,
                record: stored,
                ticket,
                id: None,
            }),
        );
        Sent::Taken
    }

    fn commit(&mut self, number: u64, marker: Marker) {
        self.ask(number, Asked::Commit(marker));
    }

    fn abort(&mut self, number: u64) {
        self.ask(number, Asked::Abort);
    }

    fn end(&mut self, number: u64) {
        self.leave(|of| of == number);
    }

    /// Dropping it loses nothing: what happened leaves only with the answer.
    async fn happened(&mut self) -> Vec<(u64, Happened)> {
        let process = self.process;
        let taken = self.cluster.wait(|state| {
            let mine = state
                .transactions
                .lines
                .range_mut((process, 0)..=(process, u64::MAX))
                .filter(|(_, line)| !line.is_dead);
            let happened: Vec<_> = mine
                .flat_map(|((_, number), line)| {
                    line.told.drain(..).map(|happened| (*number, happened))
                })
                .collect();
            (!happened.is_empty()).then_some(happened)
        });
        taken.await
    }

    async fn close(&mut self) {
        self.leave(|_| true);
    }
}

impl Drop for MemoryTransactors {
    fn drop(&mut self) {
        self.leave(|_| true);
    }
}
