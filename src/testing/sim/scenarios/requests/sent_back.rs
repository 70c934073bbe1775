//! A change of a message that went back to its source holds when the store is lost after it.

use super::super::block_on_paused;
use crate::limit::OFFSET_COMMIT_INTERVAL;
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{ANSWERS, SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// Why the message goes back to its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    /// The last offset commit is older than the record, and the store loses everything.
    Rescheduled,
    Failed,
    /// By two reschedules. A commit covers the first record, and the store goes back to before it.
    Twice,
}

/// The change after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    Cancel,
    Replace,
    Reschedule,
}

/// When the message is due, first, after the reschedule, and after the second change, in milliseconds.
const DUE: [i64; 3] = [2_000, 12_000, 20_000];

/// When the message is due after the first of two reschedules.
const DUE_BETWEEN: i64 = 4_000;

struct Trial {
    world: World,
    partition: Partition,
    begin: i64,
}

impl Trial {
    fn send(&self, payload: &str, headers: &[(&str, String)]) {
        let id = ("postdate-id", "id".to_owned());
        let headers = [&[id], headers].concat();
        self.world.produce(&self.partition, payload, &headers);
    }

    fn at(&self, due: i64) -> (&'static str, String) {
        ("postdate-at", (self.begin + due).to_string())
    }

    fn reschedule(&self, due: i64, more: &[(&str, String)]) {
        let op = ("postdate-op", "reschedule".to_owned());
        self.send("reschedule", &[&[op, self.at(due)], more].concat());
    }

    fn change(&self, second: Second) {
        let reply = [("postdate-reply-to", ANSWERS.to_owned())];
        match second {
            Second::Cancel => {
                let op = ("postdate-op", "cancel".to_owned());
                self.send("cancel", &[&[op], &reply[..]].concat());
            }
            Second::Replace => self.send("new", &[&[self.at(DUE[2])], &reply[..]].concat()),
            Second::Reschedule => self.reschedule(DUE[2], &reply),
        }
    }

    fn count(&self, topic: &str, header: &str) -> usize {
        let records = self.world.cluster().records(topic).into_iter();
        let has = |name: &[u8]| header.is_empty() || name == header.as_bytes();
        let records = records.filter(|it| it.headers.iter().any(|(name, _)| has(name)));
        records.count()
    }

    /// Waits until the topic has this number of records with the header.
    async fn wait_for(&self, topic: &str, header: &str, count: usize) {
        while self.count(topic, header) < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Reschedules the message, waits until it is back, and does so again.
    async fn send_back_twice(&self) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.world.take_snapshot();
        self.reschedule(DUE_BETWEEN, &[]);
        self.wait_for(SOURCE, "postdate-retry", 1).await;
        self.reschedule(DUE[1], &[]);
        self.wait_for(SOURCE, "postdate-retry", 2).await;
        tokio::time::sleep(2 * OFFSET_COMMIT_INTERVAL).await;
    }
}

/// The messages that arrive, and whether the last due time has come by then. The store loses its writes soon
/// after the answer of the second change.
fn arrivals(exactly_once: bool, back: Back, second: Second, phase: u64) -> Vec<(String, bool)> {
    block_on_paused(async {
        let world = match exactly_once {
            true => World::new().with_exactly_once(),
            false => World::new(),
        };
        let mut random = StdRng::seed_from_u64(phase);
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_millis(1_000 + phase)).await;
        let trial = Trial {
            begin: world.now().as_millis(),
            partition: Partition::new(SOURCE, 0),
            world: world.clone(),
        };
        trial.send("old", &[trial.at(DUE[0])]);
        match back {
            Back::Rescheduled => trial.reschedule(DUE[1], &[]),
            Back::Failed => world.target_missing(true),
            Back::Twice => trial.send_back_twice().await,
        }
        trial.wait_for(SOURCE, "postdate-retry", 1).await;
        trial.change(second);
        trial.wait_for(ANSWERS, "", 1).await;
        world.target_missing(false);
        match back {
            Back::Twice => world.roll_back(&mut random),
            Back::Rescheduled | Back::Failed => world.wipe(),
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        process.stop().await;
        let arrivals = world.arrivals().into_iter();
        let arrivals = arrivals.map(|it| (it.uid, it.at >= trial.begin + DUE[2]));
        let mut arrivals: Vec<_> = arrivals.collect();
        if !exactly_once {
            arrivals.dedup();
        }
        arrivals
    })
}

fn expected(second: Second) -> Vec<(String, bool)> {
    match second {
        Second::Cancel => vec![],
        Second::Replace => vec![("new".to_owned(), true)],
        Second::Reschedule => vec![("old".to_owned(), true)],
    }
}

/// All cases, and the times between the offset commits at which the message is sent.
fn cases() -> impl Iterator<Item = (bool, Back, Second)> {
    let backs = [false, true].into_iter();
    let backs = backs.flat_map(|exactly_once| {
        [Back::Rescheduled, Back::Failed, Back::Twice].map(|back| (exactly_once, back))
    });
    backs.flat_map(|(exactly_once, back)| {
        let seconds = [Second::Cancel, Second::Replace, Second::Reschedule];
        seconds.map(|second| (exactly_once, back, second))
    })
}

const PHASES: [u64; 4] = [0, 250, 500, 750];

#[test]
fn a_change_of_a_message_that_was_sent_back_holds_after_a_store_loss() {
    for (exactly_once, back, second) in cases() {
        for phase in PHASES {
            let found = arrivals(exactly_once, back, second, phase);
            let case = format!("exactly-once: {exactly_once}, {back:?}, {second:?}, {phase}");
            assert_eq!(found, expected(second), "{case}");
        }
    }
}

#[test]
fn a_message_that_leaves_its_id_behind_is_caught_in_each_case() {
    let is_missed = |(exactly_once, back, second): &(bool, Back, Second)| {
        let faults = [InjectedFault::ForgetSentFrom];
        let arrivals = |phase| arrivals(*exactly_once, *back, *second, phase);
        let finds_none = || {
            PHASES
                .iter()
                .all(|phase| arrivals(*phase) == expected(*second))
        };
        fault_injection::with(faults, finds_none)
    };
    let missed: Vec<_> = cases().filter(is_missed).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
