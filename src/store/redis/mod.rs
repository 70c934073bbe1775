//! The store on one Redis server, a group of servers with sentinels, or a Redis Cluster. Each change
//! is one script of `lua/`; fetches are plain reads.
//!
//! | file | duty |
//! |---|---|
//! | `key` | key names, and the format of all values |
//! | `codec` | values as Rust types |
//! | `script`, `session_calls`, `reply` | calls of the scripts, and their replies |
//! | `reads` | list, fetch and positions |
//! | `connection` | look-up of the primary, login, checks of the server, pipelines, meaning of errors |
//! | `pubsub` | hints between processes |
//! | `copy` | moves shards to and from another store |
//! | `admin` | the audit list, and requests with an idempotency key |
//! | `query`, `describe` | questions of people about the messages and about the server |
//!
//! Foreign data under a key of Postdate affects one shard, or one of its slices. If it is under a
//! key of the shard itself, calls that use the key answer `Unknown`, and `open` answers
//! `Incompatible` with the name of the key. If it is under a key of a slice, it is renamed to
//! `<key>:foreign`, an error is logged, and the shard continues.

mod admin;
mod codec;
mod connection;
mod copy;
mod describe;
mod key;
mod pubsub;
mod query;
mod reads;
mod reply;
mod script;
#[cfg(feature = "test-support")]
#[cfg(test)]
mod server_tests;
mod session_calls;

use super::{
    Acquire, Acquired, Advance, Advanced, Append, Appended, Error, Fetch, FinishedIds, Heartbeat,
    IdPosition, LeaseStore, List, Listed, Membership, NewShard, Opened, Quarantine, ReplaceRuns,
    Replaced, Session, SessionEnd, SessionHeartbeat, ShardPosition, ShardStore, StoreAdmin,
    StorePart, StoredShard, Tail, Tailed,
};
use crate::limit;
use crate::model::{Lease, ShardId};
use async_trait::async_trait;
use bytes::Bytes;
pub(crate) use connection::{
    Address, Certificates, ClusterOptions, GroupView, Options, SentinelOptions, Servers,
    VERSION_MIN,
};
use connection::{Connections, Slot};
pub(crate) use describe::RedisDescription;
use key::Keyspace;
pub(crate) use pubsub::RedisNotifier;
use redis::Pipeline;
use reply::Reply;
use script::{Call, SliceKey};
use std::cell::RefCell;
use std::collections::HashMap;

/// How often an erase restarts because another process appended to the shard.
const ERASE_ATTEMPTS_MAX: u32 = 10;

/// A handle on the store, with connections of its own.
pub(crate) struct Redis {
    connections: Connections,
    keyspace: Keyspace,
    /// The slots of the shards that were asked for, if the servers are a cluster.
    slots: RefCell<HashMap<ShardId, Slot>>,
}

impl Redis {
    /// Connects, logs in, and checks that the server is suitable. May be repeated after a transient
    /// error. A connection that is lost later is opened again, with the same checks.
    pub(crate) async fn connect(options: &Options) -> Result<Self, Error> {
        let redis = Self {
            connections: Connections::new(options)?,
            keyspace: Keyspace::new(&options.deployment),
            slots: RefCell::default(),
        };
        redis.connections.connect().await?;
        Ok(redis)
    }

    /// Calls a script once per item, all in one pipeline, and reads the outcomes.
    async fn call_each<T, O>(
        &self,
        items: &[T],
        call: impl Fn(&Keyspace, &T) -> Call,
        outcome: impl Fn(Reply) -> Result<O, Error>,
    ) -> Result<Vec<O>, Error> {
        let calls: Vec<Call> = items
            .iter()
            .map(|item| call(&self.keyspace, item))
            .collect();
        let replies = self.run(&calls).await?;
        replies.into_iter().map(outcome).collect()
    }

    /// Runs the calls in one pipeline. A call that finds foreign values under keys of slices is
    /// repeated after they were renamed. A call that finds them under the shard's own keys answers
    /// `unknown`.
    async fn run(&self, calls: &[Call]) -> Result<Vec<Reply>, Error> {
        let mut replies = self.run_once(calls).await?;
        for (call, reply) in calls.iter().zip(&mut replies) {
            if reply.tag != "foreign" {
                continue;
            }
            let numbers = reply.key_numbers()?.into_iter();
            let slice_keys: Vec<SliceKey> = numbers
                .filter_map(|number| call.slice_key(number))
                .collect();
            self.rename_foreign(&slice_keys).await?;
            let repeated = self.run_once(std::slice::from_ref(call)).await?.pop();
            *reply = repeated
                .filter(|reply| reply.tag != "foreign")
                .unwrap_or_else(Reply::unknown);
        }
        Ok(replies)
    }

    async fn call_one(&self, call: Call) -> Result<Reply, Error> {
        Ok(self
            .run(&[call])
            .await?
            .pop()
            .unwrap_or_else(Reply::unknown))
    }

    async fn run_once(&self, calls: &[Call]) -> Result<Vec<Reply>, Error> {
        let values = self.connections.call(calls).await?;
        let replies = values.into_iter().map(|value| {
            // Only a script that reads meta without a type check fails like this, before any write.
            if connection::is_error(&value, "WRONGTYPE") {
                Ok(Reply::unknown())
            } else {
                Reply::new(value)
            }
        });
        replies.collect()
    }

    /// Renames foreign values under keys of slices, so that the slices work again.
    async fn rename_foreign(&self, keys: &[SliceKey]) -> Result<(), Error> {
        let calls: Vec<Call> = keys.iter().map(Call::rename_foreign).collect();
        for (key, reply) in keys.iter().zip(self.run_once(&calls).await?) {
            if reply.tag == "renamed" {
                tracing::error!(
                    key = key.name,
                    renamed_to = key::foreign_key(&key.name),
                    "another client overwrote a key of Postdate: renamed the foreign value; the messages \
                     or worker sessions under the key are lost; find the client, and give it other keys"
                );
            }
        }
        Ok(())
    }

    async fn erase_shard(&self, shard: &ShardId) -> Result<(), Error> {
        let counts = self.keyspace.shard_keys(shard).name(key::COUNTS);
        for _ in 0..ERASE_ATTEMPTS_MAX {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("HKEYS").arg(&counts);
            let values = self.connections.send(&pipeline).await?;
            let fields = values.into_iter().filter_map(reply::texts).flatten();
            let call = Call::erase(&self.keyspace, shard, &fields.collect::<Vec<_>>());
            let replies = self.run_once(&[call]).await?;
            if replies.iter().all(|reply| reply.tag == "erased") {
                return Ok(());
            }
        }
        Err(Error::Unavailable(format!(
            "a worker appends to shard {shard} while it is erased: stop the service, then try again"
        )))
    }
}

#[async_trait(?Send)]
impl ShardStore for Redis {
    fn part_of(&self, shard: &ShardId) -> StorePart {
        let Connections::Cluster(cluster) = &self.connections else {
            return StorePart(0);
        };
        let known = self.slots.borrow().get(shard).copied();
        let slot = known.unwrap_or_else(|| {
            let meta = self.keyspace.shard_keys(shard).name(key::META);
            let slot = connection::slot_of_key(meta.as_bytes());
            self.slots.borrow_mut().insert(shard.clone(), slot);
            slot
        });
        StorePart(cluster.part_of(slot))
    }

    async fn open(&self, shards: &[NewShard]) -> Result<Vec<Opened>, Error> {
        let calls: Vec<Call> = shards
            .iter()
            .map(|new| Call::open(&self.keyspace, new))
            .collect();
        let replies = self.run_once(&calls).await?;
        let opened = calls.iter().zip(replies);
        opened
            .map(|(call, reply)| reply.opened(&call.keys))
            .collect()
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        let mut outcomes = Vec::with_capacity(appends.len());
        for appends in appends.chunks(limit::APPENDS_PER_PIPELINE_MAX) {
            let stored = self.call_each(appends, Call::append, Reply::appended);
            outcomes.extend(stored.await?);
        }
        Ok(outcomes)
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.call_each(shards, Call::state, Reply::known_state)
            .await
    }

    async fn end_holds(&self, shards: &[ShardId]) -> Result<(), Error> {
        self.call_each(shards, Call::end_hold, |_| Ok(()))
            .await
            .map(drop)
    }

    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error> {
        self.read_positions(shards).await
    }

    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        let mut listed = Vec::with_capacity(requests.len());
        for requests in requests.chunks(limit::LISTS_PER_PIPELINE_MAX) {
            listed.extend(self.list_runs(requests).await?);
        }
        Ok(listed)
    }

    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        self.fetch_runs(requests).await
    }

    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error> {
        let tails = self.call_each(requests, Call::tail, Reply::tailed).await?;
        super::tail_bytes::fill_tails(self, requests, tails, async |request| {
            let request = &[request];
            let tails = self.call_each(request, Call::tail, Reply::tailed).await?;
            Ok(tails.into_iter().next().unwrap_or(Tailed::Unknown))
        })
        .await
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        self.call_each(requests, Call::advance, Reply::advanced)
            .await
    }

    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error> {
        self.call_each(requests, Call::quarantine, Reply::moved)
            .await
    }

    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error> {
        self.call_each(requests, Call::replace_runs, Reply::replaced)
            .await
    }

    async fn remove_finished_ids(
        &self,
        requests: &[FinishedIds],
    ) -> Result<Vec<Option<IdPosition>>, Error> {
        self.call_each(requests, Call::remove_finished_ids, Reply::next_ids)
            .await
    }
}

#[async_trait(?Send)]
impl LeaseStore for Redis {
    async fn acquire(&self, requests: &[Acquire]) -> Result<Vec<Acquired>, Error> {
        self.call_each(requests, Call::acquire, Reply::acquired)
            .await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        self.call_each(leases, Call::release, |_| Ok(()))
            .await
            .map(drop)
    }
}

#[async_trait(?Send)]
impl Membership for Redis {
    async fn heartbeat(&self, request: &SessionHeartbeat) -> Result<Heartbeat, Error> {
        let reply = self.call_one(Call::heartbeat(&self.keyspace, request));
        reply.await?.heartbeat()
    }

    async fn end_sessions(&self, ends: &[SessionEnd]) -> Result<(), Error> {
        let call = Call::end_sessions(&self.keyspace, ends);
        self.run(&[call]).await.map(drop)
    }

    async fn sessions(&self) -> Result<Vec<Session>, Error> {
        let reply = self.call_one(Call::sessions(&self.keyspace));
        match reply.await?.heartbeat()? {
            Heartbeat::Renewed { sessions, .. } => Ok(sessions),
            _ => Ok(Vec::new()),
        }
    }
}

#[async_trait(?Send)]
impl StoreAdmin for Redis {
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error> {
        for shard in shards {
            self.erase_shard(shard).await?;
        }
        Ok(())
    }
}
