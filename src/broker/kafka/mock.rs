//! A Kafka broker inside this process, for the demo: librdkafka's mock.
//!
//! External clients can use it if they are built on librdkafka. The Java client cannot, because the
//! mock does not answer its version request.
//!
//! Not for tests of promises. The mock keeps the newest 5 MiB or 100,000 records of a partition and
//! drops the rest silently, and its transactions are incomplete. It answers an empty fetch only at
//! the end of its wait, hence [`InProcessKafka::PROPERTIES`].

use super::error::client_creation_error;
use super::ffi::MockBroker;
use crate::broker::Error;

/// A cluster of two brokers, which end when this is dropped. Close their clients first.
pub(crate) struct InProcessKafka(MockBroker);

impl InProcessKafka {
    /// Properties for its clients: they see a record that arrives during a fetch only when the
    /// fetch's wait ends.
    pub(crate) const PROPERTIES: &[(&str, &str)] = &[("fetch.wait.max.ms", "2")];

    /// Starts the cluster with topics, each with a number of partitions.
    pub(crate) fn start(topics: &[(&str, i32)]) -> Result<Self, Error> {
        let broker = MockBroker::start().map_err(|error| client_creation_error(&error))?;
        for (topic, partitions) in topics {
            broker
                .create_topic(topic, *partitions)
                .map_err(|error| client_creation_error(&error))?;
        }
        Ok(Self(broker))
    }

    /// `host:port` of one broker, on the loopback interface. Clients learn of the other.
    pub(crate) fn address(&self) -> String {
        self.0.address()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::{Cluster, KafkaCatalog, KafkaSource, KafkaTarget};
    use crate::broker::{
        Catalog, Event, OffsetCommit, OutgoingRecord, PartitionInfo, SendResult, Source, Target,
    };
    use crate::health::Health;
    use crate::model::{Headers, Offset, Partition};
    use std::time::Duration;

    fn cluster(broker: &InProcessKafka) -> Cluster {
        let properties = InProcessKafka::PROPERTIES
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Cluster {
            name: "demo".into(),
            brokers: vec![broker.address()],
            properties: properties.collect(),
        }
    }

    async fn next(source: &mut KafkaSource) -> Event {
        tokio::time::timeout(Duration::from_secs(20), source.next_event())
            .await
            .expect("an event arrives")
            .expect("the event is no error")
    }

    /// A signal there would end the broker, and closing it would then hang.
    #[test]
    fn the_brokers_thread_blocks_signals() {
        let _broker = InProcessKafka::start(&[]).unwrap();
        let is_blocked = |folder: std::path::PathBuf| {
            let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
            let blocked = status
                .lines()
                .find_map(|line| line.strip_prefix("SigBlk:"))?;
            let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
            status.starts_with("Name:\trdk:mock\n").then_some(
                [1, 2, 15, 28]
                    .iter()
                    .all(|signal| blocked & 1 << (signal - 1) != 0),
            )
        };
        // The thread has its name only once it runs.
        let found = loop {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let found: Vec<bool> = tasks
                .filter_map(|task| is_blocked(task.unwrap().path()))
                .collect();
            if !found.is_empty() {
                break found;
            }
            std::thread::yield_now();
        };
        assert!(
            found.iter().all(|blocked| *blocked),
            "HUP, INT, TERM, WINCH"
        );
    }

    /// Checks what a mock may lack: partition positions, groups, and commits with metadata.
    #[tokio::test]
    async fn every_port_works_on_the_mock() {
        let broker = InProcessKafka::start(&[("in", 2)]).unwrap();
        let (cluster, health) = (cluster(&broker), Health::new());
        let partitions = [Partition::new("in", 0), Partition::new("in", 1)];
        let mut target = KafkaTarget::new(&cluster, 10, health.register("target")).unwrap();
        let record = OutgoingRecord {
            topic: "in",
            partition: Some(1),
            key: Some(b"k"),
            payload: None,
            headers: Headers::default(),
            keep_header: |_| true,
            extra_headers: &[("a", b"b")],
        };
        assert_eq!(target.send(&record, 7), SendResult::Accepted);
        let reports = target.next_reports().await;
        assert_eq!((reports[0].ticket, &reports[0].outcome), (7, &Ok(())));

        let mut source = KafkaSource::new(
            &cluster,
            "g".to_owned(),
            &["in".to_owned()],
            health.register("source"),
        )
        .unwrap();
        let Event::Assigned(mut gained) = next(&mut source).await else {
            panic!("no assignment")
        };
        gained.sort();
        assert_eq!(gained, partitions);
        let described = source.describe(&gained).await.unwrap();
        let ranges: Vec<_> = described
            .iter()
            .map(
                |PartitionInfo {
                     first_offset,
                     end_offset,
                     ..
                 }| (first_offset.0, end_offset.0),
            )
            .collect();
        assert_eq!(ranges, [(0, 0), (0, 1)]);
        source.start(&gained[1], Offset(0), 1);
        let Event::Records(batch) = next(&mut source).await else {
            panic!("no records")
        };
        let record = batch.iter().next().unwrap();
        assert_eq!((record.key, record.payload), (Some(&b"k"[..]), None));
        assert_eq!(
            record.headers.iter().next(),
            Some((&b"a"[..], Some(&b"b"[..])))
        );
        let commit = OffsetCommit {
            partition: gained[1].clone(),
            offset: Offset(1),
            metadata: "what was delivered".to_owned(),
        };
        source.commit(&[commit]).await.unwrap();

        let mut catalog =
            KafkaCatalog::new(&cluster, Some("g"), health.register("catalog")).unwrap();
        assert_eq!(
            catalog
                .partitions(&["in".to_owned(), "none".to_owned()])
                .await
                .unwrap(),
            partitions
        );
        assert_eq!(
            catalog.committed_metadata("g", &partitions).await.unwrap(),
            [None, Some("what was delivered".to_owned())]
        );
        tokio::join!(source.close(), catalog.close(), target.close());
    }
}
