//! Two installations with the same deployment name and the same store, each with its own cluster.

use super::block_on_paused;
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

const PARTITIONS: i32 = 4;

/// The event that happens while messages of the first installation wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    BothRun,
    /// The first installation is stopped until the messages are overdue.
    FirstIsStopped,
    /// Both run, and the store loses everything.
    StoreIsWiped,
}

struct Observed {
    /// The payloads that arrive at each cluster, and those that it sent.
    arrivals: [Vec<String>; 2],
    /// The second installation reports the conflict.
    is_reported: bool,
    /// The greatest lateness of a message of the first installation, in milliseconds.
    lateness: i64,
}

struct Installation {
    world: World,
    process: Process,
}

impl Installation {
    /// Sends a message to each partition, due after 5 seconds.
    fn produce(&self, name: &str) -> i64 {
        let due = self.world.now().as_millis() + 5_000;
        for index in 0..PARTITIONS {
            let (partition, payload) = (Partition::new(SOURCE, index), format!("{name} {index}"));
            let headers = [("postdate-at", due.to_string())];
            self.world.produce(&partition, &payload, &headers);
        }
        due
    }

    fn payloads(&self) -> Vec<String> {
        let arrivals = self.world.arrivals().into_iter();
        arrivals.map(|arrival| arrival.uid).collect()
    }

    fn reports(&self, words: &str) -> bool {
        let mut trace = self.world.take_trace().into_iter();
        self.process.reports_not_ready(words) || trace.any(|line| line.what.contains(words))
    }
}

fn run(case: Case) -> Observed {
    block_on_paused(async {
        let mut random = StdRng::seed_from_u64(1);
        let world = World::with_partitions(PARTITIONS);
        let process = Process::start(&world, &mut random);
        let mut first = Installation { world, process };
        tokio::time::sleep(Duration::from_secs(5)).await;
        first.produce("early");
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut due = 0;
        if case == Case::FirstIsStopped {
            due = first.produce("first");
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(first.process.stop().await);
        }
        let world = first.world.with_same_store(PARTITIONS);
        let process = Process::join(&world, ProcessControl::new(&world, 1), &mut random);
        let mut second = Installation { world, process };
        tokio::time::sleep(Duration::from_secs(10)).await;
        if case == Case::StoreIsWiped {
            first.world.wipe();
        }
        second.produce("second");
        if case != Case::FirstIsStopped {
            due = first.produce("first");
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        let is_reported = second.reports("another installation");
        if case == Case::FirstIsStopped {
            second.process.stop().await;
            first.process.ensure_running(&first.world, &mut random);
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        first.process.stop().await;
        second.process.stop().await;
        let last = first.world.arrivals().iter().map(|it| it.at).max();
        Observed {
            arrivals: [first.payloads(), second.payloads()],
            is_reported,
            lateness: last.map_or(0, |at| at - due),
        }
    })
}

/// The broken promises of a run.
fn problems(case: Case) -> Vec<String> {
    let Observed {
        arrivals: [first, second],
        is_reported,
        lateness,
    } = run(case);
    let mut problems = Vec::new();
    if first.iter().any(|payload| payload.starts_with("second"))
        || second.iter().any(|payload| !payload.starts_with("second"))
    {
        problems.push(format!(
            "messages arrived at the wrong cluster: {first:?}, {second:?}"
        ));
    }
    let count = |name| {
        first
            .iter()
            .filter(|payload| payload.starts_with(name))
            .count()
    };
    // After a wipe, either installation may get the store. The other one keeps its log.
    if case != Case::StoreIsWiped && count("first") != PARTITIONS as usize {
        problems.push(format!("the first installation is disturbed: {first:?}"));
    }
    if case == Case::BothRun && lateness > 1_000 {
        problems.push(format!("the first installation is {lateness} ms late"));
    }
    if !is_reported {
        problems.push("the second installation reports nothing".to_owned());
    }
    problems
}

const CASES: [Case; 3] = [Case::BothRun, Case::FirstIsStopped, Case::StoreIsWiped];

#[test]
fn an_installation_with_the_name_of_another_one_does_not_deliver_its_messages() {
    for case in CASES {
        assert_eq!(problems(case), Vec::<String>::new(), "{case:?}");
    }
}

#[test]
fn every_fault_injected_into_the_comparison_of_installations_is_caught() {
    for fault in [
        InjectedFault::IgnoreOtherCluster,
        InjectedFault::AdmitOtherClusters,
    ] {
        let found = |case| fault_injection::with([fault], || !problems(case).is_empty());
        assert!(CASES.into_iter().any(found), "{fault:?}");
    }
}
