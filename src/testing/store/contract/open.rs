//! Cases for creation, erasure and a full store.

use super::fixture::{Fixture, due, key_of, listing, place, run_of, schedule};
use crate::model::{Offset, Partition, Progress, ShardId, SourceIdentity, Timestamp, Watermark};
use crate::store::{
    Acquired, Advance, Advanced, Appended, Error, Fetch, Ledger, Listed, NewShard, Opened,
    ReplaceRuns, StoredShard, Tailed,
};

pub(super) async fn creating_a_shard_stores_identity_watermark_and_delivered(t: &Fixture<'_>) {
    let delivered = Progress::new(place(due(1, 5), 3), Watermark(9));
    let wanted = StoredShard {
        identity: SourceIdentity("topic id 1".into()),
        watermark: Watermark(4),
        claimed: delivered,
        delivered,
        hold: Watermark(0),
        possibly_delivered: Progress::START,
        pause: None,
        lowest_pending: Offset(4),
        slices: Vec::new(),
        quarantined: 0,
        keys: Default::default(),
        ledger: Ledger::default(),
    };
    assert_eq!(
        t.open(t.new_shard(4, delivered)).await,
        Opened::Created(wanted.clone())
    );
    assert_eq!(t.state_if_created().await, Some(wanted));
}

pub(super) async fn creating_an_existing_shard_changes_nothing_and_returns_its_state(
    t: &Fixture<'_>,
) {
    t.create_shard(4).await;
    t.append_runs(
        4,
        6,
        &[&run_of("a", &[place(due(1, 0), 4), place(due(1, 0), 5)])],
    )
    .await;
    let before = t.state().await;
    let other = NewShard {
        identity: SourceIdentity("topic id 2".into()),
        ..t.new_shard(100, Progress::new(place(due(2, 0), 50), Watermark(100)))
    };
    assert_eq!(t.open(other).await, Opened::Existing(before.clone()));
    assert_eq!(t.state().await, before);
}

pub(super) async fn opening_an_existing_shard_extends_what_may_have_been_delivered(
    t: &Fixture<'_>,
) {
    let pair = |minute, watermark| Progress::new(place(due(1, minute), 9), Watermark(watermark));
    let lost = |pair| NewShard {
        possibly_delivered: pair,
        ..t.new_shard(4, Progress::START)
    };
    let opened = t.open(lost(pair(5, 7))).await;
    assert_eq!(opened, Opened::Created(t.state().await));
    let before = t.state().await;
    assert_eq!(before.possibly_delivered, pair(5, 7));
    for (asked, expected) in [
        (Progress::START, pair(5, 7)),
        (pair(2, 6), pair(5, 7)),
        (pair(3, 9), pair(5, 9)),
        (pair(8, 8), pair(8, 9)),
    ] {
        let extended = StoredShard {
            possibly_delivered: expected,
            ..before.clone()
        };
        assert_eq!(t.open(lost(asked)).await, Opened::Existing(extended));
        assert_eq!(t.state().await.possibly_delivered, expected);
    }
}

pub(super) async fn calls_on_a_missing_shard_return_unknown_and_write_nothing(t: &Fixture<'_>) {
    let run = run_of("a", &[place(due(1, 0), 0)]);
    assert_eq!(
        t.append(0, 1, &[&run], &[schedule("id", place(due(1, 0), 0))])
            .await,
        Appended::Unknown
    );
    assert_eq!(
        (t.state_if_created().await, t.position().await),
        (None, None)
    );
    let lost = NewShard {
        creates: false,
        ..t.new_shard(4, Progress::START)
    };
    assert_eq!(t.open(lost).await, Opened::Absent);
    assert_eq!(t.state_if_created().await, None);
    assert_eq!(t.acquire(1).await, Acquired::Unknown);
    assert!(!t.is_held_by(1).await);
    t.release(1).await;
    assert_eq!(
        t.list(Timestamp::AT_ONCE, Timestamp::MAX, 9).await,
        Listed::Unknown
    );
    assert_eq!(t.fetch(&[&run]).await, [None]);
    assert_eq!(t.tail(0, Timestamp::MAX, 9).await, Tailed::Unknown);
    assert_eq!(
        t.advance(Advance {
            claim: Some(Progress::START),
            deletes: vec![key_of(&run)],
            ..t.empty_advance(1)
        })
        .await,
        Advanced::Unknown
    );
    assert_eq!(t.quarantine(1, &[&run]).await, 0);
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert_eq!(t.state_if_created().await, None);
    t.create_shard(0).await;
    assert_eq!(t.list_all().await, (Watermark(0), vec![]));
}

pub(super) async fn an_erased_shard_does_not_exist_and_is_recreated_empty(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (a, b) = (
        run_of("a", &[place(due(1, 0), 0)]),
        run_of("b", &[place(due(7, 0), 1)]),
    );
    t.append(0, 2, &[&a, &b], &[schedule("id", place(due(1, 0), 0))])
        .await;
    t.take_lease(1).await;
    assert_eq!(t.quarantine(1, &[&b]).await, 1);
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert_eq!(t.state_if_created().await, None);
    t.create_shard(0).await;
    let state = t.state().await;
    assert_eq!(
        (state.pending(), state.quarantined, state.lowest_pending),
        (0, 0, Offset(0))
    );
    assert_eq!(t.list_all().await, (Watermark(0), vec![]));
    assert_eq!(t.fetch(&[&a, &b]).await, [None, None]);
    assert_eq!(
        t.append(0, 1, &[], &[super::fixture::cancel("id")]).await,
        Appended::Done {
            cancelled: 0,
            missed: 1,
            told: Vec::new(),
        }
    );
    t.take_lease(2).await;
}

pub(super) async fn erasing_a_shard_leaves_its_neighbours_alone(t: &Fixture<'_>) {
    let neighbour = ShardId::new(
        t.shard.route.clone(),
        Partition::new(t.shard.partition.topic.clone(), 70),
    );
    let neighbour = Fixture {
        subject: t.subject,
        shard: neighbour,
    };
    let run = run_of("a", &[place(due(1, 0), 0)]);
    for trial in [t, &neighbour] {
        trial.create_shard(0).await;
        trial.append_runs(0, 1, &[&run]).await;
    }
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert_eq!(t.state_if_created().await, None);
    assert_eq!(
        neighbour.list_all().await,
        (Watermark(1), vec![listing(&run)])
    );
    assert_eq!(neighbour.fetch(&[&run]).await, [Some(run.bytes.clone())]);
}

pub(super) async fn a_full_store_rejects_new_data_but_still_delivers(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let run = run_of("a", &[place(due(1, 0), 0)]);
    t.append_runs(0, 1, &[&run]).await;
    t.subject.set_full(true).await;

    let late = run_of("b", &[place(due(1, 0), 1)]);
    let stranger = ShardId::new("contract", Partition::new("stranger", 0));
    let refused = t
        .store()
        .append(&[t.append_request(1, 2, &[&late], &[])])
        .await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    let refused = t
        .store()
        .open(&[NewShard {
            shard: stranger.clone(),
            ..t.new_shard(0, Progress::START)
        }])
        .await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");

    t.take_lease(1).await;
    let rewrite = ReplaceRuns {
        lease: t.lease(1),
        known_replacements: 0,
        inputs: vec![key_of(&run)],
        outputs: vec![run_of("c", &[place(due(1, 0), 0)])],
        renamed_ids: Vec::new(),
    };
    let refused = t.store().replace_runs(&[rewrite]).await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    assert_eq!(t.list_all().await, (Watermark(1), vec![listing(&run)]));
    assert_eq!(t.tail_runs(0, Timestamp::MAX, 9).await.2.len(), 1);
    assert_eq!(
        t.store()
            .fetch(&[Fetch {
                shard: t.shard.clone(),
                runs: vec![key_of(&run)]
            }])
            .await
            .unwrap(),
        [[Some(run.bytes.clone())]]
    );
    let pair = Progress::new(place(due(1, 0), 0), Watermark(1));
    assert_eq!(t.claim(1, pair).await, []);
    let done = t
        .advance(Advance {
            delivered: Some(pair),
            deletes: vec![key_of(&run)],
            ..t.empty_advance(1)
        })
        .await;
    assert_eq!(
        done,
        Advanced::Done {
            watermark: Watermark(1),
            cancelled: vec![],
            effects: vec![]
        }
    );
    assert!(t.is_held_by(1).await);
    t.release(1).await;
    assert_eq!(t.state().await.pending(), 0);

    t.subject.set_full(false).await;
    assert_eq!(t.store().state(&[stranger]).await.unwrap(), [None]);
    t.append_runs(1, 2, &[&late]).await;
}
