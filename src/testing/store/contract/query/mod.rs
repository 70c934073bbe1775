//! Cases for queries.

pub(super) mod admin;

use super::fixture::{Fixture, cancel, due, key_of, place, run_of, schedule};
use crate::model::{Offset, Progress, Watermark};
use crate::store::query::PlaceChange;
use crate::store::{Advance, IdChange, IdChangeKind, Quarantine, SliceCount};
use std::time::Duration;

pub(super) async fn a_shard_is_listed_from_creation_to_erasure(t: &Fixture<'_>) {
    let listed = async || t.survey().shards().await.unwrap().contains(&t.shard);
    assert!(!listed().await);
    t.create_shard(0).await;
    assert!(listed().await);
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert!(!listed().await);
}

pub(super) async fn waiting_messages_are_counted_by_slice(t: &Fixture<'_>) {
    let counts = async || {
        t.queried_state()
            .await
            .map_or_else(Vec::new, |state| state.slices)
    };
    assert_eq!(counts().await, [], "nothing waits in an unborn shard");
    t.create_shard(0).await;
    let (two, one) = (
        run_of("two", &[place(due(3, 0), 0), place(due(3, 1), 4)]),
        run_of("one", &[place(due(4, 0), 1)]),
    );
    let three = run_of("three", &[place(due(3, 2), 5)]);
    t.append_runs(0, 5, &[&one, &two]).await;
    t.append_runs(5, 6, &[&three]).await;
    let counted = |slice, messages, bytes: &[&crate::run::Run]| SliceCount {
        slice,
        messages,
        bytes: bytes.iter().map(|run| run.bytes.len() as u64).sum(),
    };
    assert_eq!(
        counts().await,
        [
            counted(two.slice, 3, &[&two, &three]),
            counted(one.slice, 1, &[&one])
        ]
    );

    t.take_lease(1).await;
    let delivered = Progress::new(place(due(3, 2), 5), Watermark(6));
    t.advance(Advance {
        delivered: Some(delivered),
        deletes: vec![key_of(&two), key_of(&three)],
        ..t.empty_advance(1)
    })
    .await;
    assert_eq!(counts().await, [counted(one.slice, 1, &[&one])]);
}

pub(super) async fn quarantined_messages_are_counted_separately(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let run = run_of("odd", &[place(due(3, 0), 0), place(due(3, 1), 1)]);
    t.append_runs(0, 2, &[&run]).await;
    t.take_lease(1).await;
    t.store()
        .quarantine(&[Quarantine {
            lease: t.lease(1),
            runs: vec![key_of(&run)],
        }])
        .await
        .unwrap();
    let state = t.queried_state().await.unwrap();
    assert_eq!((state.slices, state.quarantined), (vec![], 2));
}

pub(super) async fn an_id_query_returns_the_waiting_place(t: &Fixture<'_>) {
    let found = async |id: &str| {
        t.survey()
            .find_ids(&[(t.shard.clone(), id.into())])
            .await
            .unwrap()
            .remove(0)
    };
    assert_eq!(found("a").await, None);
    t.create_shard(0).await;
    let (first, second) = (place(due(3, 0), 0), place(due(4, 0), 1));
    let run = run_of("run", &[first, second]);
    t.append(
        0,
        2,
        &[&run],
        &[schedule("a", first), schedule("b", second)],
    )
    .await;
    assert_eq!(
        (found("a").await, found("b").await, found("c").await),
        (Some(first), Some(second), None)
    );
    t.append(2, 3, &[], &[cancel("b")]).await;
    assert_eq!(found("b").await, None);
    t.take_lease(1).await;
    t.acknowledge(1, Progress::new(first, Watermark(3))).await;
    assert_eq!(
        found("a").await,
        None,
        "it was delivered, though its id is still kept"
    );
}

pub(super) async fn cancelled_and_replaced_places_are_named(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let places = [0, 1, 2].map(|offset| place(due(3, 0), offset));
    let run = run_of("run", &places);
    let changes = [schedule("a", places[0]), schedule("b", places[1])];
    t.append(0, 3, &[&run], &changes).await;
    let later = place(due(4, 0), 4);
    let replacement = run_of("later", &[later]);
    t.append(3, 5, &[&replacement], &[cancel("a"), schedule("b", later)])
        .await;
    let asked = [places[0], places[1], places[2], later];
    let asked = asked.map(|place| (t.shard.clone(), place));
    let answers = t.survey().changes(&asked).await.unwrap();
    let cancelled = Some(PlaceChange::Cancelled);
    assert_eq!(answers, [cancelled, cancelled, None, None]);
    let (by, due) = (Offset(5), due(5, 0));
    let moved = IdChange::new("b", IdChangeKind::Reschedule { by, due });
    t.append(5, 6, &[], &[moved]).await;
    let answers = t.survey().changes(&asked).await.unwrap();
    assert_eq!(answers[3], Some(PlaceChange::Moved(due)));
    let moved_from = async |before| {
        let shards = std::slice::from_ref(&t.shard);
        t.survey().moved_from(shards, before).await.unwrap()
    };
    assert_eq!(moved_from(later.due).await, [None]);
    let before = later.due.plus(Duration::from_millis(1));
    assert_eq!(moved_from(before).await, [Some(later.due)]);
}
