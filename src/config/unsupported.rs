//! What the contract promises and this version does not do: refused in one place, so that lifting a refusal is deleting its line here.

/// Schemes of Redis addresses that name another kind of Redis than one server.
pub(super) const REDIS_SCHEMES: &[(&str, &str)] = &[
    (
        "redis+cluster",
        "Redis Cluster is not supported by this version",
    ),
    (
        "rediss+cluster",
        "Redis Cluster is not supported by this version",
    ),
    (
        "redis-cluster",
        "Redis Cluster is not supported by this version",
    ),
    (
        "redis+sentinel",
        "Redis Sentinel is not supported by this version",
    ),
    (
        "rediss+sentinel",
        "Redis Sentinel is not supported by this version",
    ),
    (
        "redis-sentinel",
        "Redis Sentinel is not supported by this version",
    ),
    (
        "sentinel",
        "Redis Sentinel is not supported by this version",
    ),
    ("unix", "a Unix socket is not supported by this version"),
    (
        "redis+unix",
        "a Unix socket is not supported by this version",
    ),
];
