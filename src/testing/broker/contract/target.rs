//! The contract of a target.

use super::{
    Address, BrokerUnderTest, OwnedRecord, PATIENCE, address_of, create_topic, deliver, new_source,
    numbered_records, payload_number, read_to_end, reports, send, unique_name, within,
};
use crate::broker::{FailureKind, OutgoingRecord, SendResult, Target};
use crate::model::header::push_header;
use crate::model::{DeadLetterReason, Headers, Offset};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) async fn all(broker: &dyn BrokerUnderTest) {
    if broker.is_kafka() {
        headers_are_sent_unchanged(broker).await;
        keys_get_the_same_partition_as_with_the_java_client(broker).await;
    }
    a_missing_topic_is_reported_soon_and_used_once_it_exists(broker).await;
    only_an_oversized_record_is_rejected(broker).await;
    an_impossible_name_is_rejected(broker).await;
    a_missing_partition_is_a_temporary_failure(broker).await;
    order_is_kept_with_many_in_flight(broker).await;
    a_full_target_says_so(broker).await;
    a_closed_target_accepts_no_record(broker).await;
}

async fn headers_are_sent_unchanged(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "headers", 1).await;
    let mut block = Vec::new();
    for (name, value) in [
        (&b"keep"[..], Some(&b"1"[..])),
        (b"drop", Some(b"2")),
        (b"keep", None),
    ] {
        push_header(&mut block, name, value);
    }
    let record = OutgoingRecord {
        topic: &topic,
        partition: None,
        key: Some(b"k"),
        payload: None,
        headers: Headers::from_block(&block),
        keep_header: |name| name != b"drop",
        extra_headers: &[("keep", b"3"), ("new", b"")],
    };
    let mut target = broker.target(10);
    assert_eq!(target.send(&record, 77), SendResult::Accepted);
    assert_eq!(reports(&mut *target, 1).await[&77].outcome, Ok(()));
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    source.start(&partition, Offset(0), 1);
    let header = |name: &str, value: Option<&str>| {
        (
            name.as_bytes().to_vec(),
            value.map(|value| value.as_bytes().to_vec()),
        )
    };
    let wanted = vec![
        header("keep", Some("1")),
        header("keep", None),
        header("keep", Some("3")),
        header("new", Some("")),
    ];
    assert_eq!(
        read_to_end(&mut *source, &partition, 1).await.0[0].headers,
        wanted
    );
    source.close().await;
}

/// The hashes are those of `org.apache.kafka.common.utils.Utils.murmur2`, made positive.
async fn keys_get_the_same_partition_as_with_the_java_client(broker: &dyn BrokerUnderTest) {
    const HASHES: [(&str, u32); 8] = [
        ("", 275_646_681),
        ("21", 1_173_551_340),
        ("abc", 479_470_107),
        ("foobar", 1_357_151_166),
        ("a-little-bit-long-string", 1_161_502_112),
        ("a-little-bit-longer-string", 661_178_819),
        (
            "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            2_088_585_677,
        ),
        ("größe", 588_164_084),
    ];
    const PARTITIONS: i32 = 7;
    let topic = create_topic(broker, "murmur2", PARTITIONS).await;
    let keyed: Vec<OwnedRecord> = HASHES
        .iter()
        .map(|(key, _)| OwnedRecord::keyed(key.as_bytes()))
        .collect();
    deliver(
        &mut *broker.target(100),
        &address_of(broker, &topic, None),
        &keyed,
    )
    .await;
    let mut found = BTreeMap::new();
    let mut source = new_source(broker, &topic, 7);
    for index in 0..PARTITIONS {
        let partition = broker.partition(&topic, index);
        source.start(&partition, Offset(0), 1);
        for owned in read_to_end(&mut *source, &partition, 1).await.0 {
            found.insert(
                String::from_utf8(owned.key.expect("a key")).expect("text"),
                index,
            );
        }
        source.stop(&partition);
    }
    let wanted = HASHES.map(|(key, hash)| {
        (
            key.to_owned(),
            i32::try_from(hash % 7).expect("less than seven"),
        )
    });
    assert_eq!(found, wanted.into_iter().collect());
    source.close().await;
}

async fn a_missing_topic_is_reported_soon_and_used_once_it_exists(broker: &dyn BrokerUnderTest) {
    let missing = unique_name(broker, "missing");
    let mut target = broker.target(100);
    let mut ask = async |ticket: u64| match send(
        &mut *target,
        &address_of(broker, &missing, None),
        &OwnedRecord::text("1"),
        ticket,
    ) {
        SendResult::Accepted => {
            reports(&mut *target, 1)
                .await
                .remove(&ticket)
                .expect("its report")
                .outcome
        }
        SendResult::Failed(failure) => Err(failure),
        SendResult::QueueFull => panic!("full of one record"),
    };
    for ticket in [1, 2] {
        let failure = within(
            Duration::from_secs(15),
            "word of a missing topic",
            ask(ticket),
        )
        .await
        .expect_err("there is no such topic");
        assert_eq!(
            (failure.kind, failure.reason),
            (FailureKind::NotDelivered, DeadLetterReason::UnknownTarget),
            "{}",
            failure.detail
        );
    }
    broker.create_topic(&missing, 1, None).await;
    within(Duration::from_secs(20), "the new topic", async {
        let mut ticket = 3;
        while ask(ticket).await.is_err() {
            ticket += 1;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
}

/// Small records share a client batch with the large one. They are delivered even if the owned
/// batch would be too large.
async fn only_an_oversized_record_is_rejected(broker: &dyn BrokerUnderTest) {
    let topic = unique_name(broker, "large");
    broker.create_topic(&topic, 1, Some(2_000)).await;
    let mut target = broker.target(1_000);
    let large = OwnedRecord {
        payload: Some(vec![1; 3_000]),
        ..OwnedRecord::default()
    };
    for ticket in 0..300 {
        let small = OwnedRecord::text(ticket.to_string());
        assert_eq!(
            send(
                &mut *target,
                &address_of(broker, &topic, Some(0)),
                if ticket % 100 == 50 { &large } else { &small },
                ticket
            ),
            SendResult::Accepted
        );
    }
    for (ticket, report) in reports(&mut *target, 300).await {
        match report.outcome {
            Ok(()) => assert_ne!(ticket % 100, 50),
            Err(failure) => {
                assert_eq!(
                    (failure.kind, failure.reason),
                    (FailureKind::Rejected, DeadLetterReason::TooLarge),
                    "{}",
                    failure.detail
                );
                assert_eq!(ticket % 100, 50, "{}", failure.detail);
            }
        }
    }
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    source.start(&partition, Offset(broker.first_offset()), 1);
    let read: Vec<u64> = read_to_end(&mut *source, &partition, 1)
        .await
        .0
        .iter()
        .map(payload_number)
        .collect();
    assert_eq!(read.len(), 297, "each once");
    assert_eq!(read.into_iter().collect::<BTreeSet<_>>().len(), 297);
    source.close().await;
}

async fn an_impossible_name_is_rejected(broker: &dyn BrokerUnderTest) {
    let mut target = broker.target(10);
    for (ticket, topic) in (0..).zip(broker.impossible_targets()) {
        let failure = match send(
            &mut *target,
            &Address(topic.clone(), None),
            &OwnedRecord::text("1"),
            ticket,
        ) {
            SendResult::Accepted => reports(&mut *target, 1)
                .await
                .remove(&ticket)
                .expect("its report")
                .outcome
                .expect_err("no such topic"),
            SendResult::Failed(failure) => failure,
            SendResult::QueueFull => panic!("full of one record"),
        };
        assert_eq!(
            (failure.kind, failure.reason),
            (FailureKind::Rejected, DeadLetterReason::InvalidTarget),
            "{topic}: {}",
            failure.detail
        );
    }
}

async fn a_missing_partition_is_a_temporary_failure(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "partitions", 2).await;
    let mut target = broker.target(10);
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(1)),
        &numbered_records(0..1),
    )
    .await;
    let failure = match send(
        &mut *target,
        &address_of(broker, &topic, Some(2)),
        &OwnedRecord::text("1"),
        5,
    ) {
        SendResult::Accepted => reports(&mut *target, 1)
            .await
            .remove(&5)
            .expect("its report")
            .outcome
            .expect_err("no such partition"),
        SendResult::Failed(failure) => failure,
        SendResult::QueueFull => panic!("full of one record"),
    };
    assert_eq!(
        (failure.kind, failure.reason),
        (FailureKind::NotDelivered, DeadLetterReason::UnknownTarget),
        "{}",
        failure.detail
    );
}

async fn order_is_kept_with_many_in_flight(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "order", 2).await;
    deliver(
        &mut *broker.target(20_000),
        &address_of(broker, &topic, Some(1)),
        &numbered_records(0..50_000),
    )
    .await;
    assert_order(broker, &topic, 1, 50_000).await;
}

async fn assert_order(broker: &dyn BrokerUnderTest, topic: &str, index: i32, count: u64) {
    let mut source = new_source(broker, topic, 2);
    let partition = broker.partition(topic, index);
    source.start(&partition, Offset(broker.first_offset()), 1);
    let (read, _) = read_to_end(&mut *source, &partition, 1).await;
    assert!(
        read.iter().map(payload_number).eq(0..count),
        "{} records, out of order or not each once",
        read.len()
    );
    source.close().await;
}

async fn a_full_target_says_so(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "full", 1).await;
    let mut target = broker.target(10);
    for ticket in 0..10 {
        assert_eq!(
            send(
                &mut *target,
                &address_of(broker, &topic, None),
                &OwnedRecord::text("1"),
                ticket
            ),
            SendResult::Accepted
        );
    }
    assert_eq!(
        send(
            &mut *target,
            &address_of(broker, &topic, None),
            &OwnedRecord::text("1"),
            10
        ),
        SendResult::QueueFull
    );
    let some = within(PATIENCE, "reports", target.next_reports())
        .await
        .len();
    for ticket in 0..some {
        assert_eq!(
            send(
                &mut *target,
                &address_of(broker, &topic, None),
                &OwnedRecord::text("1"),
                100 + ticket as u64
            ),
            SendResult::Accepted
        );
    }
    assert_eq!(
        send(
            &mut *target,
            &address_of(broker, &topic, None),
            &OwnedRecord::text("1"),
            200
        ),
        SendResult::QueueFull
    );
    reports(&mut *target, 10).await;
}

async fn a_closed_target_accepts_no_record(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "closed", 1).await;
    let mut target = broker.target(10);
    deliver(
        &mut *target,
        &address_of(broker, &topic, None),
        &numbered_records(0..1),
    )
    .await;
    within(PATIENCE, "the end of a target", target.close()).await;
    match send(
        &mut *target,
        &address_of(broker, &topic, None),
        &OwnedRecord::text("1"),
        1,
    ) {
        SendResult::Failed(failure) => assert_eq!(failure.kind, FailureKind::ClientFailed),
        other => panic!("{other:?}"),
    }
}

/// Each record that is acknowledged before, during or after the outage exists once, in order.
pub(super) async fn an_outage_loses_no_record_and_keeps_the_order(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "outage", 2).await;
    let mut target = broker.target(20_000);
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..1_000),
    )
    .await;
    let (mut next, mut delivered): (u64, BTreeSet<u64>) = (1_000, BTreeSet::new());
    let mut fill = |target: &mut dyn Target, until: u64| {
        while next < until
            && send(
                target,
                &address_of(broker, &topic, Some(0)),
                &OwnedRecord::text(next.to_string()),
                next,
            ) == SendResult::Accepted
        {
            next += 1;
        }
        next
    };
    fill(&mut *target, 11_000);
    if !broker.outage().await {
        return;
    }
    while delivered.len() < 20_000 {
        fill(&mut *target, 21_000);
        for report in within(PATIENCE, "reports", target.next_reports()).await {
            assert_eq!(report.outcome, Ok(()), "record {}", report.ticket);
            assert!(delivered.insert(report.ticket));
        }
    }
    assert_order(broker, &topic, 0, 21_000).await;
}
