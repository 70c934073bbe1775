//! Decides the outcomes of requests with answers, when their answers are sent.
//!
//! **At-least-once**: the store has decided. If it had claimed the message before the request, the
//! answer is `too_late`, and waits until the message is acknowledged. No other message waits for it.
//!
//! **Exactly-once**: the transaction decides. The store has marked the message as changed, even if
//! it was claimed. If the message is in this transaction or in an earlier one, the request was too
//! late. Otherwise the message is never sent.
//!
//! In both modes a changed message, which is cancelled or rescheduled, is passed only after the answer of
//! the request that changed it last. So each committed pair of an exactly-once route that covers the message covers the answer.
//! With at-least-once delivery, such a pair means that the target has acknowledged the answer.
//! Exception: an answer that cannot be claimed soon must not stop the shard.

use super::in_flight::ClaimedBatch;
use crate::limit::{ANSWER_WAIT_MAX, SHARD_IN_FLIGHT_MAX};
use crate::model::{Cursor, Effect, Offset};
use crate::schedule::InFlightClaims;
use crate::timer::shard::txn_state::TxnState;
use tokio::time::Instant;

type InFlight = InFlightClaims<ClaimedBatch>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// It waits for another message. Messages behind it do not wait.
    Waits,
    /// All messages behind it wait too, because a transaction ends at one place.
    Blocks(Cursor),
}

/// Prepares the message at this index of the batch. `txn` is that of an exactly-once shard.
/// `may_claim`: the shard is not being handed over, so it may still claim an answer.
pub(super) fn prepare(
    in_flight: &mut InFlight,
    number: u32,
    index: usize,
    txn: Option<&TxnState>,
    may_claim: bool,
    now: Instant,
) -> Readiness {
    let Some(batch) = in_flight.get_mut(number) else {
        return Readiness::Ready;
    };
    if batch.needs_effect(index) {
        return decide(in_flight, number, index, txn, may_claim);
    }
    let readiness = prepare_changed(in_flight, number, index, txn, may_claim, now);
    if readiness == Readiness::Ready
        && txn.is_none()
        && let Some(batch) = in_flight.get_mut(number)
    {
        // If sending fails, it does not wait again.
        batch.forget_changer(index);
    }
    readiness
}

/// Prepares a message that is cancelled or rescheduled.
fn prepare_changed(
    in_flight: &mut InFlight,
    number: u32,
    index: usize,
    txn: Option<&TxnState>,
    may_claim: bool,
    now: Instant,
) -> Readiness {
    let Some(batch) = in_flight.get_mut(number) else {
        return Readiness::Ready;
    };
    let place = batch.place(index);
    let waits_until = batch.claimed_at() + ANSWER_WAIT_MAX;
    let Some(request) = batch
        .changer(place)
        .filter(|_| !fault!(PassCancelledBeforeAnswer))
    else {
        return Readiness::Ready;
    };
    if is_answered(in_flight, request, txn.is_some()) {
        return Readiness::Ready;
    }
    // The answer may be claimed only after this message is passed.
    match (may_claim && has_room(in_flight) && now < waits_until, txn) {
        (true, None) => Readiness::Waits,
        (true, Some(_)) => Readiness::Blocks(place),
        (false, None) => Readiness::Ready,
        (false, Some(_)) => {
            // A transaction must not pass it without its answer. So it is sent, and the request is
            // too late.
            if let Some(batch) = in_flight.get_mut(number) {
                batch.send_although_changed(place);
            }
            Readiness::Ready
        }
    }
}

/// True if the answer is sent in the current or an earlier transaction, or acknowledged with
/// at-least-once delivery.
fn is_answered(in_flight: &InFlight, request: Offset, is_exactly_once: bool) -> bool {
    let answer = Cursor::of_answer(request);
    let is_open = |batch: &ClaimedBatch| match is_exactly_once {
        true => batch.is_unsent(answer),
        false => batch.is_unacknowledged(answer),
    };
    in_flight.claimed().covers(answer) && !in_flight.iter().any(is_open)
}

/// True if the shard has room for more claims.
fn has_room(in_flight: &InFlight) -> bool {
    let open = in_flight.open_messages();
    let owing = || -> usize { in_flight.iter().map(ClaimedBatch::owing_messages).sum() };
    open < SHARD_IN_FLIGHT_MAX || open.saturating_sub(owing()) < SHARD_IN_FLIGHT_MAX
}

/// Decides the outcome that the answer at this index tells.
fn decide(
    in_flight: &mut InFlight,
    number: u32,
    index: usize,
    txn: Option<&TxnState>,
    may_claim: bool,
) -> Readiness {
    let has_room = has_room(in_flight);
    let Some(batch) = in_flight.get_mut(number) else {
        return Readiness::Ready;
    };
    let request = batch.place(index).offset;
    let asked = batch.request(index);
    let keeps = |place| asked.is_some_and(|asked| asked.keeps(place));
    let effect = match (batch.named_by(request), txn) {
        (None, _) => Effect::None,
        (Some((place, false)), _) if keeps(place) => Effect::Kept(place),
        (Some((place, true)), None) => Effect::Changed(place),
        (Some((place, false)), Some(_)) => Effect::TooLate(place),
        (Some((place, false)), None) => {
            let is_open = |batch: &ClaimedBatch| batch.is_unacknowledged(place);
            // The previous owner may have claimed it, and this one not yet.
            let is_to_come = !in_flight.claimed().covers(place) && may_claim && has_room;
            let is_done = !is_to_come && !in_flight.iter().any(is_open);
            if !is_done && !fault!(AnswerBeforeDelivery) {
                return Readiness::Waits;
            }
            Effect::TooLate(place)
        }
        (Some((place, true)), Some(txn)) => {
            let is_sent = txn.marker.covers(place)
                || !in_flight
                    .iter_mut()
                    .all(|batch| batch.change(place, request, asked))
                || fault!(AnswerByClaim);
            match is_sent {
                true => Effect::TooLate(place),
                false => Effect::Changed(place),
            }
        }
    };
    if let Some(batch) = in_flight.get_mut(number) {
        batch.set_effect(index, effect);
    }
    Readiness::Ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        AnswerState, Body, Disposition, Level, Partition, Progress, Request, ShardId, Slice,
        Timestamp, Watermark,
    };
    use crate::run::{RunDecoder, RunEncoder, RunName, record};
    use crate::store::{EffectKind, RequestEffect};
    use crate::timer::delivery::record::Destination;
    use crate::timer::load::{MemoryBudget, ResidentRun};
    use std::rc::Rc;

    fn message() -> Cursor {
        Cursor::new(Timestamp::from_millis(5), Offset(1))
    }

    /// The answer of the request at offset 2, which names the message.
    fn answer() -> Cursor {
        Cursor::of_answer(Offset(2))
    }

    fn batch(place: Cursor, is_cancelled: bool) -> ClaimedBatch {
        let state = AnswerState {
            request: Request::Cancel,
            request_id: None,
            id: Some("a"),
        };
        let disposition = match place == answer() {
            true => Disposition::Answer(state),
            false => Disposition::Deliver,
        };
        let body = Body {
            disposition,
            ..Body::default()
        };
        let mut encoded = Vec::new();
        record::encode(&body, &mut encoded);
        let (_, bytes) = RunEncoder::new().encode([(place, encoded.as_slice())].into_iter());
        let shard = ShardId::new("r", Partition::new("in", 0));
        let slice = Slice {
            level: Level::Hour,
            start: 0,
        };
        let run = RunDecoder::plain()
            .decode(&shard, RunName::new("1-1-1-1"), slice, &bytes)
            .expect("a valid run");
        let account = MemoryBudget::new(1 << 20).open_account();
        let run = Rc::new(ResidentRun::new(run, &account));
        let effect = RequestEffect {
            request: Offset(2),
            place: message(),
            kind: match is_cancelled {
                true => EffectKind::Changed,
                false => EffectKind::Unchanged,
            },
        };
        let cancelled = if is_cancelled {
            vec![message()]
        } else {
            Vec::new()
        };
        ClaimedBatch::new(vec![(run, 0)], cancelled, vec![effect], Instant::now())
    }

    /// Claim 0 with the message, and claim 1 with the answer.
    fn claimed(message_is_cancelled: bool, request_cancels: bool) -> InFlight {
        let mut in_flight = InFlightClaims::new(Progress::START);
        let first = Progress::new(message(), Watermark(2));
        in_flight.push(first, 1, batch(message(), message_is_cancelled));
        let second = Progress::new(message(), Watermark(3));
        in_flight.push(second, 1, batch(answer(), request_cancels));
        in_flight
    }

    fn effect(in_flight: &mut InFlight) -> Option<Effect> {
        in_flight.get_mut(1).expect("claim 1").effect(0)
    }

    #[test]
    fn a_cancelled_message_is_passed_after_the_answer_of_its_cancel() {
        let now = Instant::now();
        for is_exactly_once in [false, true] {
            let txn = is_exactly_once.then(|| TxnState::new(Progress::START, now));
            let mut in_flight = claimed(true, true);
            let waits = match is_exactly_once {
                true => Readiness::Blocks(message()),
                false => Readiness::Waits,
            };
            assert_eq!(
                prepare(&mut in_flight, 0, 0, txn.as_ref(), true, now),
                waits
            );
            let ready = prepare(&mut in_flight, 1, 0, txn.as_ref(), true, now);
            assert_eq!(ready, Readiness::Ready);
            assert_eq!(effect(&mut in_flight), Some(Effect::Changed(message())));
            let answers = in_flight.get_mut(1).expect("claim 1");
            answers.advance();
            if !is_exactly_once {
                assert_eq!(prepare(&mut in_flight, 0, 0, None, true, now), waits);
                in_flight.get_mut(1).expect("claim 1").acknowledge(0);
            }
            let ready = prepare(&mut in_flight, 0, 0, txn.as_ref(), true, now);
            assert_eq!(ready, Readiness::Ready);
            let messages = in_flight.get_mut(0).expect("claim 0");
            assert!(messages.is_cancelled(message()));
        }
    }

    /// Only claim 0, with a cancelled message. `open` messages of it are not complete.
    fn without_answer(open: usize) -> InFlight {
        let mut in_flight = InFlightClaims::new(Progress::START);
        let claim = Progress::new(message(), Watermark(2));
        in_flight.push(claim, open, batch(message(), true));
        in_flight
    }

    #[test]
    fn a_cancelled_message_waits_for_its_answer_only_while_the_shard_may_claim() {
        let now = Instant::now();
        for (open, may_claim, at, waits) in [
            (1, true, now, true),
            (SHARD_IN_FLIGHT_MAX, true, now, false),
            (1, false, now, false),
            (1, true, now + 2 * ANSWER_WAIT_MAX, false),
        ] {
            let expected = match waits {
                true => Readiness::Waits,
                false => Readiness::Ready,
            };
            let mut in_flight = without_answer(open);
            let readiness = prepare(&mut in_flight, 0, 0, None, may_claim, at);
            assert_eq!(readiness, expected);
            let messages = in_flight.get_mut(0).expect("claim 0");
            assert!(messages.is_cancelled(message()));
        }
    }

    #[test]
    fn a_message_whose_answer_is_not_claimed_is_sent_in_the_end() {
        let now = Instant::now();
        let txn = TxnState::new(Progress::START, now);
        let mut in_flight = without_answer(1);
        let blocks = Readiness::Blocks(message());
        assert_eq!(prepare(&mut in_flight, 0, 0, Some(&txn), true, now), blocks);
        let later = now + 2 * ANSWER_WAIT_MAX;
        let ready = prepare(&mut in_flight, 0, 0, Some(&txn), true, later);
        assert_eq!(ready, Readiness::Ready);
        let messages = in_flight.get_mut(0).expect("claim 0");
        assert!(!messages.is_cancelled(message()));
        messages.advance();
        let claim = Progress::new(message(), Watermark(3));
        in_flight.push(claim, 1, batch(answer(), true));
        prepare(&mut in_flight, 1, 0, Some(&txn), true, later);
        assert_eq!(effect(&mut in_flight), Some(Effect::TooLate(message())));
    }

    #[test]
    fn a_message_that_is_sent_back_waits_for_its_answer_once() {
        let (now, due) = (Instant::now(), Timestamp::from_millis(9));
        let mut in_flight = claimed(false, true);
        let moved = RequestEffect {
            request: Offset(2),
            place: message(),
            kind: EffectKind::Moved(due),
        };
        let changed = RequestEffect {
            kind: EffectKind::Changed,
            ..moved
        };
        let messages = in_flight.get_mut(0).expect("claim 0");
        messages.add_effect(changed);
        messages.add_effect(moved);
        assert!(messages.depends_on_other(0));
        let waits = prepare(&mut in_flight, 0, 0, None, true, now);
        assert_eq!(waits, Readiness::Waits);
        in_flight.get_mut(1).expect("claim 1").acknowledge(0);
        let ready = prepare(&mut in_flight, 0, 0, None, true, now);
        assert_eq!(ready, Readiness::Ready);
        let messages = in_flight.get_mut(0).expect("claim 0");
        let destination = messages.reroutes.get(&0).map(|it| it.destination);
        assert_eq!(destination, Some(Destination::Reschedule { due }));
        assert!(!messages.depends_on_other(0));
    }

    #[test]
    fn a_transaction_reschedules_a_claimed_message_unless_it_is_sent() {
        let due = Timestamp::from_millis(9);
        for is_sent in [false, true] {
            let mut in_flight = claimed(false, true);
            let messages = in_flight.get_mut(0).expect("claim 0");
            if is_sent {
                messages.advance();
            }
            let request = Some(Request::Reschedule { due });
            assert_eq!(messages.change(message(), Offset(2), request), !is_sent);
            let destination = messages.reroutes.get(&0).map(|it| it.destination);
            let expected = Destination::Reschedule { due };
            assert_eq!(destination, Some(expected).filter(|_| !is_sent));
            messages.send_although_changed(message());
            assert!(messages.reroutes.is_empty());
        }
    }

    #[test]
    fn too_late_is_answered_after_the_acknowledgement() {
        let now = Instant::now();
        let mut in_flight = claimed(false, false);
        let waits = prepare(&mut in_flight, 1, 0, None, true, now);
        assert_eq!((waits, effect(&mut in_flight)), (Readiness::Waits, None));
        in_flight.get_mut(0).expect("claim 0").acknowledge(0);
        let ready = prepare(&mut in_flight, 1, 0, None, true, now);
        let too_late = Some(Effect::TooLate(message()));
        assert_eq!(
            (ready, effect(&mut in_flight)),
            (Readiness::Ready, too_late)
        );
    }

    #[test]
    fn a_transaction_decides_whether_a_claimed_message_is_cancelled() {
        let now = Instant::now();
        for is_sent in [false, true] {
            let txn = TxnState::new(Progress::START, now);
            let mut in_flight = claimed(false, true);
            if is_sent {
                in_flight.get_mut(0).expect("claim 0").advance();
            }
            prepare(&mut in_flight, 1, 0, Some(&txn), true, now);
            let expected = match is_sent {
                true => Effect::TooLate(message()),
                false => Effect::Changed(message()),
            };
            assert_eq!(effect(&mut in_flight), Some(expected));
            let messages = in_flight.get_mut(0).expect("claim 0");
            assert_eq!(messages.is_cancelled(message()), !is_sent);
        }
    }
}
