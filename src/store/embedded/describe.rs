//! Describes a folder without opening the store: who uses it, its format, free space and
//! permissions. Changes nothing, except that it tries the lock for a moment.

use super::data_dir::{FORMAT, FORMAT_TEXT, free_bytes};
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FolderDescription {
    pub(crate) path: PathBuf,
    pub(crate) used: FolderUse,
    /// Why the folder is not writable.
    pub(crate) unwritable: Option<String>,
    /// The format of the folder, if this version does not support it.
    pub(crate) foreign_format: Option<String>,
    /// Free bytes on the file system, if known.
    pub(crate) free: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FolderUse {
    /// There is no store yet.
    Absent,
    Free,
    /// A process uses it. The id may be unknown.
    InUse(Option<u32>),
    /// Free, but owned by another user. Files that we created would lock the service of that user
    /// out.
    OwnedByOther(u32),
    /// This user has no permission to look into it.
    Unreadable(String),
}

impl FolderDescription {
    pub(crate) fn of(path: &Path) -> Self {
        // An absent folder will be created in its nearest existing parent.
        let existing = path
            .ancestors()
            .find(|folder| folder.exists())
            .filter(|folder| !folder.as_os_str().is_empty());
        let existing = existing.unwrap_or(Path::new("."));
        let unwritable = rustix::fs::access(
            existing,
            rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
        )
        .err();
        Self {
            path: path.to_owned(),
            used: used(path),
            unwritable: unwritable.map(|error| format!("{}: {error}", existing.display())),
            foreign_format: foreign_format(path),
            free: free_bytes(existing),
        }
    }
}

fn used(path: &Path) -> FolderUse {
    let owner = match std::fs::metadata(path.join("format")) {
        Ok(format) => format.uid(),
        Err(error) if error.kind() == ErrorKind::NotFound => return FolderUse::Absent,
        Err(error) => return FolderUse::Unreadable(error.to_string()),
    };
    let lock = path.join("lock");
    let is_taken = File::open(&lock)
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
    if is_taken {
        return FolderUse::InUse(
            std::fs::read_to_string(&lock)
                .ok()
                .and_then(|id| id.trim().parse().ok()),
        );
    }
    if owner == rustix::process::geteuid().as_raw() {
        FolderUse::Free
    } else {
        FolderUse::OwnedByOther(owner)
    }
}

fn foreign_format(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path.join("format")).ok()?;
    let ours = format!("{FORMAT_TEXT}{FORMAT}");
    (text.trim() != ours).then(|| {
        text.lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(80)
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{opened_at, options};
    use super::*;
    use crate::clock::WallClock;
    use crate::store::embedded::Embedded;

    #[test]
    fn a_folder_is_absent_then_in_use_then_free_and_describing_it_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let absent = FolderDescription::of(&path);
        assert_eq!(
            (absent.used, absent.unwritable, absent.foreign_format),
            (FolderUse::Absent, None, None)
        );
        assert!(absent.free.is_some() && !path.exists());
        let store = opened_at(&path);
        assert_eq!(
            FolderDescription::of(&path).used,
            FolderUse::InUse(Some(std::process::id()))
        );
        drop(store);
        assert_eq!(FolderDescription::of(&path).used, FolderUse::Free);
        drop(Embedded::open(&options(&path), WallClock).unwrap());
        std::fs::write(path.join("format"), "postdate embedded store, format 7\n").unwrap();
        assert_eq!(
            FolderDescription::of(&path).foreign_format,
            Some("postdate embedded store, format 7".to_owned())
        );
    }
}
