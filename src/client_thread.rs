//! Threads of adapters whose calls block.
//!
//! A client library may hang while it closes a client. So a thread is joined with a deadline, and
//! is abandoned after it.

use crate::limit::CLIENT_CLOSE_TIMEOUT;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{Builder, JoinHandle, Thread};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A thread that its owner must tell to end. A drop blocks until it has ended or is abandoned.
pub(crate) struct ClientThread {
    /// `None` once joined or abandoned.
    handle: Option<JoinHandle<()>>,
    /// Both channels close at the end of the thread: one for `join_until`, one for `join`.
    ended: Receiver<()>,
    ended_async: Option<oneshot::Receiver<()>>,
}

impl ClientThread {
    #[expect(
        clippy::disallowed_methods,
        reason = "an adapter starts and joins the thread of its client library"
    )]
    pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (sender, ended) = sync_channel(1);
        let (async_sender, ended_async) = oneshot::channel();
        let handle = Builder::new().name(name.to_owned()).spawn(move || {
            body();
            drop(sender);
            drop(async_sender);
        })?;
        Ok(Self {
            handle: Some(handle),
            ended,
            ended_async: Some(ended_async),
        })
    }

    pub(crate) fn unpark(&self) {
        self.thread().into_iter().for_each(Thread::unpark);
    }

    /// `None` once joined or abandoned.
    pub(crate) fn thread(&self) -> Option<&Thread> {
        self.handle.as_ref().map(JoinHandle::thread)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the thread has ended, or abandons it after [`CLIENT_CLOSE_TIMEOUT`]. If this
    /// call is cancelled, `drop` waits instead.
    pub(crate) async fn join(&mut self) {
        if let Some(ended) = &mut self.ended_async {
            let in_time = tokio::time::timeout(CLIENT_CLOSE_TIMEOUT, ended)
                .await
                .is_ok();
            self.ended_async = None;
            self.finish(in_time);
        }
    }

    /// Blocks until the thread has ended, or abandons it at `deadline`.
    pub(crate) fn join_until(&mut self, deadline: Instant) {
        self.unpark();
        let timeout = deadline.saturating_duration_since(Instant::now());
        let ended = self.ended.recv_timeout(timeout);
        self.finish(!matches!(ended, Err(RecvTimeoutError::Timeout)));
    }

    fn finish(&mut self, in_time: bool) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        let thread = handle.thread().name().unwrap_or_default().to_owned();
        if !in_time {
            tracing::warn!(
                thread,
                "adapter thread did not end in time and is abandoned"
            );
        } else if handle.join().is_err() {
            tracing::error!(thread, "adapter thread panicked");
        }
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        if self.handle.is_some() {
            self.join_until(Instant::now() + CLIENT_CLOSE_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn both_join_and_drop_wait_for_the_thread() {
        for is_dropped in [true, false] {
            let stop = Arc::new(AtomicBool::new(false));
            let thread_stop = stop.clone();
            let mut thread = ClientThread::start("test", move || {
                while !thread_stop.load(Ordering::Relaxed) {
                    std::thread::park();
                }
            })
            .unwrap();
            stop.store(true, Ordering::Relaxed);
            thread.unpark();
            if is_dropped {
                drop(thread);
            } else {
                thread.join().await;
                assert!(thread.handle.is_none());
            }
            assert_eq!(Arc::strong_count(&stop), 1, "the thread's copy is gone");
        }
    }

    #[tokio::test]
    async fn a_thread_that_panicked_can_be_joined() {
        let mut thread = ClientThread::start("test", || panic!("as planned")).unwrap();
        thread.join().await;
        assert!(thread.handle.is_none());
    }
}
