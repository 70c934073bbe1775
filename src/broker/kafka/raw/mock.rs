//! The broker that librdkafka brings along, for a process that has none: made, told what topics it has, destroyed.

use crate::limit::KAFKA_MOCK_REBALANCE_DELAY;
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString};
use std::ptr::NonNull;

/// The broker that the cluster names as its controller, and does not have: it numbers its brokers from 1. Questions about topics go there.
const CONTROLLER: i32 = 0;

/// A cluster of two brokers, each on a loopback port of its own, served by a thread of librdkafka's until it is dropped. The crate's own form of
/// it hides the pointer by which the delay of a group's first rebalance is set, and that is three seconds.
pub(in super::super) struct MockBroker {
    cluster: NonNull<sys::rd_kafka_mock_cluster_t>,
    /// Owns the threads that serve it, hence dropped after it.
    _client: Client<DefaultClientContext>,
}

impl MockBroker {
    pub(in super::super) fn start() -> Result<Self, KafkaError> {
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
                super::millis(KAFKA_MOCK_REBALANCE_DELAY),
            );
            sys::rd_kafka_mock_broker_add(cluster.as_ptr(), CONTROLLER)
        };
        done(added)?;
        Ok(broker)
    }

    /// `host:port`.
    pub(in super::super) fn address(&self) -> String {
        // SAFETY: the cluster is alive, and owns the text.
        unsafe { CStr::from_ptr(sys::rd_kafka_mock_cluster_bootstraps(self.cluster.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }

    pub(in super::super) fn create_topic(
        &self,
        name: &str,
        partitions: i32,
    ) -> Result<(), KafkaError> {
        let name = CString::new(name)?;
        // SAFETY: cluster and name are alive; the call copies the name.
        done(unsafe {
            sys::rd_kafka_mock_topic_create(self.cluster.as_ptr(), name.as_ptr(), partitions, 1)
        })
    }
}

/// Threads that `start` starts are never given a signal: the cluster's thread takes an interrupted wait for its end, and whoever ends the
/// cluster then waits for ever. librdkafka does the same for all its other threads.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets live until the end, and are filled before they are read.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}

fn done(code: RDKafkaRespErr) -> Result<(), KafkaError> {
    if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        Ok(())
    } else {
        Err(KafkaError::MockCluster(code.into()))
    }
}

impl Drop for MockBroker {
    fn drop(&mut self) {
        // SAFETY: the cluster is ours, and its client still alive.
        unsafe { sys::rd_kafka_mock_cluster_destroy(self.cluster.as_ptr()) }
    }
}
