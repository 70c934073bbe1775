//! A record as NATS carries it, and back. `docs/nats.md` has the same table for those who send and read:
//!
//! | of a record | on NATS |
//! |---|---|
//! | key that is text without CR, LF, NUL and blanks at its ends, and not empty | header `postdate-key` |
//! | any other key | header `postdate-key-base64` |
//! | null key | neither |
//! | null payload | empty payload, header `postdate-null-payload: true` |
//! | header | header of that name and value; those of one name keep their order |
//! | header that NATS cannot carry | refused as `invalid_header` |
//! | header whose name begins with `Nats-`, in any case | left out: to the server it would be a command |
//!
//! NATS cannot carry a null value, a value that is not UTF-8, or one with CR, LF or NUL or blanks at its ends (clients trim them), and no
//! name but printable ASCII without a colon.

use crate::broker::OutgoingRecord;
use crate::model::header::{Header, push_header};
use crate::model::header_name::{DUE, ORIGIN, SUBJECT};
use crate::model::{Dialect, Headers};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;
use std::str::FromStr as _;

/// By which a stream knows what it has already.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";

pub(crate) const KEY: &str = "postdate-key";
pub(crate) const KEY_BASE64: &str = "postdate-key-base64";
pub(crate) const NULL_PAYLOAD: &str = "postdate-null-payload";

const ENVELOPE: [&str; 3] = [KEY, KEY_BASE64, NULL_PAYLOAD];

/// What a record becomes part of on its way.
fn is_envelope_header(name: &[u8]) -> bool {
    ENVELOPE.iter().any(|header| header.as_bytes() == name)
}

/// Whether the server may take the header for a command to itself.
fn is_server_command(name: &[u8]) -> bool {
    name.get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case(b"nats-"))
}

/// The headers of a record on its way out, or what is wrong with the first that NATS cannot carry. `subject` is left out: see the source.
pub(super) fn encode(
    record: &OutgoingRecord<'_>,
    left_out: Option<&str>,
) -> Result<NatsHeaders, String> {
    let mut carried = NatsHeaders::with_capacity_for(record);
    for (name, value) in record.all_headers() {
        if is_envelope_header(name)
            || is_server_command(name)
            || left_out.is_some_and(|left_out| left_out.as_bytes() == name)
        {
            continue;
        }
        let shown = || {
            format!(
                "the header \"{}\" cannot be carried by NATS: ",
                name.escape_ascii()
            )
        };
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
        let name = name.ok_or_else(|| {
            format!(
                "{}its name is not 1 or more of printable ASCII without a colon",
                shown()
            )
        })?;
        let value = value.ok_or_else(|| format!("{}its value is null", shown()))?;
        carried.push(
            name,
            header_text(value).ok_or_else(|| {
                format!(
                    "{}its value is not UTF-8 without CR, LF, NUL and outer blanks",
                    shown()
                )
            })?,
        );
    }
    match record
        .key
        .map(|key| (header_text(key).filter(|_| !key.is_empty()), key))
    {
        None => {}
        Some((Some(key), _)) => carried.push(KEY, key),
        Some((None, key)) => carried.push(KEY_BASE64, &STANDARD.encode(key)),
    }
    if record.payload.is_none() {
        carried.push(NULL_PAYLOAD, "true");
    }
    Ok(carried)
}

/// Headers that NATS can carry, in one buffer: what is sent may have to be sent again, and a map of them costs an allocation a header.
pub(super) struct NatsHeaders {
    block: Vec<u8>,
    /// Bytes of their lines on the wire.
    line_bytes: usize,
}

impl NatsHeaders {
    /// So that they need not be moved while they grow.
    fn with_capacity_for(record: &OutgoingRecord<'_>) -> Self {
        let extra: usize = record
            .extra_headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let room = record.headers.as_block().len()
            + extra
            + record.key.map_or(0, <[u8]>::len)
            + ENVELOPE_CAPACITY;
        Self {
            block: Vec::with_capacity(room),
            line_bytes: 0,
        }
    }

    /// Both are text that NATS can carry.
    pub(super) fn push(&mut self, name: &str, value: &str) {
        self.line_bytes += name.len() + value.len() + ": \r\n".len();
        push_header(&mut self.block, name.as_bytes(), Some(value.as_bytes()));
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |bytes| std::str::from_utf8(bytes).expect("pushed as text");
        Headers::from_block(&self.block)
            .iter()
            .map(move |(name, value)| (text(name), value.map_or("", text)))
    }

    /// As the client library takes them.
    pub(super) fn to_map(&self) -> HeaderMap {
        let (mut map, mut before) = (HeaderMap::new(), [""; LINEAR_SEARCH_MAX]);
        for (place, (name, value)) in self.iter().enumerate() {
            let value = HeaderValue::from(value);
            // To append is to look the name up twice.
            if place < LINEAR_SEARCH_MAX && !before[..place].contains(&name) {
                map.insert(header_name(name), value);
                before[place] = name;
            } else {
                map.append(header_name(name), value);
            }
        }
        map
    }

    /// The bytes that a message takes of what the server allows: its headers and its payload.
    pub(super) fn wire_length(&self, payload: usize) -> usize {
        "NATS/1.0\r\n\r\n".len() + self.line_bytes + payload
    }
}

/// What the id of a message, the names of the envelope and the lengths of all take, in most cases.
const ENVELOPE_CAPACITY: usize = 192;

/// So many names are compared with each other in less time than it takes to look one up.
const LINEAR_SEARCH_MAX: usize = 16;

/// What nearly every message bears, made once: the library looks at and copies any other name.
static COMMON_NAMES: [(&str, HeaderName); 5] = [
    (SUBJECT, HeaderName::from_static(SUBJECT)),
    (KEY, HeaderName::from_static(KEY)),
    (DUE, HeaderName::from_static(DUE)),
    (ORIGIN, HeaderName::from_static(ORIGIN)),
    (MESSAGE_ID, HeaderName::from_static(MESSAGE_ID)),
];

/// Of a name that was looked at.
fn header_name(name: &str) -> HeaderName {
    let often = COMMON_NAMES.iter().find(|(often, _)| *often == name);
    often.map_or_else(
        || HeaderName::from_str(name).expect("a name that was looked at"),
        |(_, name)| name.clone(),
    )
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b':')
}

fn header_text(value: &[u8]) -> Option<&str> {
    let value = std::str::from_utf8(value).ok()?;
    let is_line = !value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    (is_line && value.trim().len() == value.len()).then_some(value)
}

/// The headers of a message as they are read, by name and for one name in their order: so a message that is read twice reads the same.
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

    /// From the bytes on the wire, however little they are what the client library takes: what is no header is passed over.
    pub(super) fn of_bytes(bytes: &'h [u8]) -> Self {
        let lines = bytes
            .split(|byte| *byte == b'\n')
            .skip(1)
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
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
        self.0
            .iter()
            .find(|(found, _)| *found == name.as_bytes())
            .map(|(_, value)| *value)
    }

    /// The record's key; text that is not base64 is a key as it stands.
    pub(super) fn key(&self) -> Option<Cow<'h, [u8]>> {
        if let Some(encoded) = self.get(KEY_BASE64) {
            return Some(
                STANDARD
                    .decode(encoded)
                    .map_or(Cow::Borrowed(encoded), Cow::Owned),
            );
        }
        self.get(KEY).map(Cow::Borrowed)
    }

    pub(super) fn payload<'p>(&self, payload: &'p [u8]) -> Option<&'p [u8]> {
        Some(payload)
            .filter(|payload| !payload.is_empty() || self.get(NULL_PAYLOAD) != Some(b"true"))
    }

    /// The record's headers: without what became its key and payload, and without commands to the server, but for those of schedules that
    /// a route is to understand.
    pub(super) fn headers(&self, keeps_schedules: bool) -> impl Iterator<Item = Header<'_>> {
        let is_decided = self.get("postdate-at").is_some() || self.get("postdate-after").is_some();
        let keeps_schedules = keeps_schedules && !is_decided;
        let stays = move |name: &[u8]| {
            !is_envelope_header(name)
                && (!is_server_command(name) || (keeps_schedules && Dialect::Nats.has_header(name)))
        };
        self.0
            .iter()
            .filter(move |(name, _)| stays(name))
            .map(|(name, value)| (*name, Some(*value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn carried(
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) -> Result<Vec<(String, String)>, String> {
        let mut block = Vec::new();
        headers
            .iter()
            .for_each(|(name, value)| push_header(&mut block, name, *value));
        let headers = Headers::from_block(&block);
        let record = OutgoingRecord {
            topic: "t",
            partition: None,
            key,
            payload,
            headers,
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
    fn keys_and_null_payloads_are_headers() {
        let some = Some(&b"p"[..]);
        assert_eq!(carried(None, some, &[]), Ok(vec![]));
        assert_eq!(
            carried(Some("größe".as_bytes()), some, &[]),
            Ok(pairs(&[(KEY, "größe")]))
        );
        for (key, encoded) in [
            (&b""[..], ""),
            (b"\xff\0", "/wA="),
            (b" a", "IGE="),
            (b"a\nb", "YQpi"),
        ] {
            assert_eq!(
                carried(Some(key), some, &[]),
                Ok(pairs(&[(KEY_BASE64, encoded)]))
            );
            let read = IncomingHeaders(vec![(KEY_BASE64.as_bytes(), encoded.as_bytes())]);
            assert_eq!(read.key().as_deref(), Some(key));
        }
        assert_eq!(
            carried(None, None, &[]),
            Ok(pairs(&[(NULL_PAYLOAD, "true")]))
        );
        let null = IncomingHeaders(vec![(NULL_PAYLOAD.as_bytes(), b"true")]);
        assert_eq!(
            (
                null.payload(b""),
                null.payload(b"x"),
                IncomingHeaders::default().payload(b"")
            ),
            (None, Some(&b"x"[..]), Some(&b""[..]))
        );
    }

    #[test]
    fn headers_pass_but_for_the_servers_and_the_envelopes_own() {
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
            carried(None, Some(b""), headers),
            Ok(pairs(&[("a", ""), ("b", "2"), ("b", "1: x")]))
        );
    }

    proptest! {
        /// The target's thread takes what was not refused for what the client library takes.
        #[test]
        fn what_is_not_refused_the_client_library_takes(name in bytes(), value in bytes(), key in bytes()) {
            if let Ok(read) = carried(Some(&key), Some(b""), &[(&name, Some(&value))]) {
                let sent = (String::from_utf8_lossy(&name).into_owned(), String::from_utf8_lossy(&value).into_owned());
                let is_left_out = is_envelope_header(&name) || is_server_command(&name) || name == b"left-out";
                prop_assert!(is_left_out || read.contains(&sent), "{:?}", read);
            }
        }
    }

    /// Short ones of all bytes, and of those that can be carried, which are rare among them.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..6),
            "[ -~]{0,8}".prop_map(String::into_bytes)
        ]
    }

    #[test]
    fn many_names_and_values_of_one_name_all_go_out_in_their_order() {
        let names: Vec<String> = (0..2 * LINEAR_SEARCH_MAX)
            .map(|number| format!("n{number:02}"))
            .collect();
        let mut sent: Vec<(String, String)> = Vec::new();
        for round in ["first", "", "third"] {
            sent.extend(names.iter().map(|name| (name.clone(), round.to_owned())));
            sent.push((DUE.to_owned(), round.to_owned()));
        }
        let headers: Vec<(&[u8], Option<&[u8]>)> = sent
            .iter()
            .map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())))
            .collect();
        let gone = carried(None, Some(b""), &headers);
        sent.sort_by(|(one, _), (other, _)| one.cmp(other));
        assert_eq!(gone, Ok(sent));
    }

    /// As the client library counts it.
    #[test]
    fn the_length_is_that_of_the_lines() {
        let mut carried = NatsHeaders {
            block: Vec::new(),
            line_bytes: 0,
        };
        carried.push("a", "12");
        carried.push("bc", "");
        assert_eq!(
            carried.wire_length(5),
            "NATS/1.0\r\na: 12\r\nbc: \r\n\r\n".len() + 5
        );
    }

    #[test]
    fn what_nats_cannot_carry_is_refused_by_name() {
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
            let refused = carried(None, None, &[header]).unwrap_err();
            assert!(
                refused.contains(&format!("\"{}\"", header.0.escape_ascii())),
                "{refused}"
            );
        }
    }

    #[test]
    fn what_is_read_is_in_the_order_of_names_and_without_commands() {
        let raw = b"NATS/1.0\r\nb: 2\r\nno header\r\nNats-Schedule: @at x\r\nNats-Schedule-Next: purge\r\nNats-Scheduler: s\r\nNats-ScheduleX: 1\r\na:  1 \r\nb: \xff\r\nNats-TTL: 1\r\npostdate-key: k\r\n\r\n";
        let incoming = IncomingHeaders::of_bytes(raw);
        let names = |keeps| {
            incoming
                .headers(keeps)
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
        let decided = IncomingHeaders::of_bytes(
            b"NATS/1.0\r\npostdate-after: 1s\r\nNats-Schedule: @at x\r\n\r\n",
        );
        assert_eq!(decided.headers(true).count(), 1);
    }
}
