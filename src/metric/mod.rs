//! All metrics and their labels, in one list.
//!
//! Types such as [`RouteMetrics`] hold handles that are registered once, so counting is an addition
//! without a lookup. `telemetry` records and renders the values.
//!
//! Label values come from fixed lists, from the configuration, or from the brokers' partitions,
//! never from messages. So their number has a bound (I6).

mod shard;
mod store;

use crate::model::{DeadLetterReason, Timestamp};
use metrics::Label;
pub(crate) use metrics::{Counter, Gauge, Histogram};
pub(crate) use shard::{LeaseHeld, ShardGauges};
pub(crate) use store::{Operation, StoreMetrics};

/// One metric. `docs/metrics.md` repeats this list with advice, and a test compares them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instrument {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) labels: &'static [&'static str],
    pub(crate) description: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets, in seconds.
    Histogram(&'static [f64]),
}

/// From the timer's tick to one minute. Beyond that only the number of late messages matters.
const LATENESS: Kind = Kind::Histogram(&[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
]);
/// From one script on an idle Redis to the longest timeout of a call.
const LATENCY: Kind = Kind::Histogram(&[
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
]);

macro_rules! instruments {
    ($(
        $id:ident $name:literal $kind:expr, [$($label:literal),*]
        $description:literal
    )+) => {
        $(pub(crate) const $id: Instrument = Instrument {
            name: $name,
            kind: $kind,
            labels: &[$($label),*],
            description: $description,
        };)+
        /// In the order of a message's life.
        pub(crate) const ALL: &[Instrument] = &[$($id),+];
    };
}

instruments! {
    ACCEPTED "postdate_accepted_total" Kind::Counter, ["route"]
        "Records read from the source, including those that become dead letters."
    STORED "postdate_stored_total" Kind::Counter, ["route"]
        "Messages that the store has accepted."
    DELIVERED "postdate_delivered_total" Kind::Counter, ["route"]
        "Messages that their target has acknowledged."
    LATENESS_SECONDS "postdate_lateness_seconds" LATENESS, ["route"]
        "Seconds from the due time to the acknowledgement, of messages that were stored before they were due; without the wait for the route's rate."
    RATE_LATENESS_SECONDS "postdate_rate_lateness_seconds" LATENESS, ["route"]
        "Seconds for which only the route's rate kept a due message waiting. They are not part of postdate_lateness_seconds."
    EARLY "postdate_early_total" Kind::Counter, ["route"]
        "Messages acknowledged before their due time, by the worker's clock."
    LATE "postdate_late_total" Kind::Counter, ["route"]
        "Messages that were stored behind the cursor, because they were due already."
    STALLED "postdate_stalled_seconds" Kind::Gauge, ["route"]
        "Longest time in seconds for which a shard of this process with due or in-flight messages has claimed and finished no message."
    SCHEDULES "postdate_schedules" Kind::Gauge, ["route"]
        "Recurring schedules with a next occurrence that this process delivers."
    UNREAD_DEFINITIONS "postdate_shards_without_definitions" Kind::Gauge, ["route"]
        "Shards of this process that deliver no recurring schedule, because their definitions are not read completely."
    PAUSED_SHARDS "postdate_route_paused" Kind::Gauge, ["route"]
        "Paused shards of the route that this process would deliver."
    DEAD_LETTERED "postdate_dead_lettered_total" Kind::Counter, ["route", "reason"]
        "Messages sent to the dead-letter topic, by the code in `postdate-error`."
    REDRIVEN "postdate_redriven_total" Kind::Counter, ["route"]
        "Dead letters that were sent through the source again at the admin endpoint of this process."
    RETRIED "postdate_retried_total" Kind::Counter, ["route", "reason"]
        "Deliveries that failed and were retried through the source, by code."
    RESCHEDULED "postdate_rescheduled_total" Kind::Counter, ["route"]
        "Messages that went back through the source with the due time of a reschedule."
    CANCELLED "postdate_cancelled_total" Kind::Counter, ["route"]
        "Messages cancelled or replaced before delivery."
    CANCEL_MISSED "postdate_cancel_missed_total" Kind::Counter, ["route"]
        "Cancels and reschedules that came too late, or whose id matched no pending message; and reschedules to a time that is not later."
    EXPIRED "postdate_expired_total" Kind::Counter, ["route"]
        "Messages dropped because their `postdate-until` had passed."
    ANSWERS "postdate_answers_total" Kind::Counter, ["route"]
        "Answers to requests that their target has acknowledged at the first attempt."
    ANSWERS_MISSING "postdate_answers_missing_total" Kind::Counter, ["route"]
        "Requests without an answer: the reply target was not allowed, or did not take the answer through all attempts."
    OUTCOME_RECORDS "postdate_outcome_records_total" Kind::Counter, ["route"]
        "Outcome records that their topic has acknowledged."
    OUTCOME_RECORDS_MISSING "postdate_outcome_records_missing_total" Kind::Counter, ["route"]
        "Outcome records that were dropped: their topic did not take them, or the store did not tell their outcome."
    POSSIBLE_DUPLICATES "postdate_possible_duplicates_total" Kind::Counter, ["route"]
        "Messages sent again because the outcome of the first attempt is unknown; an upper bound after the store lost data."
    HOLDS_CUT_SHORT "postdate_holds_cut_short_total" Kind::Counter, ["route"]
        "Shards that delivered before the source was read again after a store loss, because the store or the quota of the route was full."
    TRANSACTIONS_COMMITTED "postdate_transactions_committed_total" Kind::Counter, ["route"]
        "Exactly-once: committed transactions."
    TRANSACTIONS_ABORTED "postdate_transactions_aborted_total" Kind::Counter, ["route"]
        "Exactly-once: transactions aborted because a record was rejected; the next transaction delivers their messages."
    COMMIT_SECONDS "postdate_commit_seconds" LATENCY, ["route"]
        "Exactly-once: seconds from the last acknowledgement in a transaction to its commit."
    PRODUCERS_FENCED "postdate_transactors_fenced_total" Kind::Counter, ["route"]
        "Exactly-once: transactional producers that were fenced by a successor, or whose transaction timed out."
    QUARANTINED_RUNS "postdate_quarantined_runs_total" Kind::Counter, ["route"]
        "Stored runs that could not be read and were moved to quarantine."
    COMPACTED_RUNS "postdate_rewritten_runs_total" Kind::Counter, ["route"]
        "Runs rewritten by compaction, because they were too small to be efficient or too large for the memory budget."
    SOURCE_GAP_MESSAGES "postdate_source_gap_messages_total" Kind::Counter, ["route"]
        "Messages that the source deleted before they were stored; an upper bound for a NATS stream with other subjects."
    START_RECORDS "postdate_start_records_total" Kind::Counter, ["route", "decision"]
        "Records retained when the reading of a partition started without an offset commit: `skipped` before the start position, `read` after it."
    SUSPICIOUS_DUE "postdate_suspicious_due_total" Kind::Counter, ["route"]
        "Messages with a due time before the year 2000, which are delivered at once."
    TIMESTAMP_AHEAD "postdate_timestamp_ahead_total" Kind::Counter, ["route"]
        "Records whose timestamp is ahead of the reader's clock."
    QUOTA_USED "postdate_quota_used_ratio" Kind::Gauge, ["route"]
        "Used part of this process' share of the route's max_waiting: 1 if all of it is used, 0 without a quota."
    PENDING "postdate_pending_messages" Kind::Gauge, ["route", "topic", "partition"]
        "Messages in a shard's stored runs; a run counts until its last message is delivered. 0 in processes that do not read the partition."
    DUE_SOON "postdate_due_soon_messages" Kind::Gauge, ["route", "topic", "partition"]
        "Messages of a shard that are overdue or due within five minutes, estimated from counts per minute and hour. 0 in processes that do not read the partition."
    INGRESS_LAG "postdate_ingress_lag_messages" Kind::Gauge, ["route", "topic", "partition"]
        "Records of a partition that are not sent to the store yet: its last known end minus the start of the next append. 0 in processes that do not read the partition."
    QUARANTINED "postdate_quarantined_messages" Kind::Gauge, ["route", "topic", "partition"]
        "Messages in the quarantined runs of a shard. 0 in processes that do not read the partition."
    STORED_BYTES "postdate_stored_bytes" Kind::Gauge, ["route", "topic", "partition"]
        "Compressed bytes of a shard's runs, without the overhead of the store. 0 in processes that do not read the partition."
    OLD_KEY_MESSAGES "postdate_old_key_messages" Kind::Gauge, ["route", "topic", "partition"]
        "Waiting messages of a shard that are not encrypted with the first key of keys_file. 0 in processes that do not read the partition."
    MISSING_KEY_MESSAGES "postdate_missing_key_messages" Kind::Gauge, ["route", "topic", "partition"]
        "Messages of a shard that wait for a key that keys_file does not have. 0 in processes that are not assigned the partition."
    LEDGER "postdate_ledger_messages" Kind::Gauge, ["route", "topic", "partition", "count"]
        "Messages in a shard's ledger, by `count`: accepted, delivered, cancelled, dead_lettered, quarantined, sent_back (retried or rescheduled through the source), pending. 0 in processes that do not read the partition."
    LEDGER_DIFFERENCE "postdate_ledger_difference_messages" Kind::Gauge, ["route", "topic", "partition"]
        "Messages accepted minus all other counts of the ledger; 0 while the ledger is unsure."
    LEDGER_UNSURE "postdate_ledger_unsure" Kind::Gauge, ["route", "topic", "partition"]
        "1 while a shard's ledger cannot be exact, because the store lost data or a timer lost its lease; otherwise 0."
    PARTITION_ASSIGNED "postdate_partition_assigned" Kind::Gauge, ["route", "topic", "partition"]
        "1 while this process reads the partition, otherwise 0."
    LEASE_HELD "postdate_lease_held" Kind::Gauge, ["route", "topic", "partition"]
        "1 while this process holds the shard's lease, otherwise 0."
    LEASES_HELD "postdate_leases_held" Kind::Gauge, []
        "Leases that this process holds."
    WORKERS "postdate_timer_workers" Kind::Gauge, []
        "Live timer processes that this process knows, including itself."
    LEASES_ACQUIRED "postdate_leases_taken_total" Kind::Counter, []
        "Leases that this process acquired: of free shards, after a handover, or after their holder died."
    LEASES_HANDED_OVER "postdate_leases_handed_over_total" Kind::Counter, []
        "Leases that this process released for another worker, after all claimed messages were finished."
    HANDOVERS_POSTPONED "postdate_hand_overs_put_off_total" Kind::Counter, []
        "Handovers postponed because in-flight messages were not acknowledged in time."
    LEASES_LOST "postdate_leases_lost_total" Kind::Counter, []
        "Leases that ended with the session of this process, or were refused by the store."
    LEASES_EXPIRED "postdate_leases_run_out_total" Kind::Counter, []
        "Leases whose session this process did not renew in time; it does not deliver the shard until a heartbeat is answered."
    LOADED_MESSAGES "postdate_loaded_messages" Kind::Gauge, []
        "Messages in the memory of this process, loaded ahead of their due time."
    IN_FLIGHT_MESSAGES "postdate_in_flight_messages" Kind::Gauge, []
        "Messages sent to a target and not acknowledged yet."
    MEMORY_USED "postdate_memory_used_bytes" Kind::Gauge, ["part"]
        "Bytes of memory in use: `process` (resident), `unstored` (read and not stored), `loaded` (for delivery) and `sending` (not acknowledged)."
    MEMORY_BUDGET "postdate_memory_budget_bytes" Kind::Gauge, ["part"]
        "Maximum bytes for the same parts: `process` is the option `memory`, and the others are parts of it."
    STORE_LATENCY_SECONDS "postdate_store_latency_seconds" LATENCY, ["operation"]
        "Seconds that a call to the store took, successful or not."
    STORE_ERRORS "postdate_store_errors_total" Kind::Counter, ["operation"]
        "Calls to the store that failed; each is repeated."
    AUDIT_LINES_LOST "postdate_audit_lines_lost_total" Kind::Counter, []
        "Audit lines that the list in the store misses, because the store did not take them. The log has them."
    SPANS_EXPORTED "postdate_spans_exported_total" Kind::Counter, []
        "Spans that the collector of `traces.endpoint` has accepted."
    SPANS_DROPPED "postdate_spans_dropped_total" Kind::Counter, []
        "Spans dropped because the collector did not accept them or was too slow."
    CLOCK_SKEW "postdate_clock_skew_seconds" Kind::Gauge, []
        "This process' clock minus the store's clock, in seconds."
    CLOCK_STEPS "postdate_clock_steps_total" Kind::Counter, []
        "Jumps forward of the machine's clock by more than a second, pauses of the machine included."
    READY "postdate_ready" Kind::Gauge, []
        "1 while /readyz reports the process as ready, otherwise 0."
    DEGRADED "postdate_degraded" Kind::Gauge, []
        "1 while the process is ready and /readyz lists a problem under `degraded`, otherwise 0."
    RELOAD_REFUSED "postdate_reload_refused" Kind::Gauge, []
        "1 while the process keeps an older configuration, because the last reload was refused; otherwise 0."
    START_TIME "postdate_start_time_seconds" Kind::Gauge, []
        "Start time of the process, in seconds since 1970."
}

impl Instrument {
    /// The type name in Prometheus' text format.
    #[cfg(test)]
    fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }

    fn labels_with(&self, values: &[&str]) -> Vec<Label> {
        assert_eq!(
            self.labels.len(),
            values.len(),
            "{} has other labels",
            self.name
        );
        self.labels
            .iter()
            .zip(values)
            .map(|(label, value)| Label::new(*label, (*value).to_owned()))
            .collect()
    }

    fn counter(&self, values: &[&str]) -> Counter {
        metrics::counter!(self.name, self.labels_with(values))
    }

    fn gauge(&self, values: &[&str]) -> Gauge {
        metrics::gauge!(self.name, self.labels_with(values))
    }

    fn histogram(&self, values: &[&str]) -> Histogram {
        metrics::histogram!(self.name, self.labels_with(values))
    }
}

/// Registers all descriptions. Call it once, before the first metric is used.
pub(crate) fn describe() {
    for instrument in ALL {
        let Instrument {
            name, description, ..
        } = *instrument;
        match instrument.kind {
            Kind::Counter => metrics::describe_counter!(name, description),
            Kind::Gauge => metrics::describe_gauge!(name, description),
            Kind::Histogram(_) => metrics::describe_histogram!(name, description),
        }
    }
}

/// The metrics of one route. All values for one route share their numbers.
#[derive(Clone, Debug)]
pub(crate) struct RouteMetrics {
    pub(crate) accepted: Counter,
    pub(crate) stored: Counter,
    pub(crate) delivered: Counter,
    pub(crate) lateness_seconds: Histogram,
    pub(crate) rate_lateness_seconds: Histogram,
    pub(crate) early: Counter,
    pub(crate) late: Counter,
    pub(crate) stalled_seconds: Gauge,
    pub(crate) schedules: Gauge,
    pub(crate) unread_definitions: Gauge,
    pub(crate) paused_shards: Gauge,
    pub(crate) dead_lettered: ReasonCounters,
    pub(crate) retried: ReasonCounters,
    pub(crate) rescheduled: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) cancel_missed: Counter,
    pub(crate) expired: Counter,
    pub(crate) answers: Counter,
    pub(crate) answers_missing: Counter,
    pub(crate) outcome_records: Counter,
    pub(crate) outcome_records_missing: Counter,
    pub(crate) possible_duplicates: Counter,
    pub(crate) holds_cut_short: Counter,
    pub(crate) transactions_committed: Counter,
    pub(crate) transactions_aborted: Counter,
    pub(crate) commit_seconds: Histogram,
    pub(crate) producers_fenced: Counter,
    pub(crate) quarantined_runs: Counter,
    pub(crate) compacted_runs: Counter,
    pub(crate) source_gap_messages: Counter,
    pub(crate) start_skipped: Counter,
    pub(crate) start_read: Counter,
    pub(crate) suspicious_due: Counter,
    pub(crate) timestamp_ahead: Counter,
    pub(crate) quota_used: Gauge,
}

impl RouteMetrics {
    pub(crate) fn new(route: &str) -> Self {
        let counter = |instrument: Instrument| instrument.counter(&[route]);
        Self {
            accepted: counter(ACCEPTED),
            stored: counter(STORED),
            delivered: counter(DELIVERED),
            lateness_seconds: LATENESS_SECONDS.histogram(&[route]),
            rate_lateness_seconds: RATE_LATENESS_SECONDS.histogram(&[route]),
            early: counter(EARLY),
            late: counter(LATE),
            stalled_seconds: STALLED.gauge(&[route]),
            schedules: SCHEDULES.gauge(&[route]),
            unread_definitions: UNREAD_DEFINITIONS.gauge(&[route]),
            paused_shards: PAUSED_SHARDS.gauge(&[route]),
            dead_lettered: ReasonCounters::new(DEAD_LETTERED, route),
            retried: ReasonCounters::new(RETRIED, route),
            rescheduled: counter(RESCHEDULED),
            cancelled: counter(CANCELLED),
            cancel_missed: counter(CANCEL_MISSED),
            expired: counter(EXPIRED),
            answers: counter(ANSWERS),
            answers_missing: counter(ANSWERS_MISSING),
            outcome_records: counter(OUTCOME_RECORDS),
            outcome_records_missing: counter(OUTCOME_RECORDS_MISSING),
            possible_duplicates: counter(POSSIBLE_DUPLICATES),
            holds_cut_short: counter(HOLDS_CUT_SHORT),
            transactions_committed: counter(TRANSACTIONS_COMMITTED),
            transactions_aborted: counter(TRANSACTIONS_ABORTED),
            commit_seconds: COMMIT_SECONDS.histogram(&[route]),
            producers_fenced: counter(PRODUCERS_FENCED),
            quarantined_runs: counter(QUARANTINED_RUNS),
            compacted_runs: counter(COMPACTED_RUNS),
            source_gap_messages: counter(SOURCE_GAP_MESSAGES),
            start_skipped: START_RECORDS.counter(&[route, "skipped"]),
            start_read: START_RECORDS.counter(&[route, "read"]),
            suspicious_due: counter(SUSPICIOUS_DUE),
            timestamp_ahead: counter(TIMESTAMP_AHEAD),
            quota_used: QUOTA_USED.gauge(&[route]),
        }
    }
}

/// Sets the gauges of a route that this process serves no more to 0. Its counters stay.
pub(crate) fn end_route(route: &str) {
    for instrument in ALL {
        if instrument.kind == Kind::Gauge && instrument.labels == ["route"] {
            instrument.gauge(&[route]).set(0.0);
        }
    }
}

/// Counts redriven dead letters of a configured route.
pub(crate) fn redriven_counter(route: &str) -> Counter {
    REDRIVEN.counter(&[route])
}

pub(crate) fn audit_lines_lost() -> Counter {
    AUDIT_LINES_LOST.counter(&[])
}

/// The metrics of the span exporter.
#[derive(Clone, Debug)]
pub(crate) struct TraceMetrics {
    pub(crate) exported: Counter,
    pub(crate) dropped: Counter,
}

impl TraceMetrics {
    pub(crate) fn new() -> Self {
        Self {
            exported: SPANS_EXPORTED.counter(&[]),
            dropped: SPANS_DROPPED.counter(&[]),
        }
    }
}

/// One counter per dead-letter reason. All exist from the start, so that the first event of a
/// reason shows as an increase from 0.
#[derive(Clone, Debug)]
pub(crate) struct ReasonCounters(Vec<Counter>);

impl ReasonCounters {
    fn new(instrument: Instrument, route: &str) -> Self {
        let counter = |reason: &DeadLetterReason| instrument.counter(&[route, reason.code()]);
        Self(DeadLetterReason::ALL.iter().map(counter).collect())
    }

    pub(crate) fn of(&self, reason: DeadLetterReason) -> &Counter {
        // `ALL` has the reasons in the order of their declaration. A test checks this.
        &self.0[reason as usize]
    }
}

/// The metrics of the process as a whole.
#[derive(Clone, Debug)]
pub(crate) struct ProcessMetrics {
    ready: Gauge,
    degraded: Gauge,
    memory: MemoryGauges,
}

impl ProcessMetrics {
    /// `memory` is the budget of the process in bytes.
    pub(crate) fn new(started: Timestamp, memory: u64) -> Self {
        START_TIME
            .gauge(&[])
            .set(started.as_millis() as f64 / 1_000.0);
        let process = MemoryGauges::new("process");
        process.budget.set(memory as f64);
        Self {
            ready: READY.gauge(&[]),
            degraded: DEGRADED.gauge(&[]),
            memory: process,
        }
    }

    pub(crate) fn set_resident(&self, bytes: u64) {
        self.memory.used.set(bytes as f64);
    }

    pub(crate) fn set(&self, is_ready: bool, is_degraded: bool) {
        self.ready.set(f64::from(u8::from(is_ready)));
        self.degraded.set(f64::from(u8::from(is_degraded)));
    }
}

/// 1 while the last reload of the configuration was refused.
pub(crate) fn reload_refused() -> Gauge {
    RELOAD_REFUSED.gauge(&[])
}

/// Counts steps forward of the machine's clock.
pub(crate) fn clock_steps() -> Counter {
    CLOCK_STEPS.counter(&[])
}

/// Use and budget of one part of the memory.
#[derive(Clone, Debug)]
pub(crate) struct MemoryGauges {
    pub(crate) used: Gauge,
    pub(crate) budget: Gauge,
}

impl MemoryGauges {
    pub(crate) fn new(part: &str) -> Self {
        Self {
            used: MEMORY_USED.gauge(&[part]),
            budget: MEMORY_BUDGET.gauge(&[part]),
        }
    }
}

/// The metrics of the membership loop of this process.
#[derive(Clone, Debug)]
pub(crate) struct MembershipMetrics {
    pub(crate) timers: Gauge,
    /// Positive if the clock of this process is ahead of the store's.
    pub(crate) clock_skew_seconds: Gauge,
}

impl MembershipMetrics {
    pub(crate) fn new() -> Self {
        Self {
            timers: WORKERS.gauge(&[]),
            clock_skew_seconds: CLOCK_SKEW.gauge(&[]),
        }
    }
}

/// The metrics of the timer of this process.
#[derive(Clone, Debug)]
pub(crate) struct TimerMetrics {
    pub(crate) leases_acquired: Counter,
    pub(crate) leases_handed_over: Counter,
    pub(crate) handovers_postponed: Counter,
    pub(crate) leases_lost: Counter,
    pub(crate) leases_expired: Counter,
    pub(crate) leases_held: Gauge,
    pub(crate) loaded_messages: Gauge,
    pub(crate) in_flight_messages: Gauge,
    pub(crate) loaded_memory: MemoryGauges,
    pub(crate) sending_memory: MemoryGauges,
}

impl TimerMetrics {
    pub(crate) fn new() -> Self {
        Self {
            leases_acquired: LEASES_ACQUIRED.counter(&[]),
            leases_handed_over: LEASES_HANDED_OVER.counter(&[]),
            handovers_postponed: HANDOVERS_POSTPONED.counter(&[]),
            leases_lost: LEASES_LOST.counter(&[]),
            leases_expired: LEASES_EXPIRED.counter(&[]),
            leases_held: LEASES_HELD.gauge(&[]),
            loaded_messages: LOADED_MESSAGES.gauge(&[]),
            in_flight_messages: IN_FLIGHT_MESSAGES.gauge(&[]),
            loaded_memory: MemoryGauges::new("loaded"),
            sending_memory: MemoryGauges::new("sending"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Partition, ShardId};
    use crate::telemetry::MetricsRecorder;
    use std::collections::BTreeSet;
    use std::time::Duration;

    /// The rendered lines after `body`, including descriptions and types.
    fn rendered(body: impl FnOnce()) -> BTreeSet<String> {
        let recorder = MetricsRecorder::new();
        metrics::with_local_recorder(&recorder, || {
            describe();
            body();
        });
        let page = recorder.render();
        page.lines().map(str::to_owned).collect()
    }

    fn shard() -> ShardId {
        ShardId::new("orders", Partition::new("orders.delayed", 3))
    }

    #[test]
    fn every_metric_is_registered_with_its_type_and_description() {
        let lines = rendered(|| {
            let store = StoreMetrics::new();
            let _metrics = (
                RouteMetrics::new("orders"),
                TimerMetrics::new(),
                MembershipMetrics::new(),
                TraceMetrics::new(),
                ProcessMetrics::new(Timestamp::from_millis(0), 1 << 30),
                clock_steps(),
                redriven_counter("orders"),
                reload_refused(),
                audit_lines_lost(),
            );
            let _gauges = (ShardGauges::new(&shard()), LeaseHeld::new(&shard()));
            store.record_call(
                Operation::Append,
                Duration::from_millis(3),
                &Ok::<_, ()>(()),
            );
        });
        let help: BTreeSet<&str> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("# HELP "))
            .collect();
        let expected: Vec<String> = ALL
            .iter()
            .map(|instrument| format!("{} {}", instrument.name, instrument.description))
            .collect();
        assert_eq!(help, expected.iter().map(String::as_str).collect());
        for instrument in ALL {
            let kind = format!("# TYPE {} {}", instrument.name, instrument.kind_name());
            assert!(lines.contains(&kind), "{kind} is not in {lines:#?}");
        }
    }

    #[test]
    fn values_go_to_the_series_of_their_route_reason_and_shard() {
        let lines = rendered(|| {
            let route = RouteMetrics::new("orders");
            route.delivered.increment(5);
            route
                .dead_lettered
                .of(DeadLetterReason::TooLarge)
                .increment(2);
            let gauges = ShardGauges::new(&shard());
            gauges.set([7, 3, 2, 512], [9, 1, 0, 0, 2, 0, 7], Some(-1));
            gauges.set_ingress_lag(4);
            StoreMetrics::new().record_call(
                Operation::Advance,
                Duration::from_millis(3),
                &Err::<(), _>(()),
            );
            // A drop would set the gauges to 0.
            std::mem::forget((gauges, LeaseHeld::new(&shard())));
        });
        let shard = "route=\"orders\",topic=\"orders.delayed\",partition=\"3\"";
        for line in [
            "postdate_delivered_total{route=\"orders\"} 5".to_owned(),
            "postdate_dead_lettered_total{route=\"orders\",reason=\"too_large\"} 2".to_owned(),
            "postdate_dead_lettered_total{route=\"orders\",reason=\"no_target\"} 0".to_owned(),
            format!("postdate_pending_messages{{{shard}}} 7"),
            format!("postdate_due_soon_messages{{{shard}}} 3"),
            format!("postdate_ingress_lag_messages{{{shard}}} 4"),
            format!("postdate_quarantined_messages{{{shard}}} 2"),
            format!("postdate_stored_bytes{{{shard}}} 512"),
            format!("postdate_ledger_messages{{{shard},count=\"accepted\"}} 9"),
            format!("postdate_ledger_difference_messages{{{shard}}} -1"),
            format!("postdate_ledger_unsure{{{shard}}} 0"),
            format!("postdate_partition_assigned{{{shard}}} 1"),
            format!("postdate_lease_held{{{shard}}} 1"),
            "postdate_store_errors_total{operation=\"advance\"} 1".to_owned(),
            "postdate_store_errors_total{operation=\"append\"} 0".to_owned(),
        ] {
            assert!(lines.contains(&line), "{line} is not in {lines:#?}");
        }
    }

    #[test]
    fn a_process_that_released_a_shard_reports_0_for_it() {
        let lines = rendered(|| {
            let gauges = ShardGauges::new(&shard());
            gauges.set([7, 3, 2, 512], [9, 0, 0, 0, 2, 0, 7], Some(0));
        });
        let line = "postdate_pending_messages{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 0";
        assert!(lines.contains(line), "{lines:#?}");
    }

    #[test]
    fn lists_are_in_the_order_of_their_declaration() {
        for (index, reason) in DeadLetterReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        for (index, (operation, _)) in Operation::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, index);
        }
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        for Instrument { name, kind, .. } in ALL {
            assert!(name.starts_with("postdate_"), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        }
    }

    /// The row of a metric in docs/metrics.md, without the advice in its last column.
    fn row(instrument: &Instrument) -> String {
        let labels: Vec<String> = instrument
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        format!(
            "| `{}` | {} | {} | {} | ",
            instrument.name,
            instrument.kind_name(),
            labels.join(" "),
            instrument.description
        )
    }

    #[test]
    fn the_page_on_metrics_has_the_same_list() {
        let page = include_str!("../../docs/metrics.md");
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        assert_eq!(rows.len(), ALL.len());
        for (actual, expected) in rows.iter().zip(ALL.iter().map(row)) {
            let advice = actual.strip_prefix(&expected);
            assert!(
                advice.is_some_and(|advice| advice.len() > " |".len()),
                "docs/metrics.md has {actual}, and should have {expected}"
            );
        }
        let reasons: String = DeadLetterReason::ALL
            .iter()
            .map(|reason| format!("| `{}` | {} |\n", reason.code(), reason.meaning()))
            .collect();
        let operations: Vec<String> = Operation::ALL
            .iter()
            .map(|(_, name)| format!("`{name}`"))
            .collect();
        assert!(page.contains(&operations.join(" ")), "{operations:?}");
        let contract = include_str!("../../docs/contract.md");
        assert!(
            contract.ends_with(&reasons),
            "docs/contract.md should end with:\n{reasons}"
        );
    }
}
