//! The consumer that reads partitions from explicit offsets, and makes batches of what it reads. Which partitions the group gave to this
//! process is not its affair.

use super::health::ClusterHealth;
use super::raw::{Message, NativeClient, NativeConsumer};
use super::{ClientOptions, Cluster, client_creation_error, failure, kbytes, millis};
use crate::broker::{Error, Event, RecordBatch};
use crate::limit::{
    KAFKA_FETCH_BACKOFF, KAFKA_FETCH_WAIT_MAX, KAFKA_PREFETCH_BYTES_MAX, KAFKA_READ_MESSAGES_MAX,
    KAFKA_RESPONSE_BYTES_MAX, SOURCE_BATCH_BYTES_MAX,
};
use crate::model::{Offset, Partition, Timestamp};
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::Thread;

const SIDE: ClientOptions = ClientOptions {
    defaults: &[],
    limits: &[
        (
            "queued.max.messages.kbytes",
            kbytes(KAFKA_PREFETCH_BYTES_MAX),
        ),
        ("fetch.max.bytes", KAFKA_PREFETCH_BYTES_MAX),
        ("fetch.queue.backoff.ms", millis(KAFKA_FETCH_BACKOFF)),
        ("fetch.wait.max.ms", millis(KAFKA_FETCH_WAIT_MAX)),
        ("receive.message.max.bytes", KAFKA_RESPONSE_BYTES_MAX),
    ],
    enforced: &[
        ("auto.offset.reset", "error"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("enable.partition.eof", "true"),
        ("isolation.level", "read_committed"),
    ],
};

/// Where to read a partition from, and what to call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) from: Offset,
    pub(super) epoch: u64,
}

pub(super) struct PartitionConsumer {
    reader: NativeConsumer,
    slots: Partitions,
    health: ClusterHealth,
}

impl PartitionConsumer {
    /// `group` is not joined; librdkafka reads nothing without a name of one, and this one's access is granted already.
    pub(super) fn new(
        cluster: &Cluster,
        group: &str,
        health: ClusterHealth,
    ) -> Result<Self, Error> {
        let config = cluster.config(&SIDE, &[("group.id", group.to_owned())]);
        let reader = NativeConsumer::new(&config, KAFKA_READ_MESSAGES_MAX)
            .map_err(|error| client_creation_error(&error))?;
        Ok(Self {
            reader,
            slots: Partitions::default(),
            health,
        })
    }

    pub(super) fn native(&self) -> &Arc<NativeClient> {
        self.reader.native()
    }

    pub(super) fn wake(&mut self, thread: Thread) {
        self.reader.wake(thread);
    }

    /// Serves the client's own notices.
    pub(super) fn serve(&self) {
        let health = &self.health;
        while self
            .reader
            .serve(&mut |notice| health.on_client_event(notice))
            > 0
        {}
    }

    /// Starts partitions, anew if they are read already, and stops those that want nothing.
    pub(super) fn apply(&mut self, wants: BTreeMap<Partition, Option<Start>>) -> Result<(), Error> {
        let (mut ends, mut starts) = (TopicPartitionList::new(), TopicPartitionList::new());
        for (partition, want) in wants {
            if self.slots.remove(&partition) {
                ends.add_partition(&partition.topic, partition.index);
            }
            if let Some(start) = want {
                let offset = i64::try_from(start.from.0).unwrap_or(i64::MAX);
                let mut element = starts.add_partition(&partition.topic, partition.index);
                element
                    .set_offset(rdkafka::Offset::Offset(offset))
                    .expect("an offset that is not negative");
                self.slots.insert(partition, start);
            }
        }
        if ends.count() > 0 {
            self.reader.unassign(&ends).map_err(Error::Fatal)?;
        }
        if starts.count() > 0 {
            self.reader.assign(&starts).map_err(Error::Fatal)?;
        }
        Ok(())
    }

    /// What is read of a topic that is another one under its old name: its positions mean nothing any more.
    pub(super) fn give_up(&mut self, topic: &str, read: &mut ReadResult) -> Result<(), Error> {
        let gone: Vec<(Partition, u64)> = self.slots.of(topic);
        let wants = gone
            .iter()
            .map(|(partition, _)| (partition.clone(), None))
            .collect();
        read.events.extend(
            gone.into_iter()
                .map(|(partition, epoch)| Event::OutOfRange { partition, epoch }),
        );
        self.apply(wants)
    }

    /// Adds what has been fetched, without waiting. `false`: nothing is left for now.
    pub(super) fn read(&mut self, read: &mut ReadResult) -> bool {
        let Self {
            reader,
            slots,
            health,
        } = self;
        let mut heard = false;
        let more = reader.read(|message| {
            heard = true;
            slots.take(message, read, health);
        });
        if heard {
            health.record_response();
        }
        slots.flush(read);
        more
    }
}

/// What one read brought.
#[derive(Default)]
pub(super) struct ReadResult {
    pub(super) events: VecDeque<Event>,
    /// A person must act before these partitions can be read on.
    pub(super) refusals: Vec<String>,
}

/// One partition that is read.
struct PartitionState {
    partition: Partition,
    epoch: u64,
    /// What lies before it was handed out, or skipped by the broker.
    next: u64,
    batch: RecordBatch,
    /// What the batch before held: records and bytes.
    before: (usize, usize),
}

impl PartitionState {
    fn push(&mut self, offset: Offset, message: &Message<'_>) {
        if self.batch.len() == 0 {
            self.batch.reserve(self.before);
        }
        let timestamp = message.timestamp().map(Timestamp::from_millis);
        self.batch.push(
            (offset, timestamp),
            message.key(),
            message.payload(),
            message.headers(),
        );
    }

    fn flush(&mut self, events: &mut VecDeque<Event>) {
        if self.batch.len() > 0 {
            // One giant record says nothing of the next.
            self.before = (
                self.batch.len(),
                self.batch.bytes().min(SOURCE_BATCH_BYTES_MAX),
            );
            events.push_back(Event::Records(std::mem::replace(
                &mut self.batch,
                RecordBatch::new(self.partition.clone(), self.epoch),
            )));
        }
    }
}

/// The partitions that are read, found by what their messages carry.
#[derive(Default)]
struct Partitions {
    all: Vec<PartitionState>,
    /// Places in `all` by [`Message::origin`]; forgotten whenever a partition comes or goes, for then librdkafka may use an address anew.
    by_origin: BTreeMap<(usize, i32), usize>,
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
            before: (0, 0),
        });
    }

    fn remove(&mut self, partition: &Partition) -> bool {
        self.by_origin.clear();
        self.last = None;
        let found = self
            .all
            .iter()
            .position(|slot| slot.partition == *partition);
        found.map(|at| self.all.swap_remove(at)).is_some()
    }

    fn of(&self, topic: &str) -> Vec<(Partition, u64)> {
        let slots = self
            .all
            .iter()
            .filter(|slot| &*slot.partition.topic == topic);
        slots
            .map(|slot| (slot.partition.clone(), slot.epoch))
            .collect()
    }

    fn find(&mut self, message: &Message<'_>) -> Option<&mut PartitionState> {
        let origin = message.origin();
        let at = match self.last {
            Some((last, at)) if last == origin => at,
            _ => {
                let at = self.by_origin.get(&origin).copied().or_else(|| {
                    let is_its = |slot: &PartitionState| {
                        slot.partition.index == message.partition()
                            && &*slot.partition.topic == message.topic()
                    };
                    self.all.iter().position(is_its)
                })?;
                self.by_origin.insert(origin, at);
                self.last = Some((origin, at));
                at
            }
        };
        self.all.get_mut(at)
    }

    fn take(&mut self, message: &Message<'_>, read: &mut ReadResult, health: &ClusterHealth) {
        if let Some((code, words)) = message.error() {
            return self.take_error(message, (code, words), read, health);
        }
        // A message of a partition that was stopped: librdkafka has dropped it already, and this makes it sure.
        let Some(slot) = self.find(message) else {
            return;
        };
        let Ok(offset) = u64::try_from(message.offset()) else {
            return;
        };
        if offset < slot.next {
            return;
        }
        slot.next = offset + 1;
        slot.push(Offset(offset), message);
        if slot.batch.bytes() >= SOURCE_BATCH_BYTES_MAX {
            slot.flush(&mut read.events);
        }
    }

    fn take_error(
        &mut self,
        message: &Message<'_>,
        (code, words): (Code, String),
        read: &mut ReadResult,
        health: &ClusterHealth,
    ) {
        let Some(slot) = self.find(message) else {
            return health.record_error(code, words);
        };
        let (partition, epoch) = (slot.partition.clone(), slot.epoch);
        match code {
            Code::PartitionEOF => {
                let at = u64::try_from(message.offset()).unwrap_or(0).max(slot.next);
                slot.next = at;
                slot.flush(&mut read.events);
                read.events.push_back(Event::EndReached {
                    partition,
                    epoch,
                    at: Offset(at),
                });
            }
            Code::AutoOffsetReset | Code::OffsetOutOfRange => {
                slot.flush(&mut read.events);
                read.events
                    .push_back(Event::OutOfRange { partition, epoch });
            }
            _ if failure::needs_operator(code) => read
                .refusals
                .push(format!("{partition} cannot be read: {words}")),
            _ => health.record_error(code, words),
        }
    }

    fn flush(&mut self, read: &mut ReadResult) {
        for slot in &mut self.all {
            slot.flush(&mut read.events);
        }
    }
}
