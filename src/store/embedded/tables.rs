//! The two tables of the database, batches of changed rows, and access for other threads.

use super::key;
use crate::limit::{self, EmbeddedMemory};
use crate::model::Timestamp;
use crate::store::Error;
use bytes::Bytes;
use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode, Readable,
    SingleWriterTxDatabase, SingleWriterTxKeyspace, SingleWriterWriteTx,
};
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};
use std::time::Duration;

/// How often a waiting commit checks whether memtables were flushed.
const FLUSH_POLL: Duration = Duration::from_millis(2);
/// After 2 minutes of polls without progress, the flushing thread has failed.
const FLUSH_POLLS_MAX: u32 = 60_000;
/// A commit waits at this number of sealed memtables, or of first-level tables, per table. Both are
/// below the limits at which fjall itself waits. fjall's wait never ends if its flushing thread has
/// failed, as on a full disk.
const SEALED_MAX: usize = 2;
const FIRST_LEVEL_MAX: usize = 16;
/// Size of the keys and small rows of one run.
const ROW_BYTES: u64 = 160;

/// Sizes that decide how often files are written and merged. A folder keeps those it was created
/// with, except for the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSizes {
    pub(super) index_memory: u64,
    pub(super) pool_memory: u64,
    pub(super) cache: u64,
    pub(super) blob_file: u64,
    /// Runs of fewer bytes stay beside their keys.
    pub(super) separate_min: u32,
}

impl FileSizes {
    pub(super) const DEFAULT: Self = Self {
        index_memory: limit::EMBEDDED_INDEX_MEMTABLE_BYTES,
        pool_memory: limit::EMBEDDED_RUNS_MEMTABLE_BYTES,
        cache: limit::EMBEDDED_CACHE_BYTES,
        blob_file: limit::EMBEDDED_BLOB_FILE_BYTES,
        separate_min: limit::EMBEDDED_SEPARATE_BLOB_BYTES_MIN,
    };

    pub(super) fn within(memory: EmbeddedMemory) -> Self {
        Self {
            index_memory: memory.index_memtable,
            pool_memory: memory.runs_memtable,
            cache: memory.cache,
            ..Self::DEFAULT
        }
    }
}

/// The database of a folder. Clones share it.
#[derive(Clone)]
pub(super) struct Tables {
    pub(super) db: SingleWriterTxDatabase,
    /// Small rows.
    pub(super) index: SingleWriterTxKeyspace,
    /// The bytes of runs, stored apart from their keys. So they are written twice (journal, blob
    /// file) and rarely moved.
    pub(super) pool: SingleWriterTxKeyspace,
    /// Bytes of all memtables at which a commit waits until they are written.
    memtables_max: u64,
}

impl Tables {
    pub(super) fn open(path: &Path, sizes: &FileSizes) -> fjall::Result<Self> {
        let db = SingleWriterTxDatabase::builder(path)
            .cache_size(sizes.cache)
            .max_journaling_size(limit::EMBEDDED_JOURNAL_BYTES)
            // Runs are compressed already.
            .journal_compression(CompressionType::None)
            .worker_threads(2)
            .open()?;
        let options = |memory: u64| {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memory)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        };
        let separation = KvSeparationOptions::default()
            .compression(CompressionType::None)
            .separation_threshold(sizes.separate_min)
            .file_target_size(sizes.blob_file)
            .staleness_threshold(limit::EMBEDDED_STALE_FRACTION_MAX)
            .age_cutoff(1.0);
        let index = db.keyspace("index", || options(sizes.index_memory))?;
        let pool = db.keyspace("pool", || {
            options(sizes.pool_memory).with_kv_separation(Some(separation))
        })?;
        Ok(Self {
            db,
            index,
            pool,
            memtables_max: 3 * (sizes.index_memory + sizes.pool_memory),
        })
    }

    /// The table of the row with this key.
    pub(super) fn of(&self, key: &[u8]) -> &SingleWriterTxKeyspace {
        if key::is_in_pool(key) {
            &self.pool
        } else {
            &self.index
        }
    }

    /// The rows on disk whose keys start with `prefix`.
    pub(super) fn rows(
        &self,
        prefix: &[u8],
    ) -> impl Iterator<Item = fjall::Result<(Bytes, Bytes)>> + use<> {
        self.of(prefix).inner().prefix(prefix).map(|row| {
            let (key, value) = row.into_inner()?;
            Ok((Bytes::from(key), Bytes::from(value)))
        })
    }

    /// Starts a batch. Waits while another thread has one.
    pub(super) fn begin(&self, now: Timestamp) -> WriteBatch<'_> {
        WriteBatch {
            tables: self,
            rows: self.db.write_tx().durability(Some(PersistMode::SyncAll)),
            bytes: 0,
            failed: None,
            now,
        }
    }

    /// Deletes the rows of erased shards. Each commit deletes a part of them, so that the writer
    /// can commit in between.
    pub(super) fn delete_garbage(&self) -> Result<(), Error> {
        while let Some(garbage) = self.rows(key::ALL_GARBAGE).next() {
            let (garbage, _) = garbage?;
            let prefixes = key::to_garbage(&garbage).map(key::all_of_a_shard);
            let rows = prefixes.into_iter().flatten();
            let rows = rows.flat_map(|prefix| self.rows(&prefix));
            let mut batch = self.begin(Timestamp::AT_ONCE);
            for row in rows.take(limit::EMBEDDED_ERASED_ROWS_PER_COMMIT_MAX) {
                let (key, _) = row?;
                if let Some(bytes) = key::bytes_of_run(&key) {
                    batch.remove(bytes);
                }
                batch.remove(key.to_vec());
            }
            if batch.bytes == 0 {
                batch.remove(garbage.to_vec());
            }
            batch.commit()?;
        }
        Ok(())
    }

    /// Flushes the memtable of the pool to its files, and waits for it.
    pub(super) fn flush_pool(&self) -> fjall::Result<()> {
        let pool = self.pool.inner();
        pool.rotate_memtable()?;
        self.wait_while(|| pool.sealed_memtable_count() > 0)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a blocking wait on a thread of the adapter"
    )]
    fn wait_while(&self, is_behind: impl Fn() -> bool) -> fjall::Result<()> {
        for _ in 0..FLUSH_POLLS_MAX {
            if !is_behind() {
                return Ok(());
            }
            // Fails if a background write has failed.
            self.db.persist(PersistMode::Buffer)?;
            std::thread::sleep(FLUSH_POLL);
        }
        let stuck = "the database does not write to disk any more";
        Err(io::Error::new(io::ErrorKind::TimedOut, stuck).into())
    }
}

fn is_behind(table: &Keyspace) -> bool {
    table.sealed_memtable_count() > SEALED_MAX || table.l0_table_count() > FIRST_LEVEL_MAX
}

/// Changes of rows that one commit writes in one step. Reads see the changes of earlier calls in
/// the batch, so several calls share one wait for the disk.
pub(super) struct WriteBatch<'a> {
    tables: &'a Tables,
    rows: SingleWriterWriteTx<'a>,
    /// Bytes of all changes. 0: there are none.
    bytes: usize,
    /// Why a call failed. The batch is not committed then.
    failed: Option<Error>,
    /// The time of all calls in the batch.
    pub(super) now: Timestamp,
}

impl WriteBatch<'_> {
    pub(super) fn put(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        let (table, value) = (self.tables.of(&key), value.into());
        self.bytes += key.len() + value.len();
        self.rows.insert(table, key, value);
    }

    pub(super) fn remove(&mut self, key: Vec<u8>) {
        self.bytes += key.len();
        self.rows.remove(self.tables.of(&key), key);
    }

    pub(super) fn get(&self, key: &[u8]) -> fjall::Result<Option<Bytes>> {
        let found = self.rows.get(self.tables.of(key), key)?;
        Ok(found.map(Bytes::from))
    }

    /// The keys of the index rows in `range`, ordered.
    pub(super) fn index_keys(
        &self,
        range: RangeInclusive<Vec<u8>>,
    ) -> impl Iterator<Item = fjall::Result<Bytes>> {
        let rows = self.rows.range(&self.tables.index, range);
        rows.map(|row| Ok(Bytes::from(row.key()?)))
    }

    /// Records that a call failed in the middle of its changes. A call that is `Full` made none.
    pub(super) fn fail(&mut self, error: &Error) {
        if !matches!(error, Error::Full) {
            self.failed.get_or_insert_with(|| error.clone());
        }
    }

    /// True if the batch takes further calls.
    pub(super) fn is_open(&self) -> bool {
        self.failed.is_none() && self.bytes < limit::EMBEDDED_COMMIT_BYTES_MAX
    }

    /// Returns when the changes are on disk. After an error it is unknown whether they are.
    pub(super) fn commit(self) -> Result<(), Error> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.bytes > 0 {
            let (index, pool) = (self.tables.index.inner(), self.tables.pool.inner());
            // fjall replaces a full memtable some time later, and a folder may have larger ones.
            let is_full = || self.tables.db.write_buffer_size() > self.tables.memtables_max;
            if is_full() {
                pool.rotate_memtable()?;
            }
            self.tables
                .wait_while(|| is_behind(index) || is_behind(pool) || is_full())?;
            self.rows.commit()?;
        }
        Ok(())
    }
}

/// The open database as the writer shares it with readers and the collector, and the size of the
/// waiting runs.
pub(super) struct SharedTables {
    /// `None` while the writer opens the folder again.
    tables: RwLock<Option<Tables>>,
    stored_bytes: AtomicU64,
}

impl SharedTables {
    pub(super) fn new(tables: Tables) -> Self {
        Self {
            tables: RwLock::new(Some(tables)),
            stored_bytes: AtomicU64::new(0),
        }
    }

    /// Waits for other threads that use the old tables.
    pub(super) fn set(&self, tables: Option<Tables>) {
        *self.tables.write().unwrap_or_else(PoisonError::into_inner) = tables;
    }

    /// Runs `body` with the tables. They stay open until it returns. Does not wait while the writer
    /// opens the folder again, which may take minutes.
    pub(super) fn with<T>(
        &self,
        body: impl FnOnce(&Tables) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let opening =
            || Error::Unavailable("the embedded store's folder is being opened".to_owned());
        self.with_open(body).unwrap_or_else(|| Err(opening()))
    }

    /// Like [`SharedTables::with`]. `None` while the writer opens the folder again.
    pub(super) fn with_open<T>(&self, body: impl FnOnce(&Tables) -> T) -> Option<T> {
        let tables = match self.tables.try_read() {
            Ok(tables) => tables,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        tables.as_ref().map(body)
    }

    /// Number and bytes of the waiting runs.
    pub(super) fn set_stored(&self, (runs, bytes): (u64, u64)) {
        self.stored_bytes
            .store(bytes + runs * ROW_BYTES, Ordering::Relaxed);
    }

    /// Approximate size of the waiting runs.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed)
    }
}
