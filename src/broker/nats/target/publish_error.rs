//! Maps the server's replies to a published record to delivery failures. No I/O happens here.

use crate::broker::{DeliveryFailure, FailureKind};
use crate::model::DeadLetterReason;
use serde::de::IgnoredAny;

/// The stream sequence of a published record, or why the stream did not take it. `None`: the reply
/// is not from a stream. Another program listens on the subject; the stream may still reply.
pub(super) fn parse_ack(payload: &[u8]) -> Option<Result<u64, DeliveryFailure>> {
    #[derive(serde::Deserialize)]
    struct Ack {
        stream: Option<IgnoredAny>,
        seq: Option<u64>,
        error: Option<ApiError>,
    }
    let ack = serde_json::from_slice::<Ack>(payload).ok()?;
    match ack.error {
        Some(error) => Some(Err(error.into_failure())),
        None => ack.stream.and(ack.seq).map(Ok),
    }
}

#[derive(serde::Deserialize)]
struct ApiError {
    code: u16,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl ApiError {
    fn into_failure(self) -> DeliveryFailure {
        use DeadLetterReason as Reason;
        use FailureKind::{NotDelivered, Rejected};
        let (kind, reason) = match (self.code, self.err_code) {
            // JetStream is not enabled, or not for this account.
            (_, 10_035 | 10_039) => (NotDelivered, Reason::UnknownTarget),
            // The stream is at its limit of messages or bytes, or the server has no space.
            (_, 10_023 | 10_047 | 10_077) => (NotDelivered, Reason::TargetFull),
            // The account is at its limit of storage or memory.
            (_, 10_002 | 10_028 | 10_120) => (NotDelivered, Reason::TargetFull),
            // The message is larger than the stream allows, or its headers exceed 65,535 bytes.
            (_, 10_054 | 10_097) => (Rejected, Reason::TooLarge),
            // Too many requests, or no leader.
            (429, _) | (_, 10_008 | 10_167) => (NotDelivered, Reason::TimedOut),
            (400..=499, _) => (Rejected, Reason::InvalidRecord),
            _ => (NotDelivered, Reason::TimedOut),
        };
        DeliveryFailure::new(
            kind,
            reason,
            format!("{} ({})", self.description, self.err_code),
        )
    }
}

/// Returns false if the reply to a stream lookup names no stream. An error reply counts as unknown.
pub(super) fn may_have_stream(reply: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct StreamNames {
        total: u64,
        error: Option<IgnoredAny>,
    }
    serde_json::from_slice::<StreamNames>(reply)
        .map_or(true, |names| names.total > 0 || names.error.is_some())
}

/// The subject in the server's error text about a publish that is not allowed.
pub(super) fn denied_subject(text: &str) -> Option<&str> {
    let (_, after) = text
        .split_once("ermissions violation for publish to \"")
        .or_else(|| text.split_once("ermissions Violation for Publish to \""))?;
    after.split_once('"').map(|(subject, _)| subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_code_maps_to_its_kind_and_reason() {
        use FailureKind::{NotDelivered, Rejected};
        let error = |code: u16, err_code: u64| {
            format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"d"}},"stream":"S","seq":0}}"#
            )
        };
        for (reply, kind, reason) in [
            (
                error(503, 10_039),
                NotDelivered,
                DeadLetterReason::UnknownTarget,
            ),
            (
                error(503, 10_077),
                NotDelivered,
                DeadLetterReason::TargetFull,
            ),
            (
                error(503, 10_047),
                NotDelivered,
                DeadLetterReason::TargetFull,
            ),
            (
                error(400, 10_002),
                NotDelivered,
                DeadLetterReason::TargetFull,
            ),
            (
                error(500, 10_028),
                NotDelivered,
                DeadLetterReason::TargetFull,
            ),
            (
                error(400, 10_120),
                NotDelivered,
                DeadLetterReason::TargetFull,
            ),
            (error(400, 10_054), Rejected, DeadLetterReason::TooLarge),
            (error(400, 10_097), Rejected, DeadLetterReason::TooLarge),
            (error(429, 10_167), NotDelivered, DeadLetterReason::TimedOut),
            (error(503, 10_008), NotDelivered, DeadLetterReason::TimedOut),
            (
                error(400, 10_071),
                Rejected,
                DeadLetterReason::InvalidRecord,
            ),
            (error(500, 1), NotDelivered, DeadLetterReason::TimedOut),
        ] {
            let failure = parse_ack(reply.as_bytes()).unwrap().unwrap_err();
            assert_eq!((failure.kind, failure.reason), (kind, reason), "{reply}");
        }
    }

    #[test]
    fn an_acknowledgement_gives_the_sequence() {
        for reply in [
            r#"{"stream":"S","seq":7}"#,
            r#"{"stream":"S", "seq": 7}"#,
            r#"{"stream":"S\"","seq":7}"#,
            r#"{"stream":"S","seq":7,"duplicate":true}"#,
            r#"{"stream":"S","domain":"hub","seq":7}"#,
        ] {
            assert_eq!(parse_ack(reply.as_bytes()), Some(Ok(7)), "{reply}");
        }
    }

    #[test]
    fn any_other_reply_is_not_from_a_stream() {
        for reply in ["", "hello", "{}", r#"{"seq":7}"#, r#"{"error":"no"}"#] {
            assert_eq!(parse_ack(reply.as_bytes()), None, "{reply}");
        }
    }

    #[test]
    fn the_denied_subject_is_read_from_the_error_text() {
        let text = "Permissions Violation for Publish to \"orders.eu\"";
        assert_eq!(denied_subject(text), Some("orders.eu"));
        assert_eq!(denied_subject(&text.to_lowercase()), Some("orders.eu"));
        assert_eq!(
            denied_subject("Permissions Violation for Subscription to \"x\""),
            None
        );
    }
}
