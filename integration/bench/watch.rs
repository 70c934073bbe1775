//! Records when a `read_committed` consumer sees each message of a target topic, by this machine's
//! clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::config::ClientConfig;

use crate::env::now_ms;
use crate::ledger::Verdict;
use crate::raw::Reader;
use crate::topics::Topics;
use crate::workload::Message;

/// Timeout of a read. librdkafka waits for a full batch or for this time, so it adds to the
/// measured lateness.
const GATHERS: Duration = Duration::from_millis(2);

/// A consumer that runs on its own thread until `end` is called.
pub(crate) struct Watch {
    count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// The messages that were seen.
#[derive(Default)]
pub(crate) struct Seen {
    arrived: Vec<(usize, i64)>,
    /// Messages whose payload contains no number.
    changed: usize,
}

impl Watch {
    pub(crate) fn start(topics: &Topics<'_>, topic: &str) -> Watch {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", topics.addr())
            .set("group.id", "watch")
            .set("enable.auto.commit", "false");
        config
            .set("isolation.level", "read_committed")
            .set("fetch.queue.backoff.ms", "10");
        let partitions = topics.all_of(topic);
        let (count, stop) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (counted, stopped) = (count.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (mut reader, mut seen) = (Reader::new(&config, &partitions), Seen::default());
            while !stopped.load(Ordering::Relaxed) {
                let came = reader.read(GATHERS, |message| {
                    match Message::number(message.payload()) {
                        Some(number) => seen.arrived.push((number, now_ms())),
                        None => seen.changed += 1,
                    }
                });
                counted.fetch_add(came, Ordering::Relaxed);
            }
            seen
        });
        Watch {
            count,
            stop,
            thread,
        }
    }

    /// Number of messages seen so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn end(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .expect("the watch reads until it is ended")
    }
}

impl Seen {
    /// When the last message was seen, in epoch milliseconds.
    pub(crate) fn last(&self) -> i64 {
        self.arrived.iter().map(|(_, at)| *at).max().unwrap_or(0)
    }

    /// The lateness of all messages in milliseconds, ascending.
    pub(crate) fn lateness(&self, due: impl Fn(usize) -> i64) -> Vec<i64> {
        self.lateness_of(|number| Some(due(number)))
    }

    /// The lateness of the messages for which `due` returns a time, in milliseconds, ascending.
    pub(crate) fn lateness_of(&self, due: impl Fn(usize) -> Option<i64>) -> Vec<i64> {
        let mut lateness: Vec<i64> = self
            .arrived
            .iter()
            .filter_map(|(number, at)| Some(at - due(*number)?))
            .collect();
        lateness.sort_unstable();
        lateness
    }

    /// Checks the messages against a load of `count`. A message that was seen before its due time
    /// is early, regardless of the broker's timestamp.
    pub(crate) fn judge(&self, count: usize, dead: usize, due: impl Fn(usize) -> i64) -> Verdict {
        let mut came = vec![0_usize; count];
        self.arrived
            .iter()
            .for_each(|(number, _)| came[*number] += 1);
        let early = self
            .arrived
            .iter()
            .filter(|(number, at)| *at < due(*number))
            .count();
        let doubled = came.iter().map(|times| times.saturating_sub(1)).sum();
        Verdict {
            count,
            lost: came.iter().filter(|times| **times == 0).count(),
            doubled,
            early,
            changed: self.changed,
            dead,
        }
    }
}
