//! Runs the broker contract on a real NATS server, for the integration tests. Each partition of a
//! contract topic is a stream of its own, which a plain client creates.

use super::source::SourceOptions;
use super::{Cluster, Login, NatsCatalog, NatsSource, NatsTarget};
use crate::broker::send_budget::SendBudget;
use crate::broker::{GroupAdmin, OffsetCommit, Source, Target, TransactionalProducers};
use crate::clock::{Clock as _, WallClock};
use crate::health::{Health, HealthPart};
use crate::model::{Offset, Partition, source_topic, split_source_topic};
use crate::testing::broker::contract::{self, BrokerUnderTest};
use async_nats::jetstream::{self, Context, stream};
use async_trait::async_trait;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Runs the contract on the server at `url`. Other data on the server is not touched.
pub async fn nats_contract(url: &str) {
    let broker = NatsUnderTest::new(url, None);
    a_frozen_source_does_not_overwrite_the_commit_of_the_next_reader(&broker).await;
    contract::run_shared(&broker).await;
}

async fn a_frozen_source_does_not_overwrite_the_commit_of_the_next_reader(broker: &NatsUnderTest) {
    let topic = format!("{}-frozen", broker.run_id);
    broker.create_topic(&topic, 1, None).await;
    let (topics, partition) = (broker.source_topics(&topic, 1), broker.partition(&topic, 0));
    let commit = |metadata: &str| {
        vec![OffsetCommit {
            partition: partition.clone(),
            offset: Offset(1),
            metadata: metadata.to_owned(),
        }]
    };
    let mut first = broker.source("frozen", &topics);
    let committed = first.commit(commit("first")).await;
    committed.expect("no other source has committed");
    let mut second = broker.source("frozen", &topics);
    let committed = second.commit(commit("second")).await;
    committed.expect("it replaces the commit that it has read");
    let late = first.commit(commit("late")).await;
    assert!(late.is_err(), "another source has committed since");
    let partitions = [partition.clone()];
    let found = second.committed_metadata(&partitions).await;
    assert_eq!(found.expect("an answer"), [Some("second".to_owned())]);
    let committed = second.commit(commit("third")).await;
    committed.expect("it has committed last");
    first.close().await;
    second.close().await;
}

/// Runs the contract's outage tests. `outage` stops the server and restarts it with its data.
pub async fn nats_outage_contract(url: &str, outage: impl FnMut() + 'static) {
    contract::run_outages(&NatsUnderTest::new(url, Some(Box::new(outage)))).await;
}

struct NatsUnderTest {
    cluster: Cluster,
    run_id: String,
    clients: Cell<u32>,
    /// The number of partitions of each topic.
    topics: RefCell<BTreeMap<String, i32>>,
    outage: RefCell<Option<Box<dyn FnMut()>>>,
}

impl NatsUnderTest {
    fn new(url: &str, outage: Option<Box<dyn FnMut()>>) -> Self {
        let run_id = format!("c{:x}", WallClock.now().as_millis());
        let cluster = Cluster {
            name: "contract".into(),
            deployment: run_id.as_str().into(),
            urls: vec![url.to_owned()],
            domain: None,
            login: Login::Anonymous,
            ca: None,
            client_certificate: None,
        };
        Self {
            cluster,
            run_id,
            clients: Cell::new(0),
            topics: RefCell::default(),
            outage: RefCell::new(outage),
        }
    }

    async fn context(&self) -> Context {
        jetstream::new(
            async_nats::connect(self.cluster.urls[0].as_str())
                .await
                .expect("the server answers"),
        )
    }

    /// A unique client name.
    fn client_name(&self) -> String {
        self.clients.set(self.clients.get() + 1);
        format!("client{}", self.clients.get())
    }
}

fn stream(topic: &str, index: i32) -> String {
    format!("{topic}-{index}")
}

fn subject(topic: &str, index: i32) -> String {
    format!("{topic}.{index}")
}

fn part() -> HealthPart {
    Health::new().register("contract")
}

#[async_trait(?Send)]
impl BrokerUnderTest for NatsUnderTest {
    fn source(&self, group: &str, _topics: &[String]) -> Box<dyn Source> {
        let options = SourceOptions {
            group: group.to_owned(),
            reads_schedules: false,
            fetch_bytes_max: 1 << 24,
        };
        let sources = NatsSource::for_routes(&self.cluster, vec![(options, part())], part());
        Box::new(sources.expect("the thread starts").remove(0))
    }

    fn target(&self, in_flight_max: usize) -> Box<dyn Target> {
        Box::new(
            NatsTarget::new(
                &self.cluster,
                budget(in_flight_max),
                self.client_name(),
                part(),
            )
            .expect("the thread starts"),
        )
    }

    fn catalog(&self) -> Box<dyn GroupAdmin> {
        Box::new(NatsCatalog::new(&self.cluster, part()))
    }

    fn transactional_producers(&self) -> Box<dyn TransactionalProducers> {
        unreachable!("the contract knows that NATS has no transactions")
    }

    fn run_id(&self) -> String {
        self.run_id.clone()
    }

    fn is_kafka(&self) -> bool {
        false
    }

    fn first_offset(&self) -> u64 {
        1
    }

    fn partition(&self, topic: &str, index: i32) -> Partition {
        Partition::new(
            source_topic(&stream(topic, index), &subject(topic, index)),
            0,
        )
    }

    fn source_topics(&self, topic: &str, partitions: usize) -> Vec<String> {
        let count = i32::try_from(partitions).expect("a small count");
        (0..count)
            .map(|index| self.partition(topic, index).topic.to_string())
            .collect()
    }

    fn target_address(&self, topic: &str, partition: Option<i32>) -> (String, Option<i32>) {
        (subject(topic, partition.unwrap_or(0)), None)
    }

    fn impossible_targets(&self) -> Vec<String> {
        [
            "no spaces",
            "a\0b",
            "",
            "ümlaut",
            "a.*",
            "a.>",
            "a..b",
            ".",
            "$JS.API.INFO",
            &"x".repeat(250),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    async fn create_topic(&self, name: &str, partitions: i32, bytes_max: Option<usize>) {
        let context = self.context().await;
        for index in 0..partitions {
            let bytes_max =
                bytes_max.map_or(-1, |bytes| i32::try_from(bytes).expect("a small bound"));
            let config = stream::Config {
                name: stream(name, index),
                subjects: vec![subject(name, index)],
                max_message_size: bytes_max,
                ..stream::Config::default()
            };
            context
                .create_stream(config)
                .await
                .expect("the stream is created");
        }
        self.topics.borrow_mut().insert(name.to_owned(), partitions);
    }

    async fn delete_topic(&self, name: &str) {
        let context = self.context().await;
        let partitions = self.topics.borrow()[name];
        for index in 0..partitions {
            context
                .delete_stream(stream(name, index))
                .await
                .expect("the stream exists");
        }
    }

    async fn add_partitions(&self, _: &str, _: i32) {
        unreachable!("the contract knows that a NATS source has one partition")
    }

    async fn trim(&self, partition: &Partition, first: Offset) {
        let (name, _) = split_source_topic(&partition.topic).expect("a NATS topic");
        let stream = self
            .context()
            .await
            .get_stream(name)
            .await
            .expect("the stream exists");
        stream
            .purge()
            .sequence(first.0)
            .await
            .expect("the stream is purged");
    }

    /// NATS has no transactions. A deleted message leaves the same gap in the offsets.
    async fn abort_transaction(&self, partition: &Partition) {
        let context = self.context().await;
        let (name, subject) = split_source_topic(&partition.topic).expect("a NATS topic");
        let ack = context
            .publish(subject.to_owned(), "never seen".into())
            .await
            .expect("the client is connected");
        let sequence = ack.await.expect("the stream acknowledges").sequence;
        context
            .get_stream(name)
            .await
            .expect("the stream exists")
            .delete_message(sequence)
            .await
            .expect("the message is deleted");
    }

    async fn outage(&self) -> bool {
        self.outage
            .borrow_mut()
            .as_mut()
            .map(|outage| outage())
            .is_some()
    }
}

fn budget(records_max: usize) -> Arc<SendBudget> {
    Arc::new(SendBudget::new(records_max, usize::MAX))
}
