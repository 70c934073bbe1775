//! The threads of the embedded store: started with it, and joined when the last handle is dropped.

use super::reader::ReadCall;
use super::writer::WriteCall;
use crate::store::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::sync::mpsc::Sender;

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
    handles: Vec<JoinHandle<()>>,
    /// Each thread holds a clone of `end`, so `ended` disconnects when all have ended.
    end: Option<SyncSender<()>>,
    ended: Mutex<Receiver<()>>,
}

impl Threads {
    pub(super) fn new(queues: Queues) -> Self {
        let (end, ended) = sync_channel(1);
        Self {
            queues: Some(queues),
            handles: Vec::new(),
            end: Some(end),
            ended: Mutex::new(ended),
        }
    }

    pub(super) fn start(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let end = self.end.clone();
        // A thread, because the calls block. The adapter joins it; the task group runs only roles.
        let handle = Builder::new().name(name.to_owned()).spawn(move || {
            body();
            drop(end);
        });
        let handle =
            handle.map_err(|error| Error::Unusable(format!("cannot start {name}: {error}")))?;
        self.handles.push(handle);
        Ok(())
    }

    pub(super) fn queues(&self) -> &Queues {
        self.queues.as_ref().expect("dropped only with the store")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queues = None;
        self.end = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if matches!(
            ended.recv_timeout(JOIN_TIMEOUT),
            Err(RecvTimeoutError::Timeout)
        ) {
            tracing::warn!("the embedded store does not end in time: leaving its threads behind");
            return;
        }
        for handle in self.handles.drain(..) {
            let name = handle.thread().name().unwrap_or_default().to_owned();
            if handle.join().is_err() {
                tracing::error!(thread = name, "a thread of the embedded store panicked");
            }
        }
    }
}
