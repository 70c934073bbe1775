//! Generates the load of a chaos run and records each message that was sent.
//!
//! Each message has a number and a due time. The modules `kafka` and `nats` send the messages, and
//! other traffic that must never arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::env::now_ms;
use crate::server::{Server, url};
use crate::{kafka, nats};

/// Interval between two batches of the load.
pub(crate) const BEAT: Duration = Duration::from_millis(100);

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) due: i64,
    /// Partition and offset, set when the broker acknowledges the message.
    pub(crate) place: Option<(i32, i64)>,
}

pub(crate) struct Sender {
    book: Book,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Sender {
    pub(crate) fn start(server: &Server, rate: u32, seed: u64) -> Self {
        let (book, stop) = (Book::default(), Arc::new(AtomicBool::new(false)));
        let load = Load {
            book: book.clone(),
            stop: stop.clone(),
            began: Instant::now(),
            rate,
            count: 0,
            random: StdRng::seed_from_u64(seed),
        };
        let beside = stop.clone();
        let threads = match server {
            Server::Kafka(kafka) => {
                let [to, vain] = [kafka.addr(), kafka.addr()];
                vec![
                    std::thread::spawn(move || kafka::load(&to, load)),
                    std::thread::spawn(move || kafka::abort_transactions(&vain, &beside)),
                ]
            }
            Server::Nats(nats) => {
                let [to, vain] = [url(nats), url(nats)];
                vec![
                    std::thread::spawn(move || nats::load(&to, load)),
                    std::thread::spawn(move || nats::stray(&vain, &beside)),
                ]
            }
        };
        Self {
            book,
            stop,
            threads,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.book.lines().len()
    }

    /// Stops the load. Returns all messages that were sent, indexed by number.
    pub(crate) fn end(mut self) -> Vec<Sent> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads
            .drain(..)
            .for_each(|thread| thread.join().expect("the sender does not fail"));
        std::mem::take(&mut *self.book.lines())
    }
}

/// The messages sent so far, indexed by number. Clones share the same list.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<Vec<Sent>>>);

impl Book {
    fn lines(&self) -> MutexGuard<'_, Vec<Sent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Generates the messages of the load, at a steady rate.
pub(crate) struct Load {
    book: Book,
    stop: Arc<AtomicBool>,
    began: Instant,
    /// Messages per second.
    rate: u32,
    count: u64,
    random: StdRng,
}

impl Load {
    /// Waits for one `BEAT` and returns the number and due time of each message to send. Returns
    /// `None` once the load is stopped.
    pub(crate) fn batch(&mut self) -> Option<Vec<(usize, i64)>> {
        std::thread::sleep(BEAT);
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let wanted = self.began.elapsed().as_millis() as u64 * u64::from(self.rate) / 1_000;
        // After an outage, send at most one second's worth of messages. The load does not catch up
        // on the rest.
        let batch = (wanted - self.count).min(u64::from(self.rate)) as usize;
        self.count = wanted;
        let now = now_ms();
        let dues: Vec<_> = (0..batch).map(|_| now + delay(&mut self.random)).collect();
        let mut lines = self.book.lines();
        let from = lines.len();
        lines.extend(dues.iter().map(|due| Sent {
            due: *due,
            place: None,
        }));
        Some((from..).zip(dues).collect())
    }

    /// Records the partition and offset of an acknowledged message.
    pub(crate) fn lies(&self, number: usize, place: (i32, i64)) {
        self.book.lines()[number].place = Some(place);
    }
}

pub(crate) fn payload(number: usize) -> String {
    format!("{number:010}{}", "x".repeat(180))
}

/// A delay in milliseconds: 10 % zero, 10 % from 20 to 60 s, the others from 0.5 to 20 s.
fn delay(random: &mut StdRng) -> i64 {
    match random.random_range(0..10) {
        0 => 0,
        1 => random.random_range(20_000..60_000),
        _ => random.random_range(500..20_000),
    }
}
