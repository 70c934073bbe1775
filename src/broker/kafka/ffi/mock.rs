//! The mock broker of librdkafka: created, given topics, destroyed.

use super::{check, millis};
use crate::limit::KAFKA_MOCK_REBALANCE_DELAY;
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

/// A cluster of two brokers on loopback ports, served by a thread of librdkafka until it is
/// dropped.
///
/// The crate's own mock cluster hides the pointer that sets the delay of a group's first rebalance,
/// which is three seconds by default.
pub(crate) struct MockBroker {
    cluster: NonNull<sys::rd_kafka_mock_cluster_t>,
    /// Owns the threads of the cluster, so it is dropped after the cluster.
    _client: Client<DefaultClientContext>,
}

impl MockBroker {
    pub(crate) fn start() -> Result<Self, KafkaError> {
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
        // SAFETY: the cluster is alive.
        let added = unsafe {
            sys::rd_kafka_mock_group_initial_rebalance_delay_ms(
                cluster.as_ptr(),
                millis(KAFKA_MOCK_REBALANCE_DELAY),
            );
            sys::rd_kafka_mock_broker_add(cluster.as_ptr(), CONTROLLER)
        };
        check_mock(added)?;
        Ok(broker)
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        // SAFETY: the cluster is alive and owns the text.
        unsafe { CStr::from_ptr(sys::rd_kafka_mock_cluster_bootstraps(self.cluster.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }

    pub(crate) fn create_topic(&self, name: &str, partitions: i32) -> Result<(), KafkaError> {
        let name = CString::new(name)?;
        // SAFETY: cluster and name are alive; librdkafka copies the name.
        check_mock(unsafe {
            sys::rd_kafka_mock_topic_create(self.cluster.as_ptr(), name.as_ptr(), partitions, 1)
        })
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

impl Drop for MockBroker {
    fn drop(&mut self) {
        // SAFETY: this owns the cluster, and its client is still alive.
        unsafe { sys::rd_kafka_mock_cluster_destroy(self.cluster.as_ptr()) }
    }
}
