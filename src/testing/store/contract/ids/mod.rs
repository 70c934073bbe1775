//! Cases for ids: a cancel or replacement is in time or too late, and a store that lost writes holds
//! its claims.

pub(super) mod keys;
pub(super) mod moves;

use super::fixture::{Fixture, cancel, due, place, run_of, schedule};
use crate::model::{Cursor, Offset, Progress, Watermark};
use crate::store::{
    Acquired, Advance, Advanced, Appended, EffectKind, Hold, IdChange, IdChangeKind, NewShard,
    Opened, Tailed,
};

const CANCELLED: Appended = Appended::Done {
    cancelled: 1,
    missed: 0,
    told: Vec::new(),
};
const MISSED: Appended = Appended::Done {
    cancelled: 0,
    missed: 1,
    told: Vec::new(),
};
const NO_CANCEL: Appended = Appended::Done {
    cancelled: 0,
    missed: 0,
    told: Vec::new(),
};

/// Covers all messages of the cases.
fn everything() -> Progress {
    Progress::new(place(due(99, 0), 99), Watermark(99))
}

/// Creates and leases a shard in which message 0, due at hour 1, waits under `id`.
async fn shard_with_one_message(t: &Fixture<'_>) -> Cursor {
    t.create_shard(0).await;
    t.take_lease(1).await;
    let waits = place(due(1, 0), 0);
    assert_eq!(
        t.append(0, 1, &[&run_of("a", &[waits])], &[schedule("id", waits)])
            .await,
        NO_CANCEL
    );
    waits
}

pub(super) async fn a_cancel_of_a_waiting_message_is_confirmed_once(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    assert_eq!(t.append(1, 2, &[], &[cancel("id")]).await, CANCELLED);
    assert_eq!(t.append(2, 3, &[], &[cancel("id")]).await, MISSED);
    assert_eq!(t.claim(1, everything()).await, [waits]);
}

pub(super) async fn a_cancel_without_a_waiting_message_is_counted_as_missed(t: &Fixture<'_>) {
    shard_with_one_message(t).await;
    assert_eq!(
        t.append(1, 2, &[], &[cancel("ID"), cancel("id ")]).await,
        Appended::Done {
            cancelled: 0,
            missed: 2,
            told: Vec::new(),
        }
    );
    assert_eq!(t.claim(1, everything()).await, []);
}

pub(super) async fn a_cancel_inside_the_claimed_pair_is_too_late(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    assert_eq!(t.claim(1, Progress::new(waits, Watermark(1))).await, []);
    assert_eq!(t.append(1, 2, &[], &[cancel("id")]).await, MISSED);
    assert_eq!(t.claim(1, everything()).await, []);
}

pub(super) async fn a_cancel_inside_the_delivered_pair_is_too_late(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    // An owner delivered it whose claim this store never stored. The delivered pair alone decides.
    t.acknowledge(1, Progress::new(waits, Watermark(1))).await;
    assert_eq!(t.append(1, 2, &[], &[cancel("id")]).await, MISSED);
}

pub(super) async fn a_cancel_of_a_late_unclaimed_message_is_in_time(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    // The cursor has passed it, but the watermark has not. It is late and not claimed.
    assert_eq!(
        t.claim(1, Progress::new(place(due(5, 0), 0), Watermark(0)))
            .await,
        []
    );
    assert_eq!(t.append(1, 2, &[], &[cancel("id")]).await, CANCELLED);
    assert_eq!(t.claim(1, everything()).await, [waits]);
}

pub(super) async fn a_schedule_with_the_same_id_replaces_the_waiting_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    let next = place(due(2, 0), 1);
    assert_eq!(
        t.append(1, 2, &[&run_of("b", &[next])], &[schedule("id", next)])
            .await,
        CANCELLED
    );
    assert_eq!(t.claim(1, everything()).await, [waits]);
}

pub(super) async fn a_schedule_for_an_id_inside_the_claimed_pair_replaces_nothing(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    t.claim(1, Progress::new(waits, Watermark(1))).await;
    let next = place(due(2, 0), 1);
    assert_eq!(
        t.append(1, 2, &[&run_of("b", &[next])], &[schedule("id", next)])
            .await,
        NO_CANCEL
    );
    // Both are delivered. The id names the second one now.
    assert_eq!(t.append(2, 3, &[], &[cancel("id")]).await, CANCELLED);
    assert_eq!(t.claim(1, everything()).await, [next]);
}

pub(super) async fn changes_of_one_batch_apply_in_their_order(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    let places = [
        place(due(2, 0), 2),
        place(due(1, 5), 3),
        place(due(3, 0), 6),
    ];
    let changes: [IdChange; 6] = [
        cancel("id"),
        schedule("id", places[0]),
        schedule("id", places[1]),
        cancel("id"),
        cancel("id"),
        schedule("id", places[2]),
    ];
    let runs = [
        run_of("b", &[places[1]]),
        run_of("c", &[places[0]]),
        run_of("d", &[places[2]]),
    ];
    let appended = t
        .append(1, 7, &[&runs[0], &runs[1], &runs[2]], &changes)
        .await;
    assert_eq!(
        appended,
        Appended::Done {
            cancelled: 3,
            missed: 1,
            told: Vec::new(),
        }
    );
    assert_eq!(
        t.claim(1, everything()).await,
        [waits, places[1], places[0]]
    );
}

pub(super) async fn a_schedule_for_the_same_place_cancels_nothing(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    assert_eq!(
        t.append(1, 2, &[], &[schedule("id", waits)]).await,
        NO_CANCEL
    );
    assert_eq!(t.claim(1, everything()).await, []);
}

/// The effects of the answers to the requests at offsets 1 to 9, and of the cancels in the claim.
async fn effects(t: &Fixture<'_>, claim: Progress, delivered: &[u64]) -> Vec<(u64, Cursor, bool)> {
    let advance = Advance {
        claim: Some(claim),
        claimed_answers: (1..9).map(Offset).collect(),
        delivered_answers: delivered.iter().copied().map(Offset).collect(),
        ..t.empty_advance(1)
    };
    match t.advance(advance).await {
        Advanced::Done { effects, .. } => effects
            .into_iter()
            .map(|effect| {
                let is_changed = effect.kind == EffectKind::Changed;
                (effect.request.0, effect.place, is_changed)
            })
            .collect(),
        other => panic!("the claim should be accepted: {other:?}"),
    }
}

fn requested(offset: u64, change: IdChange) -> IdChange {
    IdChange {
        request: Some(Offset(offset)),
        ..change
    }
}

pub(super) async fn the_effect_of_a_request_is_kept_until_its_answer_is_delivered(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    let next = place(due(2, 0), 2);
    let changes = [
        requested(1, cancel("other")),
        requested(2, schedule("id", next)),
    ];
    t.append(1, 3, &[&run_of("b", &[next])], &changes).await;
    let nothing = Progress::new(Cursor::START, Watermark(0));
    let replaced = (2, waits, true);
    assert_eq!(effects(t, nothing, &[]).await, [replaced]);
    // A claimed message cannot be cancelled.
    assert_eq!(effects(t, everything(), &[]).await, [replaced]);
    let late = requested(3, cancel("id"));
    assert_eq!(t.append(3, 4, &[], &[late]).await, MISSED);
    assert_eq!(
        effects(t, everything(), &[]).await,
        [replaced, (3, next, false)]
    );
    assert_eq!(effects(t, everything(), &[2]).await, [(3, next, false)]);
    assert_eq!(effects(t, everything(), &[3]).await, []);
}

pub(super) async fn the_effect_of_an_answer_that_was_delivered_unnoticed_is_removed(
    t: &Fixture<'_>,
) {
    let waits = shard_with_one_message(t).await;
    t.append(1, 2, &[], &[requested(1, cancel("id"))]).await;
    t.append(
        2,
        3,
        &[],
        &[requested(2, schedule("id", place(due(3, 0), 2)))],
    )
    .await;
    t.append(3, 4, &[], &[requested(3, cancel("id"))]).await;
    let nothing = Progress::new(Cursor::START, Watermark(0));
    let all = [(1, waits, true), (3, place(due(3, 0), 2), true)];
    assert_eq!(effects(t, nothing, &[]).await, all);
    let first = Progress::new(Cursor::of_answer(Offset(9)), Watermark(2));
    t.acknowledge(1, first).await;
    keys::remove_finished_ids(t).await;
    assert_eq!(effects(t, nothing, &[]).await, all[1..]);
}

pub(super) async fn a_claim_names_the_request_that_cancelled_its_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    t.append(1, 20, &[], &[requested(19, cancel("id"))]).await;
    assert_eq!(effects(t, everything(), &[]).await, [(19, waits, true)]);
    assert_eq!(effects(t, everything(), &[19]).await, []);
}

pub(super) async fn a_request_of_an_exactly_once_route_cancels_a_claimed_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    assert_eq!(t.claim(1, Progress::new(waits, Watermark(1))).await, []);
    let cancels = |offset| IdChange {
        changes_claimed: true,
        ..requested(offset, cancel("id"))
    };
    // It may be too late, so it is not counted.
    assert_eq!(t.append(1, 2, &[], &[cancels(1)]).await, MISSED);
    assert_eq!(effects(t, everything(), &[]).await, [(1, waits, true)]);
    assert_eq!(t.claim(1, everything()).await, [waits]);
}

pub(super) async fn no_request_cancels_a_delivered_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    t.acknowledge(1, Progress::new(waits, Watermark(1))).await;
    let cancel = IdChange {
        changes_claimed: true,
        ..requested(1, cancel("id"))
    };
    assert_eq!(t.append(1, 2, &[], &[cancel]).await, MISSED);
    assert_eq!(effects(t, everything(), &[]).await, [(1, waits, false)]);
    assert_eq!(t.claim(1, everything()).await, []);
}

async fn create_held(t: &Fixture<'_>, hold: u64) {
    let opened = t
        .open(NewShard {
            hold: Watermark(hold),
            ..t.new_shard(0, Progress::START)
        })
        .await;
    assert!(matches!(&opened, Opened::Created(state) if state.hold == Watermark(hold)));
}

async fn hold_in_tail(t: &Fixture<'_>, after: u64) -> Hold {
    match t.tail(after, due(9, 0), 9).await {
        Tailed::Runs { hold, .. } => hold,
        other => panic!("the tail should reach back to {after}: {other:?}"),
    }
}

pub(super) async fn a_hold_is_answered_while_a_message_waits_under_an_id(t: &Fixture<'_>) {
    create_held(t, 5).await;
    let acquired = t.acquire(1).await;
    assert!(
        matches!(&acquired, Acquired::Granted(state) if state.hold == Watermark(5)),
        "{acquired:?}"
    );
    assert_eq!(hold_in_tail(t, 0).await, Hold::NoIds);
    let (first, second) = (place(due(1, 0), 0), place(due(1, 0), 1));
    t.append_runs(0, 1, &[&run_of("a", &[first])]).await;
    assert_eq!(hold_in_tail(t, 1).await, Hold::NoIds);
    let run = run_of("b", &[second]);
    t.append(1, 2, &[&run], &[schedule("id", second)]).await;
    assert_eq!(hold_in_tail(t, 1).await, Hold::Until(Watermark(5)));
    t.append(2, 3, &[], &[cancel("id")]).await;
    assert_eq!(hold_in_tail(t, 3).await, Hold::NoIds);
    t.append_runs(3, 5, &[]).await;
    assert_eq!(hold_in_tail(t, 5).await, Hold::Until(Watermark(5)));
    assert_eq!(t.state().await.hold, Watermark(5));
}

pub(super) async fn a_hold_ends_in_a_full_store_until_the_next_append(t: &Fixture<'_>) {
    create_held(t, 5).await;
    let first = place(due(1, 0), 0);
    t.append(0, 1, &[&run_of("a", &[first])], &[schedule("id", first)])
        .await;
    t.subject.set_full(true).await;
    for _ in 0..2 {
        let shards = std::slice::from_ref(&t.shard);
        t.store().end_holds(shards).await.unwrap();
        assert_eq!(hold_in_tail(t, 1).await, Hold::Ended);
        assert_eq!(t.state().await.hold, Watermark(0));
    }
    t.subject.set_full(false).await;
    t.append_runs(1, 2, &[]).await;
    assert_eq!(hold_in_tail(t, 2).await, Hold::Until(Watermark(0)));
}

pub(super) async fn a_claim_from_a_store_that_lost_writes_is_refused_but_the_rest_is_stored(
    t: &Fixture<'_>,
) {
    t.create_shard(0).await;
    t.append_runs(0, 4, &[&run_of("a", &[place(due(1, 0), 0)])])
        .await;
    t.take_lease(1).await;
    let pair = |offset| Progress::new(place(due(1, 0), offset), Watermark(4));
    for (seen, is_refused) in [(4, false), (5, true), (4, false)] {
        let before = t.state().await.claimed;
        let advance = Advance {
            delivered: Some(pair(seen)),
            claim: Some(pair(seen + 10)),
            seen: Watermark(seen),
            ..t.empty_advance(1)
        };
        let (watermark, cancelled) = (Watermark(4), vec![]);
        let (expected, claimed) = if is_refused {
            (Advanced::RolledBack { watermark }, before)
        } else {
            let done = Advanced::Done {
                watermark,
                cancelled,
                effects: vec![],
            };
            (done, before.greatest(pair(seen + 10)))
        };
        assert_eq!(t.advance(advance).await, expected);
        assert_eq!(t.state().await.claimed, claimed);
    }
    assert_eq!(t.state().await.delivered, pair(5));
}

pub(super) async fn a_record_that_was_delivered_before_cancels_and_is_never_missed(
    t: &Fixture<'_>,
) {
    create_held(t, 9).await;
    let delivered = |id: &str| IdChange::new(id, IdChangeKind::Delivered);
    let first = place(due(1, 0), 0);
    let run = run_of("a", &[first]);
    let changes = [schedule("id", first), delivered("other")];
    let appended = |cancelled, missed| Appended::Done {
        cancelled,
        missed,
        told: Vec::new(),
    };
    assert_eq!(t.append(0, 1, &[&run], &changes).await, appended(0, 0));
    let changes = [delivered("id"), delivered("id")];
    assert_eq!(t.append(1, 2, &[], &changes).await, appended(1, 0));
    let changes = [cancel("id")];
    assert_eq!(
        t.append(2, 3, &[], &changes).await,
        appended(0, 1),
        "nothing waits under the id"
    );
    assert_eq!(hold_in_tail(t, 3).await, Hold::NoIds);
    t.take_lease(1).await;
    assert_eq!(
        t.claim(1, Progress::new(place(due(2, 0), 0), Watermark(3)))
            .await,
        [first]
    );
}
