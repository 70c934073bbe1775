//! Errors of the database: their text for people, and their meaning for a call.

use crate::store::Error;
use bytes::Bytes;
use fjall::LsmError;

/// An error of the running store. If a change failed, the next one opens the folder again.
impl From<fjall::Error> for Error {
    fn from(error: fjall::Error) -> Self {
        Self::Unavailable(format!("the embedded store's folder: {}", explain(&error)))
    }
}

pub(super) fn explain(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => error.to_string(),
        fjall::Error::Poisoned => "a write failed; the folder is opened again".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Replaces damaged bytes of a run by empty ones, so that the timer quarantines the run.
pub(super) fn empty_if_damaged(read: fjall::Result<Option<Bytes>>) -> fjall::Result<Option<Bytes>> {
    match read {
        Ok(bytes) => Ok(bytes),
        // The disk could not be read.
        Err(
            error @ (fjall::Error::Io(_)
            | fjall::Error::Storage(LsmError::Io(_))
            | fjall::Error::Poisoned),
        ) => Err(error),
        Err(error) => {
            tracing::error!(
                error = explain(&error),
                "the embedded store holds damaged bytes: the timer quarantines their run and logs its name"
            );
            Ok(Some(Bytes::new()))
        }
    }
}
