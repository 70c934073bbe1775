//! The load: numbered messages with dues of their own, as a producer of the users' sends them; and beside them transactions that are aborted,
//! of which nothing may ever arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::env::{Outgoing, Producer, now_ms};
use crate::fleet::SOURCE;

/// What a message of an aborted transaction says.
pub(crate) const ABORTED: &str = "aborted";

/// Source partitions, from the first, that have such transactions: who reads what is committed waits behind one that is left open by a fault.
pub(crate) const ABORTED_PARTITIONS: i32 = 2;

const BEAT: Duration = Duration::from_millis(100);

/// One message that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) due: i64,
    /// Partition and offset, once the broker has it for certain.
    pub(crate) place: Option<(i32, i64)>,
}

pub(crate) struct Sender {
    sent: Arc<Mutex<Vec<Sent>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Sender {
    pub(crate) fn start(addr: &str, rate: u32, seed: u64) -> Self {
        let (sent, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let load = {
            let (addr, sent, stop) = (addr.to_owned(), Arc::clone(&sent), Arc::clone(&stop));
            std::thread::spawn(move || load(&addr, rate, StdRng::seed_from_u64(seed), &sent, &stop))
        };
        let aborts = {
            let (addr, stop) = (addr.to_owned(), Arc::clone(&stop));
            std::thread::spawn(move || abort_transactions(&addr, &stop))
        };
        Self { sent, stop, threads: vec![load, aborts] }
    }

    pub(crate) fn count(&self) -> usize {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Ends it, and answers all that was sent, by number.
    pub(crate) fn end(mut self) -> Vec<Sent> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("the sender does not fail"));
        std::mem::take(&mut *self.sent.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn load(addr: &str, rate: u32, mut random: StdRng, sent: &Mutex<Vec<Sent>>, stop: &AtomicBool) {
    let producer = Producer::start_with(addr, &[("message.timeout.ms", "0")]);
    let (began, mut count) = (Instant::now(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        let from = sent.lock().unwrap_or_else(PoisonError::into_inner).len();
        let wanted = began.elapsed().as_millis() as u64 * u64::from(rate) / 1_000;
        // After an outage it goes on at its rate, and does not catch up.
        let batch = (wanted - count).min(u64::from(rate)) as usize;
        count = wanted;
        let now = now_ms();
        let dues: Vec<_> = (0..batch).map(|_| now + delay(&mut random)).collect();
        for (at, due) in dues.iter().enumerate() {
            let number = from + at;
            let payload = format!("{number:010}{}", "x".repeat(180));
            producer
                .send(&Outgoing::to(SOURCE).key(format!("{:012}", number % 5_000)).payload(payload).header("postdate-at", due.to_string()));
        }
        let batch = dues.into_iter().map(|due| Sent { due, place: None });
        sent.lock().unwrap_or_else(PoisonError::into_inner).extend(batch);
        let receipts = producer.receipts();
        let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
        receipts.iter().enumerate().for_each(|(at, receipt)| sent[from + at].place = receipt.ok());
        drop(sent);
        std::thread::sleep(BEAT);
    }
}

/// Milliseconds: some at once, most within seconds, some over a minute.
fn delay(random: &mut StdRng) -> i64 {
    match random.random_range(0..10) {
        0 => 0,
        1 => random.random_range(20_000..60_000),
        _ => random.random_range(500..20_000),
    }
}

/// Whatever fails is tried again with a new client.
fn abort_transactions(addr: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", addr).set("transactional.id", "chaos-aborts").set("transaction.timeout.ms", "10000");
        let producer: BaseProducer = config.create().expect("a producer of a valid configuration");
        let mut works = producer.init_transactions(Duration::from_secs(5)).is_ok();
        while works && !stop.load(Ordering::Relaxed) {
            works = abort_one(&producer).is_ok();
            std::thread::sleep(Duration::from_secs(1));
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn abort_one(producer: &BaseProducer) -> rdkafka::error::KafkaResult<()> {
    producer.begin_transaction()?;
    for number in 0..20 {
        let headers = OwnedHeaders::new().insert(Header { key: "postdate-after", value: Some("100ms") });
        let record = BaseRecord::to(SOURCE).payload(ABORTED).key("k").partition(number % ABORTED_PARTITIONS).headers(headers);
        producer.send(record).map_err(|(error, _)| error)?;
    }
    producer.poll(Duration::from_millis(100));
    producer.abort_transaction(Duration::from_secs(5))
}
