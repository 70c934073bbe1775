//! A real Kafka as the contract's world: topics, retention and transactions by plain clients. For the integration tests, which have the
//! broker.

use super::{Cluster, KafkaCatalog, KafkaSource, KafkaTarget, KafkaTransactionalProducers};
use crate::broker::{
    Catalog, DeliveryFailure, FailureKind, OutgoingRecord, SendResult, Source, Target,
    TransactionalProducers,
};
use crate::clock::{Clock as _, WallClock};
use crate::limit::KAFKA_REQUEST_TIMEOUT;
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
use std::time::Duration;

/// The contract on the broker at `brokers`, to which it does no harm.
pub async fn kafka_contract(brokers: &str) {
    let world = KafkaWorld::new(brokers, None);
    a_producer_that_failed_for_good_is_replaced(&world).await;
    contract::run_shared(&world).await;
}

/// What the contract says of outages; `outage` takes the broker away and brings it back with its data, `pause` has it fall silent or not.
pub async fn kafka_outage_contract(
    brokers: &str,
    outage: impl FnMut() + 'static,
    pause: impl FnMut(bool),
) {
    let world = KafkaWorld::new(brokers, Some(Box::new(outage)));
    questions_asked_in_vain_are_given_up_and_do_no_harm_later(&world, pause).await;
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
        self.config()
            .create()
            .expect("a client of a valid configuration")
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

fn count(partitions: i32) -> usize {
    usize::try_from(partitions).expect("not negative")
}

#[async_trait(?Send)]
impl BrokerUnderTest for KafkaWorld {
    fn source(&self, group: &str, topics: &[String]) -> Box<dyn Source> {
        Box::new(
            KafkaSource::new(&self.cluster, group.to_owned(), topics, part())
                .expect("a valid configuration"),
        )
    }

    fn target(&self, in_flight_max: usize) -> Box<dyn Target> {
        Box::new(
            KafkaTarget::new(&self.cluster, in_flight_max, part()).expect("a valid configuration"),
        )
    }

    fn catalog(&self) -> Box<dyn Catalog> {
        Box::new(KafkaCatalog::new(&self.cluster, None, part()).expect("a valid configuration"))
    }

    fn transactors(&self) -> Box<dyn TransactionalProducers> {
        Box::new(
            KafkaTransactionalProducers::new(&self.cluster, None, part())
                .expect("a valid configuration"),
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
            .for_each(|topic| drop(topic.expect("a new topic")));
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
            .for_each(|topic| drop(topic.expect("a topic that exists")));
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
            .for_each(|topic| drop(topic.expect("a topic that exists")));
        self.await_partitions(name, count(total)).await;
    }

    async fn trim(&self, partition: &Partition, first: Offset) {
        let mut list = TopicPartitionList::new();
        let first = rdkafka::Offset::Offset(i64::try_from(first.0).expect("a small offset"));
        list.add_partition_offset(&partition.topic, partition.index, first)
            .expect("a valid offset");
        let deleted = self
            .admin()
            .delete_records(&list, &AdminOptions::new())
            .await
            .expect("the broker answers");
        deleted
            .elements()
            .iter()
            .for_each(|element| element.error().expect("a partition that exists"));
    }

    async fn abort_transaction(&self, partition: &Partition) {
        let producer: BaseProducer = self
            .config()
            .set("transactional.id", format!("{}-aborts", self.run))
            .create()
            .expect("a valid configuration");
        producer.init_transactions(PATIENCE).expect("a coordinator");
        producer.begin_transaction().expect("a new transaction");
        for _ in 0..3 {
            let record = BaseRecord::<(), str>::to(&partition.topic)
                .partition(partition.index)
                .payload("never seen");
            producer.send(record).expect("an empty buffer");
        }
        producer
            .flush(PATIENCE)
            .expect("a broker that takes records");
        producer
            .abort_transaction(PATIENCE)
            .expect("a transaction under way");
    }

    async fn outage(&self) -> bool {
        self.outage
            .borrow_mut()
            .as_mut()
            .map(|outage| outage())
            .is_some()
    }
}

/// librdkafka gives them up after a while of its own, and must not stumble over them when the broker is back.
async fn questions_asked_in_vain_are_given_up_and_do_no_harm_later(
    world: &KafkaWorld,
    mut pause: impl FnMut(bool),
) {
    let (topic, group) = (format!("{}-vain", world.run), format!("{}-vain", world.run));
    world.create_topic(&topic, 1, None).await;
    let partitions = [Partition::new(topic.clone(), 0)];
    let topics = [topic];
    let mut source = world.source(&group, &topics);
    let mut catalogs = [world.catalog(), world.catalog(), world.catalog()];
    source.describe(&partitions).await.expect("an answer");
    pause(true);
    let paused = tokio::time::Instant::now();
    let [first, second, third] = &mut catalogs;
    let asked = async {
        tokio::join!(
            source.describe(&partitions),
            first.partitions(&topics),
            second.committed_metadata(&group, &partitions),
            third.committed_metadata(&group, &partitions)
        )
    };
    let (described, found, one, other) = tokio::time::timeout(KAFKA_REQUEST_TIMEOUT, asked)
        .await
        .expect("an answer in time");
    assert!(
        described.is_err() && found.is_err() && one.is_err() && other.is_err(),
        "nobody is there"
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
        .expect("all is answered again");
    source.close().await;
}

/// What was under way when it failed is reported once, as something to be sent again; the next producer takes what is sent after it, but a
/// third one is not made at once.
async fn a_producer_that_failed_for_good_is_replaced(world: &KafkaWorld) {
    let topic = format!("{}-fatal", world.run);
    world.create_topic(&topic, 1, None).await;
    let mut target =
        KafkaTarget::new(&world.cluster, 1_000, part()).expect("a valid configuration");
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
    target.fail_for_good();
    assert_eq!(
        send(&mut target, 500),
        SendResult::Accepted,
        "the first is replaced at once"
    );
    target.fail_for_good();
    let mut refused = 0;
    while let SendResult::Failed(failure) = send(&mut target, 501) {
        assert_eq!(failure.kind, FailureKind::ClientFailed, "{failure:?}");
        refused += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(refused > 0, "the second waits");
    for ticket in 502..1_000 {
        assert_eq!(send(&mut target, ticket), SendResult::Accepted);
    }
    for (ticket, outcome) in outcomes(&mut target, 1_000).await {
        match outcome {
            Ok(()) => {}
            Err(failure) if ticket <= 500 => {
                assert_eq!(failure.kind, FailureKind::ClientFailed, "{failure:?}")
            }
            Err(failure) => panic!("sent after the failure: {failure:?}"),
        }
    }
    while target.retired() > 0 {
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
            .expect("reports");
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
