//! Encodes a record as a NATS message, and decodes it, as the table "Mapping between NATS and Kafka"
//! in `docs/nats.md` describes.

use crate::broker::OutgoingRecord;
use crate::model::header::{Header, push_header};
use crate::model::header_name::{DUE, ORIGIN, SUBJECT};
use crate::model::{Dialect, Headers};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;
use std::str::FromStr as _;

/// The stream detects duplicates by this header.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";

const KEY: &str = "postdate-key";
const KEY_BASE64: &str = "postdate-key-base64";
const NULL_PAYLOAD: &str = "postdate-null-payload";

/// Returns true if the header holds the record's key, or says that its payload is null.
fn is_envelope_header(name: &[u8]) -> bool {
    let envelope = [KEY, KEY_BASE64, NULL_PAYLOAD];
    envelope.iter().any(|header| header.as_bytes() == name)
}

/// Returns true if the server may treat the header as a command.
fn is_server_command(name: &[u8]) -> bool {
    name.get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case(b"nats-"))
}

/// Encodes key, null payload and headers, without the header `left_out`. `Err`: the reason why NATS
/// cannot carry one of the headers.
pub(super) fn encode(
    record: &OutgoingRecord<'_>,
    left_out: Option<&str>,
) -> Result<NatsHeaders, String> {
    let key_length = record.key.map_or(0, <[u8]>::len);
    let capacity = record.headers.as_block().len() + key_length + EXTRA_CAPACITY;
    let mut encoded = NatsHeaders(Vec::with_capacity(capacity));
    for (name, value) in record.all_headers() {
        let is_left_out = left_out.is_some_and(|left_out| left_out.as_bytes() == name);
        if is_left_out || is_envelope_header(name) || is_server_command(name) {
            continue;
        }
        let (name, value) = check_header(name, value).map_err(|reason| {
            let name = name.escape_ascii();
            format!("the header \"{name}\" cannot be carried by NATS: {reason}")
        })?;
        encoded.push(name, value);
    }
    if let Some(key) = record.key {
        match header_text(key).filter(|text| !text.is_empty()) {
            Some(text) => encoded.push(KEY, text),
            None => encoded.push(KEY_BASE64, &STANDARD.encode(key)),
        }
    }
    if record.payload.is_none() {
        encoded.push(NULL_PAYLOAD, "true");
    }
    Ok(encoded)
}

fn check_header<'h>(
    name: &'h [u8],
    value: Option<&'h [u8]>,
) -> Result<(&'h str, &'h str), &'static str> {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| !name.is_empty() && name.bytes().all(is_allowed))
        .ok_or("its name is empty, or not printable ASCII without a colon")?;
    let value = value.ok_or("its value is null")?;
    let value = header_text(value)
        .ok_or("its value is not UTF-8, contains CR, LF or NUL, or starts or ends with a blank")?;
    Ok((name, value))
}

/// The value as text, if NATS can carry it.
fn header_text(value: &[u8]) -> Option<&str> {
    let value = std::str::from_utf8(value).ok()?;
    let is_line = !value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    (is_line && value.trim().len() == value.len()).then_some(value)
}

/// Usual size of the extra headers, the message id and the envelope.
const EXTRA_CAPACITY: usize = 256;

/// Checked headers in one buffer. The row `nats` of the bench needs it and the names below: a
/// [`HeaderMap`] has an allocation per header, and a record may be published several times.
pub(super) struct NatsHeaders(Vec<u8>);

/// Names that nearly every message has. The client library checks and copies any other name.
static COMMON_NAMES: [(&str, HeaderName); 5] = [
    (SUBJECT, HeaderName::from_static(SUBJECT)),
    (KEY, HeaderName::from_static(KEY)),
    (DUE, HeaderName::from_static(DUE)),
    (ORIGIN, HeaderName::from_static(ORIGIN)),
    (MESSAGE_ID, HeaderName::from_static(MESSAGE_ID)),
];

impl NatsHeaders {
    /// Name and value must be text that NATS can carry.
    pub(super) fn push(&mut self, name: &str, value: &str) {
        push_header(&mut self.0, name.as_bytes(), Some(value.as_bytes()));
    }

    /// The headers as the client library takes them.
    pub(super) fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in Headers::from_block(&self.0).iter() {
            let text = |bytes| std::str::from_utf8(bytes).expect("pushed as text");
            let (name, value) = (text(name), value.map_or("", text));
            let common = COMMON_NAMES.iter().find(|(common, _)| *common == name);
            let name = match common {
                Some((_, common)) => common.clone(),
                None => HeaderName::from_str(name).expect("checked by the encoder"),
            };
            map.append(name, HeaderValue::from(value));
        }
        map
    }

    /// Bytes in memory.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The headers of a received message, sorted by name. Values of one name keep their order. So a
/// second read of a message gives the same record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IncomingHeaders<'h>(Vec<(&'h [u8], &'h [u8])>);

impl<'h> IncomingHeaders<'h> {
    pub(super) fn of(map: Option<&'h HeaderMap>) -> Self {
        let mut headers = Vec::new();
        for (name, values) in map.into_iter().flat_map(HeaderMap::iter) {
            let name: &[u8] = name.as_ref();
            headers.extend(values.iter().map(|value| (name, value.as_str().as_bytes())));
        }
        Self::sorted(headers)
    }

    /// Parses the header block of the wire protocol. It accepts blocks that the client library
    /// rejects, and ignores lines that are not headers.
    pub(super) fn of_bytes(bytes: &'h [u8]) -> Self {
        let lines = bytes.split(|byte| *byte == b'\n').skip(1);
        let headers = lines.filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            Some((&line[..colon], line[colon + 1..].trim_ascii()))
        });
        Self::sorted(headers.collect())
    }

    fn sorted(mut headers: Vec<(&'h [u8], &'h [u8])>) -> Self {
        headers.sort_by_key(|(name, _)| *name);
        Self(headers)
    }

    fn get(&self, name: &str) -> Option<&'h [u8]> {
        let mut headers = self.0.iter();
        let (_, value) = headers.find(|(found, _)| *found == name.as_bytes())?;
        Some(*value)
    }

    /// The record's key. A base64 header that cannot be decoded is taken as the key itself.
    pub(super) fn key(&self) -> Option<Cow<'h, [u8]>> {
        let Some(encoded) = self.get(KEY_BASE64) else {
            return self.get(KEY).map(Cow::Borrowed);
        };
        let decoded = STANDARD.decode(encoded);
        Some(decoded.map_or(Cow::Borrowed(encoded), Cow::Owned))
    }

    /// The record's payload, or `None` if the headers say that it is null.
    pub(super) fn payload<'p>(&self, payload: &'p [u8]) -> Option<&'p [u8]> {
        let is_null = payload.is_empty() && self.get(NULL_PAYLOAD) == Some(b"true");
        (!is_null).then_some(payload)
    }

    /// The record's own headers: without the envelope and without commands to the server. With
    /// `reads_schedules`, the headers of NATS' schedules stay, unless Postdate's own headers give a
    /// due time.
    pub(super) fn headers(&self, reads_schedules: bool) -> impl Iterator<Item = Header<'_>> {
        let has_due = self.get("postdate-at").is_some() || self.get("postdate-after").is_some();
        let keeps_schedules = reads_schedules && !has_due;
        let is_kept = move |name: &[u8]| {
            let is_schedule = keeps_schedules && Dialect::Nats.has_header(name);
            !is_envelope_header(name) && (!is_server_command(name) || is_schedule)
        };
        let kept = self.0.iter().filter(move |(name, _)| is_kept(name));
        kept.map(|(name, value)| (*name, Some(*value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The headers of a record after encoding and decoding.
    fn round_trip(
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) -> Result<Vec<(String, String)>, String> {
        let mut block = Vec::new();
        for (name, value) in headers {
            push_header(&mut block, name, *value);
        }
        let record = OutgoingRecord {
            topic: "t",
            partition: None,
            key,
            payload,
            headers: Headers::from_block(&block),
            keep_header: |_| true,
            extra_headers: &[],
        };
        let map = encode(&record, Some("left-out"))?.to_map();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ok(IncomingHeaders::of(Some(&map))
            .0
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_key_is_carried_as_text_if_possible_and_as_base64_otherwise() {
        let some = Some(&b"p"[..]);
        assert_eq!(round_trip(None, some, &[]), Ok(vec![]));
        assert_eq!(
            round_trip(Some("größe".as_bytes()), some, &[]),
            Ok(pairs(&[(KEY, "größe")]))
        );
        for (key, encoded) in [
            (&b""[..], ""),
            (b"\xff\0", "/wA="),
            (b" a", "IGE="),
            (b"a\nb", "YQpi"),
        ] {
            assert_eq!(
                round_trip(Some(key), some, &[]),
                Ok(pairs(&[(KEY_BASE64, encoded)]))
            );
            let read = IncomingHeaders(vec![(KEY_BASE64.as_bytes(), encoded.as_bytes())]);
            assert_eq!(read.key().as_deref(), Some(key));
        }
    }

    #[test]
    fn a_null_payload_is_carried_by_a_header() {
        assert_eq!(
            round_trip(None, None, &[]),
            Ok(pairs(&[(NULL_PAYLOAD, "true")]))
        );
        let null = IncomingHeaders(vec![(NULL_PAYLOAD.as_bytes(), b"true")]);
        assert_eq!(null.payload(b""), None);
        assert_eq!(null.payload(b"x"), Some(&b"x"[..]));
        let none = IncomingHeaders::default();
        assert_eq!(none.payload(b""), Some(&b""[..]));
    }

    #[test]
    fn headers_of_the_server_and_of_the_envelope_are_left_out() {
        let headers: &[(&[u8], Option<&[u8]>)] = &[
            (b"b", Some(b"2")),
            (b"a", Some(b"")),
            (b"b", Some(b"1: x")),
            (b"Nats-Msg-Id", Some(b"1")),
            (b"nats-TTL", Some(b"1s")),
            (b"postdate-key", Some(b"forged")),
            (b"left-out", Some(b"x")),
        ];
        assert_eq!(
            round_trip(None, Some(b""), headers),
            Ok(pairs(&[("a", ""), ("b", "2"), ("b", "1: x")]))
        );
    }

    proptest! {
        /// The client library must accept each header that the encoder accepts.
        #[test]
        fn the_client_library_accepts_every_encoded_header(
            name in bytes(),
            value in bytes(),
            key in bytes(),
        ) {
            let headers = [(&name[..], Some(&value[..]))];
            if let Ok(read) = round_trip(Some(&key), Some(b""), &headers) {
                let sent = (
                    String::from_utf8_lossy(&name).into_owned(),
                    String::from_utf8_lossy(&value).into_owned(),
                );
                let is_left_out =
                    is_envelope_header(&name) || is_server_command(&name) || name == b"left-out";
                prop_assert!(is_left_out || read.contains(&sent), "{:?}", read);
            }
        }
    }

    /// Any short bytes, and often printable text, which is rare among them.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..6),
            "[ -~]{0,8}".prop_map(String::into_bytes)
        ]
    }

    #[test]
    fn many_headers_keep_the_order_of_the_values_of_each_name() {
        let names: Vec<String> = (0..30).map(|number| format!("n{number:02}")).collect();
        let mut sent: Vec<(String, String)> = Vec::new();
        for round in ["first", "", "third"] {
            sent.extend(names.iter().map(|name| (name.clone(), round.to_owned())));
            sent.push((DUE.to_owned(), round.to_owned()));
        }
        let headers: Vec<(&[u8], Option<&[u8]>)> = sent
            .iter()
            .map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())))
            .collect();
        let received = round_trip(None, Some(b""), &headers);
        sent.sort_by(|(one, _), (other, _)| one.cmp(other));
        assert_eq!(received, Ok(sent));
    }

    #[test]
    fn a_header_that_nats_cannot_carry_is_named_in_the_error() {
        let bad: [(&[u8], Option<&[u8]>); 10] = [
            (b"", Some(b"x")),
            (b"a:b", Some(b"x")),
            (b"a b", Some(b"x")),
            (b"\xff", Some(b"x")),
            (b"n", None),
            (b"n", Some(b"\xff")),
            (b"n", Some(b"a\rb")),
            (b"n", Some(b"a\nb")),
            (b"n", Some(b"a\0b")),
            (b"n", Some(b" a")),
        ];
        for header in bad {
            let error = round_trip(None, None, &[header]).unwrap_err();
            let name = format!("\"{}\"", header.0.escape_ascii());
            assert!(error.contains(&name), "{error}");
        }
    }

    #[test]
    fn received_headers_are_sorted_and_without_server_commands() {
        let raw = b"NATS/1.0\r\nb: 2\r\nno header\r\nNats-Schedule: @at x\r\n\
            Nats-Schedule-Next: purge\r\nNats-Scheduler: s\r\nNats-ScheduleX: 1\r\na:  1 \r\n\
            b: \xff\r\nNats-TTL: 1\r\npostdate-key: k\r\n\r\n";
        let incoming = IncomingHeaders::of_bytes(raw);
        let names = |reads_schedules| {
            incoming
                .headers(reads_schedules)
                .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(true), ["Nats-Schedule", "a", "b", "b"]);
        assert_eq!(names(false), ["a", "b", "b"]);
        assert_eq!(incoming.get("a"), Some(&b"1"[..]));
        assert_eq!(
            incoming.headers(false).last(),
            Some((&b"b"[..], Some(&b"\xff"[..])))
        );
        assert_eq!(incoming.key().as_deref(), Some(&b"k"[..]));
    }

    #[test]
    fn postdates_own_headers_hide_a_nats_schedule() {
        let raw = b"NATS/1.0\r\npostdate-after: 1s\r\nNats-Schedule: @at x\r\n\r\n";
        let incoming = IncomingHeaders::of_bytes(raw);
        assert_eq!(incoming.headers(true).count(), 1);
    }
}
