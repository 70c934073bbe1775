//! The agreement of all connections of one process on one Redis server.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The server that all connections of one process use: the one that the newest connection reached.
/// After a failover, an old primary may answer connections that only read, and never change again.
#[derive(Debug, Default)]
pub(crate) struct CurrentServer(Mutex<Option<String>>);

impl CurrentServer {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `run_id` is random and differs after each start of a server.
    pub(super) fn set(&self, address: &str, run_id: &str) {
        let before = self.lock().replace(run_id.to_owned());
        if before.is_some_and(|before| before != run_id) {
            tracing::warn!(
                address,
                run_id,
                "the Redis server has changed, or was restarted: all older connections are reopened"
            );
        }
    }

    pub(super) fn is(&self, run_id: &str) -> bool {
        self.lock().as_deref() == Some(run_id) || fault!(KeepConnectionsToOldServer)
    }

    /// Another server may be the primary now: each connection is opened again.
    pub(super) fn forget(&self) {
        self.lock().take();
    }
}
