//! The folder on disk: one process at a time, one format, and the database in it. What its rows mean stands in `key`.
//!
//! | name | holds |
//! |---|---|
//! | `lock` | the id of the process that uses the folder, which holds the lock on this file |
//! | `format` | `postdate embedded store, format <version>`: written when the folder is made, read before anything else |
//! | `data` | the database |
//! | `torn` | a journal as it was found, if its last commit had to be left out |
//!
//! A folder comes into being in this order: `data.new` whole, `format`, and then `data` by renaming. So a folder with a format is either
//! complete or still empty, whenever the making of it was cut short.

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

/// Version of keys and values; of another one nothing is touched.
pub(super) const FORMAT: u32 = 1;
pub(super) const FORMAT_TEXT: &str = "postdate embedded store, format ";

/// How long a commit waits for the next look at whether memory is being written to disk.
const FLUSH_POLL: Duration = Duration::from_millis(2);
/// Sealed memtables and tables of the first level of one keyspace, at which a commit waits before it adds to them: below the bounds at
/// which fjall waits itself, without noticing that nobody will wake it.
const SEALED_MAX: usize = 2;
const FIRST_LEVEL_MAX: usize = 16;
/// So many polls without a change, 2 minutes, and nobody writes any more.
const FLUSH_POLLS_MAX: u32 = 60_000;

/// What decides how often files are written and merged. A folder keeps to what it was made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) index_memory: u64,
    pub(super) pool_memory: u64,
    pub(super) blob_file: u64,
    pub(super) apart: u32,
}

impl Sizes {
    pub(super) const DEFAULT: Self = Self {
        index_memory: limit::EMBEDDED_INDEX_MEMTABLE_BYTES,
        pool_memory: limit::EMBEDDED_RUNS_MEMTABLE_BYTES,
        blob_file: limit::EMBEDDED_BLOB_FILE_BYTES,
        apart: limit::EMBEDDED_SEPARATE_BLOB_BYTES_MIN,
    };
}

/// A folder that this process uses. Dropping it lets others in.
pub(super) struct DataDir {
    path: PathBuf,
    _lock: File,
}

/// Why a folder cannot be used. The text is for a person: what, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct DirError(String);

/// The database of a folder. Clones share it.
#[derive(Clone)]
pub(super) struct Tables {
    pub(super) db: Database,
    /// Small rows.
    pub(super) index: Keyspace,
    /// The runs' bytes, apart from their keys, so that they are written twice (journal, then blob file) and hardly ever moved.
    pub(super) pool: Keyspace,
}

impl DataDir {
    /// Takes the folder, and makes it if there is none.
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
        let noted = lock
            .set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        noted.map_err(refused)?;
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
                    "{path} has {}, and this version of Postdate reads and writes format {FORMAT}: let the version that wrote it deliver \
                     what waits there, or set store.embedded.path to a new folder, which is filled again from the sources as far as they \
                     retain what waits",
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

    /// A folder without a format is to become one of ours, if nothing of anybody else lies in it.
    fn check_emptiness(&self) -> Result<(), DirError> {
        let path = self.path.display();
        let entries =
            std::fs::read_dir(&self.path).map_err(|error| DirError(format!("{path}: {error}")))?;
        let stranger = entries
            .flatten()
            .map(|entry| entry.file_name())
            .find(|name| {
                let ours = ["lock", "format.new", "data.new"];
                ours.iter().all(|ours| name != ours)
            });
        stranger.map_or(Ok(()), |name| {
            Err(DirError(format!(
                "{path} holds `{}` and no Postdate store: set store.embedded.path to a folder of its own, which need not exist",
                name.display()
            )))
        })
    }

    /// Opens the database, and makes it if there is none yet.
    pub(super) fn open(&self, sizes: &Sizes) -> fjall::Result<Tables> {
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

    /// Leaves the last commit of the journal out, if it is the only one that is damaged; else leaves everything as it is.
    fn open_without_torn_commit(
        &self,
        sizes: &Sizes,
        error: fjall::Error,
    ) -> fjall::Result<Tables> {
        let data = self.path.join("data");
        let Some((journal, begin)) = journal_repair::last_commit(&data)? else {
            return Err(error);
        };
        let torn = self.path.join("torn");
        std::fs::copy(&journal, &torn)?;
        let file = File::options().write(true).open(&journal)?;
        file.set_len(begin)?;
        file.sync_all()?;
        let opened = Tables::open(&data, sizes);
        if opened.is_ok() {
            let kept = torn.display();
            tracing::warn!(%kept, "the last write before the process ended was torn, as by a loss of power: it is left out, and read again");
        } else {
            std::fs::rename(&torn, &journal)?;
        }
        opened
    }

    fn create(&self, sizes: &Sizes) -> fjall::Result<()> {
        let (new, format) = (self.path.join("data.new"), self.path.join("format.new"));
        if new.try_exists()? {
            std::fs::remove_dir_all(&new)?;
        }
        let rows = Tables::open(&new, sizes)?;
        rows.db.persist(PersistMode::SyncAll)?;
        drop(rows);
        let mut file = File::create(&format)?;
        writeln!(file, "{FORMAT_TEXT}{FORMAT}")?;
        file.sync_all()?;
        std::fs::rename(&format, self.path.join("format"))?;
        self.sync()?;
        std::fs::rename(&new, self.path.join("data"))?;
        self.sync()?;
        Ok(())
    }

    /// Makes new names last.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

fn in_use(path: &Path, lock: &mut File) -> DirError {
    let mut text = String::new();
    // Of a process that has just begun the id may not stand there yet.
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
    fn open(path: &Path, sizes: &Sizes) -> fjall::Result<Self> {
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
        let apart = KvSeparationOptions::default()
            .compression(CompressionType::None)
            .separation_threshold(sizes.apart)
            .file_target_size(sizes.blob_file)
            .staleness_threshold(limit::EMBEDDED_STALE_FRACTION_MAX)
            .age_cutoff(1.0);
        let index = db.keyspace("index", || options(sizes.index_memory))?;
        let pool = db.keyspace("pool", || {
            options(sizes.pool_memory).with_kv_separation(Some(apart))
        })?;
        Ok(Self { db, index, pool })
    }

    /// Waits while more is in memory than is being written to disk; fails if what writes it has failed.
    pub(super) fn wait_until_flushed(&self) -> fjall::Result<()> {
        self.wait_while(|| {
            let is_behind = |keyspace: &Keyspace| {
                keyspace.sealed_memtable_count() > SEALED_MAX
                    || keyspace.l0_table_count() > FIRST_LEVEL_MAX
            };
            is_behind(&self.index) || is_behind(&self.pool)
        })
    }

    /// Puts what the pool has in memory into its files, and waits for it.
    pub(super) fn flush_pool(&self) -> fjall::Result<()> {
        self.pool.rotate_memtable()?;
        self.wait_while(|| self.pool.sealed_memtable_count() > 0)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a blocking client's own wait, on the adapter's own thread"
    )]
    fn wait_while(&self, is_behind: impl Fn() -> bool) -> fjall::Result<()> {
        for _ in 0..FLUSH_POLLS_MAX {
            if !is_behind() {
                return Ok(());
            }
            // Says so if a write in the background has failed.
            self.db.persist(PersistMode::Buffer)?;
            std::thread::sleep(FLUSH_POLL);
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "nothing is written to disk any more",
        )
        .into())
    }
}
