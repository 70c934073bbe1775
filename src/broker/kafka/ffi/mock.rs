//! A Kafka broker inside this process, for the demo: librdkafka's mock.
//!
//! The Java client cannot use it. Not for tests of promises: it keeps the newest 5 MiB or 100,000
//! records of a partition and drops the rest silently, and its transactions are incomplete.

use super::check;
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaType;
use rdkafka_sys as sys;

/// The cluster names this broker as its controller, but starts its own brokers from id 1.
const CONTROLLER: i32 = 0;

/// Leads the partitions with even numbers, and the controller leads the others.
#[cfg(test)]
const FIRST_BROKER: i32 = 1;

/// Two brokers on loopback ports, served by a thread of librdkafka. Close their clients first.
pub(crate) struct InProcessKafka(Client<DefaultClientContext>);

impl InProcessKafka {
    /// Starts the cluster with topics, each with a number of partitions.
    pub(crate) fn start(topics: &[(&str, i32)]) -> Result<Self, KafkaError> {
        let mut config = ClientConfig::new();
        config.set("test.mock.num.brokers", "1");
        let native = config.create_native_config()?;
        let kind = RDKafkaType::RD_KAFKA_PRODUCER;
        let client = without_signals(|| Client::new(&config, native, kind, DefaultClientContext))?;
        // SAFETY: the client is alive and owns the cluster.
        let added = unsafe {
            let cluster = sys::rd_kafka_handle_mock_cluster(client.native_ptr());
            sys::rd_kafka_mock_broker_add(cluster, CONTROLLER)
        };
        check(added).map_err(KafkaError::MockCluster)?;
        if let Some(cluster) = client.mock_cluster() {
            for (topic, partitions) in topics {
                cluster.create_topic(topic, *partitions, 1)?;
            }
        }
        Ok(Self(client))
    }

    /// `host:port` of one broker. Clients learn of the other.
    pub(crate) fn address(&self) -> String {
        let cluster = self.0.mock_cluster();
        cluster.map_or(String::new(), |cluster| cluster.bootstrap_servers())
    }

    /// From now on, requests for metadata of the topic are refused.
    #[cfg(test)]
    pub(crate) fn refuse_topic(&self, topic: &str) {
        let cluster = self.0.mock_cluster().expect("this is the cluster");
        let error = sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        cluster.topic_error(topic, error).expect("the topic exists");
    }

    /// From now on, the answers of the controller, or of the other broker, come this late.
    #[cfg(test)]
    pub(crate) fn delay_answers(&self, is_controller: bool, delay: std::time::Duration) {
        let cluster = self.0.mock_cluster().expect("this is the cluster");
        let broker = if is_controller {
            CONTROLLER
        } else {
            FIRST_BROKER
        };
        let delayed = cluster.broker_round_trip_time(broker, delay);
        delayed.expect("the broker exists");
    }

    /// Answers the next request for offsets, and closes the connection at the one after it.
    #[cfg(test)]
    pub(crate) fn lose_second_offsets(&self) {
        use sys::rd_kafka_resp_err_t as Error;
        let cluster = self.0.mock_cluster().expect("this is the cluster");
        let errors = [
            Error::RD_KAFKA_RESP_ERR_NO_ERROR,
            Error::RD_KAFKA_RESP_ERR__TRANSPORT,
        ];
        cluster.request_errors(rdkafka::types::RDKafkaApiKey::ListOffsets, &errors);
    }

    /// Answers the next fetch request with an error, as if the log was corrupt.
    #[cfg(test)]
    pub(crate) fn fail_next_fetch(&self) {
        let cluster = self.0.mock_cluster().expect("this is the cluster");
        let errors = [sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_INVALID_MSG];
        cluster.request_errors(rdkafka::types::RDKafkaApiKey::Fetch, &errors);
    }
}

/// Blocks signals in the threads that `start` starts: an interrupted wait would end the cluster.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets live until the end, and are filled before they are read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut previous: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut previous);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &previous, std::ptr::null_mut());
        started
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::{Cluster, KafkaCatalog, KafkaSource, KafkaTarget};
    use crate::broker::send_budget::SendBudget;
    use crate::broker::{
        Catalog, Event, OffsetCommit, OutgoingRecord, PartitionInfo, SendResult, Source, Target,
    };
    use crate::health::Health;
    use crate::limit::SourceMemory;
    use crate::model::{Headers, Offset, Partition};
    use std::sync::Arc;
    use std::time::Duration;

    fn cluster(broker: &InProcessKafka) -> Cluster {
        let properties = [("fetch.wait.max.ms".to_owned(), "2".to_owned())];
        Cluster {
            name: "demo".into(),
            brokers: vec![broker.address()],
            properties: properties.into(),
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
        let budget = Arc::new(SendBudget::new(10, usize::MAX));
        let mut target = KafkaTarget::new(&cluster, budget, health.register("target")).unwrap();
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
            SourceMemory::of(1 << 28),
            health.register("source"),
        )
        .unwrap();
        let described = source.describe(&partitions).await.unwrap();
        let ranges: Vec<_> = described
            .iter()
            .flatten()
            .map(
                |PartitionInfo {
                     first_offset,
                     end_offset,
                     ..
                 }| (first_offset.0, end_offset.0),
            )
            .collect();
        assert_eq!(ranges, [(0, 0), (0, 1)]);
        source.start(&partitions[1], Offset(0), 1);
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
            partition: partitions[1].clone(),
            offset: Offset(1),
            metadata: "what was delivered".to_owned(),
        };
        source.commit(vec![commit]).await.unwrap();

        let mut catalog =
            KafkaCatalog::new(&cluster, Some("g"), health.register("catalog")).unwrap();
        let names = ["in".to_owned(), "none".to_owned()];
        let found = catalog.partitions(&names).await.unwrap().into_iter();
        let found: Vec<_> = found.map(|(partition, _)| partition).collect();
        assert_eq!(found, partitions);
        assert_eq!(
            catalog.committed_metadata("g", &partitions).await.unwrap(),
            [None, Some("what was delivered".to_owned())]
        );
        tokio::join!(source.close(), catalog.close(), target.close());
    }
}
