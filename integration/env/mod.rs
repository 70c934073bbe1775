//! Starts real servers, the Postdate program and plain broker clients for one test run.
//!
//! A guard process stops them all when the run ends, however it ends. This module does not check
//! the promises of the service.
//! A test uses the shared `kafka()`, `nats()` and `redis()` with names from `unique`. A test that
//! breaks a server starts its own `Kafka`, `Nats` or `Redis`, at most one of each.
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
mod redis_cluster;
mod redis_group;
#[cfg(test)]
mod smoke;

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
pub(crate) use redis_cluster::RedisCluster;
pub(crate) use redis_group::RedisGroup;

/// Limit for a server start and for a client call. It is long because tests share few cores with
/// several JVMs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The Kafka broker shared by all tests that do not break it.
pub(crate) fn kafka() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(Kafka::start_shared)
}

/// The NATS server shared by all tests that do not break it.
pub(crate) fn nats() -> &'static Nats {
    static SHARED: OnceLock<Nats> = OnceLock::new();
    SHARED.get_or_init(Nats::start)
}

/// The Redis shared by all tests that do not break it.
pub(crate) fn redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(Redis::start)
}

/// Returns a name that is unique in this run, for a deployment, a route or a topic prefix.
pub(crate) fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{name}_{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Calls `ask` every 10 milliseconds until it returns a value. Panics with `what` if that
/// takes longer than `limit`.
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

/// The Postdate program under test: the test build, or the one that `TEST_PROGRAM` names. The checks
/// of the image and of the packages name theirs.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("TEST_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_postdate").into(), PathBuf::from)
}

/// The folder that `make servers` fills. `POSTDATE_SERVERS` overrides it.
pub(crate) fn servers() -> PathBuf {
    std::env::var_os("POSTDATE_SERVERS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".servers"),
        PathBuf::from,
    )
}
