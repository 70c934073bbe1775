//! The contract of every source, target and catalog, as tests.
//!
//! They run on the memory cluster in every test run, and on a real Kafka and NATS in the
//! integration tests. They know no broker: a [`BrokerUnderTest`] creates the clients and acts as
//! operators and other programs would.

mod source;
mod target;
mod transact;

use crate::broker::{
    DeliveryReport, Event, GroupAdmin, OutgoingRecord, RecordBatch, SendResult, Source, Target,
    TransactionalProducers,
};
use crate::model::header::{Header, push_header};
use crate::model::{Headers, Offset, Partition, Timestamp};
use async_trait::async_trait;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

/// A broker under test.
#[async_trait(?Send)]
pub(crate) trait BrokerUnderTest {
    fn source(&self, group: &str, topics: &[String]) -> Box<dyn Source>;
    fn target(&self, in_flight_max: usize) -> Box<dyn Target>;
    fn catalog(&self) -> Box<dyn GroupAdmin>;
    fn transactional_producers(&self) -> Box<dyn TransactionalProducers>;

    /// A part of every name, so that two runs on one broker do not collide.
    fn run_id(&self) -> String;

    /// Returns whether the broker has transactions, topics that can grow, and headers with arbitrary bytes.
    /// Without them, a topic of the contract is several topics of the broker, one per partition,
    /// and the cases that need these features are skipped.
    fn is_kafka(&self) -> bool {
        true
    }

    /// The offset of the first record of a partition.
    fn first_offset(&self) -> u64 {
        0
    }

    fn partition(&self, topic: &str, index: i32) -> Partition {
        Partition::new(topic, index)
    }

    /// The topic names that a source has to read for a topic of the contract.
    fn source_topics(&self, topic: &str, partitions: usize) -> Vec<String> {
        let _whatever_their_number = partitions;
        vec![topic.to_owned()]
    }

    /// The topic and partition that a target has to send to.
    fn target_address(&self, topic: &str, partition: Option<i32>) -> (String, Option<i32>) {
        (topic.to_owned(), partition)
    }

    /// Names that a target rejects.
    fn impossible_targets(&self) -> Vec<String> {
        [
            "no spaces",
            "a\0b",
            "",
            "ümlaut",
            "^.*",
            "a/b",
            &"x".repeat(250),
            ".",
            "..",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// `bytes_max`: the topic rejects larger records.
    async fn create_topic(&self, name: &str, partitions: i32, bytes_max: Option<usize>);
    async fn delete_topic(&self, name: &str);
    /// Grows the topic to this number of partitions.
    async fn add_partitions(&self, name: &str, total: i32);
    /// Removes the records before `first`, as retention does.
    async fn trim(&self, partition: &Partition, first: Offset);
    /// Writes offsets that no consumer reads: an aborted transaction of at least one record.
    async fn abort_transaction(&self, partition: &Partition);
    /// Takes the broker down and brings it back with its data. `false`: not supported, the case is
    /// skipped.
    async fn outage(&self) -> bool;
}

/// Runs the cases that other tests on the same broker do not notice.
pub(crate) async fn run_shared(broker: &dyn BrokerUnderTest) {
    source::all(broker).await;
    target::all(broker).await;
    if broker.is_kafka() {
        transact::all(broker).await;
    }
}

/// Runs the cases that need the broker for themselves.
pub(crate) async fn run_outages(broker: &dyn BrokerUnderTest) {
    target::an_outage_loses_no_record_and_keeps_the_order(broker).await;
    source::reading_continues_after_an_outage(broker).await;
    if broker.is_kafka() {
        transact::a_transaction_open_during_an_outage_is_committed_after_it(broker).await;
    }
}

/// Time limit for every step on a real broker.
const PATIENCE: Duration = Duration::from_secs(60);

/// Panics with the name of the step instead of hanging.
async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("timed out after {limit:?}: {what}"),
    }
}

/// A name that no other case of any run uses.
fn unique_name(broker: &dyn BrokerUnderTest, what: &str) -> String {
    thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
    COUNT.set(COUNT.get() + 1);
    format!("{}-{what}-{}", broker.run_id(), COUNT.get())
}

async fn create_topic(broker: &dyn BrokerUnderTest, what: &str, partitions: i32) -> String {
    let name = unique_name(broker, what);
    broker.create_topic(&name, partitions, None).await;
    name
}

/// An owned record; the offset is set if it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnedRecord {
    offset: u64,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl OwnedRecord {
    fn text(payload: impl Into<String>) -> Self {
        Self {
            payload: Some(payload.into().into_bytes()),
            ..Self::default()
        }
    }

    fn keyed(key: &[u8]) -> Self {
        Self {
            key: Some(key.to_vec()),
            ..Self::default()
        }
    }
}

/// The payload as a number.
fn payload_number(owned: &OwnedRecord) -> u64 {
    let payload = owned
        .payload
        .as_deref()
        .and_then(|payload| std::str::from_utf8(payload).ok());
    payload
        .and_then(|payload| payload.parse().ok())
        .expect("a payload that is a number")
}

fn keep_all_headers(_: &[u8]) -> bool {
    true
}

/// A topic in the form that a target expects.
#[derive(Clone)]
struct Address(String, Option<i32>);

fn address_of(broker: &dyn BrokerUnderTest, topic: &str, partition: Option<i32>) -> Address {
    let (topic, partition) = broker.target_address(topic, partition);
    Address(topic, partition)
}

fn send(
    target: &mut dyn Target,
    Address(topic, partition): &Address,
    owned: &OwnedRecord,
    ticket: u64,
) -> SendResult {
    let mut block = Vec::new();
    owned
        .headers
        .iter()
        .for_each(|(name, value)| push_header(&mut block, name, value.as_deref()));
    let headers = Headers::from_block(&block);
    let (key, payload) = (owned.key.as_deref(), owned.payload.as_deref());
    target.send(
        &OutgoingRecord {
            topic,
            partition: *partition,
            key,
            payload,
            headers,
            keep_header: keep_all_headers,
            extra_headers: &[],
        },
        ticket,
    )
}

/// The reports of this many records, by ticket. Each must arrive once.
async fn reports(target: &mut dyn Target, count: usize) -> BTreeMap<u64, DeliveryReport> {
    let mut found = BTreeMap::new();
    while found.len() < count {
        let reports = within(PATIENCE, "reports", target.next_reports()).await;
        assert!(!reports.is_empty(), "an empty reply");
        for report in reports {
            let again = found.insert(report.ticket, report);
            assert!(again.is_none(), "reported twice: {again:?}");
        }
    }
    found
}

/// Sends all records, also when the target is full at times, and expects every one to be delivered.
async fn deliver(target: &mut dyn Target, to: &Address, all: &[OwnedRecord]) {
    let (mut sent, mut delivered) = (0, BTreeSet::new());
    while delivered.len() < all.len() {
        while let Some(owned) = all.get(sent) {
            match send(target, to, owned, sent as u64) {
                SendResult::Accepted => sent += 1,
                SendResult::QueueFull => break,
                SendResult::Failed(failure) => panic!("record {sent}: {failure:?}"),
            }
        }
        for report in within(PATIENCE, "reports", target.next_reports()).await {
            assert_eq!(report.outcome, Ok(()), "record {}", report.ticket);
            assert!(
                delivered.insert(report.ticket),
                "record {} was reported twice",
                report.ticket
            );
        }
    }
}

fn numbered_records(numbers: std::ops::Range<u64>) -> Vec<OwnedRecord> {
    numbers
        .map(|number| OwnedRecord::text(number.to_string()))
        .collect()
}

/// A source of a new group.
fn new_source(broker: &dyn BrokerUnderTest, topic: &str, partitions: usize) -> Box<dyn Source> {
    let group = unique_name(broker, "group");
    broker.source(&group, &broker.source_topics(topic, partitions))
}

/// The records of one partition in one epoch, up to its end.
async fn read_to_end(
    source: &mut dyn Source,
    partition: &Partition,
    epoch: u64,
) -> (Vec<OwnedRecord>, Offset) {
    let mut read = Vec::new();
    loop {
        match within(PATIENCE, "the end of a partition", source.next_event())
            .await
            .expect("the source works")
        {
            Event::Records(batch) => {
                assert_eq!((&batch.partition, batch.epoch), (partition, epoch));
                read.extend(owned_records(&batch));
            }
            Event::EndReached {
                partition: of,
                epoch: its,
                at,
            } if (&of, its) == (partition, epoch) => return (read, at),
            // Records that were never visible may be reported as removed.
            Event::RecordsRemoved {
                partition: of,
                epoch: its,
                ..
            } if (&of, its) == (partition, epoch) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn owned_records(batch: &RecordBatch) -> Vec<OwnedRecord> {
    let owned = |(name, value): Header<'_>| (name.to_vec(), value.map(<[u8]>::to_vec));
    let owned = |record: crate::model::Record<'_>| {
        let timestamp = record
            .timestamp
            .expect("a record that was sent has a timestamp");
        assert!(timestamp > Timestamp::YEAR_2000);
        OwnedRecord {
            offset: record.offset.0,
            key: record.key.map(<[u8]>::to_vec),
            payload: record.payload.map(<[u8]>::to_vec),
            headers: record.headers.iter().map(owned).collect(),
        }
    };
    batch.iter().map(owned).collect()
}
