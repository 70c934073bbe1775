//! Reports transactions that stay open on partitions that producers write to: those of targets, and
//! of sources, where retries go.
//!
//! A broker can lose the end of a transaction. Consumers of committed records then see nothing
//! behind it, and only an operator can end it.

use crate::broker::kafka::admin::{AdminWorker, WorkerThread};
use crate::broker::kafka::ffi::{Isolation, OffsetsCall};
use crate::broker::kafka::health::ClusterHealth;
use crate::broker::kafka::limit::{
    KAFKA_OPEN_TXN_CHECK_INTERVAL, KAFKA_REQUEST_TIMEOUT, KAFKA_TRANSACTION_TIMEOUT,
};
use crate::broker::kafka::options::Cluster;
use crate::broker::{Error, ProducerIdentity};
use crate::model::{Offset, Partition};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot::{Receiver, error::TryRecvError};
use tokio::time::Instant;

/// Checks at an interval, with a client of its own: a slow answer must not delay other requests.
pub(super) struct StuckTransactionCheck {
    admin: AdminWorker,
    /// The known topics that producers may have written to.
    topics: BTreeSet<String>,
    found: Arc<Mutex<StuckTransactions>>,
    next_start: Instant,
    /// The check in flight, which ends with its receiver.
    running: Option<Receiver<Result<(), Error>>>,
}

impl StuckTransactionCheck {
    pub(super) fn new(cluster: &Cluster, health: ClusterHealth) -> Result<Self, Error> {
        Ok(Self {
            admin: AdminWorker::with_own_client(cluster, None, health)?,
            topics: BTreeSet::new(),
            found: Arc::default(),
            next_start: Instant::now() + KAFKA_OPEN_TXN_CHECK_INTERVAL,
            running: None,
        })
    }

    /// Checks the topics of a producer from now on. Retries go to the source topic.
    pub(super) fn add_topics(&mut self, identity: &ProducerIdentity) {
        self.topics.extend(identity.target_topics.iter().cloned());
        self.topics.insert(identity.partition.topic.to_string());
    }

    /// Starts a check when it is time and the last one has ended.
    pub(super) fn start_if_due(&mut self) {
        if Instant::now() < self.next_start || self.is_running() {
            return;
        }
        self.next_start = Instant::now() + KAFKA_OPEN_TXN_CHECK_INTERVAL;
        let (topics, found) = (self.topics.clone(), self.found.clone());
        let check = move |worker: &mut WorkerThread| {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.check(worker, &topics)
        };
        let admin = self.admin.handle();
        self.running = admin.and_then(|admin| admin.start(check)).ok();
    }

    fn is_running(&mut self) -> bool {
        let running = self.running.as_mut();
        running.is_some_and(|answer| matches!(answer.try_recv(), Err(TryRecvError::Empty)))
    }

    pub(super) async fn close(&mut self) {
        self.admin.close().await;
    }
}

#[derive(Default)]
struct StuckTransactions {
    /// The partitions with open transactions: the last stable offset, before which no transaction
    /// is open, and since when it has not moved.
    open: BTreeMap<Partition, (Offset, Instant)>,
    reported: BTreeSet<Partition>,
    /// The errors of topics that could not be checked the last time.
    errors: BTreeSet<String>,
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
    /// changes. `Err`: the cluster does not answer, which readiness reports.
    fn check(&mut self, worker: &mut WorkerThread, topics: &BTreeSet<String>) -> Result<(), Error> {
        let names = topics.iter().map(String::as_str).collect();
        let (mut partitions, mut errors) = (Vec::new(), BTreeSet::new());
        for (topic, described) in worker.topics_by_name(&names, false, KAFKA_REQUEST_TIMEOUT)? {
            match described {
                Ok(found) => {
                    let indexes = found.into_iter().flat_map(|found| found.partitions);
                    partitions.extend(indexes.map(|index| Partition::new(topic.as_str(), index)));
                }
                Err(error) => _ = errors.insert(format!("{topic}: {error}")),
            }
        }
        for error in errors.difference(&self.errors) {
            tracing::warn!("cannot check a topic for hanging transactions: {error}");
        }
        self.errors = errors;
        if partitions.is_empty() {
            return Ok(());
        }
        let mut ends = |isolation| {
            let ends = partitions.iter().map(|it| (it, rdkafka::Offset::End));
            worker.call(|call| {
                let timeout = KAFKA_REQUEST_TIMEOUT;
                OffsetsCall::start(call.native, ends, isolation, timeout)?.wait(call)
            })
        };
        let high_watermarks = ends(Isolation::Uncommitted)?;
        for (partition, last_stable) in ends(Isolation::Committed)? {
            // A partition without an answer is checked the next time.
            let (Ok(Some(offset)), Some(Ok(Some(end)))) =
                (last_stable, high_watermarks.get(&partition))
            else {
                continue;
            };
            let change = self.observe(&partition, offset, *end, Instant::now());
            let (topic, index, offset) = (&*partition.topic, partition.index, offset.0);
            match change {
                Some(Change::Stuck) => tracing::warn!(
                    topic,
                    partition = index,
                    offset,
                    "a hanging transaction: read_committed consumers cannot read past this offset. \
                     See docs/runbook.md"
                ),
                Some(Change::Ended) => tracing::info!(
                    topic,
                    partition = index,
                    offset,
                    "the open transaction on a partition has ended"
                ),
                None => {}
            }
        }
        Ok(())
    }

    fn observe(
        &mut self,
        partition: &Partition,
        last_stable: Offset,
        high_watermark: Offset,
        now: Instant,
    ) -> Option<Change> {
        let is_open = last_stable < high_watermark;
        let since = match self.open.remove(partition) {
            Some((offset, since)) if offset == last_stable => since,
            _ => now,
        };
        if is_open {
            self.open.insert(partition.clone(), (last_stable, since));
        }
        if is_open && now.duration_since(since) > KAFKA_TRANSACTION_TIMEOUT {
            let is_new = self.reported.insert(partition.clone());
            is_new.then_some(Change::Stuck)
        } else {
            self.reported.remove(partition).then_some(Change::Ended)
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
            stuck.observe(&partition, Offset(last_stable), Offset(high_watermark), now)
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
            let (offset, end) = (Offset(second), Offset(second + 5));
            let change = stuck.observe(&Partition::new("orders", 0), offset, end, now);
            assert_eq!(
                change, None,
                "there is always an open transaction, but not the same"
            );
        }
    }
}
