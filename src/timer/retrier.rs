//! What to do with a message whose delivery failed: send it again, send it back through the source, or set it aside. Pure: the instant is an
//! argument.

use super::flying::{Diverted, Stage};
use crate::broker::{Failure, FailureKind};
use crate::limit::{RESEND_MAX, RESEND_MIN};
use crate::model::{Disposition, Reason, Timestamp};
use std::time::Duration;

/// How often and how patiently a route tries again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Deliveries that may fail before a message goes to the dead letters.
    pub(crate) max_attempts: u32,
    /// Wait before the second attempt; doubled from attempt to attempt up to `backoff_max`.
    pub(crate) backoff: Duration,
    pub(crate) backoff_max: Duration,
}

impl Policy {
    fn wait(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(30);
        self.backoff
            .saturating_mul(1 << doublings)
            .min(self.backoff_max)
    }
}

/// What comes next for the message.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// The same again, after a while; the shard waits.
    Again(Duration),
    Divert(Diverted),
}

/// Decides on a failure of `stage`. `failures` counts how often this very stage failed before.
pub(crate) fn decide(
    policy: &Policy,
    disposition: &Disposition<'_>,
    way: (Stage, u32),
    failure: &Failure,
    now: Timestamp,
) -> Next {
    let (stage, failures) = way;
    let divert = |stage| {
        Next::Divert(Diverted {
            stage,
            reason: failure.reason,
            detail: failure.detail.clone(),
            failures: 0,
        })
    };
    let again = Next::Again(
        RESEND_MIN
            .saturating_mul(1 << failures.min(10))
            .min(RESEND_MAX),
    );
    match (stage, failure.kind) {
        (_, FailureKind::Closed) => again,
        (Stage::Target, FailureKind::Refused) => divert(Stage::DeadLetter),
        (Stage::Target, FailureKind::NotNow | FailureKind::Unknown) => {
            let failed = match disposition {
                Disposition::Retry(retry) => retry.attempt.saturating_add(1),
                _ => 1,
            };
            if failed >= policy.max_attempts {
                divert(Stage::DeadLetter)
            } else {
                divert(Stage::Back {
                    attempt: failed,
                    next: now.plus(policy.wait(failed)),
                })
            }
        }
        (Stage::Back { .. }, FailureKind::Unknown) => again,
        // No answer is no refusal: the source's cluster is away, and nobody wants an outage to end in dead letters.
        (Stage::Back { .. }, FailureKind::NotNow) if failure.reason == Reason::TimedOut => again,
        (Stage::Back { .. }, FailureKind::Refused | FailureKind::NotNow) => {
            divert(Stage::DeadLetter)
        }
        (Stage::DeadLetter, FailureKind::Refused)
            if matches!(failure.reason, Reason::TooLarge | Reason::InvalidHeader) =>
        {
            divert(Stage::DeadLetterByReference)
        }
        (Stage::DeadLetterByReference, FailureKind::Refused)
            if failure.reason == Reason::TooLarge =>
        {
            divert(Stage::DeadLetterWithoutKey)
        }
        (Stage::DeadLetter | Stage::DeadLetterByReference | Stage::DeadLetterWithoutKey, _) => {
            again
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Retry;

    const POLICY: Policy = Policy {
        max_attempts: 3,
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_secs(3),
    };

    fn failure(kind: FailureKind, reason: Reason) -> Failure {
        Failure {
            kind,
            reason,
            detail: "said the broker".into(),
        }
    }

    fn stage_after(
        disposition: &Disposition<'_>,
        stage: Stage,
        kind: FailureKind,
        reason: Reason,
    ) -> Option<Stage> {
        match decide(
            &POLICY,
            disposition,
            (stage, 0),
            &failure(kind, reason),
            Timestamp::from_millis(10_000),
        ) {
            Next::Again(_) => None,
            Next::Divert(diverted) => Some(diverted.stage),
        }
    }

    fn retried(attempt: u32) -> Disposition<'static> {
        Disposition::Retry(Retry {
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
                    Stage::Target,
                    FailureKind::Refused,
                    reason
                ),
                Some(Stage::DeadLetter)
            );
        }
    }

    #[test]
    fn what_is_refused_for_now_goes_back_with_doubled_waits_until_the_attempts_are_used_up() {
        let back = |attempt, seconds: i64| {
            Some(Stage::Back {
                attempt,
                next: Timestamp::from_millis(10_000 + seconds * 1_000),
            })
        };
        let after = |disposition: &Disposition<'_>, kind| {
            stage_after(disposition, Stage::Target, kind, Reason::UnknownTarget)
        };
        assert_eq!(
            after(&Disposition::Deliver, FailureKind::NotNow),
            back(1, 1)
        );
        assert_eq!(after(&retried(1), FailureKind::Unknown), back(2, 2));
        assert_eq!(
            after(&retried(2), FailureKind::NotNow),
            Some(Stage::DeadLetter)
        );
        assert_eq!(POLICY.wait(40), Duration::from_secs(3));
    }

    #[test]
    fn a_way_back_whose_outcome_is_unknown_is_tried_again_and_a_refused_one_ends_in_the_dead_letters()
     {
        let stage = Stage::Back {
            attempt: 1,
            next: Timestamp::from_millis(1),
        };
        assert_eq!(
            stage_after(
                &Disposition::Deliver,
                stage,
                FailureKind::Unknown,
                Reason::TimedOut
            ),
            None
        );
        let refused = stage_after(
            &Disposition::Deliver,
            stage,
            FailureKind::Refused,
            Reason::TooLarge,
        );
        assert_eq!(refused, Some(Stage::DeadLetter));
        let missing = stage_after(
            &Disposition::Deliver,
            stage,
            FailureKind::NotNow,
            Reason::UnknownTarget,
        );
        assert_eq!(missing, Some(Stage::DeadLetter));
    }

    #[test]
    fn an_outage_of_the_source_makes_no_dead_letters_however_long_it_lasts() {
        let stage = Stage::Back {
            attempt: 1,
            next: Timestamp::from_millis(1),
        };
        for kind in [FailureKind::NotNow, FailureKind::Unknown] {
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
        let (whole, reference) = (Stage::DeadLetter, Stage::DeadLetterByReference);
        assert_eq!(
            after(whole, FailureKind::Refused, Reason::TooLarge),
            Some(reference)
        );
        assert_eq!(
            after(whole, FailureKind::Refused, Reason::InvalidHeader),
            Some(reference),
            "the headers stay behind"
        );
        assert_eq!(
            after(whole, FailureKind::Refused, Reason::Unauthorized),
            None
        );
        assert_eq!(
            after(whole, FailureKind::NotNow, Reason::UnknownTarget),
            None
        );
        assert_eq!(
            after(reference, FailureKind::Refused, Reason::TooLarge),
            Some(Stage::DeadLetterWithoutKey)
        );
        assert_eq!(
            after(reference, FailureKind::Refused, Reason::Unauthorized),
            None
        );
        assert_eq!(
            after(
                Stage::DeadLetterWithoutKey,
                FailureKind::Refused,
                Reason::TooLarge
            ),
            None
        );
    }

    #[test]
    fn a_client_that_has_failed_as_a_whole_changes_nothing_about_the_message() {
        for stage in [Stage::Target, Stage::DeadLetter] {
            assert_eq!(
                stage_after(
                    &Disposition::Deliver,
                    stage,
                    FailureKind::Closed,
                    Reason::TimedOut
                ),
                None
            );
        }
    }
}
