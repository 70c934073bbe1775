//! Promises of birth, erasure and a full store.

use super::trial::{Trial, due, listing, named, place, run_of, schedule};
use crate::model::{Claim, Identity, Offset, Partition, ShardId, Timestamp, Watermark};
use crate::store::{
    Acquired, Advance, Advanced, Appended, Birth, Error, Fetch, Forecast, Ledger, Listed, Opened,
    Renewed, Rewrite, State, Tailed,
};
use std::time::Duration;

pub(super) async fn a_birth_writes_identity_watermark_and_delivered(t: &Trial<'_>) {
    let delivered = Claim::new(place(due(1, 5), 3), Watermark(9));
    let wanted = State {
        identity: Identity("topic id 1".into()),
        watermark: Watermark(4),
        claimed: delivered,
        delivered,
        lowest_pending: Offset(4),
        pending: 0,
        bytes: 0,
        quarantined: 0,
        forecast: Forecast::default(),
        ledger: Ledger::default(),
    };
    assert_eq!(
        t.open(t.birth(4, delivered)).await,
        Opened::Born(wanted.clone())
    );
    assert_eq!(t.known().await, Some(wanted));
}

pub(super) async fn a_second_birth_changes_nothing_and_tells_what_is_there(t: &Trial<'_>) {
    t.born(4).await;
    t.appended(
        4,
        6,
        &[&run_of("a", &[place(due(1, 0), 4), place(due(1, 0), 5)])],
    )
    .await;
    let before = t.state().await;
    let other = Birth {
        identity: Identity("topic id 2".into()),
        ..t.birth(100, Claim::new(place(due(2, 0), 50), Watermark(100)))
    };
    assert_eq!(t.open(other).await, Opened::Found(before.clone()));
    assert_eq!(t.state().await, before);
}

pub(super) async fn on_an_unborn_shard_every_call_answers_unknown_and_writes_nothing(
    t: &Trial<'_>,
) {
    let run = run_of("a", &[place(due(1, 0), 0)]);
    assert_eq!(
        t.append(0, 1, &[&run], &[schedule("id", place(due(1, 0), 0))])
            .await,
        Appended::Unknown
    );
    assert_eq!((t.known().await, t.glance().await), (None, None));
    assert_eq!(
        t.acquire(1, Duration::from_secs(9)).await,
        Acquired::Unknown
    );
    assert_eq!(t.renew(1, Duration::from_secs(9)).await, Renewed::Unknown);
    t.release(1).await;
    assert_eq!(
        t.list(Timestamp::AT_ONCE, Timestamp::MAX, 9).await,
        Listed::Unknown
    );
    assert_eq!(t.fetch(&[&run]).await, [None]);
    assert_eq!(t.tail(0, Timestamp::MAX, 9).await, Tailed::Unknown);
    assert_eq!(
        t.advance(Advance {
            claim: Some(Claim::START),
            deletes: vec![named(&run)],
            ..t.tick(1)
        })
        .await,
        Advanced::Unknown
    );
    assert_eq!(t.quarantine(1, &[&run]).await, 0);
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert_eq!(t.known().await, None);
    t.born(0).await;
    assert_eq!(t.list_all().await, (Watermark(0), vec![]));
}

pub(super) async fn an_erased_shard_is_unborn_and_comes_back_empty(t: &Trial<'_>) {
    t.born(0).await;
    let (a, b) = (
        run_of("a", &[place(due(1, 0), 0)]),
        run_of("b", &[place(due(7, 0), 1)]),
    );
    t.append(0, 2, &[&a, &b], &[schedule("id", place(due(1, 0), 0))])
        .await;
    t.held(1).await;
    assert_eq!(t.quarantine(1, &[&b]).await, 1);
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert_eq!(t.known().await, None);
    t.born(0).await;
    let state = t.state().await;
    assert_eq!(
        (state.pending, state.quarantined, state.lowest_pending),
        (0, 0, Offset(0))
    );
    assert_eq!(t.list_all().await, (Watermark(0), vec![]));
    assert_eq!(t.fetch(&[&a, &b]).await, [None, None]);
    assert_eq!(
        t.append(0, 1, &[], &[super::trial::cancel("id")]).await,
        Appended::Done {
            cancelled: 0,
            missed: 1
        }
    );
    t.held(2).await;
}

pub(super) async fn erasing_a_shard_leaves_its_neighbours_alone(t: &Trial<'_>) {
    let neighbour = ShardId::new(
        t.shard.route.clone(),
        Partition::new(t.shard.partition.topic.clone(), 70),
    );
    let neighbour = Trial {
        subject: t.subject,
        shard: neighbour,
    };
    let run = run_of("a", &[place(due(1, 0), 0)]);
    for trial in [t, &neighbour] {
        trial.born(0).await;
        trial.appended(0, 1, &[&run]).await;
    }
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert_eq!(t.known().await, None);
    assert_eq!(
        neighbour.list_all().await,
        (Watermark(1), vec![listing(&run)])
    );
    assert_eq!(neighbour.fetch(&[&run]).await, [Some(run.bytes.clone())]);
}

pub(super) async fn a_full_store_refuses_what_brings_bytes_and_still_delivers(t: &Trial<'_>) {
    t.born(0).await;
    let run = run_of("a", &[place(due(1, 0), 0)]);
    t.appended(0, 1, &[&run]).await;
    t.subject.set_full(true).await;

    let late = run_of("b", &[place(due(1, 0), 1)]);
    let stranger = ShardId::new("contract", Partition::new("stranger", 0));
    let refused = t.store().append(&[t.batch(1, 2, &[&late], &[])]).await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    let refused = t
        .store()
        .open(&[Birth {
            shard: stranger.clone(),
            ..t.birth(0, Claim::START)
        }])
        .await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");

    t.held(1).await;
    let rewrite = Rewrite {
        lease: t.lease(1),
        after: 0,
        inputs: vec![named(&run)],
        outputs: vec![run_of("c", &[place(due(1, 0), 0)])],
    };
    let refused = t.store().rewrite(&[rewrite]).await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    assert_eq!(t.list_all().await, (Watermark(1), vec![listing(&run)]));
    assert_eq!(t.tail_runs(0, Timestamp::MAX, 9).await.2.len(), 1);
    assert_eq!(
        t.store()
            .fetch(&[Fetch {
                shard: t.shard.clone(),
                runs: vec![named(&run)]
            }])
            .await
            .unwrap(),
        [[Some(run.bytes.clone())]]
    );
    let pair = Claim::new(place(due(1, 0), 0), Watermark(1));
    assert_eq!(t.claimed(1, pair).await, []);
    let done = t
        .advance(Advance {
            delivered: Some(pair),
            deletes: vec![named(&run)],
            ..t.tick(1)
        })
        .await;
    assert_eq!(
        done,
        Advanced::Done {
            watermark: Watermark(1),
            cancelled: vec![]
        }
    );
    assert!(matches!(
        t.renew(1, Duration::from_secs(9)).await,
        Renewed::Renewed { .. }
    ));
    t.release(1).await;
    assert_eq!(t.state().await.pending, 0);

    t.subject.set_full(false).await;
    assert_eq!(t.store().state(&[stranger]).await.unwrap(), [None]);
    t.appended(1, 2, &[&late]).await;
}
