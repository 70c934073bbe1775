//! The consumer that reads partitions from explicit offsets and batches their records.

use crate::broker::kafka::error::needs_operator;
use crate::broker::kafka::ffi::{Message, NativeConsumer};
use crate::broker::kafka::health::ClusterHealth;
use crate::broker::kafka::options::{ClientOptions, Cluster, NO_OPTIONS, kbytes};
use crate::broker::kafka::partition_list;
use crate::broker::{Error, Event, RecordBatch};
use crate::limit::{KAFKA_PREFETCH_BYTES_MAX, KAFKA_READ_MESSAGES_MAX, SOURCE_BATCH_BYTES_MAX};
use crate::model::{Offset, Partition, Timestamp};
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, VecDeque};

const OPTIONS: ClientOptions = ClientOptions {
    limits: &[
        (
            "queued.max.messages.kbytes",
            kbytes(KAFKA_PREFETCH_BYTES_MAX),
        ),
        ("fetch.max.bytes", KAFKA_PREFETCH_BYTES_MAX),
        // librdkafka stops fetching for this time when its queue is full. Its default, a second,
        // makes reading a backlog five times slower.
        ("fetch.queue.backoff.ms", 10),
        // A newly assigned partition waits for the current fetch.
        ("fetch.wait.max.ms", 100),
        // Any record that the broker accepts can be read.
        ("receive.message.max.bytes", 1024 * 1024 * 1024),
    ],
    enforced: &[
        ("auto.offset.reset", "error"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("enable.partition.eof", "true"),
        ("isolation.level", "read_committed"),
    ],
    ..NO_OPTIONS
};

/// Where to start reading a partition, and the epoch of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) from: Offset,
    pub(super) epoch: u64,
}

pub(super) struct PartitionConsumer {
    pub(super) consumer: NativeConsumer,
    partitions: Partitions,
    health: ClusterHealth,
}

impl PartitionConsumer {
    /// Does not join `group`. librdkafka needs a group name, and access to this one is granted.
    pub(super) fn new(
        cluster: &Cluster,
        group: &str,
        health: ClusterHealth,
    ) -> Result<Self, Error> {
        let config = cluster.config(&OPTIONS, &[("group.id", group.to_owned())]);
        Ok(Self {
            consumer: NativeConsumer::new(&config, KAFKA_READ_MESSAGES_MAX)?,
            partitions: Partitions::default(),
            health,
        })
    }

    /// Starts or restarts partitions at their positions, and stops those with `None`.
    pub(super) fn apply(
        &mut self,
        starts: BTreeMap<Partition, Option<Start>>,
    ) -> Result<(), Error> {
        let mut removed = TopicPartitionList::new();
        let mut added = TopicPartitionList::new();
        for (partition, start) in starts {
            if self.partitions.remove(&partition) {
                removed.add_partition(&partition.topic, partition.index);
            }
            if let Some(start) = start {
                partition_list::add(&mut added, &partition, start.from, None);
                self.partitions.insert(partition, start);
            }
        }
        if removed.count() > 0 {
            self.consumer.unassign(&removed).map_err(Error::Fatal)?;
        }
        if added.count() > 0 {
            self.consumer.assign(&added).map_err(Error::Fatal)?;
        }
        Ok(())
    }

    /// Stops all partitions of a recreated topic and reports them as out of range: their positions
    /// have no meaning in the new topic.
    pub(super) fn abandon_topic(
        &mut self,
        topic: &str,
        read: &mut ReadResult,
    ) -> Result<(), Error> {
        let all = self.partitions.all.iter();
        let abandoned = all.filter(|state| &*state.partition.topic == topic);
        let stops = abandoned
            .map(|state| {
                read.events.push_back(state.out_of_range());
                (state.partition.clone(), None)
            })
            .collect();
        self.apply(stops)
    }

    /// Adds the fetched records to `read`, without waiting. Returns whether more are available.
    pub(super) fn read(&mut self, read: &mut ReadResult) -> bool {
        let Self {
            consumer,
            partitions,
            health,
        } = self;
        let mut is_empty = true;
        let has_more = consumer.read(|message| {
            is_empty = false;
            partitions.add(message, read, health);
        });
        if !is_empty {
            health.record_response();
        }
        for state in &mut partitions.all {
            state.flush(&mut read.events);
        }
        has_more
    }
}

#[derive(Default)]
pub(super) struct ReadResult {
    pub(super) events: VecDeque<Event>,
    /// Errors that an operator must fix before the partition can be read.
    pub(super) rejections: Vec<String>,
}

/// A partition that is being read.
struct PartitionState {
    partition: Partition,
    epoch: u64,
    /// Offset of the next record. All before it were returned, or the broker skipped them.
    next: u64,
    batch: RecordBatch,
    /// Size of the previous batch, which the next one is allocated for.
    previous_records: usize,
    previous_bytes: usize,
}

impl PartitionState {
    fn push(&mut self, offset: Offset, message: &Message<'_>) {
        if self.batch.len() == 0 {
            self.batch
                .reserve(self.previous_records, self.previous_bytes);
        }
        self.batch.push(
            offset,
            message.timestamp().map(Timestamp::from_millis),
            message.key(),
            message.payload(),
            message.headers(),
        );
    }

    fn out_of_range(&self) -> Event {
        Event::OutOfRange {
            partition: self.partition.clone(),
            epoch: self.epoch,
        }
    }

    fn flush(&mut self, events: &mut VecDeque<Event>) {
        if self.batch.len() == 0 {
            return;
        }
        self.previous_records = self.batch.len();
        // Limited, because one giant record does not predict the next.
        self.previous_bytes = self.batch.bytes().min(SOURCE_BATCH_BYTES_MAX);
        let empty = RecordBatch::new(self.partition.clone(), self.epoch);
        events.push_back(Event::Records(std::mem::replace(&mut self.batch, empty)));
    }
}

/// The partitions that are being read.
#[derive(Default)]
struct Partitions {
    all: Vec<PartitionState>,
    /// [`Message::origin`] of the previous message, and its index in `all`. Cleared with every
    /// start or stop, because librdkafka may then reuse an address.
    last: Option<((usize, i32), usize)>,
}

impl Partitions {
    fn insert(&mut self, partition: Partition, start: Start) {
        let batch = RecordBatch::new(partition.clone(), start.epoch);
        self.all.push(PartitionState {
            partition,
            epoch: start.epoch,
            next: start.from.0,
            batch,
            previous_records: 0,
            previous_bytes: 0,
        });
    }

    /// Returns whether the partition was being read.
    fn remove(&mut self, partition: &Partition) -> bool {
        self.last = None;
        let mut all = self.all.iter();
        let found = all.position(|state| state.partition == *partition);
        found.map(|at| self.all.swap_remove(at)).is_some()
    }

    /// The messages of one partition follow each other, so a search is rare.
    fn find(&mut self, message: &Message<'_>) -> Option<&mut PartitionState> {
        let origin = message.origin();
        let at = match self.last {
            Some((last, at)) if last == origin => at,
            _ => self.all.iter().position(|state| {
                state.partition.index == message.partition()
                    && &*state.partition.topic == message.topic()
            })?,
        };
        self.last = Some((origin, at));
        self.all.get_mut(at)
    }

    fn add(&mut self, message: &Message<'_>, read: &mut ReadResult, health: &ClusterHealth) {
        if let Some((code, text)) = message.error() {
            return self.add_error(message, code, text, read, health);
        }
        // librdkafka drops records of a stopped partition; this check does not rely on it.
        let Some(state) = self.find(message) else {
            return;
        };
        let Ok(offset) = u64::try_from(message.offset()) else {
            return;
        };
        if offset < state.next {
            return;
        }
        state.next = offset + 1;
        state.push(Offset(offset), message);
        if state.batch.bytes() >= SOURCE_BATCH_BYTES_MAX {
            state.flush(&mut read.events);
        }
    }

    fn add_error(
        &mut self,
        message: &Message<'_>,
        code: Code,
        text: String,
        read: &mut ReadResult,
        health: &ClusterHealth,
    ) {
        let Some(state) = self.find(message) else {
            return health.record_error(code, text);
        };
        match code {
            Code::PartitionEOF => {
                let end = u64::try_from(message.offset()).unwrap_or(0);
                state.next = end.max(state.next);
                state.flush(&mut read.events);
                read.events.push_back(Event::EndReached {
                    partition: state.partition.clone(),
                    epoch: state.epoch,
                    at: Offset(state.next),
                });
            }
            Code::AutoOffsetReset | Code::OffsetOutOfRange => {
                state.flush(&mut read.events);
                read.events.push_back(state.out_of_range());
            }
            _ if needs_operator(code) => read
                .rejections
                .push(format!("{} cannot be read: {text}", state.partition)),
            _ => health.record_error(code, text),
        }
    }
}
