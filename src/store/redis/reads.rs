//! Reads of positions and runs. A list takes two calls: a script must get its keys with the call,
//! and only `counts` tells which slices a shard has. The second call checks that there are no others.

use super::key::{self, Keys, Keyspace};
use super::reply::{Reply, text};
use super::script::Call;
use super::{Redis, codec};
use crate::model::{Progress, ShardId, Slice};
use crate::store::{Error, Fetch, List, Listed, ShardPosition, SliceCount};
use bytes::Bytes;
use redis::{Pipeline, Value};

/// How often a list starts again because a shard got a slice meanwhile: about one per minute.
const LIST_ATTEMPTS_MAX: u32 = 10;

impl Redis {
    pub(super) async fn read_positions(
        &self,
        shards: &[ShardId],
    ) -> Result<Vec<Option<ShardPosition>>, Error> {
        let mut pipeline = Pipeline::new();
        for shard in shards {
            let meta = self.keyspace.shard_keys(shard).name(key::META);
            let fields = ["version", "watermark", "delivered", "history"];
            pipeline.cmd("HMGET").arg(meta).arg(&fields);
        }
        let values = self.connections.send(&pipeline).await?;
        Ok(values.into_iter().map(parse_position).collect())
    }

    /// Lists again if a shard got a slice between the two calls.
    pub(super) async fn list_runs(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        for _ in 0..LIST_ATTEMPTS_MAX {
            if let Some(listed) = self.try_list_runs(requests).await? {
                return Ok(listed);
            }
        }
        Err(Error::Unavailable(
            "new runs of a shard arrive faster than they can be listed; the next call tries again"
                .to_owned(),
        ))
    }

    /// `None`: a shard has a slice that was not known in time.
    async fn try_list_runs(&self, requests: &[List]) -> Result<Option<Vec<Listed>>, Error> {
        let state = |keyspace: &Keyspace, list: &List| Call::state(keyspace, &list.shard);
        let states = self.call_each(requests, state, Reply::known_state).await?;
        let mut calls = Vec::with_capacity(requests.len());
        let mut read = Vec::with_capacity(requests.len());
        for (request, state) in requests.iter().zip(states) {
            read.push(state.map(|state| {
                let slices = slices_to_read(request, &state.slices);
                calls.push(Call::list(&self.keyspace, request, &state.slices, &slices));
                slices
            }));
        }
        let mut replies = self.run(&calls).await?.into_iter();
        let mut listed = Vec::with_capacity(requests.len());
        for (request, slices) in requests.iter().zip(read) {
            let called = slices.and_then(|slices| Some((slices, replies.next()?)));
            listed.push(match called {
                None => Listed::Unknown,
                Some((_, reply)) if reply.tag == "new_slices" => return Ok(None),
                Some((slices, reply)) => reply.listed(&slices, request.limit())?,
            });
        }
        Ok(Some(listed))
    }

    pub(super) async fn fetch_runs(
        &self,
        requests: &[Fetch],
    ) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        let shards: Vec<(Keys, &Fetch)> = requests
            .iter()
            .map(|request| (self.keyspace.shard_keys(&request.shard), request))
            .collect();
        let runs = || {
            shards.iter().flat_map(|(keys, request)| {
                let runs = request.runs.iter();
                runs.map(move |(slice, name)| (keys, *slice, name))
            })
        };
        let mut pipeline = Pipeline::new();
        for (keys, slice, name) in runs() {
            pipeline
                .cmd("HGET")
                .arg(keys.pool(slice))
                .arg(name.as_str());
        }
        let values = self.connections.send(&pipeline).await?.into_iter();
        // A pool of another type counts as empty.
        let mut fetched: Vec<Option<Bytes>> = values.map(bytes).collect();

        // A run without bytes is gone, or it is lost: then the index still lists it. A lost run
        // gets empty bytes, so that the timer quarantines it instead of fetching it again. The bytes
        // are read again: after a failover, this server may have others than the one before.
        let mut pipeline = Pipeline::new();
        for ((keys, slice, name), _) in runs().zip(&fetched).filter(|(_, bytes)| bytes.is_none()) {
            pipeline
                .cmd("HGET")
                .arg(keys.pool(slice))
                .arg(name.as_str());
            pipeline
                .cmd("ZSCORE")
                .arg(keys.slice(slice))
                .arg(codec::index_member(name));
        }
        let mut again = self.connections.send(&pipeline).await?.into_iter();
        for missing in fetched.iter_mut().filter(|bytes| bytes.is_none()) {
            let (found, score) = (again.next().and_then(bytes), again.next());
            let is_listed = matches!(score, Some(Value::BulkString(_)));
            *missing = found.or_else(|| is_listed.then(Bytes::new));
        }
        let mut fetched = fetched.into_iter();
        let answers = requests
            .iter()
            .map(|request| fetched.by_ref().take(request.runs.len()).collect());
        Ok(answers.collect())
    }
}

/// `None`: absent, or a value of another type.
pub(super) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(Bytes::from(bytes)),
        _ => None,
    }
}

/// The slices that may hold a listed run, ordered by their least due.
pub(super) fn slices_to_read(request: &List, known: &[SliceCount]) -> Vec<Slice> {
    let known = known.iter().map(|count| count.slice);
    let mut slices: Vec<Slice> = known.filter(|slice| may_hold(*slice, request)).collect();
    slices.sort_by_key(|slice| (slice.least_due(), *slice));
    slices
}

fn may_hold(slice: Slice, request: &List) -> bool {
    let is_over = slice.end().is_some_and(|end| end <= request.from);
    slice.least_due() <= request.until && !is_over
}

/// `None`: no shard that this layout version can read.
fn parse_position(value: Value) -> Option<ShardPosition> {
    let Value::Array(values) = value else {
        return None;
    };
    let mut fields = values.into_iter().map(text);
    if fields.next()?? != key::LAYOUT_VERSION {
        return None;
    }
    Some(ShardPosition {
        watermark: codec::parse_watermark(&fields.next()??)?,
        delivered: Progress::from_hex(&fields.next()??)?,
        lineage: codec::parse_lineage(&fields.next()?.unwrap_or_default()),
    })
}
