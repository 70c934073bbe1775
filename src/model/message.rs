//! A message: a record, and what Postdate knows about it. All parts are borrowed from one decoded
//! buffer, so a message needs no allocation.

use crate::model::answer::{AnswerState, Request};
use crate::model::dialect::Dialect;
use crate::model::headers::header::Headers;
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
use crate::model::parsing::rejection::Rejection;
use crate::model::parsing::reply::Reply;
use crate::model::protocol::progress::Cursor;
use crate::model::shard::Offset;
use crate::model::time::Timestamp;

/// A record as a source returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) offset: Offset,
    /// The record's own timestamp. `None` if the broker has none.
    pub(crate) timestamp: Option<Timestamp>,
    /// Null is not the empty key.
    pub(crate) key: Option<&'a [u8]>,
    /// Null (a tombstone) is not the empty payload.
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: Headers<'a>,
}

impl Record<'_> {
    /// The size of key, payload and headers.
    pub(crate) fn bytes(&self) -> usize {
        let size = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        size(self.key) + size(self.payload) + self.headers.as_block().len()
    }
}

/// A message that waits in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) place: Cursor,
    pub(crate) body: Body<'a>,
}

/// A message without its place. Key and headers are those of the record, control headers
/// included. The headers that the target does not get are removed at delivery, so a dead letter
/// still has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Body<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: Headers<'a>,
    /// The producer's id for cancel and replace.
    pub(crate) id: Option<&'a str>,
    /// The target that the message names. `None`: the route's default, resolved at delivery.
    pub(crate) target: Option<&'a str>,
    /// The message is not delivered after this time.
    pub(crate) until: Option<Timestamp>,
    /// The other system whose headers give the due time, and maybe another key.
    pub(crate) dialect: Option<Dialect>,
    /// The offset of the waiting message that this copy replaces. Only the append needs it, so no run
    /// stores it.
    pub(crate) replaces: Option<Offset>,
    /// The offset of the place from which the message was sent back. No run stores it either.
    pub(crate) sent_from: Option<Offset>,
    pub(crate) disposition: Disposition<'a>,
}

impl<'a> Body<'a> {
    /// The body of a message that is delivered as its record, to the default target.
    pub(super) fn of(record: &Record<'a>) -> Self {
        Self {
            key: record.key,
            payload: record.payload,
            headers: record.headers,
            ..Self::default()
        }
    }

    /// The answer to a record with this key.
    pub(crate) fn answer(
        key: Option<&'a [u8]>,
        reply: Reply<'a>,
        request: Request,
        id: Option<&'a str>,
    ) -> Self {
        let request_id = reply.request_id;
        Self {
            key,
            target: Some(reply.target),
            disposition: Disposition::Answer(AnswerState {
                request,
                request_id,
                id,
            }),
            ..Self::default()
        }
    }

    pub(crate) fn is_answer(&self) -> bool {
        matches!(
            self.disposition,
            Disposition::Answer(_) | Disposition::RetriedAnswer(_)
        )
    }

    /// Returns `true` if no message was accepted before for the same record: it is no retry.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.disposition, Disposition::Deliver)
    }

    /// The body of a rejected record. Its message is due at once.
    pub(crate) fn rejected(record: &Record<'a>, rejection: &'a Rejection) -> Self {
        let disposition = Disposition::DeadLetter {
            reason: rejection.reason,
            detail: &rejection.detail,
        };
        Self {
            disposition,
            ..Self::of(record)
        }
    }
}

/// The action at the due time of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Disposition<'a> {
    /// Delivered to its target.
    #[default]
    Deliver,
    /// Delivered at once, because it has no delay. The record's own timestamp is sent as due.
    Relay { timestamp: Timestamp },
    /// Rejected by the ingress; sent to the dead-letter topic.
    DeadLetter {
        reason: DeadLetterReason,
        detail: &'a str,
    },
    /// Came back through the source after a failed delivery, or with a new due time.
    Retry(RetryState<'a>),
    /// The answer to the record, delivered at once. Its payload is made at delivery.
    Answer(AnswerState<'a>),
    /// An answer that came back through the source after a failed delivery. Its payload is the
    /// answer.
    RetriedAnswer(RetryState<'a>),
    /// One delivery of a schedule. It is computed, and never stored.
    Occurrence(ScheduleState<'a>),
}

/// The schedule of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduleState<'a> {
    /// The id of the schedule.
    pub(crate) schedule: &'a str,
    /// The due time without the spread.
    pub(crate) planned: Timestamp,
    /// The planned time of the next occurrence.
    pub(crate) next: Option<Timestamp>,
}

/// The content of the `postdate-retry` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryState<'a> {
    /// Number of failed deliveries. 0: the message was only rescheduled.
    pub(crate) attempt: u32,
    /// The first record's `postdate-origin`.
    pub(crate) origin: &'a str,
    /// The first record's due time, or that of the last reschedule. The message itself is due at
    /// the next attempt.
    pub(crate) due: Timestamp,
    /// Why the last attempt failed. `None`: there was none.
    pub(crate) error: Option<DeadLetterReason>,
}
