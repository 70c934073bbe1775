//! The gauges of one shard: some set by the process that reads its partition, one by the process
//! that holds its lease.

use super::{
    DUE_SOON, Gauge, INGRESS_LAG, Instrument, LEASE_HELD, LEDGER, LEDGER_DIFFERENCE, LEDGER_UNSURE,
    MISSING_KEY_MESSAGES, OLD_KEY_MESSAGES, PARTITION_ASSIGNED, PENDING, QUARANTINED, STORED_BYTES,
};
use crate::model::ShardId;

/// The gauges of a shard whose partition this process reads. A drop sets them to 0, so a process
/// must have at most one value per shard.
#[derive(Debug)]
pub(crate) struct ShardGauges {
    pending: Gauge,
    due_soon: Gauge,
    quarantined: Gauge,
    stored_bytes: Gauge,
    old_key_messages: Gauge,
    missing_key_messages: Gauge,
    ledger_difference: Gauge,
    ledger_unsure: Gauge,
    ingress_lag: Gauge,
    assigned: Gauge,
    /// In the order of [`LEDGER_COUNTS`].
    ledger: [Gauge; LEDGER_COUNTS.len()],
}

/// The values of the ledger's label `count`.
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
        let topic = &shard.partition.topic;
        let index = shard.partition.index.to_string();
        let assigned = shard_gauge(PARTITION_ASSIGNED, shard);
        assigned.set(1);
        Self {
            pending: shard_gauge(PENDING, shard),
            due_soon: shard_gauge(DUE_SOON, shard),
            quarantined: shard_gauge(QUARANTINED, shard),
            stored_bytes: shard_gauge(STORED_BYTES, shard),
            old_key_messages: shard_gauge(OLD_KEY_MESSAGES, shard),
            missing_key_messages: shard_gauge(MISSING_KEY_MESSAGES, shard),
            ledger_difference: shard_gauge(LEDGER_DIFFERENCE, shard),
            ledger_unsure: shard_gauge(LEDGER_UNSURE, shard),
            ingress_lag: shard_gauge(INGRESS_LAG, shard),
            assigned,
            ledger: LEDGER_COUNTS.map(|count| LEDGER.gauge(&[&shard.route, topic, &index, count])),
        }
    }

    /// Sets the numbers of messages that are pending, due soon and quarantined, the bytes of the
    /// runs, the ledger in the order of [`LEDGER_COUNTS`], and its difference. `None`: the ledger
    /// is unsure.
    pub(crate) fn set(
        &self,
        [pending, due_soon, quarantined, stored_bytes]: [u64; 4],
        ledger: [u64; LEDGER_COUNTS.len()],
        difference: Option<i64>,
    ) {
        self.pending.set(pending as f64);
        self.due_soon.set(due_soon as f64);
        self.quarantined.set(quarantined as f64);
        self.stored_bytes.set(stored_bytes as f64);
        self.ledger_difference.set(difference.unwrap_or(0) as f64);
        self.ledger_unsure
            .set(if difference.is_none() { 1.0 } else { 0.0 });
        for (gauge, count) in self.ledger.iter().zip(ledger) {
            gauge.set(count as f64);
        }
    }

    /// Sets the messages that another known key than the first one encrypts, or none, and the messages
    /// whose key the process does not have.
    pub(crate) fn set_keys(&self, old_messages: u64, missing_messages: u64) {
        self.old_key_messages.set(old_messages as f64);
        self.missing_key_messages.set(missing_messages as f64);
    }

    /// Sets the number of records that were not sent to the store yet.
    pub(crate) fn set_ingress_lag(&self, records: u64) {
        self.ingress_lag.set(records as f64);
    }
}

impl Drop for ShardGauges {
    fn drop(&mut self) {
        self.set([0; 4], [0; LEDGER_COUNTS.len()], Some(0));
        self.set_keys(0, 0);
        self.set_ingress_lag(0);
        self.assigned.set(0);
    }
}

/// The gauge of a held lease: 1 until it is dropped, then 0.
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
    let topic = &shard.partition.topic;
    let index = shard.partition.index.to_string();
    instrument.gauge(&[&shard.route, topic, &index])
}
