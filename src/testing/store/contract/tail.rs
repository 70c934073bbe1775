//! Cases for the tail: it contains every run after the given watermark, or reports that it is
//! broken.

use super::fixture::{Fixture, due, key_of, listing, place, run_of};
use crate::limit;
use crate::model::{Progress, Timestamp, Watermark};
use crate::run::Run;
use crate::store::tail_bytes::run_memory;
use crate::store::{Advance, NewShard, Opened, TailRun, Tailed};

fn with_bytes(run: &Run) -> TailRun {
    TailRun {
        entry: listing(run),
        bytes: Some(run.bytes.clone()),
    }
}

fn without_bytes(run: &Run) -> TailRun {
    TailRun {
        entry: listing(run),
        bytes: None,
    }
}

/// `count` runs of one message each, from offset `from` on.
fn runs(from: u64, count: u64) -> Vec<Run> {
    (from..from + count)
        .map(|offset| run_of(&format!("r{offset:06}"), &[place(due(1, 0), offset)]))
        .collect()
}

fn all(runs: &[Run]) -> Vec<&Run> {
    runs.iter().collect()
}

pub(super) async fn the_tail_returns_the_runs_after_a_watermark_oldest_first(t: &Fixture<'_>) {
    t.create_shard(7).await;
    let first = run_of("z", &[place(due(9, 0), 7)]);
    let second = run_of("a", &[place(due(1, 0), 15)]);
    t.append_runs(7, 9, &[&first]).await;
    t.append_runs(9, 16, &[&second]).await;
    assert_eq!(
        t.tail_runs(7, Timestamp::MAX, 9).await,
        (16, 16, vec![with_bytes(&first), with_bytes(&second)])
    );
    assert_eq!(
        t.tail_runs(9, Timestamp::MAX, 9).await,
        (16, 16, vec![with_bytes(&second)])
    );
    // No batch ended at this watermark: another process may have split the same records
    // differently.
    assert_eq!(
        t.tail_runs(12, Timestamp::MAX, usize::MAX).await,
        (16, 16, vec![with_bytes(&second)])
    );
    assert_eq!(t.tail_runs(16, Timestamp::MAX, 9).await, (16, 16, vec![]));
}

pub(super) async fn the_tail_returns_bytes_only_up_to_the_horizon(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let within = run_of("a", &[place(due(1, 10), 0), place(due(1, 900), 1)]);
    let beyond = run_of("b", &[place(due(2, 11), 2)]);
    let once = run_of("c", &[place(Timestamp::AT_ONCE, 3)]);
    t.append_runs(0, 2, &[&within]).await;
    t.append_runs(2, 3, &[&beyond]).await;
    t.append_runs(3, 4, &[&once]).await;
    let wanted = vec![
        with_bytes(&within),
        without_bytes(&beyond),
        with_bytes(&once),
    ];
    assert_eq!(t.tail_runs(0, due(1, 10), 9).await, (4, 4, wanted));
    let wanted = vec![
        without_bytes(&within),
        without_bytes(&beyond),
        with_bytes(&once),
    ];
    assert_eq!(t.tail_runs(0, due(1, 9), 9).await, (4, 4, wanted));
}

pub(super) async fn a_batch_without_runs_leaves_no_gap_in_the_tail(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let run = run_of("a", &[place(due(1, 0), 60)]);
    t.append_runs(0, 50, &[]).await;
    t.append_runs(50, 61, &[&run]).await;
    t.append_runs(61, 70, &[]).await;
    assert_eq!(
        t.tail_runs(0, Timestamp::MAX, 9).await,
        (70, 70, vec![with_bytes(&run)])
    );
    assert_eq!(t.tail_runs(61, Timestamp::MAX, 9).await, (70, 70, vec![]));
}

pub(super) async fn the_tail_of_a_new_shard_starts_at_its_watermark(t: &Fixture<'_>) {
    t.create_shard(5).await;
    assert_eq!(t.tail_runs(5, Timestamp::MAX, 9).await, (5, 5, vec![]));
    assert_eq!(
        t.tail(4, Timestamp::MAX, 9).await,
        Tailed::OutOfRange {
            watermark: Watermark(5)
        }
    );
}

pub(super) async fn a_truncated_tail_ends_with_a_whole_batch(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (first, second, third) = (runs(0, 2), runs(2, 5), runs(7, 1));
    t.append_runs(0, 2, &all(&first)).await;
    t.append_runs(2, 7, &all(&second)).await;
    t.append_runs(7, 8, &all(&third)).await;
    let tailed = async |after, limit| {
        let (watermark, seen, runs) = t.tail_runs(after, Timestamp::MAX, limit).await;
        (
            watermark,
            seen,
            runs.iter()
                .map(|run| run.entry.name.least_offset().0)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(tailed(0, 2).await, (8, 2, vec![0, 1]));
    assert_eq!(tailed(0, 6).await, (8, 2, vec![0, 1]));
    assert_eq!(tailed(0, 7).await, (8, 7, vec![0, 1, 2, 3, 4, 5, 6]));
    assert_eq!(tailed(0, 8).await, (8, 8, vec![0, 1, 2, 3, 4, 5, 6, 7]));
    // One batch has more runs than the limit. It is returned whole, because a reader could not
    // continue inside it.
    assert_eq!(tailed(2, 3).await, (8, 7, vec![2, 3, 4, 5, 6]));
    assert_eq!(tailed(0, 1).await, (8, 2, vec![0, 1]));
}

/// The bound cuts the answer as a limit does: after whole batches, and never before the first.
pub(super) async fn a_tail_ends_with_the_batch_that_reaches_its_bytes(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (first, second) = (runs(0, 2), runs(2, 20));
    let later = run_of("later", &[place(due(9, 0), 22)]);
    t.append_runs(0, 2, &all(&first)).await;
    t.append_runs(2, 22, &all(&second)).await;
    t.append_runs(22, 23, &[&later]).await;
    let size = run_memory(&first[0].bytes);
    for (bytes_max, end, count) in [
        (1, 2, 2),
        (2 * size, 2, 2),
        (21 * size, 2, 2),
        (22 * size, 23, 23),
        (usize::MAX, 23, 23),
    ] {
        let tailed = t.tail_within(0, due(1, 0), 99, bytes_max).await;
        let Tailed::Runs {
            complete_to, runs, ..
        } = tailed
        else {
            panic!("{tailed:?}")
        };
        let with_bytes = runs.iter().filter(|run| run.bytes.is_some()).count();
        let expected = (Watermark(end), count, count.min(22));
        assert_eq!(
            (complete_to, runs.len(), with_bytes),
            expected,
            "{bytes_max}"
        );
    }
    // A first batch that does not fit is returned whole.
    let tailed = t.tail_within(2, due(1, 0), 99, size).await;
    assert!(
        matches!(tailed, Tailed::Runs { complete_to: Watermark(22), runs, .. }
        if runs.len() == 20 && runs.iter().all(|run| run.bytes.is_some()))
    );
}

pub(super) async fn a_deleted_run_stays_in_the_tail_without_bytes(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let runs = runs(0, 2);
    t.append_runs(0, 2, &all(&runs)).await;
    t.take_lease(1).await;
    t.advance(Advance {
        deletes: vec![key_of(&runs[0])],
        ..t.empty_advance(1)
    })
    .await;
    assert_eq!(
        t.tail_runs(0, Timestamp::MAX, 9).await,
        (2, 2, vec![without_bytes(&runs[0]), with_bytes(&runs[1])])
    );
}

pub(super) async fn a_trimmed_tail_is_broken_for_readers_behind_it(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let max = limit::TAIL_RUNS_MAX as u64;
    let (first, second, third) = (runs(0, 2), runs(2, max - 1), runs(max + 1, 1));
    t.append_runs(0, 2, &all(&first)).await;
    assert_eq!(t.tail_runs(0, Timestamp::AT_ONCE, 9).await.1, 2);
    t.append_runs(2, max + 1, &all(&second)).await;
    // One run of the first batch is gone, so the batch is incomplete.
    assert_eq!(
        t.tail(0, Timestamp::AT_ONCE, 9).await,
        Tailed::OutOfRange {
            watermark: Watermark(max + 1)
        }
    );
    assert_eq!(
        t.tail(1, Timestamp::AT_ONCE, 9).await,
        Tailed::OutOfRange {
            watermark: Watermark(max + 1)
        }
    );
    assert_eq!(
        t.tail_runs(2, Timestamp::AT_ONCE, 9_999).await.2.len() as u64,
        max - 1
    );
    t.append_runs(max + 1, max + 2, &all(&third)).await;
    assert_eq!(
        t.tail_runs(2, Timestamp::AT_ONCE, 9_999).await.2.len() as u64,
        max
    );
    assert_eq!(t.list_all().await.1.len() as u64, max + 2);
}

pub(super) async fn a_rollback_breaks_the_tail(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.append_runs(0, 9, &all(&runs(0, 9))).await;
    assert_eq!(
        t.tail(10, Timestamp::MAX, 9).await,
        Tailed::OutOfRange {
            watermark: Watermark(9)
        }
    );
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert_eq!(t.tail(9, Timestamp::MAX, 9).await, Tailed::Unknown);
    let opened = t
        .open(NewShard {
            ..t.new_shard(3, Progress::START)
        })
        .await;
    assert!(matches!(opened, Opened::Created(_)));
    assert_eq!(
        t.tail(9, Timestamp::MAX, 9).await,
        Tailed::OutOfRange {
            watermark: Watermark(3)
        }
    );
    assert_eq!(t.tail_runs(3, Timestamp::MAX, 9).await, (3, 3, vec![]));
}
