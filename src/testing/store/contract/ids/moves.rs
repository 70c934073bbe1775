//! Cases for messages that get another due time, and for messages that keep an id.

use super::super::fixture::{Fixture, cancel, due, place, run_of, schedule};
use super::{CANCELLED, MISSED, NO_CANCEL, everything, requested, shard_with_one_message};
use crate::model::{Cursor, Offset, Progress, Timestamp, Watermark};
use crate::store::{
    Advance, Advanced, Appended, EffectKind, IdChange, IdChangeKind, NewShard, RequestEffect,
    ToldEffect,
};

fn reschedule(by: u64, due: Timestamp) -> IdChange {
    let by = Offset(by);
    IdChange::new("id", IdChangeKind::Reschedule { by, due })
}

fn retry(place: Cursor) -> IdChange {
    IdChange::new("id", IdChangeKind::Retry(place))
}

fn keep_first(place: Cursor, timestamp: Timestamp) -> IdChange {
    IdChange::new("id", IdChangeKind::KeepFirst { place, timestamp })
}

/// The cancelled places inside the claim, and the effects. The answer to the request at offset 9 is in
/// the claim.
async fn claim(t: &Fixture<'_>, claim: Progress) -> (Vec<Cursor>, Vec<RequestEffect>) {
    let advance = Advance {
        claim: Some(claim),
        claimed_answers: vec![Offset(9)],
        ..t.empty_advance(1)
    };
    match t.advance(advance).await {
        Advanced::Done {
            cancelled, effects, ..
        } => (cancelled, effects),
        other => panic!("the claim should be accepted: {other:?}"),
    }
}

fn effect(request: u64, place: Cursor, kind: EffectKind) -> RequestEffect {
    RequestEffect {
        request: Offset(request),
        place,
        kind,
    }
}

pub(in super::super) async fn a_claim_names_the_last_due_time_of_its_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    let changes = [reschedule(1, due(9, 0)), reschedule(2, due(5, 0))];
    assert_eq!(t.append(1, 3, &[], &changes).await, NO_CANCEL);
    let moved = effect(2, waits, EffectKind::Moved(due(5, 0)));
    let up_to_it = Progress::new(waits, Watermark(3));
    assert_eq!(claim(t, up_to_it).await, (vec![], vec![moved]));
    // The pair covers the message, so its change is over.
    t.acknowledge(1, Progress::new(waits, Watermark(1))).await;
    assert_eq!(claim(t, everything()).await, (vec![], vec![]));
}

pub(in super::super) async fn a_message_is_only_rescheduled_to_a_later_time(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    for (at, due) in [(1, waits.due), (2, due(0, 0)), (3, Timestamp::AT_ONCE)] {
        let appended = t.append(at, at + 1, &[], &[reschedule(at, due)]).await;
        assert_eq!(appended, MISSED, "{due}");
    }
    let other = IdChange::new("other", reschedule(4, due(9, 0)).kind);
    assert_eq!(t.append(4, 5, &[], &[other]).await, MISSED);
    assert_eq!(claim(t, everything()).await, (vec![], vec![]));
}

pub(in super::super) async fn a_rescheduled_message_keeps_its_id(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    assert_eq!(
        t.append(1, 2, &[], &[reschedule(1, due(5, 0))]).await,
        NO_CANCEL
    );
    assert_eq!(t.append(2, 3, &[], &[cancel("id")]).await, CANCELLED);
    assert_eq!(
        t.append(3, 4, &[], &[reschedule(3, due(6, 0))]).await,
        MISSED
    );
    assert_eq!(claim(t, everything()).await, (vec![waits], vec![]));
}

pub(in super::super) async fn a_reschedule_of_a_claimed_message_is_too_late(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    t.claim(1, Progress::new(waits, Watermark(1))).await;
    let late = requested(9, reschedule(9, due(5, 0)));
    assert_eq!(t.append(1, 10, &[], &[late]).await, MISSED);
    let late = effect(9, waits, EffectKind::Unchanged);
    assert_eq!(
        claim(t, everything()).await,
        (vec![], vec![late]),
        "a claimed message keeps its due time"
    );
}

pub(in super::super) async fn an_exactly_once_route_reschedules_a_claimed_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    t.claim(1, Progress::new(waits, Watermark(1))).await;
    let change = IdChange {
        changes_claimed: true,
        ..requested(9, reschedule(9, due(5, 0)))
    };
    // It may be too late, so it is not in time.
    assert_eq!(t.append(1, 10, &[], &[change]).await, MISSED);
    let moved = effect(9, waits, EffectKind::Moved(due(5, 0)));
    let changed = effect(9, waits, EffectKind::Changed);
    assert_eq!(claim(t, everything()).await, (vec![], vec![changed, moved]));
}

pub(in super::super) async fn a_change_without_an_answer_takes_the_place_of_a_request(
    t: &Fixture<'_>,
) {
    let waits = shard_with_one_message(t).await;
    let changes = [
        requested(1, reschedule(1, due(5, 0))),
        reschedule(2, due(6, 0)),
    ];
    assert_eq!(t.append(1, 3, &[], &changes).await, NO_CANCEL);
    let moved = effect(2, waits, EffectKind::Moved(due(6, 0)));
    assert_eq!(claim(t, everything()).await, (vec![], vec![moved]));
}

pub(in super::super) async fn a_retry_keeps_the_id_of_its_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    t.claim(1, Progress::new(waits, Watermark(1))).await;
    let again = place(due(2, 0), 1);
    let run = run_of("b", &[again]);
    assert_eq!(t.append(1, 2, &[&run], &[retry(again)]).await, NO_CANCEL);
    assert_eq!(t.append(2, 3, &[], &[cancel("id")]).await, CANCELLED);
    assert_eq!(claim(t, everything()).await.0, [again]);
}

pub(in super::super) async fn a_retry_takes_no_id_from_a_later_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    t.claim(1, Progress::new(waits, Watermark(1))).await;
    let (later, again) = (place(due(3, 0), 1), place(due(2, 0), 2));
    let runs = [run_of("b", &[later]), run_of("c", &[again])];
    let changes = [schedule("id", later), retry(again)];
    assert_eq!(
        t.append(1, 3, &[&runs[0], &runs[1]], &changes).await,
        NO_CANCEL
    );
    assert_eq!(t.append(3, 4, &[], &[cancel("id")]).await, CANCELLED);
    let cancelled = claim(t, everything()).await.0;
    assert_eq!(
        cancelled,
        [later],
        "a retry leaves the id to a later message"
    );
}

pub(in super::super) async fn the_first_message_keeps_its_id_until_it_is_due(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    let (second, third) = (place(due(3, 0), 9), place(due(4, 0), 10));
    let runs = [run_of("b", &[second]), run_of("c", &[third])];
    let before_due = Timestamp::from_millis(waits.due.as_millis() - 1);
    let dropped = requested(9, keep_first(second, before_due));
    assert_eq!(t.append(1, 10, &[&runs[0]], &[dropped]).await, CANCELLED);
    let kept = effect(9, waits, EffectKind::Unchanged);
    let nothing = Progress::new(Cursor::START, Watermark(0));
    assert_eq!(claim(t, nothing).await, (vec![], vec![kept]));
    let taken = keep_first(third, waits.due);
    assert_eq!(t.append(10, 11, &[&runs[1]], &[taken]).await, NO_CANCEL);
    assert_eq!(t.append(11, 12, &[], &[cancel("id")]).await, CANCELLED);
    assert_eq!(
        claim(t, everything()).await.0,
        [second, third],
        "a retry leaves the id to a later message"
    );
}

fn take_place(place: Cursor, of: u64) -> IdChange {
    let of = Offset(of);
    IdChange::new("id", IdChangeKind::TakePlace { place, of })
}

pub(in super::super) async fn a_copy_takes_the_place_of_its_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    let copy = place(due(0, 0), 1);
    let run = run_of("b", &[copy]);
    let changes = [reschedule(1, due(5, 0)), take_place(copy, waits.offset.0)];
    assert_eq!(t.append(1, 2, &[&run], &changes).await, CANCELLED);
    assert_eq!(t.append(2, 3, &[], &[cancel("id")]).await, CANCELLED);
    let (cancelled, moved) = claim(t, everything()).await;
    assert_eq!((cancelled, moved), (vec![copy, waits], vec![]));
}

pub(in super::super) async fn a_copy_is_cancelled_if_its_message_does_not_wait_any_more(
    t: &Fixture<'_>,
) {
    let waits = shard_with_one_message(t).await;
    let later = place(due(3, 0), 1);
    let copies = [2, 3].map(|offset| place(due(0, 0), offset));
    let runs = [run_of("b", &[later]), run_of("c", &copies)];
    let changes = [
        schedule("id", later),
        take_place(copies[0], waits.offset.0),
        cancel("id"),
        take_place(copies[1], later.offset.0),
    ];
    let both = Appended::Done {
        cancelled: 4,
        missed: 0,
        told: Vec::new(),
    };
    assert_eq!(t.append(1, 4, &[&runs[0], &runs[1]], &changes).await, both);
    let next = place(due(4, 0), 4);
    let run = run_of("d", &[next]);
    t.append(4, 5, &[&run], &[schedule("id", next)]).await;
    t.claim(1, Progress::new(next, Watermark(5))).await;
    let late = place(due(0, 0), 5);
    let run = run_of("e", &[late]);
    let change = take_place(late, next.offset.0);
    assert_eq!(t.append(5, 6, &[&run], &[change]).await, CANCELLED);
    let cancelled = claim(t, everything()).await.0;
    assert!(cancelled.contains(&late), "{cancelled:?}");
}

fn tells(change: IdChange) -> IdChange {
    IdChange {
        tells_effect: true,
        ..change
    }
}

fn told_effect(change: usize, named: Cursor, is_changed: bool) -> ToldEffect {
    ToldEffect {
        change,
        named,
        is_changed,
    }
}

pub(in super::super) async fn an_append_tells_the_effects_of_the_changes_that_ask_for_them(
    t: &Fixture<'_>,
) {
    let waits = shard_with_one_message(t).await;
    let next = place(due(2, 0), 3);
    let first = place(due(3, 0), 5);
    let run = run_of("b", &[next, first]);
    let changes = [
        tells(reschedule(1, due(9, 0))),
        cancel("other"),
        tells(schedule("id", next)),
        // These name no message, or keep it.
        tells(IdChange::new("other", IdChangeKind::Cancel)),
        tells(keep_first(first, due(0, 0))),
        tells(reschedule(6, due(1, 0))),
        cancel("id"),
    ];
    let done = Appended::Done {
        cancelled: 3,
        missed: 3,
        told: vec![
            told_effect(0, waits, true),
            told_effect(2, waits, true),
            told_effect(4, next, false),
            told_effect(5, next, false),
        ],
    };
    assert_eq!(t.append(1, 8, &[&run], &changes).await, done);
    let claimed = place(due(4, 0), 8);
    let run = run_of("c", &[claimed]);
    t.append(8, 9, &[&run], &[schedule("id", claimed)]).await;
    t.claim(1, Progress::new(claimed, Watermark(9))).await;
    let copy = place(due(0, 0), 9);
    let run = run_of("d", &[copy]);
    let changes = [tells(take_place(copy, 8)), tells(cancel("id"))];
    let late = Appended::Done {
        cancelled: 1,
        missed: 1,
        told: vec![
            told_effect(0, claimed, false),
            told_effect(1, claimed, false),
        ],
    };
    assert_eq!(t.append(9, 10, &[&run], &changes).await, late);
}

pub(in super::super) async fn an_append_tells_no_change_of_a_message_that_may_have_been_delivered(
    t: &Fixture<'_>,
) {
    let (first, second) = (place(due(1, 0), 0), place(due(2, 0), 1));
    t.open(NewShard {
        possibly_delivered: Progress::new(first, Watermark(9)),
        ..t.new_shard(0, Progress::START)
    })
    .await;
    let run = run_of("a", &[first, second]);
    let changes = [schedule("id", first), schedule("other", second)];
    assert_eq!(t.append(0, 2, &[&run], &changes).await, NO_CANCEL);
    let other = IdChange::new("other", IdChangeKind::Cancel);
    let changes = [tells(cancel("id")), tells(other)];
    let done = Appended::Done {
        cancelled: 2,
        missed: 0,
        told: vec![told_effect(0, first, false), told_effect(1, second, true)],
    };
    assert_eq!(t.append(2, 4, &[], &changes).await, done);
}

pub(in super::super) async fn a_delivered_copy_cancels_only_its_message(t: &Fixture<'_>) {
    let waits = shard_with_one_message(t).await;
    let taken = |of| IdChange::new("id", IdChangeKind::PlaceTaken { of: Offset(of) });
    let other = waits.offset.0 + 7;
    assert_eq!(t.append(1, 2, &[], &[taken(other)]).await, NO_CANCEL);
    let own = taken(waits.offset.0);
    assert_eq!(t.append(2, 3, &[], &[own]).await, CANCELLED);
    assert_eq!(claim(t, everything()).await.0, [waits]);
}
