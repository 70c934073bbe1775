//! Describes the Redis servers for `postdate check`, suitable or not. Writes nothing.

use super::connection::{
    Address, Connection, Connections, GroupView, Options, Servers, info_field, is_cluster_node,
    is_error,
};
use super::script::Call;
use super::{Keyspace, Redis, reply};
use crate::clock::Clock;
use crate::model::{Partition, ShardId, Timestamp};
use crate::store::Error;
use redis::{Pipeline, Value};
use std::cell::RefCell;
use std::time::Duration;

/// Shards to try until this node of a cluster serves one. It may serve few slots.
const SCRIPT_TRIES_MAX: i32 = 1_000;

/// The settings and the state of a server. `None`: the server does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RedisDescription {
    pub(crate) address: String,
    /// The answer of each sentinel. Empty without sentinels.
    pub(crate) sentinels: Vec<(Address, Result<GroupView, String>)>,
    /// The version of Redis. Valkey names the one that it is compatible with.
    pub(crate) version: String,
    pub(crate) valkey_version: Option<String>,
    pub(crate) is_cluster: bool,
    /// The configuration names a Redis Cluster.
    pub(crate) in_cluster: bool,
    /// `yes` if all primaries refuse commands while one is lost.
    pub(crate) coverage: Option<String>,
    pub(crate) is_replica: bool,
    pub(crate) replicas: Option<u64>,
    pub(crate) eviction_policy: Option<String>,
    /// Bytes; 0 means no limit.
    pub(crate) memory_max: Option<u64>,
    pub(crate) used_memory: Option<u64>,
    pub(crate) aof_enabled: Option<bool>,
    /// `always`, `everysec` or `no`.
    pub(crate) appendfsync: Option<String>,
    /// When it saves snapshots; empty: never.
    pub(crate) save: Option<String>,
    /// Clock of the server minus clock of this machine, in milliseconds.
    pub(crate) clock_ahead_ms: i64,
    /// Round trip of the clock measurement, which bounds its error.
    pub(crate) round_trip: Duration,
    /// Why scripts cannot run.
    pub(crate) script_error: Option<String>,
}

impl Redis {
    /// Asks each primary. Fails if one does not answer or rejects the login.
    pub(crate) async fn describe(
        options: &Options,
        clock: &impl Clock,
    ) -> Result<Vec<RedisDescription>, Error> {
        let redis = Redis {
            connections: Connections::unchecked(options)?,
            keyspace: Keyspace::new(&options.deployment),
            slots: RefCell::default(),
        };
        let in_cluster = matches!(options.servers, Servers::Cluster(_));
        let mut descriptions = Vec::new();
        for primary in redis.connections.primaries().await? {
            let description = redis.describe_one(&primary, in_cluster, clock);
            descriptions.push(description.await?);
        }
        Ok(descriptions)
    }

    async fn describe_one(
        &self,
        connection: &Connection,
        in_cluster: bool,
        clock: &impl Clock,
    ) -> Result<RedisDescription, Error> {
        let info = text(connection, &["INFO", "everything"]).await?;
        let (clock_ahead_ms, round_trip) = measure_clock(connection, clock).await?;
        let number =
            |name: &str| info_field(&info, name).and_then(|value| value.parse::<u64>().ok());
        // The user may lack the permission for CONFIG.
        let setting = async |name: &str| config(connection, name).await.ok().flatten();
        Ok(RedisDescription {
            address: connection.address(),
            sentinels: sentinels(connection).await,
            version: info_field(&info, "redis_version")
                .unwrap_or("unknown")
                .to_owned(),
            valkey_version: info_field(&info, "valkey_version").map(str::to_owned),
            is_cluster: is_cluster_node(&info),
            in_cluster,
            coverage: setting("cluster-require-full-coverage").await,
            is_replica: info_field(&info, "role") == Some("slave"),
            replicas: number("connected_slaves"),
            eviction_policy: info_field(&info, "maxmemory_policy").map(str::to_owned),
            memory_max: number("maxmemory"),
            used_memory: number("used_memory"),
            aof_enabled: number("aof_enabled").map(|enabled| enabled == 1),
            appendfsync: setting("appendfsync").await,
            save: setting("save").await,
            clock_ahead_ms,
            round_trip,
            script_error: self.script_error(connection).await,
        })
    }

    /// Calls one script, on a shard that never exists. Returns its error.
    async fn script_error(&self, connection: &Connection) -> Option<String> {
        for index in 0..SCRIPT_TRIES_MAX {
            let no_shard = ShardId::new("", Partition::new("", index));
            let state = Call::state(&self.keyspace, &no_shard);
            match connection.call(&[&state]).await {
                // Another node of the cluster serves the slot of this shard.
                Ok(values) if values.iter().any(|value| is_error(value, "MOVED")) => {}
                Ok(_) => return None,
                Err(error) => return Some(error.to_string()),
            }
        }
        None
    }
}

async fn sentinels(connection: &Connection) -> Vec<(Address, Result<GroupView, String>)> {
    let views = connection.sentinel_views().await.into_iter();
    let views = views.map(|(at, view)| (at, view.map_err(|error| error.to_string())));
    views.collect()
}

async fn text(connection: &Connection, command: &[&str]) -> Result<String, Error> {
    Ok(ask(connection, command)
        .await?
        .and_then(reply::text)
        .unwrap_or_default())
}

async fn ask(connection: &Connection, command: &[&str]) -> Result<Option<Value>, Error> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd(command[0]).arg(&command[1..]);
    Ok(connection.send(&pipeline).await?.into_iter().next())
}

async fn config(connection: &Connection, name: &str) -> Result<Option<String>, Error> {
    let pair = ask(connection, &["CONFIG", "GET", name]).await?;
    Ok(pair.and_then(reply::texts).and_then(|mut pair| pair.pop()))
}

/// Clock of the server minus the local clock in the middle of the round trip, and the round trip.
async fn measure_clock(
    connection: &Connection,
    clock: &impl Clock,
) -> Result<(i64, Duration), Error> {
    let before = clock.now();
    let reply = ask(connection, &["TIME"]).await?;
    let after = clock.now();
    let parts = reply.and_then(reply::texts).unwrap_or_default();
    let parts: Vec<i64> = parts.iter().filter_map(|part| part.parse().ok()).collect();
    let [seconds, micros] = parts[..] else {
        return Err(Error::Unusable(
            "the reply to TIME is no time: check that this server is a Redis".to_owned(),
        ));
    };
    let server_time =
        Timestamp::from_millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000));
    let round_trip = after.since(before);
    let middle = before.plus(round_trip / 2);
    Ok((
        server_time.as_millis().saturating_sub(middle.as_millis()),
        round_trip,
    ))
}
