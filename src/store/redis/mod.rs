//! The store on one Redis server: each change is one script of `lua/`, each list or fetch a few plain reads. Keys stand in `key`, the form
//! of values in `form`, calls in `script`, replies in `reply`, the connection in `connection`.
//!
//! A key that somebody else overwrote with another type concerns one shard, or one of its slices, and no other request of the pipeline.
//! If it is one of the shard's own keys, the shard is `Unknown` to every call until somebody looks, and `Foreign` at birth, with the key's
//! name. If it is a slice's, the value is set aside under `<key>:foreign` and an error logged; the rest of the shard goes on.

mod connection;
mod form;
mod hints;
mod inspection;
mod key;
mod load;
#[cfg(feature = "test-support")]
#[cfg(test)]
mod real_redis;
mod reply;
mod script;
mod survey;

use super::{
    Acquired, Advance, Advanced, Append, Appended, Birth, Error, Fetch, Glance, List, Listed,
    Opened, Peer, Quarantine, Renewed, Rewrite, Rewritten, State, Store, Tail, Tailed,
};
use crate::limit;
use crate::model::{Lease, ShardId, Worker};
use async_trait::async_trait;
use bytes::Bytes;
use connection::Connection;
pub(crate) use connection::{Options, VERSION_MIN};
pub(crate) use hints::Hints;
pub(crate) use inspection::Inspection;
use key::{Key, Keyspace};
use redis::Pipeline;
use reply::Reply;
use script::{Call, SliceKey};
use std::time::Duration;

/// How often an erase is begun anew because the shard was appended to meanwhile.
const ERASES_MAX: u32 = 10;

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
        redis.connection.open().await?;
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
        self.set_aside(&foreign).await?;
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
                if load::is_wrong_type(&value) {
                    Ok(Reply::unknown())
                } else {
                    Reply::new(value)
                }
            })
            .collect()
    }

    /// Makes room for slices whose keys hold another type than theirs.
    async fn set_aside(&self, foreign: &[SliceKey]) -> Result<(), Error> {
        let replies = self
            .run_once(&foreign.iter().map(Call::set_aside).collect::<Vec<_>>())
            .await?;
        for (key, _) in foreign
            .iter()
            .zip(replies)
            .filter(|(_, reply)| reply.tag == "aside")
        {
            let aside = key::aside(&key.name);
            tracing::error!(
                key = key.name,
                aside,
                "foreign value set aside: what the key held before was overwritten"
            );
        }
        Ok(())
    }

    async fn erase_one(&self, shard: &ShardId) -> Result<(), Error> {
        let keys = self.keyspace.of(shard);
        for _ in 0..ERASES_MAX {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("HKEYS").arg(keys.name(Key::Counts));
            let fields = self
                .connection
                .send(&pipeline)
                .await?
                .into_iter()
                .flat_map(load::fields)
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
    async fn open(&self, births: &[Birth]) -> Result<Vec<Opened>, Error> {
        let calls: Vec<Call> = births
            .iter()
            .map(|birth| Call::open(&self.keyspace.of(&birth.shard), birth))
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
        for some in appends.chunks(limit::APPEND_PIPELINE_MAX) {
            let calls = some
                .iter()
                .map(|append| Call::append(&self.keyspace.of(&append.shard), append))
                .collect();
            for reply in self.run(calls).await? {
                outcomes.push(reply.appended()?);
            }
        }
        Ok(outcomes)
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<State>>, Error> {
        let calls = shards
            .iter()
            .map(|shard| Call::state(&self.keyspace.of(shard)))
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::known_state)
            .collect()
    }

    async fn glance(&self, shards: &[ShardId]) -> Result<Vec<Option<Glance>>, Error> {
        self.read_glances(shards).await
    }

    async fn acquire(&self, leases: &[Lease], length: Duration) -> Result<Vec<Acquired>, Error> {
        let calls = leases
            .iter()
            .map(|lease| Call::acquire(&self.keyspace.of(&lease.shard), lease, length))
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
            .map(|lease| Call::renew(&self.keyspace.of(&lease.shard), lease, length))
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
            .map(|lease| Call::release(&self.keyspace.of(&lease.shard), lease))
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
            .map(|tail| Call::tail(&self.keyspace.of(&tail.shard), tail))
            .collect();
        let mut tails = self
            .run(calls)
            .await?
            .into_iter()
            .map(Reply::tailed)
            .collect::<Result<Vec<_>, _>>()?;
        super::fetch_tails(self, requests, &mut tails).await?;
        Ok(tails)
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        let calls = requests
            .iter()
            .map(|advance| Call::advance(&self.keyspace.of(&advance.lease.shard), advance))
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
            .map(|request| Call::quarantine(&self.keyspace.of(&request.lease.shard), request))
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::moved)
            .collect()
    }

    async fn rewrite(&self, requests: &[Rewrite]) -> Result<Vec<Rewritten>, Error> {
        let calls = requests
            .iter()
            .map(|request| Call::rewrite(&self.keyspace.of(&request.lease.shard), request))
            .collect();
        self.run(calls)
            .await?
            .into_iter()
            .map(Reply::rewritten)
            .collect()
    }

    async fn enrol(&self, worker: Worker, length: Duration) -> Result<Vec<Peer>, Error> {
        let replies = self
            .run(vec![Call::enrol(self.keyspace.workers(), worker, length)])
            .await?;
        replies
            .into_iter()
            .next()
            .map_or(Ok(Vec::new()), Reply::peers)
    }

    async fn resign(&self, worker: Worker) -> Result<(), Error> {
        self.run(vec![Call::resign(self.keyspace.workers(), worker)])
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
