//! Cases for rewrites: new runs replace old ones.

use super::fixture::{Fixture, due, key_of, listing, place};
use super::run_of;
use crate::model::{Level, Offset, Slice};
use crate::run::Run;
use crate::store::{Advance, Replaced};

/// The run of these places, in the slice of that level.
fn at(level: Level, writer: &str, places: &[crate::model::Cursor]) -> Run {
    let run = run_of(writer, places);
    Run {
        slice: Slice::at(level, run.summary.least_due()),
        ..run
    }
}

pub(super) async fn a_rewrite_replaces_runs(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (a, b) = (
        at(Level::Far, "a", &[place(due(1, 0), 0), place(due(9, 0), 1)]),
        at(Level::Far, "b", &[place(due(2, 0), 2)]),
    );
    let left = run_of("left", &[place(due(1, 5), 3)]);
    t.append_runs(0, 4, &[&a, &b, &left]).await;
    t.take_lease(1).await;
    let hour = at(Level::Hour, "hour", &[place(due(1, 0), 0)]);
    let minute = at(
        Level::Minute,
        "minute",
        &[place(due(2, 0), 2), place(due(2, 0), 7)],
    );
    let far = at(Level::Far, "far", &[place(due(9, 0), 1)]);
    assert_eq!(
        t.rewrite(1, &[&a, &b], &[&hour, &minute, &far]).await,
        Replaced::Done
    );
    let (watermark, listed) = t.list_all().await;
    assert_eq!(
        (watermark.0, listed),
        (
            4,
            vec![
                listing(&hour),
                listing(&left),
                listing(&minute),
                listing(&far)
            ]
        )
    );
    assert_eq!(
        t.fetch(&[&a, &b, &far]).await,
        [None, None, Some(far.bytes.clone())]
    );
    assert_eq!(
        (t.state().await.pending(), t.state().await.lowest_pending),
        (5, Offset(0))
    );
    let slices: Vec<_> = t
        .state()
        .await
        .slices
        .into_iter()
        .map(|count| (count.slice, count.messages))
        .collect();
    assert_eq!(slices, [(far.slice, 1), (hour.slice, 2), (minute.slice, 2)]);
    t.advance(Advance {
        deletes: [&hour, &minute, &far, &left].map(key_of).to_vec(),
        ..t.empty_advance(1)
    })
    .await;
    assert_eq!(
        (t.state().await.pending(), t.state().await.slices),
        (0, vec![])
    );
}

pub(super) async fn a_repeated_rewrite_is_done_and_changes_nothing_more(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (a, b) = (
        run_of("a", &[place(due(1, 0), 0)]),
        run_of("b", &[place(due(1, 0), 1)]),
    );
    t.append_runs(0, 2, &[&a, &b]).await;
    t.take_lease(1).await;
    let both = run_of("both", &[place(due(1, 0), 0), place(due(1, 0), 1)]);
    for _ in 0..2 {
        assert_eq!(t.rewrite(1, &[&a, &b], &[&both]).await, Replaced::Done);
        assert_eq!(
            (t.list_all().await.1, t.state().await.pending()),
            (vec![listing(&both)], 2)
        );
    }
}

pub(super) async fn a_rewrite_with_a_missing_input_writes_nothing(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (a, gone) = (
        run_of("a", &[place(due(1, 0), 0)]),
        run_of("gone", &[place(due(1, 0), 1)]),
    );
    t.append_runs(0, 2, &[&a]).await;
    t.take_lease(1).await;
    let both = run_of("both", &[place(due(1, 0), 0), place(due(1, 0), 1)]);
    assert_eq!(
        t.rewrite(1, &[&a, &gone], &[&both]).await,
        Replaced::Conflict
    );
    assert_eq!(
        (t.list_all().await.1, t.state().await.pending()),
        (vec![listing(&a)], 1)
    );
}

pub(super) async fn a_rewrite_with_an_old_rewrite_count_writes_nothing(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (a, b, c) = (
        run_of("a", &[place(due(1, 0), 0)]),
        run_of("b", &[place(due(1, 0), 0)]),
        run_of("c", &[place(due(1, 0), 0)]),
    );
    t.append_runs(0, 1, &[&a]).await;
    t.take_lease(1).await;
    assert_eq!(
        t.rewrite_with_count(1, 1, &[&a], &[&b]).await,
        Replaced::Conflict
    );
    assert_eq!(t.list_all().await.1, [listing(&a)]);
    assert_eq!(
        t.rewrite_with_count(1, 0, &[&a], &[&b]).await,
        Replaced::Done
    );
    assert_eq!(
        t.rewrite_with_count(1, 0, &[&b], &[&c]).await,
        Replaced::Conflict
    );
    assert_eq!(
        t.rewrite_with_count(1, 0, &[&a], &[&b]).await,
        Replaced::Done,
        "a repeat"
    );
    assert_eq!(
        (t.list_all().await.1, t.history().await.replacements),
        (vec![listing(&b)], 1)
    );
    assert_eq!(
        t.rewrite_with_count(1, 1, &[&b], &[&c]).await,
        Replaced::Done
    );
    assert_eq!(
        (t.list_all().await.1, t.history().await.replacements),
        (vec![listing(&c)], 2)
    );
}

pub(super) async fn only_the_holder_rewrites(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (a, b) = (
        run_of("a", &[place(due(1, 0), 0)]),
        run_of("b", &[place(due(1, 0), 0)]),
    );
    t.append_runs(0, 1, &[&a]).await;
    assert_eq!(t.rewrite(1, &[&a], &[&b]).await, Replaced::Fenced);
    t.take_lease(1).await;
    assert_eq!(t.rewrite(2, &[&a], &[&b]).await, Replaced::Fenced);
    t.release(1).await;
    t.acquire(2).await;
    assert_eq!(t.rewrite(1, &[&a], &[&b]).await, Replaced::Fenced);
    assert_eq!(t.list_all().await.1, [listing(&a)]);
}

pub(super) async fn delivered_runs_are_rewritten_to_nothing(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let a = run_of("a", &[place(due(1, 0), 0)]);
    t.append_runs(0, 1, &[&a]).await;
    t.take_lease(1).await;
    assert_eq!(t.rewrite(1, &[&a], &[]).await, Replaced::Done);
    assert_eq!(
        (t.list_all().await.1, t.state().await.pending()),
        (vec![], 0)
    );
}
