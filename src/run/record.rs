//! One message's body in a run, as bytes: written once, then read as a view. Places are none of its business (they are the run's columns),
//! nor is what a message means.
//!
//! | bytes | what | there if |
//! |---|---|---|
//! | 1 | flags | always |
//! | varint, .. | length and bytes of the key | not `NULL_KEY` |
//! | varint, .. | length and block of the headers (as `model::header` lays it out) | always |
//! | varint, .. | length and bytes of the payload | not `NULL_PAYLOAD` |
//! | varint, .. | length and text of the id | `HAS_ID` |
//! | varint, .. | length and text of the target | `HAS_TARGET` |
//! | 1 | number of the dialect that the record spoke (as `model::dialect` has it) | `HAS_DIALECT` |
//! | 1, .. | disposition and its fields | `HAS_DISPOSITION`; without it the message is to be delivered |
//!
//! | disposition | fields |
//! |---|---|
//! | 1 relay | timestamp |
//! | 2 dead letter | reason's code, detail |
//! | 3 retry | attempt, origin, due, error's code |
//!
//! Texts are UTF-8 behind their length. Numbers and lengths are LEB128 varints, instants zig-zag before that. A record ends with its last
//! field. Flags, dialects and dispositions that are not listed belong to a newer writer: such a record is not guessed at.

use crate::model::header::push_varint;
use crate::model::{Body, Dialect, Disposition, Headers, Reason, RetryState, Timestamp};
use integer_encoding::VarInt;

const NULL_KEY: u8 = 1;
const NULL_PAYLOAD: u8 = 1 << 1;
const HAS_ID: u8 = 1 << 2;
const HAS_TARGET: u8 = 1 << 3;
const HAS_DISPOSITION: u8 = 1 << 4;
const HAS_DIALECT: u8 = 1 << 5;
const KNOWN: u8 = NULL_KEY | NULL_PAYLOAD | HAS_ID | HAS_TARGET | HAS_DISPOSITION | HAS_DIALECT;

const RELAY: u8 = 1;
const DEAD_LETTER: u8 = 2;
const RETRY: u8 = 3;

/// Appends `body` to `out`, without anything that says how long it is: the run's column does.
pub(crate) fn encode(body: &Body<'_>, out: &mut Vec<u8>) {
    debug_assert!(
        is_complete(body.headers),
        "a block of headers that ends in the middle could not be read back"
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
    out.extend(body.dialect.map(Dialect::code));
    push_disposition(out, &body.disposition);
}

/// `None`: malformed, or written by a newer version. Never panics and never reads past the end.
pub(crate) fn decode(bytes: &[u8]) -> Option<Body<'_>> {
    let mut rest = RecordReader(bytes);
    let flags = rest.byte()?;
    if flags & !KNOWN != 0 {
        return None;
    }
    let has = |flag: u8| flags & flag != 0;
    let body = Body {
        key: if has(NULL_KEY) {
            None
        } else {
            Some(rest.bytes()?)
        },
        headers: Headers::from_block(rest.bytes()?),
        payload: if has(NULL_PAYLOAD) {
            None
        } else {
            Some(rest.bytes()?)
        },
        id: if has(HAS_ID) {
            Some(rest.text()?)
        } else {
            None
        },
        target: if has(HAS_TARGET) {
            Some(rest.text()?)
        } else {
            None
        },
        dialect: if has(HAS_DIALECT) {
            Some(Dialect::from_code(rest.byte()?)?)
        } else {
            None
        },
        disposition: if has(HAS_DISPOSITION) {
            rest.disposition()?
        } else {
            Disposition::Deliver
        },
    };
    (rest.0.is_empty() && is_complete(body.headers)).then_some(body)
}

/// What a record's first byte tells, at a fraction of what decoding costs; or those of several records, each taken for what it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordFlags(u8);

impl RecordFlags {
    pub(super) fn of(record: &[u8]) -> Self {
        // One without a first byte is none that could be delivered.
        Self(record.first().map_or(HAS_DISPOSITION, |flags| *flags))
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the message has an id.
    pub(super) fn has_id(self) -> bool {
        self.0 & HAS_ID != 0
    }

    /// Whether the message is simply to be delivered.
    pub(super) fn is_plain_delivery(self) -> bool {
        self.0 & HAS_DISPOSITION == 0
    }
}

fn flags(body: &Body<'_>) -> u8 {
    [
        (body.key.is_none(), NULL_KEY),
        (body.payload.is_none(), NULL_PAYLOAD),
        (body.id.is_some(), HAS_ID),
        (body.target.is_some(), HAS_TARGET),
        (body.disposition != Disposition::Deliver, HAS_DISPOSITION),
        (body.dialect.is_some(), HAS_DIALECT),
    ]
    .into_iter()
    .fold(
        0,
        |flags, (set, flag)| if set { flags | flag } else { flags },
    )
}

fn push_disposition(out: &mut Vec<u8>, disposition: &Disposition<'_>) {
    match *disposition {
        Disposition::Deliver => {}
        Disposition::Relay { timestamp } => {
            out.push(RELAY);
            push_instant(out, timestamp);
        }
        Disposition::DeadLetter { reason, detail } => {
            out.push(DEAD_LETTER);
            push_bytes(out, reason.code().as_bytes());
            push_bytes(out, detail.as_bytes());
        }
        Disposition::Retry(RetryState {
            attempt,
            origin,
            due,
            error,
        }) => {
            out.push(RETRY);
            push_varint(out, u64::from(attempt));
            push_bytes(out, origin.as_bytes());
            push_instant(out, due);
            push_bytes(out, error.code().as_bytes());
        }
    }
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn push_instant(out: &mut Vec<u8>, instant: Timestamp) {
    push_signed(out, instant.as_millis());
}

/// A zig-zag varint: short for numbers near zero, whatever their sign.
pub(super) fn push_signed(out: &mut Vec<u8>, value: i64) {
    let mut bytes = [0; 10];
    let length = value.encode_var(&mut bytes);
    out.extend_from_slice(&bytes[..length]);
}

/// Reading a block of headers ends silently at its first bad byte; here that would deliver a message with some of its headers missing.
fn is_complete(headers: Headers<'_>) -> bool {
    let spaces = headers.iter().map(|(name, value)| {
        let value_space = value.map_or(1, |value| (value.len() + 1).required_space() + value.len());
        name.len().required_space() + name.len() + value_space
    });
    spaces.sum::<usize>() == headers.as_block().len()
}

/// What is left of a record.
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

    fn reason(&mut self) -> Option<Reason> {
        Reason::from_code(self.text()?)
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
            RETRY => Disposition::Retry(RetryState {
                attempt: self.varint()?,
                origin: self.text()?,
                due: self.instant()?,
                error: self.reason()?,
            }),
            _ => return None,
        })
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
        fn every_body_reads_back_as_it_was(samples in any_messages(8)) {
            for sample in &samples {
                let bytes = sample.record();
                prop_assert_eq!(decode(&bytes), Some(sample.body()));
            }
        }

        #[test]
        fn a_body_with_a_byte_too_many_or_too_few_is_malformed(samples in any_messages(2), extra: u8) {
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
        fn foreign_bytes_never_panic(bytes: Vec<u8>, flags in 0u8..64) {
            let _ = decode(&bytes);
            let _ = decode(&[&[flags][..], &bytes].concat());
        }

        #[test]
        fn a_changed_byte_never_panics(samples in any_messages(2), at: prop::sample::Index, to: u8) {
            let mut bytes = samples[0].record();
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = decode(&bytes);
        }
    }

    proptest! {
        #[test]
        fn what_the_first_byte_tells_is_what_the_body_says(samples in any_messages(8)) {
            for sample in &samples {
                let (bytes, body) = (sample.record(), sample.body());
                let traits = RecordFlags::of(&bytes);
                prop_assert_eq!(traits.has_id(), body.id.is_some());
                prop_assert_eq!(traits.is_plain_delivery(), body.disposition == Disposition::Deliver);
            }
        }
    }

    #[test]
    fn null_and_empty_stay_apart() {
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
    fn a_newer_writers_flag_dialect_or_disposition_is_not_guessed_at() {
        let bytes = plain().record();
        for flag in [1 << 6, 1 << 7] {
            assert_eq!(decode(&[&[bytes[0] | flag], &bytes[1..]].concat()), None);
        }
        for dialect in [0, 9, 255] {
            assert_eq!(
                decode(&[&[bytes[0] | HAS_DIALECT], &bytes[1..], &[dialect]].concat()),
                None
            );
        }
        for disposition in [0, 4, 255] {
            assert_eq!(
                decode(&[&[bytes[0] | HAS_DISPOSITION], &bytes[1..], &[disposition]].concat()),
                None
            );
        }
    }

    #[test]
    fn an_unknown_reason_or_a_text_that_is_not_utf_8_is_malformed() {
        let refused = Disposition::DeadLetter {
            reason: Reason::TooLarge,
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
    fn headers_that_end_in_the_middle_are_malformed_not_cut_short() {
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
    fn the_layout_is_the_one_of_the_table() {
        let body = Body {
            key: None,
            payload: Some(b"pay"),
            headers: Headers::from_block(b"\x01a\x02b"),
            id: Some("id-1"),
            target: Some("to"),
            dialect: Some(Dialect::Etf1),
            disposition: Disposition::Retry(RetryState {
                attempt: 300,
                origin: "o",
                due: Timestamp::from_millis(-1),
                error: Reason::TimedOut,
            }),
        };
        let bytes =
            b"\x3d\x04\x01a\x02b\x03pay\x04id-1\x02to\x08\x03\xac\x02\x01o\x01\x09timed_out";
        assert_eq!(encoded(&body), bytes);
        assert_eq!(decode(bytes), Some(body));
    }
}
