//! The adapters' own threads: named, woken by unparking, and joined with a deadline, for a client library may hang
//! while it closes a client.

use crate::limit::CLIENT_CLOSE_TIMEOUT;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{Builder, JoinHandle};
use tokio::sync::oneshot;

/// A thread that is told to end by other means, and joined here. Dropping it joins it too, blocking.
pub(super) struct ClientThread {
    handle: Option<JoinHandle<()>>,
    ended: Receiver<()>,
    told: Option<oneshot::Receiver<()>>,
}

impl ClientThread {
    #[expect(
        clippy::disallowed_methods,
        reason = "an adapter starts and joins the thread of its client library"
    )]
    pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (ends, ended) = sync_channel(1);
        let (tells, told) = oneshot::channel();
        let handle = Builder::new().name(name.to_owned()).spawn(move || {
            body();
            drop((ends, tells));
        })?;
        Ok(Self {
            handle: Some(handle),
            ended,
            told: Some(told),
        })
    }

    pub(super) fn unpark(&self) {
        if let Some(handle) = &self.handle {
            handle.thread().unpark();
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the thread, which was told to end, has ended. Dropped early, the rest of the wait is the drop's.
    pub(super) async fn join(&mut self) {
        if let Some(told) = &mut self.told {
            let in_time = tokio::time::timeout(CLIENT_CLOSE_TIMEOUT, told)
                .await
                .is_ok();
            self.told = None;
            self.finish(in_time);
        }
    }

    fn finish(&mut self, in_time: bool) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        let name = handle.thread().name().unwrap_or_default().to_owned();
        if !in_time {
            tracing::warn!(
                thread = name,
                "a client does not end in time, as may be while its broker does not answer: its thread is left behind"
            );
        } else if handle.join().is_err() {
            tracing::error!(thread = name, "a thread of a client panicked");
        }
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        if self.handle.is_some() {
            self.unpark();
            let in_time = !matches!(
                self.ended.recv_timeout(CLIENT_CLOSE_TIMEOUT),
                Err(RecvTimeoutError::Timeout)
            );
            self.finish(in_time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn a_thread_is_joined_whether_ended_or_dropped() {
        for dropped in [true, false] {
            let stop = Arc::new(AtomicBool::new(false));
            let theirs = stop.clone();
            let mut thread = ClientThread::start("test", move || {
                while !theirs.load(Ordering::Relaxed) {
                    std::thread::park();
                }
            })
            .unwrap();
            stop.store(true, Ordering::Relaxed);
            thread.unpark();
            if dropped {
                drop(thread);
            } else {
                thread.join().await;
                assert!(thread.handle.is_none());
            }
            assert_eq!(Arc::strong_count(&stop), 1, "the thread's copy is gone");
        }
    }

    #[tokio::test]
    async fn a_thread_that_panicked_is_joined_too() {
        let mut thread = ClientThread::start("test", || panic!("as planned")).unwrap();
        thread.join().await;
        assert!(thread.handle.is_none());
    }
}
