//! Runs the NATS clients of a chaos run: the publisher, a publisher of stray messages, and a
//! reader.
//!
//! Stray messages have another subject of the source stream, so none of these may arrive.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, Error, HeaderMap, ServerAddr};
use futures_util::StreamExt as _;
use futures_util::future::join_all;

use crate::sender::{BEAT, Load, payload};
use crate::server::{ARRIVED, PARTITIONS, STRAY, subject};
use crate::tally::Count;

/// Timeout for an answer of the server, and for the next message of a reader. Both retry after it.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Stop retrying unconfirmed messages after this time. It is longer than any fault of the server
/// lasts.
const LAST_MAX: Duration = Duration::from_secs(60);

/// Publishes the load. Retries every unconfirmed message under the same `Nats-Msg-Id`.
pub(crate) fn load(url: &str, mut load: Load) {
    block_on(async {
        let context = connect(url).await;
        while let Some(mut open) = load.batch() {
            let began = Instant::now();
            while !open.is_empty() && began.elapsed() < LAST_MAX {
                open = send(&context, &load, open).await;
            }
        }
    });
}

/// Publishes a batch once. Returns the messages that the server did not confirm.
async fn send(context: &Context, load: &Load, batch: Vec<(usize, i64)>) -> Vec<(usize, i64)> {
    let mut acks = Vec::new();
    for (number, due) in &batch {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", number.to_string());
        headers.insert("postdate-at", due.to_string());
        acks.push(
            context
                .publish_with_headers(
                    subject(number % PARTITIONS as usize),
                    headers,
                    payload(*number).into(),
                )
                .await,
        );
    }
    // Wait for all acknowledgements together, because each may take up to `ANSWER_MAX`.
    let confirmed = join_all(acks.into_iter().map(async |ack| ack.ok()?.await.ok())).await;
    let mut open = Vec::new();
    for ((number, due), ack) in batch.into_iter().zip(confirmed) {
        match ack {
            Some(ack) => load.lies(
                number,
                (
                    (number % PARTITIONS as usize) as i32,
                    ack.sequence.cast_signed(),
                ),
            ),
            None => open.push((number, due)),
        }
    }
    open
}

/// Publishes 20 stray messages per second between the messages of the source.
pub(crate) fn stray(url: &str, stop: &AtomicBool) {
    block_on(async {
        let context = connect(url).await;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..2 {
                // A lost stray message does not matter, so errors are ignored.
                let _ = context.publish(STRAY, "stray".into()).await;
            }
            tokio::time::sleep(BEAT).await;
        }
    });
}

/// Reads until `stop` is set. Waits for a server that is down.
pub(crate) fn read(url: &str, count: &Count, stop: &AtomicBool) {
    block_on(async {
        let (context, mut next) = (connect(url).await, 1);
        while !stop.load(Ordering::Relaxed) {
            if read_from(&context, &mut next, count, stop).await.is_err() {
                tokio::time::sleep(BEAT).await;
            }
        }
    });
}

/// Reads from sequence `next` until no message comes within `ANSWER_MAX`. The stream is then at its
/// end or the server is down.
async fn read_from(
    context: &Context,
    next: &mut u64,
    count: &Count,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let deliver_policy = DeliverPolicy::ByStartSequence {
        start_sequence: *next,
    };
    let config = pull::OrderedConfig {
        deliver_policy,
        ..pull::OrderedConfig::default()
    };
    let consumer = context
        .get_stream(ARRIVED)
        .await?
        .create_consumer(config)
        .await?;
    let mut messages = consumer.messages().await?;
    while !stop.load(Ordering::Relaxed) {
        let Some(message) = tokio::time::timeout(ANSWER_MAX, messages.next()).await? else {
            break;
        };
        let message = message?;
        let info = message.info()?;
        // A recreated consumer may start before `next`.
        if info.stream_sequence >= *next {
            *next = info.stream_sequence + 1;
            let stamp = info.published.unix_timestamp_nanos() / 1_000_000;
            count.see(&message.subject, &message.payload, stamp as i64);
        }
    }
    Ok(())
}

/// `url` has the addresses of all servers, with commas between them.
async fn connect(url: &str) -> Context {
    let servers = url.split(',').map(|server| server.parse().expect("a URL"));
    let servers: Vec<ServerAddr> = servers.collect();
    let options = ConnectOptions::new()
        .connection_timeout(ANSWER_MAX)
        .ping_interval(Duration::from_secs(1));
    let delay = |_| Duration::from_millis(200);
    let client = options
        .reconnect_delay_callback(delay)
        .connect(servers)
        .await
        .expect("the server was just started");
    let mut context = jetstream::new(client);
    context.set_timeout(ANSWER_MAX);
    context
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}
