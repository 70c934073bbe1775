//! Every instrument and its labels, in one place. Hands out handles that are registered once, so that counting costs an addition and no
//! look-up. Where the numbers go is the recorder's affair (`telemetry`).
//!
//! Labels have closed lists of values or come from the configuration and the brokers' partitions; never from messages (I6).

mod delivery_counts;
mod shard;
mod store;

use crate::model::{Reason, Timestamp};
pub(crate) use delivery_counts::DeliveryCounts;
use metrics::Label;
pub(crate) use metrics::{Counter, Gauge, Histogram};
pub(crate) use shard::{LeaseHeld, ShardGauges};
pub(crate) use store::{Operation, StoreMetrics};

/// What is measured, and what to do about it. `docs/metrics.md` is this list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instrument {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) labels: &'static [&'static str],
    pub(crate) meaning: &'static str,
    /// What to do when it moves: for the page on metrics, which a test holds equal to this list.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "read by the test of the page on metrics")
    )]
    pub(crate) action: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets, in seconds.
    Histogram(&'static [f64]),
}

/// From a tick of the timer to a minute, beyond which only the number of late messages matters.
const LATENESS_BOUNDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
const LATENESS: Kind = Kind::Histogram(LATENESS_BOUNDS);
/// From one script on an idle Redis to the longest time that a call is waited for.
const LATENCY: Kind = Kind::Histogram(&[
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
]);

macro_rules! instruments {
    ($($id:ident $name:literal $kind:expr, [$($label:literal),*] $meaning:literal $action:literal)+) => {
        $(const $id: Instrument = Instrument { name: $name, kind: $kind, labels: &[$($label),*], meaning: $meaning, action: $action };)+
        /// In the order of a message's life.
        pub(crate) const ALL: &[Instrument] = &[$($id),+];
    };
}

instruments! {
    ACCEPTED "postdate_accepted_total" Kind::Counter, ["route"]
        "records read from the source, those on their way to the dead letters included"
        "Flat while the source's lag grows: ingress does not read; see /readyz and the store's errors."
    STORED "postdate_stored_total" Kind::Counter, ["route"]
        "messages that the store has taken"
        "Behind accepted for more than a moment: the store refuses or is slow."
    DELIVERED "postdate_delivered_total" Kind::Counter, ["route"]
        "messages that their target has acknowledged"
        "Flat while messages are due: see lateness, in flight, and /readyz."
    LATENESS_SECONDS "postdate_lateness_seconds" LATENESS, ["route"]
        "delivered time minus due time, of messages that were stored before they were due"
        "Rises on all routes: too little CPU, or the store is slow. On one: its target is slow."
    EARLY "postdate_early_total" Kind::Counter, ["route"]
        "messages whose acknowledgement came before their due, by the clock of the worker: its clock went back in between, or worse"
        "Act: never early is the first promise. Look for a clock that was set back; if there is none, report it."
    LATE "postdate_late_total" Kind::Counter, ["route"]
        "messages that were due, but stored behind the cursor"
        "Producers send delays shorter than the way through the source, or ingress lags."
    STALLED "postdate_stalled_seconds" Kind::Gauge, ["route"]
        "how long a shard that this process delivers has neither claimed nor finished anything, though something of it is due or under way; the greatest of its shards"
        "Above a minute: a shard stands still, though others may go on, and lateness does not tell. See /readyz, the target, and the log."
    DEAD_LETTERED "postdate_dead_lettered_total" Kind::Counter, ["route", "reason"]
        "messages that went to the dead letters, by the code in `postdate-error`"
        "Look at the dead letters; what each code means stands below."
    RETRIED "postdate_retried_total" Kind::Counter, ["route", "reason"]
        "deliveries that failed for now and went back through the source, by code"
        "A target is missing or does not answer; after the last attempt its messages are dead letters."
    CANCELLED "postdate_cancelled_total" Kind::Counter, ["route"]
        "messages cancelled or replaced before they were delivered"
        "Nothing: producers asked for it."
    CANCEL_MISSED "postdate_cancel_missed_total" Kind::Counter, ["route"]
        "cancels that found nothing waiting under their id, or came too late"
        "Producers cancel after the due time, with unknown ids, or on another partition."
    POSSIBLE_DUPLICATES "postdate_possible_duplicates_total" Kind::Counter, ["route"]
        "messages handed over again whose first outcome is unknown; after a loss of the store an upper bound"
        "After crashes and takeovers: expected. Steadily: a shard changes hands, or a target times out."
    TRANSACTIONS_COMMITTED "postdate_transactions_committed_total" Kind::Counter, ["route"]
        "exactly-once: transactions that were committed, each with what it delivers and the marker of it"
        "At most 50 a second and shard; flat while messages are due: see /readyz and the logs."
    TRANSACTIONS_ABORTED "postdate_transactions_aborted_total" Kind::Counter, ["route"]
        "exactly-once: transactions that were undone, for a record in them was not taken; what was in them is delivered by the next"
        "Along with dead letters and retries: expected. Else the target's cluster is slow or was away."
    COMMIT_SECONDS "postdate_commit_seconds" LATENCY, ["route"]
        "exactly-once: how long a commit took, from the last acknowledgement of what is in it"
        "Rises: the cluster's transaction coordinators are busy. Lateness follows."
    TRANSACTORS_FENCED "postdate_transactors_fenced_total" Kind::Counter, ["route"]
        "exactly-once: transactional producers that ended because another took their place, or their transaction lasted too long"
        "After takeovers: expected. Steadily: two deployments have one name, or the cluster stalls for seconds."
    QUARANTINED_RUNS "postdate_quarantined_runs_total" Kind::Counter, ["route"]
        "stored runs that could not be read and were set aside"
        "Act: messages are held back. Find out who else writes to this Redis; keep the quarantine."
    REWRITTEN_RUNS "postdate_rewritten_runs_total" Kind::Counter, ["route"]
        "stored runs that were thin, or too much at once, and were merged or split before they are due"
        "Nothing: it saves memory of the store, and reading. No message waits for it; the longer it stands still, the more of what is far is read again."
    SOURCE_GAP_MESSAGES "postdate_source_gap_messages_total" Kind::Counter, ["route"]
        "messages that the source had deleted before they were stored; of a stream of NATS that has other subjects too, at most"
        "Act: they are lost. Raise the source's retention and limits above the longest outage."
    SUSPICIOUS_DUE "postdate_suspicious_due_total" Kind::Counter, ["route"]
        "messages with a due time before the year 2000, delivered at once"
        "A producer sends seconds where milliseconds are meant."
    TIMESTAMP_AHEAD "postdate_timestamp_ahead_total" Kind::Counter, ["route"]
        "records whose own timestamp lies ahead of the reader's clock"
        "A producer's clock is fast, and so are delays counted from it."
    PENDING "postdate_pending_messages" Kind::Gauge, ["route", "topic", "partition"]
        "messages in a shard's runs, as the process that reads its partition knows; a run goes with its last message; 0 from other processes"
        "Grows without end: more is scheduled than delivered. Redis' memory grows with it."
    DUE_SOON_WITHIN "postdate_due_soon_messages" Kind::Gauge, ["route", "topic", "partition"]
        "messages of a shard that are due within five minutes or behind their due, about: told from counts by minute and hour; 0 from processes that do not read the partition"
        "Rises ahead of a peak: what one timer can deliver in five minutes says how many are needed, see the page on scaling."
    INGRESS_LAG "postdate_ingress_lag_messages" Kind::Gauge, ["route", "topic", "partition"]
        "records of a partition that are not on their way to the store: its end, as last heard, less where the reading stands; 0 from processes that do not read it"
        "Grows: more comes than is stored. See the store's latency and errors, then add ingress processes, up to one a partition."
    QUARANTINED "postdate_quarantined_messages" Kind::Gauge, ["route", "topic", "partition"]
        "messages in the runs of a shard that were set aside, as the process that reads its partition knows; 0 from other processes"
        "Act while it is above 0: these are not delivered. The log names each run."
    STORED_BYTES "postdate_stored_bytes" Kind::Gauge, ["route", "topic", "partition"]
        "bytes of a shard's runs as they lie in the store, compressed, without what the store itself adds; 0 from processes that do not read the partition"
        "Grows with what waits. Redis takes some more for it (see the page on sizing); its own INFO memory tells how much is left."
    LEDGER "postdate_ledger_messages" Kind::Gauge, ["route", "topic", "partition", "count"]
        "a shard's ledger as the process that reads its partition knows it, by `count`: accepted, delivered, cancelled, dead_lettered, quarantined, sent_back, pending; 0 from other processes"
        "Accepted is the sum of the others. It may fall: see the page on the store for what each means after a loss."
    LEDGER_DIFFERENCE "postdate_ledger_difference_messages" Kind::Gauge, ["route", "topic", "partition"]
        "accepted less all other counts of the ledger; 0 while a loss of the store makes it unsure"
        "Act while it is not 0. Above: messages are missing. Below: more came to an end than were accepted. `postdate ledger` tells."
    LEDGER_UNSURE "postdate_ledger_unsure" Kind::Gauge, ["route", "topic", "partition"]
        "1 while a shard's ledger cannot be exact: the store lost data, or a timer its lease; else 0"
        "After such a loss: expected, until nothing of the shard is pending."
    PARTITION_ASSIGNED "postdate_partition_assigned" Kind::Gauge, ["route", "topic", "partition"]
        "1 while this process is the one that reads the partition, else 0"
        "The sum over all processes is 1 a partition; 0 for minutes: nobody reads it."
    LEASE_HELD "postdate_lease_held" Kind::Gauge, ["route", "topic", "partition"]
        "1 while this process holds the shard's lease, else 0"
        "The sum over all processes is 1 a shard; 0 for longer than the lease: nobody delivers it."
    LEASES_HELD "postdate_leases_held" Kind::Gauge, []
        "leases that this process holds"
        "Very uneven between processes: some could not take their share; see their logs."
    WORKERS "postdate_timer_workers" Kind::Gauge, []
        "timer processes that live, this one included, as it knows"
        "Differs from how many there should be: one cannot reach the store, or has ended. Differs between processes: look at clocks and logs."
    LEASES_TAKEN "postdate_leases_taken_total" Kind::Counter, []
        "leases that this process took: of free shards, of those that were handed over, of those whose holder died"
        "After a worker came or went: expected. Steadily: shards change hands for no reason; see the logs."
    LEASES_HANDED_OVER "postdate_leases_handed_over_total" Kind::Counter, []
        "leases that this process gave back, for another to have the shard, after all that was claimed of it was finished"
        "After a worker came, or when this one ends: expected."
    HAND_OVERS_PUT_OFF "postdate_hand_overs_put_off_total" Kind::Counter, []
        "shards that were to be handed over and are served on for now, for what is under way takes too long"
        "A target does not acknowledge what it was sent; see lateness and /readyz."
    LEASES_LOST "postdate_leases_lost_total" Kind::Counter, []
        "leases that ran out and were taken by another worker, or whose shard the store forgot"
        "The process was frozen or starved, or cut off from the store, for longer than the lease; or the store lost its data."
    LEASES_RUN_OUT "postdate_leases_run_out_total" Kind::Counter, []
        "leases that this process did not renew in time: it hands nothing of the shard over until it has"
        "As above; if none is lost, `timer.lease` is short for this store and machine."
    LOADED_MESSAGES "postdate_loaded_messages" Kind::Gauge, []
        "messages in this process' wheels"
        "Follows what is due soon; bounded by the memory budget."
    IN_FLIGHT_MESSAGES "postdate_in_flight_messages" Kind::Gauge, []
        "messages handed to a target's client and not acknowledged"
        "At its bound for long: the target is the bottleneck."
    MEMORY_USED "postdate_memory_used_bytes" Kind::Gauge, []
        "bytes that loaded messages take"
        "At the budget: messages are loaded later; raise `timer.memory` if lateness rises too."
    MEMORY_BUDGET "postdate_memory_budget_bytes" Kind::Gauge, []
        "the bound on it, `timer.memory`"
        "Nothing: it changes with the configuration."
    STORE_LATENCY_SECONDS "postdate_store_latency_seconds" LATENCY, ["operation"]
        "how long a call to the store took, whatever it answered"
        "Rises: Redis is busy, swaps, or is far away. Lateness follows."
    STORE_ERRORS "postdate_store_errors_total" Kind::Counter, ["operation"]
        "calls to the store that were not answered; all are repeated"
        "The logs name the error. Full: raise Redis' maxmemory, or free disk for the embedded store."
    SPANS_EXPORTED "postdate_spans_exported_total" Kind::Counter, []
        "spans of batches that the collector of `traces.endpoint` has taken"
        "Flat while it should not be: no producer samples its traces, or spans are dropped."
    SPANS_DROPPED "postdate_spans_dropped_total" Kind::Counter, []
        "spans that were given up: the collector did not take them, or they came faster than it does"
        "Delivery does not suffer. See the log for the collector; raise `traces.one_in` if it is too slow."
    CLOCK_SKEW "postdate_clock_skew_seconds" Kind::Gauge, []
        "this process' clock minus the store's; positive: ahead"
        "Near `timer.max_clock_skew`: mend time synchronisation, or claims will be refused."
    READY "postdate_ready" Kind::Gauge, []
        "1 while the process is ready, as /readyz says, else 0"
        "0 for longer than a start or a restart of the store takes: /readyz and the log name the part and the reason."
    DEGRADED "postdate_degraded" Kind::Gauge, []
        "1 while the process is ready though something beyond it is amiss, as /readyz says under `degraded`, else 0"
        "1: /readyz names it; mostly a target topic that is missing or not allowed."
    START_TIME "postdate_start_time_seconds" Kind::Gauge, []
        "when the process started, in seconds since 1970"
        "Changes often: the process ends and is started again. Its log's last lines say why."
}

impl Instrument {
    /// Prometheus' word for the kind.
    #[cfg(test)]
    fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }

    fn label_values(&self, values: &[&str]) -> Vec<Label> {
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
        metrics::counter!(self.name, self.label_values(values))
    }

    fn gauge(&self, values: &[&str]) -> Gauge {
        metrics::gauge!(self.name, self.label_values(values))
    }

    fn histogram(&self, values: &[&str]) -> Histogram {
        metrics::histogram!(self.name, self.label_values(values))
    }
}

/// Tells the recorder what each instrument means. Once, before the first is used.
pub(crate) fn describe() {
    for instrument in ALL {
        match instrument.kind {
            Kind::Counter => metrics::describe_counter!(instrument.name, instrument.meaning),
            Kind::Gauge => metrics::describe_gauge!(instrument.name, instrument.meaning),
            Kind::Histogram(_) => metrics::describe_histogram!(instrument.name, instrument.meaning),
        }
    }
}

/// What is counted of one route. Handles of the same route share their numbers.
#[derive(Clone, Debug)]
pub(crate) struct RouteMetrics {
    pub(crate) accepted: Counter,
    pub(crate) stored: Counter,
    pub(crate) delivered: Counter,
    /// In seconds.
    pub(crate) lateness_seconds: Histogram,
    pub(crate) early: Counter,
    pub(crate) late: Counter,
    /// In seconds.
    pub(crate) stalled_seconds: Gauge,
    pub(crate) dead_lettered: ReasonCounters,
    pub(crate) retried: ReasonCounters,
    pub(crate) cancelled: Counter,
    pub(crate) cancel_missed: Counter,
    pub(crate) possible_duplicates: Counter,
    pub(crate) transactions_committed: Counter,
    pub(crate) transactions_aborted: Counter,
    /// In seconds.
    pub(crate) commit_seconds: Histogram,
    pub(crate) producers_fenced: Counter,
    pub(crate) quarantined_runs: Counter,
    pub(crate) compacted_runs: Counter,
    pub(crate) source_gap_messages: Counter,
    pub(crate) suspicious_due: Counter,
    pub(crate) timestamp_ahead: Counter,
}

impl RouteMetrics {
    pub(crate) fn new(route: &str) -> Self {
        let counter = |instrument: Instrument| instrument.counter(&[route]);
        Self {
            accepted: counter(ACCEPTED),
            stored: counter(STORED),
            delivered: counter(DELIVERED),
            lateness_seconds: LATENESS_SECONDS.histogram(&[route]),
            early: counter(EARLY),
            late: counter(LATE),
            stalled_seconds: STALLED.gauge(&[route]),
            dead_lettered: ReasonCounters::new(DEAD_LETTERED, route),
            retried: ReasonCounters::new(RETRIED, route),
            cancelled: counter(CANCELLED),
            cancel_missed: counter(CANCEL_MISSED),
            possible_duplicates: counter(POSSIBLE_DUPLICATES),
            transactions_committed: counter(TRANSACTIONS_COMMITTED),
            transactions_aborted: counter(TRANSACTIONS_ABORTED),
            commit_seconds: COMMIT_SECONDS.histogram(&[route]),
            producers_fenced: counter(TRANSACTORS_FENCED),
            quarantined_runs: counter(QUARANTINED_RUNS),
            compacted_runs: counter(REWRITTEN_RUNS),
            source_gap_messages: counter(SOURCE_GAP_MESSAGES),
            suspicious_due: counter(SUSPICIOUS_DUE),
            timestamp_ahead: counter(TIMESTAMP_AHEAD),
        }
    }
}

/// What became of spans.
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

/// One counter a reason. All exist from the start, so that the first of a kind shows as a rise from 0.
#[derive(Clone, Debug)]
pub(crate) struct ReasonCounters(Vec<Counter>);

impl ReasonCounters {
    fn new(instrument: Instrument, route: &str) -> Self {
        Self(
            Reason::ALL
                .iter()
                .map(|reason| instrument.counter(&[route, reason.code()]))
                .collect(),
        )
    }

    pub(crate) fn of(&self, reason: Reason) -> &Counter {
        // `Reason::ALL` lists the reasons in the order of their declaration; a test holds it to that.
        &self.0[reason as usize]
    }
}

/// What is known of the process as a whole.
#[derive(Clone, Debug)]
pub(crate) struct ProcessMetrics {
    ready: Gauge,
    degraded: Gauge,
}

impl ProcessMetrics {
    pub(crate) fn new(started: Timestamp) -> Self {
        START_TIME
            .gauge(&[])
            .set(started.as_millis() as f64 / 1_000.0);
        Self {
            ready: READY.gauge(&[]),
            degraded: DEGRADED.gauge(&[]),
        }
    }

    pub(crate) fn set(&self, is_ready: bool, is_degraded: bool) {
        self.ready.set(f64::from(u8::from(is_ready)));
        self.degraded.set(f64::from(u8::from(is_degraded)));
    }
}

/// What is known of this process' timers.
#[derive(Clone, Debug)]
pub(crate) struct TimerMetrics {
    pub(crate) workers: Gauge,
    pub(crate) leases_acquired: Counter,
    pub(crate) leases_handed_over: Counter,
    pub(crate) handovers_postponed: Counter,
    pub(crate) leases_lost: Counter,
    pub(crate) leases_expired: Counter,
    pub(crate) leases_held: Gauge,
    pub(crate) loaded_messages: Gauge,
    pub(crate) in_flight_messages: Gauge,
    pub(crate) memory_used: Gauge,
    pub(crate) memory_budget: Gauge,
    /// In seconds, positive if this process is ahead of the store.
    pub(crate) clock_skew_seconds: Gauge,
}

impl TimerMetrics {
    pub(crate) fn new() -> Self {
        Self {
            workers: WORKERS.gauge(&[]),
            leases_acquired: LEASES_TAKEN.counter(&[]),
            leases_handed_over: LEASES_HANDED_OVER.counter(&[]),
            handovers_postponed: HAND_OVERS_PUT_OFF.counter(&[]),
            leases_lost: LEASES_LOST.counter(&[]),
            leases_expired: LEASES_RUN_OUT.counter(&[]),
            leases_held: LEASES_HELD.gauge(&[]),
            loaded_messages: LOADED_MESSAGES.gauge(&[]),
            in_flight_messages: IN_FLIGHT_MESSAGES.gauge(&[]),
            memory_used: MEMORY_USED.gauge(&[]),
            memory_budget: MEMORY_BUDGET.gauge(&[]),
            clock_skew_seconds: CLOCK_SKEW.gauge(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Partition, ShardId};
    use std::collections::BTreeSet;
    use std::time::Duration;

    /// What a scraper reads after `body`, comments included.
    fn scraped(body: impl FnOnce()) -> BTreeSet<String> {
        let recorder = crate::telemetry::MetricsRecorder::new();
        metrics::with_local_recorder(&recorder, || {
            describe();
            body();
        });
        recorder
            .handle()
            .render()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    fn shard() -> ShardId {
        ShardId::new("orders", Partition::new("orders.delayed", 3))
    }

    #[test]
    fn every_instrument_is_registered_with_its_type_and_its_meaning() {
        let lines = scraped(|| {
            let (_route, _timer, _traces, store) = (
                RouteMetrics::new("orders"),
                TimerMetrics::new(),
                TraceMetrics::new(),
                StoreMetrics::new(),
            );
            let _process = ProcessMetrics::new(Timestamp::from_millis(0));
            let (_waiting, _held) = (ShardGauges::new(&shard()), LeaseHeld::new(&shard()));
            RouteMetrics::new("orders").lateness_seconds.record(0.5);
            store.record_call(
                Operation::Append,
                Duration::from_millis(3),
                &Ok::<_, ()>(()),
            );
        });
        let told: BTreeSet<_> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("# HELP "))
            .collect();
        let known: Vec<_> = ALL
            .iter()
            .map(|instrument| format!("{} {}", instrument.name, instrument.meaning))
            .collect();
        assert_eq!(
            told,
            known.iter().map(String::as_str).collect::<BTreeSet<_>>()
        );
        for instrument in ALL {
            let kind = format!("# TYPE {} {}", instrument.name, instrument.kind_name());
            assert!(lines.contains(&kind), "{kind} is not in {lines:#?}");
        }
    }

    #[test]
    fn counts_go_to_the_series_of_their_route_reason_and_shard() {
        let lines = scraped(|| {
            let route = RouteMetrics::new("orders");
            route.delivered.increment(5);
            route.dead_lettered.of(Reason::TooLarge).increment(2);
            let waiting = ShardGauges::new(&shard());
            waiting.set([7, 3, 2, 512], [9, 1, 0, 0, 2, 0, 7], Some(-1));
            waiting.set_ingress_lag(4);
            StoreMetrics::new().record_call(
                Operation::Advance,
                Duration::from_millis(3),
                &Err::<(), _>(()),
            );
            std::mem::forget((waiting, LeaseHeld::new(&shard())));
        });
        for line in [
            "postdate_delivered_total{route=\"orders\"} 5",
            "postdate_dead_lettered_total{route=\"orders\",reason=\"too_large\"} 2",
            "postdate_dead_lettered_total{route=\"orders\",reason=\"no_target\"} 0",
            "postdate_pending_messages{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 7",
            "postdate_due_soon_messages{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 3",
            "postdate_ingress_lag_messages{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 4",
            "postdate_quarantined_messages{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 2",
            "postdate_stored_bytes{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 512",
            "postdate_ledger_messages{route=\"orders\",topic=\"orders.delayed\",partition=\"3\",count=\"accepted\"} 9",
            "postdate_ledger_difference_messages{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} -1",
            "postdate_ledger_unsure{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 0",
            "postdate_partition_assigned{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 1",
            "postdate_lease_held{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 1",
            "postdate_store_errors_total{operation=\"advance\"} 1",
            "postdate_store_errors_total{operation=\"append\"} 0",
        ] {
            assert!(lines.contains(line), "{line} is not in {lines:#?}");
        }
    }

    #[test]
    fn a_process_that_gave_a_shard_up_no_longer_speaks_for_it() {
        let lines = scraped(|| {
            ShardGauges::new(&shard()).set([7, 3, 2, 512], [9, 0, 0, 0, 2, 0, 7], Some(0))
        });
        assert!(lines.contains("postdate_pending_messages{route=\"orders\",topic=\"orders.delayed\",partition=\"3\"} 0"), "{lines:#?}");
    }

    #[test]
    fn lists_are_in_the_order_of_their_declaration() {
        assert!(
            Reason::ALL
                .iter()
                .enumerate()
                .all(|(index, reason)| *reason as usize == index)
        );
        assert!(
            Operation::ALL
                .iter()
                .enumerate()
                .all(|(index, (operation, _))| *operation as usize == index)
        );
    }

    #[test]
    fn names_are_prometheus_own_kind() {
        for instrument in ALL {
            assert!(
                instrument.name.starts_with("postdate_"),
                "{}",
                instrument.name
            );
            assert_eq!(
                instrument.name.ends_with("_total"),
                instrument.kind == Kind::Counter,
                "{}",
                instrument.name
            );
        }
    }

    #[test]
    fn the_page_on_metrics_is_this_list() {
        let row = |instrument: &Instrument| {
            let Instrument {
                name,
                labels,
                meaning,
                action,
                ..
            } = instrument;
            let labels = labels
                .iter()
                .map(|label| format!("`{label}`"))
                .collect::<Vec<_>>()
                .join(" ");
            format!(
                "| `{name}` | {} | {labels} | {meaning} | {action} |\n",
                instrument.kind_name()
            )
        };
        let instruments: String = ALL.iter().map(row).collect();
        let reasons: String = Reason::ALL
            .iter()
            .map(|reason| format!("| `{}` | {} |\n", reason.code(), reason.meaning()))
            .collect();
        let operations = Operation::ALL
            .iter()
            .map(|(_, name)| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(" ");
        let page = include_str!("../../docs/metrics.md");
        for part in [&instruments, &reasons, &operations] {
            assert!(page.contains(part), "docs/metrics.md should hold:\n{part}");
        }
        assert_eq!(
            page.matches("\n| `").count(),
            ALL.len() + Reason::ALL.len(),
            "docs/metrics.md lists something else besides"
        );
    }
}
