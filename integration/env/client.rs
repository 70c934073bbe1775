//! Plain Kafka clients, independent of Postdate. Tests use them to send messages and check
//! deliveries.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{
    BorrowedMessage, DeliveryResult, Header, Headers as _, Message as _, OwnedHeaders,
};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use super::{PATIENCE, unique};

/// A record read from a topic. An absent key or value stays distinct from an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// The record's own timestamp, in epoch milliseconds.
    pub(crate) timestamp: i64,
    /// Time at which this process read it, in epoch milliseconds.
    pub(crate) arrived: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    fn of(message: &BorrowedMessage<'_>) -> Record {
        let headers = message
            .headers()
            .into_iter()
            .flat_map(|headers| headers.iter());
        Record {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            timestamp: message.timestamp().to_millis().unwrap_or(-1),
            arrived: now_ms(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers: headers
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        }
    }

    /// The first header of this name, if its value is UTF-8.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(key, _)| key == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

/// Reads all partitions of its topics from the start on its own thread, also partitions that are
/// added later.
pub(crate) struct Sink {
    topics: Vec<String>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    records: Mutex<Vec<Record>>,
    came: Condvar,
    stop: AtomicBool,
}

impl Shared {
    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink {
    pub(crate) fn start(addr: &str, topics: &[&str]) -> Sink {
        let topics: Vec<String> = topics.iter().map(|&topic| topic.to_owned()).collect();
        let mut reader = Reader::new(addr, &topics);
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !theirs.stop.load(Ordering::Relaxed) {
                if let Some(Next::Record(record)) = reader.next() {
                    theirs.records().push(record);
                    theirs.came.notify_all();
                }
            }
        });
        Sink {
            topics,
            shared,
            thread: Some(thread),
        }
    }

    /// Reads a topic up to the last stable offset of each partition. Each partition's records are
    /// in order.
    pub(crate) fn read_to_end(addr: &str, topic: &str) -> Vec<Record> {
        let mut reader = Reader::new(addr, &[topic.to_owned()]);
        let (mut records, mut ended, start) = (Vec::new(), BTreeSet::new(), Instant::now());
        while reader.known.is_empty() || ended.len() < reader.known.len() {
            assert!(
                start.elapsed() < PATIENCE,
                "{topic} is not read to its end in {PATIENCE:?}, only {} records",
                records.len()
            );
            match reader.next() {
                Some(Next::Record(record)) => records.push(record),
                Some(Next::End(partition)) => drop(ended.insert(partition)),
                None => {}
            }
        }
        records
    }

    /// The records read so far, in order of arrival.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.shared.records().clone()
    }

    /// Waits until at least `count` records arrived and returns all of them.
    pub(crate) fn wait_for(&self, count: usize, limit: Duration) -> Vec<Record> {
        self.wait_until(&format!("{count} records"), limit, |records| {
            records.len() >= count
        })
    }

    /// Waits until `enough` accepts the records that arrived and returns all of them.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut enough: impl FnMut(&[Record]) -> bool,
    ) -> Vec<Record> {
        let (records, waited) = self
            .shared
            .came
            .wait_timeout_while(self.shared.records(), limit, |records| !enough(records))
            .unwrap_or_else(PoisonError::into_inner);
        let last: Vec<_> = records
            .iter()
            .rev()
            .take(20)
            .map(|record| (&record.topic, record.partition, record.offset))
            .collect();
        assert!(
            !waited.timed_out(),
            "waited {limit:?} in vain for {what} of {:?}; {} came, the latest first: {last:?}",
            self.topics,
            records.len()
        );
        records.clone()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

enum Next {
    Record(Record),
    End(i32),
}

struct Reader {
    consumer: BaseConsumer,
    topics: Vec<String>,
    known: BTreeSet<(String, i32)>,
    looked: Option<Instant>,
}

impl Reader {
    fn new(addr: &str, topics: &[String]) -> Reader {
        let consumer = ClientConfig::new()
            .set("bootstrap.servers", addr)
            .set("group.id", unique("sink"))
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("fetch.wait.max.ms", "10")
            .set("fetch.queue.backoff.ms", "10")
            .set("reconnect.backoff.max.ms", "500")
            .create()
            .expect("a consumer of a valid configuration");
        Reader {
            consumer,
            topics: topics.to_vec(),
            known: BTreeSet::new(),
            looked: None,
        }
    }

    /// Returns `None` if no record arrives within 50 milliseconds, or on an error such as an
    /// unreachable broker.
    fn next(&mut self) -> Option<Next> {
        let idle = if self.known.is_empty() {
            Duration::from_millis(50)
        } else {
            Duration::from_secs(1)
        };
        if self.looked.is_none_or(|looked| looked.elapsed() > idle) {
            self.assign_new_partitions();
            self.looked = Some(Instant::now());
        }
        match self.consumer.poll(Duration::from_millis(50))? {
            Ok(message) => Some(Next::Record(Record::of(&message))),
            Err(KafkaError::PartitionEOF(partition)) => Some(Next::End(partition)),
            Err(_) => None,
        }
    }

    fn assign_new_partitions(&mut self) {
        let mut new = TopicPartitionList::new();
        for topic in &self.topics {
            let Ok(metadata) = self
                .consumer
                .fetch_metadata(Some(topic), Duration::from_secs(1))
            else {
                continue;
            };
            for partition in metadata
                .topics()
                .iter()
                .flat_map(|topic| topic.partitions())
            {
                if self.known.insert((topic.clone(), partition.id())) {
                    new.add_partition_offset(topic, partition.id(), Offset::Beginning)
                        .expect("a valid offset");
                }
            }
        }
        if new.count() > 0 {
            self.consumer
                .incremental_assign(&new)
                .expect("partitions that were not assigned before");
        }
    }
}

/// A record to send. Fields that are not set are absent, not empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outgoing {
    topic: String,
    partition: Option<i32>,
    timestamp: Option<i64>,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Outgoing {
    pub(crate) fn to(topic: &str) -> Outgoing {
        Outgoing {
            topic: topic.to_owned(),
            ..Outgoing::default()
        }
    }

    pub(crate) fn partition(mut self, partition: i32) -> Outgoing {
        self.partition = Some(partition);
        self
    }

    /// Sets the record's timestamp in epoch milliseconds. Without it, the client uses its clock.
    pub(crate) fn timestamp(mut self, timestamp: i64) -> Outgoing {
        self.timestamp = Some(timestamp);
        self
    }

    pub(crate) fn key(mut self, key: impl AsRef<[u8]>) -> Outgoing {
        self.key = Some(key.as_ref().to_vec());
        self
    }

    pub(crate) fn payload(mut self, payload: impl AsRef<[u8]>) -> Outgoing {
        self.payload = Some(payload.as_ref().to_vec());
        self
    }

    /// Appends a header. Names may repeat.
    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Outgoing {
        self.headers
            .push((name.to_owned(), Some(value.as_ref().to_vec())));
        self
    }

    pub(crate) fn null_header(mut self, name: &str) -> Outgoing {
        self.headers.push((name.to_owned(), None));
        self
    }
}

/// Partition and offset of a sent record, or the broker's error.
pub(crate) type Receipt = Result<(i32, i64), RDKafkaErrorCode>;

/// Sends records with an idempotent producer and the partitioner of the Java client.
pub(crate) struct Producer {
    client: ThreadedProducer<Receipts>,
    sent: Mutex<usize>,
}

/// Delivery results since the last flush, each with the index of its record in sending order.
#[derive(Default)]
struct Receipts(Mutex<Vec<(usize, Receipt)>>);

impl ClientContext for Receipts {}

impl ProducerContext for Receipts {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, index: Box<usize>) {
        let receipt = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(error
                .rdkafka_error_code()
                .unwrap_or(RDKafkaErrorCode::Unknown)),
        };
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((*index, receipt));
    }
}

impl Producer {
    pub(crate) fn start(addr: &str) -> Producer {
        Producer::start_with(addr, &[])
    }

    pub(crate) fn start_with(addr: &str, properties: &[(&str, &str)]) -> Producer {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", addr)
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random");
        config
            .set("message.max.bytes", "100000000")
            .set("linger.ms", "1")
            .set("reconnect.backoff.max.ms", "500");
        config.extend(
            properties
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned())),
        );
        let client = config
            .create_with_context(Receipts::default())
            .expect("a producer of a valid configuration");
        Producer {
            client,
            sent: Mutex::new(0),
        }
    }

    /// A producer that sends records in transactions: `begin`, then `commit` or `abort`. The broker
    /// aborts one only after ten minutes.
    pub(crate) fn transactional(addr: &str, id: &str) -> Producer {
        let options = [
            ("transactional.id", id),
            ("transaction.timeout.ms", "600000"),
        ];
        let producer = Producer::start_with(addr, &options);
        producer.client.init_transactions(PATIENCE).unwrap();
        producer
    }

    pub(crate) fn begin(&self) {
        self.client.begin_transaction().unwrap();
    }

    pub(crate) fn commit(&self) {
        self.client.commit_transaction(PATIENCE).unwrap();
    }

    pub(crate) fn abort(&self) {
        self.client.abort_transaction(PATIENCE).unwrap();
    }

    /// Queues a record. `flush` reports the result.
    pub(crate) fn send(&self, outgoing: &Outgoing) {
        let headers = outgoing.headers.iter().fold(
            OwnedHeaders::new_with_capacity(outgoing.headers.len()),
            |headers, (key, value)| {
                headers.insert(Header {
                    key,
                    value: value.as_ref(),
                })
            },
        );
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut record =
            BaseRecord::<[u8], [u8], _>::with_opaque_to(&outgoing.topic, Box::new(*sent))
                .headers(headers);
        record.key = outgoing.key.as_deref();
        record.payload = outgoing.payload.as_deref();
        record.partition = outgoing.partition;
        record.timestamp = outgoing.timestamp;
        while let Err((error, back)) = self.client.send(record) {
            assert_eq!(
                error.rdkafka_error_code(),
                Some(RDKafkaErrorCode::QueueFull),
                "{outgoing:?}"
            );
            record = back;
            std::thread::sleep(Duration::from_millis(1));
        }
        *sent += 1;
    }

    /// Waits for the broker's answers since the last flush. Returns partition and offset of each
    /// record in sending order.
    pub(crate) fn flush(&self) -> Vec<(i32, i64)> {
        self.receipts()
            .into_iter()
            .map(|receipt| receipt.expect("the broker takes what the test sends"))
            .collect()
    }

    /// As `flush`, but returns errors for records that the broker refuses.
    pub(crate) fn receipts(&self) -> Vec<Receipt> {
        self.client.flush(PATIENCE).unwrap();
        let mut receipts = std::mem::take(
            &mut *self
                .client
                .context()
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        receipts.sort_by_key(|(index, _)| *index);
        receipts.into_iter().map(|(_, receipt)| receipt).collect()
    }
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292 million")
}
