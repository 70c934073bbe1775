//! Questions of people about the messages in Redis: a scan for shards, and plain reads.

use super::Redis;
use super::codec;
use super::connection::Connection;
use super::key;
use super::reads;
use super::reply::{Reply, text, texts};
use super::script::Call;
use crate::encryption::{IdCounts, StoredId};
use crate::limit::{CHANGED_PLACES_READ_MAX, IDS_PER_STEP, SCAN_KEYS_PER_STEP};
use crate::model::{Cursor, LeaseToken, Offset, ShardId, Timestamp};
use crate::run::RunName;
use crate::store::query::PlaceChange;
use crate::store::{
    AuditPart, AuditPosition, AuditRow, EffectKind, Error, Fetch, List, Listed, Membership,
    QuarantineStore, Restore, Restored, Session, ShardStore, StoreQuery, StoredShard,
};
use async_trait::async_trait;
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::collections::BTreeSet;

/// The members of the cancelled places that begin with one place.
fn place_change(members: Value) -> Option<PlaceChange> {
    let member = texts(members)?.pop()?;
    Some(match codec::parse_moved(&member).map(|moved| moved.kind) {
        Some(EffectKind::Moved(due)) => PlaceChange::Moved(due),
        _ => PlaceChange::Cancelled,
    })
}

/// The due time of the first place that is moved, or of the last one that was read if there may be more.
fn first_moved(members: Value) -> Option<Timestamp> {
    let members = texts(members)?;
    let first = members
        .iter()
        .find(|member| codec::parse_moved(member).is_some());
    let last = (members.last()).filter(|_| members.len() >= CHANGED_PLACES_READ_MAX);
    let place = first.or(last)?.get(..32)?;
    Some(Cursor::from_hex(place)?.due)
}

#[async_trait(?Send)]
impl StoreQuery for Redis {
    async fn shards(&self) -> Result<Vec<ShardId>, Error> {
        // A scan may return a key twice.
        let mut shards = BTreeSet::new();
        for primary in self.connections.primaries().await? {
            self.scan(&primary, &mut shards).await?;
        }
        Ok(shards.into_iter().collect())
    }

    async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.state(shards).await
    }

    async fn holders(&self, shards: &[ShardId]) -> Result<Vec<Option<LeaseToken>>, Error> {
        let mut pipeline = Pipeline::new();
        for shard in shards {
            let meta = self.keyspace.shard_keys(shard).name(key::META);
            pipeline.cmd("HGET").arg(meta).arg("token");
        }
        let values = self.connections.send(&pipeline).await?.into_iter();
        let holders = values.map(|value| LeaseToken::parse(&text(value)?));
        Ok(holders.collect())
    }

    async fn find_ids(&self, ids: &[(ShardId, StoredId)]) -> Result<Vec<Option<Cursor>>, Error> {
        let shards: Vec<ShardId> = ids.iter().map(|(shard, _)| shard.clone()).collect();
        let mut pipeline = Pipeline::new();
        for (shard, id) in ids {
            pipeline
                .cmd("HMGET")
                .arg(self.keyspace.shard_keys(shard).name(key::IDS))
                .arg(id.names().collect::<Vec<_>>());
        }
        let values = self.connections.send(&pipeline).await?;
        let states = self.state(&shards).await?;
        let places = values.into_iter().zip(states).map(|(value, state)| {
            let Value::Array(found) = value else {
                return None;
            };
            let delivered = state?.delivered;
            let texts = found.into_iter().filter_map(text);
            let mut places = texts.filter_map(|text| Cursor::from_hex(&text));
            // The id of a delivered message is removed some time after the delivery.
            places.find(|place| !delivered.covers(*place))
        });
        Ok(places.collect())
    }

    async fn changes(
        &self,
        places: &[(ShardId, Cursor)],
    ) -> Result<Vec<Option<PlaceChange>>, Error> {
        let mut pipeline = Pipeline::new();
        for (shard, place) in places {
            let cancelled = self.keyspace.shard_keys(shard).name(key::CANCELLED);
            let place = place.to_hex();
            // Only the place itself, and the members that begin with it: see `lua/append.lua`.
            let range = pipeline.cmd("ZRANGEBYLEX").arg(cancelled);
            range.arg(format!("[{place}")).arg(format!("({place}g"));
        }
        let members = self.connections.send(&pipeline).await?.into_iter();
        Ok(members.map(place_change).collect())
    }

    async fn moved_from(
        &self,
        shards: &[ShardId],
        before: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, Error> {
        let mut pipeline = Pipeline::new();
        let end = Cursor::new(before, Offset(0)).to_hex();
        for shard in shards {
            let cancelled = self.keyspace.shard_keys(shard).name(key::CANCELLED);
            let range = pipeline.cmd("ZRANGEBYLEX").arg(cancelled);
            range.arg("-").arg(format!("({end}"));
            range.arg("LIMIT").arg(0).arg(CHANGED_PLACES_READ_MAX);
        }
        let members = self.connections.send(&pipeline).await?.into_iter();
        Ok(members.map(first_moved).collect())
    }

    async fn count_ids(&self, shard: &ShardId) -> Result<IdCounts, Error> {
        let ids = self.keyspace.shard_keys(shard).name(key::IDS);
        let (mut counts, mut cursor) = (IdCounts::default(), "0".to_owned());
        loop {
            let mut pipeline = Pipeline::new();
            let scan = pipeline.cmd("HSCAN").arg(&ids).arg(&cursor);
            scan.arg("COUNT").arg(IDS_PER_STEP);
            let value = self.connections.send(&pipeline).await?.pop();
            let Some((next, fields)) = value.and_then(|value| scanned(value).ok()) else {
                break;
            };
            let names = fields.chunks_exact(2).map(|field| &field[0]);
            names.for_each(|name| counts.add(name));
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        Ok(counts)
    }

    async fn quarantined_runs(&self, shard: &ShardId) -> Result<Vec<RunName>, Error> {
        let mut pipeline = Pipeline::new();
        pipeline
            .cmd("HKEYS")
            .arg(self.keyspace.shard_keys(shard).name(key::QUARANTINE));
        let values = self.connections.send(&pipeline).await?.into_iter();
        let names = values.filter_map(texts).flatten();
        Ok(names.map(RunName::new).collect())
    }

    async fn list_runs(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        self.list(requests).await
    }

    async fn fetch_runs(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        self.fetch(requests).await
    }

    async fn worker_sessions(&self) -> Result<Vec<Session>, Error> {
        self.sessions().await
    }

    async fn audit_rows(
        &self,
        part: AuditPart,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        self.read_audit_rows(part, before, limit).await
    }
}

impl Redis {
    /// Adds the shards that this server has.
    async fn scan(&self, server: &Connection, shards: &mut BTreeSet<ShardId>) -> Result<(), Error> {
        let mut cursor = "0".to_owned();
        loop {
            let mut pipeline = Pipeline::new();
            pipeline
                .cmd("SCAN")
                .arg(&cursor)
                .arg("MATCH")
                .arg(self.keyspace.meta_pattern())
                .arg("COUNT")
                .arg(SCAN_KEYS_PER_STEP);
            let values = server.send(&pipeline).await?;
            let Some(Value::Array(reply)) = values.into_iter().next() else {
                return Ok(());
            };
            let mut reply = reply.into_iter();
            cursor = reply.next().and_then(text).unwrap_or_default();
            let keys = reply.next().and_then(texts).unwrap_or_default();
            shards.extend(
                keys.iter()
                    .filter_map(|key| self.keyspace.shard_of_meta_key(key)),
            );
            if cursor.is_empty() || cursor == "0" {
                return Ok(());
            }
        }
    }
}

/// The next cursor of a scan of a hash, and its fields and values.
pub(super) fn scanned(reply: Value) -> redis::RedisResult<(String, Vec<Vec<u8>>)> {
    Ok(redis::from_redis_value(reply)?)
}

#[async_trait(?Send)]
impl QuarantineStore for Redis {
    async fn quarantined_bytes(
        &self,
        shard: &ShardId,
        name: &RunName,
    ) -> Result<Option<Bytes>, Error> {
        let mut pipeline = Pipeline::new();
        let quarantine = self.keyspace.shard_keys(shard).name(key::QUARANTINE);
        pipeline.cmd("HGET").arg(quarantine).arg(name.as_str());
        let value = self.connections.send(&pipeline).await?.pop();
        Ok(value.and_then(reads::bytes))
    }

    async fn restore(&self, request: &Restore) -> Result<Restored, Error> {
        let call = Call::restore(&self.keyspace, request);
        let reply = self.run(&[call]).await?.pop();
        reply.map_or(Ok(Restored::Gone), Reply::restored)
    }
}
