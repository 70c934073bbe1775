//! What the contract promises and this version does not do: refused in one place, so that lifting a refusal is deleting its line here.

use super::key::Path;

/// Keys that are not read. The keys of NATS sources are refused once, by `nats`.
const KEYS: &[(&str, &str, &str)] = &[
    ("nats", "NATS is not supported by this version", "remove the table; sources and targets are Kafka topics"),
    ("route.*.source.nats", "NATS is not supported by this version", SOURCE),
    ("route.*.source.stream", "NATS is not supported by this version", SOURCE),
    ("route.*.source.subjects", "NATS is not supported by this version", SOURCE),
    ("route.*.target.nats", "NATS is not supported by this version", TARGET),
    ("route.*.target.subject", "NATS is not supported by this version", TARGET),
    ("route.*.dead_letter.nats", "NATS is not supported by this version", TARGET),
    ("route.*.dead_letter.subject", "NATS is not supported by this version", TARGET),
];
const SOURCE: &str = r#"read from Kafka: source = { kafka = "main", topics = ["orders.delayed"] }"#;
const TARGET: &str = r#"name a Kafka topic: { kafka = "main", topic = "orders" }"#;

/// Schemes of Redis addresses that name another kind of Redis than one server.
pub(super) const REDIS_SCHEMES: &[(&str, &str)] = &[
    ("redis+cluster", "Redis Cluster is not supported by this version"),
    ("rediss+cluster", "Redis Cluster is not supported by this version"),
    ("redis-cluster", "Redis Cluster is not supported by this version"),
    ("redis+sentinel", "Redis Sentinel is not supported by this version"),
    ("rediss+sentinel", "Redis Sentinel is not supported by this version"),
    ("redis-sentinel", "Redis Sentinel is not supported by this version"),
    ("sentinel", "Redis Sentinel is not supported by this version"),
    ("unix", "a Unix socket is not supported by this version"),
    ("redis+unix", "a Unix socket is not supported by this version"),
];

/// The refusal of a key, as what and fix.
pub(super) fn refusal(path: &Path) -> Option<(&'static str, &'static str)> {
    KEYS.iter().find(|(pattern, ..)| path.matches(pattern)).map(|(_, what, fix)| (*what, *fix))
}
