//! Scenarios with NATS streams.

use crate::testing::fault_injection::InjectedFault;
use crate::testing::sim::faults::nats::{LONG, StreamFault};
use crate::testing::sim::faults::single::Faults;
use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
use crate::testing::sim::trace::TraceLine;
use crate::testing::sim::workload::SOON;
use crate::testing::sim::{Delivery, Outcome, Plan};
use std::cell::Cell;
use std::time::Duration;

const READ_AGAIN: Faults = Faults {
    streams: StreamFault::ReadersOnly,
    ..Faults::NONE
};
const ALL: Faults = Faults {
    streams: StreamFault::ReadersOnly,
    ..Faults::ALL
};
const PURGED: Faults = Faults {
    streams: StreamFault::Purges,
    ..Faults::STORE_KEEPS
};
const RENEWED: Faults = Faults {
    kills: true,
    clock_steps: true,
    streams: StreamFault::Recreation,
    ..Faults::NONE
};

const LENGTH: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(6);

fn run(seed: u64, faults: Faults, length: Duration) -> Outcome {
    // The operator waits for the window after a reset, so it is short.
    let window = if faults.streams == StreamFault::Recreation {
        Duration::from_secs(2)
    } else {
        LONG
    };
    crate::testing::sim::run(Plan {
        seed,
        length,
        faults,
        delays: SOON,
        delivery: Delivery::Streams(window),
        changes_rules: false,
    })
}

#[test]
fn on_streams_a_seed_repeats_a_run_exactly() {
    for faults in [ALL, RENEWED] {
        let (first, second) = (run(7, faults, LENGTH), run(7, faults, LENGTH));
        assert!(first.trace.len() > 50);
        assert_eq!(first, second);
    }
}

#[test]
fn records_that_a_stream_consumer_reads_again_are_skipped() {
    assert_promises_kept(0..10, |seed| run(seed, READ_AGAIN, LENGTH));
}

#[test]
fn on_streams_no_fault_loses_a_message_or_delivers_it_early_or_twice() {
    assert_promises_kept(1_000..1_030, |seed| run(seed, ALL, LENGTH));
    assert_promises_kept(10_000..10_250, |seed| run(seed, ALL, SHORT));
}

#[test]
fn stored_messages_survive_a_purge_of_the_stream() {
    assert_promises_kept(2_000..2_020, |seed| run(seed, PURGED, LENGTH));
    assert_promises_kept(20_000..20_100, |seed| run(seed, PURGED, SHORT));
}

#[test]
fn a_recreated_stream_is_detected_and_read_from_its_start_after_a_reset() {
    let resets = Cell::new(0);
    assert_promises_kept(3_000..3_030, |seed| {
        let outcome = run(seed, RENEWED, LENGTH);
        let was_reset = |line: &TraceLine| line.what == "the store is reset";
        resets.set(resets.get() + usize::from(outcome.trace.iter().any(was_reset)));
        outcome
    });
    assert!(resets.get() > 0);
}

#[test]
fn every_fault_injected_into_stream_handling_is_caught() {
    let planted = [
        (InjectedFault::StoreRereadRecords, READ_AGAIN),
        (InjectedFault::SendWithoutMessageId, ALL),
        (InjectedFault::IgnoreSourceRecreation, RENEWED),
        (InjectedFault::UseOldCommitAfterRecreation, RENEWED),
    ];
    let is_caught =
        |fault, faults| breaks_promises(&[fault], 4_000..4_100, |seed| run(seed, faults, LENGTH));
    let missed: Vec<_> = planted
        .into_iter()
        .filter(|(fault, faults)| !is_caught(*fault, *faults))
        .collect();
    assert_eq!(missed, []);
}
