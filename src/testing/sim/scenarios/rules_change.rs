//! Routing rules that change while messages wait.

use super::block_on_paused;
use crate::model::Partition;
use crate::testing::fault_injection::InjectedFault;
use crate::testing::sim::faults::fleet::FleetFaults;
use crate::testing::sim::faults::single::Faults;
use crate::testing::sim::fleet;
use crate::testing::sim::process::Process;
use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
use crate::testing::sim::workload::SOON;
use crate::testing::sim::world::{SOURCE, World};
use crate::testing::sim::{Delivery, Outcome, Plan, run};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(7);

/// The payloads that arrive, each marked if it is a dead letter.
///
/// A message with a long delay is stored, and a later one is delivered and committed. Then
/// `max_delay` becomes shorter than the long delay, and the store loses everything. A message that
/// is sent before the restart has a long delay too.
fn arrivals_after_rebuild(is_killed: bool) -> Vec<(String, bool)> {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let partition = Partition::new(SOURCE, 0);
        let send = |payload: &str, seconds: i64| {
            let due = world.now().as_millis() + 1_000 * seconds;
            world.produce(&partition, payload, &[("postdate-at", due.to_string())]);
        };
        let mut process = Process::start(&world, &mut random);
        send("long", 60);
        send("short", 1);
        tokio::time::sleep(Duration::from_secs(5)).await;
        if is_killed {
            process.kill(&world).await;
        } else {
            assert!(process.stop().await);
        }
        assert_eq!(world.arrivals().len(), 1, "the short message arrives first");
        world.set_max_delay(Duration::from_secs(10));
        world.wipe();
        send("while stopped", 60);
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(2)).await;
        send("later", 60);
        tokio::time::sleep(Duration::from_secs(120)).await;
        process.stop().await;
        let arrivals = world.arrivals().into_iter();
        let mut arrivals: Vec<_> = arrivals
            .map(|arrival| (arrival.uid, arrival.is_dead))
            .filter(|(uid, _)| uid != "short")
            .collect();
        arrivals.sort();
        arrivals
    })
}

#[test]
fn a_message_keeps_the_rules_under_which_it_was_read_when_the_store_is_rebuilt() {
    for is_killed in [false, true] {
        let expected = [
            ("later", true),
            ("long", false),
            ("while stopped", !is_killed),
        ];
        let expected = expected.map(|(uid, is_dead)| (uid.to_owned(), is_dead));
        assert_eq!(arrivals_after_rebuild(is_killed), expected, "{is_killed}");
    }
}

fn changing_rules(seed: u64, faults: Faults, delivery: Delivery) -> Outcome {
    run(Plan {
        seed,
        length: SHORT,
        faults,
        delays: SOON,
        delivery,
        changes_rules: true,
    })
}

fn fleet_of_changing_rules(seed: u64, faults: FleetFaults) -> Outcome {
    fleet::run_in(seed, SHORT, faults, World::with_changing_rules)
}

#[test]
fn no_fault_loses_a_message_when_each_process_start_changes_the_rules() {
    assert_promises_kept(90_000..90_300, |seed| {
        changing_rules(seed, Faults::ALL, Delivery::AtLeastOnce)
    });
    assert_promises_kept(90_300..90_400, |seed| {
        changing_rules(seed, Faults::STORE_KEEPS, Delivery::AtLeastOnce)
    });
}

#[test]
fn exactly_once_no_fault_repeats_a_message_when_each_process_start_changes_the_rules() {
    assert_promises_kept(91_000..91_400, |seed| {
        changing_rules(seed, Faults::ALL, Delivery::ExactlyOnce)
    });
}

#[test]
fn a_fleet_whose_workers_have_different_rules_keeps_every_promise() {
    assert_promises_kept(92_000..92_060, |seed| {
        fleet_of_changing_rules(seed, FleetFaults::StoreLoses)
    });
    assert_promises_kept(93_000..93_060, |seed| {
        fleet_of_changing_rules(seed, FleetFaults::ExactlyOnceStoreLoses)
    });
}

#[test]
fn every_fault_injected_into_the_rules_history_is_caught() {
    let planted = [
        InjectedFault::IgnoreRulesHistory,
        InjectedFault::CommitWithoutRules,
        InjectedFault::NewRulesAtWatermark,
    ];
    let is_caught = |injected| {
        breaks_promises(&[injected], 94_000..94_400, |seed| {
            changing_rules(seed, Faults::ALL, Delivery::ExactlyOnce)
        })
    };
    let missed: Vec<_> = planted
        .into_iter()
        .filter(|injected| !is_caught(*injected))
        .collect();
    assert_eq!(missed, []);
}
