//! A Kafka broker inside this process, for the demo: librdkafka's mock.
//!
//! Clients built on librdkafka can use it. The Java client cannot, because the mock does not answer
//! its version request. Not for tests of promises: the mock keeps the newest 5 MiB or 100,000
//! records of a partition and drops the rest silently, and its transactions are incomplete.

use super::check;
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString};
use std::ptr::NonNull;

/// The cluster names this broker as its controller but starts its own brokers from id 1. Requests
/// about topics go to the controller.
const CONTROLLER: i32 = 0;

/// Wait for more members before the first rebalance of a group. The demo's groups have one member.
const REBALANCE_DELAY_MS: i32 = 50;

/// A cluster of two brokers on loopback ports, served by a thread of librdkafka until it is
/// dropped. Close its clients first.
///
/// The crate's own mock cluster hides the pointer that sets the rebalance delay, which is three
/// seconds by default.
pub(crate) struct InProcessKafka {
    cluster: NonNull<sys::rd_kafka_mock_cluster_t>,
    /// Owns the threads of the cluster, so it is dropped after the cluster.
    _client: Client<DefaultClientContext>,
}

impl InProcessKafka {
    /// Starts the cluster with topics, each with a number of partitions.
    pub(crate) fn start(topics: &[(&str, i32)]) -> Result<Self, KafkaError> {
        let config = ClientConfig::new();
        let client = Client::new(
            &config,
            config.create_native_config()?,
            RDKafkaType::RD_KAFKA_PRODUCER,
            DefaultClientContext,
        )?;
        // SAFETY: the client is alive, and outlives the cluster.
        let cluster = NonNull::new(without_signals(|| unsafe {
            sys::rd_kafka_mock_cluster_new(client.native_ptr(), 1)
        }));
        let cluster = cluster.ok_or(KafkaError::MockCluster(RDKafkaErrorCode::Fail))?;
        let broker = Self {
            cluster,
            _client: client,
        };
        let cluster = cluster.as_ptr();
        // SAFETY: the cluster is alive.
        check_mock(unsafe {
            sys::rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, REBALANCE_DELAY_MS);
            sys::rd_kafka_mock_broker_add(cluster, CONTROLLER)
        })?;
        for (topic, partitions) in topics {
            let name = CString::new(*topic)?;
            // SAFETY: cluster and name are alive; librdkafka copies the name.
            check_mock(unsafe {
                sys::rd_kafka_mock_topic_create(cluster, name.as_ptr(), *partitions, 1)
            })?;
        }
        Ok(broker)
    }

    /// `host:port` of one broker. Clients learn of the other.
    pub(crate) fn address(&self) -> String {
        // SAFETY: the cluster is alive and owns the text.
        unsafe { CStr::from_ptr(sys::rd_kafka_mock_cluster_bootstraps(self.cluster.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }
}

/// Blocks all signals for the threads that `start` starts, as librdkafka does for its other
/// threads. The cluster's thread takes an interrupted wait for its end, and then closing the
/// cluster hangs.
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

fn check_mock(code: RDKafkaRespErr) -> Result<(), KafkaError> {
    check(code).map_err(KafkaError::MockCluster)
}

impl Drop for InProcessKafka {
    fn drop(&mut self) {
        // SAFETY: this owns the cluster, and its client is still alive.
        unsafe { sys::rd_kafka_mock_cluster_destroy(self.cluster.as_ptr()) }
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
