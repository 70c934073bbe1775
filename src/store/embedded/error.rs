//! What the database's errors mean, in words for a person, and for a run that is read.

use crate::store::Error;
use bytes::Bytes;

/// Why a call on the registry did not answer.
#[derive(Debug)]
pub(super) enum CallError {
    /// There is no room for what is new. Nothing was changed.
    Full,
    /// What was changed in memory is not what is on disk any more.
    Disk(fjall::Error),
}

impl From<fjall::Error> for CallError {
    fn from(error: fjall::Error) -> Self {
        Self::Disk(error)
    }
}

/// An error of the running store. Whatever it was, the next call opens the folder anew.
pub(super) fn unavailable(error: &fjall::Error) -> Error {
    Error::Unavailable(format!("the embedded store's folder: {}", explain(error)))
}

pub(super) fn explain(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            error.to_string()
        }
        fjall::Error::Poisoned => "a write has failed; it is opened anew".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Whether the disk itself could not be read or written, as against what is on it.
pub(super) fn is_io_error(error: &fjall::Error) -> bool {
    matches!(
        error,
        fjall::Error::Io(_)
            | fjall::Error::Storage(fjall::LsmError::Io(_))
            | fjall::Error::Poisoned
    )
}

/// A run's bytes as they were read. Bytes that are damaged are none, and so unreadable: the run is set aside by whoever wanted it.
pub(super) fn empty_if_damaged(read: fjall::Result<Option<Bytes>>) -> fjall::Result<Option<Bytes>> {
    match read {
        Err(error) if !is_io_error(&error) => {
            tracing::error!(
                error = explain(&error),
                "bytes in the embedded store are not what was written"
            );
            Ok(Some(Bytes::new()))
        }
        other => other,
    }
}
