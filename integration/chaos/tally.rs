//! Counts the messages that arrive at the target and at the dead-letter destination.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::server::{DEAD, Server, WINDOW, url};
use crate::{kafka, nats};

/// The arrivals of one message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Came {
    pub(crate) times: u32,
    /// Broker timestamps of the first and the last arrival, in epoch milliseconds.
    pub(crate) first: i64,
    last: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) by_number: Vec<Came>,
    /// Broker timestamps of the duplicates.
    pub(crate) again: Vec<i64>,
    /// Duplicates within the duplicate window of a NATS stream. The stream should have dropped
    /// these.
    pub(crate) soon_doubled: usize,
    /// Messages that are no part of the load, such as those of an aborted transaction.
    pub(crate) foreign: usize,
    pub(crate) dead: usize,
}

impl Arrived {
    pub(crate) fn count(&self) -> usize {
        self.by_number.iter().filter(|came| came.times > 0).count()
    }

    fn add(&mut self, payload: &[u8], stamp: i64) {
        let number = payload
            .get(..10)
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
        let Some(number) = number else {
            self.foreign += 1;
            return;
        };
        if self.by_number.len() <= number {
            self.by_number.resize(number + 1, Came::default());
        }
        let came = &mut self.by_number[number];
        if came.times == 0 {
            came.first = stamp;
        }
        self.again.extend((came.times > 0).then_some(stamp));
        self.soon_doubled +=
            usize::from(came.times > 0 && stamp - came.last < WINDOW.as_millis() as i64);
        came.last = stamp;
        came.times += 1;
    }
}

/// A shared count of the arrivals. Clones share the same count.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<Mutex<Arrived>>);

impl Count {
    /// Counts a message that `topic` received at `stamp`, in epoch milliseconds.
    pub(crate) fn see(&self, topic: &str, payload: &[u8], stamp: i64) {
        let mut arrived = self.arrived();
        if topic == DEAD {
            arrived.dead += 1;
        } else {
            arrived.add(payload, stamp);
        }
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Tally {
    count: Count,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tally {
    pub(crate) fn start(server: &Server) -> Self {
        let (count, stop) = (Count::default(), Arc::new(AtomicBool::new(false)));
        let (theirs, theirs_stop) = (count.clone(), stop.clone());
        let thread = match server {
            Server::Kafka(kafka) => {
                let addr = kafka.addr();
                std::thread::spawn(move || kafka::read(&addr, &theirs, &theirs_stop))
            }
            Server::Nats(nats) => {
                let url = url(nats);
                std::thread::spawn(move || nats::read(&url, &theirs, &theirs_stop))
            }
        };
        Self {
            count,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn so_far<T>(&self, of: impl FnOnce(&Arrived) -> T) -> T {
        of(&self.count.arrived())
    }

    pub(crate) fn end(mut self) -> Arrived {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .into_iter()
            .for_each(|thread| thread.join().expect("the reader does not fail"));
        self.so_far(Arrived::clone)
    }
}
