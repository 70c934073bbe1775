//! Questions of people about the messages in Redis: a scan for shards, and plain reads.

use super::Redis;
use super::key;
use super::reply::{text, texts};
use crate::limit::SCAN_KEYS_PER_STEP;
use crate::model::{Cursor, ShardId};
use crate::store::{Error, ShardStore, StoreQuery, StoredShard};
use async_trait::async_trait;
use redis::{Pipeline, Value};
use std::collections::BTreeSet;

#[async_trait(?Send)]
impl StoreQuery for Redis {
    async fn shards(&self) -> Result<Vec<ShardId>, Error> {
        // A scan may return a key twice.
        let mut shards = BTreeSet::new();
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
            let values = self.connection.send(&pipeline).await?;
            let Some(Value::Array(reply)) = values.into_iter().next() else {
                break;
            };
            let mut reply = reply.into_iter();
            cursor = reply.next().and_then(text).unwrap_or_default();
            let keys = reply.next().and_then(texts).unwrap_or_default();
            shards.extend(
                keys.iter()
                    .filter_map(|key| self.keyspace.shard_of_meta_key(key)),
            );
            if cursor.is_empty() || cursor == "0" {
                break;
            }
        }
        Ok(shards.into_iter().collect())
    }

    async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.state(shards).await
    }

    async fn find_ids(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error> {
        let shards: Vec<ShardId> = ids.iter().map(|(shard, _)| shard.clone()).collect();
        let mut pipeline = Pipeline::new();
        for (shard, id) in ids {
            pipeline
                .cmd("HGET")
                .arg(self.keyspace.shard_keys(shard).name(key::IDS))
                .arg(&**id);
        }
        let values = self.connection.send(&pipeline).await?;
        let states = self.state(&shards).await?;
        let places = values.into_iter().zip(states).map(|(value, state)| {
            let place = Cursor::from_hex(&text(value)?)?;
            // The id of a delivered message is removed some time after the delivery.
            (!state?.delivered.covers(place)).then_some(place)
        });
        Ok(places.collect())
    }
}
