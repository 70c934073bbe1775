//! What to do with a message whose delivery failed: send it again, send it back through the source, or set it aside. Pure: the instant is an
//! argument.

use super::flying::{Destination, Reroute};
use crate::broker::{DeliveryFailure, FailureKind};
use crate::limit::{RESEND_DELAY_MAX, RESEND_DELAY_MIN};
use crate::model::{Disposition, Reason, Timestamp};
use std::time::Duration;

/// How often and how patiently a route tries again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    /// Deliveries that may fail before a message goes to the dead letters.
    pub(crate) max_attempts: u32,
    /// Wait before the second attempt; doubled from attempt to attempt up to `backoff_max`.
    pub(crate) backoff: Duration,
    pub(crate) backoff_max: Duration,
}

impl RetryPolicy {
    fn backoff_for(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(30);
        self.backoff
            .saturating_mul(1 << doublings)
            .min(self.backoff_max)
    }
}

/// What comes next for the message.
#[derive(Clone, Debug)]
pub(crate) enum FailureAction {
    /// The same again, after a while; the shard waits.
    RetryAfter(Duration),
    Reroute(Reroute),
}

/// Decides on a failure of `stage`. `failures` counts how often this very stage failed before.
pub(crate) fn decide(
    policy: &RetryPolicy,
    disposition: &Disposition<'_>,
    way: (Destination, u32),
    failure: &DeliveryFailure,
    now: Timestamp,
) -> FailureAction {
    let (stage, failures) = way;
    let divert = |stage| {
        FailureAction::Reroute(Reroute {
            destination: stage,
            reason: failure.reason,
            detail: failure.detail.clone(),
            failures: 0,
        })
    };
    let again = FailureAction::RetryAfter(
        RESEND_DELAY_MIN
            .saturating_mul(1 << failures.min(10))
            .min(RESEND_DELAY_MAX),
    );
    match (stage, failure.kind) {
        (_, FailureKind::ClientFailed) => again,
        (Destination::Target, FailureKind::Rejected) => divert(Destination::DeadLetter),
        (Destination::Target, FailureKind::NotDelivered | FailureKind::MaybeDelivered) => {
            let failed = match disposition {
                Disposition::Retry(retry) => retry.attempt.saturating_add(1),
                _ => 1,
            };
            if failed >= policy.max_attempts {
                divert(Destination::DeadLetter)
            } else {
                divert(Destination::RetryViaSource {
                    attempt: failed,
                    next: now.plus(policy.backoff_for(failed)),
                })
            }
        }
        (Destination::RetryViaSource { .. }, FailureKind::MaybeDelivered) => again,
        // No answer is no refusal: the source's cluster is away, and nobody wants an outage to end in dead letters.
        (Destination::RetryViaSource { .. }, FailureKind::NotDelivered)
            if failure.reason == Reason::TimedOut =>
        {
            again
        }
        (Destination::RetryViaSource { .. }, FailureKind::Rejected | FailureKind::NotDelivered) => {
            divert(Destination::DeadLetter)
        }
        (Destination::DeadLetter, FailureKind::Rejected)
            if matches!(failure.reason, Reason::TooLarge | Reason::InvalidHeader) =>
        {
            divert(Destination::DeadLetterByReference)
        }
        (Destination::DeadLetterByReference, FailureKind::Rejected)
            if failure.reason == Reason::TooLarge =>
        {
            divert(Destination::DeadLetterWithoutKey)
        }
        (
            Destination::DeadLetter
            | Destination::DeadLetterByReference
            | Destination::DeadLetterWithoutKey,
            _,
        ) => again,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RetryState;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 3,
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_secs(3),
    };

    fn failure(kind: FailureKind, reason: Reason) -> DeliveryFailure {
        DeliveryFailure {
            kind,
            reason,
            detail: "said the broker".into(),
        }
    }

    fn stage_after(
        disposition: &Disposition<'_>,
        stage: Destination,
        kind: FailureKind,
        reason: Reason,
    ) -> Option<Destination> {
        match decide(
            &POLICY,
            disposition,
            (stage, 0),
            &failure(kind, reason),
            Timestamp::from_millis(10_000),
        ) {
            FailureAction::RetryAfter(_) => None,
            FailureAction::Reroute(diverted) => Some(diverted.destination),
        }
    }

    fn retried(attempt: u32) -> Disposition<'static> {
        Disposition::Retry(RetryState {
            attempt,
            origin: "o",
            due: Timestamp::from_millis(1),
            error: Reason::UnknownTarget,
        })
    }

    #[test]
    fn what_is_refused_for_good_goes_to_the_dead_letters() {
        for reason in [
            Reason::TooLarge,
            Reason::Unauthorized,
            Reason::InvalidRecord,
        ] {
            assert_eq!(
                stage_after(
                    &Disposition::Deliver,
                    Destination::Target,
                    FailureKind::Rejected,
                    reason
                ),
                Some(Destination::DeadLetter)
            );
        }
    }

    #[test]
    fn what_is_refused_for_now_goes_back_with_doubled_waits_until_the_attempts_are_used_up() {
        let back = |attempt, seconds: i64| {
            Some(Destination::RetryViaSource {
                attempt,
                next: Timestamp::from_millis(10_000 + seconds * 1_000),
            })
        };
        let after = |disposition: &Disposition<'_>, kind| {
            stage_after(
                disposition,
                Destination::Target,
                kind,
                Reason::UnknownTarget,
            )
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
    fn a_way_back_whose_outcome_is_unknown_is_tried_again_and_a_refused_one_ends_in_the_dead_letters()
     {
        let stage = Destination::RetryViaSource {
            attempt: 1,
            next: Timestamp::from_millis(1),
        };
        assert_eq!(
            stage_after(
                &Disposition::Deliver,
                stage,
                FailureKind::MaybeDelivered,
                Reason::TimedOut
            ),
            None
        );
        let refused = stage_after(
            &Disposition::Deliver,
            stage,
            FailureKind::Rejected,
            Reason::TooLarge,
        );
        assert_eq!(refused, Some(Destination::DeadLetter));
        let missing = stage_after(
            &Disposition::Deliver,
            stage,
            FailureKind::NotDelivered,
            Reason::UnknownTarget,
        );
        assert_eq!(missing, Some(Destination::DeadLetter));
    }

    #[test]
    fn an_outage_of_the_source_makes_no_dead_letters_however_long_it_lasts() {
        let stage = Destination::RetryViaSource {
            attempt: 1,
            next: Timestamp::from_millis(1),
        };
        for kind in [FailureKind::NotDelivered, FailureKind::MaybeDelivered] {
            assert_eq!(
                stage_after(&Disposition::Deliver, stage, kind, Reason::TimedOut),
                None,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn a_dead_letter_that_is_too_large_goes_by_reference_and_any_other_failure_waits() {
        let after = |stage, kind, reason| stage_after(&Disposition::Deliver, stage, kind, reason);
        let (whole, reference) = (Destination::DeadLetter, Destination::DeadLetterByReference);
        assert_eq!(
            after(whole, FailureKind::Rejected, Reason::TooLarge),
            Some(reference)
        );
        assert_eq!(
            after(whole, FailureKind::Rejected, Reason::InvalidHeader),
            Some(reference),
            "the headers stay behind"
        );
        assert_eq!(
            after(whole, FailureKind::Rejected, Reason::Unauthorized),
            None
        );
        assert_eq!(
            after(whole, FailureKind::NotDelivered, Reason::UnknownTarget),
            None
        );
        assert_eq!(
            after(reference, FailureKind::Rejected, Reason::TooLarge),
            Some(Destination::DeadLetterWithoutKey)
        );
        assert_eq!(
            after(reference, FailureKind::Rejected, Reason::Unauthorized),
            None
        );
        assert_eq!(
            after(
                Destination::DeadLetterWithoutKey,
                FailureKind::Rejected,
                Reason::TooLarge
            ),
            None
        );
    }

    #[test]
    fn a_client_that_has_failed_as_a_whole_changes_nothing_about_the_message() {
        for stage in [Destination::Target, Destination::DeadLetter] {
            assert_eq!(
                stage_after(
                    &Disposition::Deliver,
                    stage,
                    FailureKind::ClientFailed,
                    Reason::TimedOut
                ),
                None
            );
        }
    }
}
