//! All shards of a deployment, and the calls that change them. What a call changes is in memory at once, on disk with the next commit, and
//! told to nobody before; a commit that fails makes an end of the whole registry, and the next one begins from what is on disk.

use super::draft::Draft;
use super::fault::{Fault, describe, unavailable};
use super::folder::Rows;
use super::form;
use super::key::{self, Key, Number};
use super::room::Room;
use super::shard::Shard;
use crate::clock::Clock;
use crate::limit;
use crate::model::{Lease, ShardId, Worker};
use crate::store::roll::Roll;
use crate::store::shard::Holder;
use crate::store::{
    Acquired, Advance, Advanced, Append, Appended, Birth, Contents, Error, Glance, Opened, Peer,
    Quarantine, Renewed, Rewrite, Rewritten, State, Tail, Tailed,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a registry needs besides the rows.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) deployment: Arc<str>,
    pub(super) clock: Arc<dyn Clock + Send + Sync>,
    pub(super) room: Room,
}

/// See the module's page.
pub(super) struct Registry {
    here: Surroundings,
    shards: BTreeMap<ShardId, Entry>,
    /// The number of the next birth.
    next: Number,
    /// Numbers of erased shards, of which there may be rows.
    garbage: Vec<Number>,
    /// Not kept on disk, nor through an error of it: whoever lives says so again.
    roll: Roll,
    draft: Draft,
    failed: Option<Error>,
}

enum Entry {
    Kept(Box<Shard>),
    /// Says what was found in its place.
    Foreign(String),
}

impl Registry {
    /// Reads what the folder knows of the deployment. The leases are those of the registry before it, in this same process.
    pub(super) fn load(
        rows: Rows,
        here: Surroundings,
        holders: &BTreeMap<ShardId, Holder>,
    ) -> fjall::Result<Self> {
        let draft = Draft::new(rows);
        let next = draft
            .get(Key::Next)?
            .and_then(|value| Some(Number::from_be_bytes(value[..].try_into().ok()?)));
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
            let loaded = match form::to_meta(&value) {
                Some(meta) => Shard::load(meta, &draft)?,
                None => Err("positions that cannot be read"),
            };
            let entry = match loaded {
                Ok(mut kept) => {
                    kept.holder = holders.get(&shard).copied().unwrap_or_default();
                    Entry::Kept(Box::new(kept))
                }
                Err(what) => Entry::Foreign(foreign(&shard, what)),
            };
            shards.insert(shard, entry);
        }
        Ok(Self {
            here,
            shards,
            next: next.unwrap_or(1),
            garbage,
            roll: Roll::default(),
            draft,
            failed: None,
        })
    }

    /// Does a call. The answer counts only after a commit that succeeded.
    pub(super) fn attempt<A>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<A, Fault>,
    ) -> Result<A, Error> {
        call(self).map_err(|fault| match fault {
            Fault::Full => Error::Full,
            Fault::Disk(error) => self
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
                    error = describe(&error),
                    "the embedded store could not write: it is opened anew"
                );
                unavailable(&error)
            }),
        }
    }

    pub(super) fn holders(&self) -> BTreeMap<ShardId, Holder> {
        self.kept()
            .map(|(id, shard)| (id.clone(), shard.holder))
            .collect()
    }

    fn kept(&self) -> impl Iterator<Item = (&ShardId, &Shard)> {
        self.shards.iter().filter_map(|(id, entry)| match entry {
            Entry::Kept(shard) => Some((id, &**shard)),
            Entry::Foreign(_) => None,
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

    pub(super) fn contents(&mut self, shards: &[ShardId]) -> Vec<Contents> {
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
            Some(Entry::Kept(shard)) => Some(shard),
            _ => None,
        }
    }

    /// Looks for room if the call needs any.
    fn check_room(&self, is_needed: bool) -> Result<(), Fault> {
        if is_needed && self.here.room.is_full() {
            Err(Fault::Full)
        } else {
            Ok(())
        }
    }

    pub(super) fn open(&mut self, births: &[Birth]) -> Result<Vec<Opened>, Fault> {
        self.check_room(
            births
                .iter()
                .any(|birth| !self.shards.contains_key(&birth.shard)),
        )?;
        let opened = births
            .iter()
            .map(|birth| match self.shards.get(&birth.shard) {
                Some(Entry::Kept(shard)) => Opened::Found(shard.state()),
                Some(Entry::Foreign(what)) => Opened::Foreign(what.clone()),
                None => Opened::Born(self.bear(birth)),
            });
        Ok(opened.collect())
    }

    fn bear(&mut self, birth: &Birth) -> State {
        let shard = Shard::born(birth, self.next);
        self.next += 1;
        self.draft.put(Key::Next, self.next.to_be_bytes().to_vec());
        shard.write(&self.here.deployment, &birth.shard, &mut self.draft);
        let state = shard.state();
        self.shards
            .insert(birth.shard.clone(), Entry::Kept(Box::new(shard)));
        state
    }

    pub(super) fn append(&mut self, appends: &[Append]) -> Result<Vec<Appended>, Fault> {
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
        change: impl FnOnce(&mut Shard, &mut Draft) -> fjall::Result<A>,
    ) -> Result<A, Fault> {
        let Some(Entry::Kept(shard)) = self.shards.get_mut(id) else {
            return Ok(unknown);
        };
        let before = shard.positions.clone();
        let answer = change(shard, &mut self.draft)?;
        if shard.positions != before {
            shard.write(&self.here.deployment, id, &mut self.draft);
        }
        Ok(answer)
    }

    pub(super) fn state(&mut self, shards: &[ShardId]) -> Vec<Option<State>> {
        shards
            .iter()
            .map(|id| self.shard(id).map(|shard| shard.state()))
            .collect()
    }

    pub(super) fn glance(&mut self, shards: &[ShardId]) -> Vec<Option<Glance>> {
        shards
            .iter()
            .map(|id| self.shard(id).map(|shard| shard.glance()))
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
                shard.holder.release(lease.token);
            }
        }
    }

    pub(super) fn enrol(&mut self, worker: Worker, length: Duration) -> Vec<Peer> {
        let now = self.here.clock.now();
        self.roll.enrol(worker, length, now)
    }

    pub(super) fn resign(&mut self, worker: Worker) {
        self.roll.resign(worker);
    }

    /// The runs come without their bytes.
    pub(super) fn tail(&mut self, requests: &[Tail]) -> Vec<Tailed> {
        let tailed = requests
            .iter()
            .map(|request| match self.shard(&request.shard) {
                Some(shard) => {
                    shard
                        .recent
                        .read(request, shard.positions.watermark, shard.positions.history)
                }
                None => Tailed::Unknown,
            });
        tailed.collect()
    }

    pub(super) fn advance(&mut self, requests: &[Advance]) -> Result<Vec<Advanced>, Fault> {
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

    pub(super) fn quarantine(&mut self, requests: &[Quarantine]) -> Result<Vec<usize>, Fault> {
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            outcomes.push(self.changed(&request.lease.shard, 0, |shard, draft| {
                shard.quarantine(request, draft)
            })?);
        }
        Ok(outcomes)
    }

    pub(super) fn rewrite(&mut self, requests: &[Rewrite]) -> Result<Vec<Rewritten>, Fault> {
        self.check_room(!requests.is_empty())?;
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            let id = &request.lease.shard;
            outcomes.push(self.changed(id, Rewritten::Unknown, |shard, draft| {
                shard.rewrite(request, draft)
            })?);
        }
        Ok(outcomes)
    }

    /// From here on nothing finds the shards' rows; they are deleted later, bit by bit. Of a shard that cannot be read nobody knows the
    /// rows: they are never deleted, and never found.
    pub(super) fn erase(&mut self, shards: &[ShardId]) {
        for id in shards {
            match self.shards.remove(id) {
                Some(Entry::Kept(shard)) => {
                    self.draft.put(Key::Garbage(shard.number()), Vec::new());
                    self.garbage.push(shard.number());
                }
                Some(Entry::Foreign(_)) => {}
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
    pub(super) fn clean(&mut self) -> Result<(), Fault> {
        let Some(&number) = self.garbage.last() else {
            return Ok(());
        };
        let most = limit::EMBEDDED_GARBAGE_ROWS_MAX;
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
                self.draft.remove(Key::Aside(number, &name));
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
