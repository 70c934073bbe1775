//! All shards of the deployment, in memory.
//!
//! A call changes the memory at once, and the disk with the next commit. No caller gets an answer
//! before that. After a commit that failed, the shards are loaded again from disk.

use super::codec;
use super::key::{self, ShardNumber};
use super::shard::{NEWER_SLICE, Shard};
use super::tables::{Tables, WriteBatch};
use crate::model::ShardId;
use crate::store::rules::Sessions;
use crate::store::{CopyNumber, Error, NewShard, Opened, StoredShard, begun_copy};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) struct Shards {
    deployment: Arc<str>,
    shards: BTreeMap<ShardId, Entry>,
    next: ShardNumber,
    /// Not on disk: only this process has one.
    pub(super) sessions: Sessions,
    /// The number of rows of requests with an idempotency key. `None`: not counted yet.
    pub(super) requests: Option<usize>,
}

pub(super) enum Entry {
    Loaded(Box<Shard>),
    /// This process copies it from another store.
    Copying(Box<Shard>, CopyNumber),
    /// Its copy was interrupted.
    Interrupted(ShardNumber),
    Incompatible {
        /// Describes the data found instead.
        text: String,
        /// `None` if the meta row is unreadable.
        number: Option<ShardNumber>,
    },
}

impl Shards {
    pub(super) fn new(deployment: Arc<str>) -> Self {
        Self {
            deployment,
            shards: BTreeMap::new(),
            next: 1,
            sessions: Sessions::default(),
            requests: None,
        }
    }

    /// Reads the shards from disk. The sessions and the leases of `self` stay, because their holder
    /// is this process.
    pub(super) fn reload(&self, tables: &Tables) -> fjall::Result<Self> {
        let mut loaded = Self::new(self.deployment.clone());
        loaded.sessions = self.sessions.clone();
        if let Some(next) = tables.index.get(key::NEXT)? {
            loaded.next = next[..].try_into().map_or(1, ShardNumber::from_be_bytes);
        }
        for row in tables.rows(&key::all_metas(&self.deployment)) {
            let (key, value) = row?;
            let Some(id) = key::to_shard(&key) else {
                tracing::error!(
                    key = %key.escape_ascii(),
                    "the embedded store holds a shard with an unreadable name: ignoring it"
                );
                continue;
            };
            if let Some(number) = codec::to_unfinished_copy(&value) {
                loaded.shards.insert(id, Entry::Interrupted(number));
                continue;
            }
            let meta = codec::to_meta(&value);
            let number = meta.as_ref().map(|(number, _)| *number);
            let shard = match meta {
                Some((number, meta)) => Shard::load(number, meta, tables)?,
                None => Err("positions that cannot be read"),
            };
            let entry = match shard {
                Ok(mut shard) => {
                    if let Some(Entry::Loaded(before)) = self.shards.get(&id) {
                        shard.lease = before.lease;
                    }
                    Entry::Loaded(Box::new(shard))
                }
                Err(found) => Entry::Incompatible {
                    text: incompatible(&id, found),
                    number,
                },
            };
            loaded.shards.insert(id, entry);
        }
        Ok(loaded)
    }

    /// Number and bytes of all runs.
    pub(super) fn size(&self) -> (u64, u64) {
        let sizes = self.shards.values().filter_map(|entry| match entry {
            Entry::Loaded(shard) | Entry::Copying(shard, _) => Some(shard.size()),
            Entry::Interrupted(_) | Entry::Incompatible { .. } => None,
        });
        sizes.fold((0, 0), |sum, size| (sum.0 + size.runs, sum.1 + size.bytes))
    }

    pub(super) fn names(&self) -> Vec<ShardId> {
        self.shards.keys().cloned().collect()
    }

    /// `None`: unknown shard.
    pub(super) fn get(&self, id: &ShardId) -> Option<&Shard> {
        match self.shards.get(id) {
            Some(Entry::Loaded(shard)) => Some(shard),
            _ => None,
        }
    }

    /// Changes one shard, and writes its meta row if it changed. `None`: unknown shard.
    pub(super) fn change<A>(
        &mut self,
        id: &ShardId,
        batch: &mut WriteBatch<'_>,
        change: impl FnOnce(&mut Shard, &mut WriteBatch<'_>) -> fjall::Result<A>,
    ) -> fjall::Result<Option<A>> {
        let Some(Entry::Loaded(shard)) = self.shards.get_mut(id) else {
            return Ok(None);
        };
        let before = shard.meta.clone();
        let outcome = change(shard, batch)?;
        if shard.meta.hold != before.hold {
            shard.write_hold(batch);
        }
        if shard.meta.pause != before.pause {
            shard.write_pause(batch);
        }
        if shard.meta != before {
            shard.write_meta(&self.deployment, id, batch);
        }
        Ok(Some(outcome))
    }

    pub(super) fn open(
        &mut self,
        new: &[NewShard],
        batch: &mut WriteBatch<'_>,
        is_full: bool,
    ) -> Result<Vec<Opened>, Error> {
        let is_created = |new: &NewShard| new.creates && !self.shards.contains_key(&new.shard);
        if is_full && new.iter().any(is_created) {
            return Err(Error::Full);
        }
        let opened = new.iter().map(|new| match self.shards.get_mut(&new.shard) {
            Some(Entry::Loaded(shard)) => {
                shard.extend_possibly_delivered(new.possibly_delivered, batch);
                shard.learn_pause(new.pause.as_ref(), batch);
                Opened::Existing(shard.state())
            }
            Some(Entry::Incompatible { text, .. }) => Opened::Incompatible(text.clone()),
            Some(Entry::Copying(..) | Entry::Interrupted(_)) => {
                Opened::Incompatible(begun_copy(&new.shard.to_string()))
            }
            None if !new.creates => Opened::Absent,
            None => Opened::Created(self.create(new, batch)),
        });
        Ok(opened.collect())
    }

    fn create(&mut self, new: &NewShard, batch: &mut WriteBatch<'_>) -> StoredShard {
        let shard = Shard::new(new, self.take_number(batch));
        shard.write_meta(&self.deployment, &new.shard, batch);
        shard.write_hold(batch);
        shard.write_possibly_delivered(batch);
        shard.write_pause(batch);
        let state = shard.state();
        self.shards
            .insert(new.shard.clone(), Entry::Loaded(Box::new(shard)));
        state
    }

    /// The number of a new shard.
    pub(super) fn take_number(&mut self, batch: &mut WriteBatch<'_>) -> ShardNumber {
        let number = self.next;
        self.next += 1;
        batch.put(key::NEXT.to_vec(), self.next.to_be_bytes().to_vec());
        number
    }

    pub(super) fn deployment(&self) -> &str {
        &self.deployment
    }

    pub(super) fn entry(&self, id: &ShardId) -> Option<&Entry> {
        self.shards.get(id)
    }

    pub(super) fn entry_mut(&mut self, id: &ShardId) -> Option<&mut Entry> {
        self.shards.get_mut(id)
    }

    /// Takes the shard that this copy writes.
    pub(super) fn take_copying(&mut self, id: &ShardId, copy: CopyNumber) -> Option<Box<Shard>> {
        match self.shards.remove(id)? {
            Entry::Copying(shard, by) if by == copy => Some(shard),
            other => {
                self.shards.insert(id.clone(), other);
                None
            }
        }
    }

    pub(super) fn insert(&mut self, id: &ShardId, entry: Entry) {
        self.shards.insert(id.clone(), entry);
    }

    /// Removes the meta rows, so that no other row is found any more. [`Tables::delete_garbage`]
    /// deletes the other rows, unless the meta row was unreadable: then their number is unknown.
    pub(super) fn erase(&mut self, shards: &[ShardId], batch: &mut WriteBatch<'_>) {
        for id in shards {
            let Some(entry) = self.shards.remove(id) else {
                continue;
            };
            let number = match entry {
                Entry::Loaded(shard) | Entry::Copying(shard, _) => Some(shard.number()),
                Entry::Interrupted(number) => Some(number),
                Entry::Incompatible { number, .. } => number,
            };
            if let Some(number) = number {
                batch.put(key::garbage(number), Vec::new());
            }
            batch.remove(key::meta(&self.deployment, id));
        }
    }
}

fn incompatible(shard: &ShardId, found: &str) -> String {
    if found == NEWER_SLICE {
        return format!(
            "under {shard} the embedded store holds {found}, which this version does not know: run \
             the newer version"
        );
    }
    format!(
        "under {shard} the embedded store holds {found}: stop the service and erase the shard \
         (`postdate reset`); its messages are then read again from the source, as far as the \
         source retains them"
    )
}
