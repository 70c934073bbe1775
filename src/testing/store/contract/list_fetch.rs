//! Cases for list and fetch.

use super::fixture::{Fixture, due, key_of, listing, place, run_of};
use crate::model::{Level, Offset, Slice, Timestamp, Watermark};
use crate::run::Run;
use crate::store::{Advance, Fetch, Listed, Replaced, RunEntry};

pub(super) async fn runs_are_listed_by_least_due_then_by_least_offset(t: &Fixture<'_>) {
    t.create_shard(0).await;
    // The names sort in the reverse of every other order.
    let runs = [
        run_of("z", &[place(due(1, 0), 300)]),
        run_of("y", &[place(due(1, 1), 16)]),
        run_of("x", &[place(due(1, 1), 4_096)]),
        run_of("w", &[place(due(2, 0), 0)]),
        run_of("v", &[place(due(30, 0), 17)]),
    ];
    t.append_runs(0, 10, &[&runs[4], &runs[2], &runs[0]]).await;
    t.append_runs(10, 5_000, &[&runs[3], &runs[1]]).await;
    assert_eq!(
        t.list_all().await,
        (Watermark(5_000), runs.iter().map(listing).collect())
    );
}

pub(super) async fn a_list_respects_its_bounds(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let at = |millis: i64| run_of(&format!("r{millis}"), &[place(due(3, millis), 0)]);
    let runs = [
        at(-3_600_001),
        at(-1),
        at(0),
        at(1),
        at(3_599_999),
        at(3_600_000),
    ];
    t.append_runs(0, 1, &runs.iter().collect::<Vec<_>>()).await;
    let listed = async |from: i64, until: i64| match t.list(due(3, from), due(3, until), 100).await
    {
        Listed::Runs {
            runs,
            has_more: false,
            ..
        } => runs
            .iter()
            .map(|run| run.least_due.as_millis() - due(3, 0).as_millis())
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(listed(0, 1).await, [0, 1]);
    assert_eq!(
        listed(-1, 3_600_000).await,
        [-1, 0, 1, 3_599_999, 3_600_000]
    );
    assert_eq!(listed(-3_600_001, -2).await, [-3_600_001]);
    assert_eq!(listed(2, 3_599_998).await, [0; 0]);
    assert_eq!(listed(1, 0).await, [0; 0]);
}

pub(super) async fn messages_due_at_once_are_listed_first(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let once = run_of("once", &[place(Timestamp::AT_ONCE, 0), place(due(9, 0), 1)]);
    let old = run_of("old", &[place(Timestamp::from_millis(-1), 2)]);
    let soon = run_of("soon", &[place(due(0, 0), 3)]);
    t.append_runs(0, 4, &[&soon, &once, &old]).await;
    assert_eq!(
        t.list_all().await.1,
        [listing(&once), listing(&old), listing(&soon)]
    );
    let listed = t.list(Timestamp::AT_ONCE, Timestamp::AT_ONCE, 9).await;
    let history = t.position().await.expect("it is there").lineage;
    assert_eq!(
        listed,
        Listed::Runs {
            watermark: Watermark(4),
            lineage: history,
            runs: vec![listing(&once)],
            has_more: false
        }
    );
}

pub(super) async fn a_truncated_list_says_so_and_can_be_continued(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let runs: Vec<Run> = (0..10u64)
        .map(|i| run_of(&format!("r{i}"), &[place(due(i as i64 / 3, i as i64), i)]))
        .collect();
    t.append_runs(0, 10, &runs.iter().collect::<Vec<_>>()).await;
    let mut seen: Vec<RunEntry> = Vec::new();
    let mut from = Timestamp::AT_ONCE;
    loop {
        let Listed::Runs {
            runs,
            has_more: more,
            ..
        } = t.list(from, Timestamp::MAX, 4).await
        else {
            panic!("the shard is there")
        };
        assert!(runs.len() <= 4);
        seen.extend(runs.into_iter().filter(|run| run.least_due >= from));
        if !more {
            break;
        }
        from = Timestamp::from_millis(seen[seen.len() - 1].least_due.as_millis() + 1);
    }
    assert_eq!(seen, runs.iter().map(listing).collect::<Vec<_>>());
    let exact = t.list(Timestamp::AT_ONCE, Timestamp::MAX, 10).await;
    assert!(
        matches!(
            exact,
            Listed::Runs {
                has_more: false,
                ..
            }
        ),
        "{exact:?}"
    );
}

pub(super) async fn a_list_covers_more_slices_than_one_query(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let runs: Vec<Run> = (0..100u64)
        .map(|i| run_of(&format!("r{i}"), &[place(due(i as i64, 0), i)]))
        .collect();
    let once = run_of("once", &[place(Timestamp::AT_ONCE, 100)]);
    let mut all: Vec<&Run> = runs.iter().rev().collect();
    all.push(&once);
    t.append_runs(0, 101, &all).await;
    for limit in [1, 40, 100, 101, usize::MAX] {
        let wanted: Vec<RunEntry> = std::iter::once(&once)
            .chain(&runs)
            .take(limit)
            .map(listing)
            .collect();
        let listed = t.list(Timestamp::AT_ONCE, Timestamp::MAX, limit).await;
        let history = t.position().await.expect("it is there").lineage;
        assert_eq!(
            listed,
            Listed::Runs {
                watermark: Watermark(101),
                lineage: history,
                runs: wanted,
                has_more: limit < 101
            }
        );
    }
}

pub(super) async fn a_list_limit_cuts_at_the_same_run_for_any_distribution_over_slices(
    t: &Fixture<'_>,
) {
    t.create_shard(0).await;
    let hours = (0..60i64).map(|i| run_of(&format!("h{i}"), &[place(due(i / 3, i), i as u64)]));
    let far = (0..10i64).map(|i| {
        let run = run_of(&format!("f{i}"), &[place(due(2 * i, 0), 100 + i as u64)]);
        Run {
            slice: Slice::at(Level::Far, run.summary.least_due()),
            ..run
        }
    });
    let mut runs: Vec<Run> = hours.chain(far).collect();
    t.append_runs(0, 200, &runs.iter().collect::<Vec<_>>())
        .await;
    runs.sort_by_key(|run| (run.summary.least_due(), run.summary.least_offset));
    for limit in 0..=runs.len() {
        let Listed::Runs {
            runs: listed,
            has_more: more,
            ..
        } = t.list(Timestamp::AT_ONCE, Timestamp::MAX, limit).await
        else {
            panic!("it is there")
        };
        assert_eq!(
            (listed, more),
            (
                runs[..limit].iter().map(listing).collect(),
                limit < runs.len()
            )
        );
    }
}

/// The rewrite moves a message to a slice that the shard did not have.
pub(super) async fn a_list_during_a_rewrite_has_all_old_runs_or_all_new_ones(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (first, second) = (place(due(1, 0), 0), place(due(9, 0), 1));
    let old = run_of("old", &[first, second]);
    let new = [run_of("first", &[first]), run_of("second", &[second])];
    t.append_runs(0, 2, &[&old]).await;
    t.take_lease(1).await;
    let (inputs, outputs) = ([&old], [&new[0], &new[1]]);
    let rewrite = t.rewrite_with_count(1, 0, &inputs, &outputs);
    let ((watermark, listed), replaced) = futures_util::future::join(t.list_all(), rewrite).await;
    assert_eq!((watermark, replaced), (Watermark(2), Replaced::Done));
    let is_old = listed == [listing(&old)];
    assert!(
        is_old || listed == new.each_ref().map(listing),
        "{listed:?}"
    );
}

pub(super) async fn fetch_returns_bytes_by_name_and_nothing_for_a_deleted_run(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (a, b, c) = (
        run_of("a", &[place(due(1, 0), 0)]),
        run_of("b", &[place(due(9, 0), 1)]),
        run_of("c", &[place(due(1, 0), 2)]),
    );
    t.append_runs(0, 3, &[&a, &b, &c]).await;
    t.take_lease(1).await;
    t.advance(Advance {
        deletes: vec![key_of(&c)],
        ..t.empty_advance(1)
    })
    .await;
    let never = run_of("never", &[place(due(77, 0), 0)]);
    let [a_bytes, b_bytes] = [&a, &b].map(|run| Some(run.bytes.clone()));
    assert_eq!(
        t.fetch(&[&b, &c, &a, &never, &b]).await,
        [b_bytes.clone(), None, a_bytes.clone(), None, b_bytes]
    );
    assert_eq!(t.fetch(&[]).await, []);
    let fetch = |runs: Vec<&Run>| Fetch {
        shard: t.shard.clone(),
        runs: runs.into_iter().map(key_of).collect(),
    };
    assert_eq!(
        t.store()
            .fetch(&[fetch(vec![&a]), fetch(vec![]), fetch(vec![&c])])
            .await
            .unwrap(),
        [vec![a_bytes], vec![], vec![None]]
    );
    assert_eq!(t.state().await.lowest_pending, Offset(0));
}
