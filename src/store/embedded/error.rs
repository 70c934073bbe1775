//! Errors of the database: their text for people, and their meaning for a call.

use crate::store::Error;
use bytes::Bytes;

/// Why a call of the writer failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// No room for new data. The call changed nothing.
    Full,
    /// The shards in memory may differ from the disk now.
    Disk(fjall::Error),
}

impl From<fjall::Error> for CallError {
    fn from(error: fjall::Error) -> Self {
        Self::Disk(error)
    }
}

/// An error of the running store. The next call opens the folder again.
pub(super) fn unavailable(error: &fjall::Error) -> Error {
    Error::Unavailable(format!("the embedded store's folder: {}", explain(error)))
}

pub(super) fn explain(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            error.to_string()
        }
        fjall::Error::Poisoned => "a write failed; the folder is opened again".to_owned(),
        other => format!("{other:?}"),
    }
}

/// True if the disk could not be read or written. Otherwise the data on it is damaged.
pub(super) fn is_io_error(error: &fjall::Error) -> bool {
    matches!(
        error,
        fjall::Error::Io(_)
            | fjall::Error::Storage(fjall::LsmError::Io(_))
            | fjall::Error::Poisoned
    )
}

/// Replaces damaged bytes of a run by empty ones, so that the timer quarantines the run.
pub(super) fn empty_if_damaged(read: fjall::Result<Option<Bytes>>) -> fjall::Result<Option<Bytes>> {
    match read {
        Err(error) if !is_io_error(&error) => {
            tracing::error!(
                error = explain(&error),
                "the embedded store holds damaged bytes: the run is quarantined"
            );
            Ok(Some(Bytes::new()))
        }
        other => other,
    }
}
