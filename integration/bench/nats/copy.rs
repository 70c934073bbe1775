//! Measures the baselines on NATS: reading a stream, and copying it into another one with all
//! messages confirmed.
//!
//! It uses the same client library as the service.

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, Subject};
use tokio::runtime::Builder;

use super::client::{Reader, Sender, connect};

/// Reads `count` messages of a stream.
pub(super) fn read(addr: &str, stream: &str, count: usize) {
    block_on(async {
        let mut reader = Reader::open(&connect(addr).await, stream).await;
        for _ in 0..count {
            reader.next().await;
        }
    });
}

/// Copies `count` messages. With `has_ids` each message gets its own id, so that the server drops a
/// repeat.
pub(super) fn copy(addr: &str, from: &str, to: &str, count: usize, has_ids: bool) {
    block_on(async {
        let client = connect(addr).await;
        let (mut reader, mut sender) = (
            Reader::open(&client, from).await,
            Sender::open(&connect(addr).await).await,
        );
        let subject = Subject::from(format!("{to}.all"));
        for number in 0..count {
            let message = reader.next().await;
            let mut headers: HeaderMap = message
                .headers
                .expect("every message of the load has headers");
            if has_ids {
                headers.insert(NATS_MESSAGE_ID, format!("{from}/{number}"));
            }
            sender.send(subject.clone(), headers, message.payload).await;
        }
        sender.finish().await;
    });
}

/// Runs a future on a runtime of the current thread, with all its connections.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}
