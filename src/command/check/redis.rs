//! Judges the Redis servers of the store.

use super::sentinels;
use crate::broker::inspection::Finding;
use crate::model::readable::{length, several, size};
use crate::store::Error;
use crate::store::redis::{RedisDescription, VERSION_MIN};
use std::time::Duration;

/// Above this share, a burst may fill the memory.
const MEMORY_HIGH_PERCENT: u64 = 80;

/// Returns an area with the findings of each primary.
pub(super) fn judge(
    found: &Result<Vec<RedisDescription>, Error>,
    skew_max: Duration,
) -> Vec<(String, Vec<Finding>)> {
    let servers = match found {
        Ok(servers) => servers,
        Err(error) => {
            let fix = "check the address, the login and the certificates of store.redis, the network between, and whether the server wants TLS";
            let finding = Finding::fail("redis reachable", error.to_string(), fix);
            return vec![("store".to_owned(), vec![finding])];
        }
    };
    let area = |redis: &RedisDescription| match servers.len() {
        1 => "store".to_owned(),
        _ => format!("store {}", redis.address),
    };
    let areas = servers
        .iter()
        .map(|redis| (area(redis), judge_one(redis, skew_max)));
    areas.collect()
}

fn judge_one(redis: &RedisDescription, skew_max: Duration) -> Vec<Finding> {
    let round_trip = length(redis.round_trip);
    let answered = format!("{}, which answers in {round_trip}", redis.address);
    let mut findings = vec![Finding::ok("redis reachable", answered), version(redis)];
    findings.extend(kind(redis));
    findings.extend(sentinels::judge(redis));
    findings.extend(coverage(redis));
    findings.extend([
        policy(redis),
        scripts(redis),
        memory(redis),
        persistence(redis),
        replicas(redis),
        clock(redis, skew_max),
    ]);
    findings
}

fn version(redis: &RedisDescription) -> Finding {
    let version = &redis.version;
    let major = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    if major.is_some_and(|major: u32| major >= VERSION_MIN) {
        let valkey = redis.valkey_version.as_ref();
        let found = valkey.map_or_else(|| version.clone(), |valkey| format!("Valkey {valkey}"));
        return Finding::ok("version", found);
    }
    let found = format!("{version}: it cannot run the scripts while its memory is full");
    Finding::fail(
        "version",
        found,
        format!("upgrade it to {VERSION_MIN}.0 or newer"),
    )
}

fn kind(redis: &RedisDescription) -> Option<Finding> {
    let (found, fix) = if redis.is_cluster && !redis.in_cluster {
        let fix = "remove store.redis.url, and name nodes in [store.redis.cluster]";
        ("a node of a Redis Cluster", fix)
    } else if redis.is_replica {
        let fix = "give store.redis.url the address of its primary";
        ("a replica, which accepts no writes", fix)
    } else {
        return None;
    };
    Some(Finding::fail("kind", found, fix))
}

fn policy(redis: &RedisDescription) -> Finding {
    let policy = redis.eviction_policy.as_deref().unwrap_or("unknown");
    if policy == "noeviction" {
        return Finding::ok("maxmemory-policy", policy);
    }
    let found = format!(
        "{policy}: Redis drops waiting messages when memory runs out, so `postdate run` refuses it"
    );
    let fix = "run `CONFIG SET maxmemory-policy noeviction`, and set it in redis.conf too";
    Finding::fail("maxmemory-policy", found, fix)
}

fn scripts(redis: &RedisDescription) -> Finding {
    let fix = "grant the user the rights in deploy/redis/users.acl, or `~pd:* &pd:* +@read +@write +@scripting +info +time +select +publish +subscribe +pubsub`; a Redis Cluster also needs `+cluster|info +cluster|slots`";
    match &redis.script_error {
        None => Finding::ok("scripts", "run"),
        Some(error) => Finding::fail("scripts", error, fix),
    }
}

fn memory(redis: &RedisDescription) -> Finding {
    let used = redis.used_memory.map_or_else(|| "?".to_owned(), size);
    let Some(max) = redis.memory_max.filter(|max| *max > 0) else {
        let found = format!("not set, {used} used: Redis grows until the system kills it");
        let fix = "set maxmemory (`CONFIG SET maxmemory 4gb`, and in redis.conf) below the machine's memory: a full Redis still delivers";
        return Finding::warn("maxmemory", found, fix);
    };
    let found = format!("{used} of {} used", size(max));
    let used = redis.used_memory.unwrap_or(0);
    if used.saturating_mul(100) < max.saturating_mul(MEMORY_HIGH_PERCENT) {
        return Finding::ok("maxmemory", found);
    }
    let fix = "raise maxmemory; `postdate pending` shows the waiting messages";
    Finding::warn(
        "maxmemory",
        format!("{found}: when it is full, nothing new is stored"),
        fix,
    )
}

fn persistence(redis: &RedisDescription) -> Finding {
    let warn = |found, fix| Finding::warn("persistence", found, fix);
    if redis.aof_enabled == Some(true) {
        return match redis.appendfsync.as_deref() {
            Some("no") => warn(
                "appendonly yes, appendfsync no: a machine failure loses half a minute of writes, which are read again from the sources",
                "set appendfsync everysec",
            ),
            Some(fsync) => Finding::ok(
                "persistence",
                format!("appendonly yes, appendfsync {fsync}"),
            ),
            None => Finding::ok("persistence", "appendonly yes"),
        };
    }
    let found = match redis.save.as_deref() {
        None => "no append-only file; this user may not see whether there are snapshots",
        Some("") => {
            "none: a restart of Redis loses all waiting messages, which are read again if the sources retain them"
        }
        Some(_) => {
            "snapshots only: a restart of Redis loses the writes since the last snapshot. They are read again if the sources retain them; some deliveries may repeat"
        }
    };
    warn(
        found,
        "set appendonly yes (`CONFIG SET appendonly yes`, and in redis.conf)",
    )
}

fn replicas(redis: &RedisDescription) -> Finding {
    let count = redis.replicas.filter(|count| *count > 0);
    if redis.in_cluster && count.is_none() {
        let found = "none: if its machine is lost, deliveries stop until it is back";
        return Finding::warn("replicas", found, "add a replica to this primary");
    }
    let none = "none: if its machine is lost, all waiting messages are read again from the sources";
    let found = count.map_or_else(|| none.to_owned(), |count| several(count, "replica"));
    Finding::ok("replicas", found)
}

fn coverage(redis: &RedisDescription) -> Option<Finding> {
    let subject = "cluster-require-full-coverage";
    match (redis.in_cluster, redis.coverage.as_deref()) {
        (true, Some("yes")) => {
            let found = "yes: all primaries refuse commands while one is lost";
            let fix =
                "run `CONFIG SET cluster-require-full-coverage no`, and set it in redis.conf too";
            Some(Finding::warn(subject, found, fix))
        }
        (true, Some(coverage)) => Some(Finding::ok(subject, coverage)),
        _ => None,
    }
}

fn clock(redis: &RedisDescription, skew_max: Duration) -> Finding {
    let off = Duration::from_millis(redis.clock_ahead_ms.unsigned_abs());
    // The round trip explains part of the difference. Only the rest is certain.
    let sure = off.saturating_sub(redis.round_trip + Duration::from_millis(1));
    let limit = format!("timer.max_clock_skew is {}", length(skew_max));
    if sure.is_zero() {
        return Finding::ok("clock", format!("same as this machine's; {limit}"));
    }
    let is_behind = redis.clock_ahead_ms < 0;
    let side = if is_behind { "behind" } else { "ahead of" };
    let found = format!("Redis is {} {side} this machine; {limit}", length(off));
    let fix = "repair the clock synchronisation (`chronyc tracking`) of the machine that is wrong";
    if sure > skew_max {
        let found = format!("{found}: this process would not be ready");
        Finding::fail("clock", found, fix)
    } else if sure > skew_max / 4 {
        Finding::warn("clock", found, fix)
    } else {
        Finding::ok("clock", found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::Verdict::{self, Fail, Ok as Fine, Warn};

    /// A change to a good server, the item that must report it, and its verdict.
    type Case = (fn(&mut RedisDescription), &'static str, Verdict);

    const SKEW: Duration = Duration::from_secs(2);

    fn good() -> RedisDescription {
        RedisDescription {
            address: "r:6379".into(),
            version: "7.0.15".into(),
            replicas: Some(1),
            eviction_policy: Some("noeviction".into()),
            memory_max: Some(1 << 30),
            used_memory: Some(1 << 20),
            aof_enabled: Some(true),
            appendfsync: Some("everysec".into()),
            save: Some(String::new()),
            round_trip: Duration::from_millis(1),
            ..RedisDescription::default()
        }
    }

    /// The findings that are not `ok`. Each must have a fix.
    fn faults(redis: &RedisDescription) -> Vec<(String, Verdict)> {
        let findings = judge_one(redis, SKEW)
            .into_iter()
            .filter(|finding| finding.verdict != Fine);
        findings
            .inspect(|finding| assert!(finding.fix.is_some(), "{finding:?}"))
            .map(|finding| (finding.subject, finding.verdict))
            .collect()
    }

    #[test]
    fn each_fault_of_a_redis_has_its_item() {
        assert_eq!(faults(&good()), []);
        let table: [Case; 16] = [
            (|redis| redis.version = "6.2.1".into(), "version", Fail),
            (|redis| redis.version = "unknown".into(), "version", Fail),
            (|redis| redis.is_cluster = true, "kind", Fail),
            (|redis| redis.is_replica = true, "kind", Fail),
            (
                |redis| {
                    (redis.is_cluster, redis.in_cluster, redis.replicas) = (true, true, Some(0));
                },
                "replicas",
                Warn,
            ),
            (
                |redis| {
                    (redis.in_cluster, redis.coverage) = (true, Some("yes".into()));
                },
                "cluster-require-full-coverage",
                Warn,
            ),
            (
                |redis| redis.eviction_policy = Some("allkeys-lru".into()),
                "maxmemory-policy",
                Fail,
            ),
            (
                |redis| redis.eviction_policy = None,
                "maxmemory-policy",
                Fail,
            ),
            (
                |redis| redis.script_error = Some("denied".into()),
                "scripts",
                Fail,
            ),
            (|redis| redis.memory_max = Some(0), "maxmemory", Warn),
            (
                |redis| redis.used_memory = Some(900 << 20),
                "maxmemory",
                Warn,
            ),
            (|redis| redis.aof_enabled = Some(false), "persistence", Warn),
            (
                |redis| (redis.aof_enabled, redis.save) = (Some(false), Some("3600 1".into())),
                "persistence",
                Warn,
            ),
            (
                |redis| redis.appendfsync = Some("no".into()),
                "persistence",
                Warn,
            ),
            (|redis| redis.clock_ahead_ms = -700, "clock", Warn),
            (|redis| redis.clock_ahead_ms = 2_100, "clock", Fail),
        ];
        for (change, subject, verdict) in table {
            let mut redis = good();
            change(&mut redis);
            assert_eq!(faults(&redis), [(subject.to_owned(), verdict)], "{redis:?}");
        }
        let slow = RedisDescription {
            clock_ahead_ms: 2_100,
            round_trip: Duration::from_secs(2),
            ..good()
        };
        assert_eq!(faults(&slow), [], "so much may be the way there and back");
    }

    #[test]
    fn a_redis_that_does_not_answer_is_one_item() {
        let areas = judge(&Err(Error::Unavailable("r:1: refused".into())), SKEW);
        let findings = &areas[0].1;
        assert_eq!(
            (areas.len(), findings.len(), findings[0].verdict),
            (1, 1, Fail)
        );
    }

    #[test]
    fn each_primary_of_a_cluster_has_an_area() {
        let node = |address: &str| RedisDescription {
            address: address.to_owned(),
            is_cluster: true,
            in_cluster: true,
            coverage: Some("no".into()),
            ..good()
        };
        let areas = judge(&Ok(vec![node("a:1"), node("b:1")]), SKEW);
        assert_eq!((&*areas[0].0, &*areas[1].0), ("store a:1", "store b:1"));
        let findings = areas.iter().flat_map(|(_, findings)| findings);
        assert!(findings.into_iter().all(|finding| finding.verdict == Fine));
    }
}
