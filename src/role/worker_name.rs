//! The name of this worker, which a lock of the operating system proves.
//!
//! The system frees the lock when the process ends, however it ends. So the next process on this
//! host takes the same name, and may replace the session of its predecessor at once.

use crate::limit::WORKER_NAMES_MAX;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

pub(super) struct WorkerName {
    pub(super) name: String,
    /// Random id of the lock file. Another host or container has another file, also under the same
    /// name.
    pub(super) lock: String,
    /// Keeps the lock. `None`: the folder of the locks cannot be used.
    _file: Option<File>,
}

/// Takes the lowest free name of this host: the host name and a number. `random` is a number that
/// no other process has.
pub(super) fn take(deployment: &str, random: u64) -> WorkerName {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("postdate-{user}"));
    take_in(&folder, &format!("{deployment}.{host}"), &host, random).unwrap_or_else(|error| {
        tracing::warn!(
            folder = %folder.display(),
            %error,
            "cannot lock a worker name: after a crash, the shards of this worker wait until its \
             session is over"
        );
        let lock = format!("{random:016x}");
        let name = format!("{host}-{lock}");
        WorkerName {
            name,
            lock,
            _file: None,
        }
    })
}

fn take_in(folder: &Path, prefix: &str, host: &str, random: u64) -> io::Result<WorkerName> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    for number in 0..WORKER_NAMES_MAX {
        let path = folder.join(format!("{prefix}-{number}.lock"));
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let mut file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(error),
        }
        return Ok(WorkerName {
            name: format!("{host}-{number}"),
            lock: lock_id(&mut file, random)?,
            _file: Some(file),
        });
    }
    Err(io::Error::other("all names of this host are in use"))
}

/// The id in the file. The first holder writes it.
fn lock_id(file: &mut File, random: u64) -> io::Result<String> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    if u64::from_str_radix(&text, 16).is_ok() {
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

    #[test]
    fn each_process_of_a_host_has_a_name_and_a_successor_has_the_same_name_and_lock() {
        let folder = tempfile::tempdir().unwrap();
        let take = |random| take_in(folder.path(), "d.h", "h", random).unwrap();
        let (first, second) = (take(1), take(2));
        assert_eq!((first.name.as_str(), second.name.as_str()), ("h-0", "h-1"));
        assert_ne!(first.lock, second.lock);
        let lock = first.lock.clone();
        drop(first);
        let successor = take(3);
        assert_eq!((successor.name.as_str(), successor.lock), ("h-0", lock));
    }
}
