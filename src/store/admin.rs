//! The part of the store port for the admin server: the list of the last audit lines, and requests with an idempotency key.

use super::{Error, StoreQuery};
use crate::model::Timestamp;
use async_trait::async_trait;
use bytes::Bytes;

/// Time in 16 hex digits, the number of the process in 16, and the number of the line in 8.
const POSITION_LENGTH: usize = 40;

/// The position of a line in the audit list, as text. Ordered by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AuditPosition(Box<str>);

impl AuditPosition {
    /// `process` is a number that no other process has, and `number` one that it uses once.
    pub(crate) fn new(at: Timestamp, process: u64, number: u32) -> Self {
        let at = at.to_ordered_bits();
        Self(format!("{at:016x}{process:016x}{number:08x}").into())
    }

    /// `None`: no text of a position.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_position = text.len() == POSITION_LENGTH && text.bytes().all(is_digit);
        is_position.then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a request with an idempotency key: a hash, as lower-case hex digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestName(Box<str>);

impl RequestName {
    pub(crate) fn of_hash(hash: &[u8]) -> Self {
        let digits = hash.iter().map(|byte| format!("{byte:02x}"));
        Self(digits.collect::<String>().into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A line of the audit list as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditRow {
    pub(crate) position: AuditPosition,
    /// Encrypted, if the store encrypts payloads.
    pub(crate) bytes: Bytes,
}

impl AuditRow {
    /// Position and bytes, one after the other.
    pub(super) fn joined(&self) -> Vec<u8> {
        [self.position.as_str().as_bytes(), &self.bytes].concat()
    }

    /// `None`: no row.
    pub(super) fn from_joined(joined: &Bytes) -> Option<Self> {
        let (position, _) = joined.split_at_checked(POSITION_LENGTH)?;
        let position = AuditPosition::parse(std::str::from_utf8(position).ok()?)?;
        let bytes = joined.slice(POSITION_LENGTH..);
        Some(Self { position, bytes })
    }
}

/// The writes of the admin server. [`StoreQuery`] has the reads.
#[async_trait(?Send)]
pub(crate) trait AdminStore: StoreQuery {
    /// Adds lines to the audit list, and keeps the last [`AUDIT_LINES_MAX`](crate::limit::AUDIT_LINES_MAX)
    /// lines of it.
    ///
    /// Safe to repeat. On a full store: [`Error::Full`].
    async fn add_audit_rows(&self, rows: &[AuditRow]) -> Result<(), Error>;

    /// Keeps the state of a request until `until`, unless one of this name is kept: then it answers the kept state and
    /// changes nothing. Only one of two concurrent calls answers `None`. A repeat finds its own state.
    ///
    /// On a full store: [`Error::Full`].
    async fn begin_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        until: Timestamp,
    ) -> Result<Option<Bytes>, Error>;

    /// Keeps another state of a request until `until`. If more than `kept_max` requests are kept, those that end first are
    /// forgotten.
    ///
    /// Safe to repeat. On a full store: [`Error::Full`].
    async fn end_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        until: Timestamp,
        kept_max: usize,
    ) -> Result<(), Error>;

    /// Forgets a request that has not ended. Safe to repeat. Works on a full store.
    async fn forget_request(&self, name: &RequestName) -> Result<(), Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_ordered_by_time_and_read_back() {
        let position =
            |at, process, number| AuditPosition::new(Timestamp::from_millis(at), process, number);
        let earlier = position(-1, u64::MAX, u32::MAX);
        let later = position(1, 0, 7);
        assert!(earlier < later && later < position(1, 0, 8));
        assert_eq!(AuditPosition::parse(later.as_str()), Some(later.clone()));
        for text in [
            "",
            "a",
            &later.as_str().to_uppercase().replace('0', "A"),
            &"é".repeat(20),
        ] {
            assert_eq!(AuditPosition::parse(text), None, "{text}");
        }
        let row = AuditRow {
            position: later,
            bytes: Bytes::from_static(b"\xff"),
        };
        assert_eq!(AuditRow::from_joined(&row.joined().into()), Some(row));
        assert_eq!(AuditRow::from_joined(&Bytes::from_static(b"foreign")), None);
    }
}
