//! The folder on disk: its lock, its format version, and the database in it.
//!
//! | name | content |
//! |---|---|
//! | `lock` | id of the process that uses the folder and holds the lock on this file |
//! | `format` | `postdate embedded store, format <version>` |
//! | `data` | the database |
//! | `torn` | copy of a journal whose last commit was damaged and left out |
//!
//! A new folder is created in this order: `data.new`, `format`, rename of `data.new` to `data`. A
//! folder with a `format` is therefore complete or empty, even after a crash.

use super::journal_repair;
use crate::limit;
use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
};
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of keys and values. A folder with another version is left alone.
pub(super) const FORMAT: u32 = 1;
pub(super) const FORMAT_TEXT: &str = "postdate embedded store, format ";

/// How often a waiting commit checks whether memtables were flushed.
const FLUSH_POLL: Duration = Duration::from_millis(2);
/// A commit waits at this number of sealed memtables, or of first-level tables, per keyspace. Both
/// are below the limits at which fjall itself waits: that wait may never end.
const SEALED_MAX: usize = 2;
const FIRST_LEVEL_MAX: usize = 16;
/// After 2 minutes of polls without progress, the flushing thread has failed.
const FLUSH_POLLS_MAX: u32 = 60_000;

/// Sizes that decide how often files are written and merged. A folder keeps those it was created
/// with.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSizes {
    pub(super) index_memory: u64,
    pub(super) pool_memory: u64,
    pub(super) blob_file: u64,
    /// Runs of fewer bytes stay beside their keys.
    pub(super) separate_min: u32,
}

impl FileSizes {
    pub(super) const DEFAULT: Self = Self {
        index_memory: limit::EMBEDDED_INDEX_MEMTABLE_BYTES,
        pool_memory: limit::EMBEDDED_RUNS_MEMTABLE_BYTES,
        blob_file: limit::EMBEDDED_BLOB_FILE_BYTES,
        separate_min: limit::EMBEDDED_SEPARATE_BLOB_BYTES_MIN,
    };
}

/// A locked folder. Dropping it releases the lock.
pub(super) struct DataDir {
    path: PathBuf,
    _lock: File,
}

/// Why a folder cannot be used, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct DirError(String);

/// The database of a folder. Clones share it.
#[derive(Clone)]
pub(super) struct Tables {
    pub(super) db: Database,
    /// Small rows.
    pub(super) index: Keyspace,
    /// The bytes of runs, stored apart from their keys. So they are written twice (journal, blob
    /// file) and rarely moved.
    pub(super) pool: Keyspace,
}

impl DataDir {
    /// Locks the folder. Creates it if it is absent.
    pub(super) fn lock(path: &Path) -> Result<Self, DirError> {
        let refused = |error: io::Error| DirError(format!("{}: {error}", path.display()));
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(refused)?;
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path.join("lock"))
            .map_err(refused)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(path, &mut lock)),
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        let written = lock
            .set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.map_err(refused)?;
        let folder = Self {
            path: path.to_owned(),
            _lock: lock,
        };
        folder.check_format()?;
        Ok(folder)
    }

    fn check_format(&self) -> Result<(), DirError> {
        let path = self.path.display();
        match std::fs::read_to_string(self.path.join("format")) {
            Ok(text) => match text.strip_prefix(FORMAT_TEXT).map(str::trim) {
                Some(version) if version == FORMAT.to_string() => Ok(()),
                version => Err(DirError(format!(
                    "{path} has {}, and this version of Postdate reads and writes format {FORMAT}: \
                     let the version that wrote it deliver the waiting messages, or set \
                     store.embedded.path to a new folder, which is filled again from the sources, \
                     as far as they retain the messages",
                    version.map_or_else(
                        || "an unknown format".to_owned(),
                        |version| format!("format {version}")
                    )
                ))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.check_emptiness(),
            Err(error) => Err(DirError(format!("{path}/format cannot be read: {error}"))),
        }
    }

    /// A folder without a format is used only if it contains no foreign file.
    fn check_emptiness(&self) -> Result<(), DirError> {
        let path = self.path.display();
        let entries =
            std::fs::read_dir(&self.path).map_err(|error| DirError(format!("{path}: {error}")))?;
        let foreign = entries
            .flatten()
            .map(|entry| entry.file_name())
            .find(|name| {
                let ours = ["lock", "format.new", "data.new"];
                ours.iter().all(|ours| name != ours)
            });
        foreign.map_or(Ok(()), |name| {
            Err(DirError(format!(
                "{path} holds `{}` and no Postdate store: set store.embedded.path to a folder of its own, which need not exist",
                name.display()
            )))
        })
    }

    /// Opens the database. Creates it if it is absent.
    pub(super) fn open(&self, sizes: &FileSizes) -> fjall::Result<Tables> {
        let data = self.path.join("data");
        if !data.try_exists()? {
            self.create(sizes)?;
        }
        match Tables::open(&data, sizes) {
            Err(error @ fjall::Error::JournalRecovery(_)) => {
                self.open_without_torn_commit(sizes, error)
            }
            opened => opened,
        }
    }

    /// Leaves out the last commit of the journal, if only this one is damaged. Otherwise changes
    /// nothing.
    fn open_without_torn_commit(
        &self,
        sizes: &FileSizes,
        error: fjall::Error,
    ) -> fjall::Result<Tables> {
        let data = self.path.join("data");
        let Some((journal, begin)) = journal_repair::last_commit(&data)? else {
            return Err(error);
        };
        let copy = self.path.join("torn");
        std::fs::copy(&journal, &copy)?;
        let file = File::options().write(true).open(&journal)?;
        file.set_len(begin)?;
        file.sync_all()?;
        let opened = Tables::open(&data, sizes);
        if opened.is_ok() {
            let kept = copy.display();
            tracing::warn!(
                %kept,
                "the last write before the process ended is damaged, as after a power loss: leaving it out; \
                 its messages are read again from the source"
            );
        } else {
            std::fs::rename(&copy, &journal)?;
        }
        opened
    }

    fn create(&self, sizes: &FileSizes) -> fjall::Result<()> {
        let new = self.path.join("data.new");
        let format = self.path.join("format.new");
        if new.try_exists()? {
            std::fs::remove_dir_all(&new)?;
        }
        let tables = Tables::open(&new, sizes)?;
        tables.db.persist(PersistMode::SyncAll)?;
        drop(tables);
        let mut file = File::create(&format)?;
        writeln!(file, "{FORMAT_TEXT}{FORMAT}")?;
        file.sync_all()?;
        std::fs::rename(&format, self.path.join("format"))?;
        self.sync()?;
        std::fs::rename(&new, self.path.join("data"))?;
        self.sync()?;
        Ok(())
    }

    /// Writes new names in the folder to disk.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

fn in_use(path: &Path, lock: &mut File) -> DirError {
    let mut text = String::new();
    // A process that has just started may not have written its id yet.
    let _ = lock.take(20).read_to_string(&mut text);
    let id = text.trim();
    let process = if id.is_empty() {
        "another process".to_owned()
    } else {
        format!("process {id}")
    };
    DirError(format!(
        "{} is in use by {process}: only one process can have an embedded store at a time. Stop that one, or set store.embedded.path to \
         another folder; for several processes with one store use [store.redis]",
        path.display()
    ))
}

impl Tables {
    fn open(path: &Path, sizes: &FileSizes) -> fjall::Result<Self> {
        let db = Database::builder(path)
            .cache_size(limit::EMBEDDED_CACHE_BYTES)
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
        Ok(Self { db, index, pool })
    }

    /// Waits while too many memtables wait for their flush. Fails if the flushing thread has
    /// failed.
    pub(super) fn wait_until_flushed(&self) -> fjall::Result<()> {
        self.wait_while(|| {
            let is_behind = |keyspace: &Keyspace| {
                keyspace.sealed_memtable_count() > SEALED_MAX
                    || keyspace.l0_table_count() > FIRST_LEVEL_MAX
            };
            is_behind(&self.index) || is_behind(&self.pool)
        })
    }

    /// Flushes the memtable of the pool to its files, and waits for it.
    pub(super) fn flush_pool(&self) -> fjall::Result<()> {
        self.pool.rotate_memtable()?;
        self.wait_while(|| self.pool.sealed_memtable_count() > 0)
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
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the database does not write to disk any more",
        )
        .into())
    }
}
