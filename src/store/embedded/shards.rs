//! All shards of a deployment, and the calls that change them. What a call changes is in memory at once, on disk with the next commit, and
//! told to nobody before; a commit that fails makes an end of the whole registry, and the next one begins from what is on disk.

use super::codec;
use super::data_dir::Tables;
use super::disk_space::DiskSpace;
use super::error::{CallError, explain, unavailable};
use super::key::{self, Key, ShardNumber};
use super::shard::Shard;
use super::write_batch::WriteBatch;
use crate::clock::Clock;
use crate::limit;
use crate::model::{Lease, ShardId, WorkerId};
use crate::store::rules::LeaseHolder;
use crate::store::rules::LiveWorkers;
use crate::store::{
    Acquired, Advance, Advanced, Append, Appended, Error, LiveWorker, NewShard, Opened, Quarantine,
    Renewed, ReplaceRuns, Replaced, ShardContents, ShardPosition, StoredShard, Tail, Tailed,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a registry needs besides the rows.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) deployment: Arc<str>,
    pub(super) clock: Arc<dyn Clock + Send + Sync>,
    pub(super) room: DiskSpace,
}

/// See the module's page.
pub(super) struct Shards {
    here: Context,
    shards: BTreeMap<ShardId, Entry>,
    /// The number of the next birth.
    next: ShardNumber,
    /// Numbers of erased shards, of which there may be rows.
    garbage: Vec<ShardNumber>,
    /// Not kept on disk, nor through an error of it: whoever lives says so again.
    roll: LiveWorkers,
    draft: WriteBatch,
    failed: Option<Error>,
}

enum Entry {
    Loaded(Box<Shard>),
    /// Says what was found in its place.
    Incompatible(String),
}

impl Shards {
    /// Reads what the folder knows of the deployment. The leases are those of the registry before it, in this same process.
    pub(super) fn load(
        rows: Tables,
        here: Context,
        holders: &BTreeMap<ShardId, LeaseHolder>,
    ) -> fjall::Result<Self> {
        let draft = WriteBatch::new(rows);
        let next = draft
            .get(Key::Next)?
            .and_then(|value| Some(ShardNumber::from_be_bytes(value[..].try_into().ok()?)));
        let garbage = draft
            .rows_with(&key::all_garbage())?
            .iter()
            .filter_map(|(key, _)| key::garbage(key))
            .collect();
        let mut shards = BTreeMap::new();
        for (key, value) in draft.rows_with(&key::all_metas(&here.deployment))? {
            let Some(shard) = key::shard(&key) else {
                tracing::error!(
                    "the embedded store holds a shard whose name cannot be read; it is left alone"
                );
                continue;
            };
            let loaded = match codec::to_meta(&value) {
                Some(meta) => Shard::load(meta, &draft)?,
                None => Err("positions that cannot be read"),
            };
            let entry = match loaded {
                Ok(mut kept) => {
                    kept.lease = holders.get(&shard).copied().unwrap_or_default();
                    Entry::Loaded(Box::new(kept))
                }
                Err(what) => Entry::Incompatible(foreign(&shard, what)),
            };
            shards.insert(shard, entry);
        }
        Ok(Self {
            here,
            shards,
            next: next.unwrap_or(1),
            garbage,
            roll: LiveWorkers::default(),
            draft,
            failed: None,
        })
    }

    /// Does a call. The answer counts only after a commit that succeeded.
    pub(super) fn attempt<A>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<A, CallError>,
    ) -> Result<A, Error> {
        call(self).map_err(|fault| match fault {
            CallError::Full => Error::Full,
            CallError::Disk(error) => self
                .failed
                .get_or_insert_with(|| unavailable(&error))
                .clone(),
        })
    }

    /// Whether another call can go into the same commit.
    pub(super) fn has_room(&self) -> bool {
        self.failed.is_none() && self.draft.size() < limit::EMBEDDED_COMMIT_BYTES_MAX
    }

    /// Writes all changes in one step, and returns when they are on disk. After an error the registry is not to be used again.
    pub(super) fn commit(&mut self) -> Result<(), Error> {
        match self.failed.take() {
            Some(failed) => Err(failed),
            None => self.draft.commit().map_err(|error| {
                tracing::error!(
                    error = explain(&error),
                    "the embedded store could not write: it is opened anew"
                );
                unavailable(&error)
            }),
        }
    }

    pub(super) fn holders(&self) -> BTreeMap<ShardId, LeaseHolder> {
        self.kept()
            .map(|(id, shard)| (id.clone(), shard.lease))
            .collect()
    }

    fn kept(&self) -> impl Iterator<Item = (&ShardId, &Shard)> {
        self.shards.iter().filter_map(|(id, entry)| match entry {
            Entry::Loaded(shard) => Some((id, &**shard)),
            Entry::Incompatible(_) => None,
        })
    }

    /// Runs and bytes of all shards.
    pub(super) fn size(&self) -> (u64, u64) {
        self.kept()
            .map(|(_, shard)| shard.size())
            .fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }

    /// All that is there, readable or not.
    pub(super) fn names(&self) -> Vec<ShardId> {
        self.shards.keys().cloned().collect()
    }

    pub(super) fn contents(&mut self, shards: &[ShardId]) -> Vec<ShardContents> {
        shards
            .iter()
            .map(|id| {
                self.shard(id)
                    .map(|shard| shard.contents())
                    .unwrap_or_default()
            })
            .collect()
    }

    fn shard(&mut self, id: &ShardId) -> Option<&mut Shard> {
        match self.shards.get_mut(id) {
            Some(Entry::Loaded(shard)) => Some(shard),
            _ => None,
        }
    }

    /// Looks for room if the call needs any.
    fn check_room(&self, is_needed: bool) -> Result<(), CallError> {
        if is_needed && self.here.room.is_full() {
            Err(CallError::Full)
        } else {
            Ok(())
        }
    }

    pub(super) fn open(&mut self, births: &[NewShard]) -> Result<Vec<Opened>, CallError> {
        self.check_room(
            births
                .iter()
                .any(|birth| !self.shards.contains_key(&birth.shard)),
        )?;
        let opened = births
            .iter()
            .map(|birth| match self.shards.get(&birth.shard) {
                Some(Entry::Loaded(shard)) => Opened::Existing(shard.state()),
                Some(Entry::Incompatible(what)) => Opened::Incompatible(what.clone()),
                None => Opened::Created(self.create(birth)),
            });
        Ok(opened.collect())
    }

    fn create(&mut self, birth: &NewShard) -> StoredShard {
        let shard = Shard::new(birth, self.next);
        self.next += 1;
        self.draft.put(Key::Next, self.next.to_be_bytes().to_vec());
        shard.write(&self.here.deployment, &birth.shard, &mut self.draft);
        let state = shard.state();
        self.shards
            .insert(birth.shard.clone(), Entry::Loaded(Box::new(shard)));
        state
    }

    pub(super) fn append(&mut self, appends: &[Append]) -> Result<Vec<Appended>, CallError> {
        self.check_room(!appends.is_empty())?;
        let mut outcomes = Vec::with_capacity(appends.len());
        for append in appends {
            outcomes.push(
                self.changed(&append.shard, Appended::Unknown, |shard, draft| {
                    shard.append(append, draft)
                })?,
            );
        }
        Ok(outcomes)
    }

    /// Lets `change` change a shard, and writes where it stands then.
    fn changed<A>(
        &mut self,
        id: &ShardId,
        unknown: A,
        change: impl FnOnce(&mut Shard, &mut WriteBatch) -> fjall::Result<A>,
    ) -> Result<A, CallError> {
        let Some(Entry::Loaded(shard)) = self.shards.get_mut(id) else {
            return Ok(unknown);
        };
        let before = shard.meta.clone();
        let answer = change(shard, &mut self.draft)?;
        if shard.meta != before {
            shard.write(&self.here.deployment, id, &mut self.draft);
        }
        Ok(answer)
    }

    pub(super) fn state(&mut self, shards: &[ShardId]) -> Vec<Option<StoredShard>> {
        shards
            .iter()
            .map(|id| self.shard(id).map(|shard| shard.state()))
            .collect()
    }

    pub(super) fn positions(&mut self, shards: &[ShardId]) -> Vec<Option<ShardPosition>> {
        shards
            .iter()
            .map(|id| self.shard(id).map(|shard| shard.position()))
            .collect()
    }

    pub(super) fn acquire(&mut self, leases: &[Lease], length: Duration) -> Vec<Acquired> {
        let now = self.here.clock.now();
        let acquire = |lease: &Lease| {
            self.shard(&lease.shard).map_or(Acquired::Unknown, |shard| {
                shard.acquire(lease.token, length, now)
            })
        };
        leases.iter().map(acquire).collect()
    }

    pub(super) fn renew(&mut self, leases: &[Lease], length: Duration) -> Vec<Renewed> {
        let now = self.here.clock.now();
        let renew = |lease: &Lease| {
            self.shard(&lease.shard).map_or(Renewed::Unknown, |shard| {
                shard.renew(lease.token, length, now)
            })
        };
        leases.iter().map(renew).collect()
    }

    pub(super) fn release(&mut self, leases: &[Lease]) {
        for lease in leases {
            if let Some(shard) = self.shard(&lease.shard) {
                shard.lease.release(lease.token);
            }
        }
    }

    pub(super) fn heartbeat_worker(
        &mut self,
        worker: WorkerId,
        length: Duration,
    ) -> Vec<LiveWorker> {
        let now = self.here.clock.now();
        self.roll.heartbeat(worker, length, now)
    }

    pub(super) fn remove_worker(&mut self, worker: WorkerId) {
        self.roll.remove(worker);
    }

    /// The runs come without their bytes.
    pub(super) fn tail(&mut self, requests: &[Tail]) -> Vec<Tailed> {
        let tailed = requests
            .iter()
            .map(|request| match self.shard(&request.shard) {
                Some(shard) => shard
                    .tail
                    .read(request, shard.meta.watermark, shard.meta.lineage),
                None => Tailed::Unknown,
            });
        tailed.collect()
    }

    pub(super) fn advance(&mut self, requests: &[Advance]) -> Result<Vec<Advanced>, CallError> {
        let now = self.here.clock.now();
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            let id = &request.lease.shard;
            outcomes.push(self.changed(id, Advanced::Unknown, |shard, draft| {
                shard.advance(request, now, draft)
            })?);
        }
        Ok(outcomes)
    }

    pub(super) fn quarantine(&mut self, requests: &[Quarantine]) -> Result<Vec<usize>, CallError> {
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            outcomes.push(self.changed(&request.lease.shard, 0, |shard, draft| {
                shard.quarantine(request, draft)
            })?);
        }
        Ok(outcomes)
    }

    pub(super) fn replace_runs(
        &mut self,
        requests: &[ReplaceRuns],
    ) -> Result<Vec<Replaced>, CallError> {
        self.check_room(!requests.is_empty())?;
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            let id = &request.lease.shard;
            outcomes.push(self.changed(id, Replaced::Unknown, |shard, draft| {
                shard.replace_runs(request, draft)
            })?);
        }
        Ok(outcomes)
    }

    /// From here on nothing finds the shards' rows; they are deleted later, bit by bit. Of a shard that cannot be read nobody knows the
    /// rows: they are never deleted, and never found.
    pub(super) fn erase(&mut self, shards: &[ShardId]) {
        for id in shards {
            match self.shards.remove(id) {
                Some(Entry::Loaded(shard)) => {
                    self.draft.put(Key::Garbage(shard.number()), Vec::new());
                    self.garbage.push(shard.number());
                }
                Some(Entry::Incompatible(_)) => {}
                None => continue,
            }
            self.draft.remove(Key::Meta {
                deployment: &self.here.deployment,
                shard: id,
            });
        }
    }

    pub(super) fn has_garbage(&self) -> bool {
        !self.garbage.is_empty()
    }

    /// Deletes some of what erased shards have left. Looks only at what is on disk, so nothing else may be waiting to be written.
    pub(super) fn delete_garbage(&mut self) -> Result<(), CallError> {
        let Some(&number) = self.garbage.last() else {
            return Ok(());
        };
        let most = limit::EMBEDDED_ERASED_ROWS_PER_COMMIT_MAX;
        let mut found = 0;
        for prefix in key::all_of_a_shard(number) {
            for key in self.draft.written(&prefix, false, most - found)? {
                if let Some((slice, name)) =
                    key::named(&key).filter(|_| prefix == key::all_runs(number))
                {
                    self.draft.remove(Key::Bytes(number, slice, &name));
                }
                self.draft.remove_raw(key);
                found += 1;
            }
        }
        for key in self
            .draft
            .written(&key::all_aside(number), true, most - found)?
        {
            if let Some(name) = key::aside(&key) {
                self.draft.remove(Key::Quarantined(number, &name));
            }
            found += 1;
        }
        if found == 0 {
            self.draft.remove(Key::Garbage(number));
            self.garbage.pop();
        }
        Ok(())
    }
}

fn foreign(shard: &ShardId, what: &str) -> String {
    format!(
        "under {shard} the embedded store holds {what}: stop the service and erase the shard (`postdate reset`); its messages are then \
         read again from the source as far as it retains them"
    )
}
