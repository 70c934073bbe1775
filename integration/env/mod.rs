//! Real servers, the service's own program and plain clients of the brokers, for one run of the tests. Nothing of it outlives the run, however the
//! run ends; it knows nothing of what the service promises.
//!
//! A test asks for the shared `kafka()`, `nats()` and `redis()` and takes names of its own from `unique`; a test that harms a server starts a
//! `Kafka`, a `Nats` or a `Redis` of its own, at most one of each.
#![allow(
    dead_code,
    unused_imports,
    reason = "it is whole, whichever part of it the tests of the day use"
)]

mod client;
mod collector;
mod confined;
mod guarded;
mod kafka;
mod nats;
mod papers;
mod postdate;
mod process;
mod prometheus;
mod redis;
#[cfg(test)]
mod smoke;
mod wire;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) use client::{Outgoing, Producer, Receipt, Record, Sink, now_ms};
pub(crate) use collector::Collector;
pub(crate) use confined::Confined;
pub(crate) use guarded::{Guarded, MASTER, TENANT};
pub(crate) use kafka::{Kafka, KafkaCluster};
pub(crate) use nats::{Nats, Options, Stored, rfc3339_in};
pub(crate) use papers::Papers;
pub(crate) use postdate::{Metrics, Postdate};
pub(crate) use process::{Process, cpu_of, folder, free_port};
pub(crate) use prometheus::Prometheus;
pub(crate) use redis::{Redis, Snapshot};
pub(crate) use wire::Wire;

/// How long a server may take to start, and a client to be answered. Generous: two cores, and a JVM beside every test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The broker of all tests that do it no harm.
pub(crate) fn kafka() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(Kafka::start_shared)
}

/// The NATS server of all tests that do it no harm.
pub(crate) fn nats() -> &'static Nats {
    static SHARED: OnceLock<Nats> = OnceLock::new();
    SHARED.get_or_init(Nats::start)
}

/// The store of all tests that do it no harm.
pub(crate) fn redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(Redis::start)
}

/// A name that no other test of this run has: for a deployment, a route, or as the first part of a topic's name.
pub(crate) fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{name}_{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Asks every few milliseconds until there is an answer; fails the test, naming what was waited for, when there is none in time.
pub(crate) fn eventually<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The folder that `make servers` fills.
pub(crate) fn servers() -> PathBuf {
    std::env::var_os("POSTDATE_SERVERS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".servers"),
        PathBuf::from,
    )
}
