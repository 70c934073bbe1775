//! What arrives, counted as it comes by a reader that sees only what is committed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use crate::fleet::{DEAD, PARTITIONS, TARGET};

/// What came of one number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Came {
    pub(crate) times: u32,
    /// The broker's stamp of the first.
    pub(crate) first: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) by_number: Vec<Came>,
    pub(crate) doubled: usize,
    /// What nobody sent, or what was sent in a transaction that was aborted.
    pub(crate) foreign: usize,
    pub(crate) dead: usize,
}

impl Arrived {
    pub(crate) fn count(&self) -> usize {
        self.by_number.iter().filter(|came| came.times > 0).count()
    }

    fn add(&mut self, payload: &[u8], stamp: i64) {
        let number = payload.get(..10).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
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
        self.doubled += usize::from(came.times > 0);
        came.times += 1;
    }
}

pub(crate) struct Tally {
    arrived: Arc<Mutex<Arrived>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tally {
    pub(crate) fn start(addr: &str) -> Self {
        let (arrived, stop): (Arc<Mutex<Arrived>>, _) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let consumer = consumer(addr);
        let (theirs, theirs_stop) = (Arc::clone(&arrived), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !theirs_stop.load(Ordering::Relaxed) {
                // A broker that is away is waited for.
                let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
                let mut arrived = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                if message.topic() == DEAD {
                    arrived.dead += 1;
                } else {
                    arrived.add(message.payload().unwrap_or_default(), message.timestamp().to_millis().unwrap_or(0));
                }
            }
        });
        Self { arrived, stop, thread: Some(thread) }
    }

    pub(crate) fn so_far<T>(&self, of: impl FnOnce(&Arrived) -> T) -> T {
        of(&self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn end(mut self) -> Arrived {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().expect("the reader does not fail"));
        self.so_far(Arrived::clone)
    }
}

fn consumer(addr: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", addr).set("group.id", "chaos-tally").set("enable.auto.commit", "false");
    config.set("isolation.level", "read_committed").set("auto.offset.reset", "earliest").set("reconnect.backoff.max.ms", "500");
    let consumer: BaseConsumer = config.create().expect("a consumer of a valid configuration");
    let mut partitions = TopicPartitionList::new();
    for (topic, count) in [(TARGET, PARTITIONS), (DEAD, 1)] {
        for partition in 0..count {
            partitions.add_partition_offset(topic, partition, Offset::Beginning).expect("a valid offset");
        }
    }
    consumer.assign(&partitions).expect("partitions can be assigned");
    consumer
}
