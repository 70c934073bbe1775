//! All shards of the deployment, and the calls that change them.
//!
//! A call changes the memory at once, and the disk with the next commit. No caller gets an answer
//! before that. A commit that fails ends this value: the writer loads a new one from disk.

use super::codec;
use super::data_dir::Tables;
use super::disk_space::DiskSpace;
use super::error::{CallError, explain, unavailable};
use super::key::{self, Key, ShardNumber};
use super::shard::Shard;
use super::write_batch::{Table, WriteBatch};
use crate::clock::Clock;
use crate::limit;
use crate::model::{Lease, ShardId, WorkerId};
use crate::store::rules::{LeaseHolder, LiveWorkers};
use crate::store::{
    Acquired, Advance, Advanced, Append, Appended, Error, LiveWorker, NewShard, Opened, Quarantine,
    Renewed, ReplaceRuns, Replaced, ShardContents, ShardPosition, StoredShard, Tail, Tailed,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub(super) struct Context {
    pub(super) deployment: Arc<str>,
    pub(super) clock: Arc<dyn Clock + Send + Sync>,
    pub(super) disk: DiskSpace,
}

pub(super) struct Shards {
    context: Context,
    shards: BTreeMap<ShardId, Entry>,
    /// Number of the next new shard.
    next: ShardNumber,
    /// Numbers of erased shards that may still have rows.
    garbage: Vec<ShardNumber>,
    /// Not on disk: every live worker sends its next heartbeat soon.
    workers: LiveWorkers,
    batch: WriteBatch,
    /// The first disk error since the last commit. The commit returns it.
    failed: Option<Error>,
}

enum Entry {
    Loaded(Box<Shard>),
    /// The text describes the data found instead.
    Incompatible(String),
}

impl Shards {
    /// Reads the shards of the deployment. `leases` are the leases of the value before this one.
    pub(super) fn load(
        tables: Tables,
        context: Context,
        leases: &BTreeMap<ShardId, LeaseHolder>,
    ) -> fjall::Result<Self> {
        let batch = WriteBatch::new(tables);
        let next = batch
            .get(Key::Next)?
            .and_then(|value| Some(ShardNumber::from_be_bytes(value[..].try_into().ok()?)));
        let garbage = batch
            .rows_with(&key::all_garbage())?
            .iter()
            .filter_map(|(key, _)| key::garbage(key))
            .collect();
        let mut shards = BTreeMap::new();
        for (key, value) in batch.rows_with(&key::all_metas(&context.deployment))? {
            let Some(id) = key::shard(&key) else {
                tracing::error!(
                    "the embedded store holds a shard with an unreadable name: ignoring it"
                );
                continue;
            };
            let loaded = match codec::to_meta(&value) {
                Some(row) => Shard::load(row, &batch)?,
                None => Err("positions that cannot be read"),
            };
            let entry = match loaded {
                Ok(mut shard) => {
                    shard.lease = leases.get(&id).copied().unwrap_or_default();
                    Entry::Loaded(Box::new(shard))
                }
                Err(found) => Entry::Incompatible(incompatible(&id, found)),
            };
            shards.insert(id, entry);
        }
        Ok(Self {
            context,
            shards,
            next: next.unwrap_or(1),
            garbage,
            workers: LiveWorkers::default(),
            batch,
            failed: None,
        })
    }

    /// Runs a call. Its result is valid only after a successful commit.
    pub(super) fn attempt<A>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<A, CallError>,
    ) -> Result<A, Error> {
        call(self).map_err(|error| match error {
            CallError::Full => Error::Full,
            CallError::Disk(error) => self
                .failed
                .get_or_insert_with(|| unavailable(&error))
                .clone(),
        })
    }

    /// True if another call fits into the same commit.
    pub(super) fn has_room(&self) -> bool {
        self.failed.is_none() && self.batch.size() < limit::EMBEDDED_COMMIT_BYTES_MAX
    }

    /// Writes all changes in one step and waits until they are on disk. After an error this value
    /// must not be used again.
    pub(super) fn commit(&mut self) -> Result<(), Error> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        self.batch.commit().map_err(|error| {
            tracing::error!(
                error = explain(&error),
                "the embedded store cannot write: opening the folder again"
            );
            unavailable(&error)
        })
    }

    pub(super) fn leases(&self) -> BTreeMap<ShardId, LeaseHolder> {
        self.loaded()
            .map(|(id, shard)| (id.clone(), shard.lease))
            .collect()
    }

    fn loaded(&self) -> impl Iterator<Item = (&ShardId, &Shard)> {
        self.shards.iter().filter_map(|(id, entry)| match entry {
            Entry::Loaded(shard) => Some((id, &**shard)),
            Entry::Incompatible(_) => None,
        })
    }

    /// Number and bytes of all runs.
    pub(super) fn size(&self) -> (u64, u64) {
        self.loaded()
            .map(|(_, shard)| shard.size())
            .fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }

    /// All shards, readable or not.
    pub(super) fn names(&self) -> Vec<ShardId> {
        self.shards.keys().cloned().collect()
    }

    fn shard(&mut self, id: &ShardId) -> Option<&mut Shard> {
        match self.shards.get_mut(id) {
            Some(Entry::Loaded(shard)) => Some(shard),
            _ => None,
        }
    }

    /// Reads one value of each shard. `None`: unknown shard.
    fn read_each<A>(&mut self, ids: &[ShardId], read: impl Fn(&Shard) -> A) -> Vec<Option<A>> {
        ids.iter()
            .map(|id| self.shard(id).map(|shard| read(shard)))
            .collect()
    }

    /// Changes the shard of each request, and writes its meta row if it changed.
    fn change_each<R, A>(
        &mut self,
        requests: &[R],
        id: impl Fn(&R) -> &ShardId,
        unknown: impl Fn() -> A,
        change: impl Fn(&mut Shard, &R, &mut WriteBatch) -> fjall::Result<A>,
    ) -> Result<Vec<A>, CallError> {
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            let id = id(request);
            let Some(Entry::Loaded(shard)) = self.shards.get_mut(id) else {
                outcomes.push(unknown());
                continue;
            };
            let before = shard.meta.clone();
            outcomes.push(change(shard, request, &mut self.batch)?);
            if shard.meta != before {
                shard.write_meta(&self.context.deployment, id, &mut self.batch);
            }
        }
        Ok(outcomes)
    }

    /// Fails if the call adds data and the disk is full.
    fn check_space(&self, adds_data: bool) -> Result<(), CallError> {
        if adds_data && self.context.disk.is_full() {
            Err(CallError::Full)
        } else {
            Ok(())
        }
    }

    pub(super) fn open(&mut self, new: &[NewShard]) -> Result<Vec<Opened>, CallError> {
        let creates = new.iter().any(|new| !self.shards.contains_key(&new.shard));
        self.check_space(creates)?;
        let opened = new.iter().map(|new| match self.shards.get(&new.shard) {
            Some(Entry::Loaded(shard)) => Opened::Existing(shard.state()),
            Some(Entry::Incompatible(found)) => Opened::Incompatible(found.clone()),
            None => Opened::Created(self.create(new)),
        });
        Ok(opened.collect())
    }

    fn create(&mut self, new: &NewShard) -> StoredShard {
        let shard = Shard::new(new, self.next);
        self.next += 1;
        self.batch.put(Key::Next, self.next.to_be_bytes().to_vec());
        shard.write_meta(&self.context.deployment, &new.shard, &mut self.batch);
        let state = shard.state();
        self.shards
            .insert(new.shard.clone(), Entry::Loaded(Box::new(shard)));
        state
    }

    pub(super) fn append(&mut self, appends: &[Append]) -> Result<Vec<Appended>, CallError> {
        self.check_space(!appends.is_empty())?;
        self.change_each(
            appends,
            |append| &append.shard,
            || Appended::Unknown,
            Shard::append,
        )
    }

    pub(super) fn state(
        &mut self,
        shards: &[ShardId],
    ) -> Result<Vec<Option<StoredShard>>, CallError> {
        Ok(self.read_each(shards, Shard::state))
    }

    pub(super) fn positions(
        &mut self,
        shards: &[ShardId],
    ) -> Result<Vec<Option<ShardPosition>>, CallError> {
        Ok(self.read_each(shards, |shard| shard.meta.position()))
    }

    pub(super) fn contents(&mut self, shards: &[ShardId]) -> Result<Vec<ShardContents>, CallError> {
        let contents = self.read_each(shards, Shard::contents).into_iter();
        Ok(contents.map(Option::unwrap_or_default).collect())
    }

    /// The runs come without bytes.
    pub(super) fn tail(&mut self, requests: &[Tail]) -> Result<Vec<Tailed>, CallError> {
        let tails = requests.iter().map(|request| {
            self.shard(&request.shard)
                .map_or(Tailed::Unknown, |shard| shard.read_tail(request))
        });
        Ok(tails.collect())
    }

    pub(super) fn advance(&mut self, requests: &[Advance]) -> Result<Vec<Advanced>, CallError> {
        let now = self.context.clock.now();
        self.change_each(
            requests,
            |request| &request.lease.shard,
            || Advanced::Unknown,
            |shard, request, batch| shard.advance(request, now, batch),
        )
    }

    pub(super) fn quarantine(&mut self, requests: &[Quarantine]) -> Result<Vec<usize>, CallError> {
        self.change_each(
            requests,
            |request| &request.lease.shard,
            || 0,
            Shard::quarantine,
        )
    }

    pub(super) fn replace_runs(
        &mut self,
        requests: &[ReplaceRuns],
    ) -> Result<Vec<Replaced>, CallError> {
        self.check_space(!requests.is_empty())?;
        self.change_each(
            requests,
            |request| &request.lease.shard,
            || Replaced::Unknown,
            Shard::replace_runs,
        )
    }

    pub(super) fn acquire(
        &mut self,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Acquired>, CallError> {
        let now = self.context.clock.now();
        let outcomes = leases.iter().map(|lease| {
            self.shard(&lease.shard).map_or(Acquired::Unknown, |shard| {
                shard.acquire(lease.token, length, now)
            })
        });
        Ok(outcomes.collect())
    }

    pub(super) fn renew(
        &mut self,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Renewed>, CallError> {
        let now = self.context.clock.now();
        let outcomes = leases.iter().map(|lease| {
            self.shard(&lease.shard).map_or(Renewed::Unknown, |shard| {
                shard.renew(lease.token, length, now)
            })
        });
        Ok(outcomes.collect())
    }

    pub(super) fn release(&mut self, leases: &[Lease]) -> Result<(), CallError> {
        for lease in leases {
            if let Some(shard) = self.shard(&lease.shard) {
                shard.lease.release(lease.token);
            }
        }
        Ok(())
    }

    pub(super) fn heartbeat_worker(
        &mut self,
        worker: WorkerId,
        length: Duration,
    ) -> Vec<LiveWorker> {
        let now = self.context.clock.now();
        self.workers.heartbeat(worker, length, now)
    }

    pub(super) fn remove_worker(&mut self, worker: WorkerId) {
        self.workers.remove(worker);
    }

    /// Removes the meta rows, so that no other row is found any more. The other rows are deleted
    /// later. The rows of an unreadable shard are never deleted, because their number is unknown.
    pub(super) fn erase(&mut self, shards: &[ShardId]) -> Result<(), CallError> {
        for id in shards {
            match self.shards.remove(id) {
                Some(Entry::Loaded(shard)) => {
                    self.batch.put(Key::Garbage(shard.number()), Vec::new());
                    self.garbage.push(shard.number());
                }
                Some(Entry::Incompatible(_)) => {}
                None => continue,
            }
            self.batch.remove(Key::Meta {
                deployment: &self.context.deployment,
                shard: id,
            });
        }
        Ok(())
    }

    pub(super) fn has_garbage(&self) -> bool {
        !self.garbage.is_empty()
    }

    /// Deletes some rows of an erased shard. Sees only rows on disk, so the batch must be empty.
    pub(super) fn delete_garbage(&mut self) -> Result<(), CallError> {
        let Some(&number) = self.garbage.last() else {
            return Ok(());
        };
        let rows_max = limit::EMBEDDED_ERASED_ROWS_PER_COMMIT_MAX;
        let mut found = 0;
        for prefix in key::all_of_a_shard(number) {
            let is_run = prefix == key::all_runs(number);
            for key in self
                .batch
                .committed_keys(Table::Index, &prefix, rows_max - found)?
            {
                if let Some((slice, name)) = key::named(&key).filter(|_| is_run) {
                    self.batch.remove(Key::Bytes(number, slice, &name));
                }
                self.batch.remove_raw(key);
                found += 1;
            }
        }
        let prefix = key::all_quarantined(number);
        for key in self
            .batch
            .committed_keys(Table::Pool, &prefix, rows_max - found)?
        {
            if let Some(name) = key::quarantined(&key) {
                self.batch.remove(Key::Quarantined(number, &name));
            }
            found += 1;
        }
        if found == 0 {
            self.batch.remove(Key::Garbage(number));
            self.garbage.pop();
        }
        Ok(())
    }
}

fn incompatible(shard: &ShardId, found: &str) -> String {
    format!(
        "under {shard} the embedded store holds {found}: stop the service and erase the shard \
         (`postdate reset`); its messages are then read again from the source, as far as the \
         source retains them"
    )
}
