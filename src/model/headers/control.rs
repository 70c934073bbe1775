//! A control record: it pauses or resumes the delivery of its partition. The header `postdate-retry` has
//! a line of version 3, so that an older version stops in front of the record:
//!
//! ```text
//! v3 mac=<signature> op=pause origin=prod/orders/orders.delayed/0/0 at=1700000000000 note=aW5jaWRlbnQ
//! ```
//!
//! | field | what |
//! |---|---|
//! | `op` | `pause` or `resume` |
//! | `origin` | the partition, as the origin of its first record |
//! | `at` | when it was asked for, epoch milliseconds. A record that is not later than the last one changes nothing |
//! | `note` | who has asked for it, and why, in base64 |
//!
//! More fields may follow; this version ignores them. The record has no key and no payload.

use super::retry::RetryLine;
use super::retry_keys::{RetryKeys, Signed};
use crate::limit::PAUSE_NOTE_BYTES_MAX;
use crate::model::time::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::fmt::{self, Write};
use std::sync::Arc;

/// The version of lines of control records.
pub(super) const CONTROL_VERSION: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control<'a> {
    /// False: it resumes.
    pub(crate) pauses: bool,
    pub(crate) origin: &'a str,
    pub(crate) at: Timestamp,
    pub(crate) note: Arc<str>,
}

impl<'a> Control<'a> {
    /// The line of the header, signed. `None` without a key: then a forged line looks the same.
    pub(crate) fn signed_line(&self, keys: &RetryKeys) -> Option<String> {
        if !keys.can_sign() {
            return None;
        }
        let (fields, mut line) = (self.to_string(), format!("v{CONTROL_VERSION} mac="));
        let signed = Signed {
            version: CONTROL_VERSION,
            fields: &fields,
            key: None,
            payload: None,
        };
        keys.append_mac(signed, &mut line);
        let _infallible = write!(line, " {fields}");
        Some(line)
    }

    /// `None`: the fields are malformed, or of a newer version. A note that is too long is cut.
    pub(in crate::model) fn parse(line: &RetryLine<'a>) -> Option<Self> {
        let mut fields = line.control_fields()?.split(' ');
        let mut value = |key: &str| fields.next()?.strip_prefix(key)?.strip_prefix('=');
        let pauses = match value("op")? {
            "pause" => true,
            "resume" => false,
            _ => return None,
        };
        let (origin, at) = (value("origin")?, value("at")?.parse().ok()?);
        let note = STANDARD_NO_PAD.decode(value("note")?).ok()?;
        let note = String::from_utf8(note).ok()?;
        let end = note.floor_char_boundary(PAUSE_NOTE_BYTES_MAX);
        Some(Self {
            pauses,
            origin,
            at: Timestamp::from_millis(at),
            note: note[..end].into(),
        })
    }
}

impl fmt::Display for Control<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = if self.pauses { "pause" } else { "resume" };
        let (origin, at) = (self.origin, self.at.as_millis());
        let note = STANDARD_NO_PAD.encode(&*self.note);
        write!(f, "op={op} origin={origin} at={at} note={note}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "op=pause origin=prod/orders/orders.delayed/0/0 at=1700000000000 note=aW5jaWRlbnQ";

    fn control() -> Control<'static> {
        Control {
            pauses: true,
            origin: "prod/orders/orders.delayed/0/0",
            at: Timestamp::from_millis(1_700_000_000_000),
            note: "incident".into(),
        }
    }

    #[test]
    fn a_signed_line_reads_back() {
        let keys = RetryKeys::new("0123456789abcdef0123456789abcdef", false);
        assert_eq!(control().to_string(), LINE);
        let line = control().signed_line(&keys).unwrap();
        assert!(line.starts_with("v3 mac=") && line.ends_with(LINE));
        let parsed = RetryLine::parse(&line).unwrap();
        assert_eq!(Control::parse(&parsed), Some(control()));
        assert!(!parsed.is_newer());
        assert_eq!(control().signed_line(&RetryKeys::default()), None);
    }

    #[test]
    fn a_note_that_is_too_long_stops_no_partition() {
        let note = STANDARD_NO_PAD.encode("x".repeat(PAUSE_NOTE_BYTES_MAX + 1));
        let line = format!("v3 mac=- {}", LINE.replace("aW5jaWRlbnQ", &note));
        let line = RetryLine::parse(&line).unwrap();
        let control = Control::parse(&line).unwrap();
        assert_eq!(control.note.len(), PAUSE_NOTE_BYTES_MAX);
    }

    #[test]
    fn another_line_is_no_control() {
        let parse = |line: &str| {
            let line = RetryLine::parse(line).unwrap();
            Control::parse(&line).is_some()
        };
        assert!(parse(&format!("v3 mac=- {LINE}")));
        assert!(parse(&format!("v3 mac=- {LINE} more=1")));
        assert!(!parse(&format!("v2 mac=- {LINE}")));
        for (from, to) in [
            ("op=pause", "op=stop"),
            ("at=1700000000000", "at=soon"),
            (" note=aW5jaWRlbnQ", ""),
            ("aW5jaWRlbnQ", "%"),
        ] {
            assert!(
                !parse(&format!("v3 mac=- {}", LINE.replace(from, to))),
                "{to}"
            );
        }
    }
}
