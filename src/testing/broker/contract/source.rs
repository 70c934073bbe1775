//! The contract of a source and a catalog.

use super::{
    BrokerUnderTest, OwnedRecord, PATIENCE, address_of, create_topic, deliver, new_source,
    numbered_records, owned_records, payload_number, read_to_end, unique_name, within,
};
use crate::broker::{Error, Event, OffsetCommit};
use crate::clock::{Clock as _, WallClock};
use crate::model::{Offset, Partition, Timestamp};
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) async fn all(broker: &dyn BrokerUnderTest) {
    if broker.is_kafka() {
        a_record_is_read_byte_for_byte(broker).await;
        an_added_partition_is_read(broker).await;
        impossible_topic_names_are_treated_as_missing_topics(broker).await;
    }
    reading_starts_at_the_given_offset(broker).await;
    a_new_start_drops_prefetched_records(broker).await;
    the_end_of_a_partition_is_after_an_aborted_transaction(broker).await;
    offsets_before_the_retention_are_out_of_range(broker).await;
    a_stopped_partition_is_not_read(broker).await;
    committed_metadata_is_read_back(broker).await;
    two_sources_of_a_group_read_and_commit(broker).await;
    a_recreated_topic_has_a_new_identity(broker).await;
    a_missing_topic_is_described_once_it_exists(broker).await;
    a_catalog_lists_partitions_and_commits(broker).await;
    the_position_of_an_unused_group_is_moved(broker).await;
    many_records_are_read_once_and_in_order(broker).await;
}

async fn a_record_is_read_byte_for_byte(broker: &dyn BrokerUnderTest) {
    let bytes = |bytes: &[u8]| Some(bytes.to_vec());
    let header = |name: &[u8], value: Option<&[u8]>| (name.to_vec(), value.map(<[u8]>::to_vec));
    let wanted = [
        OwnedRecord::default(),
        OwnedRecord {
            key: bytes(b""),
            payload: bytes(b""),
            ..OwnedRecord::default()
        },
        OwnedRecord {
            key: bytes(&[0, 255, 128]),
            payload: bytes(&[0xc3, 0x28, 0]),
            ..OwnedRecord::default()
        },
        OwnedRecord {
            payload: bytes(&vec![7; 300_000]),
            ..OwnedRecord::default()
        },
        OwnedRecord {
            payload: bytes(b"x"),
            headers: vec![
                header(b"b", Some(b"1")),
                header(b"a", None),
                header(b"b", Some(b"1")),
                header(b"a", Some(b"")),
                header(b"b", Some(b"2")),
                header(b"", Some(b"no name")),
                header(&[0xff, 0xfe, b'!'], Some(&[0xff, 0, 0xfe])),
                header("größe".as_bytes(), Some("ü".as_bytes())),
            ],
            ..OwnedRecord::default()
        },
        OwnedRecord {
            headers: (0..500)
                .map(|n: u32| header(format!("h{n}").as_bytes(), Some(&n.to_le_bytes())))
                .collect(),
            ..OwnedRecord::default()
        },
    ];
    let topic = create_topic(broker, "fidelity", 1).await;
    deliver(
        &mut *broker.target(100),
        &address_of(broker, &topic, Some(0)),
        &wanted,
    )
    .await;
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    source.start(&partition, Offset(0), 1);
    let (read, at) = read_to_end(&mut *source, &partition, 1).await;
    assert_eq!(read.len(), wanted.len());
    for (offset, (read, wanted)) in (0..).zip(read.iter().zip(wanted)) {
        assert_eq!(*read, OwnedRecord { offset, ..wanted });
    }
    assert_eq!(at, Offset(6));
    source.close().await;
}

async fn reading_starts_at_the_given_offset(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "start", 1).await;
    deliver(
        &mut *broker.target(100),
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..10),
    )
    .await;
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    for (epoch, from) in [(1, 4), (2, 0), (3, 9), (4, 10)] {
        source.start(&partition, Offset(broker.first_offset() + from), epoch);
        let (read, at) = read_to_end(&mut *source, &partition, epoch).await;
        assert_eq!(
            read.iter().map(payload_number).collect::<Vec<_>>(),
            (from..10).collect::<Vec<_>>()
        );
        assert_eq!(at, Offset(broker.first_offset() + 10));
        assert_eq!(
            source.known_end(&partition),
            Some(Offset(broker.first_offset() + 10))
        );
    }
    source.close().await;
}

/// A new start elsewhere follows every batch. Records that were prefetched before it must not
/// appear.
async fn a_new_start_drops_prefetched_records(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "epochs", 1).await;
    deliver(
        &mut *broker.target(10_000),
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..30_000),
    )
    .await;
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    for (epoch, from) in (1..).zip([0, 20_000, 10, 29_000, 15_000, 15_000, 0, 29_999, 1]) {
        source.start(&partition, Offset(broker.first_offset() + from), epoch);
        match within(PATIENCE, "records", source.next_event())
            .await
            .expect("the source works")
        {
            Event::Records(batch) => {
                assert_eq!(batch.epoch, epoch);
                let read = owned_records(&batch);
                assert_eq!(
                    (read[0].offset, payload_number(&read[0])),
                    (broker.first_offset() + from, from)
                );
                assert!(
                    read.windows(2)
                        .all(|pair| pair[0].offset + 1 == pair[1].offset)
                );
            }
            other => panic!("{other:?}"),
        }
    }
    source.close().await;
}

async fn the_end_of_a_partition_is_after_an_aborted_transaction(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "aborted", 1).await;
    let mut target = broker.target(100);
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    let first = Offset(broker.first_offset());
    source.start(&partition, first, 1);
    let (read, at) = read_to_end(&mut *source, &partition, 1).await;
    assert_eq!(
        (read.len(), at),
        (0, first),
        "an empty partition has an end too"
    );
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..1),
    )
    .await;
    broker.abort_transaction(&partition).await;
    let end = source
        .describe(std::slice::from_ref(&partition))
        .await
        .expect("an answer")[0]
        .as_ref()
        .expect("the partition exists")
        .end_offset;
    assert!(end > first.next());
    let mut read = Vec::new();
    loop {
        let (more, at) = read_to_end(&mut *source, &partition, 1).await;
        read.extend(more);
        if at == end {
            break;
        }
    }
    assert_eq!(read.iter().map(payload_number).collect::<Vec<_>>(), [0]);
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(0)),
        &numbered_records(1..2),
    )
    .await;
    let (read, at) = read_to_end(&mut *source, &partition, 1).await;
    assert_eq!(
        (read[0].offset, at),
        (end.0, end.next()),
        "reading continues after the gap"
    );
    source.close().await;
}

async fn offsets_before_the_retention_are_out_of_range(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "range", 1).await;
    deliver(
        &mut *broker.target(100),
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..10),
    )
    .await;
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    let place = |number| Offset(broker.first_offset() + number);
    broker.trim(&partition, place(5)).await;
    let described = source
        .describe(std::slice::from_ref(&partition))
        .await
        .expect("an answer");
    let described = described[0].as_ref().expect("the partition exists");
    assert_eq!(
        (described.first_offset, described.end_offset),
        (place(5), place(10))
    );
    for (epoch, from) in [(1, 4), (2, 11)] {
        source.start(&partition, place(from), epoch);
        match within(
            PATIENCE,
            "an answer to a wrong position",
            source.next_event(),
        )
        .await
        {
            Ok(Event::OutOfRange {
                partition: of,
                epoch: its,
            }) => assert_eq!((of, its), (partition.clone(), epoch)),
            other => panic!("{other:?}"),
        }
    }
    source.start(&partition, place(5), 3);
    assert_eq!(read_to_end(&mut *source, &partition, 3).await.0.len(), 5);
    source.close().await;
}

async fn a_stopped_partition_is_not_read(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "stop", 2).await;
    let mut target = broker.target(100);
    let (mut source, stopped, other) = (
        new_source(broker, &topic, 2),
        broker.partition(&topic, 0),
        broker.partition(&topic, 1),
    );
    for partition in [&stopped, &other] {
        source.start(partition, Offset(broker.first_offset()), 1);
    }
    source.stop(&stopped);
    source.stop(&stopped);
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..10),
    )
    .await;
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(1)),
        &numbered_records(0..10),
    )
    .await;
    let mut read = 0;
    while read < 10 {
        read += read_to_end(&mut *source, &other, 1).await.0.len();
    }
    source.close().await;
}

async fn committed_metadata_is_read_back(broker: &dyn BrokerUnderTest) {
    let (topic, group) = (
        create_topic(broker, "commit", 3).await,
        unique_name(broker, "group"),
    );
    let partitions: Vec<Partition> = (0..3)
        .map(|index| broker.partition(&topic, index))
        .collect();
    let mut source = broker.source(&group, &broker.source_topics(&topic, 3));
    let committed = source.committed_metadata(&partitions);
    let described = within(PATIENCE, "another answer", source.describe(&partitions)).await;
    assert_eq!(described.expect("an answer").len(), 3);
    assert_eq!(committed.await.expect("an answer"), [None, None, None]);
    for (offset, first) in [(7, "first"), (3, "second, of an older offset")] {
        let commits = [(0, first), (2, "")].map(|(index, metadata): (usize, &str)| OffsetCommit {
            partition: partitions[index].clone(),
            offset: Offset(offset),
            metadata: metadata.to_owned(),
        });
        within(PATIENCE, "a commit", source.commit(commits.to_vec()))
            .await
            .expect("a commit by the owner");
        let wanted = [Some(first.to_owned()), None, Some(String::new())];
        assert_eq!(
            source
                .committed_metadata(&partitions)
                .await
                .expect("an answer"),
            wanted
        );
        let turned: Vec<_> = partitions.iter().rev().cloned().collect();
        let mut wanted = wanted.to_vec();
        wanted.reverse();
        assert_eq!(
            broker
                .catalog()
                .committed_metadata(&group, &turned)
                .await
                .expect("an answer"),
            wanted,
            "in the order asked for"
        );
    }
    source.close().await;
}

/// Sources are no members of their group, so two may read one partition. The store accepts each
/// offset once.
async fn two_sources_of_a_group_read_and_commit(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "both", 1).await;
    let group = unique_name(broker, "group");
    let (topics, partition) = (broker.source_topics(&topic, 1), broker.partition(&topic, 0));
    let to = address_of(broker, &topic, Some(0));
    deliver(&mut *broker.target(100), &to, &numbered_records(0..10)).await;
    for metadata in ["one", "two"] {
        let mut source = broker.source(&group, &topics);
        source.start(&partition, Offset(broker.first_offset()), 1);
        let (read, _) = read_to_end(&mut *source, &partition, 1).await;
        assert_eq!(read.len(), 10);
        let commit = OffsetCommit {
            partition: partition.clone(),
            offset: Offset(1),
            metadata: metadata.to_owned(),
        };
        within(PATIENCE, "a commit", source.commit(vec![commit]))
            .await
            .expect("the group has no members");
        let found = source.committed_metadata(std::slice::from_ref(&partition));
        assert_eq!(found.await.expect("an answer"), [Some(metadata.to_owned())]);
        source.close().await;
    }
}

async fn an_added_partition_is_read(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "added", 1).await;
    let (mut source, first) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    source.start(&first, Offset(0), 1);
    assert_eq!(read_to_end(&mut *source, &first, 1).await.1, Offset(0));
    let added = broker.partition(&topic, 2);
    broker.add_partitions(&topic, 3).await;
    source.start(&added, Offset(0), 1);
    assert_eq!(read_to_end(&mut *source, &added, 1).await.1, Offset(0));
    source.close().await;
}

async fn a_recreated_topic_has_a_new_identity(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "again", 1).await;
    let mut target = broker.target(100);
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..5),
    )
    .await;
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    let before = source
        .describe(std::slice::from_ref(&partition))
        .await
        .expect("an answer");
    let before = before[0].as_ref().expect("the partition exists");
    assert!(before.identity.is_some());
    source.start(&partition, Offset(broker.first_offset()), 1);
    assert_eq!(read_to_end(&mut *source, &partition, 1).await.0.len(), 5);
    broker.delete_topic(&topic).await;
    broker.create_topic(&topic, 1, None).await;
    // It is longer than the old topic, so offsets alone do not reveal the change.
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..50),
    )
    .await;
    let told = async {
        loop {
            match source.next_event().await {
                Ok(Event::RecordsRemoved { .. } | Event::OutOfRange { .. }) => return,
                Ok(Event::Records(_) | Event::EndReached { .. } | Event::Unreadable { .. })
                | Err(Error::Rejected(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    within(
        Duration::from_secs(30),
        "word that the topic is another one",
        told,
    )
    .await;
    let after = source
        .describe(std::slice::from_ref(&partition))
        .await
        .expect("an answer");
    let after = after[0].as_ref().expect("the partition exists");
    assert!(after.identity.is_some() && after.identity != before.identity);
    source.close().await;
}

async fn a_missing_topic_is_described_once_it_exists(broker: &dyn BrokerUnderTest) {
    let missing = unique_name(broker, "missing");
    let mut source = new_source(broker, &missing, 1);
    let there = create_topic(broker, "there", 1).await;
    let both = [broker.partition(&there, 0), broker.partition(&missing, 0)];
    let described = source.describe(&both).await;
    assert!(
        matches!(described.as_deref(), Ok([Ok(_), Err(Error::Rejected(_))])),
        "{described:?}"
    );
    broker.create_topic(&missing, 1, None).await;
    let described = source.describe(&both).await;
    assert!(
        matches!(described.as_deref(), Ok([Ok(_), Ok(_)])),
        "{described:?}"
    );
    source.close().await;
}

async fn a_catalog_lists_partitions_and_commits(broker: &dyn BrokerUnderTest) {
    let (one, two, missing) = (
        create_topic(broker, "one", 1).await,
        create_topic(broker, "two", 2).await,
        unique_name(broker, "missing"),
    );
    let mut catalog = broker.catalog();
    let names = [
        broker.source_topics(&two, 2),
        broker.source_topics(&missing, 1),
        broker.source_topics(&one, 1),
    ]
    .concat();
    let found = catalog.partitions(&names).await.expect("an answer");
    let wanted =
        [(&one, 0), (&two, 0), (&two, 1)].map(|(topic, index)| broker.partition(topic, index));
    let clusters: BTreeSet<_> = found.iter().map(|(_, id)| id.cluster()).collect();
    assert!(
        clusters.len() == 1 && !clusters.contains(&None),
        "{found:?}"
    );
    let mut source = broker.source(&unique_name(broker, "group"), &names[..2]);
    let described = source.describe(&[broker.partition(&two, 0)]).await;
    let described = described.expect("an answer").remove(0);
    let identity = described.expect("the partition exists").identity;
    assert!(
        found
            .iter()
            .any(|(_, found)| Some(found) == identity.as_ref())
    );
    source.close().await;
    assert_eq!(
        found.into_iter().map(|(it, _)| it).collect::<BTreeSet<_>>(),
        wanted.into_iter().collect()
    );
    if broker.is_kafka() {
        broker.add_partitions(&one, 2).await;
        assert_eq!(
            catalog
                .partitions(std::slice::from_ref(&one))
                .await
                .expect("an answer")
                .len(),
            2
        );
    }
    let never = catalog
        .committed_metadata(&unique_name(broker, "never"), &[broker.partition(&one, 0)])
        .await
        .expect("an answer");
    assert_eq!(never, [None]);
    assert_eq!(
        catalog
            .committed_metadata("any", &[])
            .await
            .expect("an answer"),
        Vec::<Option<String>>::new()
    );
    catalog.close().await;
}

async fn the_position_of_an_unused_group_is_moved(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "moved", 1).await;
    let (partition, first) = (broker.partition(&topic, 0), broker.first_offset());
    let mut target = broker.target(16);
    let to = address_of(broker, &topic, Some(0));
    deliver(&mut *target, &to, &numbered_records(0..5)).await;
    let asleep_at = WallClock.now();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    // The memory broker and its tests have clocks that do not run.
    let clock_runs = WallClock.now().since(asleep_at) > Duration::from_secs(1);
    let middle = WallClock.now().minus(Duration::from_millis(700));
    deliver(&mut *target, &to, &numbered_records(5..8)).await;
    target.close().await;
    let mut admin = broker.catalog();
    let partitions = [partition.clone()];
    let info = admin
        .describe(&partitions)
        .await
        .expect("an answer")
        .remove(0);
    assert_eq!(
        (info.first_offset, info.end_offset),
        (Offset(first), Offset(first + 8))
    );
    let far_ahead = middle.plus(Duration::from_secs(1_000_000_000));
    let times = [(Timestamp::from_millis(1), first), (far_ahead, first + 8)];
    let times = times
        .into_iter()
        .chain(clock_runs.then_some((middle, first + 5)));
    for (time, offset) in times {
        let found = admin.offsets_at(&partitions, time).await;
        assert_eq!(found.expect("an answer"), [Offset(offset)], "{time:?}");
    }

    let group = unique_name(broker, "group");
    let commit = |text: &str| OffsetCommit {
        partition: partition.clone(),
        offset: Offset(first + 3),
        metadata: text.to_owned(),
    };
    admin
        .commit_unused(&group, &[commit("one")])
        .await
        .expect("an answer");
    let committed = admin.committed_metadata(&group, &partitions).await;
    assert_eq!(committed.expect("an answer"), [Some("one".to_owned())]);
    admin.close().await;
}

/// Impossible names are treated like missing topics and do not affect other topics.
async fn impossible_topic_names_are_treated_as_missing_topics(broker: &dyn BrokerUnderTest) {
    let one = create_topic(broker, "possible", 1).await;
    let mut catalog = broker.catalog();
    let impossible = [
        "",
        ".",
        "..",
        "no spaces",
        "^.*",
        "a\0b",
        "ümlaut",
        &"x".repeat(250),
    ]
    .map(str::to_owned);
    let all: Vec<String> = impossible.iter().chain([&one]).cloned().collect();
    let found = catalog.partitions(&all).await.expect("an answer");
    let found: Vec<_> = found.into_iter().map(|(partition, _)| partition).collect();
    assert_eq!(found, [Partition::new(one.clone(), 0)]);
    let partitions: Vec<Partition> = all.iter().map(|topic| broker.partition(topic, 0)).collect();
    let group = unique_name(broker, "group");
    assert_eq!(
        catalog
            .committed_metadata(&group, &partitions)
            .await
            .expect("an answer"),
        vec![None; all.len()]
    );
    catalog.close().await;
    let mut source = broker.source(&group, &[one]);
    for partition in &partitions[..impossible.len()] {
        assert!(
            matches!(
                source
                    .describe(std::slice::from_ref(partition))
                    .await
                    .as_deref(),
                Ok([Err(Error::Rejected(_))])
            ),
            "{partition}"
        );
    }
    source.close().await;
}

/// More than one batch, read and buffer hold, in several partitions, with a slow reader.
async fn many_records_are_read_once_and_in_order(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "much", 3).await;
    let mut target = broker.target(10_000);
    let padding = "x".repeat(1_000);
    let all: Vec<OwnedRecord> = (0..20_000)
        .map(|n| OwnedRecord::text(format!("{n}{padding}")))
        .collect();
    for index in 0..3 {
        deliver(&mut *target, &address_of(broker, &topic, Some(index)), &all).await;
    }
    let mut source = new_source(broker, &topic, 3);
    let partitions: Vec<Partition> = (0..3)
        .map(|index| broker.partition(&topic, index))
        .collect();
    partitions
        .iter()
        .for_each(|partition| source.start(partition, Offset(broker.first_offset()), 9));
    let mut next = [0; 3];
    while next != [20_000; 3] {
        match within(PATIENCE, "records", source.next_event())
            .await
            .expect("the source works")
        {
            Event::Records(batch) => {
                let index = partitions
                    .iter()
                    .position(|partition| *partition == batch.partition)
                    .expect("one of them");
                let place = &mut next[index];
                for owned in owned_records(&batch) {
                    assert_eq!(
                        owned.offset,
                        broker.first_offset() + *place,
                        "{}",
                        batch.partition
                    );
                    assert!(
                        owned
                            .payload
                            .expect("a payload")
                            .starts_with(place.to_string().as_bytes())
                    );
                    *place += 1;
                }
            }
            Event::EndReached { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    source.close().await;
}

pub(super) async fn reading_continues_after_an_outage(broker: &dyn BrokerUnderTest) {
    let topic = create_topic(broker, "outage-read", 1).await;
    let mut target = broker.target(100);
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(0)),
        &numbered_records(0..10),
    )
    .await;
    let (mut source, partition) = (new_source(broker, &topic, 1), broker.partition(&topic, 0));
    source.start(&partition, Offset(broker.first_offset()), 1);
    assert_eq!(read_to_end(&mut *source, &partition, 1).await.0.len(), 10);
    if !broker.outage().await {
        return;
    }
    deliver(
        &mut *target,
        &address_of(broker, &topic, Some(0)),
        &numbered_records(10..20),
    )
    .await;
    let mut read: Vec<OwnedRecord> = Vec::new();
    let reading = async {
        while read.len() < 10 {
            match source.next_event().await {
                Ok(Event::Records(batch)) => read.extend(owned_records(&batch)),
                Ok(Event::EndReached { .. }) | Err(Error::Unavailable(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    within(PATIENCE, "what came after the outage", reading).await;
    assert_eq!(
        read.iter().map(payload_number).collect::<Vec<_>>(),
        (10..20).collect::<Vec<_>>()
    );
    let commit = OffsetCommit {
        partition: partition.clone(),
        offset: Offset(20),
        metadata: "after".into(),
    };
    within(PATIENCE, "a commit after the outage", async {
        while source.commit(vec![commit.clone()]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(
        source
            .committed_metadata(&[partition])
            .await
            .expect("an answer"),
        [Some("after".to_owned())]
    );
    source.close().await;
}
