//! The metrics of calls to the store.

use super::{Counter, Histogram, STORE_ERRORS, STORE_LATENCY_SECONDS};
use std::time::Duration;

/// A call of the store port. The label `operation` has the name of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Open,
    Append,
    State,
    EndHolds,
    Positions,
    Acquire,
    Release,
    List,
    Fetch,
    Tail,
    Advance,
    Quarantine,
    ReplaceRuns,
    RemoveFinishedIds,
    Heartbeat,
    EndSessions,
    Sessions,
    Erase,
}

impl Operation {
    pub(super) const ALL: &[(Self, &str)] = &[
        (Self::Open, "open"),
        (Self::Append, "append"),
        (Self::State, "state"),
        (Self::EndHolds, "end_holds"),
        (Self::Positions, "positions"),
        (Self::Acquire, "acquire"),
        (Self::Release, "release"),
        (Self::List, "list"),
        (Self::Fetch, "fetch"),
        (Self::Tail, "tail"),
        (Self::Advance, "advance"),
        (Self::Quarantine, "quarantine"),
        (Self::ReplaceRuns, "replace_runs"),
        (Self::RemoveFinishedIds, "remove_finished_ids"),
        (Self::Heartbeat, "heartbeat"),
        (Self::EndSessions, "end_sessions"),
        (Self::Sessions, "sessions"),
        (Self::Erase, "erase"),
    ];
}

/// Latency and errors of each operation.
#[derive(Clone, Debug)]
pub(crate) struct StoreMetrics(Vec<(Histogram, Counter)>);

impl StoreMetrics {
    pub(crate) fn new() -> Self {
        let handles = |(_, name): &(Operation, &str)| {
            (
                STORE_LATENCY_SECONDS.histogram(&[name]),
                STORE_ERRORS.counter(&[name]),
            )
        };
        Self(Operation::ALL.iter().map(handles).collect())
    }

    /// Records a finished call.
    pub(crate) fn record_call<T, E>(
        &self,
        operation: Operation,
        latency: Duration,
        result: &Result<T, E>,
    ) {
        // `ALL` has the operations in the order of their declaration. A test checks this.
        let (latencies, errors) = &self.0[operation as usize];
        latencies.record(latency);
        errors.increment(u64::from(result.is_err()));
    }
}
