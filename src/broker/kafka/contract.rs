//! Runs the broker contract against a real Kafka, for the integration tests, which have a broker.

use super::limit::KAFKA_REQUEST_TIMEOUT;
use super::{Cluster, KafkaCatalog, KafkaSource, KafkaTarget, KafkaTransactionalProducers};
use crate::broker::send_budget::SendBudget;
use crate::broker::{
    DeliveryFailure, FailureKind, GroupAdmin, OutgoingRecord, SendResult, Source, Target,
    TransactionalProducers,
};
use crate::clock::{Clock as _, WallClock};
use crate::limit::SourceMemory;
use crate::model::{Headers, Offset, Partition};
use crate::testing::broker::contract::{self, BrokerUnderTest};
use async_trait::async_trait;
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Runs the contract on the broker at `brokers`, without harm to it.
pub async fn kafka_contract(brokers: &str) {
    let world = KafkaWorld::new(brokers, None);
    a_producer_that_failed_fatally_is_replaced(&world).await;
    contract::run_shared(&world).await;
}

/// Runs the outage part of the contract. `outage` stops the broker and starts it again with its
/// data; `pause` makes it silent or responsive.
pub async fn kafka_outage_contract(
    brokers: &str,
    outage: impl FnMut() + 'static,
    pause: impl FnMut(bool),
) {
    let world = KafkaWorld::new(brokers, Some(Box::new(outage)));
    requests_during_an_outage_fail_and_do_no_harm_later(&world, pause).await;
    contract::run_outages(&world).await;
}

struct KafkaWorld {
    cluster: Cluster,
    run: String,
    outage: RefCell<Option<Box<dyn FnMut()>>>,
}

const PATIENCE: Duration = Duration::from_secs(30);

impl KafkaWorld {
    fn new(brokers: &str, outage: Option<Box<dyn FnMut()>>) -> Self {
        let cluster = Cluster {
            name: "contract".into(),
            brokers: vec![brokers.to_owned()],
            properties: BTreeMap::new(),
        };
        Self {
            cluster,
            run: format!("c{:x}", WallClock.now().as_millis()),
            outage: RefCell::new(outage),
        }
    }

    fn config(&self) -> ClientConfig {
        ClientConfig::from_iter([(
            "bootstrap.servers".to_owned(),
            self.cluster.brokers.join(","),
        )])
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().expect("the configuration is valid")
    }

    async fn await_partitions(&self, name: &str, total: usize) {
        let admin = self.admin();
        let leaders = || {
            let metadata = admin
                .inner()
                .fetch_metadata(Some(name), PATIENCE)
                .expect("the broker answers");
            metadata
                .topics()
                .iter()
                .flat_map(|topic| topic.partitions())
                .filter(|partition| partition.leader() >= 0)
                .count()
        };
        while leaders() != total {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn budget(records_max: usize) -> Arc<SendBudget> {
    Arc::new(SendBudget::new(records_max, usize::MAX))
}

fn count(partitions: i32) -> usize {
    usize::try_from(partitions).expect("the count is not negative")
}

#[async_trait(?Send)]
impl BrokerUnderTest for KafkaWorld {
    fn source(&self, group: &str, topics: &[String]) -> Box<dyn Source> {
        Box::new(
            KafkaSource::new(
                &self.cluster,
                group.to_owned(),
                topics,
                SourceMemory::of(1 << 28),
                part(),
            )
            .expect("the configuration is valid"),
        )
    }

    fn target(&self, in_flight_max: usize) -> Box<dyn Target> {
        Box::new(
            KafkaTarget::new(&self.cluster, budget(in_flight_max), part())
                .expect("the configuration is valid"),
        )
    }

    fn catalog(&self) -> Box<dyn GroupAdmin> {
        Box::new(
            KafkaCatalog::new(&self.cluster, None, part()).expect("the configuration is valid"),
        )
    }

    fn transactional_producers(&self) -> Box<dyn TransactionalProducers> {
        Box::new(
            KafkaTransactionalProducers::new(&self.cluster, budget(10_000), None, part())
                .expect("the configuration is valid"),
        )
    }

    fn run_id(&self) -> String {
        self.run.clone()
    }

    async fn create_topic(&self, name: &str, partitions: i32, bytes_max: Option<usize>) {
        let bytes_max = bytes_max.map(|bytes| bytes.to_string());
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        topic.config.extend(
            bytes_max
                .iter()
                .map(|bytes| ("max.message.bytes", bytes.as_str())),
        );
        let created = self
            .admin()
            .create_topics([&topic], &AdminOptions::new())
            .await
            .expect("the broker answers");
        created
            .into_iter()
            .for_each(|topic| drop(topic.expect("the topic is new")));
        self.await_partitions(name, count(partitions)).await;
    }

    async fn delete_topic(&self, name: &str) {
        let deleted = self
            .admin()
            .delete_topics(&[name], &AdminOptions::new())
            .await
            .expect("the broker answers");
        deleted
            .into_iter()
            .for_each(|topic| drop(topic.expect("the topic exists")));
        self.await_partitions(name, 0).await;
    }

    async fn add_partitions(&self, name: &str, total: i32) {
        let partitions = NewPartitions::new(name, count(total));
        let created = self
            .admin()
            .create_partitions([&partitions], &AdminOptions::new())
            .await
            .expect("the broker answers");
        created
            .into_iter()
            .for_each(|topic| drop(topic.expect("the topic exists")));
        self.await_partitions(name, count(total)).await;
    }

    async fn trim(&self, partition: &Partition, first: Offset) {
        let mut list = TopicPartitionList::new();
        let first = rdkafka::Offset::Offset(i64::try_from(first.0).expect("the offset is small"));
        list.add_partition_offset(&partition.topic, partition.index, first)
            .expect("the offset is valid");
        let deleted = self
            .admin()
            .delete_records(&list, &AdminOptions::new())
            .await
            .expect("the broker answers");
        deleted
            .elements()
            .iter()
            .for_each(|element| element.error().expect("the partition exists"));
    }

    async fn abort_transaction(&self, partition: &Partition) {
        let started = || {
            let producer: BaseProducer = self
                .config()
                .set("transactional.id", format!("{}-aborts", self.run))
                .create()
                .expect("the configuration is valid");
            producer
                .init_transactions(PATIENCE)
                .expect("the coordinator answers");
            producer
        };
        let producer = started();
        producer
            .begin_transaction()
            .expect("no transaction is open");
        for _ in 0..3 {
            let record = BaseRecord::<(), str>::to(&partition.topic)
                .partition(partition.index)
                .payload("never seen");
            producer.send(record).expect("the send queue has room");
        }
        producer
            .flush(PATIENCE)
            .expect("the broker accepts the records");
        producer
            .abort_transaction(PATIENCE)
            .expect("a transaction is open");
        // The coordinator answers before it marks the end of the transaction in the partition. The next
        // producer waits for the mark.
        started();
    }

    async fn outage(&self) -> bool {
        self.outage
            .borrow_mut()
            .as_mut()
            .map(|outage| outage())
            .is_some()
    }
}

/// librdkafka times the requests out by itself, and must survive that when the broker is back.
async fn requests_during_an_outage_fail_and_do_no_harm_later(
    world: &KafkaWorld,
    mut pause: impl FnMut(bool),
) {
    let (topic, group) = (
        format!("{}-outage", world.run),
        format!("{}-outage", world.run),
    );
    world.create_topic(&topic, 1, None).await;
    let partitions = [Partition::new(topic.clone(), 0)];
    let topics = [topic];
    let mut source = world.source(&group, &topics);
    let mut catalogs = [world.catalog(), world.catalog(), world.catalog()];
    source
        .describe(&partitions)
        .await
        .expect("the broker answers");
    pause(true);
    let paused = tokio::time::Instant::now();
    let [first, second, third] = &mut catalogs;
    let requests = async {
        tokio::join!(
            source.describe(&partitions),
            first.partitions(&topics),
            second.committed_metadata(&group, &partitions),
            third.committed_metadata(&group, &partitions)
        )
    };
    let (described, found, one, other) = tokio::time::timeout(KAFKA_REQUEST_TIMEOUT, requests)
        .await
        .expect("the requests end in time");
    assert!(
        described.is_err() && found.is_err() && one.is_err() && other.is_err(),
        "no broker responds: {described:?}, {found:?}, {one:?}, {other:?}"
    );
    tokio::time::sleep_until(paused + KAFKA_REQUEST_TIMEOUT + Duration::from_secs(2)).await;
    pause(false);
    let answered = async {
        while source.describe(&partitions).await.is_err()
            || source.committed_metadata(&partitions).await.is_err()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for catalog in &mut catalogs {
            while catalog.partitions(&topics).await.is_err()
                || catalog
                    .committed_metadata(&group, &partitions)
                    .await
                    .is_err()
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            catalog.close().await;
        }
    };
    tokio::time::timeout(PATIENCE, answered)
        .await
        .expect("all requests are answered again");
    source.close().await;
}

/// Records in flight at the failure are reported once, as `ClientFailed`. The next producer accepts
/// the records after it, but a third producer is not created at once.
async fn a_producer_that_failed_fatally_is_replaced(world: &KafkaWorld) {
    let topic = format!("{}-fatal", world.run);
    world.create_topic(&topic, 1, None).await;
    let mut target = KafkaTarget::new(&world.cluster, budget(1_000), part())
        .expect("the configuration is valid");
    let send = |target: &mut KafkaTarget, ticket: u64| {
        let payload = Some(&b"1"[..]);
        let headers = Headers::default();
        target.send(
            &OutgoingRecord {
                topic: &topic,
                partition: None,
                key: None,
                payload,
                headers,
                keep_header: |_| true,
                extra_headers: &[],
            },
            ticket,
        )
    };
    for ticket in 0..500 {
        assert_eq!(send(&mut target, ticket), SendResult::Accepted);
    }
    target.inject_fatal_error();
    assert_eq!(
        send(&mut target, 500),
        SendResult::Accepted,
        "the first is replaced at once"
    );
    target.inject_fatal_error();
    let mut refused = 0;
    while let SendResult::Failed(failure) = send(&mut target, 501) {
        assert_eq!(failure.kind, FailureKind::ClientFailed, "{failure:?}");
        refused += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(refused > 0, "the second replacement waits");
    for ticket in 502..1_000 {
        assert_eq!(send(&mut target, ticket), SendResult::Accepted);
    }
    for (ticket, outcome) in outcomes(&mut target, 1_000).await {
        match outcome {
            Ok(()) => {}
            Err(failure) if ticket <= 500 => {
                assert_eq!(failure.kind, FailureKind::ClientFailed, "{failure:?}");
            }
            Err(failure) => panic!("sent after the failure: {failure:?}"),
        }
    }
    while target.retired_producers() > 0 {
        assert_eq!(send(&mut target, 0), SendResult::Accepted);
        outcomes(&mut target, 1).await;
    }
    target.close().await;
}

async fn outcomes(
    target: &mut KafkaTarget,
    count: usize,
) -> BTreeMap<u64, Result<(), DeliveryFailure>> {
    let mut found = BTreeMap::new();
    while found.len() < count {
        let reports = tokio::time::timeout(PATIENCE, target.next_reports())
            .await
            .expect("reports arrive");
        for report in reports {
            assert!(
                found.insert(report.ticket, report.outcome).is_none(),
                "reported twice"
            );
        }
    }
    found
}

fn part() -> crate::health::HealthPart {
    crate::health::Health::new().register("contract")
}
