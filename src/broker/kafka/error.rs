//! Maps librdkafka's results to the results of the ports.

use super::ffi::{Delivery, PersistStatus};
use crate::broker::{DeliveryFailure, DeliveryReport, Error, FailureKind};
use crate::model::{Offset, Reason};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

/// The port's report of one delivery.
pub(super) fn delivery_report(
    delivery: &Delivery<'_>,
    outcome: Result<(), DeliveryFailure>,
) -> DeliveryReport {
    // If a resend finds the record already stored, the broker does not return its offset.
    let offset = u64::try_from(delivery.message.offset()).ok().map(Offset);
    let position = offset
        .filter(|_| outcome.is_ok())
        .map(|offset| (delivery.message.partition(), offset));
    DeliveryReport {
        ticket: delivery.ticket,
        position,
        outcome,
    }
}

/// Why a record was not delivered.
///
/// | librdkafka's error | kind | reason |
/// |---|---|---|
/// | Message or batch too large. | rejected | `too_large` |
/// | Access to topic or cluster denied. | rejected | `unauthorized` |
/// | Invalid record, size or timestamp, or against a policy. | rejected | `invalid_record` |
/// | Invalid topic name. | rejected | `invalid_target` |
/// | Unknown topic or partition. | not delivered | `unknown_target` |
/// | Any other, and the record never left the client. | not delivered | `timed_out` |
/// | Any other. | maybe delivered | `timed_out` |
///
/// The last two rows are timeouts: librdkafka retries every temporary error until
/// `message.timeout.ms` has passed. See [`or_client_failed`] for timeouts during an outage.
pub(super) fn delivery_failure(code: Code, status: PersistStatus, text: &str) -> DeliveryFailure {
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
        detail: text_or_code(code, text),
    }
}

/// The client failed or was closed. Another client may send the record.
pub(super) fn client_failed(detail: String) -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::ClientFailed,
        reason: Reason::TimedOut,
        detail,
    }
}

/// Turns a timeout into [`client_failed`] while the client cannot send anything (`trouble`). Then
/// the record is not at fault, and every other record is affected as well.
pub(super) fn or_client_failed(
    failure: DeliveryFailure,
    trouble: Option<String>,
) -> DeliveryFailure {
    match trouble {
        Some(trouble) if failure.reason == Reason::TimedOut => client_failed(trouble),
        _ => failure,
    }
}

/// Returns whether one record may have caused the broker to reject its whole batch. librdkafka then
/// fails every record of the batch, so each must be sent alone to find the one at fault.
pub(super) fn is_batch_rejection(code: Code) -> bool {
    let DeliveryFailure { kind, reason, .. } =
        delivery_failure(code, PersistStatus::NotPersisted, "");
    kind == FailureKind::Rejected && matches!(reason, Reason::TooLarge | Reason::InvalidRecord)
}

/// Why an admin request, a commit or reading a partition failed.
pub(super) fn call_error(code: Code, text: &str) -> Error {
    let text = text_or_code(code, text);
    match code {
        Code::Fatal | Code::Fenced | Code::FencedInstanceId => Error::Fatal(text),
        _ if needs_operator(code) => Error::Rejected(text),
        _ => Error::Unavailable(text),
    }
}

/// Returns whether the call fails until an operator changes something.
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

/// Why a client could not be created. Creating one needs no broker, so its options are at fault.
pub(super) fn client_creation_error(error: &KafkaError) -> Error {
    match error {
        KafkaError::ClientConfig(_, reason, name, value)
            if value.is_empty() || !reason.contains(value.as_str()) =>
        {
            Error::Rejected(format!("the property `{name}`: {reason}"))
        }
        // librdkafka's reason repeats the value, which may be a secret.
        KafkaError::ClientConfig(_, _, name, _) => {
            Error::Rejected(format!("the property `{name}` has an invalid value"))
        }
        KafkaError::ClientCreation(reason) => Error::Rejected(reason.clone()),
        other => Error::Rejected(other.to_string()),
    }
}

/// The broker's text, or the code's own text if there is none.
pub(super) fn text_or_code(code: Code, text: &str) -> String {
    if text.is_empty() {
        code.to_string()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureKind::{MaybeDelivered, NotDelivered, Rejected};
    use PersistStatus::{NotPersisted, PossiblyPersisted};

    const KINDS: [(Code, PersistStatus, FailureKind, Reason); 18] = [
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
    ];

    #[test]
    fn every_error_maps_to_its_kind_and_reason() {
        for (code, status, kind, reason) in KINDS {
            let failure = delivery_failure(code, status, "");
            assert_eq!(
                (failure.kind, failure.reason),
                (kind, reason),
                "{code:?} {status:?}"
            );
            assert!(!failure.detail.is_empty());
        }
        assert_eq!(
            delivery_failure(Code::InvalidRecord, NotPersisted, "no key").detail,
            "no key"
        );
    }

    #[test]
    fn a_timeout_during_client_trouble_does_not_blame_the_record() {
        let after = |code, status, trouble: Option<&str>| {
            or_client_failed(
                delivery_failure(code, status, ""),
                trouble.map(str::to_owned),
            )
            .kind
        };
        for (code, status) in [
            (Code::MessageTimedOut, NotPersisted),
            (Code::PurgeInflight, PossiblyPersisted),
        ] {
            assert_ne!(after(code, status, None), FailureKind::ClientFailed);
            assert_eq!(
                after(code, status, Some("no broker answers")),
                FailureKind::ClientFailed
            );
        }
        assert_eq!(
            after(Code::MessageSizeTooLarge, NotPersisted, Some("it failed")),
            Rejected
        );
        assert_eq!(
            after(Code::UnknownTopic, NotPersisted, Some("it failed")),
            NotDelivered
        );
    }

    #[test]
    fn only_errors_that_one_record_may_cause_are_batch_rejections() {
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
    fn only_errors_that_an_operator_can_fix_are_rejections() {
        let denied = call_error(Code::GroupAuthorizationFailed, "JoinGroup failed");
        assert!(matches!(denied, Error::Rejected(text) if text == "JoinGroup failed"));
        assert!(matches!(
            call_error(Code::CoordinatorNotAvailable, ""),
            Error::Unavailable(_)
        ));
        assert!(matches!(call_error(Code::Fatal, ""), Error::Fatal(_)));
    }
}
