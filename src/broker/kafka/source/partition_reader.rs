//! Reads the partitions of one route from explicit offsets, and batches their records.

use crate::broker::kafka::ffi::{Message, NativeConsumer, RecordQueue};
use crate::broker::kafka::health::{ClusterHealth, is_connection_error};
use crate::broker::kafka::limit::{
    KAFKA_PARTITION_RETRY_DELAY, KAFKA_PREFETCHED_RECORD_BYTES, KAFKA_READ_MESSAGES_MAX,
};
use crate::broker::kafka::options::{ClientOptions, Cluster, NO_OPTIONS, SOCKET_TIMEOUT, kbytes};
use crate::broker::kafka::partition_list;
use crate::broker::{Error, Event, RecordBatch};
use crate::limit::{SOURCE_BATCH_BYTES_MAX, SourceMemory};
use crate::model::{Offset, Partition, Timestamp};
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::Thread;
use tokio::time::Instant;

/// The limits of a client for one route.
const ONE_ROUTE: &[(&str, u64)] = &[
    FULL_QUEUE_BACKOFF,
    // A newly assigned partition waits for the current fetch.
    ("fetch.wait.max.ms", 100),
    RECEIVED_BYTES_MAX,
    SOCKET_TIMEOUT,
];

/// The limits of a client for several routes. A fetch leaves out the partitions of a route whose queue is
/// full. It is sent for the others, and nothing is fetched for the route before it is answered. So a
/// fetch without records waits less, although it lists the partitions of all routes: `docs/sizing.md`
/// has the cost.
const MANY_ROUTES: &[(&str, u64)] = &[
    FULL_QUEUE_BACKOFF,
    ("fetch.wait.max.ms", 20),
    RECEIVED_BYTES_MAX,
    SOCKET_TIMEOUT,
];

/// librdkafka stops fetching for this time when its queue is full. Its default, a second, makes reading
/// a backlog five times slower.
const FULL_QUEUE_BACKOFF: (&str, u64) = ("fetch.queue.backoff.ms", 10);

/// Any record that the broker accepts can be read.
const RECEIVED_BYTES_MAX: (&str, u64) = ("receive.message.max.bytes", 1024 * 1024 * 1024);

const ENFORCED: &[(&str, &str)] = &[
    ("auto.offset.reset", "error"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("enable.partition.eof", "true"),
    ("isolation.level", "read_committed"),
    // The consumer is no member. The end of the client waits this long for an absent coordinator.
    ("session.timeout.ms", "100"),
];

fn options(routes: usize) -> ClientOptions {
    ClientOptions {
        limits: if routes > 1 { MANY_ROUTES } else { ONE_ROUTE },
        enforced: ENFORCED,
        ..NO_OPTIONS
    }
}

/// Enforced, because the memory budget of the process relies on them (G6).
fn memory_options(memory: SourceMemory, routes: usize) -> Vec<(&'static str, String)> {
    let prefetch = memory.prefetch_bytes(routes);
    let records = prefetch / KAFKA_PREFETCHED_RECORD_BYTES;
    vec![
        (
            "queued.max.messages.kbytes",
            kbytes(prefetch as u64).max(1).to_string(),
        ),
        ("queued.min.messages", records.max(1).to_string()),
        ("fetch.max.bytes", memory.fetch_bytes(routes).to_string()),
        // For a consumer, it only is a lower bound of `fetch.max.bytes`.
        ("message.max.bytes", "1000".to_owned()),
    ]
}

/// Where to start reading a partition, and the epoch of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) from: Offset,
    pub(super) epoch: u64,
}

/// A consumer for this number of routes, each with this memory. It joins no group: `group` is any that
/// the user may read.
pub(super) fn consumer(
    cluster: &Cluster,
    group: &str,
    memory: SourceMemory,
    routes: usize,
) -> Result<NativeConsumer, Error> {
    let mut enforced = memory_options(memory, routes);
    enforced.push(("group.id", group.to_owned()));
    let config = cluster.config(&options(routes), &enforced);
    NativeConsumer::new(&config, KAFKA_READ_MESSAGES_MAX)
}

/// The partitions of one route. A client reads each partition for one route only.
pub(super) struct PartitionReader {
    queue: RecordQueue,
    partitions: Partitions,
    health: ClusterHealth,
}

impl PartitionReader {
    pub(super) fn new(queue: RecordQueue, health: ClusterHealth) -> Self {
        Self {
            queue,
            partitions: Partitions::default(),
            health,
        }
    }

    /// Sets `is_ready` and unparks `thread` whenever records arrive in the empty queue.
    pub(super) fn set_waker(&mut self, thread: Thread, is_ready: Arc<AtomicBool>) {
        self.queue.set_waker(thread, is_ready);
    }

    /// Returns true if a partition waits to be read again.
    pub(super) fn has_failed_partitions(&self) -> bool {
        self.partitions.failed > 0
    }

    /// Starts or restarts partitions at their positions, and stops those with `None`.
    pub(super) fn apply(
        &mut self,
        consumer: &NativeConsumer,
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
        self.change_assignment(consumer, &removed, &added)
    }

    /// Pauses failed partitions, because librdkafka may skip damaged records. Then reads
    /// them again from the same position.
    fn restart_failed(&mut self, consumer: &NativeConsumer) -> Result<(), Error> {
        if self.partitions.failed == 0 {
            return Ok(());
        }
        let mut removed = TopicPartitionList::new();
        let mut added = TopicPartitionList::new();
        let now = Instant::now();
        for state in &mut self.partitions.all {
            match state.reading {
                Reading::Failed => {
                    state.reading = Reading::Paused(now + KAFKA_PARTITION_RETRY_DELAY);
                    removed.add_partition(&state.partition.topic, state.partition.index);
                }
                Reading::Paused(until) if until <= now => {
                    state.reading = Reading::Running;
                    self.partitions.failed -= 1;
                    partition_list::add(&mut added, &state.partition, Offset(state.next), None);
                }
                Reading::Running | Reading::Paused(_) => {}
            }
        }
        if removed.count() + added.count() > 0 {
            self.partitions.forget_origins();
        }
        self.change_assignment(consumer, &removed, &added)
    }

    /// The stop of a partition ends the forwarding of its records, but only after librdkafka's thread
    /// has served it, which it does before an assignment that follows. So records are forwarded again
    /// after the assignment. Before the first one, they would go to the queue of the whole consumer.
    fn change_assignment(
        &self,
        consumer: &NativeConsumer,
        removed: &TopicPartitionList,
        added: &TopicPartitionList,
    ) -> Result<(), Error> {
        let forward = || {
            for element in added.elements() {
                consumer.forward(element.topic(), element.partition(), &self.queue);
            }
        };
        if removed.count() > 0 {
            consumer.unassign(removed).map_err(Error::Fatal)?;
        }
        if added.count() > 0 {
            forward();
            consumer.assign(added).map_err(Error::Fatal)?;
            forward();
        }
        Ok(())
    }

    /// Stops all partitions of a recreated topic and reports them as out of range: their positions
    /// have no meaning in the new topic.
    pub(super) fn abandon_topic(
        &mut self,
        consumer: &NativeConsumer,
        topic: &str,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Error> {
        let all = self.partitions.all.iter();
        let abandoned = all.filter(|state| &*state.partition.topic == topic);
        let stops = abandoned
            .map(|state| {
                events.push_back(state.out_of_range());
                (state.partition.clone(), None)
            })
            .collect();
        self.apply(consumer, stops)
    }

    /// Adds the fetched records to `events`, without waiting. Returns whether more are available.
    pub(super) fn read(
        &mut self,
        consumer: &mut NativeConsumer,
        events: &mut VecDeque<Event>,
    ) -> Result<bool, Error> {
        let Self {
            queue,
            partitions,
            health,
        } = self;
        let mut is_empty = true;
        let has_more = consumer.read_from(queue, |message| {
            is_empty = false;
            partitions.add(message, events, health);
        });
        if !is_empty {
            health.record_response();
        }
        for at in partitions.filled.drain(..) {
            partitions.all[at].flush(events);
        }
        self.restart_failed(consumer)?;
        Ok(has_more)
    }
}

/// A partition that is being read.
struct PartitionState {
    partition: Partition,
    epoch: u64,
    /// Offset of the next record. All before it were returned, or the broker skipped them.
    next: u64,
    reading: Reading,
    batch: RecordBatch,
    /// Size of the previous batch, which the next one is allocated for.
    previous_records: usize,
    previous_bytes: usize,
}

#[derive(Clone, Copy)]
enum Reading {
    Running,
    /// An error was reported. Later messages of the same read are dropped.
    Failed,
    /// Not assigned until this time.
    Paused(Instant),
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
    /// Indexes in `all` by [`Message::origin`]. Cleared with every start or stop, because
    /// librdkafka may then reuse an address.
    origins: HashMap<(usize, i32), usize>,
    /// The origin of the previous message. The messages of one partition follow each other.
    last: Option<((usize, i32), usize)>,
    /// Indexes of the partitions that got a record since the last flush; may repeat.
    filled: Vec<usize>,
    /// Partitions that are not `Running`.
    failed: usize,
}

impl Partitions {
    fn insert(&mut self, partition: Partition, start: Start) {
        let batch = RecordBatch::new(partition.clone(), start.epoch);
        self.all.push(PartitionState {
            partition,
            epoch: start.epoch,
            next: start.from.0,
            reading: Reading::Running,
            batch,
            previous_records: 0,
            previous_bytes: 0,
        });
    }

    /// Returns whether the partition was assigned.
    fn remove(&mut self, partition: &Partition) -> bool {
        self.forget_origins();
        let mut all = self.all.iter();
        let Some(at) = all.position(|state| state.partition == *partition) else {
            return false;
        };
        let removed = self.all.swap_remove(at);
        self.failed -= usize::from(!matches!(removed.reading, Reading::Running));
        !matches!(removed.reading, Reading::Paused(_))
    }

    fn forget_origins(&mut self) {
        self.origins.clear();
        self.last = None;
    }

    /// The index in `all` of a message's partition, if it is read.
    fn find(&mut self, message: &Message<'_>) -> Option<usize> {
        let origin = message.origin();
        let at = match self.last {
            Some((last, at)) if last == origin => at,
            _ => self.find_by_origin(origin, message)?,
        };
        self.last = Some((origin, at));
        matches!(self.all[at].reading, Reading::Running).then_some(at)
    }

    fn find_by_origin(&mut self, origin: (usize, i32), message: &Message<'_>) -> Option<usize> {
        if let Some(at) = self.origins.get(&origin) {
            return Some(*at);
        }
        let at = self.all.iter().position(|state| {
            state.partition.index == message.partition()
                && &*state.partition.topic == message.topic()
        })?;
        self.origins.insert(origin, at);
        Some(at)
    }

    fn add(&mut self, message: &Message<'_>, events: &mut VecDeque<Event>, health: &ClusterHealth) {
        if let Some((code, text)) = message.error() {
            return self.add_error(message, code, text, events, health);
        }
        // librdkafka drops records of a stopped partition; this check does not rely on it.
        let Some(at) = self.find(message) else {
            return;
        };
        let state = &mut self.all[at];
        let Ok(offset) = u64::try_from(message.offset()) else {
            return;
        };
        if offset < state.next {
            return;
        }
        state.next = offset + 1;
        if state.batch.len() == 0 {
            self.filled.push(at);
        }
        state.push(Offset(offset), message);
        if state.batch.bytes() >= SOURCE_BATCH_BYTES_MAX {
            state.flush(events);
        }
    }

    fn add_error(
        &mut self,
        message: &Message<'_>,
        code: Code,
        text: String,
        events: &mut VecDeque<Event>,
        health: &ClusterHealth,
    ) {
        let Some(at) = self.find(message) else {
            return health.record_error(code, text);
        };
        let state = &mut self.all[at];
        match code {
            Code::PartitionEOF => {
                let end = u64::try_from(message.offset()).unwrap_or(0);
                state.next = end.max(state.next);
                state.flush(events);
                events.push_back(Event::EndReached {
                    partition: state.partition.clone(),
                    epoch: state.epoch,
                    at: Offset(state.next),
                });
            }
            Code::AutoOffsetReset | Code::OffsetOutOfRange => {
                state.flush(events);
                events.push_back(state.out_of_range());
            }
            _ if is_connection_error(code) => health.record_error(code, text),
            _ => {
                state.flush(events);
                state.reading = Reading::Failed;
                self.failed += 1;
                events.push_back(Event::Unreadable {
                    partition: state.partition.clone(),
                    epoch: state.epoch,
                    reason: format!("{} cannot be read: {text}", state.partition),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::broker::kafka::limit::KAFKA_PARTITION_RETRY_DELAY;
    use crate::broker::kafka::{Cluster, InProcessKafka, KafkaSource, KafkaTarget};
    use crate::broker::send_budget::SendBudget;
    use crate::broker::{Event, OutgoingRecord, SendResult, Source as _, Target as _};
    use crate::health::Health;
    use crate::limit::SourceMemory;
    use crate::model::{Headers, Offset, Partition};
    use std::collections::BTreeMap;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::time::Duration;

    const PARTITIONS: i32 = 4;

    fn cluster(broker: &InProcessKafka) -> Cluster {
        Cluster {
            name: "demo".into(),
            brokers: vec![broker.address()],
            properties: [("check.crcs".to_owned(), "true".to_owned())].into(),
        }
    }

    async fn produce(cluster: &Cluster, partition: i32) {
        let part = Health::new().register("target");
        let budget = Arc::new(SendBudget::new(10, usize::MAX));
        let mut target = KafkaTarget::new(cluster, budget, part).unwrap();
        let record = OutgoingRecord {
            topic: "in",
            partition: Some(partition),
            key: None,
            payload: Some(b"good"),
            headers: Headers::default(),
            keep_header: |_| true,
            extra_headers: &[],
        };
        assert_eq!(target.send(&record, 1), SendResult::Accepted);
        assert_eq!(target.next_reports().await[0].outcome, Ok(()));
        target.close().await;
    }

    /// Produces one record in a batch with a wrong checksum. Returns whether the broker took it.
    fn produce_damaged(address: &str, partition: i32) -> bool {
        let record = [14, 0, 0, 0, 1, 2, b'x', 0];
        let mut batch = vec![0_u8; 61];
        let length = i32::try_from(batch.len() - 12 + record.len()).unwrap();
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[16] = 2; // magic
        batch[43..57].fill(0xff); // no producer
        batch[60] = 1; // number of records
        batch.extend_from_slice(&record);
        let length = u32::try_from(batch.len()).unwrap();
        let parts: [&[u8]; 6] = [
            &[0, 0, 0, 3, 0, 0, 0, 7, 0xff, 0xff], // produce v3, no client id
            &[0xff, 0xff, 0, 1, 0, 0, 0x10, 0],    // no transaction, acks, timeout
            &[0, 0, 0, 1, 0, 2, b'i', b'n', 0, 0, 0, 1],
            &partition.to_be_bytes(),
            &length.to_be_bytes(),
            &batch,
        ];
        let request = parts.concat();
        let mut stream = TcpStream::connect(address).unwrap();
        let length = u32::try_from(request.len()).unwrap();
        stream.write_all(&length.to_be_bytes()).unwrap();
        stream.write_all(&request).unwrap();
        let mut answer = [0; 26];
        stream.read_exact(&mut answer).unwrap();
        // The error code follows size, correlation, and the names of topic and partition.
        answer[24..26] == [0, 0]
    }

    async fn next(source: &mut KafkaSource) -> Event {
        let limit = KAFKA_PARTITION_RETRY_DELAY + Duration::from_secs(20);
        let event = tokio::time::timeout(limit, source.next_event()).await;
        event.expect("an event arrives").expect("no error")
    }

    fn source(cluster: &Cluster) -> KafkaSource {
        let part = Health::new().register("source");
        let topics = ["in".to_owned()];
        let memory = SourceMemory::of(1 << 28);
        KafkaSource::new(cluster, "g".to_owned(), &topics, memory, part).unwrap()
    }

    /// A fetch for an idle route keeps a route with a backlog from being fetched.
    #[test]
    fn a_client_of_several_routes_does_not_wait_long_for_its_idle_routes() {
        let options = |routes| {
            let broker = Cluster {
                name: "demo".into(),
                brokers: Vec::new(),
                properties: BTreeMap::new(),
            };
            let enforced = super::memory_options(SourceMemory::of(1 << 20), routes);
            let config = broker.config(&super::options(routes), &enforced);
            let names = [
                "fetch.queue.backoff.ms",
                "fetch.wait.max.ms",
                "fetch.max.bytes",
            ];
            names.map(|name| config.get(name).unwrap().to_owned())
        };
        assert_eq!(options(1), ["10", "100", "16384"]);
        assert_eq!(options(2), ["10", "20", "32768"]);
        assert_eq!(options(200), ["10", "20", "32768"]);
    }

    #[tokio::test]
    async fn records_behind_a_damaged_batch_are_not_read_and_its_partition_is_reported() {
        let broker = InProcessKafka::start(&[("in", PARTITIONS)]).unwrap();
        let cluster = cluster(&broker);
        let taken = |index: &i32| produce_damaged(&broker.address(), *index);
        let index = (0..PARTITIONS).find(taken).expect("it leads a partition");
        produce(&cluster, index).await;
        let mut source = source(&cluster);
        source.start(&Partition::new("in", index), Offset(0), 1);
        for attempt in 0..2 {
            match next(&mut source).await {
                Event::Unreadable { reason, .. } => {
                    assert!(
                        reason.starts_with(&format!("in/{index} cannot be read: ")),
                        "{reason}"
                    );
                    assert!(reason.contains("CRC32C"), "{reason}");
                }
                other => panic!("attempt {attempt}: {other:?}"),
            }
        }
        source.close().await;
    }

    #[tokio::test]
    async fn a_partition_that_could_not_be_read_is_reported_and_read_again() {
        let broker = InProcessKafka::start(&[("in", PARTITIONS)]).unwrap();
        let cluster = cluster(&broker);
        produce(&cluster, 0).await;
        let mut source = source(&cluster);
        broker.fail_next_fetch();
        source.start(&Partition::new("in", 0), Offset(0), 1);
        let event = next(&mut source).await;
        assert!(
            matches!(event, Event::Unreadable { epoch: 1, .. }),
            "{event:?}"
        );
        let event = next(&mut source).await;
        assert!(
            matches!(&event, Event::Records(batch) if batch.len() == 1),
            "{event:?}"
        );
        source.close().await;
    }
}
