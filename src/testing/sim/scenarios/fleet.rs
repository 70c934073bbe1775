//! Scenarios with several processes.

use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::fleet::FleetFaults;
use crate::testing::sim::fleet::run;
use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
use std::time::Duration;

const LENGTH: Duration = Duration::from_secs(20);

/// Short runs have few steps, so that many can be run.
const SHORT: Duration = Duration::from_secs(7);

#[test]
fn a_seed_repeats_a_fleet_exactly() {
    for faults in [
        FleetFaults::None,
        FleetFaults::All,
        FleetFaults::StoreLoses,
        FleetFaults::Streams,
        FleetFaults::ExactlyOnceStoreLoses,
    ] {
        let (first, second) = (run(5, SHORT, faults), run(5, SHORT, faults));
        assert!(first.trace.len() > 50);
        assert_eq!(first, second);
    }
}

#[test]
fn workers_that_join_and_leave_share_shards_evenly_and_deliver_each_message_once() {
    assert_promises_kept(0..10, |seed| run(seed, LENGTH, FleetFaults::None));
    assert_promises_kept(10_000..10_100, |seed| run(seed, SHORT, FleetFaults::None));
}

#[test]
fn no_fault_loses_a_message_or_lets_a_worker_deliver_without_a_lease() {
    assert_promises_kept(1_000..1_020, |seed| run(seed, LENGTH, FleetFaults::All));
    assert_promises_kept(20_000..20_220, |seed| run(seed, SHORT, FleetFaults::All));
}

#[test]
fn a_fleet_loses_nothing_and_balances_its_ledgers_when_the_store_rolls_back() {
    assert_promises_kept(5_000..5_010, |seed| {
        run(seed, LENGTH, FleetFaults::StoreLoses)
    });
    assert_promises_kept(60_000..60_150, |seed| {
        run(seed, SHORT, FleetFaults::StoreLoses)
    });
}

#[test]
fn on_streams_with_two_readers_a_fleet_loses_nothing_and_delivers_nothing_twice() {
    assert_promises_kept(3_000..3_010, |seed| run(seed, LENGTH, FleetFaults::Streams));
    assert_promises_kept(30_000..30_100, |seed| {
        run(seed, SHORT, FleetFaults::Streams)
    });
}

#[test]
fn exactly_once_a_fleet_delivers_nothing_twice_when_workers_die_or_freeze() {
    assert_promises_kept(70_000..70_150, |seed| {
        run(seed, SHORT, FleetFaults::ExactlyOnce)
    });
}

#[test]
fn exactly_once_a_fleet_delivers_nothing_twice_when_the_store_rolls_back() {
    assert_promises_kept(4_000..4_010, |seed| {
        run(seed, LENGTH, FleetFaults::ExactlyOnceStoreLoses)
    });
    assert_promises_kept(40_000..40_150, |seed| {
        run(seed, SHORT, FleetFaults::ExactlyOnceStoreLoses)
    });
}

/// After a failover the former primary may run on, and some workers still reach it.
#[test]
fn a_fleet_loses_nothing_while_two_servers_are_the_store() {
    assert_promises_kept(6_000..6_010, |seed| {
        run(seed, LENGTH, FleetFaults::TwoStores)
    });
    assert_promises_kept(80_000..80_060, |seed| {
        run(seed, SHORT, FleetFaults::TwoStores)
    });
}

#[test]
fn exactly_once_a_fleet_delivers_nothing_twice_while_two_servers_are_the_store() {
    let faults = FleetFaults::ExactlyOnceTwoStores;
    assert_promises_kept(7_000..7_010, |seed| run(seed, LENGTH, faults));
    assert_promises_kept(90_000..90_060, |seed| run(seed, SHORT, faults));
}

/// Without any of these three, a worker does not notice that it reaches another server.
#[test]
fn every_fault_injected_into_workers_of_two_servers_is_caught() {
    let faults = [
        InjectedFault::ContinueRolledBackSession,
        InjectedFault::IgnoreRefilledRollback,
        InjectedFault::IgnoreRollback,
    ];
    assert!(breaks_promises(&faults, 2_000..2_040, |seed| {
        run(seed, LENGTH, FleetFaults::TwoStores)
    }));
}

#[test]
fn every_fault_injected_into_a_fleet_is_caught() {
    let planted = [
        (InjectedFault::IgnoreLeaseExpiry, FleetFaults::All),
        (InjectedFault::NoDueCheckAtResend, FleetFaults::All),
        (InjectedFault::ReleaseWithClaimInFlight, FleetFaults::None),
        (InjectedFault::ReleaseWithoutDelivered, FleetFaults::None),
        (InjectedFault::AssignByOwnList, FleetFaults::None),
        (InjectedFault::AcquireUnassignedShards, FleetFaults::None),
        (
            InjectedFault::RestartAtCommittedOffset,
            FleetFaults::StoreLoses,
        ),
        (InjectedFault::CountNothingAfterTakeover, FleetFaults::All),
        (InjectedFault::ReviveEndedSession, FleetFaults::All),
        (InjectedFault::ReuseLeaseTokens, FleetFaults::None),
        (InjectedFault::TakeHeldShard, FleetFaults::None),
        (InjectedFault::EndSessionsAfterOutage, FleetFaults::All),
        (
            InjectedFault::ContinueRolledBackSession,
            FleetFaults::StoreLoses,
        ),
    ];
    let is_caught =
        |fault, faults| breaks_promises(&[fault], 2_000..2_100, |seed| run(seed, LENGTH, faults));
    let missed: Vec<_> = planted
        .into_iter()
        .filter(|(fault, faults)| !is_caught(*fault, *faults))
        .collect();
    assert_eq!(missed, []);
}
/// Opening a transactional producer fences the current owner of the shard.
#[test]
fn opening_a_producer_without_a_valid_lease_is_a_violation() {
    let opens = |broken: &String| broken.contains(" opens a producer of ");
    let is_accused = |seed| {
        run(seed, LENGTH, FleetFaults::ExactlyOnce)
            .broken
            .iter()
            .any(opens)
    };
    assert!(fault_injection::with(
        [InjectedFault::IgnoreLeaseExpiry],
        || (2_000..2_100).any(is_accused)
    ));
}
