//! Reports transactions that stay open on target partitions.
//!
//! A broker can lose the end of a transaction. Consumers of committed records then see nothing
//! behind it, and only an operator can end it.

use crate::broker::Error;
use crate::broker::kafka::admin::WorkerThread;
use crate::broker::kafka::ffi::{self, Isolation};
use crate::limit::KAFKA_TRANSACTION_TIMEOUT;
use crate::model::Partition;
use std::collections::BTreeMap;
use tokio::time::Instant;

/// Partitions with an open transaction.
#[derive(Default)]
pub(super) struct StuckTransactions(BTreeMap<Partition, OpenTransaction>);

/// The first open transaction of a partition.
struct OpenTransaction {
    /// The partition's last stable offset: no transaction before it is open.
    start_offset: i64,
    first_seen: Instant,
    is_reported: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// A transaction is open for longer than Postdate's own may be.
    Stuck,
    /// A reported transaction has ended.
    Ended,
}

impl StuckTransactions {
    /// Compares the last stable offsets of the topics' partitions with their ends, and logs
    /// changes.
    pub(super) fn check(
        &mut self,
        worker: &mut WorkerThread,
        topics: &[String],
    ) -> Result<(), Error> {
        let found = worker.partitions(topics)?.into_iter();
        let partitions: Vec<_> = found.map(|(partition, _)| partition).collect();
        if partitions.is_empty() {
            return Ok(());
        }
        let mut ends = |isolation| {
            let end = rdkafka::Offset::End;
            worker.call(|call| ffi::list_offsets(call, &partitions, end, isolation))
        };
        let high_watermarks = ends(Isolation::Uncommitted)?;
        for (partition, last_stable) in ends(Isolation::Committed)? {
            // A partition without leader is checked the next time.
            let (Ok(offset), Some(Ok(end))) = (last_stable, high_watermarks.get(&partition)) else {
                continue;
            };
            let change = self.observe(&partition, offset, *end, Instant::now());
            let (topic, index) = (&*partition.topic, partition.index);
            match change {
                Some(Change::Stuck) => tracing::warn!(
                    topic,
                    partition = index,
                    offset,
                    "a transaction stays open on a target partition, and read_committed consumers \
                     wait behind it: see docs/runbook.md"
                ),
                Some(Change::Ended) => tracing::info!(
                    topic,
                    partition = index,
                    offset,
                    "the open transaction on a target partition has ended"
                ),
                None => {}
            }
        }
        Ok(())
    }

    fn observe(
        &mut self,
        partition: &Partition,
        last_stable: i64,
        high_watermark: i64,
        now: Instant,
    ) -> Option<Change> {
        let known = self.0.remove(partition);
        let was_reported = known.as_ref().is_some_and(|open| open.is_reported);
        let is_open = last_stable < high_watermark;
        let mut open = known
            .filter(|open| is_open && open.start_offset == last_stable)
            .unwrap_or(OpenTransaction {
                start_offset: last_stable,
                first_seen: now,
                is_reported: false,
            });
        let is_stuck = now.duration_since(open.first_seen) > KAFKA_TRANSACTION_TIMEOUT;
        open.is_reported = is_stuck;
        if is_open {
            self.0.insert(partition.clone(), open);
        }
        match (was_reported, is_stuck) {
            (false, true) => Some(Change::Stuck),
            (true, false) => Some(Change::Ended),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_transaction_is_reported_once_after_the_timeout_and_once_when_it_has_ended() {
        let mut stuck = StuckTransactions::default();
        let partition = Partition::new("orders", 3);
        let start = Instant::now();
        let mut observe = |seconds, last_stable, high_watermark| {
            let now = start + Duration::from_secs(seconds);
            stuck.observe(&partition, last_stable, high_watermark, now)
        };
        let timeout = KAFKA_TRANSACTION_TIMEOUT.as_secs();
        assert_eq!(observe(0, 10, 15), None);
        assert_eq!(observe(timeout, 10, 40), None, "it may still end by itself");
        assert_eq!(observe(timeout + 1, 10, 50), Some(Change::Stuck));
        assert_eq!(observe(timeout + 30, 10, 60), None, "reported once");
        assert_eq!(observe(timeout + 60, 70, 80), Some(Change::Ended));
        assert_eq!(
            observe(timeout + 61, 80, 80),
            None,
            "the next one has ended as well"
        );
        assert_eq!(
            observe(2 * timeout + 62, 80, 90),
            None,
            "seen for the first time"
        );
        assert_eq!(observe(3 * timeout + 63, 80, 90), Some(Change::Stuck));
        assert_eq!(observe(3 * timeout + 64, 90, 90), Some(Change::Ended));
    }

    #[test]
    fn a_busy_partition_is_not_reported() {
        let mut stuck = StuckTransactions::default();
        let start = Instant::now();
        for second in 0..300 {
            let now = start + Duration::from_secs(second);
            let offset = i64::try_from(second).unwrap();
            let change = stuck.observe(&Partition::new("orders", 0), offset, offset + 5, now);
            assert_eq!(
                change, None,
                "there is always an open transaction, but not the same"
            );
        }
    }
}
