//! Tests: the memory cluster keeps the contract, and its faults work as described.

use super::MemoryCluster;
use crate::broker::{
    DeliveryFailure, Error, Event, FailureKind, GroupAdmin, OutgoingRecord, SendResult, Source,
    Target, TransactionalProducers,
};
use crate::clock::Clock;
use crate::model::{DeadLetterReason, Headers, Offset, Partition, Timestamp};
use crate::testing::broker::contract::{self, BrokerUnderTest};
use async_trait::async_trait;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
struct SettableClock(Cell<i64>);

impl Clock for SettableClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.get())
    }
}

const NOW: i64 = 1_800_000_000_000;

fn cluster() -> (MemoryCluster, Rc<SettableClock>) {
    let clock = Rc::new(SettableClock(Cell::new(NOW)));
    (MemoryCluster::new(clock.clone()), clock)
}

struct MemoryWorld(MemoryCluster);

#[async_trait(?Send)]
impl BrokerUnderTest for MemoryWorld {
    fn source(&self, group: &str, _topics: &[String]) -> Box<dyn Source> {
        Box::new(self.0.source(group))
    }

    fn target(&self, in_flight_max: usize) -> Box<dyn Target> {
        Box::new(self.0.target(in_flight_max))
    }

    fn catalog(&self) -> Box<dyn GroupAdmin> {
        Box::new(self.0.catalog())
    }

    fn transactional_producers(&self) -> Box<dyn TransactionalProducers> {
        Box::new(self.0.transactional_producers())
    }

    fn run_id(&self) -> String {
        "memory".into()
    }

    async fn create_topic(&self, name: &str, partitions: i32, bytes_max: Option<usize>) {
        self.0.create_topic(name, partitions);
        self.0.limit_record_size(name, bytes_max);
    }

    async fn delete_topic(&self, name: &str) {
        self.0.delete_topic(name);
    }

    async fn add_partitions(&self, name: &str, total: i32) {
        self.0.add_partitions(name, total);
    }

    async fn trim(&self, partition: &Partition, first: Offset) {
        self.0.trim_to(partition, first);
    }

    async fn abort_transaction(&self, partition: &Partition) {
        self.0.skip_offsets(partition, 3);
    }

    async fn outage(&self) -> bool {
        self.0.set_down(true);
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        self.0.set_down(false);
        true
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_cluster_keeps_the_contract() {
    let world = MemoryWorld(cluster().0);
    contract::run_shared(&world).await;
    contract::run_outages(&world).await;
}

/// The value of a future that is ready at once.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn send(target: &mut dyn Target, topic: &str, ticket: u64) -> SendResult {
    let payload = ticket.to_string();
    target.send(
        &OutgoingRecord {
            topic,
            partition: None,
            key: None,
            payload: Some(payload.as_bytes()),
            headers: Headers::default(),
            keep_header: |_| true,
            extra_headers: &[],
        },
        ticket,
    )
}

fn arrived(cluster: &MemoryCluster, topic: &str) -> Vec<String> {
    cluster
        .records(topic)
        .into_iter()
        .map(|record| String::from_utf8(record.payload.unwrap()).unwrap())
        .collect()
}

#[test]
fn arrivals_have_the_time_of_the_clock() {
    let (cluster, clock) = cluster();
    cluster.create_topic("t", 1);
    let mut target = cluster.target(10);
    for at in [5, 3, 9] {
        clock.0.set(at);
        send(&mut target, "t", 0);
    }
    assert_eq!(
        cluster
            .records("t")
            .iter()
            .map(|record| record.at.as_millis())
            .collect::<Vec<_>>(),
        [5, 3, 9]
    );
}

#[test]
fn a_cluster_that_is_down_answers_no_call_and_loses_no_record() {
    let (cluster, _) = cluster();
    cluster.create_topic("t", 1);
    let (mut source, mut target, partition) = (
        cluster.source("g"),
        cluster.target(10),
        Partition::new("t", 0),
    );
    source.start(&partition, Offset(0), 1);
    cluster.set_down(true);
    assert_eq!(send(&mut target, "t", 1), SendResult::Accepted);
    assert!(now(target.next_reports()).is_none() && now(source.next_event()).is_none());
    assert!(matches!(
        now(source.describe(&[partition])),
        Some(Err(Error::Unavailable(_)))
    ));
    cluster.set_down(false);
    assert_eq!(now(target.next_reports()).unwrap()[0].outcome, Ok(()));
    assert!(
        matches!(now(source.next_event()), Some(Ok(Event::Records(batch))) if batch.len() == 1)
    );
}

#[test]
fn held_reports_arrive_when_released_and_after_their_records() {
    let (cluster, _) = cluster();
    cluster.create_topic("t", 1);
    let mut target = cluster.target(10);
    cluster.hold_reports(true);
    for ticket in 1..=3 {
        send(&mut target, "t", ticket);
    }
    assert_eq!(arrived(&cluster, "t"), ["1", "2", "3"]);
    assert!(now(target.next_reports()).is_none());
    cluster.release_reports(2);
    assert_eq!(
        now(target.next_reports())
            .unwrap()
            .iter()
            .map(|report| report.ticket)
            .collect::<Vec<_>>(),
        [1, 2]
    );
    cluster.hold_reports(false);
    assert_eq!(now(target.next_reports()).unwrap().len(), 1);
}

#[test]
fn a_lost_report_has_an_unknown_outcome_for_any_fate_of_the_record() {
    let (cluster, _) = cluster();
    cluster.create_topic("t", 1);
    let mut target = cluster.target(10);
    cluster.lose_reports(1, true);
    cluster.lose_reports(1, false);
    for ticket in 1..=3 {
        send(&mut target, "t", ticket);
    }
    let reports = now(target.next_reports()).unwrap();
    let kinds: Vec<_> = reports
        .into_iter()
        .map(|report| report.outcome.err().map(|failure| failure.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            Some(FailureKind::MaybeDelivered),
            Some(FailureKind::MaybeDelivered),
            None
        ]
    );
    assert_eq!(arrived(&cluster, "t"), ["1", "3"]);
}

#[test]
fn records_in_the_network_outlive_their_sender_unless_they_are_dropped() {
    for lost in [false, true] {
        let (cluster, _) = cluster();
        cluster.create_topic("t", 1);
        let mut target = cluster.target(10);
        cluster.hold_sends(true);
        send(&mut target, "t", 1);
        drop(target);
        if lost {
            cluster.drop_sends_of_dead_producers();
        }
        cluster.hold_sends(false);
        assert_eq!(arrived(&cluster, "t").len(), usize::from(!lost));
    }
}

#[test]
fn records_in_a_client_die_with_it() {
    let (cluster, _) = cluster();
    cluster.create_topic("t", 1);
    let mut target = cluster.target(10);
    cluster.set_down(true);
    send(&mut target, "t", 1);
    drop(target);
    cluster.set_down(false);
    assert!(arrived(&cluster, "t").is_empty());
}

#[test]
fn a_rejecting_topic_rejects_until_it_is_released() {
    let (cluster, _) = cluster();
    cluster.create_topic("t", 1);
    let mut target = cluster.target(10);
    let failure = DeliveryFailure {
        kind: FailureKind::Rejected,
        reason: DeadLetterReason::Unauthorized,
        detail: "no".into(),
    };
    cluster.refuse_records("t", Some(failure.clone()));
    send(&mut target, "t", 1);
    cluster.refuse_records("t", None);
    send(&mut target, "t", 2);
    let outcomes: Vec<_> = now(target.next_reports())
        .unwrap()
        .into_iter()
        .map(|report| report.outcome)
        .collect();
    assert_eq!(outcomes, [Err(failure), Ok(())]);
}

#[test]
fn a_topic_that_is_recreated_unnoticed_is_out_of_range() {
    let (cluster, _) = cluster();
    cluster.create_topic("t", 1);
    let (mut source, partition) = (cluster.source("g"), Partition::new("t", 0));
    source.start(&partition, Offset(0), 1);
    assert!(matches!(
        now(source.next_event()),
        Some(Ok(Event::EndReached { .. }))
    ));
    cluster.recreate_topic("t");
    cluster.produce(&partition, None, (None, None), []);
    assert!(matches!(
        now(source.next_event()),
        Some(Ok(Event::OutOfRange { epoch: 1, .. }))
    ));
    assert!(now(source.next_event()).is_none());
}

#[test]
fn a_group_with_members_refuses_commits() {
    let (cluster, _) = cluster();
    cluster.create_topic("t", 1);
    let (mut source, partition) = (cluster.source("g"), Partition::new("t", 0));
    let commit = crate::broker::OffsetCommit {
        partition: partition.clone(),
        offset: Offset(1),
        metadata: "m".into(),
    };
    cluster.set_members("g", true);
    let refused = now(source.commit(vec![commit.clone()])).unwrap();
    assert!(matches!(refused, Err(Error::Rejected(_))));
    cluster.set_members("g", false);
    assert!(now(source.commit(vec![commit])).unwrap().is_ok());
    assert_eq!(
        cluster.committed_offset("g", &partition),
        Some((Offset(1), "m".into()))
    );
}
