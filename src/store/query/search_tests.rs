//! Tests of the search on a store in memory.

use super::{
    AskedChange, ChangeOutcome, ChangeQuery, MessageFilter, MessagePage, Query, QueryContext,
    Search, SearchPosition,
};
use crate::clock::WallClock;
use crate::model::header::push_header;
use crate::model::{
    Body, Cursor, Disposition, Headers, Level, Offset, Partition, Progress, RetryState, ShardId,
    Slice, SourceIdentity, Timestamp, Watermark,
};
use crate::run::{EncodedMessage, Run, RunBuilder, record};
use crate::store::{Append, AppendEpoch, IdChange, IdChangeKind, NewShard, ShardStore as _};
use crate::testing::store::memory::MemoryStore;
use std::rc::Rc;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

fn shard(partition: i32) -> ShardId {
    ShardId::new("orders", Partition::new("orders.delayed", partition))
}

/// A run of messages with these due times and offsets. The key is the offset, and so is the id.
fn run(builder: &mut RunBuilder, shard: &ShardId, places: &[(i64, u64)]) -> Run {
    let records = places.iter().map(|(_, offset)| {
        let (mut headers, mut record) = (Vec::new(), Vec::new());
        push_header(
            &mut headers,
            b"parity",
            Some(if offset % 2 == 0 { b"even" } else { b"odd" }),
        );
        let text = offset.to_string();
        let body = Body {
            key: Some(text.as_bytes()),
            payload: Some(b"payload"),
            headers: Headers::from_block(&headers),
            id: Some(&text),
            ..Body::default()
        };
        record::encode(&body, &mut record);
        record
    });
    let records: Vec<_> = records.collect();
    let messages = places.iter().zip(&records).map(|((due, offset), record)| {
        let place = Cursor::new(Timestamp::from_millis(*due), Offset(*offset));
        let slice = Slice::at(Level::Hour, Timestamp::from_millis(places[0].0));
        EncodedMessage {
            slice,
            place,
            record,
        }
    });
    let mut messages: Vec<_> = messages.collect();
    let mut runs = builder.build(shard, &mut messages, None);
    assert_eq!(runs.len(), 1);
    runs.remove(0)
}

struct Scene {
    store: MemoryStore,
    builder: RunBuilder,
}

impl Scene {
    async fn new(partitions: i32) -> Self {
        Self::with_delivered(partitions, Progress::START).await
    }

    async fn with_delivered(partitions: i32, delivered: Progress) -> Self {
        let store = MemoryStore::new(Rc::new(WallClock));
        let new = |partition| NewShard {
            shard: shard(partition),
            creates: true,
            identity: SourceIdentity("id".into()),
            watermark: Watermark(0),
            delivered,
            hold: Watermark(0),
            possibly_delivered: Progress::START,
            pause: None,
        };
        let shards: Vec<_> = (0..partitions).map(new).collect();
        store.open(&shards).await.unwrap();
        let builder = RunBuilder::plain(7);
        Self { store, builder }
    }

    async fn append(&mut self, partition: i32, (from, to): (u64, u64), places: &[(i64, u64)]) {
        let changes = places.iter().map(|(due, offset)| {
            let place = Cursor::new(Timestamp::from_millis(*due), Offset(*offset));
            IdChange::new(&*offset.to_string(), IdChangeKind::Schedule(place))
        });
        let changes = changes.collect();
        let runs = vec![run(&mut self.builder, &shard(partition), places)];
        self.change(partition, (from, to), runs, changes).await;
    }

    /// Appends a message that went back to its source, with this id.
    async fn append_retry(&mut self, from: u64, place: Cursor, id: &str, changes: Vec<IdChange>) {
        let retry = RetryState {
            attempt: 0,
            origin: "prod/orders/orders.delayed/0/5",
            due: place.due,
            error: None,
        };
        let body = Body {
            id: Some(id),
            disposition: Disposition::Retry(retry),
            ..Body::default()
        };
        let mut record = Vec::new();
        record::encode(&body, &mut record);
        let slice = Slice::at(Level::Hour, place.due);
        let mut messages = [EncodedMessage {
            slice,
            place,
            record: &record,
        }];
        let runs = self.builder.build(&shard(0), &mut messages, None);
        let to = place.offset.0 + 1;
        self.change(0, (from, to), runs, changes).await;
    }

    async fn change(
        &mut self,
        partition: i32,
        (from, to): (u64, u64),
        runs: Vec<Run>,
        changes: Vec<IdChange>,
    ) {
        let append = Append {
            shard: shard(partition),
            epoch: AppendEpoch {
                process: 1,
                number: 1,
            },
            identity: SourceIdentity("id".into()),
            from: Watermark(from),
            to: Watermark(to),
            runs,
            changes,
            pause: None,
        };
        self.store.append(&[append]).await.unwrap();
    }

    async fn page(&self, search: &Search) -> MessagePage {
        let context = QueryContext {
            deployment: "prod".to_owned(),
            ..QueryContext::default()
        };
        let query = Query::Messages(Box::new(search.clone()));
        let now = Timestamp::from_millis(0);
        let answer = query.answer(&self.store, &context, now).await.unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    /// The offsets of all pages.
    async fn offsets(&self, filter: MessageFilter, limit: usize) -> Vec<(i32, u64)> {
        let mut search = Search {
            filter,
            limit,
            after: None,
            is_detailed: false,
            with_copies: false,
        };
        let mut found = Vec::new();
        loop {
            let page = self.page(&search).await;
            assert!(page.items.len() <= limit);
            found.extend(page.items.iter().map(|item| (item.partition, item.offset)));
            if !page.more {
                return found;
            }
            let after = page.after.expect("more follow");
            search.after = SearchPosition::from_token("orders", &after);
            assert!(search.after.is_some());
        }
    }
}

fn orders() -> MessageFilter {
    MessageFilter {
        route: "orders".to_owned(),
        ..MessageFilter::default()
    }
}

#[tokio::test]
async fn pages_of_any_size_hold_each_waiting_message_once() {
    let mut scene = Scene::new(2).await;
    // Runs that overlap, and several with the same least due time.
    for step in 0..70_u64 {
        let due = DAY + i64::try_from(step / 35).unwrap() * HOUR;
        let offsets = (3 * step, 3 * step + 3);
        let places = [
            (due, 3 * step),
            (due + 5, 3 * step + 1),
            (due + 9, 3 * step + 2),
        ];
        scene.append(0, offsets, &places).await;
        scene.append(1, offsets, &places).await;
    }
    for limit in [1, 7, 1_000] {
        let mut found = scene.offsets(orders(), limit).await;
        found.sort_unstable();
        let wanted = (0..2).flat_map(|partition| (0..210).map(move |offset| (partition, offset)));
        assert_eq!(found, Vec::from_iter(wanted), "limit {limit}");
    }
}

#[tokio::test]
async fn a_filter_finds_by_due_time_id_key_and_header() {
    let mut scene = Scene::new(2).await;
    scene
        .append(0, (0, 3), &[(DAY, 0), (DAY + 1, 1), (DAY + 2, 2)])
        .await;
    scene
        .append(1, (0, 5), &[(DAY + HOUR, 3), (DAY + HOUR + 1, 4)])
        .await;
    let at = |millis| Some(Timestamp::from_millis(millis));
    let text = |text: &str| Some(text.to_owned());
    for (filter, wanted) in [
        (
            MessageFilter {
                due_from: at(DAY + 1),
                due_to: at(DAY + HOUR),
                ..orders()
            },
            vec![(0, 1), (0, 2), (1, 3)],
        ),
        (
            MessageFilter {
                id: text("4"),
                ..orders()
            },
            vec![(1, 4)],
        ),
        (
            MessageFilter {
                key: text("2"),
                ..orders()
            },
            vec![(0, 2)],
        ),
        (
            MessageFilter {
                header: Some(("parity".into(), "odd".into())),
                ..orders()
            },
            vec![(0, 1), (1, 3)],
        ),
        (
            MessageFilter {
                partition: Some(1),
                offset: Some(3),
                ..orders()
            },
            vec![(1, 3)],
        ),
        (
            MessageFilter {
                topic: text("other"),
                ..orders()
            },
            vec![],
        ),
        (
            MessageFilter {
                id: text("5"),
                ..orders()
            },
            vec![],
        ),
    ] {
        assert_eq!(
            scene.offsets(filter.clone(), 10).await,
            wanted,
            "{filter:?}"
        );
    }
}

#[tokio::test]
async fn a_cancelled_message_is_not_found_and_a_payload_is_hidden() {
    let mut scene = Scene::new(1).await;
    scene.append(0, (0, 2), &[(DAY, 0), (DAY + 1, 1)]).await;
    let cancel = IdChange::new("0", IdChangeKind::Cancel);
    scene.change(0, (2, 3), vec![], vec![cancel]).await;
    assert_eq!(scene.offsets(orders(), 10).await, [(0, 1)]);
    let search = Search {
        filter: orders(),
        limit: 10,
        after: None,
        is_detailed: true,
        with_copies: true,
    };
    let page = scene.page(&search).await;
    let item = &page.items[0];
    assert_eq!(item.origin, "prod/orders/orders.delayed/0/1");
    assert_eq!((item.payload_bytes, &item.payload), (Some(7), &None));
    assert_eq!(item.headers.as_ref().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_rescheduled_message_is_found_by_its_new_due_time() {
    let mut scene = Scene::new(1).await;
    scene.append(0, (0, 2), &[(DAY, 0), (DAY + 1, 1)]).await;
    let kind = IdChangeKind::Reschedule {
        by: Offset(2),
        due: Timestamp::from_millis(3 * DAY),
    };
    let change = IdChange::new("1", kind);
    scene.change(0, (2, 3), vec![], vec![change]).await;
    let between = |from: i64, to: i64, id: Option<&str>| MessageFilter {
        due_from: Some(Timestamp::from_millis(from)),
        due_to: Some(Timestamp::from_millis(to)),
        id: id.map(str::to_owned),
        ..orders()
    };
    for (filter, wanted) in [
        (between(DAY, 2 * DAY, None), vec![(0, 0)]),
        (between(DAY, 3 * DAY, None), vec![(0, 0), (0, 1)]),
        (between(2 * DAY, 3 * DAY, None), vec![(0, 1)]),
        (between(2 * DAY, 3 * DAY, Some("1")), vec![(0, 1)]),
        (between(DAY, 2 * DAY, Some("1")), vec![]),
        (between(DAY, 2 * DAY, Some("0")), vec![(0, 0)]),
    ] {
        let found = scene.offsets(filter.clone(), 10).await;
        assert_eq!(found, wanted, "{filter:?}");
    }
}

#[tokio::test]
async fn a_message_that_went_back_to_its_source_is_listed_by_its_first_origin() {
    let mut scene = Scene::new(1).await;
    let place = Cursor::new(Timestamp::from_millis(DAY), Offset(12));
    scene.append_retry(0, place, "/5", vec![]).await;
    let search = Search {
        filter: orders(),
        limit: 10,
        after: None,
        is_detailed: false,
        with_copies: false,
    };
    let page = scene.page(&search).await;
    let item = &page.items[0];
    let origin = "prod/orders/orders.delayed/0/5";
    assert_eq!((item.offset, item.origin.as_str()), (12, origin));
}

#[tokio::test]
async fn a_message_whose_id_another_one_has_cannot_be_changed() {
    let mut scene = Scene::new(1).await;
    scene.append(0, (0, 1), &[(DAY, 0)]).await;
    // It was claimed when the other one was scheduled, and comes back with the same id.
    let place = Cursor::new(Timestamp::from_millis(DAY), Offset(12));
    let change = IdChange::new("0", IdChangeKind::Retry { place, of: None });
    scene.append_retry(1, place, "0", vec![change]).await;
    let search = Search {
        filter: orders(),
        limit: 10,
        after: None,
        is_detailed: false,
        with_copies: false,
    };
    let page = scene.page(&search).await;
    let items = page.items.iter();
    let items: Vec<_> = items.map(|item| (item.offset, item.can_change)).collect();
    assert_eq!(items, [(0, true), (12, false)]);
}

#[tokio::test]
async fn the_outcome_of_a_cancel_is_known_once_its_record_is_read() {
    let mut scene = Scene::new(1).await;
    scene.append(0, (0, 2), &[(DAY, 0), (DAY + 1, 1)]).await;
    let outcome = async |scene: &Scene, offset: u64, record, change| {
        let due = Timestamp::from_millis(DAY + i64::try_from(offset).unwrap());
        let query = ChangeQuery {
            shard: shard(0),
            place: Cursor::new(due, Offset(offset)),
            record: Offset(record),
            change,
        };
        let query = Query::Change(Box::new(query));
        let (context, now) = (QueryContext::default(), Timestamp::from_millis(0));
        let answer = query.answer(&scene.store, &context, now).await.unwrap();
        serde_json::from_str::<ChangeOutcome>(&answer).unwrap()
    };
    let cancel = AskedChange::Cancel;
    assert_eq!(outcome(&scene, 0, 2, cancel).await, ChangeOutcome::Pending);
    let change = IdChange::new("0", IdChangeKind::Cancel);
    scene.change(0, (2, 3), vec![], vec![change]).await;
    let found = outcome(&scene, 0, 2, cancel).await;
    assert_eq!(found, ChangeOutcome::Cancelled);
    assert_eq!(outcome(&scene, 1, 2, cancel).await, ChangeOutcome::TooLate);
    let due = Timestamp::from_millis(2 * DAY);
    let kind = IdChangeKind::Reschedule { by: Offset(3), due };
    let change = IdChange::new("1", kind);
    scene.change(0, (3, 4), vec![], vec![change]).await;
    let moved = AskedChange::Reschedule(due);
    let found = outcome(&scene, 1, 3, moved).await;
    assert_eq!(found, ChangeOutcome::Rescheduled);
}

#[tokio::test]
async fn the_outcome_of_a_copy_is_known_until_the_copy_is_past() {
    let due = Timestamp::from_millis(HOUR);
    let past = Progress::new(Cursor::new(due, Offset(1)), Watermark(2));
    for (delivered, wanted) in [
        (Progress::START, ChangeOutcome::Rescheduled),
        // The copy may have been delivered, or dropped: then its mark is gone.
        (past, ChangeOutcome::Passed),
    ] {
        let mut scene = Scene::with_delivered(1, delivered).await;
        scene.append(0, (0, 1), &[(DAY, 0)]).await;
        let (place, of) = (Cursor::new(due, Offset(1)), Offset(0));
        let change = IdChange::new("0", IdChangeKind::TakePlace { place, of });
        scene.change(0, (1, 2), vec![], vec![change]).await;
        let query = ChangeQuery {
            shard: shard(0),
            place: Cursor::new(Timestamp::from_millis(DAY), Offset(0)),
            record: Offset(1),
            change: AskedChange::Copy(due),
        };
        let query = Query::Change(Box::new(query));
        let (context, now) = (QueryContext::default(), Timestamp::from_millis(0));
        let answer = query.answer(&scene.store, &context, now).await.unwrap();
        let outcome: ChangeOutcome = serde_json::from_str(&answer).unwrap();
        assert_eq!(outcome, wanted);
    }
}
