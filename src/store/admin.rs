//! The part of the store port for the admin server: the list of the last audit lines, and requests with an idempotency key.

use super::{Error, StoreQuery};
use crate::model::Timestamp;
use async_trait::async_trait;
use bytes::Bytes;
use std::time::Duration;

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

/// A part of the audit list. Each part has a bound of its own, so the lines of frequent requests never remove those of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuditPart {
    Changes,
    /// Lines that programs may cause many times a second, like those of publishes.
    Frequent,
}

impl AuditPart {
    pub(crate) const ALL: [Self; 2] = [Self::Changes, Self::Frequent];
}

/// A line of the audit list as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditRow {
    pub(crate) part: AuditPart,
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
    pub(super) fn from_joined(part: AuditPart, joined: &Bytes) -> Option<Self> {
        let (position, _) = joined.split_at_checked(POSITION_LENGTH)?;
        let position = AuditPosition::parse(std::str::from_utf8(position).ok()?)?;
        let bytes = joined.slice(POSITION_LENGTH..);
        Some(Self {
            part,
            position,
            bytes,
        })
    }

    /// The newest rows of all parts, at most `limit`.
    pub(super) fn newest(mut rows: Vec<Self>, limit: usize) -> Vec<Self> {
        rows.sort_by(|a, b| a.position.cmp(&b.position).reverse());
        rows.truncate(limit);
        rows
    }
}

/// The writes of the admin server. [`StoreQuery`] has the reads.
#[async_trait(?Send)]
pub(crate) trait AdminStore: StoreQuery {
    /// Adds lines to the audit list, and keeps the last [`AUDIT_LINES_MAX`](crate::limit::AUDIT_LINES_MAX)
    /// lines of each part of it.
    ///
    /// Safe to repeat. On a full store: [`Error::Full`].
    async fn add_audit_rows(&self, rows: &[AuditRow]) -> Result<(), Error>;

    /// Keeps the state of a request for this time by the clock of the store, unless one of this name is kept: then it answers
    /// the kept state and changes nothing. Only one of two concurrent calls answers `None`. A repeat finds its own state.
    ///
    /// On a full store: [`Error::Full`].
    async fn begin_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        kept_for: Duration,
    ) -> Result<Option<Bytes>, Error>;

    /// Keeps another state of a request until `until`. If more than `kept_max` requests are kept, those that end first are
    /// forgotten. A store of one process may count requests that have not ended, too.
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
        let part = AuditPart::Frequent;
        let row = AuditRow {
            part,
            position: later,
            bytes: Bytes::from_static(b"\xff"),
        };
        assert_eq!(AuditRow::from_joined(part, &row.joined().into()), Some(row));
        let foreign = Bytes::from_static(b"foreign");
        assert_eq!(AuditRow::from_joined(part, &foreign), None);
    }
}
