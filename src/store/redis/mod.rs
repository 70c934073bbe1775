//! The store on one Redis server: each change is one script of `lua/`, each list or fetch a few plain reads. Keys stand in `key`, the form
//! of values in `form`, calls in `script`, replies in `reply`, the connection in `connection`.
//!
//! A key that somebody else overwrote with another type concerns one shard, or one of its slices, and no other request of the pipeline.
//! If it is one of the shard's own keys, the shard is `Unknown` to every call until somebody looks, and `Foreign` at birth, with the key's
//! name. If it is a slice's, the value is set aside under `<key>:foreign` and an error logged; the rest of the shard goes on.

mod codec;
mod connection;
mod describe;
mod key;
mod pubsub;
mod query;
mod reads;
#[cfg(feature = "test-support")]
#[cfg(test)]
mod real_redis;
mod reply;
mod script;

use super::{
    Acquired, Advance, Advanced, Append, Appended, Error, Fetch, List, Listed, LiveWorker,
    NewShard, Opened, Quarantine, Renewed, ReplaceRuns, Replaced, ShardPosition, Store,
    StoredShard, Tail, Tailed,
};
use crate::limit;
use crate::model::{Lease, ShardId, WorkerId};
use async_trait::async_trait;
use bytes::Bytes;
use connection::Connection;
pub(crate) use connection::{Options, VERSION_MIN};
pub(crate) use describe::RedisDescription;
use key::{Key, Keyspace};
pub(crate) use pubsub::RedisNotifier;
use redis::Pipeline;
use reply::Reply;
use script::{Call, SliceKey};
use std::time::Duration;

/// How often an erase is begun anew because the shard was appended to meanwhile.
const ERASE_ATTEMPTS_MAX: u32 = 10;

/// See the module's page.
pub(crate) struct Redis {
    connection: Connection,
    keyspace: Keyspace,
}

impl Redis {
    /// Connects, logs in and checks that the server may hold shards. After an error that is transient it may be tried again. A connection
    /// that is lost later is made anew with the same checks.
    pub(crate) async fn connect(options: &Options) -> Result<Self, Error> {
        let redis = Self {
            connection: Connection::new(options)?,
            keyspace: Keyspace::new(&options.deployment),
        };
        redis.connection.connect().await?;
        Ok(redis)
    }

    /// Runs the calls in one pipeline and answers a reply each. A call that met foreign values in slices is repeated after they were set
    /// aside; whose own keys are foreign is unknown.
    async fn run(&self, calls: Vec<Call>) -> Result<Vec<Reply>, Error> {
        let mut replies = self.run_once(&calls).await?;
        let odd: Vec<usize> = (0..replies.len())
            .filter(|&at| replies[at].tag == "foreign")
            .collect();
        if odd.is_empty() {
            return Ok(replies);
        }
        let mut foreign = Vec::new();
        for &at in &odd {
            foreign.extend(
                replies[at]
                    .numbers()?
                    .into_iter()
                    .filter_map(|number| calls[at].slice_key(number)),
            );
        }
        self.rename_foreign(&foreign).await?;
        let again: Vec<Call> = calls
            .into_iter()
            .enumerate()
            .filter(|(at, _)| odd.contains(at))
            .map(|(_, call)| call)
            .collect();
        for (at, reply) in odd.into_iter().zip(self.run_once(&again).await?) {
            replies[at] = if reply.tag == "foreign" {
                Reply::unknown()
            } else {
                reply
            };
        }
        Ok(replies)
    }

    async fn run_once(&self, calls: &[Call]) -> Result<Vec<Reply>, Error> {
        let values = self.connection.call(calls).await?;
        // Scripts that write look at the types of all their keys first; one that only reads meta stops there, before it has done anything.
        values
            .into_iter()
            .map(|value| {
                if reads::is_wrong_type(&value) {
                    Ok(Reply::unknown())
                } else {
                    Reply::new(value)
                }
            })
            .collect()
    }

    /// Makes room for slices whose keys hold another type than theirs.
    async fn rename_foreign(&self, foreign: &[SliceKey]) -> Result<(), Error> {
        let replies = self
            .run_once(&foreign.iter().map(Call::rename_foreign).collect::<Vec<_>>())
            .await?;
        for (key, _) in foreign
            .iter()
            .zip(replies)
            .filter(|(_, reply)| reply.tag == "aside")
        {
            let aside = key::foreign_key(&key.name);
            tracing::error!(
                key = key.name,
                aside,
                "foreign value set aside: what the key held before was overwritten"
            );
        }
        Ok(())
    }

    async fn erase_one(&self, shard: &ShardId) -> Result<(), Error> {
        let keys = self.keyspace.shard_keys(shard);
        for _ in 0..ERASE_ATTEMPTS_MAX {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("HKEYS").arg(keys.name(Key::Counts));
            let fields = self
                .connection
                .send(&pipeline)
                .await?
                .into_iter()
                .flat_map(reads::fields)
                .collect::<Vec<_>>();
            if self
                .run_once(&[Call::erase(&keys, &fields)])
                .await?
                .iter()
                .all(|reply| reply.tag == "erased")
            {
                return Ok(());
            }
        }
        Err(Error::Unavailable(format!(
            "shard {shard} is written to while it is erased: stop what writes to it"
        )))
    }
}

#[async_trait(?Send)]
impl Store for Redis {
    async fn open(&self, births: &[NewShard]) -> Result<Vec<Opened>, Error> {
        let calls: Vec<Call> = births
            .iter()
            .map(|birth| Call::open(&self.keyspace.shard_keys(&birth.shard), birth))
            .collect();
        let replies = self.run_once(&calls).await?;
        calls
            .iter()
            .zip(replies)
            .map(|(call, reply)| reply.opened(&call.keys))
            .collect()
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        let mut outcomes = Vec::with_capacity(appends.len());
        for some in appends.chunks(limit::APPENDS_PER_PIPELINE_MAX) {
            let calls = some
                .iter()
                .map(|append| Call::append(&self.keyspace.shard_keys(&append.shard), append))
                .collect();
            for reply in self.run(calls).await? {
                outcomes.push(reply.appended()?);
            }
        }
        Ok(outcomes)
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        let calls = shards
            .iter()
            .map(|shard| Call::state(&self.keyspace.shard_keys(shard)))
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::known_state)
            .collect()
    }

    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error> {
        self.read_positions(shards).await
    }

    async fn acquire(&self, leases: &[Lease], length: Duration) -> Result<Vec<Acquired>, Error> {
        let calls = leases
            .iter()
            .map(|lease| Call::acquire(&self.keyspace.shard_keys(&lease.shard), lease, length))
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::acquired)
            .collect()
    }

    async fn renew(&self, leases: &[Lease], length: Duration) -> Result<Vec<Renewed>, Error> {
        let calls = leases
            .iter()
            .map(|lease| Call::renew(&self.keyspace.shard_keys(&lease.shard), lease, length))
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::renewed)
            .collect()
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        let calls = leases
            .iter()
            .map(|lease| Call::release(&self.keyspace.shard_keys(&lease.shard), lease))
            .collect();
        self.run(calls).await?;
        Ok(())
    }

    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        self.list_runs(requests).await
    }

    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        self.fetch_runs(requests).await
    }

    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error> {
        let calls = requests
            .iter()
            .map(|tail| Call::tail(&self.keyspace.shard_keys(&tail.shard), tail))
            .collect();
        let mut tails = self
            .run(calls)
            .await?
            .into_iter()
            .map(Reply::tailed)
            .collect::<Result<Vec<_>, _>>()?;
        super::fetch_tail_bytes(self, requests, &mut tails).await?;
        Ok(tails)
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        let calls = requests
            .iter()
            .map(|advance| Call::advance(&self.keyspace.shard_keys(&advance.lease.shard), advance))
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::advanced)
            .collect()
    }

    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error> {
        let calls = requests
            .iter()
            .map(|request| {
                Call::quarantine(&self.keyspace.shard_keys(&request.lease.shard), request)
            })
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::moved)
            .collect()
    }

    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error> {
        let calls = requests
            .iter()
            .map(|request| {
                Call::replace_runs(&self.keyspace.shard_keys(&request.lease.shard), request)
            })
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::replaced)
            .collect()
    }

    async fn heartbeat_worker(
        &self,
        worker: WorkerId,
        length: Duration,
    ) -> Result<Vec<LiveWorker>, Error> {
        let replies = self
            .run(vec![Call::heartbeat_worker(
                self.keyspace.workers_key(),
                worker,
                length,
            )])
            .await?;
        replies
            .into_iter()
            .next()
            .map_or(Ok(Vec::new()), Reply::live_workers)
    }

    async fn remove_worker(&self, worker: WorkerId) -> Result<(), Error> {
        self.run(vec![Call::remove_worker(
            self.keyspace.workers_key(),
            worker,
        )])
        .await
        .map(drop)
    }

    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error> {
        for shard in shards {
            self.erase_one(shard).await?;
        }
        Ok(())
    }
}
