//! The rows of a folder, and what is about to be written to them: whoever reads here sees the changes of earlier calls of the same commit.
//! Decides nothing.

use super::data_dir::Tables;
use super::key::Key;
use bytes::Bytes;
use fjall::{PersistMode, Readable};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// New values by key; `None`: deleted.
type Changes = BTreeMap<Vec<u8>, Option<Bytes>>;

/// See the module's page.
pub(super) struct WriteBatch {
    rows: Tables,
    index: Changes,
    pool: Changes,
    size: usize,
}

impl WriteBatch {
    pub(super) fn new(rows: Tables) -> Self {
        Self {
            rows,
            index: Changes::new(),
            pool: Changes::new(),
            size: 0,
        }
    }

    /// Bytes that are waiting to be written, by and large.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn put(&mut self, key: Key<'_>, value: impl Into<Bytes>) {
        self.change(key, Some(value.into()));
    }

    pub(super) fn remove(&mut self, key: Key<'_>) {
        self.change(key, None);
    }

    fn change(&mut self, key: Key<'_>, value: Option<Bytes>) {
        let changes = if key.is_in_pool() {
            &mut self.pool
        } else {
            &mut self.index
        };
        let key = key.to_bytes();
        self.size += key.len() + value.as_ref().map_or(0, Bytes::len);
        changes.insert(key, value);
    }

    /// Deletes an index row by its whole key.
    pub(super) fn remove_raw(&mut self, key: Vec<u8>) {
        self.size += key.len();
        self.index.insert(key, None);
    }

    pub(super) fn get(&self, key: Key<'_>) -> fjall::Result<Option<Bytes>> {
        let (changes, keyspace) = if key.is_in_pool() {
            (&self.pool, &self.rows.pool)
        } else {
            (&self.index, &self.rows.index)
        };
        let key = key.to_bytes();
        match changes.get(&key) {
            Some(change) => Ok(change.clone()),
            None => Ok(keyspace.get(&key)?.map(Bytes::from)),
        }
    }

    /// The keys of the index rows in `range`, in their order.
    pub(super) fn keys(&self, range: RangeInclusive<Vec<u8>>) -> fjall::Result<BTreeSet<Vec<u8>>> {
        let mut keys = BTreeSet::new();
        if range.is_empty() {
            return Ok(keys);
        }
        for row in self.rows.index.range(range.clone()) {
            keys.insert(row.key()?.to_vec());
        }
        for (key, change) in self.index.range(range) {
            if change.is_some() {
                keys.insert(key.clone());
            } else {
                keys.remove(key);
            }
        }
        Ok(keys)
    }

    /// The first so many keys with that prefix, of what has been written.
    pub(super) fn written(
        &self,
        prefix: &[u8],
        of_pool: bool,
        limit: usize,
    ) -> fjall::Result<Vec<Vec<u8>>> {
        let keyspace = if of_pool {
            &self.rows.pool
        } else {
            &self.rows.index
        };
        self.rows
            .db
            .snapshot()
            .prefix(keyspace, prefix)
            .take(limit)
            .map(|row| Ok(row.key()?.to_vec()))
            .collect()
    }

    /// The index rows with that prefix, of what has been written.
    pub(super) fn rows_with(&self, prefix: &[u8]) -> fjall::Result<Vec<(Vec<u8>, Bytes)>> {
        let rows = self.rows.index.prefix(prefix);
        rows.map(|row| {
            row.into_inner()
                .map(|(key, value)| (key.to_vec(), Bytes::from(value)))
        })
        .collect()
    }

    /// Writes everything in one step, and returns when it is on disk. After an error nothing is known of it.
    pub(super) fn commit(&mut self) -> fjall::Result<()> {
        let (index, pool) = (
            std::mem::take(&mut self.index),
            std::mem::take(&mut self.pool),
        );
        self.size = 0;
        if index.is_empty() && pool.is_empty() {
            return Ok(());
        }
        self.rows.wait_until_flushed()?;
        let mut batch = self.rows.db.batch().durability(Some(PersistMode::SyncAll));
        for (changes, keyspace) in [(index, &self.rows.index), (pool, &self.rows.pool)] {
            for (key, value) in changes {
                match value {
                    Some(value) => batch.insert(keyspace, key, value),
                    None => batch.remove(keyspace, key),
                }
            }
        }
        batch.commit()
    }
}
