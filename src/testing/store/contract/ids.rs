//! Cases for ids: a cancel or replacement is in time or too late.

use super::fixture::{Fixture, cancel, due, place, run_of, schedule};
use crate::model::{Cursor, Progress, Watermark};
use crate::store::{Appended, IdChange};

const CANCELLED: Appended = Appended::Done {
    cancelled: 1,
    missed: 0,
};
const MISSED: Appended = Appended::Done {
    cancelled: 0,
    missed: 1,
};
const NO_CANCEL: Appended = Appended::Done {
    cancelled: 0,
    missed: 0,
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
            missed: 2
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
            missed: 1
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
