//! Cases for the ledger: it balances at every moment, and it shows a difference.

use super::fixture::{Fixture, cancel, due, place, run_of, schedule};
use crate::model::OutcomeCounts;
use crate::model::{Progress, Watermark};
use crate::run::Run;
use crate::store::{Advance, Advanced, Balance, Restored};

const DELIVERED: OutcomeCounts = OutcomeCounts {
    delivered: 1,
    cancelled: 0,
    dead_lettered: 0,
    retried: 0,
};

/// The pair that covers the first messages of [`shard_with_runs`].
fn pair(messages: u64) -> Progress {
    Progress::new(place(due(1, messages as i64), messages), Watermark(9))
}

fn delivered(messages: u64) -> OutcomeCounts {
    OutcomeCounts {
        delivered: messages,
        ..OutcomeCounts::default()
    }
}

/// Creates a shard, held with token 1, with runs of these sizes in order of due time and offset.
async fn shard_with_runs(t: &Fixture<'_>, counts: &[u64]) -> Vec<Run> {
    t.create_shard(0).await;
    t.take_lease(1).await;
    let (mut from, mut runs) = (0, Vec::new());
    for (at, count) in counts.iter().enumerate() {
        let places: Vec<_> = (from..from + count)
            .map(|offset| place(due(1, offset as i64 + 1), offset))
            .collect();
        runs.push(run_of(&format!("run{at}"), &places));
        from += count;
    }
    t.append_runs(0, 9, &runs.iter().collect::<Vec<_>>()).await;
    runs
}

async fn balance(t: &Fixture<'_>) -> Balance {
    let state = t.queried_state().await.expect("the shard exists");
    assert_eq!(state, t.state().await);
    Balance::of(&state)
}

/// Settled in total, quarantined, pending, and the difference.
async fn sums(t: &Fixture<'_>) -> (u64, u64, u64, i64) {
    let balance = balance(t).await;
    (
        balance.outcomes.total(),
        balance.quarantined,
        balance.pending,
        balance.difference,
    )
}

pub(super) async fn an_accepted_message_is_settled_or_pending_at_every_moment(t: &Fixture<'_>) {
    let runs = shard_with_runs(t, &[3, 3]).await;
    assert_eq!(
        (balance(t).await.accepted, sums(t).await),
        (6, (0, 0, 6, 0))
    );
    let tally = OutcomeCounts {
        delivered: 1,
        cancelled: 0,
        dead_lettered: 1,
        retried: 0,
    };
    t.acknowledge_outcomes((Progress::START, pair(2)), tally, &[])
        .await;
    assert_eq!(sums(t).await, (2, 0, 4, 0), "their run is still there");
    let tally = OutcomeCounts {
        delivered: 0,
        cancelled: 1,
        dead_lettered: 0,
        retried: 1,
    };
    t.acknowledge_outcomes((pair(2), pair(4)), tally, &[&runs[0]])
        .await;
    assert_eq!(sums(t).await, (4, 0, 2, 0));
    // The next holder continues from there.
    t.release(1).await;
    t.take_lease(1).await;
    t.acknowledge_outcomes((pair(4), pair(6)), delivered(2), &[&runs[1]])
        .await;
    let settled = OutcomeCounts {
        delivered: 3,
        cancelled: 1,
        dead_lettered: 1,
        retried: 1,
    };
    let wanted = Balance {
        accepted: 6,
        outcomes: settled,
        quarantined: 0,
        pending: 0,
        difference: 0,
        is_uncertain: false,
    };
    assert_eq!(balance(t).await, wanted);
}

pub(super) async fn an_occurrence_is_accepted_when_it_is_settled(t: &Fixture<'_>) {
    shard_with_runs(t, &[1]).await;
    t.advance(Advance {
        delivered: Some(pair(1)),
        delivered_before: Progress::START,
        outcomes: delivered(3),
        occurrences: 2,
        ..t.empty_advance(1)
    })
    .await;
    assert_eq!(
        (balance(t).await.accepted, sums(t).await),
        (3, (3, 0, 0, 0))
    );
}

pub(super) async fn outcomes_that_are_reported_twice_are_counted_once(t: &Fixture<'_>) {
    let run = run_of("a", &[place(due(1, 1), 0)]);
    t.create_shard(0).await;
    t.take_lease(1).await;
    t.append(0, 1, &[&run], &[schedule("id", place(due(1, 1), 0))])
        .await;
    // A repeated append adds nothing.
    t.append(0, 1, &[&run], &[]).await;
    t.append(1, 9, &[], &[cancel("id")]).await;
    let advance = Advance {
        delivered: Some(pair(1)),
        delivered_before: Progress::START,
        outcomes: DELIVERED,
        ..t.empty_advance(1)
    };
    for _ in 0..3 {
        t.advance(advance.clone()).await;
    }
    t.acknowledge_outcomes((pair(1), pair(1)), DELIVERED, &[&run, &run])
        .await;
    assert_eq!(
        (balance(t).await.accepted, sums(t).await),
        (1, (1, 0, 0, 0))
    );
    assert!(!balance(t).await.is_uncertain);
}

pub(super) async fn an_old_holder_counts_nothing(t: &Fixture<'_>) {
    let runs = shard_with_runs(t, &[2]).await;
    let advance = Advance {
        delivered: Some(pair(2)),
        delivered_before: Progress::START,
        outcomes: delivered(2),
        ..t.empty_advance(7)
    };
    assert_eq!(t.advance(advance).await, Advanced::Fenced);
    assert_eq!(sums(t).await, (0, 0, 2, 0));
    t.acknowledge_outcomes((Progress::START, pair(2)), delivered(2), &[&runs[0]])
        .await;
    assert_eq!(sums(t).await, (2, 0, 0, 0));
}

pub(super) async fn a_quarantined_message_stays_in_the_ledger_until_it_is_known_to_be_settled(
    t: &Fixture<'_>,
) {
    let runs = shard_with_runs(t, &[3, 2]).await;
    t.acknowledge_outcomes((Progress::START, pair(1)), DELIVERED, &[])
        .await;
    assert_eq!(t.quarantine(1, &[&runs[0]]).await, 1);
    // One of the three messages was delivered before. It is unknown which one, so the other is
    // not used up for it.
    assert_eq!(sums(t).await, (1, 3, 1, 0));
    t.acknowledge_outcomes((pair(1), pair(5)), delivered(2), &[&runs[1]])
        .await;
    assert_eq!(sums(t).await, (3, 2, 0, 0));
}

pub(super) async fn a_rewrite_that_drops_delivered_messages_keeps_the_ledger_balanced(
    t: &Fixture<'_>,
) {
    let runs = shard_with_runs(t, &[3, 1]).await;
    t.acknowledge_outcomes((Progress::START, pair(2)), delivered(2), &[])
        .await;
    let output = run_of("out", &[place(due(1, 3), 2), place(due(1, 4), 3)]);
    t.rewrite(1, &[&runs[0], &runs[1]], &[&output]).await;
    // The repeat finds the rewrite done.
    t.rewrite(1, &[&runs[0], &runs[1]], &[&output]).await;
    assert_eq!(sums(t).await, (2, 0, 2, 0));
    t.acknowledge_outcomes((pair(2), pair(4)), delivered(2), &[&output])
        .await;
    assert_eq!(sums(t).await, (4, 0, 0, 0));
}

pub(super) async fn messages_settled_before_a_loss_leave_the_ledger_with_their_runs(
    t: &Fixture<'_>,
) {
    let runs = shard_with_runs(t, &[4, 2]).await;
    // The timer had settled three messages before the store forgot it, and reports only the later
    // ones.
    t.acknowledge_outcomes((pair(3), pair(4)), DELIVERED, &[])
        .await;
    assert!(balance(t).await.is_uncertain && balance(t).await.is_balanced());
    t.acknowledge_outcomes((pair(4), pair(5)), DELIVERED, &[&runs[0]])
        .await;
    assert!(balance(t).await.is_uncertain, "something waits yet");
    t.acknowledge_outcomes((pair(5), pair(6)), DELIVERED, &[&runs[1]])
        .await;
    let wanted = Balance {
        accepted: 3,
        outcomes: delivered(3),
        quarantined: 0,
        pending: 0,
        difference: 0,
        is_uncertain: false,
    };
    assert_eq!(balance(t).await, wanted);
}

pub(super) async fn settled_messages_that_are_not_restored_are_counted_when_all_is_delivered(
    t: &Fixture<'_>,
) {
    let runs = shard_with_runs(t, &[2]).await;
    // The timer had claimed messages whose append the store has forgotten: W is behind.
    let ahead = Progress::new(place(due(1, 20), 12), Watermark(13));
    t.acknowledge_outcomes((Progress::START, ahead), delivered(5), &[&runs[0]])
        .await;
    assert!(balance(t).await.is_uncertain);
    // Two are read again. The third is not, because the delivered pair covers it.
    let again = run_of("again", &[place(due(1, 18), 10), place(due(1, 19), 11)]);
    t.append_runs(9, 13, &[&again]).await;
    let last = Progress::new(place(due(1, 21), 13), Watermark(13));
    t.acknowledge_outcomes((ahead, last), OutcomeCounts::default(), &[&again])
        .await;
    assert_eq!(
        (
            balance(t).await.accepted,
            sums(t).await,
            balance(t).await.is_uncertain
        ),
        (5, (5, 0, 0, 0), false)
    );
}

pub(super) async fn an_unsettled_message_whose_run_is_gone_is_missing_in_the_ledger(
    t: &Fixture<'_>,
) {
    let runs = shard_with_runs(t, &[3, 2]).await;
    t.acknowledge_outcomes((Progress::START, pair(3)), delivered(2), &[&runs[0]])
        .await;
    assert_eq!(
        (sums(t).await, balance(t).await.is_balanced()),
        ((2, 0, 2, 1), false)
    );
    t.acknowledge_outcomes((pair(3), pair(5)), delivered(4), &[&runs[1]])
        .await;
    assert_eq!(
        (sums(t).await, balance(t).await.is_balanced()),
        ((6, 0, 0, -1), false),
        "and what is settled twice is too much"
    );
}

pub(super) async fn erasing_a_shard_erases_its_ledger(t: &Fixture<'_>) {
    let runs = shard_with_runs(t, &[2]).await;
    t.acknowledge_outcomes((Progress::START, pair(2)), delivered(2), &[&runs[0]])
        .await;
    t.store()
        .erase(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
    assert_eq!(t.queried_state().await, None);
    t.create_shard(9).await;
    assert_eq!(balance(t).await, Balance::default());
}

pub(super) async fn a_restored_message_is_pending_in_the_ledger(t: &Fixture<'_>) {
    let runs = shard_with_runs(t, &[3, 2]).await;
    assert_eq!(t.quarantine(1, &[&runs[0]]).await, 1);
    assert_eq!(sums(t).await, (0, 3, 2, 0));
    let later = |offset| place(due(9, offset as i64), offset);
    let first = run_of("first", &[later(0), later(1), later(2)]);
    assert_eq!(t.restore(&runs[0], &[&first]).await, Restored::Done);
    assert_eq!(sums(t).await, (0, 0, 5, 0));
    assert!(!balance(t).await.is_uncertain);

    t.take_lease(1).await;
    t.acknowledge_outcomes((Progress::START, pair(4)), DELIVERED, &[])
        .await;
    assert_eq!(t.quarantine(1, &[&runs[1]]).await, 1);
    let second = run_of("second", &[later(3), later(4)]);
    assert_eq!(t.restore(&runs[1], &[&second]).await, Restored::Done);
    let balance = balance(t).await;
    assert!(
        balance.is_uncertain && balance.is_balanced(),
        "one of its messages may be delivered again: {balance:?}"
    );
}
