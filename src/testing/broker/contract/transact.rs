//! The contract of transactional producers.

use super::{
    BrokerUnderTest, OwnedRecord, PATIENCE, address_of, create_topic, deliver, keep_all_headers,
    new_source, numbered_records, payload_number, read_to_end, unique_name, within,
};
use crate::broker::{
    DeliveryFailure, DeliveryReport, FailureKind, OutgoingRecord, ProducerEvent, ProducerIdentity,
    SendResult, TransactionalProducers, TxnOffset,
};
use crate::model::{DeadLetterReason, Headers, Offset, Partition};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) async fn all(broker: &dyn BrokerUnderTest) {
    a_committed_transaction_is_visible_once_with_its_marker(broker).await;
    aborted_records_and_their_marker_are_never_visible(broker).await;
    open_transactions_hide_their_records_and_all_later_ones(broker).await;
    a_new_producer_fences_the_old_one_and_aborts_its_transaction(broker).await;
    a_marker_can_be_committed_alone(broker).await;
    an_oversized_record_is_identified_and_the_others_are_delivered(broker).await;
    a_missing_topic_is_reported_and_the_transaction_can_be_aborted(broker).await;
    an_impossible_name_is_rejected(broker).await;
    many_transactional_ids_keep_their_order_in_parallel(broker).await;
    a_discarded_producer_reports_no_events(broker).await;
}

/// A broker may have lost the end of the first transaction. Its records must still become
/// visible.
pub(super) async fn a_transaction_open_during_an_outage_is_committed_after_it(
    broker: &dyn BrokerUnderTest,
) {
    let topic = create_topic(broker, "outlived", 1).await;
    let (mut client, name) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    client.open(1, &name).await;
    client.deliver(1, &topic, 0, &numbered_records(0..10)).await;
    client.commit(1, "before").await;
    client
        .deliver(1, &topic, 0, &numbered_records(10..20))
        .await;
    if broker.outage().await {
        client.commit(1, "after").await;
        assert_eq!(client.open(2, &name).await.as_deref(), Some("after"));
        assert_eq!(
            read_numbers(broker, &topic, 0, 1).await,
            (0..20).collect::<Vec<_>>()
        );
    }
    client.producers.close().await;
}

/// The producers under test, and the events that no case has read yet.
struct TransactionClient {
    producers: Box<dyn TransactionalProducers>,
    events: BTreeMap<u64, Vec<ProducerEvent>>,
}

impl TransactionClient {
    fn new(broker: &dyn BrokerUnderTest) -> Self {
        Self {
            producers: broker.transactional_producers(),
            events: BTreeMap::new(),
        }
    }

    async fn next(&mut self, number: u64) -> ProducerEvent {
        loop {
            let waiting = self.events.entry(number).or_default();
            if !waiting.is_empty() {
                return waiting.remove(0);
            }
            for (of, happened) in within(PATIENCE, "an event", self.producers.next_events()).await {
                self.events.entry(of).or_default().push(happened);
            }
        }
    }

    async fn open(&mut self, number: u64, name: &ProducerIdentity) -> Option<String> {
        self.producers.open(number, name);
        match self.next(number).await {
            ProducerEvent::Opened(marker) => marker,
            other => panic!("{other:?}"),
        }
    }

    fn send(
        &mut self,
        number: u64,
        place: (&str, Option<i32>),
        owned: &OwnedRecord,
        ticket: u64,
    ) -> SendResult {
        let (topic, partition) = place;
        let (key, payload, headers) = (
            owned.key.as_deref(),
            owned.payload.as_deref(),
            Headers::default(),
        );
        self.producers.send(
            number,
            &OutgoingRecord {
                topic,
                partition,
                key,
                payload,
                headers,
                keep_header: keep_all_headers,
                extra_headers: &[],
            },
            ticket,
        )
    }

    /// The outcomes of this many records, by ticket.
    async fn outcomes(
        &mut self,
        number: u64,
        count: usize,
    ) -> BTreeMap<u64, Result<(), DeliveryFailure>> {
        let mut found = BTreeMap::new();
        while found.len() < count {
            let ProducerEvent::Reports(reports) = self.next(number).await else {
                panic!("expected reports")
            };
            for DeliveryReport {
                ticket, outcome, ..
            } in reports
            {
                assert!(found.insert(ticket, outcome).is_none(), "reported twice");
            }
        }
        found
    }

    /// Sends all records to one partition and expects every one to be accepted.
    async fn deliver(&mut self, number: u64, topic: &str, index: i32, all: &[OwnedRecord]) {
        for (ticket, owned) in (0..).zip(all) {
            assert_eq!(
                self.send(number, (topic, Some(index)), owned, ticket),
                SendResult::Accepted
            );
        }
        self.outcomes(number, all.len())
            .await
            .values()
            .for_each(|outcome| assert_eq!(*outcome, Ok(())));
    }

    async fn commit(&mut self, number: u64, text: &str) {
        self.producers.commit(number, marker(text));
        assert_eq!(self.next(number).await, ProducerEvent::Committed);
    }

    /// Only reports may arrive before the end of an abort.
    async fn abort(&mut self, number: u64) {
        self.producers.abort(number);
        loop {
            match self.next(number).await {
                ProducerEvent::Reports(_) => {}
                other => return assert_eq!(other, ProducerEvent::Aborted),
            }
        }
    }
}

fn marker(text: &str) -> TxnOffset {
    TxnOffset {
        offset: Offset(7),
        metadata: text.to_owned(),
    }
}

fn transactional(broker: &dyn BrokerUnderTest, topic: &str) -> ProducerIdentity {
    ProducerIdentity {
        transactional_id: unique_name(broker, "transactor"),
        offset_group: unique_name(broker, "markers"),
        partition: Partition::new(topic, 0),
        target_topics: Arc::default(),
    }
}

async fn read_numbers(
    broker: &dyn BrokerUnderTest,
    topic: &str,
    index: i32,
    partitions: usize,
) -> Vec<u64> {
    let (mut source, partition) = (
        new_source(broker, topic, partitions),
        Partition::new(topic, index),
    );
    source.start(&partition, Offset(0), 1);
    let read = read_to_end(&mut *source, &partition, 1)
        .await
        .0
        .iter()
        .map(payload_number)
        .collect();
    source.close().await;
    read
}

async fn a_committed_transaction_is_visible_once_with_its_marker(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "committed", 2).await;
    let (mut client, name) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    assert_eq!(
        client.open(1, &name).await,
        None,
        "no marker is committed yet"
    );
    for round in 0..3 {
        client
            .deliver(1, &topic, 0, &numbered_records(round * 10..round * 10 + 10))
            .await;
        client
            .deliver(1, &topic, 1, &numbered_records(round..round + 1))
            .await;
        client.commit(1, &format!("marker {round}")).await;
    }
    assert_eq!(
        read_numbers(broker, &topic, 0, 2).await,
        (0..30).collect::<Vec<_>>()
    );
    assert_eq!(read_numbers(broker, &topic, 1, 2).await, [0, 1, 2]);
    assert_eq!(client.open(2, &name).await.as_deref(), Some("marker 2"));
    client.producers.close().await;
}

async fn aborted_records_and_their_marker_are_never_visible(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "aborted", 1).await;
    let (mut client, name) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    client.open(1, &name).await;
    client.deliver(1, &topic, 0, &numbered_records(0..5)).await;
    client.commit(1, "first").await;
    for unreported in [false, true] {
        if unreported {
            assert_eq!(
                client.send(1, (&topic, Some(0)), &OwnedRecord::text("99"), 0),
                SendResult::Accepted
            );
        } else {
            client
                .deliver(1, &topic, 0, &numbered_records(90..99))
                .await;
        }
        client.abort(1).await;
    }
    client.deliver(1, &topic, 0, &numbered_records(5..6)).await;
    client.commit(1, "second").await;
    assert_eq!(
        read_numbers(broker, &topic, 0, 1).await,
        (0..6).collect::<Vec<_>>()
    );
    client
        .deliver(1, &topic, 0, &numbered_records(90..99))
        .await;
    assert_eq!(client.open(2, &name).await.as_deref(), Some("second"));
    assert_eq!(
        read_numbers(broker, &topic, 0, 1).await,
        (0..6).collect::<Vec<_>>()
    );
    client.producers.close().await;
}

async fn open_transactions_hide_their_records_and_all_later_ones(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "hidden", 1).await;
    let (mut client, name) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    client.open(1, &name).await;
    client.deliver(1, &topic, 0, &numbered_records(0..3)).await;
    deliver(
        &mut *broker.target(10),
        &address_of(broker, &topic, Some(0)),
        &numbered_records(3..4),
    )
    .await;
    assert_eq!(read_numbers(broker, &topic, 0, 1).await, Vec::<u64>::new());
    client.commit(1, "").await;
    assert_eq!(read_numbers(broker, &topic, 0, 1).await, [0, 1, 2, 3]);
    client.producers.close().await;
}

async fn a_new_producer_fences_the_old_one_and_aborts_its_transaction(
    broker: &dyn BrokerUnderTest,
) {
    let topic = create_topic(broker, "fenced", 1).await;
    let (mut old, mut new, name) = (
        TransactionClient::new(broker),
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    old.open(1, &name).await;
    new.producers.preconnect(&name);
    old.deliver(1, &topic, 0, &numbered_records(0..1)).await;
    // Long enough for a preconnected producer to do something wrong.
    tokio::time::sleep(Duration::from_millis(500)).await;
    old.commit(1, "of the old").await;
    old.deliver(1, &topic, 0, &numbered_records(90..99)).await;
    assert_eq!(new.open(1, &name).await.as_deref(), Some("of the old"));
    old.producers.commit(1, marker("too late"));
    assert!(matches!(
        old.next(1).await,
        ProducerEvent::Failed {
            is_fenced: true,
            ..
        }
    ));
    match old.send(1, (&topic, None), &OwnedRecord::text("99"), 1) {
        SendResult::Failed(failure) => assert_eq!(failure.kind, FailureKind::ClientFailed),
        other => panic!("{other:?}"),
    }
    new.deliver(1, &topic, 0, &numbered_records(1..2)).await;
    new.commit(1, "of the new").await;
    assert_eq!(read_numbers(broker, &topic, 0, 1).await, [0, 1]);
    assert_eq!(
        old.open(2, &name).await.as_deref(),
        Some("of the new"),
        "a fenced producer may be opened again"
    );
    // A preconnected producer that is never opened does not block the shutdown.
    new.producers.preconnect(&ProducerIdentity {
        transactional_id: format!("{}.other", name.transactional_id),
        ..name
    });
    old.producers.close().await;
    new.producers.close().await;
}

async fn a_marker_can_be_committed_alone(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "alone", 1).await;
    let (mut client, name) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    client.open(1, &name).await;
    client.commit(1, "nothing else").await;
    assert_eq!(client.open(2, &name).await.as_deref(), Some("nothing else"));
    client.producers.close().await;
}

/// A producer that cannot tell which record of a batch was rejected is lost. The next one with its
/// id names the record.
async fn an_oversized_record_is_identified_and_the_others_are_delivered(
    broker: &dyn BrokerUnderTest,
) {
    let topic = unique_name(broker, "large");
    broker.create_topic(&topic, 1, Some(2_000)).await;
    let (mut client, name) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    let large = OwnedRecord {
        payload: Some(vec![1; 3_000]),
        ..OwnedRecord::default()
    };
    let (mut opening, mut refused) = (1, None);
    client.open(opening, &name).await;
    'rounds: for round in 0.. {
        assert!(round < 6, "the transaction ends");
        let tickets: Vec<u64> = (0..50).filter(|ticket| refused != Some(*ticket)).collect();
        for ticket in &tickets {
            let small = OwnedRecord::text(ticket.to_string());
            client.send(
                opening,
                (&topic, Some(0)),
                if *ticket == 25 { &large } else { &small },
                *ticket,
            );
        }
        let (mut left, mut asked) = (tickets.len(), false);
        loop {
            match client.next(opening).await {
                ProducerEvent::Reports(reports) => {
                    let is_large = |report: &&DeliveryReport| matches!(&report.outcome, Err(failure) if failure.reason == DeadLetterReason::TooLarge);
                    refused = refused.or(reports.iter().find(is_large).map(|report| report.ticket));
                    left -= reports
                        .iter()
                        .filter(|report| report.outcome.is_ok())
                        .count();
                    if left == 0 {
                        client.commit(opening, "all but one").await;
                        break 'rounds;
                    } else if !asked && reports.iter().any(|report| report.outcome.is_err()) {
                        // After an abort, the producer sends and reports nothing of the
                        // transaction.
                        client.producers.abort(opening);
                        asked = true;
                    }
                }
                ProducerEvent::Aborted if asked => break,
                ProducerEvent::Failed {
                    is_fenced: false, ..
                } => {
                    opening += 1;
                    client.open(opening, &name).await;
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(refused, Some(25));
    assert_eq!(
        read_numbers(broker, &topic, 0, 1).await,
        (0..50).filter(|number| *number != 25).collect::<Vec<_>>()
    );
    client.producers.close().await;
}

async fn a_missing_topic_is_reported_and_the_transaction_can_be_aborted(
    broker: &dyn BrokerUnderTest,
) {
    let (topic, missing) = (
        create_topic(broker, "there", 1).await,
        unique_name(broker, "missing"),
    );
    let (mut client, name) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    client.open(1, &name).await;
    let asked = async {
        match client.send(1, (&missing, None), &OwnedRecord::text("1"), 1) {
            SendResult::Accepted => client.outcomes(1, 1).await.remove(&1).expect("its report"),
            SendResult::Failed(failure) => Err(failure),
            SendResult::QueueFull => panic!("full of one record"),
        }
    };
    let failure = within(Duration::from_secs(15), "word of a missing topic", asked)
        .await
        .expect_err("there is no such topic");
    assert_eq!(
        (failure.kind, failure.reason),
        (FailureKind::NotDelivered, DeadLetterReason::UnknownTarget),
        "{}",
        failure.detail
    );
    client.abort(1).await;
    client.deliver(1, &topic, 0, &numbered_records(0..1)).await;
    client.commit(1, "").await;
    assert_eq!(read_numbers(broker, &topic, 0, 1).await, [0]);
    client.producers.close().await;
}

async fn an_impossible_name_is_rejected(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "possible", 1).await;
    let (mut client, transactional) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    client.open(1, &transactional).await;
    for name in ["no spaces", "", "^.*"] {
        match client.send(1, (name, None), &OwnedRecord::text("1"), 1) {
            SendResult::Failed(failure) => assert_eq!(
                (failure.kind, failure.reason),
                (FailureKind::Rejected, DeadLetterReason::InvalidTarget)
            ),
            other => panic!("{other:?}"),
        }
    }
    client.deliver(1, &topic, 0, &numbered_records(0..1)).await;
    client.commit(1, "the producer still works").await;
    client.producers.close().await;
}

async fn many_transactional_ids_keep_their_order_in_parallel(broker: &dyn BrokerUnderTest) {
    const NAMES: u64 = 4;
    let topic = create_topic(broker, "many", NAMES as i32).await;
    let mut client = TransactionClient::new(broker);
    for number in 0..NAMES {
        client.open(number, &transactional(broker, &topic)).await;
    }
    for round in 0..3 {
        for number in 0..NAMES {
            for text in numbered_records(round * 2_000..(round + 1) * 2_000) {
                assert_eq!(
                    client.send(
                        number,
                        (&topic, Some(number as i32)),
                        &text,
                        round * 2_000 + payload_number(&text)
                    ),
                    SendResult::Accepted
                );
            }
        }
        for number in 0..NAMES {
            client
                .outcomes(number, 2_000)
                .await
                .values()
                .for_each(|outcome| assert_eq!(*outcome, Ok(())));
            client.producers.commit(number, marker(""));
        }
        for number in 0..NAMES {
            assert_eq!(client.next(number).await, ProducerEvent::Committed);
        }
    }
    for number in 0..NAMES {
        assert!(
            read_numbers(broker, &topic, number as i32, NAMES as usize)
                .await
                .into_iter()
                .eq(0..6_000)
        );
    }
    client.producers.close().await;
}

async fn a_discarded_producer_reports_no_events(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "ended", 1).await;
    let (mut client, name) = (
        TransactionClient::new(broker),
        transactional(broker, &topic),
    );
    client.open(1, &name).await;
    client.send(1, (&topic, Some(0)), &OwnedRecord::text("90"), 1);
    client.producers.commit(1, marker("never"));
    client.producers.discard(1);
    client.open(2, &name).await;
    client.deliver(2, &topic, 0, &numbered_records(0..1)).await;
    client.commit(2, "").await;
    assert!(!client.events.contains_key(&1) || client.events[&1].is_empty());
    client.producers.close().await;
}
