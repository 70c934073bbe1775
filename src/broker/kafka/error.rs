//! Maps librdkafka's results to the results of the ports.

use super::ffi::{CallError, Delivery};
use crate::broker::{DeliveryFailure, DeliveryReport, Error, FailureKind, SendResult};
use crate::model::{DeadLetterReason, Offset};
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

/// Why a record was not delivered. `may_be_stored`: a broker may have stored it.
///
/// The last two cases are timeouts: librdkafka retries every temporary error until
/// `message.timeout.ms` has passed. See [`or_client_failed`] for timeouts during an outage.
pub(super) fn delivery_failure(code: Code, may_be_stored: bool, text: &str) -> DeliveryFailure {
    use DeadLetterReason as Reason;
    use FailureKind::{MaybeDelivered, NotDelivered, Rejected};
    let (kind, reason) = match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => (Rejected, Reason::TooLarge),
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            (Rejected, Reason::Unauthorized)
        }
        Code::InvalidRecord
        | Code::InvalidDifferentRecord
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::PolicyViolation => (Rejected, Reason::InvalidRecord),
        Code::InvalidTopic => (Rejected, Reason::InvalidTarget),
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
            (NotDelivered, Reason::UnknownTarget)
        }
        _ if may_be_stored => (MaybeDelivered, Reason::TimedOut),
        _ => (NotDelivered, Reason::TimedOut),
    };
    DeliveryFailure {
        kind,
        reason,
        detail: text_or_code(code, text),
    }
}

/// The result of a send that the client refused. `in_flight`: records without a report.
/// `client_trouble`: why the client cannot send now, if it cannot.
pub(super) fn refused_send(
    code: Code,
    topic: &str,
    in_flight: usize,
    client_trouble: impl FnOnce() -> Option<String>,
) -> SendResult {
    let failure = match code {
        Code::QueueFull if in_flight > 0 => return SendResult::QueueFull,
        // The empty queue is too small for the record.
        Code::QueueFull => delivery_failure(Code::MessageSizeTooLarge, false, ""),
        Code::InvalidTopic => delivery_failure(code, false, &invalid_topic_name(topic)),
        _ => delivery_failure(code, false, ""),
    };
    SendResult::Failed(or_client_failed(failure, client_trouble()))
}

/// The client failed or was closed. Another client may send the record.
pub(super) fn client_failed(detail: String) -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::ClientFailed,
        reason: DeadLetterReason::TimedOut,
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
        Some(trouble) if failure.reason == DeadLetterReason::TimedOut => client_failed(trouble),
        _ => failure,
    }
}

/// Returns whether one record may have caused the broker to reject its whole batch. librdkafka then
/// fails every record of the batch, so each must be sent alone to find the one at fault.
pub(super) fn is_batch_rejection(code: Code) -> bool {
    let DeliveryFailure { kind, reason, .. } = delivery_failure(code, false, "");
    kind == FailureKind::Rejected
        && matches!(
            reason,
            DeadLetterReason::TooLarge | DeadLetterReason::InvalidRecord
        )
}

/// Why an admin request, a commit or reading a partition failed.
pub(super) fn call_error((code, text): CallError) -> Error {
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
fn text_or_code(code: Code, text: &str) -> String {
    if text.is_empty() {
        code.to_string()
    } else {
        text.to_owned()
    }
}

/// The error text for an invalid name.
pub(super) fn invalid_topic_name(name: &str) -> String {
    format!(
        "`{}` is not a valid topic name: use 1-249 of A-Z a-z 0-9 . _ -, and neither . nor ..",
        name.escape_debug()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureKind::{MaybeDelivered, NotDelivered, Rejected};

    const NOT_STORED: bool = false;
    const MAY_BE_STORED: bool = true;

    const KINDS: [(Code, bool, FailureKind, DeadLetterReason); 18] = [
        (
            Code::MessageSizeTooLarge,
            NOT_STORED,
            Rejected,
            DeadLetterReason::TooLarge,
        ),
        (
            Code::MessageBatchTooLarge,
            NOT_STORED,
            Rejected,
            DeadLetterReason::TooLarge,
        ),
        (
            Code::TopicAuthorizationFailed,
            NOT_STORED,
            Rejected,
            DeadLetterReason::Unauthorized,
        ),
        (
            Code::ClusterAuthorizationFailed,
            NOT_STORED,
            Rejected,
            DeadLetterReason::Unauthorized,
        ),
        (
            Code::InvalidRecord,
            NOT_STORED,
            Rejected,
            DeadLetterReason::InvalidRecord,
        ),
        (
            Code::InvalidTimestamp,
            NOT_STORED,
            Rejected,
            DeadLetterReason::InvalidRecord,
        ),
        (
            Code::PolicyViolation,
            NOT_STORED,
            Rejected,
            DeadLetterReason::InvalidRecord,
        ),
        (
            Code::InvalidTopic,
            NOT_STORED,
            Rejected,
            DeadLetterReason::InvalidTarget,
        ),
        (
            Code::UnknownTopic,
            NOT_STORED,
            NotDelivered,
            DeadLetterReason::UnknownTarget,
        ),
        (
            Code::UnknownTopicOrPartition,
            NOT_STORED,
            NotDelivered,
            DeadLetterReason::UnknownTarget,
        ),
        (
            Code::UnknownPartition,
            NOT_STORED,
            NotDelivered,
            DeadLetterReason::UnknownTarget,
        ),
        (
            Code::MessageTimedOut,
            NOT_STORED,
            NotDelivered,
            DeadLetterReason::TimedOut,
        ),
        (
            Code::MessageTimedOut,
            MAY_BE_STORED,
            MaybeDelivered,
            DeadLetterReason::TimedOut,
        ),
        (
            Code::OperationTimedOut,
            MAY_BE_STORED,
            MaybeDelivered,
            DeadLetterReason::TimedOut,
        ),
        (
            Code::NetworkException,
            MAY_BE_STORED,
            MaybeDelivered,
            DeadLetterReason::TimedOut,
        ),
        (
            Code::PurgeQueue,
            NOT_STORED,
            NotDelivered,
            DeadLetterReason::TimedOut,
        ),
        (
            Code::PurgeInflight,
            MAY_BE_STORED,
            MaybeDelivered,
            DeadLetterReason::TimedOut,
        ),
        (
            Code::OutOfOrderSequenceNumber,
            MAY_BE_STORED,
            MaybeDelivered,
            DeadLetterReason::TimedOut,
        ),
    ];

    #[test]
    fn every_error_maps_to_its_kind_and_reason() {
        for (code, may_be_stored, kind, reason) in KINDS {
            let failure = delivery_failure(code, may_be_stored, "");
            assert_eq!(
                (failure.kind, failure.reason),
                (kind, reason),
                "{code:?} {may_be_stored}"
            );
            assert!(!failure.detail.is_empty());
        }
        assert_eq!(
            delivery_failure(Code::InvalidRecord, NOT_STORED, "no key").detail,
            "no key"
        );
    }

    #[test]
    fn a_timeout_during_client_trouble_does_not_blame_the_record() {
        let after = |code, may_be_stored, trouble: Option<&str>| {
            or_client_failed(
                delivery_failure(code, may_be_stored, ""),
                trouble.map(str::to_owned),
            )
            .kind
        };
        for (code, may_be_stored) in [
            (Code::MessageTimedOut, NOT_STORED),
            (Code::PurgeInflight, MAY_BE_STORED),
        ] {
            assert_ne!(after(code, may_be_stored, None), FailureKind::ClientFailed);
            assert_eq!(
                after(code, may_be_stored, Some("no broker answers")),
                FailureKind::ClientFailed
            );
        }
        assert_eq!(
            after(Code::MessageSizeTooLarge, NOT_STORED, Some("it failed")),
            Rejected
        );
        assert_eq!(
            after(Code::UnknownTopic, NOT_STORED, Some("it failed")),
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
        let denied = call_error((
            Code::GroupAuthorizationFailed,
            "JoinGroup failed".to_owned(),
        ));
        assert!(matches!(denied, Error::Rejected(text) if text == "JoinGroup failed"));
        assert!(matches!(
            call_error((Code::CoordinatorNotAvailable, String::new())),
            Error::Unavailable(_)
        ));
        assert!(matches!(
            call_error((Code::Fatal, String::new())),
            Error::Fatal(_)
        ));
    }
}
