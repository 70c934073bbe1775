//! What librdkafka's errors mean to the ports' callers. Pure tables.

use super::raw::Status;
use crate::broker::{Error, Failure, FailureKind};
use crate::model::Reason;
use rdkafka::types::RDKafkaErrorCode as Code;

/// Why a record was not delivered.
///
/// | librdkafka says | kind | reason |
/// |---|---|---|
/// | message or batch too large | refused | `too_large` |
/// | access to topic or cluster denied | refused | `unauthorized` |
/// | invalid record, message, size, timestamp; against a policy | refused | `invalid_record` |
/// | invalid topic name | refused | `invalid_target` |
/// | unknown topic or partition | not now | `unknown_target` |
/// | anything else, and the record never left the client | not now | `timed_out` |
/// | anything else | unknown | `timed_out` |
///
/// The last two rows are the timeouts: librdkafka itself retries whatever may pass until `message.timeout.ms` ends, and then says which of
/// the two it was. What becomes of them while the client can send nothing at all, [`in_trouble`] says.
pub(super) fn of_record(code: Code, status: Status, words: String) -> Failure {
    let (kind, reason) = match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => {
            (FailureKind::Refused, Reason::TooLarge)
        }
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            (FailureKind::Refused, Reason::Unauthorized)
        }
        Code::InvalidRecord
        | Code::InvalidDifferentRecord
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::PolicyViolation => (FailureKind::Refused, Reason::InvalidRecord),
        Code::InvalidTopic => (FailureKind::Refused, Reason::InvalidTarget),
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
            (FailureKind::NotNow, Reason::UnknownTarget)
        }
        _ if status == Status::NotPersisted => (FailureKind::NotNow, Reason::TimedOut),
        _ => (FailureKind::Unknown, Reason::TimedOut),
    };
    Failure {
        kind,
        reason,
        detail: if words.is_empty() {
            code.to_string()
        } else {
            words
        },
    }
}

/// The client as a whole has failed, or ended: nothing is known of the record, and another client may send it.
pub(super) fn closed(detail: String) -> Failure {
    Failure {
        kind: FailureKind::Closed,
        reason: Reason::TimedOut,
        detail,
    }
}

/// What is left of a failure where `trouble` keeps the client from sending anything: a record of which the broker has said nothing waits
/// for the end of that, like all others. It is no worse a record for it, and no other way is open either.
pub(super) fn in_trouble(failure: Failure, trouble: Option<String>) -> Failure {
    match trouble {
        Some(trouble) if failure.reason == Reason::TimedOut => closed(trouble),
        _ => failure,
    }
}

/// Whether the broker refused a whole batch for what one record in it may have done. librdkafka fails every record of the batch, so that
/// one has to be sent alone before it is known to be at fault.
pub(super) fn is_of_batch(code: Code) -> bool {
    let Failure { kind, reason, .. } = of_record(code, Status::NotPersisted, String::new());
    kind == FailureKind::Refused && matches!(reason, Reason::TooLarge | Reason::InvalidRecord)
}

/// Why a question, a commit or the reading of a partition failed.
pub(super) fn of_call(code: Code, words: &str) -> Error {
    let words = if words.is_empty() {
        code.to_string()
    } else {
        words.to_owned()
    };
    match code {
        Code::Fatal | Code::Fenced | Code::FencedInstanceId => Error::Fatal(words),
        _ if is_refusal(code) => Error::Refused(words),
        _ => Error::Unavailable(words),
    }
}

/// Whether a person must act before the same can succeed.
pub(super) fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::InvalidGroupId
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication
            | Code::OffsetMetadataTooLarge
            | Code::InconsistentGroupProtocol
            | Code::UnsupportedFeature
            | Code::UnsupportedVersion
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_table_has_its_kind_and_reason() {
        use FailureKind::{NotNow, Refused, Unknown};
        use Status::{NotPersisted, PossiblyPersisted};
        for (code, status, kind, reason) in [
            (
                Code::MessageSizeTooLarge,
                NotPersisted,
                Refused,
                Reason::TooLarge,
            ),
            (
                Code::MessageBatchTooLarge,
                NotPersisted,
                Refused,
                Reason::TooLarge,
            ),
            (
                Code::TopicAuthorizationFailed,
                NotPersisted,
                Refused,
                Reason::Unauthorized,
            ),
            (
                Code::ClusterAuthorizationFailed,
                NotPersisted,
                Refused,
                Reason::Unauthorized,
            ),
            (
                Code::InvalidRecord,
                NotPersisted,
                Refused,
                Reason::InvalidRecord,
            ),
            (
                Code::InvalidTimestamp,
                NotPersisted,
                Refused,
                Reason::InvalidRecord,
            ),
            (
                Code::PolicyViolation,
                NotPersisted,
                Refused,
                Reason::InvalidRecord,
            ),
            (
                Code::InvalidTopic,
                NotPersisted,
                Refused,
                Reason::InvalidTarget,
            ),
            (
                Code::UnknownTopic,
                NotPersisted,
                NotNow,
                Reason::UnknownTarget,
            ),
            (
                Code::UnknownTopicOrPartition,
                NotPersisted,
                NotNow,
                Reason::UnknownTarget,
            ),
            (
                Code::UnknownPartition,
                NotPersisted,
                NotNow,
                Reason::UnknownTarget,
            ),
            (
                Code::MessageTimedOut,
                NotPersisted,
                NotNow,
                Reason::TimedOut,
            ),
            (
                Code::MessageTimedOut,
                PossiblyPersisted,
                Unknown,
                Reason::TimedOut,
            ),
            (
                Code::OperationTimedOut,
                PossiblyPersisted,
                Unknown,
                Reason::TimedOut,
            ),
            (
                Code::NetworkException,
                PossiblyPersisted,
                Unknown,
                Reason::TimedOut,
            ),
            (Code::PurgeQueue, NotPersisted, NotNow, Reason::TimedOut),
            (
                Code::PurgeInflight,
                PossiblyPersisted,
                Unknown,
                Reason::TimedOut,
            ),
            (
                Code::OutOfOrderSequenceNumber,
                PossiblyPersisted,
                Unknown,
                Reason::TimedOut,
            ),
        ] {
            let failure = of_record(code, status, String::new());
            assert_eq!(
                (failure.kind, failure.reason),
                (kind, reason),
                "{code:?} {status:?}"
            );
            assert!(!failure.detail.is_empty());
        }
        assert_eq!(
            of_record(Code::InvalidRecord, NotPersisted, "no key".into()).detail,
            "no key"
        );
    }

    #[test]
    fn a_record_is_not_diverted_for_what_its_client_suffers() {
        let after = |code, status, trouble: Option<&str>| {
            in_trouble(
                of_record(code, status, String::new()),
                trouble.map(str::to_owned),
            )
            .kind
        };
        for (code, status) in [
            (Code::MessageTimedOut, Status::NotPersisted),
            (Code::PurgeInflight, Status::PossiblyPersisted),
        ] {
            assert_ne!(after(code, status, None), FailureKind::Closed);
            assert_eq!(
                after(code, status, Some("no broker answers")),
                FailureKind::Closed
            );
        }
        assert_eq!(
            after(
                Code::MessageSizeTooLarge,
                Status::NotPersisted,
                Some("it failed")
            ),
            FailureKind::Refused
        );
        assert_eq!(
            after(Code::UnknownTopic, Status::NotPersisted, Some("it failed")),
            FailureKind::NotNow
        );
    }

    #[test]
    fn only_what_a_neighbour_may_have_caused_is_tried_alone() {
        assert!(
            is_of_batch(Code::MessageSizeTooLarge) && is_of_batch(Code::InvalidDifferentRecord)
        );
        assert!(
            !is_of_batch(Code::TopicAuthorizationFailed)
                && !is_of_batch(Code::UnknownTopic)
                && !is_of_batch(Code::MessageTimedOut)
        );
    }

    #[test]
    fn a_person_is_asked_only_where_one_can_help() {
        assert!(
            matches!(of_call(Code::GroupAuthorizationFailed, "JoinGroup failed"), Error::Refused(words) if words == "JoinGroup failed")
        );
        assert!(matches!(
            of_call(Code::CoordinatorNotAvailable, ""),
            Error::Unavailable(_)
        ));
        assert!(matches!(of_call(Code::Fatal, ""), Error::Fatal(_)));
    }
}
