//! The folder on disk: its lock, its format version, the database in it, and its free space.
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

use super::tables::{FileSizes, Tables};
use crate::limit;
use crate::store::Error;
use fjall::PersistMode;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Version of keys and values. A folder with another version is left alone.
pub(super) const FORMAT: u32 = 1;
pub(super) const FORMAT_TEXT: &str = "postdate embedded store, format ";

/// A locked folder. Dropping it releases the lock.
pub(super) struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Locks the folder. Creates it if it is absent.
    pub(super) fn lock(path: &Path) -> Result<Self, Error> {
        let refused = |error: io::Error| Error::Unusable(format!("{}: {error}", path.display()));
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

    fn check_format(&self) -> Result<(), Error> {
        let path = self.path.display();
        match std::fs::read_to_string(self.path.join("format")) {
            Ok(text) => match text.strip_prefix(FORMAT_TEXT).map(str::trim) {
                Some(version) if version == FORMAT.to_string() => Ok(()),
                Some(version) if version.parse::<u32>().is_ok_and(|it| it > FORMAT) => {
                    Err(Error::Unusable(format!(
                        "{path} has format {version}, which a newer version of Postdate wrote: run the newer version"
                    )))
                }
                version => Err(Error::Unusable(format!(
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
            Err(error) => Err(Error::Unusable(format!(
                "{path}/format cannot be read: {error}"
            ))),
        }
    }

    /// A folder without a format is used only if it contains no foreign file.
    fn check_emptiness(&self) -> Result<(), Error> {
        let path = self.path.display();
        let entries = std::fs::read_dir(&self.path)
            .map_err(|error| Error::Unusable(format!("{path}: {error}")))?;
        let foreign = entries
            .flatten()
            .map(|entry| entry.file_name())
            .find(|name| {
                let ours = ["lock", "format.new", "data.new"];
                ours.iter().all(|ours| name != ours)
            });
        foreign.map_or(Ok(()), |name| {
            Err(Error::Unusable(format!(
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
            Err(fjall::Error::JournalRecovery(_)) => self.open_without_torn_commit(sizes),
            opened => opened,
        }
    }

    /// Leaves out the last commit of the newest journal, if only this one is damaged. Otherwise
    /// changes nothing.
    ///
    /// After a power loss the disk may hold the end of the last commit but not its middle. Its
    /// callers got no answer. fjall rejects such a journal, but leaves out a last commit whose end
    /// is missing: so the last byte that is not zero is cut off.
    fn open_without_torn_commit(&self, sizes: &FileSizes) -> fjall::Result<Tables> {
        let data = self.path.join("data");
        let Some(journal) = newest_journal(&data)? else {
            return Tables::open(&data, sizes);
        };
        let copy = self.path.join("torn");
        std::fs::copy(&journal, &copy)?;
        let bytes = std::fs::read(&journal)?;
        let last = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        let file = File::options().write(true).open(&journal)?;
        file.set_len(last as u64)?;
        file.sync_all()?;
        let opened = Tables::open(&data, sizes);
        if opened.is_ok() {
            tracing::warn!(
                damaged_copy = %copy.display(),
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

/// Checks whether the disk has room for new data. A reserve stays free for deliveries.
#[derive(Clone)]
pub(super) struct DiskSpace {
    /// The folder whose file system is checked.
    path: PathBuf,
    /// Free bytes below which no new data is stored.
    reserve: Arc<AtomicU64>,
}

impl DiskSpace {
    pub(super) fn new(path: PathBuf) -> Self {
        let reserve = Arc::new(AtomicU64::new(limit::EMBEDDED_DISK_RESERVE_BYTES));
        Self { path, reserve }
    }

    /// A file system that gives no answer counts as not full: the write itself reports the error.
    pub(super) fn is_full(&self) -> bool {
        let reserve = self.reserve.load(Ordering::Relaxed);
        free_bytes(&self.path).is_some_and(|free| free < reserve)
    }

    #[cfg(test)]
    pub(super) fn set_reserve(&self, bytes: u64) {
        self.reserve.store(bytes, Ordering::Relaxed);
    }
}

/// Free bytes on the file system of a path, if known.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn newest_journal(data: &Path) -> io::Result<Option<PathBuf>> {
    let number = |path: &PathBuf| -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        name.strip_suffix(".jnl")?.parse().ok()
    };
    let files = std::fs::read_dir(data)?.flatten().map(|file| file.path());
    Ok(files
        .filter(|path| number(path).is_some())
        .max_by_key(number))
}

fn in_use(path: &Path, lock: &mut File) -> Error {
    let mut text = String::new();
    // A process that has just started may not have written its id yet.
    let _ = lock.take(20).read_to_string(&mut text);
    let id = text.trim();
    let process = if id.is_empty() {
        "another process".to_owned()
    } else {
        format!("process {id}")
    };
    Error::Unusable(format!(
        "{} is in use by {process}: only one process can have an embedded store at a time. Stop that one, or set store.embedded.path to \
         another folder; for several processes with one store use [store.redis]",
        path.display()
    ))
}
