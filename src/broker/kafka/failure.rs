//! What librdkafka's errors mean to the ports' callers. Pure tables.

use super::raw::PersistStatus;
use crate::broker::{DeliveryFailure, Error, FailureKind};
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
pub(super) fn delivery_failure(
    code: Code,
    status: PersistStatus,
    words: String,
) -> DeliveryFailure {
    let (kind, reason) = match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => {
            (FailureKind::Rejected, Reason::TooLarge)
        }
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            (FailureKind::Rejected, Reason::Unauthorized)
        }
        Code::InvalidRecord
        | Code::InvalidDifferentRecord
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::PolicyViolation => (FailureKind::Rejected, Reason::InvalidRecord),
        Code::InvalidTopic => (FailureKind::Rejected, Reason::InvalidTarget),
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
            (FailureKind::NotDelivered, Reason::UnknownTarget)
        }
        _ if status == PersistStatus::NotPersisted => (FailureKind::NotDelivered, Reason::TimedOut),
        _ => (FailureKind::MaybeDelivered, Reason::TimedOut),
    };
    DeliveryFailure {
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
pub(super) fn client_failed(detail: String) -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::ClientFailed,
        reason: Reason::TimedOut,
        detail,
    }
}

/// What is left of a failure where `trouble` keeps the client from sending anything: a record of which the broker has said nothing waits
/// for the end of that, like all others. It is no worse a record for it, and no other way is open either.
pub(super) fn or_client_failed(
    failure: DeliveryFailure,
    trouble: Option<String>,
) -> DeliveryFailure {
    match trouble {
        Some(trouble) if failure.reason == Reason::TimedOut => client_failed(trouble),
        _ => failure,
    }
}

/// Whether the broker refused a whole batch for what one record in it may have done. librdkafka fails every record of the batch, so that
/// one has to be sent alone before it is known to be at fault.
pub(super) fn is_batch_rejection(code: Code) -> bool {
    let DeliveryFailure { kind, reason, .. } =
        delivery_failure(code, PersistStatus::NotPersisted, String::new());
    kind == FailureKind::Rejected && matches!(reason, Reason::TooLarge | Reason::InvalidRecord)
}

/// Why a question, a commit or the reading of a partition failed.
pub(super) fn call_error(code: Code, words: &str) -> Error {
    let words = if words.is_empty() {
        code.to_string()
    } else {
        words.to_owned()
    };
    match code {
        Code::Fatal | Code::Fenced | Code::FencedInstanceId => Error::Fatal(words),
        _ if needs_operator(code) => Error::Rejected(words),
        _ => Error::Unavailable(words),
    }
}

/// Whether a person must act before the same can succeed.
pub(super) fn needs_operator(code: Code) -> bool {
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
        use FailureKind::{MaybeDelivered, NotDelivered, Rejected};
        use PersistStatus::{NotPersisted, PossiblyPersisted};
        for (code, status, kind, reason) in [
            (
                Code::MessageSizeTooLarge,
                NotPersisted,
                Rejected,
                Reason::TooLarge,
            ),
            (
                Code::MessageBatchTooLarge,
                NotPersisted,
                Rejected,
                Reason::TooLarge,
            ),
            (
                Code::TopicAuthorizationFailed,
                NotPersisted,
                Rejected,
                Reason::Unauthorized,
            ),
            (
                Code::ClusterAuthorizationFailed,
                NotPersisted,
                Rejected,
                Reason::Unauthorized,
            ),
            (
                Code::InvalidRecord,
                NotPersisted,
                Rejected,
                Reason::InvalidRecord,
            ),
            (
                Code::InvalidTimestamp,
                NotPersisted,
                Rejected,
                Reason::InvalidRecord,
            ),
            (
                Code::PolicyViolation,
                NotPersisted,
                Rejected,
                Reason::InvalidRecord,
            ),
            (
                Code::InvalidTopic,
                NotPersisted,
                Rejected,
                Reason::InvalidTarget,
            ),
            (
                Code::UnknownTopic,
                NotPersisted,
                NotDelivered,
                Reason::UnknownTarget,
            ),
            (
                Code::UnknownTopicOrPartition,
                NotPersisted,
                NotDelivered,
                Reason::UnknownTarget,
            ),
            (
                Code::UnknownPartition,
                NotPersisted,
                NotDelivered,
                Reason::UnknownTarget,
            ),
            (
                Code::MessageTimedOut,
                NotPersisted,
                NotDelivered,
                Reason::TimedOut,
            ),
            (
                Code::MessageTimedOut,
                PossiblyPersisted,
                MaybeDelivered,
                Reason::TimedOut,
            ),
            (
                Code::OperationTimedOut,
                PossiblyPersisted,
                MaybeDelivered,
                Reason::TimedOut,
            ),
            (
                Code::NetworkException,
                PossiblyPersisted,
                MaybeDelivered,
                Reason::TimedOut,
            ),
            (
                Code::PurgeQueue,
                NotPersisted,
                NotDelivered,
                Reason::TimedOut,
            ),
            (
                Code::PurgeInflight,
                PossiblyPersisted,
                MaybeDelivered,
                Reason::TimedOut,
            ),
            (
                Code::OutOfOrderSequenceNumber,
                PossiblyPersisted,
                MaybeDelivered,
                Reason::TimedOut,
            ),
        ] {
            let failure = delivery_failure(code, status, String::new());
            assert_eq!(
                (failure.kind, failure.reason),
                (kind, reason),
                "{code:?} {status:?}"
            );
            assert!(!failure.detail.is_empty());
        }
        assert_eq!(
            delivery_failure(Code::InvalidRecord, NotPersisted, "no key".into()).detail,
            "no key"
        );
    }

    #[test]
    fn a_record_is_not_diverted_for_what_its_client_suffers() {
        let after = |code, status, trouble: Option<&str>| {
            or_client_failed(
                delivery_failure(code, status, String::new()),
                trouble.map(str::to_owned),
            )
            .kind
        };
        for (code, status) in [
            (Code::MessageTimedOut, PersistStatus::NotPersisted),
            (Code::PurgeInflight, PersistStatus::PossiblyPersisted),
        ] {
            assert_ne!(after(code, status, None), FailureKind::ClientFailed);
            assert_eq!(
                after(code, status, Some("no broker answers")),
                FailureKind::ClientFailed
            );
        }
        assert_eq!(
            after(
                Code::MessageSizeTooLarge,
                PersistStatus::NotPersisted,
                Some("it failed")
            ),
            FailureKind::Rejected
        );
        assert_eq!(
            after(
                Code::UnknownTopic,
                PersistStatus::NotPersisted,
                Some("it failed")
            ),
            FailureKind::NotDelivered
        );
    }

    #[test]
    fn only_what_a_neighbour_may_have_caused_is_tried_alone() {
        assert!(
            is_batch_rejection(Code::MessageSizeTooLarge)
                && is_batch_rejection(Code::InvalidDifferentRecord)
        );
        assert!(
            !is_batch_rejection(Code::TopicAuthorizationFailed)
                && !is_batch_rejection(Code::UnknownTopic)
                && !is_batch_rejection(Code::MessageTimedOut)
        );
    }

    #[test]
    fn a_person_is_asked_only_where_one_can_help() {
        assert!(
            matches!(call_error(Code::GroupAuthorizationFailed, "JoinGroup failed"), Error::Rejected(words) if words == "JoinGroup failed")
        );
        assert!(matches!(
            call_error(Code::CoordinatorNotAvailable, ""),
            Error::Unavailable(_)
        ));
        assert!(matches!(call_error(Code::Fatal, ""), Error::Fatal(_)));
    }
}
