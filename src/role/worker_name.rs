//! The name of this worker, which a lock of the operating system proves.
//!
//! The system frees the lock when the process ends, however it ends. So the next process on this
//! host takes the same name, and may replace the session of its predecessor at once.

use crate::config::Config;
use crate::limit::WORKER_NAMES_MAX;
use anyhow::{Result, bail};
use rustix::fs::OFlags;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

pub(super) struct WorkerName {
    pub(super) name: String,
    /// Random id of the lock file. Another host or container has another file, also under the same
    /// name.
    pub(super) lock_id: String,
    /// Keeps the lock. `None`: the folder of the locks cannot be used.
    _file: Option<File>,
}

/// The folder of the lock files of this user.
pub(super) fn default_folder() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    std::env::temp_dir().join(format!("postdate-{user}"))
}

fn take(
    configured: Option<&str>,
    deployment: &str,
    folder: &Path,
    random: u64,
) -> Result<WorkerName> {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let names = match configured {
        Some(name) => vec![name.to_owned()],
        None => (0..WORKER_NAMES_MAX)
            .map(|number| format!("{host}-{number}"))
            .collect(),
    };
    match take_first(folder, deployment, &names, random) {
        Ok(Some(taken)) if configured.is_none() => Ok(taken.with_unique_name()),
        Ok(Some(taken)) => Ok(taken),
        Ok(None) => bail!(
            "another process of this host has the name {}: set another worker.name",
            names.join(", ")
        ),
        Err(error) => {
            tracing::warn!(
                folder = %folder.display(),
                %error,
                "cannot use the lock file of the worker's name: a process that starts again after a crash \
                 waits for the end of its old session; set TMPDIR to a folder that only this user can change"
            );
            let lock_id = format!("{random:016x}");
            Ok(WorkerName {
                name: configured.map_or_else(|| format!("{host}-{lock_id}"), str::to_owned),
                lock_id,
                _file: None,
            })
        }
    }
}

impl WorkerName {
    /// Takes the configured name, or the lowest free name of this host: the host name, a number, and the
    /// start of the id of the lock file. So processes that do not see each other's lock files have
    /// different names, although they may see the same host name.
    ///
    /// `folder` has the lock files. `random` is a number that no other process has. Fails if another
    /// process has the configured name.
    pub(super) fn take(config: &Config, folder: &Path, random: u64) -> Result<Self> {
        take(
            config.worker.name.as_deref(),
            &config.deployment,
            folder,
            random,
        )
    }

    fn with_unique_name(self) -> Self {
        let name = format!("{}-{}", self.name, &self.lock_id[..8]);
        Self { name, ..self }
    }
}

/// Takes the first name that no other process has.
fn take_first(
    folder: &Path,
    deployment: &str,
    names: &[String],
    random: u64,
) -> io::Result<Option<WorkerName>> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    check_owner(folder)?;
    for name in names {
        let path = folder.join(format!("{deployment}.{name}.lock"));
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let mut file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(error),
        }
        return Ok(Some(WorkerName {
            name: name.clone(),
            lock_id: lock_id(&mut file, random)?,
            _file: Some(file),
        }));
    }
    Ok(None)
}

/// Fails if another user may have put files into the folder.
fn check_owner(folder: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(folder)?;
    let is_own = found.uid() == rustix::process::getuid().as_raw();
    if found.is_dir() && is_own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("another user can change the folder"))
}

/// The id in the file: 16 hex digits. The first holder writes it.
fn lock_id(file: &mut File, random: u64) -> io::Result<String> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    if text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(text);
    }
    let id = format!("{random:016x}");
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(id.as_bytes())?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_folder_or_file_of_another_user_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, target) = (parent.path().join("locks"), parent.path().join("target"));
        let names = ["h-0".to_owned()];
        drop(take_first(&folder, "d", &names, 1).unwrap());
        std::fs::write(&target, "kept").unwrap();
        std::fs::remove_file(folder.join("d.h-0.lock")).unwrap();
        std::os::unix::fs::symlink(&target, folder.join("d.h-0.lock")).unwrap();
        assert!(take_first(&folder, "d", &names, 1).is_err(), "a link");
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
        std::fs::remove_file(folder.join("d.h-0.lock")).unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&folder, all).unwrap();
        assert!(take_first(&folder, "d", &names, 1).is_err(), "open to all");
    }

    #[test]
    fn each_process_of_a_host_has_a_name_and_a_successor_has_the_same_name_and_lock() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["h-0".to_owned(), "h-1".to_owned()];
        let take = |random| take_first(folder.path(), "d", &names, random).unwrap();
        let (first, second) = (take(1).unwrap(), take(2).unwrap());
        assert_eq!((first.name.as_str(), second.name.as_str()), ("h-0", "h-1"));
        assert_ne!(first.lock_id, second.lock_id);
        assert!(take(4).is_none(), "all names are taken");
        let id = first.lock_id.clone();
        drop(first);
        let successor = take(3).unwrap();
        assert_eq!((successor.name.as_str(), successor.lock_id), ("h-0", id));
    }

    /// Two users of one host, or two containers with its network.
    #[test]
    fn processes_with_different_lock_folders_have_different_names() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let take = |folder: usize, random: u64| {
            take(None, "d", folders[folder].path(), random << 32).unwrap()
        };
        let (first, second) = (take(0, 1), take(1, 2));
        assert_ne!(first.name, second.name);
        let name = first.name.clone();
        drop(first);
        assert_eq!(take(0, 3).name, name, "a successor");
    }
}
