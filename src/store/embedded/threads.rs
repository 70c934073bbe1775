//! The threads of the embedded store: started with it, and joined when the last handle is dropped.

use super::reader::ReadCall;
use super::writer::WriteCall;
use crate::client_thread::ClientThread;
use crate::store::Error;
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

/// Time for the threads to end. The collector may be busy with files. All answered calls are
/// on disk, even if a thread is left behind.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The queues to the threads. A thread ends when its queue is dropped.
pub(super) struct Queues {
    pub(super) write: Sender<WriteCall>,
    pub(super) read: Sender<ReadCall>,
    pub(super) _stop_gc: SyncSender<()>,
}

pub(super) struct Threads {
    /// `None` only during the drop.
    queues: Option<Queues>,
    /// In a mutex only so that handles of the store can be shared between threads.
    threads: Mutex<Vec<ClientThread>>,
}

impl Threads {
    pub(super) fn new(queues: Queues) -> Self {
        Self {
            queues: Some(queues),
            threads: Mutex::default(),
        }
    }

    pub(super) fn start(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let thread = ClientThread::start(name, body)
            .map_err(|error| Error::Unusable(format!("cannot start {name}: {error}")))?;
        self.threads().push(thread);
        Ok(())
    }

    pub(super) fn queues(&self) -> &Queues {
        self.queues.as_ref().expect("dropped only with the store")
    }

    fn threads(&mut self) -> &mut Vec<ClientThread> {
        self.threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queues = None;
        let deadline = Instant::now() + JOIN_TIMEOUT;
        for thread in self.threads() {
            thread.join_until(deadline);
        }
    }
}
