//! What is shown of one shard, by the process that reads it and by the one that delivers it.

use super::{
    DUE_SOON_WITHIN, Gauge, INGRESS_LAG, Instrument, LEASE_HELD, LEDGER, LEDGER_DIFFERENCE,
    LEDGER_UNSURE, PARTITION_ASSIGNED, PENDING, QUARANTINED, STORED_BYTES,
};
use crate::model::ShardId;

/// What waits in one shard. When it is dropped this process no longer speaks for the shard, and the gauges are 0; so a process keeps at most
/// one for each shard.
#[derive(Debug)]
pub(crate) struct ShardGauges {
    /// Messages in runs, those that are due soon, those in quarantine, the bytes of the runs, the ledger's difference, and whether it is unsure.
    gauges: [Gauge; 6],
    ingress_lag: Gauge,
    assigned: Gauge,
    /// By [`LEDGER_COUNTS`].
    ledger: [Gauge; LEDGER_COUNTS.len()],
}

/// What a ledger counts, as the label says it.
const LEDGER_COUNTS: [&str; 7] = [
    "accepted",
    "delivered",
    "cancelled",
    "dead_lettered",
    "quarantined",
    "sent_back",
    "pending",
];

impl ShardGauges {
    pub(crate) fn new(shard: &ShardId) -> Self {
        let (topic, index) = (&shard.partition.topic, shard.partition.index.to_string());
        let gauges = [
            PENDING,
            DUE_SOON_WITHIN,
            QUARANTINED,
            STORED_BYTES,
            LEDGER_DIFFERENCE,
            LEDGER_UNSURE,
        ];
        let gauges = gauges.map(|instrument| shard_gauge(instrument, shard));
        let (ingress_lag, assigned) = (
            shard_gauge(INGRESS_LAG, shard),
            shard_gauge(PARTITION_ASSIGNED, shard),
        );
        assigned.set(1);
        Self {
            gauges,
            ingress_lag,
            assigned,
            ledger: LEDGER_COUNTS.map(|count| LEDGER.gauge(&[&shard.route, topic, &index, count])),
        }
    }

    /// In messages: all that wait, those that are due soon, and those set aside; then the bytes of what waits; of the ledger the counts in the order of [`LEDGER_COUNTS`], and the
    /// difference, if it says anything.
    pub(crate) fn set(
        &self,
        [pending, due_soon, quarantined, bytes]: [u64; 4],
        ledger: [u64; LEDGER_COUNTS.len()],
        difference: Option<i64>,
    ) {
        let unsure = if difference.is_none() { 1.0 } else { 0.0 };
        let values = [
            pending as f64,
            due_soon as f64,
            quarantined as f64,
            bytes as f64,
            difference.unwrap_or(0) as f64,
            unsure,
        ];
        self.gauges
            .iter()
            .zip(values)
            .for_each(|(gauge, value)| gauge.set(value));
        self.ledger
            .iter()
            .zip(ledger)
            .for_each(|(gauge, count)| gauge.set(count as f64));
    }

    /// Records that are not on their way to the store.
    pub(crate) fn set_ingress_lag(&self, records: u64) {
        self.ingress_lag.set(records as f64);
    }
}

impl Drop for ShardGauges {
    fn drop(&mut self) {
        self.set([0; 4], [0; LEDGER_COUNTS.len()], Some(0));
        self.set_ingress_lag(0);
        self.assigned.set(0);
    }
}

/// 1 for as long as it lives: this process holds the shard's lease. Then 0.
#[derive(Debug)]
pub(crate) struct LeaseHeld(Gauge);

impl LeaseHeld {
    pub(crate) fn new(shard: &ShardId) -> Self {
        let gauge = shard_gauge(LEASE_HELD, shard);
        gauge.set(1);
        Self(gauge)
    }
}

impl Drop for LeaseHeld {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

fn shard_gauge(instrument: Instrument, shard: &ShardId) -> Gauge {
    let (topic, index) = (&shard.partition.topic, shard.partition.index.to_string());
    instrument.gauge(&[&shard.route, topic, &index])
}
