//! The [`Source`] port on Kafka: a consumer of explicit partitions and offsets, served by one thread.
//!
//! All routes of a cluster share the consumer, but each has its own queue of records. So a route that
//! does not take its records stops no other route. The consumer joins no group: the group of a route
//! keeps only its commits.
//!
//! A client reads a partition once, from one position. Routes with a common topic have their own
//! positions and speeds, so they have different clients: as many as there are routes with the topic.
//!
//! | from thread to caller, or back, for each route | bound |
//! |---|---|
//! | Batches of records. | [`KAFKA_RECORD_QUEUE_BATCHES_MAX`] |
//! | Bytes of records. | [`SourceMemory::queue`], then librdkafka's queue of the route |
//! | Read commands. | One per partition: a later one replaces it. |

mod partition_reader;
mod reader_thread;

use super::admin::{AdminWorker, Description, OffsetsAt, TopicWatch};
use super::error::invalid_topic_name;
use super::ffi::NativeClient;
use super::group_offsets::GroupOffsets;
use super::health::ClusterHealth;
use super::options::Cluster;
use crate::broker::cluster::SourceOptions;
use crate::broker::kafka::limit::{
    KAFKA_RECORD_QUEUE_BATCHES_MAX, KAFKA_REQUEST_TIMEOUT, KAFKA_SOURCE_REQUEST_TIMEOUT,
};
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, Source};
use crate::client_thread::ClientThread;
use crate::health::HealthPart;
use crate::limit::SourceMemory;
use crate::model::{Offset, Partition, Timestamp, is_topic_name};
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use partition_reader::Start;
use reader_thread::{ReaderThread, RouteReader};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// The source port for one route.
pub(crate) struct KafkaSource {
    group: String,
    events: mpsc::Receiver<Result<Event, Error>>,
    /// The current epoch of each partition that is read. Events of other epochs are dropped.
    epochs: BTreeMap<Partition, u64>,
    shared: Arc<RouteShared>,
    /// Shared by the routes of the client. `None` once closed.
    client: Option<Rc<SourceClient>>,
}

/// A client and its threads.
struct SourceClient {
    /// `None` during the close: the last of the threads destroys it, which may take long.
    native: Option<Arc<NativeClient>>,
    admin: AdminWorker,
    groups: GroupOffsets,
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

/// State that the caller and the thread share, for one route.
struct RouteShared {
    commands: Mutex<ReadCommands>,
    /// Payload bytes in the record queue.
    queued_bytes: AtomicUsize,
    /// The thread must look at the route: it has records, commands, or room for records.
    is_ready: Arc<AtomicBool>,
}

#[derive(Default)]
struct ReadCommands {
    /// Partitions to start at a position, or to stop (`None`).
    starts: BTreeMap<Partition, Option<Start>>,
    /// Topics that were deleted and recreated under their names.
    recreated_topics: BTreeSet<String>,
}

impl RouteShared {
    fn new() -> Self {
        Self {
            commands: Mutex::default(),
            queued_bytes: AtomicUsize::default(),
            is_ready: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Changes the commands. The thread takes them in its next turn.
    fn command(&self, change: impl FnOnce(&mut ReadCommands)) {
        change(&mut self.commands());
        self.is_ready.store(true, Ordering::Release);
    }

    fn commands(&self) -> MutexGuard<'_, ReadCommands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KafkaSource {
    /// A source for each route, in the same order. Returns without waiting for a broker. `part` shows
    /// connection problems. Each route has this memory.
    pub(crate) fn for_routes(
        cluster: &Cluster,
        routes: &[SourceOptions],
        memory: SourceMemory,
        part: HealthPart,
    ) -> Result<Vec<Self>, Error> {
        let mut topics = routes.iter().flat_map(|route| &route.topics);
        if let Some(invalid) = topics.find(|topic| !is_topic_name(topic)) {
            return Err(Error::Rejected(invalid_topic_name(invalid)));
        }
        let health = ClusterHealth::new(&cluster.name, part);
        let mut sources = BTreeMap::new();
        for indexes in by_client(routes) {
            let of_client: Vec<_> = indexes.iter().map(|at| &routes[*at]).collect();
            let started = SourceClient::start(cluster, &of_client, memory, &health)?;
            sources.extend(indexes.into_iter().zip(started));
        }
        Ok(sources.into_values().collect())
    }

    /// A source for one route.
    #[cfg(any(test, feature = "test-support"))]
    pub(crate) fn new(
        cluster: &Cluster,
        group: String,
        topics: &[String],
        memory: SourceMemory,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let route = SourceOptions {
            group,
            topics: topics.to_vec(),
            ..SourceOptions::default()
        };
        let mut sources = Self::for_routes(cluster, &[route], memory, part)?;
        Ok(sources.remove(0))
    }

    fn client(&self) -> Result<&SourceClient, Error> {
        let closed = || Error::Fatal("the Kafka source is closed".to_owned());
        self.client.as_deref().ok_or_else(closed)
    }

    fn command(&mut self, partition: &Partition, start: Option<Start>) {
        self.shared.command(|commands| {
            commands.starts.insert(partition.clone(), start);
        });
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(client) = &self.client {
            client.thread.unpark();
        }
    }

    fn is_current(&self, event: &Event) -> bool {
        let (partition, epoch) = match event {
            Event::Records(batch) => (&batch.partition, batch.epoch),
            Event::EndReached {
                partition, epoch, ..
            }
            | Event::RecordsRemoved {
                partition, epoch, ..
            }
            | Event::Unreadable {
                partition, epoch, ..
            }
            | Event::OutOfRange { partition, epoch } => (partition, *epoch),
        };
        self.epochs.get(partition) == Some(&epoch)
    }
}

/// Divides the routes among clients, so that the routes of one client have no topic in common. Returns
/// the indexes of the routes of each client.
fn by_client(routes: &[SourceOptions]) -> Vec<Vec<usize>> {
    let mut clients: Vec<(BTreeSet<&str>, Vec<usize>)> = Vec::new();
    for (at, route) in routes.iter().enumerate() {
        let topics: BTreeSet<&str> = route.topics.iter().map(String::as_str).collect();
        match clients
            .iter_mut()
            .find(|(read, _)| read.is_disjoint(&topics))
        {
            Some((read, routes)) => {
                read.extend(topics);
                routes.push(at);
            }
            None => clients.push((topics, vec![at])),
        }
    }
    clients.into_iter().map(|(_, routes)| routes).collect()
}

impl SourceClient {
    /// Starts a client. Returns a source for each route.
    fn start(
        cluster: &Cluster,
        routes: &[&SourceOptions],
        memory: SourceMemory,
        health: &ClusterHealth,
    ) -> Result<Vec<KafkaSource>, Error> {
        let group = routes.first().map_or("", |route| &route.group);
        let consumer = partition_reader::consumer(cluster, group, memory, routes.len())?;
        let native = consumer.native.clone();
        let (mut readers, mut sources, mut by_topic) = (Vec::new(), Vec::new(), BTreeMap::new());
        for route in routes {
            let (sender, events) = mpsc::channel(KAFKA_RECORD_QUEUE_BATCHES_MAX);
            let shared = Arc::new(RouteShared::new());
            let topics = route.topics.iter().cloned();
            by_topic.extend(topics.map(|topic| (topic, shared.clone())));
            let queue = consumer.record_queue();
            let reader = RouteReader::new(queue, shared.clone(), sender, memory.queue, health);
            readers.push(reader);
            sources.push((route.group.clone(), events, shared));
        }
        let topics: Vec<String> = by_topic.keys().cloned().collect();
        let on_recreated = move |topic: &str| {
            if let Some(shared) = by_topic.get(topic) {
                shared.command(|commands| {
                    commands.recreated_topics.insert(topic.to_owned());
                });
            }
        };
        let watch = TopicWatch::new(&topics, on_recreated);
        let admin = AdminWorker::sharing(native.clone(), health.clone(), watch)?;
        let groups = GroupOffsets::sharing(native.clone(), health.clone())?;
        let stop = Arc::<AtomicBool>::default();
        let reader_thread = ReaderThread::new(readers, consumer, stop.clone(), health.clone());
        let thread = ClientThread::start("kafka-source", move || reader_thread.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        let client = Rc::new(Self {
            native: Some(native),
            admin,
            groups,
            stop,
            thread,
        });
        let sources = sources
            .into_iter()
            .map(|(group, events, shared)| KafkaSource {
                group,
                events,
                epochs: BTreeMap::new(),
                shared,
                client: Some(client.clone()),
            });
        Ok(sources.collect())
    }

    async fn close(mut self) {
        self.native = None;
        self.stop();
        // Concurrently, because each may wait for an unreachable broker.
        tokio::join!(self.admin.close(), self.groups.close(), self.thread.join());
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Drop for SourceClient {
    fn drop(&mut self) {
        self.stop();
    }
}

fn thread_ended() -> Error {
    Error::Fatal("the consumer thread has ended".to_owned())
}

fn batch_bytes(event: &Event) -> usize {
    if let Event::Records(batch) = event {
        batch.bytes()
    } else {
        0
    }
}

#[async_trait(?Send)]
impl Source for KafkaSource {
    /// Cancel-safe: the channel keeps an event until it is returned.
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            let event = self
                .events
                .recv()
                .await
                .unwrap_or_else(|| Err(thread_ended()))?;
            let bytes = batch_bytes(&event);
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.shared.is_ready.store(true, Ordering::Release);
            self.unpark();
            if self.is_current(&event) {
                return Ok(event);
            }
        }
    }

    fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Result<PartitionInfo, Error>>, Error>> {
        let partitions = partitions.to_vec();
        match self.client() {
            Ok(client) => Box::pin(client.admin.polled_request(move |worker| {
                Description::start(worker, partitions, KAFKA_SOURCE_REQUEST_TIMEOUT)
            })),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Option<String>>, Error>> {
        match self.client() {
            Ok(client) => client.groups.committed_metadata(&self.group, partitions),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> LocalBoxFuture<'static, Result<Vec<Offset>, Error>> {
        let partitions = partitions.to_vec();
        match self.client() {
            Ok(client) => {
                let offsets = client.admin.polled_request(move |worker| {
                    // A broker may have to read many files. Only partitions without a commit ask.
                    OffsetsAt::start(worker, partitions, time, KAFKA_REQUEST_TIMEOUT)
                });
                Box::pin(async move { offsets.await?.into_iter().collect() })
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        self.epochs.insert(partition.clone(), epoch);
        self.command(partition, Some(Start { from, epoch }));
    }

    fn stop(&mut self, partition: &Partition) {
        if self.epochs.remove(partition).is_some() {
            self.command(partition, None);
        }
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        let native = self.client.as_ref()?.native.as_ref()?;
        let end = native.end_offset(&partition.topic, partition.index);
        end.map(Offset)
    }

    fn commit(&mut self, commits: Vec<OffsetCommit>) -> LocalBoxFuture<'static, Result<(), Error>> {
        match self.client() {
            Ok(client) => client.groups.commit(&self.group, commits),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// The last source of a client closes it.
    async fn close(&mut self) {
        for partition in std::mem::take(&mut self.epochs).into_keys() {
            self.command(&partition, None);
        }
        if let Some(client) = self.client.take().and_then(Rc::into_inner) {
            client.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::{InProcessKafka, KafkaTarget};
    use crate::broker::send_budget::SendBudget;
    use crate::broker::{OutgoingRecord, SendResult, Target as _};
    use crate::health::Health;
    use crate::model::Headers;
    use std::time::Duration;

    fn cluster(broker: &InProcessKafka) -> Cluster {
        Cluster {
            name: "demo".into(),
            brokers: vec![broker.address()],
            properties: BTreeMap::new(),
        }
    }

    async fn wait_for_description(source: &mut KafkaSource, partition: &[Partition]) {
        let described = async {
            while !matches!(source.describe(partition).await.as_deref(), Ok([Ok(_)])) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let answered = tokio::time::timeout(Duration::from_secs(60), described).await;
        answered.expect("the other broker answers");
    }

    fn source_of(cluster: &Cluster, topic: &str) -> KafkaSource {
        let part = Health::new().register("source");
        let memory = SourceMemory::of(1 << 20);
        let sources = KafkaSource::for_routes(cluster, &[route(topic)], memory, part);
        sources.unwrap().remove(0)
    }

    fn route(topic: &str) -> SourceOptions {
        SourceOptions {
            group: format!("group of {topic}"),
            topics: vec![topic.to_owned()],
            ..SourceOptions::default()
        }
    }

    #[test]
    fn routes_with_a_common_topic_have_different_clients() {
        let route = |topics: &[&str]| SourceOptions {
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            ..SourceOptions::default()
        };
        let routes = [
            route(&["a", "b"]),
            route(&["c"]),
            route(&["b", "c"]),
            route(&["d"]),
            route(&["c", "e"]),
        ];
        assert_eq!(by_client(&routes), [vec![0, 1, 3], vec![2], vec![4]]);
    }

    #[tokio::test]
    async fn a_route_whose_broker_does_not_answer_delays_no_other_route() {
        let topics = [("silent", 1), ("refused", 1), ("other", 2)];
        let broker = InProcessKafka::start(&topics).unwrap();
        broker.refuse_topic("refused");
        let (cluster, routes) = (cluster(&broker), topics.map(|(topic, _)| route(topic)));
        let (part, memory) = (Health::new().register("source"), SourceMemory::of(1 << 20));
        let mut sources = KafkaSource::for_routes(&cluster, &routes, memory, part).unwrap();
        // The controller leads the second partition, and the other broker leads the first ones.
        let other = [Partition::new("other", 1)];
        sources[2].describe(&other).await.unwrap();
        broker.delay_answers(false, Duration::from_secs(3_600));
        // The silent broker may be the first that is asked about topics.
        wait_for_description(&mut sources[2], &other).await;
        let mut silent = sources[0].describe(&[Partition::new("silent", 0)]);
        tokio::select! {
            biased;
            found = sources[2].describe(&other) => {
                assert!(matches!(found.as_deref(), Ok([Ok(_)])), "{found:?}");
            }
            found = &mut silent => panic!("{found:?}"),
        }
        let both = [Partition::new("other", 0), other[0].clone()];
        let both = sources[2].describe(&both).await;
        let one_is_unanswered = matches!(both.as_deref(), Ok([Err(Error::Unavailable(_)), Ok(_)]));
        assert!(one_is_unanswered, "{both:?}");
        let refused = sources[1].describe(&[Partition::new("refused", 0)]).await;
        let is_refused = matches!(refused.as_deref(), Ok([Err(Error::Rejected(_))]));
        assert!(is_refused, "{refused:?}");
        let silent = silent.await;
        let is_unanswered = matches!(silent.as_deref(), Ok([Err(Error::Unavailable(_))]));
        assert!(is_unanswered, "{silent:?}");
        drop(sources[0].describe(&[Partition::new("silent", 0)]));
        let open = sources[0].describe(&[Partition::new("silent", 0)]);
        for mut source in sources {
            source.close().await;
        }
        assert!(open.await.is_err(), "the close ends a question");
    }

    /// A worker may fail to reach a controller that all others reach.
    #[tokio::test]
    async fn another_broker_describes_partitions_if_the_controller_does_not_answer() {
        let broker = InProcessKafka::start(&[("in", 1)]).unwrap();
        let mut cluster = cluster(&broker);
        let timeout = ("socket.timeout.ms".to_owned(), "2000".to_owned());
        cluster.properties.extend([timeout]);
        let mut source = source_of(&cluster, "in");
        let partition = [Partition::new("in", 0)];
        source.describe(&partition).await.unwrap();
        broker.delay_answers(true, Duration::from_secs(3_600));
        wait_for_description(&mut source, &partition).await;
        source.close().await;
    }

    /// A broker may have to read many files.
    #[tokio::test]
    async fn a_lookup_by_time_waits_longer_than_other_requests_of_a_source() {
        let broker = InProcessKafka::start(&[("in", 1)]).unwrap();
        let mut source = source_of(&cluster(&broker), "in");
        let partition = [Partition::new("in", 0)];
        source.describe(&partition).await.unwrap();
        let delay = KAFKA_SOURCE_REQUEST_TIMEOUT + Duration::from_millis(500);
        broker.delay_answers(false, delay);
        let found = source.offsets_at(&partition, Timestamp::from_millis(1));
        assert_eq!(found.await.unwrap(), [Offset(0)]);
        source.close().await;
    }

    /// Otherwise the reading would start at the end, and skip the records since the time.
    #[tokio::test]
    async fn without_an_answer_about_a_time_a_partition_has_no_start() {
        let broker = InProcessKafka::start(&[("in", 1)]).unwrap();
        let mut source = source_of(&cluster(&broker), "in");
        let partition = [Partition::new("in", 0)];
        source.describe(&partition).await.unwrap();
        broker.lose_second_offsets();
        let time = Timestamp::from_millis(1);
        let found = source.offsets_at(&partition, time).await;
        assert!(matches!(found, Err(Error::Unavailable(_))), "{found:?}");
        assert_eq!(
            source.offsets_at(&partition, time).await.unwrap(),
            [Offset(0)]
        );
        source.close().await;
    }

    #[tokio::test]
    async fn a_route_that_does_not_take_its_records_stops_no_other_route() {
        let broker = InProcessKafka::start(&[("full", 1), ("other", 1)]).unwrap();
        let cluster = cluster(&broker);
        let (routes, memory) = ([route("full"), route("other")], SourceMemory::of(1 << 20));
        let part = Health::new().register("source");
        let mut sources = KafkaSource::for_routes(&cluster, &routes, memory, part).unwrap();
        let [full, other] = ["full", "other"].map(|topic| Partition::new(topic, 0));
        sources[0].start(&full, Offset(0), 1);
        sources[1].start(&other, Offset(0), 1);
        let part = Health::new().register("target");
        let budget = Arc::new(SendBudget::new(10_000, usize::MAX));
        let mut target = KafkaTarget::new(&cluster, budget, part).unwrap();
        let payload = vec![0; 1_000];
        let topics = std::iter::repeat_n("full", 2_000).chain(["other"]);
        for (ticket, topic) in (1..).zip(topics) {
            let record = OutgoingRecord {
                topic,
                partition: Some(0),
                key: None,
                payload: Some(&payload),
                headers: Headers::default(),
                keep_header: |_| true,
                extra_headers: &[],
            };
            assert_eq!(target.send(&record, ticket), SendResult::Accepted);
        }
        let mut next = async || {
            loop {
                if let Event::Records(batch) = sources[1].next_event().await.unwrap() {
                    return batch;
                }
            }
        };
        let batch = tokio::time::timeout(Duration::from_secs(20), next()).await;
        assert_eq!(batch.expect("a batch arrives").partition, other);
        let queued = sources[0].shared.queued_bytes.load(Ordering::Relaxed);
        assert!(queued < 2_000 * payload.len(), "{queued}");
        for mut source in sources {
            source.close().await;
        }
        target.close().await;
    }

    #[test]
    fn an_invalid_topic_name_is_rejected_by_name() {
        let cluster = Cluster {
            name: "main".into(),
            brokers: vec!["127.0.0.1:1".to_owned()],
            properties: BTreeMap::new(),
        };
        for topic in ["^orders.*", "no spaces", "a\0b", ""] {
            let part = Health::new().register("source");
            match KafkaSource::new(
                &cluster,
                "group".to_owned(),
                &["orders".to_owned(), topic.to_owned()],
                SourceMemory::of(1 << 28),
                part,
            ) {
                Err(Error::Rejected(text)) => assert!(
                    text.contains(&format!("`{}`", topic.escape_debug())),
                    "{text}"
                ),
                Err(other) => panic!("{other:?}"),
                Ok(_) => panic!("{topic:?} was accepted"),
            }
        }
    }
}
