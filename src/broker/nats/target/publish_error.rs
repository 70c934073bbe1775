//! Maps the server's replies to a published record to delivery failures. No I/O happens here.

use crate::broker::{DeliveryFailure, FailureKind};
use crate::model::Reason;

/// The reply of a stream.
#[derive(serde::Deserialize)]
struct AckBody {
    stream: Option<String>,
    seq: Option<u64>,
    error: Option<ApiError>,
}

#[derive(serde::Deserialize)]
struct ApiError {
    code: u16,
    err_code: Option<u64>,
    #[serde(default)]
    description: String,
}

/// The stream sequence of a published record, or why the stream did not take it. `None`: the reply
/// is not from a stream. Another program listens on the subject; the stream may still reply.
///
/// | reply | kind | reason |
/// |---|---|---|
/// | JetStream is not enabled, or not for this account (10035, 10039) | `NotDelivered` | `unknown_target` |
/// | the stream is at its limit of messages or bytes, or the server has no space (10023, 10047, 10077) | `NotDelivered` | `target_full` |
/// | the account is at its limit of storage or memory (10002, 10028, 10120) | `NotDelivered` | `target_full` |
/// | the message is larger than the stream allows (10054), or its headers exceed 65,535 bytes (10097) | `Rejected` | `too_large` |
/// | too many requests, or no leader (429, 10008, 10167) | `NotDelivered` | `timed_out` |
/// | any other 4xx | `Rejected` | `invalid_record` |
/// | any other error | `NotDelivered` | `timed_out` |
pub(super) fn parse_ack(payload: &[u8]) -> Option<Result<u64, DeliveryFailure>> {
    if let Some(sequence) = parse_plain_ack(payload) {
        return Some(Ok(sequence));
    }
    let body = serde_json::from_slice::<AckBody>(payload).ok()?;
    if let Some(error) = body.error {
        return Some(Err(error.into_failure()));
    }
    match (body.stream, body.seq) {
        (Some(_), Some(sequence)) => Some(Ok(sequence)),
        _ => None,
    }
}

impl ApiError {
    fn into_failure(self) -> DeliveryFailure {
        let err_code = self.err_code.unwrap_or_default();
        let (kind, reason) = match (self.code, err_code) {
            (_, 10_035 | 10_039) => (FailureKind::NotDelivered, Reason::UnknownTarget),
            (_, 10_002 | 10_023 | 10_028 | 10_047 | 10_077 | 10_120) => {
                (FailureKind::NotDelivered, Reason::TargetFull)
            }
            (_, 10_054 | 10_097) => (FailureKind::Rejected, Reason::TooLarge),
            (429, _) | (_, 10_008 | 10_167) => (FailureKind::NotDelivered, Reason::TimedOut),
            (400..=499, _) => (FailureKind::Rejected, Reason::InvalidRecord),
            _ => (FailureKind::NotDelivered, Reason::TimedOut),
        };
        DeliveryFailure {
            kind,
            reason,
            detail: format!("{} ({err_code})", self.description),
        }
    }
}

/// Reads the usual acknowledgement, `{"stream":"S","seq":7}`, without a JSON parser. `None` for any
/// other reply. With [`COMMON_NAMES`](crate::broker::nats::header), it saves about 0.5 of 5 us per
/// message in a drain.
fn parse_plain_ack(payload: &[u8]) -> Option<u64> {
    let (stream, rest) = std::str::from_utf8(payload)
        .ok()?
        .strip_prefix(r#"{"stream":""#)?
        .split_once('"')?;
    let sequence = rest.strip_prefix(r#","seq":"#)?.strip_suffix('}')?;
    let is_plain = !stream.contains('\\')
        && !sequence.is_empty()
        && sequence.bytes().all(|byte| byte.is_ascii_digit());
    sequence.parse().ok().filter(|_| is_plain)
}

/// Returns false if the reply to a stream lookup names no stream. An error reply counts as unknown.
pub(super) fn may_have_stream(reply: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct StreamNames {
        total: u64,
        error: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_slice(reply).map_or(true, |StreamNames { total, error }| {
        total > 0 || error.is_some()
    })
}

/// No program listens on the subject.
pub(super) fn no_stream(subject: &str) -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::NotDelivered,
        reason: Reason::UnknownTarget,
        detail: format!("no stream takes the subject {subject}"),
    }
}

/// Only a program that is not a stream replied.
pub(super) fn not_a_stream() -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::NotDelivered,
        reason: Reason::UnknownTarget,
        detail: "what answers is not a stream".to_owned(),
    }
}

/// The record was published, and the stream did not acknowledge it in time.
pub(super) fn not_acknowledged() -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::MaybeDelivered,
        reason: Reason::TimedOut,
        detail: "the stream does not confirm it".to_owned(),
    }
}

pub(super) fn too_large(length: usize, max: usize) -> DeliveryFailure {
    rejected(
        Reason::TooLarge,
        format!("headers and payload have {length} bytes; the server takes {max} (max_payload)"),
    )
}

pub(super) fn rejected(reason: Reason, detail: String) -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::Rejected,
        reason,
        detail,
    }
}

pub(super) fn closed() -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::ClientFailed,
        reason: Reason::TimedOut,
        detail: "the client is closed".to_owned(),
    }
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
            (error(503, 10_039), NotDelivered, Reason::UnknownTarget),
            (error(503, 10_077), NotDelivered, Reason::TargetFull),
            (error(503, 10_047), NotDelivered, Reason::TargetFull),
            (error(400, 10_002), NotDelivered, Reason::TargetFull),
            (error(500, 10_028), NotDelivered, Reason::TargetFull),
            (error(400, 10_120), NotDelivered, Reason::TargetFull),
            (error(400, 10_054), Rejected, Reason::TooLarge),
            (error(400, 10_097), Rejected, Reason::TooLarge),
            (error(429, 10_167), NotDelivered, Reason::TimedOut),
            (error(503, 10_008), NotDelivered, Reason::TimedOut),
            (error(400, 10_071), Rejected, Reason::InvalidRecord),
            (error(500, 1), NotDelivered, Reason::TimedOut),
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
