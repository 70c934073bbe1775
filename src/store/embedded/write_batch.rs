//! Changes of rows that wait for the next commit. Reads see the changes of earlier calls in the
//! same batch, so several calls can share one commit.

use super::data_dir::Tables;
use super::key::Key;
use bytes::Bytes;
use fjall::{Keyspace, PersistMode, Readable};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// New values by key. `None`: deleted.
type Changes = BTreeMap<Vec<u8>, Option<Bytes>>;

/// The two tables of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Index,
    Pool,
}

pub(super) struct WriteBatch {
    tables: Tables,
    index: Changes,
    pool: Changes,
    size: usize,
}

impl WriteBatch {
    pub(super) fn new(tables: Tables) -> Self {
        Self {
            tables,
            index: Changes::new(),
            pool: Changes::new(),
            size: 0,
        }
    }

    /// Approximate number of bytes that wait for the commit.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn put(&mut self, key: Key<'_>, value: impl Into<Bytes>) {
        self.change(key.table(), key.to_bytes(), Some(value.into()));
    }

    pub(super) fn remove(&mut self, key: Key<'_>) {
        self.change(key.table(), key.to_bytes(), None);
    }

    /// Deletes an index row by the bytes of its key.
    pub(super) fn remove_raw(&mut self, key: Vec<u8>) {
        self.change(Table::Index, key, None);
    }

    fn change(&mut self, table: Table, key: Vec<u8>, value: Option<Bytes>) {
        self.size += key.len() + value.as_ref().map_or(0, Bytes::len);
        let changes = match table {
            Table::Index => &mut self.index,
            Table::Pool => &mut self.pool,
        };
        changes.insert(key, value);
    }

    pub(super) fn get(&self, key: Key<'_>) -> fjall::Result<Option<Bytes>> {
        let changes = match key.table() {
            Table::Index => &self.index,
            Table::Pool => &self.pool,
        };
        let bytes = key.to_bytes();
        match changes.get(&bytes) {
            Some(change) => Ok(change.clone()),
            None => Ok(self.keyspace(key.table()).get(&bytes)?.map(Bytes::from)),
        }
    }

    /// The keys of the index rows in `range`, ordered.
    pub(super) fn keys(&self, range: RangeInclusive<Vec<u8>>) -> fjall::Result<BTreeSet<Vec<u8>>> {
        let mut keys = BTreeSet::new();
        if range.is_empty() {
            return Ok(keys);
        }
        for row in self.tables.index.range(range.clone()) {
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

    /// The first `limit` committed keys with this prefix. Ignores the changes of this batch.
    pub(super) fn committed_keys(
        &self,
        table: Table,
        prefix: &[u8],
        limit: usize,
    ) -> fjall::Result<Vec<Vec<u8>>> {
        self.tables
            .db
            .snapshot()
            .prefix(self.keyspace(table), prefix)
            .take(limit)
            .map(|row| Ok(row.key()?.to_vec()))
            .collect()
    }

    /// The committed index rows with this prefix. Ignores the changes of this batch.
    pub(super) fn rows_with(&self, prefix: &[u8]) -> fjall::Result<Vec<(Vec<u8>, Bytes)>> {
        let rows = self.tables.index.prefix(prefix).map(|row| {
            let (key, value) = row.into_inner()?;
            Ok((key.to_vec(), Bytes::from(value)))
        });
        rows.collect()
    }

    fn keyspace(&self, table: Table) -> &Keyspace {
        match table {
            Table::Index => &self.tables.index,
            Table::Pool => &self.tables.pool,
        }
    }

    /// Writes all changes in one step and waits until they are on disk. After an error it is
    /// unknown whether they are.
    pub(super) fn commit(&mut self) -> fjall::Result<()> {
        let index = std::mem::take(&mut self.index);
        let pool = std::mem::take(&mut self.pool);
        self.size = 0;
        if index.is_empty() && pool.is_empty() {
            return Ok(());
        }
        self.tables.wait_until_flushed()?;
        let mut batch = self
            .tables
            .db
            .batch()
            .durability(Some(PersistMode::SyncAll));
        for (changes, keyspace) in [(index, &self.tables.index), (pool, &self.tables.pool)] {
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
