//! Judges a Redis server as a store.

use super::item::Item;
use crate::command::page::{length, several, size};
use crate::store::Error;
use crate::store::redis::{RedisDescription, VERSION_MIN};
use std::time::Duration;

const AREA: &str = "store";
/// Above this share, a burst may fill the memory.
const MEMORY_HIGH_PERCENT: u64 = 80;

pub(super) fn judge(found: &Result<RedisDescription, Error>, skew_max: Duration) -> Vec<Item> {
    let redis = match found {
        Ok(redis) => redis,
        Err(error) => {
            let fix = "check store.redis.url, username and password (or their _file), the network between, and whether the server wants \
                       TLS (rediss://)";
            return vec![Item::fail(AREA, "redis reachable", error.to_string(), fix)];
        }
    };
    let answered = format!(
        "{}, which answers in {}",
        redis.address,
        length(redis.round_trip)
    );
    let mut items = vec![Item::ok(AREA, "redis reachable", answered), version(redis)];
    items.extend(kind(redis));
    items.extend([
        policy(redis),
        scripts(redis),
        memory(redis),
        persistence(redis),
        replicas(redis),
        clock(redis, skew_max),
    ]);
    items
}

fn version(redis: &RedisDescription) -> Item {
    let major: Option<u32> = redis
        .version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    match major {
        Some(major) if major >= VERSION_MIN => Item::ok(AREA, "version", redis.version.clone()),
        _ => {
            let found = format!(
                "{}: its scripts cannot be told to run on a full Redis",
                redis.version
            );
            Item::fail(
                AREA,
                "version",
                found,
                format!("upgrade it to {VERSION_MIN}.0 or newer"),
            )
        }
    }
}

fn kind(redis: &RedisDescription) -> Option<Item> {
    if redis.is_cluster {
        return Some(Item::fail(
            AREA,
            "kind",
            "a node of a Redis Cluster, which this version cannot use",
            "give it a single Redis server",
        ));
    }
    let replica = || {
        Item::fail(
            AREA,
            "kind",
            "a replica, which takes no writes",
            "give store.redis.url the address of its master",
        )
    };
    redis.is_replica.then(replica)
}

fn policy(redis: &RedisDescription) -> Item {
    match redis.eviction_policy.as_deref() {
        Some("noeviction") => Item::ok(AREA, "maxmemory-policy", "noeviction"),
        policy => Item::fail(
            AREA,
            "maxmemory-policy",
            format!(
                "{}: Redis drops waiting messages when memory runs out, so `postdate run` refuses it",
                policy.unwrap_or("unknown")
            ),
            "run `CONFIG SET maxmemory-policy noeviction`, and set it in redis.conf too",
        ),
    }
}

fn scripts(redis: &RedisDescription) -> Item {
    match &redis.script_error {
        None => Item::ok(AREA, "scripts", "run"),
        Some(error) => Item::fail(
            AREA,
            "scripts",
            error.clone(),
            "grant the user `~pd:* +@read +@write +@scripting +info +time +select`",
        ),
    }
}

fn memory(redis: &RedisDescription) -> Item {
    let used = redis.used_memory.map_or_else(|| "?".to_owned(), size);
    match redis.memory_max {
        None | Some(0) => Item::warn(
            AREA,
            "maxmemory",
            format!(
                "not set, {used} used: Redis takes what the machine has, and is killed when there is no more"
            ),
            "set maxmemory (`CONFIG SET maxmemory 4gb`, and in redis.conf) below what the machine has: a full Redis still delivers",
        ),
        Some(max)
            if redis.used_memory.is_some_and(|used| {
                used.saturating_mul(100) >= max.saturating_mul(MEMORY_HIGH_PERCENT)
            }) =>
        {
            Item::warn(
                AREA,
                "maxmemory",
                format!(
                    "{used} of {} used: when it is full, nothing new is stored",
                    size(max)
                ),
                "raise maxmemory; `postdate pending` tells what waits there",
            )
        }
        Some(max) => Item::ok(AREA, "maxmemory", format!("{used} of {} used", size(max))),
    }
}

fn persistence(redis: &RedisDescription) -> Item {
    let fix = "set appendonly yes (`CONFIG SET appendonly yes`, and in redis.conf)";
    match (redis.aof_enabled, redis.save.as_deref()) {
        (Some(true), _) => match redis.appendfsync.as_deref() {
            Some("no") => Item::warn(
                AREA,
                "persistence",
                "appendonly yes, appendfsync no: a machine that fails takes half a minute of writes along, which are read again",
                "set appendfsync everysec",
            ),
            fsync => Item::ok(
                AREA,
                "persistence",
                format!(
                    "appendonly yes{}",
                    fsync
                        .map(|at| format!(", appendfsync {at}"))
                        .unwrap_or_default()
                ),
            ),
        },
        (_, Some(save)) if !save.is_empty() => {
            let found = "snapshots only: a restart loses what was stored since the last one, and duplicates what was delivered since";
            Item::warn(AREA, "persistence", found, fix)
        }
        (_, None) => Item::warn(
            AREA,
            "persistence",
            "no append-only file; whether there are snapshots is not shown to this user",
            fix,
        ),
        (_, Some(_)) => {
            let found = "none: a restart of Redis is a loss of all that waits, which is read again as far as the sources retain it";
            Item::warn(AREA, "persistence", found, fix)
        }
    }
}

fn replicas(redis: &RedisDescription) -> Item {
    let found = match redis.replicas {
        None | Some(0) => {
            "none: if its machine is lost, all that waits is read again from the sources".to_owned()
        }
        Some(count) => several(count, "replica"),
    };
    Item::ok(AREA, "replicas", found)
}

fn clock(redis: &RedisDescription, skew_max: Duration) -> Item {
    let off = Duration::from_millis(redis.clock_ahead_ms.unsigned_abs());
    // The round trip explains part of the difference. Only the rest is certain.
    let sure = off.saturating_sub(redis.round_trip + Duration::from_millis(1));
    let side = if redis.clock_ahead_ms < 0 {
        "behind"
    } else {
        "ahead of"
    };
    if sure.is_zero() {
        return Item::ok(
            AREA,
            "clock",
            format!(
                "as this machine's; timer.max_clock_skew is {}",
                length(skew_max)
            ),
        );
    }
    let found = format!(
        "Redis is {} {side} this machine; timer.max_clock_skew is {}",
        length(off),
        length(skew_max)
    );
    let fix = "mend the clock synchronisation (`chronyc tracking`) of whichever is wrong";
    if sure > skew_max {
        Item::fail(
            AREA,
            "clock",
            format!("{found}: this process would not be ready"),
            fix,
        )
    } else if sure > skew_max / 4 {
        Item::warn(AREA, "clock", found, fix)
    } else {
        Item::ok(AREA, "clock", found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict::{self, Fail, Ok as Fine, Warn};
    use super::*;

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

    /// The items that are not `ok`. Each must have a fix.
    fn faults(redis: RedisDescription) -> Vec<(String, Verdict)> {
        let items = judge(&Ok(redis), SKEW)
            .into_iter()
            .filter(|item| item.verdict != Fine);
        items
            .inspect(|item| assert!(item.fix.is_some(), "{item:?}"))
            .map(|item| (item.subject, item.verdict))
            .collect()
    }

    #[test]
    fn each_fault_of_a_redis_has_its_item() {
        assert_eq!(faults(good()), []);
        let table: [Case; 14] = [
            (|redis| redis.version = "6.2.1".into(), "version", Fail),
            (|redis| redis.version = "unknown".into(), "version", Fail),
            (|redis| redis.is_cluster = true, "kind", Fail),
            (|redis| redis.is_replica = true, "kind", Fail),
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
            assert_eq!(
                faults(redis.clone()),
                [(subject.to_owned(), verdict)],
                "{redis:?}"
            );
        }
        let slow = RedisDescription {
            clock_ahead_ms: 2_100,
            round_trip: Duration::from_secs(2),
            ..good()
        };
        assert_eq!(faults(slow), [], "so much may be the way there and back");
    }

    #[test]
    fn a_redis_that_does_not_answer_is_one_item() {
        let items = judge(&Err(Error::Unavailable("r:1: refused".into())), SKEW);
        assert_eq!((items.len(), items[0].verdict), (1, Fail));
    }
}
