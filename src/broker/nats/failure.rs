//! What the server's answers to a publish mean to the port's callers. Pure tables.

use crate::broker::{DeliveryFailure, FailureKind};
use crate::model::Reason;

/// An answer to a publish.
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

/// The sequence that a publish was given, or why it was not taken.
///
/// | the server says | kind | reason |
/// |---|---|---|
/// | nobody answers on the subject (503) | not now | `unknown_target` |
/// | JetStream is not there, or not for this account (10035, 10039) | not now | `unknown_target` |
/// | the stream has all the messages or bytes it may have, or the server has no room (10023, 10047, 10077) | not now | `target_full` |
/// | the account has all the bytes or memory it may have, or none for such streams (10002, 10028, 10120) | not now | `target_full` |
/// | larger than the stream takes (10054), or headers of more than 65,535 bytes (10097) | refused | `too_large` |
/// | too much at once, or no leader (429, 10008, 10167) | not now | `timed_out` |
/// | anything else of 4xx | refused | `invalid_record` |
/// | anything else | not now | `timed_out` |
///
/// `None`: it is no stream that answers, but some other program that listens on the subject; a stream may answer yet.
pub(super) fn parse_ack(payload: &[u8]) -> Option<Result<u64, DeliveryFailure>> {
    if let Some(sequence) = parse_plain_ack(payload) {
        return Some(Ok(sequence));
    }
    match serde_json::from_slice::<AckBody>(payload) {
        Ok(AckBody {
            stream: Some(_),
            seq: Some(sequence),
            error: None,
        }) => Some(Ok(sequence)),
        Ok(AckBody {
            error:
                Some(ApiError {
                    code,
                    err_code,
                    description,
                }),
            ..
        }) => {
            let err_code = err_code.unwrap_or_default();
            let (kind, reason) = match (code, err_code) {
                (_, 10_035 | 10_039) => (FailureKind::NotDelivered, Reason::UnknownTarget),
                (_, 10_002 | 10_023 | 10_028 | 10_047 | 10_077 | 10_120) => {
                    (FailureKind::NotDelivered, Reason::TargetFull)
                }
                (_, 10_054 | 10_097) => (FailureKind::Rejected, Reason::TooLarge),
                (429, _) | (_, 10_008 | 10_167) => (FailureKind::NotDelivered, Reason::TimedOut),
                (400..=499, _) => (FailureKind::Rejected, Reason::InvalidRecord),
                _ => (FailureKind::NotDelivered, Reason::TimedOut),
            };
            Some(Err(DeliveryFailure {
                kind,
                reason,
                detail: format!("{description} ({err_code})"),
            }))
        }
        _ => None,
    }
}

/// Only some other program answers.
pub(super) fn not_a_stream() -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::NotDelivered,
        reason: Reason::UnknownTarget,
        detail: "what answers is not a stream".to_owned(),
    }
}

/// The sequence in the answer that a stream of a server without a domain gives when it has stored a message: nearly all answers, letter by
/// letter. Whatever differs is read as JSON.
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

/// Whether some stream takes a subject, by the answer to that question; an answer that is none says nothing against it.
pub(super) fn may_have_stream(answer: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Names {
        total: u64,
        error: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_slice(answer)
        .map_or(true, |Names { total, error }| total > 0 || error.is_some())
}

/// Nobody listens on the subject.
pub(super) fn no_stream(subject: &str) -> DeliveryFailure {
    let detail = format!("no stream takes the subject {subject}");
    DeliveryFailure {
        kind: FailureKind::NotDelivered,
        reason: Reason::UnknownTarget,
        detail,
    }
}

pub(super) fn refused(reason: Reason, detail: String) -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::Rejected,
        reason,
        detail,
    }
}

/// Sent, and never answered.
pub(super) fn not_confirmed() -> DeliveryFailure {
    let detail = "the stream does not confirm it".to_owned();
    DeliveryFailure {
        kind: FailureKind::MaybeDelivered,
        reason: Reason::TimedOut,
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

/// The subject that the server's words deny publishing to.
pub(super) fn denied_subject(words: &str) -> Option<&str> {
    let (_, after) = words
        .split_once("ermissions violation for publish to \"")
        .or_else(|| words.split_once("ermissions Violation for Publish to \""))?;
    after.split_once('"').map(|(subject, _)| subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_of_the_table_has_its_kind_and_reason() {
        use FailureKind::{NotDelivered, Rejected};
        let error = |code: u16, err_code: u64| {
            format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"d"}},"stream":"S","seq":0}}"#
            )
        };
        for (answer, kind, reason) in [
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
            let failure = parse_ack(answer.as_bytes()).unwrap().unwrap_err();
            assert_eq!((failure.kind, failure.reason), (kind, reason), "{answer}");
        }
        for answer in [
            r#"{"stream":"S","seq":7}"#,
            r#"{"stream":"S", "seq": 7}"#,
            r#"{"stream":"S\"","seq":7}"#,
            r#"{"stream":"S","seq":7,"duplicate":true}"#,
            r#"{"stream":"S","domain":"hub","seq":7}"#,
        ] {
            assert_eq!(parse_ack(answer.as_bytes()), Some(Ok(7)), "{answer}");
        }
        for answer in ["", "hello", "{}", r#"{"seq":7}"#, r#"{"error":"no"}"#] {
            assert_eq!(parse_ack(answer.as_bytes()), None, "{answer}");
        }
    }

    #[test]
    fn a_denied_subject_is_found_in_the_servers_words() {
        let words = "Permissions Violation for Publish to \"orders.eu\"";
        assert_eq!(denied_subject(words), Some("orders.eu"));
        assert_eq!(denied_subject(&words.to_lowercase()), Some("orders.eu"));
        assert_eq!(
            denied_subject("Permissions Violation for Subscription to \"x\""),
            None
        );
    }
}
