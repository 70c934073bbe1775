//! The message: a record and what Postdate knows of it. All of it is borrowed from one decoded buffer: a message is a view, never an
//! allocation.

use crate::model::dialect::Dialect;
use crate::model::headers::header::Headers;
use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::protocol::progress::Cursor;
use crate::model::shard::Offset;
use crate::model::time::Timestamp;

/// A record as a source hands it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) offset: Offset,
    /// The record's own timestamp; `None` if the broker knows none.
    pub(crate) timestamp: Option<Timestamp>,
    /// Null is not the empty key.
    pub(crate) key: Option<&'a [u8]>,
    /// Null (a tombstone) is not the empty payload.
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: Headers<'a>,
}

/// What waits in a shard: where it goes in order, and its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) position: Cursor,
    pub(crate) body: Body<'a>,
}

/// All of a message but its place. Key and headers are the record's own, control headers included: what of them the target does not get is
/// decided at delivery, so that a dead letter still shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Body<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: Headers<'a>,
    /// The caller's id, for cancel and replace.
    pub(crate) id: Option<&'a str>,
    /// What the message named itself; `None`: the route's default, resolved at delivery.
    pub(crate) target: Option<&'a str>,
    /// The other system in whose headers the message said when it is due: they are taken off at delivery, and may name another key.
    pub(crate) dialect: Option<Dialect>,
    pub(crate) disposition: Disposition<'a>,
}

/// What is to happen with a message at its due time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Disposition<'a> {
    /// Delivered to its target.
    #[default]
    Deliver,
    /// Delivered at once, for it carried no delay. `timestamp` is the record's own: it stands for the due time in `postdate-due`.
    Relay { timestamp: Timestamp },
    /// Refused on reading; goes to the dead letters.
    DeadLetter { reason: Reason, detail: &'a str },
    /// Came back through the source after a delivery that failed for now.
    Retry(RetryState<'a>),
}

/// What the `postdate-retry` header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryState<'a> {
    /// How often delivery failed so far, from 1.
    pub(crate) attempt: u32,
    /// The first record's `postdate-origin`.
    pub(crate) origin: &'a str,
    /// The first record's due time; the entry itself is due at the next attempt.
    pub(crate) due: Timestamp,
    /// Why the last attempt failed.
    pub(crate) error: Reason,
}
