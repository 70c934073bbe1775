//! Decides where a message goes after a failed delivery: to the same destination again, back
//! through the source, or to the dead-letter topic.

use super::record::Destination;
use crate::broker::{DeliveryFailure, FailureKind};
use crate::model::{DeadLetterReason, Disposition, Timestamp};
use crate::retry::backoff;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    /// A message that failed this many times is dead-lettered.
    pub(crate) max_attempts: u32,
    /// Wait before the second attempt. It doubles with each attempt, up to `backoff_max`.
    pub(crate) backoff: Duration,
    pub(crate) backoff_max: Duration,
}

impl RetryPolicy {
    fn backoff_for(&self, attempt: u32) -> Duration {
        backoff(self.backoff, self.backoff_max, attempt.saturating_sub(1))
    }

    /// Where a message goes after a failed attempt to send it to `destination`. `None`: to the same
    /// destination again. The shard waits for it.
    pub(super) fn next_destination(
        &self,
        disposition: &Disposition<'_>,
        destination: Destination,
        failure: &DeliveryFailure,
        now: Timestamp,
    ) -> Option<Destination> {
        use Destination::{
            DeadLetter, DeadLetterByReference, DeadLetterWithoutKey, Dropped, Reschedule,
            RetryViaSource, Target,
        };
        use FailureKind::{ClientFailed, MaybeDelivered, NotDelivered, Rejected};
        let next = match (destination, failure.kind, failure.reason) {
            (_, ClientFailed, _) => None,
            (Target, Rejected, _) => Some(DeadLetter),
            // A definitions topic keeps one record of each key, so no retry goes there. An outage must
            // not produce dead letters.
            (Target, _, reason) if matches!(disposition, Disposition::Occurrence(_)) => {
                (reason != DeadLetterReason::TimedOut).then_some(DeadLetter)
            }
            (Target, NotDelivered | MaybeDelivered, _) => {
                let failed = match disposition {
                    Disposition::Retry(retry) | Disposition::RetriedAnswer(retry) => {
                        retry.attempt.saturating_add(1)
                    }
                    _ => 1,
                };
                Some(if failed >= self.max_attempts {
                    DeadLetter
                } else {
                    RetryViaSource {
                        attempt: failed,
                        next: now.plus(self.backoff_for(failed)),
                    }
                })
            }
            // A timeout means that the source cluster is down. An outage must not produce dead
            // letters.
            (RetryViaSource { .. } | Reschedule { .. }, MaybeDelivered, _)
            | (
                RetryViaSource { .. } | Reschedule { .. },
                NotDelivered,
                DeadLetterReason::TimedOut,
            ) => None,
            (RetryViaSource { .. } | Reschedule { .. }, ..) => Some(DeadLetter),
            (
                DeadLetter,
                Rejected,
                DeadLetterReason::TooLarge | DeadLetterReason::InvalidHeader,
            ) => Some(DeadLetterByReference),
            (DeadLetterByReference, Rejected, DeadLetterReason::TooLarge) => {
                Some(DeadLetterWithoutKey)
            }
            (DeadLetter | DeadLetterByReference | DeadLetterWithoutKey | Dropped, ..) => None,
        };
        let is_answer = matches!(
            disposition,
            Disposition::Answer(_) | Disposition::RetriedAnswer(_)
        );
        next.map(|next| match is_answer && next.is_dead_letter() {
            true => Dropped,
            false => next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{RetryState, ScheduleState};

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 3,
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_secs(3),
    };

    const BACK: Destination = Destination::RetryViaSource {
        attempt: 1,
        next: Timestamp::from_millis(1),
    };

    const MOVED: Destination = Destination::Reschedule {
        due: Timestamp::from_millis(1),
    };

    /// The next destination of a message that failed; `None` if it is sent to the same one again.
    fn next_destination(
        disposition: &Disposition<'_>,
        destination: Destination,
        kind: FailureKind,
        reason: DeadLetterReason,
    ) -> Option<Destination> {
        let failure = DeliveryFailure {
            kind,
            reason,
            detail: "said the broker".into(),
        };
        let now = Timestamp::from_millis(10_000);
        POLICY.next_destination(disposition, destination, &failure, now)
    }

    fn first(
        destination: Destination,
        kind: FailureKind,
        reason: DeadLetterReason,
    ) -> Option<Destination> {
        next_destination(&Disposition::Deliver, destination, kind, reason)
    }

    fn retried(attempt: u32) -> Disposition<'static> {
        Disposition::Retry(RetryState {
            attempt,
            origin: "o",
            due: Timestamp::from_millis(1),
            error: Some(DeadLetterReason::UnknownTarget),
        })
    }

    #[test]
    fn an_occurrence_waits_for_an_outage_and_is_not_retried_otherwise() {
        let occurrence = Disposition::Occurrence(ScheduleState {
            schedule: "invoices",
            planned: Timestamp::from_millis(7),
            next: None,
        });
        let next = |reason| {
            next_destination(
                &occurrence,
                Destination::Target,
                FailureKind::NotDelivered,
                reason,
            )
        };
        assert_eq!(next(DeadLetterReason::TimedOut), None);
        assert_eq!(
            next(DeadLetterReason::UnknownTarget),
            Some(Destination::DeadLetter)
        );
    }

    #[test]
    fn rejected_messages_are_dead_lettered() {
        for reason in [
            DeadLetterReason::TooLarge,
            DeadLetterReason::Unauthorized,
            DeadLetterReason::InvalidRecord,
        ] {
            assert_eq!(
                first(Destination::Target, FailureKind::Rejected, reason),
                Some(Destination::DeadLetter)
            );
        }
    }

    #[test]
    fn undelivered_messages_are_retried_with_doubled_waits_until_no_attempt_is_left() {
        let back = |attempt, seconds: i64| {
            Some(Destination::RetryViaSource {
                attempt,
                next: Timestamp::from_millis(10_000 + seconds * 1_000),
            })
        };
        let after = |disposition: &Disposition<'_>, kind| {
            let reason = DeadLetterReason::UnknownTarget;
            next_destination(disposition, Destination::Target, kind, reason)
        };
        assert_eq!(
            after(&Disposition::Deliver, FailureKind::NotDelivered),
            back(1, 1)
        );
        assert_eq!(after(&retried(1), FailureKind::MaybeDelivered), back(2, 2));
        assert_eq!(
            after(&retried(2), FailureKind::NotDelivered),
            Some(Destination::DeadLetter)
        );
        assert_eq!(POLICY.backoff_for(40), Duration::from_secs(3));
    }

    #[test]
    fn a_retry_that_the_source_rejects_is_dead_lettered() {
        let unknown = FailureKind::MaybeDelivered;
        assert_eq!(first(BACK, unknown, DeadLetterReason::TimedOut), None);
        for (kind, reason) in [
            (FailureKind::Rejected, DeadLetterReason::TooLarge),
            (FailureKind::NotDelivered, DeadLetterReason::UnknownTarget),
        ] {
            for destination in [BACK, MOVED] {
                let next = first(destination, kind, reason);
                assert_eq!(next, Some(Destination::DeadLetter));
            }
        }
    }

    #[test]
    fn an_outage_of_the_source_makes_no_dead_letters() {
        for kind in [FailureKind::NotDelivered, FailureKind::MaybeDelivered] {
            for destination in [BACK, MOVED] {
                let next = first(destination, kind, DeadLetterReason::TimedOut);
                assert_eq!(next, None, "{kind:?}");
            }
        }
    }

    #[test]
    fn a_dead_letter_that_is_too_large_is_sent_by_reference_and_other_failures_wait() {
        use DeadLetterReason::{InvalidHeader, TooLarge, Unauthorized, UnknownTarget};
        use Destination::{DeadLetter, DeadLetterByReference, DeadLetterWithoutKey};
        for (destination, kind, reason, next) in [
            (
                DeadLetter,
                FailureKind::Rejected,
                TooLarge,
                Some(DeadLetterByReference),
            ),
            (
                DeadLetter,
                FailureKind::Rejected,
                InvalidHeader,
                Some(DeadLetterByReference),
            ),
            (DeadLetter, FailureKind::Rejected, Unauthorized, None),
            (DeadLetter, FailureKind::NotDelivered, UnknownTarget, None),
            (
                DeadLetterByReference,
                FailureKind::Rejected,
                TooLarge,
                Some(DeadLetterWithoutKey),
            ),
            (
                DeadLetterByReference,
                FailureKind::Rejected,
                Unauthorized,
                None,
            ),
            (DeadLetterWithoutKey, FailureKind::Rejected, TooLarge, None),
        ] {
            assert_eq!(first(destination, kind, reason), next);
        }
    }

    #[test]
    fn a_failed_client_does_not_change_the_destination() {
        for destination in [Destination::Target, Destination::DeadLetter] {
            let kind = FailureKind::ClientFailed;
            let next = first(destination, kind, DeadLetterReason::TimedOut);
            assert_eq!(next, None);
        }
    }
}
