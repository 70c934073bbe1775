//! Makes the memory cluster behave like NATS.
//!
//! The partitions of a stream are filter subjects. Their offsets are sequence numbers that all
//! subjects share, starting at 1. Commits are kept in a key-value bucket without an owner check and
//! outlive the stream. A target with a window drops duplicates. Readers hold leases, which may
//! expire before the holder knows.

use super::partition_log::PartitionLog;
use super::{ClusterState, MemoryCluster, Topic};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// The message ids that a stream has seen, for its duplicate window.
pub(super) struct DedupWindow {
    length: Duration,
    taken: BTreeMap<String, Instant>,
}

impl DedupWindow {
    /// Returns whether the stream has the message already. If not, remembers it.
    pub(super) fn is_duplicate(&mut self, id: String) -> bool {
        let now = Instant::now();
        let is_known = self
            .taken
            .get(&id)
            .is_some_and(|taken| now - *taken < self.length);
        if !is_known {
            self.taken.insert(id, now);
        }
        is_known
    }
}

impl ClusterState {
    /// Kafka deletes the commits of a topic with it. The commits of a stream stay.
    pub(super) fn forget_commits(&mut self, topic: &str) {
        if self.topics.get(topic).is_some_and(|topic| !topic.is_stream) {
            self.groups
                .values_mut()
                .for_each(|group| group.forget_topic(topic));
        }
    }
}

impl Topic {
    /// All subjects of a stream have the same end.
    pub(super) fn align_ends(&mut self) {
        if self.is_stream {
            let end = self
                .partitions
                .iter()
                .map(PartitionLog::end)
                .max()
                .unwrap_or(0);
            self.partitions
                .iter_mut()
                .for_each(|log| log.skip(end - log.end()));
        }
    }

    pub(super) fn clear(&mut self) {
        self.partitions
            .iter_mut()
            .for_each(|log| *log = PartitionLog::default());
        if self.is_stream {
            self.start_at_one();
        }
    }

    fn start_at_one(&mut self) {
        for log in &mut self.partitions {
            log.skip(1);
            log.trim(1);
        }
    }
}

impl MemoryCluster {
    /// Turns an empty topic into a stream.
    pub(crate) fn turn_into_stream(&self, name: &str) {
        self.update(|state| {
            let topic = state.topics.get_mut(name).expect("a topic that exists");
            topic.is_stream = true;
            topic.start_at_one();
        });
    }

    pub(crate) fn set_dedup_window(&self, name: &str, length: Duration) {
        self.update(|state| {
            let window = DedupWindow {
                length,
                taken: BTreeMap::new(),
            };
            state
                .topics
                .get_mut(name)
                .expect("a topic that exists")
                .dedup_window = Some(window);
        });
    }

    /// Recreates the consumers, which then read all retained records again.
    pub(crate) fn recreate_consumers(&self) {
        self.update(|state| state.consumer_generation += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{
        Event, GroupAdmin, OutgoingRecord, Source, Target, TransactionalProducers,
    };
    use crate::clock::Clock;
    use crate::model::header_name::{ERROR, ORIGIN};
    use crate::model::{Headers, Offset, Partition, Timestamp};
    use crate::testing::broker::contract::{self, BrokerUnderTest};
    use async_trait::async_trait;
    use std::rc::Rc;

    #[derive(Debug)]
    struct FixedClock;

    impl Clock for FixedClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(1_800_000_000_000)
        }
    }

    fn cluster(partitions: i32) -> MemoryCluster {
        let cluster = MemoryCluster::new(Rc::new(FixedClock));
        cluster.create_topic("s", partitions);
        cluster.turn_into_stream("s");
        cluster
    }

    /// A topic of the contract is one stream per partition, as on a real server.
    struct StreamWorld(MemoryCluster);

    #[async_trait(?Send)]
    impl BrokerUnderTest for StreamWorld {
        fn source(&self, group: &str, _topics: &[String]) -> Box<dyn Source> {
            Box::new(self.0.source(group))
        }

        fn target(&self, in_flight_max: usize) -> Box<dyn Target> {
            Box::new(self.0.target(in_flight_max))
        }

        fn catalog(&self) -> Box<dyn GroupAdmin> {
            Box::new(self.0.catalog())
        }

        fn transactional_producers(&self) -> Box<dyn TransactionalProducers> {
            unreachable!("there are none, as the contract is told")
        }

        fn run_id(&self) -> String {
            "memory".into()
        }

        fn is_kafka(&self) -> bool {
            false
        }

        fn first_offset(&self) -> u64 {
            1
        }

        fn partition(&self, topic: &str, index: i32) -> Partition {
            Partition::new(format!("{topic}-{index}"), 0)
        }

        fn source_topics(&self, topic: &str, partitions: usize) -> Vec<String> {
            (0..partitions)
                .map(|index| format!("{topic}-{index}"))
                .collect()
        }

        fn target_address(&self, topic: &str, partition: Option<i32>) -> (String, Option<i32>) {
            (format!("{topic}-{}", partition.unwrap_or(0)), None)
        }

        async fn create_topic(&self, name: &str, partitions: i32, bytes_max: Option<usize>) {
            for name in self.source_topics(name, usize::try_from(partitions).unwrap()) {
                self.0.create_topic(&name, 1);
                self.0.turn_into_stream(&name);
                self.0.set_dedup_window(&name, Duration::from_secs(120));
                self.0.limit_record_size(&name, bytes_max);
            }
        }

        async fn delete_topic(&self, name: &str) {
            (0..9).for_each(|index| self.0.delete_topic(&format!("{name}-{index}")));
        }

        async fn add_partitions(&self, _: &str, _: i32) {
            unreachable!("there are none to be added, as the contract is told")
        }

        async fn trim(&self, partition: &Partition, first: Offset) {
            self.0.trim_to(partition, first);
        }

        async fn abort_transaction(&self, partition: &Partition) {
            self.0.skip_offsets(partition, 1);
        }

        async fn outage(&self) -> bool {
            self.0.set_down(true);
            tokio::time::sleep(Duration::from_secs(5)).await;
            self.0.set_down(false);
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_streams_keep_the_contract() {
        let world = StreamWorld(cluster(1));
        contract::run_shared(&world).await;
        contract::run_outages(&world).await;
    }

    fn produce(cluster: &MemoryCluster, index: i32) -> Offset {
        cluster.produce(&Partition::new("s", index), None, (None, None), [])
    }

    #[tokio::test(start_paused = true)]
    async fn subjects_of_a_stream_share_one_sequence_and_its_end() {
        let cluster = cluster(2);
        let offsets = [0, 1, 1, 0].map(|index| produce(&cluster, index));
        assert_eq!(offsets, [1, 2, 3, 4].map(Offset));
        let mut source = cluster.source("g");
        let partitions = [Partition::new("s", 0), Partition::new("s", 1)];
        let described = source.describe(&partitions).await.unwrap();
        assert!(
            described
                .iter()
                .flatten()
                .all(|described| (described.first_offset, described.end_offset)
                    == (Offset(1), Offset(5)))
        );
        source.start(&partitions[1], Offset(1), 7);
        let Event::Records(batch) = source.next_event().await.unwrap() else {
            panic!("no records")
        };
        assert_eq!(
            batch
                .iter()
                .map(|record| record.offset.0)
                .collect::<Vec<_>>(),
            [2, 3]
        );
        assert!(matches!(
            source.next_event().await,
            Ok(Event::EndReached { at: Offset(5), .. })
        ));
        cluster.recreate_consumers();
        assert!(
            matches!(source.next_event().await, Ok(Event::Records(batch)) if batch.len() == 2),
            "it is brought again"
        );
        assert!(matches!(
            source.next_event().await,
            Ok(Event::EndReached { at: Offset(5), .. })
        ));
        cluster.recreate_topic("s");
        assert!(matches!(
            source.next_event().await,
            Ok(Event::OutOfRange { .. })
        ));
        assert_eq!(produce(&cluster, 1), Offset(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_drops_duplicates_within_its_window() {
        let cluster = cluster(1);
        cluster.set_dedup_window("s", Duration::from_secs(2));
        let mut target = cluster.target(10);
        let mut send = |extra: &[(&str, &[u8])]| {
            let (headers, stays) = (Headers::default(), |_: &[u8]| true);
            target.send(
                &OutgoingRecord {
                    topic: "s",
                    partition: None,
                    key: None,
                    payload: None,
                    headers,
                    keep_header: stays,
                    extra_headers: extra,
                },
                1,
            );
            cluster.records("s").len()
        };
        assert_eq!(
            (
                send(&[(ORIGIN, b"a")]),
                send(&[(ORIGIN, b"a")]),
                send(&[(ORIGIN, b"b")])
            ),
            (1, 1, 2)
        );
        assert_eq!(
            send(&[(ORIGIN, b"a"), (ERROR, b"no")]),
            3,
            "a dead letter is another message"
        );
        assert_eq!((send(&[]), send(&[])), (4, 5), "nothing tells them apart");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((send(&[(ORIGIN, b"a")]), send(&[(ORIGIN, b"a")])), (6, 6));
    }
}
