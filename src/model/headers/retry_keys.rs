//! The keys that sign `postdate-retry`, so that a producer cannot forge it.
//!
//! The signature is an HMAC-SHA-256 of the line, the key and the payload of the record. It depends
//! on the record and the configuration only, so it verifies after a lost store too.

use super::retry::RetryLine;
use crate::model::message::Record;
use ring::hmac;
use std::fmt::{self, Write};
use std::sync::Arc;

/// The value of `mac` in a line that was not signed.
pub(super) const UNSIGNED: &str = "-";

/// Without a key, lines are written and accepted unsigned.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct RetryKeys {
    keys: Arc<[Box<str>]>,
    accepts_unsigned: bool,
}

/// The result of a check of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum Proof {
    /// A process of this deployment wrote the line on this record.
    Genuine,
    /// It is unsigned, and unsigned lines are accepted.
    Unsigned,
    Forged,
}

impl RetryKeys {
    /// `text` has one key a line. The first one signs, and each of them verifies.
    pub(crate) fn new(text: &str, accepts_unsigned: bool) -> Self {
        Self {
            keys: text.lines().map(Box::from).collect(),
            accepts_unsigned,
        }
    }

    pub(super) fn can_sign(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Appends the signature of a line with these fields to `out`.
    pub(super) fn append_mac(&self, signed: Signed<'_>, out: &mut String) {
        match self.keys.first() {
            Some(key) => {
                let tag = hmac::sign(&hmac_key(key), &signed.bytes());
                for byte in tag.as_ref() {
                    let _infallible = write!(out, "{byte:02x}");
                }
            }
            None => out.push_str(UNSIGNED),
        }
    }

    /// Compares in constant time.
    pub(in crate::model) fn check(&self, line: &RetryLine<'_>, record: &Record<'_>) -> Proof {
        if line.mac == UNSIGNED || self.keys.is_empty() {
            let is_accepted = self.keys.is_empty() || self.accepts_unsigned;
            return if is_accepted {
                Proof::Unsigned
            } else {
                Proof::Forged
            };
        }
        let Some(mac) = parse_hex(line.mac) else {
            return Proof::Forged;
        };
        let bytes = line.signed(record.key, record.payload).bytes();
        let verifies = |key: &str| hmac::verify(&hmac_key(key), &bytes, &mac).is_ok();
        if self.keys.iter().any(|key| verifies(key)) {
            Proof::Genuine
        } else {
            Proof::Forged
        }
    }
}

/// Never prints a key.
impl fmt::Debug for RetryKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} retry keys", self.keys.len())
    }
}

/// The parts of a record that its signature covers. NATS cannot tell a null value from an empty
/// one, so both sign alike.
#[derive(Clone, Copy)]
pub(super) struct Signed<'a> {
    pub(super) version: u32,
    pub(super) fields: &'a str,
    pub(super) key: Option<&'a [u8]>,
    pub(super) payload: Option<&'a [u8]>,
}

impl Signed<'_> {
    /// Each part is preceded by its length, so that no two records have the same bytes.
    fn bytes(self) -> Vec<u8> {
        let parts = [
            self.fields.as_bytes(),
            self.key.unwrap_or_default(),
            self.payload.unwrap_or_default(),
        ];
        let length: usize = parts.iter().map(|part| part.len() + 8).sum();
        let mut bytes = Vec::with_capacity(4 + length);
        bytes.extend(self.version.to_le_bytes());
        for part in parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        bytes
    }
}

fn hmac_key(key: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes())
}

/// `None` unless the text is lower-case hex, so that a signature has one spelling.
fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    pairs.iter().map(byte).collect()
}

#[cfg(test)]
impl RetryKeys {
    /// A line of a version that does not exist yet.
    pub(crate) fn newer_line(&self, fields: &str, key: &[u8], payload: &[u8]) -> String {
        let version = 99;
        let mut line = format!("v{version} mac=");
        let signed = Signed {
            version,
            fields,
            key: Some(key),
            payload: Some(payload),
        };
        self.append_mac(signed, &mut line);
        format!("{line} {fields}")
    }
}
