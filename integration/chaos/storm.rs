//! Injects faults into a running deployment, with quiet periods between them, and evaluates the
//! outcome.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::asked::{Asked, Broker, Mode, Topology};
use crate::env::now_ms;
use crate::fault::Fault;
use crate::fleet::{Fleet, Ledgers};
use crate::sender::{Sender, Sent};
use crate::server::Server;
use crate::store::Store;
use crate::tally::{Arrived, Came, Tally};

/// Milliseconds after a fault in which it may still cause lateness: lease expiry, group session
/// timeout, backlog.
const AFTERMATH: i64 = 15_000;

/// Milliseconds in which the fleet records a delivery in the store and in an offset commit.
const RECORDED_WITHIN: i64 = 1_000;

/// Milliseconds before its due time at which a message may be claimed.
const CLAIMED_AHEAD: i64 = 300;

/// If no new message arrives for this long, the missing messages count as lost.
const SILENCE: Duration = Duration::from_secs(60);

/// A round of one or two faults that was injected.
pub(crate) struct Injected {
    pub(crate) faults: Vec<Fault>,
    /// From the start of the faults to their repair, in epoch milliseconds.
    pub(crate) during: Range<i64>,
    /// Time until every shard had a ready owner again. Set only if one timer was killed, frozen or
    /// stopped and no other fault happened.
    pub(crate) took: Option<Duration>,
    /// Possible duplicates that the timers had counted when the round started.
    told: usize,
}

/// Duplicates that arrived after a round of faults, and possible duplicates that the timers
/// counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Again {
    pub(crate) came: usize,
    pub(crate) possible: usize,
}

pub(crate) struct Outcome {
    pub(crate) sent: Vec<Sent>,
    pub(crate) arrived: Arrived,
    pub(crate) injected: Vec<Injected>,
    pub(crate) possible_duplicates: usize,
    pub(crate) crashed: usize,
    pub(crate) ledgers: Ledgers,
    pub(crate) took: Duration,
}

impl Outcome {
    /// Partition and offset of each message that the source acknowledged and that never arrived.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (i32, i64)> {
        let came = |number: usize| {
            self.arrived
                .by_number
                .get(number)
                .is_some_and(|came| came.times > 0)
        };
        let missing = self
            .sent
            .iter()
            .enumerate()
            .filter(move |(number, _)| !came(*number));
        missing.filter_map(|(_, sent)| sent.place)
    }

    pub(crate) fn early(&self) -> usize {
        self.lateness(|_| true)
            .iter()
            .filter(|late| **late < 0)
            .count()
    }

    /// The lateness of the selected messages in milliseconds, ascending. Negative values are early.
    pub(crate) fn lateness(&self, is_such: impl Fn(&Sent) -> bool) -> Vec<i64> {
        let came = self
            .sent
            .iter()
            .zip(&self.arrived.by_number)
            .filter(|(sent, came)| came.times > 0 && is_such(sent));
        let mut lateness: Vec<_> = came.map(|(sent, came)| came.first - sent.due).collect();
        lateness.sort_unstable();
        lateness
    }

    /// Returns true if `at` is outside the period of every fault. A period spans from 1 s before
    /// the fault to `AFTERMATH` after it.
    pub(crate) fn is_calm(&self, at: i64) -> bool {
        self.injected.iter().all(|injected| {
            at < injected.during.start - 1_000 || at > injected.during.end + AFTERMATH
        })
    }

    /// Returns the duplicates for each round of faults, and the number of duplicates outside all
    /// rounds. A duplicate belongs to the last round that started before it, up to `AFTERMATH`
    /// after its end.
    pub(crate) fn again(&self) -> (Vec<Again>, usize) {
        let told = self
            .injected
            .iter()
            .skip(1)
            .map(|next| next.told)
            .chain([self.possible_duplicates]);
        let possible = self
            .injected
            .iter()
            .zip(told)
            .map(|(injected, then)| then.saturating_sub(injected.told));
        let mut of: Vec<_> = possible
            .map(|possible| Again { came: 0, possible })
            .collect();
        let mut calm = 0;
        for stamp in &self.arrived.again {
            let before = self
                .injected
                .partition_point(|injected| injected.during.start <= *stamp);
            match before
                .checked_sub(1)
                .filter(|at| *stamp <= self.injected[*at].during.end + AFTERMATH)
            {
                Some(at) => of[at].came += 1,
                None => calm += 1,
            }
        }
        (of, calm)
    }

    pub(crate) fn failovers(&self) -> usize {
        failovers(&self.injected)
    }

    /// Returns true if a fault made the store lose acknowledged writes. A failover may do so.
    fn has_lost_store(&self, asked: &Asked) -> bool {
        let is_loss = |fault: &Fault| {
            matches!(fault, Fault::RollBackRedis | Fault::EmptyRedis)
                || (asked.redis != Topology::Single && fault.causes_failover())
        };
        self.injected
            .iter()
            .any(|injected| injected.faults.iter().any(is_loss))
    }

    /// The possible duplicates that the faults explain: twice the duplicates that arrived, and the messages
    /// in flight when each round began and ended.
    pub(crate) fn explained_duplicates(&self) -> usize {
        let rounds = self.injected.iter();
        let times = rounds.flat_map(|round| [round.during.start, round.during.end]);
        let in_flight: usize = times.map(|at| self.in_flight_at(at)).sum();
        2 * self.arrived.again.len() + in_flight
    }

    /// Messages that were due, or about to be, and whose delivery may not have been recorded yet.
    fn in_flight_at(&self, at: i64) -> usize {
        let messages = self.sent.iter().zip(&self.arrived.by_number);
        let is_in_flight = |(sent, came): &(&Sent, &Came)| {
            came.times > 0 && sent.due <= at + CLAIMED_AHEAD && came.first >= at - RECORDED_WITHIN
        };
        messages.filter(is_in_flight).count()
    }

    /// Possible duplicates that were counted before the first fault.
    fn counted_before_faults(&self) -> usize {
        let first = self.injected.first();
        first.map_or(self.possible_duplicates, |first| first.told)
    }

    pub(crate) fn foreign(&self) -> usize {
        self.arrived.foreign + self.arrived.by_number.len().saturating_sub(self.sent.len())
    }

    pub(crate) fn is_kept(&self, asked: &Asked) -> bool {
        let (seen, counted) = (self.arrived.again.len(), self.possible_duplicates);
        let again = match (asked.broker, asked.mode) {
            // Duplicates that no timer has counted (G3), and counted ones that no fault explains.
            (Broker::Kafka, Mode::AtLeastOnce) => {
                seen.saturating_sub(counted) + counted.saturating_sub(self.explained_duplicates())
            }
            (Broker::Kafka, Mode::ExactlyOnce) => seen + counted,
            // The stream drops repeated messages.
            (Broker::Nats, _) => self.arrived.soon_doubled,
        };
        let broken = self.lost().count()
            + self.early()
            + self.foreign()
            + self.arrived.dead
            + self.crashed
            + self.counted_before_faults()
            + again;
        let Ledgers {
            difference,
            pending,
            unsure,
        } = self.ledgers;
        broken == 0
            && (difference, pending) == (0, 0)
            && (unsure == 0 || self.has_lost_store(asked))
    }
}

fn failovers(injected: &[Injected]) -> usize {
    let causes = |injected: &&Injected| injected.faults.iter().any(|fault| fault.causes_failover());
    injected.iter().filter(causes).count()
}

pub(crate) struct Storm {
    server: Server,
    store: Store,
    fleet: Fleet,
    sender: Sender,
    tally: Tally,
    random: StdRng,
    injected: Vec<Injected>,
    began: Instant,
    asked: Asked,
}

impl Storm {
    pub(crate) fn begin(asked: &Asked) -> Self {
        let server = Server::start(asked.broker, asked.brokers);
        let store = Store::start(asked.redis);
        let fleet = Fleet::start(server.config(&store, asked.mode));
        let (tally, sender) = (
            Tally::start(&server),
            Sender::start(&server, asked.rate, asked.seed ^ 1),
        );
        let random = StdRng::seed_from_u64(asked.seed);
        Self {
            server,
            store,
            fleet,
            sender,
            tally,
            random,
            injected: Vec::new(),
            began: Instant::now(),
            asked: asked.clone(),
        }
    }

    /// Injects faults until the time is over, repairs everything, and waits for the remaining
    /// messages.
    pub(crate) fn rage(mut self) -> Outcome {
        while match self.asked.failovers {
            Some(wanted) => failovers(&self.injected) < wanted,
            None => self.began.elapsed() < self.asked.length,
        } {
            self.calm();
            if self.asked.has_faults {
                self.strike();
                self.say();
            }
        }
        self.fleet.look_after();
        self.fleet.heal();
        let (tally, sent) = (self.tally, self.sender.end());
        let last = sent.iter().map(|sent| sent.due).max().unwrap_or(0);
        let (mut count, mut moved) = (0, Instant::now());
        let acknowledged = sent.iter().filter(|sent| sent.place.is_some()).count();
        while now_ms() < last + 5_000 || (count < acknowledged && moved.elapsed() < SILENCE) {
            std::thread::sleep(Duration::from_millis(500));
            let now = tally.so_far(Arrived::count);
            moved = if now > count { Instant::now() } else { moved };
            count = now;
        }
        self.fleet.look_after();
        let outcome = Outcome {
            sent,
            arrived: tally.end(),
            injected: self.injected,
            possible_duplicates: self.fleet.possible_duplicates(),
            ledgers: self.fleet.ledgers(),
            crashed: self.fleet.crashes(),
            took: self.began.elapsed(),
        };
        if !outcome.is_kept(&self.asked) {
            eprintln!(
                "chaos: what the processes wrote lies in {}",
                self.fleet.keep_logs().display()
            );
        }
        outcome
    }

    /// Waits for 1 to 20 seconds, usually long enough for the deployment to recover. Sometimes
    /// takes a snapshot of the store.
    fn calm(&mut self) {
        let length = Duration::from_millis(self.random.random_range(1_000..20_000));
        std::thread::sleep(length);
        if self.random.random_bool(0.5) {
            self.store.take_snapshot();
        }
    }

    fn strike(&mut self) {
        self.fleet.look_after();
        let told = self.fleet.possible_duplicates();
        let faults = Fault::some(&mut self.random, self.asked.faults);
        let began = Instant::now();
        let start = now_ms();
        let victims: BTreeMap<_, _> = faults
            .iter()
            .map(|fault| (*fault, self.begin_one(*fault)))
            .collect();
        let longest = faults
            .iter()
            .map(|fault| self.random.random_range(fault.length()))
            .max()
            .unwrap_or(0);
        let is_parting = matches!(
            faults[..],
            [Fault::KillTimer | Fault::FreezeTimer | Fault::StopTimer]
        );
        // The timer comes back only after the others have taken over its shards.
        let took = is_parting.then(|| {
            self.fleet
                .wait_until_whole(victims.values().next().copied(), began)
        });
        std::thread::sleep(Duration::from_millis(longest).saturating_sub(began.elapsed()));
        self.fleet.look_after();
        victims
            .into_iter()
            .for_each(|(fault, victim)| self.end_one(fault, victim));
        self.injected.push(Injected {
            faults,
            during: start..now_ms(),
            took,
            told,
        });
    }

    /// Starts a fault. Returns the index of the process or broker that it hits.
    fn begin_one(&mut self, fault: Fault) -> usize {
        let timer = self.random.random_range(0..self.fleet.timers.len());
        let ingress = self.random.random_range(0..self.fleet.ingresses.len());
        let node = self.random.random_range(0..self.asked.brokers);
        match fault {
            Fault::KillTimer => {
                self.fleet.note(timer);
                self.fleet.timers[timer].kill();
            }
            Fault::FreezeTimer => self.fleet.timers[timer].pause(),
            Fault::StopTimer => self.fleet.stop_timer(timer),
            Fault::AddTimer => self.fleet.add_timer(),
            Fault::KillIngress => self.fleet.ingresses[ingress].kill(),
            Fault::FreezeIngress => self.fleet.ingresses[ingress].pause(),
            Fault::StopIngress => self.fleet.stop_ingress(ingress),
            Fault::KillAll => {
                (0..self.fleet.timers.len()).for_each(|timer| self.fleet.note(timer));
                self.fleet
                    .timers
                    .iter_mut()
                    .chain(&mut self.fleet.ingresses)
                    .for_each(|process| process.kill());
            }
            Fault::KillRedis | Fault::FreezeRedis | Fault::RollBackRedis | Fault::EmptyRedis => {
                self.store.begin(fault);
            }
            Fault::KillBroker => self.server.kill(node),
            Fault::FreezeBroker => self.server.pause(node),
            Fault::StopBroker => self.server.stop(node),
        }
        match fault {
            Fault::KillIngress | Fault::FreezeIngress | Fault::StopIngress => ingress,
            Fault::KillBroker | Fault::FreezeBroker | Fault::StopBroker => node,
            _ => timer,
        }
    }

    fn end_one(&mut self, fault: Fault, victim: usize) {
        match fault {
            Fault::KillTimer | Fault::StopTimer => self.fleet.timers[victim].restart(),
            Fault::FreezeTimer => self.fleet.timers[victim].resume(),
            Fault::AddTimer => self.fleet.remove_timer(),
            Fault::KillIngress | Fault::StopIngress => self.fleet.ingresses[victim].restart(),
            Fault::FreezeIngress => self.fleet.ingresses[victim].resume(),
            Fault::KillAll => self.fleet.heal(),
            Fault::KillRedis | Fault::FreezeRedis | Fault::RollBackRedis | Fault::EmptyRedis => {
                self.store.end(fault);
            }
            Fault::KillBroker | Fault::StopBroker => self.server.restart(victim),
            Fault::FreezeBroker => self.server.resume(victim),
        }
    }

    fn say(&self) {
        let Some(last) = self.injected.last() else {
            return;
        };
        let words: Vec<_> = last
            .faults
            .iter()
            .map(|fault| fault.words(&self.asked))
            .collect();
        let took = last
            .took
            .map(|took| format!(", taken over after {:.1} s", took.as_secs_f64()))
            .unwrap_or_default();
        let (arrived, doubled) = self
            .tally
            .so_far(|arrived| (arrived.count(), arrived.again.len()));
        eprintln!(
            "chaos: {:>5.0} s: {}, for {:.1} s{took}; {} sent, {arrived} arrived, {doubled} of them again",
            self.began.elapsed().as_secs_f64(),
            words.join(" and "),
            (last.during.end - last.during.start) as f64 / 1_000.0,
            self.sender.count(),
        );
    }
}
