//! Scenarios with one process.

use super::block_on_paused;
use crate::model::Partition;
use crate::testing::fault_injection::InjectedFault;
use crate::testing::sim::faults::single::Faults;
use crate::testing::sim::process::Process;
use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
use crate::testing::sim::workload::{FAR, SOON};
use crate::testing::sim::world::{Arrival, SOURCE, World};
use crate::testing::sim::{Delivery, Outcome, Plan, run};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::time::Duration;

/// The tail is read by run count, and a rollback is detected neither by watermark nor by
/// lineage. The second list also reuses names.
/// The store refuses the claims of a timer that ignores a rollback, so both are switched off.
const IGNORE_ROLLBACK: &[InjectedFault] = &[
    InjectedFault::IgnoreRollback,
    InjectedFault::ClaimFromRolledBackStore,
];
/// A timer that remembers what it has seen waits for the source, so that is switched off, too.
const CLAIM_WHILE_STORE_IS_BEHIND: &[InjectedFault] = &[
    InjectedFault::ClaimWhileStoreIsBehind,
    InjectedFault::ForgetSeenWatermark,
];
const TAIL_BY_RUN_COUNT: &[InjectedFault] = &[
    InjectedFault::TailByRunCount,
    InjectedFault::IgnoreRollback,
    InjectedFault::ClaimFromRolledBackStore,
    InjectedFault::IgnoreRefilledRollback,
];
const TAIL_BY_REUSED_NAMES: &[InjectedFault] = &[
    InjectedFault::TailByRunCount,
    InjectedFault::IgnoreRollback,
    InjectedFault::ClaimFromRolledBackStore,
    InjectedFault::IgnoreRefilledRollback,
    InjectedFault::ReuseRunNames,
];

fn plan(seed: u64, faults: Faults, delays: &'static [i64]) -> Plan {
    Plan {
        seed,
        length: Duration::from_secs(20),
        faults,
        delays,
        delivery: Delivery::AtLeastOnce,
        changes_rules: false,
    }
}

fn exactly_once(seed: u64, faults: Faults, delays: &'static [i64]) -> Plan {
    Plan {
        delivery: Delivery::ExactlyOnce,
        ..plan(seed, faults, delays)
    }
}

/// Short runs have few faults, so that many can be run.
fn run_short(plan: Plan) -> Outcome {
    run(Plan {
        length: Duration::from_secs(6),
        ..plan
    })
}

#[test]
fn exactly_once_no_fault_loses_a_message_or_delivers_it_early_or_twice() {
    assert_promises_kept(0..8, |seed| run(exactly_once(seed, Faults::NONE, SOON)));
    assert_promises_kept(5_000..5_030, |seed| {
        run(exactly_once(seed, Faults::ALL, SOON))
    });
    assert_promises_kept(5_200..5_210, |seed| {
        run(exactly_once(seed, Faults::STORE_KEEPS, SOON))
    });
}

#[test]
fn exactly_once_hundreds_of_short_runs_keep_every_promise() {
    assert_promises_kept(50_000..51_000, |seed| {
        run_short(exactly_once(seed, Faults::ALL, SOON))
    });
}

#[test]
fn hundreds_of_short_runs_keep_every_promise() {
    assert_promises_kept(10_000..11_300, |seed| {
        run_short(plan(seed, Faults::ALL, SOON))
    });
    assert_promises_kept(20_000..20_100, |seed| {
        run_short(plan(seed, Faults::STORE_KEEPS, SOON))
    });
}

#[test]
fn exactly_once_a_seed_repeats_a_run_exactly() {
    let run = || run(exactly_once(3, Faults::ALL, SOON));
    assert_eq!(run(), run());
}

#[test]
fn every_fault_injected_into_exactly_once_delivery_is_caught() {
    let planted: [&[InjectedFault]; 17] = [
        &[InjectedFault::AppendWithoutCompare],
        &[InjectedFault::AppendAcceptsGap],
        &[InjectedFault::DeleteRunsAtClaim],
        &[InjectedFault::SkipLateMessages],
        &[InjectedFault::RestartAtCommittedOffset],
        &[InjectedFault::NoDueCheckAtSend],
        &[InjectedFault::ReadMarkerBeforeFence],
        &[InjectedFault::MarkerOutsideTransaction],
        &[InjectedFault::MarkerWithoutWatermark],
        CLAIM_WHILE_STORE_IS_BEHIND,
        &[InjectedFault::IngressSendsDirectly],
        &[InjectedFault::IgnoreMarker],
        &[InjectedFault::ResendAfterUnknownCommit],
        &[InjectedFault::TreatLateAsDelivered],
        &[InjectedFault::ForgetAbortedMessages],
        &[InjectedFault::ReuseRunNames],
        TAIL_BY_REUSED_NAMES,
    ];
    let planted = planted.map(|injected| (injected, Faults::ALL));
    // Only a store that loses writes often reveals it.
    let after_losses = (TAIL_BY_RUN_COUNT, Faults::STORE_LOSES);
    let is_caught = |injected, faults| {
        breaks_promises(injected, 6_000..7_600, |seed| {
            run(exactly_once(seed, faults, SOON))
        })
    };
    let missed: Vec<_> = planted
        .into_iter()
        .chain([after_losses])
        .filter(|(injected, faults)| !is_caught(injected, *faults))
        .map(|(injected, _)| injected)
        .collect();
    assert_eq!(missed, [] as [&[InjectedFault]; 0]);
    assert!(breaks_promises(
        &[InjectedFault::AcknowledgeDuringCommit],
        54_150..54_250,
        |seed| run_short(exactly_once(seed, Faults::ALL, SOON))
    ));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for (seed, delays) in (0..6).zip([SOON, FAR].into_iter().cycle()) {
        let (first, second) = (
            run(plan(seed, Faults::ALL, delays)),
            run(plan(seed, Faults::ALL, delays)),
        );
        assert!(first.trace.len() > 50, "almost no event: {:?}", first.trace);
        assert_eq!(first, second);
    }
}

#[test]
fn without_faults_everything_arrives_exactly_once_and_in_order() {
    assert_promises_kept(0..20, |seed| run(plan(seed, Faults::NONE, SOON)));
}

#[test]
fn no_fault_loses_a_message_or_delivers_it_early() {
    assert_promises_kept(1_000..1_060, |seed| run(plan(seed, Faults::ALL, SOON)));
}

#[test]
fn every_duplicate_after_a_store_loss_is_counted() {
    assert_promises_kept(4_500..4_530, |seed| {
        run(plan(seed, Faults::STORE_LOSES, SOON))
    });
    assert_promises_kept(4_600..4_630, |seed| {
        run(plan(seed, Faults::KILLS_AND_LOSSES, SOON))
    });
}

#[test]
fn every_fault_that_forgets_lost_deliveries_is_caught() {
    let faults = [InjectedFault::ForgetLostDeliveries];
    assert!(breaks_promises(&faults, 4_500..4_600, |seed| {
        run(plan(seed, Faults::STORE_LOSES, SOON))
    }));
}

#[test]
fn without_store_loss_a_cancelled_message_is_never_delivered() {
    assert_promises_kept(2_000..2_030, |seed| {
        run(plan(seed, Faults::STORE_KEEPS, SOON))
    });
}

#[test]
fn compaction_loses_and_repeats_no_message() {
    for (seeds, faults) in [
        (4_000..4_008, Faults::NONE),
        (4_100..4_115, Faults::ALL),
        (4_200..4_207, Faults::STORE_LOSES),
    ] {
        let rewritten = |seed| {
            run(plan(seed, faults, FAR))
                .trace
                .iter()
                .any(|line| line.what.contains(" runs as "))
        };
        assert!(seeds.clone().take(3).any(rewritten), "no run was rewritten");
        assert_promises_kept(seeds, |seed| run(plan(seed, faults, FAR)));
    }
}

/// The store may be refilled to the old watermark before the timer looks. The unit tests of
/// `timer::shard::load` show that only the lineage tells.
#[test]
fn a_store_that_is_refilled_after_a_rollback_loses_nothing() {
    assert_promises_kept(4_400..4_430, |seed| {
        run(plan(seed, Faults::STORE_LOSES, FAR))
    });
}

/// A message that cannot be sent now blocks the messages after it (G4).
#[test]
fn messages_keep_their_order_while_a_failed_producer_is_replaced() {
    let arrivals = block_on_paused(async {
        let world = World::new();
        let mut process = Process::start(&world, &mut StdRng::seed_from_u64(1));
        let (start, partition) = (world.now().as_millis(), Partition::new(SOURCE, 0));
        for number in 0..1_000 {
            world.produce(
                &partition,
                &format!("{number:04}"),
                &[("postdate-at", (start + 2_000 + number).to_string())],
            );
        }
        for failed in [true, false, true, false] {
            tokio::time::sleep(Duration::from_millis(1_150)).await;
            world.producers_failed(failed);
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(process.stop().await);
        world.arrivals()
    });
    assert_eq!(arrivals.len(), 1_000);
    assert!(arrivals.iter().all(|arrival| !arrival.is_dead));
    // The target has two partitions, listed one after the other.
    assert_eq!(
        arrivals
            .windows(2)
            .filter(|pair| pair[0].uid > pair[1].uid)
            .count(),
        1
    );
}

/// A store that is rebuilt from the commit then repeats nothing.
#[test]
fn a_graceful_shutdown_commits_the_delivered_pair() {
    block_on_paused(async {
        let world = World::new();
        let mut process = Process::start(&world, &mut StdRng::seed_from_u64(1));
        let (due, partition) = (world.now().as_millis() + 2_000, Partition::new(SOURCE, 0));
        for number in 0..100 {
            world.produce(
                &partition,
                &number.to_string(),
                &[("postdate-at", due.to_string())],
            );
        }
        tokio::time::sleep(Duration::from_millis(1_900)).await;
        world.hold_reports(true);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let late = world.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            late.hold_reports(false);
        });
        assert!(process.stop().await);
        assert_eq!(world.arrivals().len(), 100);
        assert_eq!(
            world.committed(&partition).await,
            Some(world.delivered(&partition).await)
        );
    });
}

/// The lateness of 1,000 messages in milliseconds. One message is due every 3 ms.
fn lateness(prepare: impl FnOnce(&World)) -> Vec<i64> {
    block_on_paused(async {
        let world = World::new();
        prepare(&world);
        let mut process = Process::start(&world, &mut StdRng::seed_from_u64(1));
        let start = world.now().as_millis() + 2_000;
        for number in 0..1_000_i64 {
            let due = start + 3 * number;
            world.produce(
                &Partition::new(SOURCE, 0),
                &due.to_string(),
                &[("postdate-at", due.to_string())],
            );
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let late = world
            .arrivals()
            .into_iter()
            .map(|arrival| arrival.at - arrival.uid.parse::<i64>().unwrap());
        let late: Vec<i64> = late.collect();
        assert!(process.stop().await);
        assert_eq!(late.len(), 1_000);
        late
    })
}

// Simulated time does not depend on the machine. The broker's timestamp may be one millisecond
// early.
const ON_TIME: Range<i64> = -1..20;

#[test]
fn a_message_due_between_two_clock_reads_is_not_delayed() {
    let late = lateness(|world| {
        world.clock().set_jittery();
        world.set_store_delay(Duration::ZERO);
    });
    assert!(
        late.iter().all(|late| ON_TIME.contains(late)),
        "{:?} ms late",
        late.iter().max()
    );
}

#[test]
fn claimed_messages_do_not_wait_for_the_next_claim() {
    let late = lateness(|world| world.set_store_delay(Duration::from_millis(20)));
    assert!(
        late.iter().all(|late| ON_TIME.contains(late)),
        "{:?} ms late",
        late.iter().max()
    );
}

/// Partition 0 has 1,000 messages that became due while no worker was running. Partition 1 has
/// one message every 20 ms after the restart.
fn after_an_outage(overdue_after: Option<Duration>, catch_up_rate: Option<u32>) -> Vec<Arrival> {
    block_on_paused(async {
        let world = World::new();
        world.set_overdue(overdue_after, catch_up_rate);
        let mut random = StdRng::seed_from_u64(1);
        let mut process = Process::start(&world, &mut random);
        let start = world.now().as_millis();
        let send = |partition: i32, uid: String, due: i64| {
            world.produce(
                &Partition::new(SOURCE, partition),
                &uid,
                &[("postdate-at", due.to_string())],
            );
        };
        (0..1_000)
            .for_each(|number| send(0, format!("overdue {number:04}"), start + 2_000 + number));
        tokio::time::sleep(Duration::from_secs(1)).await;
        process.kill(&world).await;
        tokio::time::sleep(Duration::from_secs(9)).await;
        // The lease of the killed worker has to expire first.
        (0..500).for_each(|number| {
            send(
                1,
                format!("on time {number:04} {}", start + 16_000 + 20 * number),
                start + 16_000 + 20 * number,
            );
        });
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(40)).await;
        world.check_ledgers();
        assert_eq!(world.take_violations(), Vec::<String>::new());
        assert!(world.balances().iter().all(|balance| balance.pending == 0));
        assert!(process.stop().await);
        world.arrivals()
    })
}

#[test]
fn a_backlog_is_delivered_in_order_at_the_catch_up_rate_while_other_partitions_stay_on_time() {
    let arrivals = after_an_outage(None, Some(100));
    assert_eq!(arrivals.len(), 1_500);
    let (behind, on_time): (Vec<_>, Vec<_>) = arrivals
        .iter()
        .partition(|arrival| arrival.uid.starts_with("overdue"));
    for arrival in on_time {
        let due: i64 = arrival
            .uid
            .rsplit(' ')
            .next()
            .and_then(|due| due.parse().ok())
            .unwrap();
        assert!((0..500).contains(&(arrival.at - due)), "{arrival:?}");
    }
    // The target has two partitions, listed one after the other.
    assert_eq!(
        behind
            .windows(2)
            .filter(|pair| pair[0].uid > pair[1].uid)
            .count(),
        1
    );
    let mut times: Vec<i64> = behind.iter().map(|arrival| arrival.at).collect();
    times.sort_unstable();
    let most = times
        .iter()
        .map(|from| {
            times
                .iter()
                .filter(|at| (*from..from + 1_000).contains(at))
                .count()
        })
        .max();
    assert!(
        most.is_some_and(|most| (80..=115).contains(&most)),
        "{most:?} in one second"
    );
    let took = times[999] - times[0];
    assert!((9_000..12_000).contains(&took), "{took} ms");
}

#[test]
fn overdue_messages_become_dead_letters_and_the_others_are_delivered() {
    for (overdue_after, dead) in [
        (None, 0),
        (Some(Duration::from_secs(3)), 1_000),
        (Some(Duration::from_secs(60)), 0),
    ] {
        let arrivals = after_an_outage(overdue_after, None);
        assert_eq!(arrivals.len(), 1_500);
        assert_eq!(
            arrivals
                .iter()
                .filter(|arrival| arrival.is_dead && arrival.uid.starts_with("overdue"))
                .count(),
            dead
        );
        assert_eq!(
            arrivals.iter().filter(|arrival| arrival.is_dead).count(),
            dead,
            "a message on time must not become a dead letter"
        );
    }
}

#[test]
fn every_injected_fault_is_caught() {
    let planted: [(&[InjectedFault], Faults); 11] = [
        (&[InjectedFault::AppendWithoutCompare], Faults::ALL),
        (&[InjectedFault::AppendAcceptsGap], Faults::ALL),
        (&[InjectedFault::DeleteRunsAtClaim], Faults::ALL),
        (&[InjectedFault::SkipLateMessages], Faults::ALL),
        (&[InjectedFault::RestartAtCommittedOffset], Faults::ALL),
        (&[InjectedFault::NoDueCheckAtSend], Faults::ALL),
        (&[InjectedFault::ReuseRunNames], Faults::ALL),
        (&[InjectedFault::TimerAssumesIdleShard], Faults::NONE),
        (IGNORE_ROLLBACK, Faults::STORE_LOSES),
        (TAIL_BY_RUN_COUNT, Faults::STORE_LOSES),
        (TAIL_BY_REUSED_NAMES, Faults::STORE_LOSES),
    ];
    assert_eq!(uncaught(planted, SOON), [] as [&[InjectedFault]; 0]);
}

#[test]
fn every_fault_injected_into_the_ledger_is_caught() {
    let planted: [(&[InjectedFault], Faults); 2] = [
        (&[InjectedFault::CountOutcomesTwice], Faults::NONE),
        (
            &[InjectedFault::CountNothingAfterTakeover],
            Faults::STORE_KEEPS,
        ),
    ];
    assert_eq!(uncaught(planted, SOON), [] as [&[InjectedFault]; 0]);
}

/// A timer that continues from the marker does not know which ids its predecessor has finished.
#[test]
fn ids_that_are_left_in_the_store_are_caught() {
    let faults = [InjectedFault::KeepFinishedIds];
    assert!(breaks_promises(&faults, 5_300..5_500, |seed| {
        run(exactly_once(seed, Faults::STORE_KEEPS, SOON))
    }));
}

#[test]
fn every_fault_injected_into_compaction_is_caught() {
    let planted: [&[InjectedFault]; 4] = [
        &[InjectedFault::CompactionDropsMessage],
        &[InjectedFault::CompactionDuplicatesMessages],
        &[InjectedFault::CompactRunsBeingLoaded],
        &[InjectedFault::LoadRunsBeingReplaced],
    ];
    assert_eq!(
        uncaught(planted.map(|injected| (injected, Faults::NONE)), FAR),
        [] as [&[InjectedFault]; 0]
    );
}

/// The faults that no seed reveals.
fn uncaught<'m>(
    planted: impl IntoIterator<Item = (&'m [InjectedFault], Faults)>,
    delays: &'static [i64],
) -> Vec<&'m [InjectedFault]> {
    let caught = |injected, faults| {
        breaks_promises(injected, 3_000..4_600, |seed| {
            run(plan(seed, faults, delays))
        })
    };
    planted
        .into_iter()
        .filter(|(injected, faults)| !caught(injected, *faults))
        .map(|(injected, _)| injected)
        .collect()
}
