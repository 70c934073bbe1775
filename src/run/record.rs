//! The bytes of one message's body in a run, called its record. They are read as a view.
//!
//! The place of the message is not part of its body: it is in the columns of the run.
//!
//! | bytes | what | present if |
//! |---|---|---|
//! | 1 | flags | always |
//! | varint, .. | length and bytes of the key | not `NULL_KEY` |
//! | varint, .. | length and block of the headers (see `model::header`) | always |
//! | varint, .. | length and bytes of the payload | not `NULL_PAYLOAD` |
//! | varint, .. | length and text of the id | `HAS_ID` |
//! | varint, .. | length and text of the target | `HAS_TARGET` |
//! | varint | time after which it is not delivered, as an instant | `HAS_UNTIL` |
//! | 1 | code of the source record's dialect (see `model::dialect`) | `HAS_DIALECT` |
//! | 1, .. | disposition and its fields | `HAS_DISPOSITION`; otherwise delivered as usual |
//!
//! | disposition | fields |
//! |---|---|
//! | 1 relay | timestamp |
//! | 2 dead letter | reason's code, detail |
//! | 3 retry | attempt, origin, due, error's code; an empty code is absent |
//! | 4 answer | kind of the request and its field (1: schedule, due; 2: cancel; 3: refused, code; 4: reschedule, due; 5: schedule that keeps the first message, due), request id, id; an empty text is absent |
//! | 5 retried answer | as retry |
//! | 6 occurrence | schedule, planned time, 1 and the next planned time, or 0; never stored |
//!
//! Texts are UTF-8, preceded by their length. Numbers and lengths are LEB128 varints; instants are
//! zig-zag encoded first. A record ends with its last field. Other dialects and dispositions
//! belong to a newer version: such a record is malformed for this version.

use crate::model::header::push_varint;
use crate::model::{
    AnswerState, Body, DeadLetterReason, Dialect, Disposition, Headers, Request, RetryState,
    ScheduleState, Timestamp, readable_level,
};
use integer_encoding::VarInt;

const NULL_KEY: u8 = 1;
const NULL_PAYLOAD: u8 = 1 << 1;
pub(super) const HAS_ID: u8 = 1 << 2;
const HAS_TARGET: u8 = 1 << 3;
pub(super) const HAS_DISPOSITION: u8 = 1 << 4;
const HAS_DIALECT: u8 = 1 << 5;
/// The record is the answer to a request. Like every disposition, it is also `HAS_DISPOSITION`.
pub(super) const IS_ANSWER: u8 = 1 << 6;
pub(super) const HAS_UNTIL: u8 = 1 << 7;
/// The flags that level 0 does not know.
const OF_LEVEL_1: u8 = IS_ANSWER | HAS_UNTIL;

const RELAY: u8 = 1;
const DEAD_LETTER: u8 = 2;
const RETRY: u8 = 3;
const ANSWER: u8 = 4;
const RETRIED_ANSWER: u8 = 5;
const OCCURRENCE: u8 = 6;

const SCHEDULE: u8 = 1;
const CANCEL: u8 = 2;
const REFUSED: u8 = 3;
const RESCHEDULE: u8 = 4;
const SCHEDULE_FIRST: u8 = 5;

/// Appends `body` to `out`, without its length, which is in a column of the run.
pub(crate) fn encode(body: &Body<'_>, out: &mut Vec<u8>) {
    debug_assert!(
        body.headers.is_complete(),
        "an incomplete header block could not be read back"
    );
    out.push(flags(body));
    let parts = [
        body.key,
        Some(body.headers.as_block()),
        body.payload,
        body.id.map(str::as_bytes),
        body.target.map(str::as_bytes),
    ];
    for part in parts.into_iter().flatten() {
        push_bytes(out, part);
    }
    if let Some(until) = body.until {
        push_signed(out, until.as_millis());
    }
    out.extend(body.dialect.map(Dialect::code));
    push_disposition(out, &body.disposition);
}

/// Decodes a body. Returns `None` if it is malformed or of a newer version. Never panics.
pub(crate) fn decode(bytes: &[u8]) -> Option<Body<'_>> {
    let mut reader = RecordReader(bytes);
    let flags = reader.byte()?;
    if readable_level() < 1 && flags & OF_LEVEL_1 != 0 {
        return None;
    }
    let has = |flag: u8| flags & flag != 0;
    let body = Body {
        key: optional(!has(NULL_KEY), || reader.bytes())?,
        headers: Headers::from_block(reader.bytes()?),
        payload: optional(!has(NULL_PAYLOAD), || reader.bytes())?,
        id: optional(has(HAS_ID), || reader.text())?,
        target: optional(has(HAS_TARGET), || reader.text())?,
        until: optional(has(HAS_UNTIL), || reader.instant())?,
        dialect: optional(has(HAS_DIALECT), || Dialect::from_code(reader.byte()?))?,
        replaces: None,
        sent_from: None,
        disposition: optional(has(HAS_DISPOSITION), || reader.disposition())?.unwrap_or_default(),
    };
    let is_answer = matches!(body.disposition, Disposition::Answer(_));
    let is_complete = reader.0.is_empty() && body.headers.is_complete();
    (is_complete && is_answer == has(IS_ANSWER)).then_some(body)
}

/// Reads a field if it is present. The outer `None` means that it is malformed.
fn optional<T>(is_present: bool, read: impl FnOnce() -> Option<T>) -> Option<Option<T>> {
    if is_present {
        read().map(Some)
    } else {
        Some(None)
    }
}

/// The flags of an encoded body. Reading them is much cheaper than decoding. An empty record is
/// malformed, so it is not delivered as usual.
pub(super) fn flags_of(record: &[u8]) -> u8 {
    record.first().map_or(HAS_DISPOSITION, |flags| *flags)
}

fn flags(body: &Body<'_>) -> u8 {
    let present = [
        (body.key.is_none(), NULL_KEY),
        (body.payload.is_none(), NULL_PAYLOAD),
        (body.id.is_some(), HAS_ID),
        (body.target.is_some(), HAS_TARGET),
        (body.disposition != Disposition::Deliver, HAS_DISPOSITION),
        (body.dialect.is_some(), HAS_DIALECT),
        (body.until.is_some(), HAS_UNTIL),
        (
            matches!(body.disposition, Disposition::Answer(_)),
            IS_ANSWER,
        ),
    ];
    let set = present.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(0, |flags, (_, flag)| flags | flag)
}

fn push_disposition(out: &mut Vec<u8>, disposition: &Disposition<'_>) {
    match *disposition {
        Disposition::Deliver => {}
        Disposition::Relay { timestamp } => {
            out.push(RELAY);
            push_signed(out, timestamp.as_millis());
        }
        Disposition::DeadLetter { reason, detail } => {
            out.push(DEAD_LETTER);
            push_bytes(out, reason.code().as_bytes());
            push_bytes(out, detail.as_bytes());
        }
        Disposition::Retry(retry) => push_retry(out, RETRY, &retry),
        Disposition::RetriedAnswer(retry) => push_retry(out, RETRIED_ANSWER, &retry),
        Disposition::Answer(answer) => {
            out.push(ANSWER);
            match answer.request {
                Request::Schedule { due } => {
                    out.push(SCHEDULE);
                    push_signed(out, due.as_millis());
                }
                Request::ScheduleFirst { due } => {
                    out.push(SCHEDULE_FIRST);
                    push_signed(out, due.as_millis());
                }
                Request::Cancel => out.push(CANCEL),
                Request::Reschedule { due } => {
                    out.push(RESCHEDULE);
                    push_signed(out, due.as_millis());
                }
                Request::Refused(reason) => {
                    out.push(REFUSED);
                    push_bytes(out, reason.code().as_bytes());
                }
            }
            for text in [answer.request_id, answer.id] {
                push_bytes(out, text.unwrap_or_default().as_bytes());
            }
        }
        Disposition::Occurrence(ScheduleState {
            schedule,
            planned,
            next,
        }) => {
            out.push(OCCURRENCE);
            push_bytes(out, schedule.as_bytes());
            push_signed(out, planned.as_millis());
            out.push(next.is_some().into());
            if let Some(next) = next {
                push_signed(out, next.as_millis());
            }
        }
    }
}

fn push_retry(out: &mut Vec<u8>, code: u8, retry: &RetryState<'_>) {
    out.push(code);
    push_varint(out, u64::from(retry.attempt));
    push_bytes(out, retry.origin.as_bytes());
    push_signed(out, retry.due.as_millis());
    let error = retry.error.map_or("", DeadLetterReason::code);
    push_bytes(out, error.as_bytes());
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a zig-zag varint, which is short for numbers near zero of either sign.
pub(super) fn push_signed(out: &mut Vec<u8>, value: i64) {
    let mut bytes = [0; 10];
    let length = value.encode_var(&mut bytes);
    out.extend_from_slice(&bytes[..length]);
}

/// The unread part of a record.
struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn varint<V: VarInt>(&mut self) -> Option<V> {
        let (value, length) = V::decode_var(self.0)?;
        self.0 = self.0.get(length..)?;
        Some(value)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.varint()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }

    fn instant(&mut self) -> Option<Timestamp> {
        self.varint().map(Timestamp::from_millis)
    }

    fn reason(&mut self) -> Option<DeadLetterReason> {
        DeadLetterReason::from_code(self.text()?)
    }

    fn disposition(&mut self) -> Option<Disposition<'a>> {
        Some(match self.byte()? {
            RELAY => Disposition::Relay {
                timestamp: self.instant()?,
            },
            DEAD_LETTER => Disposition::DeadLetter {
                reason: self.reason()?,
                detail: self.text()?,
            },
            RETRY => Disposition::Retry(self.retry()?),
            RETRIED_ANSWER if readable_level() > 0 => Disposition::RetriedAnswer(self.retry()?),
            ANSWER => Disposition::Answer(AnswerState {
                request: match self.byte()? {
                    SCHEDULE => Request::Schedule {
                        due: self.instant()?,
                    },
                    CANCEL => Request::Cancel,
                    SCHEDULE_FIRST => Request::ScheduleFirst {
                        due: self.instant()?,
                    },
                    RESCHEDULE => Request::Reschedule {
                        due: self.instant()?,
                    },
                    REFUSED => Request::Refused(self.reason()?),
                    _ => return None,
                },
                request_id: self.optional_text()?,
                id: self.optional_text()?,
            }),
            OCCURRENCE => Disposition::Occurrence(ScheduleState {
                schedule: self.text()?,
                planned: self.instant()?,
                next: match self.byte()? {
                    0 => None,
                    1 => Some(self.instant()?),
                    _ => return None,
                },
            }),
            _ => return None,
        })
    }

    fn retry(&mut self) -> Option<RetryState<'a>> {
        Some(RetryState {
            attempt: self.varint()?,
            origin: self.text()?,
            due: self.instant()?,
            error: match self.text()? {
                "" => None,
                code => Some(DeadLetterReason::from_code(code)?),
            },
        })
    }

    /// A text that is absent if it is empty. The outer `None` means that it is malformed.
    fn optional_text(&mut self) -> Option<Option<&'a str>> {
        self.text()
            .map(|text| Some(text).filter(|text| !text.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::test_messages::{TestMessage, any_messages};
    use proptest::prelude::*;

    fn encoded(body: &Body<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(body, &mut bytes);
        bytes
    }

    fn plain() -> TestMessage {
        TestMessage {
            key: Some(b"k".to_vec()),
            payload: Some(b"v".to_vec()),
            ..TestMessage::default()
        }
    }

    proptest! {
        #[test]
        fn every_body_is_read_back_unchanged(samples in any_messages(8)) {
            for sample in &samples {
                let bytes = sample.record();
                prop_assert_eq!(decode(&bytes), Some(sample.body()));
            }
        }

        #[test]
        fn a_body_with_an_extra_or_missing_byte_is_malformed(
            samples in any_messages(2),
            extra: u8,
        ) {
            for sample in &samples {
                let mut bytes = sample.record();
                for end in 0..bytes.len() {
                    prop_assert_eq!(decode(&bytes[..end]), None);
                }
                bytes.push(extra);
                prop_assert_eq!(decode(&bytes), None);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, flags in 0u8..64) {
            let _ = decode(&bytes);
            let _ = decode(&[&[flags][..], &bytes].concat());
        }

        #[test]
        fn a_changed_byte_never_panics(
            samples in any_messages(2),
            at: prop::sample::Index,
            to: u8,
        ) {
            let mut bytes = samples[0].record();
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = decode(&bytes);
        }
    }

    proptest! {
        #[test]
        fn the_flags_match_the_body(samples in any_messages(8)) {
            for sample in &samples {
                let (bytes, body) = (sample.record(), sample.body());
                let flags = flags_of(&bytes);
                prop_assert_eq!(flags & HAS_ID != 0, body.id.is_some());
                let is_plain = body.disposition == Disposition::Deliver;
                prop_assert_eq!(flags & HAS_DISPOSITION == 0, is_plain);
            }
        }
    }

    #[test]
    fn null_and_empty_are_different() {
        for key in [None, Some(Vec::new())] {
            for payload in [None, Some(Vec::new())] {
                let sample = TestMessage {
                    key: key.clone(),
                    payload,
                    ..TestMessage::default()
                };
                assert_eq!(decode(&sample.record()), Some(sample.body()));
            }
        }
    }

    #[test]
    fn a_wrong_flag_or_an_unknown_dialect_or_disposition_is_malformed() {
        let bytes = plain().record();
        for flag in [IS_ANSWER, HAS_UNTIL] {
            assert_eq!(decode(&[&[bytes[0] | flag], &bytes[1..]].concat()), None);
        }
        for dialect in [0, 9, 255] {
            assert_eq!(
                decode(&[&[bytes[0] | HAS_DIALECT], &bytes[1..], &[dialect]].concat()),
                None
            );
        }
        for disposition in [0, 7, 255] {
            assert_eq!(
                decode(&[&[bytes[0] | HAS_DISPOSITION], &bytes[1..], &[disposition]].concat()),
                None
            );
        }
    }

    #[test]
    fn an_occurrence_reads_back() {
        for next in [None, Some(Timestamp::from_millis(9))] {
            let occurrence = ScheduleState {
                schedule: "invoices",
                planned: Timestamp::from_millis(-7),
                next,
            };
            let plain = plain();
            let body = Body {
                disposition: Disposition::Occurrence(occurrence),
                ..plain.body()
            };
            assert_eq!(decode(&encoded(&body)), Some(body));
        }
    }

    #[test]
    fn an_unknown_reason_or_a_text_that_is_not_utf_8_is_malformed() {
        let refused = Disposition::DeadLetter {
            reason: DeadLetterReason::TooLarge,
            detail: "detail",
        };
        let bytes = encoded(&Body {
            disposition: refused,
            ..plain().body()
        });
        let code = bytes.windows(9).position(|w| w == b"too_large").unwrap();
        for (at, byte) in [(code, b'x'), (bytes.len() - 1, 0xff)] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            assert_eq!(decode(&bytes), None);
        }
    }

    #[test]
    fn incomplete_headers_are_malformed() {
        let mut sample = plain();
        sample.headers = b"\x01a\x02b".to_vec();
        let bytes = sample.record();
        let block = bytes.windows(4).position(|w| w == b"\x01a\x02b").unwrap();
        let mut bad = bytes.clone();
        bad[block + 2] = 9;
        assert!(decode(&bytes).is_some());
        assert_eq!(decode(&bad), None);
    }

    #[test]
    fn the_layout_matches_the_table() {
        let body = Body {
            key: None,
            payload: Some(b"pay"),
            headers: Headers::from_block(b"\x01a\x02b"),
            id: Some("id-1"),
            target: Some("to"),
            until: Some(Timestamp::from_millis(2)),
            dialect: Some(Dialect::Etf1),
            replaces: None,
            sent_from: None,
            disposition: Disposition::Retry(RetryState {
                attempt: 300,
                origin: "o",
                due: Timestamp::from_millis(-1),
                error: Some(DeadLetterReason::TimedOut),
            }),
        };
        let bytes =
            b"\xbd\x04\x01a\x02b\x03pay\x04id-1\x02to\x04\x08\x03\xac\x02\x01o\x01\x09timed_out";
        assert_eq!(encoded(&body), bytes);
        assert_eq!(decode(bytes), Some(body));
    }
}
