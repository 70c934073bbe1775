//! Messages that were claimed and are under way: which stage of delivery each has reached, and the record that it goes out as.

use super::load::ResidentRun;
use crate::broker::OutgoingRecord;
use crate::model::header_name::{self, ControlHeader};
use crate::model::{
    Cursor, Dialect, Disposition, Level, Message, OriginFormat, Partition, Reason, RetryState,
    ShardId, Timestamp, retry,
};
use crate::store::OutcomeCounts;
use crate::trace::{BatchLinks, Tracer};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;

/// The messages of one claim. Each goes out by [`Stage::Target`] unless it is diverted.
pub(crate) struct ClaimedBatch {
    pub(crate) messages: Vec<(Rc<ResidentRun>, u32)>,
    /// The first that was not handed over yet.
    pub(crate) next_unsent: usize,
    /// Those before it went in transactions that are committed.
    pub(crate) committed: usize,
    /// Places that were cancelled before the claim: never handed over.
    pub(crate) cancelled: Vec<Cursor>,
    /// The few whose way is another, by index.
    pub(crate) reroutes: BTreeMap<usize, Reroute>,
    /// Of those that were handed over, and not settled by an earlier transaction.
    pub(crate) trace_links: BatchLinks,
    /// One of these named a target of its own.
    pub(crate) names_target: bool,
}

/// Where a message goes instead of its target, and why.
#[derive(Clone, Debug)]
pub(crate) struct Reroute {
    pub(crate) destination: Destination,
    pub(crate) reason: Reason,
    pub(crate) detail: String,
    /// How often this stage itself has failed.
    pub(crate) failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Target,
    /// Back through the source, to be tried again at the instant.
    RetryViaSource {
        attempt: u32,
        next: Timestamp,
    },
    /// To the dead letters, whole.
    DeadLetter,
    /// To the dead letters without payload and headers, for whole it is too large there too.
    DeadLetterByReference,
    /// Without its key either, for that alone is too large: one record must not hold up its shard.
    DeadLetterWithoutKey,
}

impl ClaimedBatch {
    /// The messages go in the order of their places (G4), wherever among them the late ones are.
    pub(crate) fn new(
        mut messages: Vec<(Rc<ResidentRun>, u32)>,
        mut cancelled: Vec<Cursor>,
    ) -> Self {
        let place = |(resident, at): &(Rc<ResidentRun>, u32)| resident.run.place(*at as usize);
        if !messages.is_sorted_by_key(place) {
            messages.sort_by_key(place);
        }
        cancelled.sort_unstable();
        let (diverted, links) = (BTreeMap::new(), BatchLinks::default());
        Self {
            messages,
            next_unsent: 0,
            committed: 0,
            cancelled,
            reroutes: diverted,
            trace_links: links,
            names_target: false,
        }
    }

    /// The place of the first message that was not handed over yet.
    pub(crate) fn next_unsent_place(&self) -> Option<Cursor> {
        (self.next_unsent < self.messages.len()).then(|| self.place(self.next_unsent))
    }

    pub(crate) fn place(&self, index: usize) -> Cursor {
        let (resident, at) = &self.messages[index];
        resident.run.place(*at as usize)
    }

    /// `None`: the record's bytes are not what this version can read.
    pub(crate) fn message(&self, index: usize) -> Option<Message<'_>> {
        let (resident, at) = &self.messages[index];
        resident.run.message(*at as usize)
    }

    /// The ids that are free again once these are settled. Most messages have none, and are not read again for that.
    pub(crate) fn released_ids(
        &self,
        indexes: Range<usize>,
    ) -> impl Iterator<Item = (Box<str>, Cursor)> {
        let with_id = self.messages[indexes]
            .iter()
            .filter(|(resident, at)| resident.run.has_id(*at as usize));
        let read = with_id.filter_map(|(resident, at)| resident.run.message(*at as usize));
        read.filter_map(|message| message.body.id.map(|id| (id.into(), message.position)))
    }

    /// The due that a message's lateness is measured from, if it was stored before it: else it is not the service's.
    pub(crate) fn due_for_lateness(&self, index: usize) -> Option<Timestamp> {
        let (resident, at) = &self.messages[index];
        if resident.run.slice().level == Level::Now {
            return None;
        }
        if resident.run.is_plain_delivery(*at as usize) {
            Some(self.place(index).due)
        } else {
            original_due(&self.message(index)?)
        }
    }

    /// Whether it is to be delivered at its due, and not for the second time.
    pub(crate) fn is_first_delivery(&self, index: usize) -> bool {
        let (resident, at) = &self.messages[index];
        resident.run.is_plain_delivery(*at as usize)
    }

    /// The next was handed over.
    pub(crate) fn on_sent(&mut self, tracer: &Tracer, now: Timestamp) {
        if tracer.is_enabled()
            && let (resident, at) = &self.messages[self.next_unsent]
            && let Some(message) = resident.run.message(*at as usize)
        {
            self.names_target |= message.body.target.is_some();
            tracer.link_message(&mut self.trace_links, message.body.headers, now);
        }
    }

    /// What of it went in a transaction that was undone is to be handed over again.
    pub(crate) fn rewind_uncommitted(&mut self) {
        (self.next_unsent, self.trace_links) = (self.committed, BatchLinks::default());
    }

    /// What these come to, once they are settled.
    pub(crate) fn outcomes(&self, indexes: Range<usize>) -> OutcomeCounts {
        let mut tally = OutcomeCounts::default();
        for index in indexes {
            let count = match self
                .reroutes
                .get(&index)
                .map(|diverted| diverted.destination)
            {
                _ if self.is_cancelled(self.place(index)) => &mut tally.cancelled,
                None | Some(Destination::Target) => &mut tally.delivered,
                Some(Destination::RetryViaSource { .. }) => &mut tally.retried,
                Some(_) => &mut tally.dead_lettered,
            };
            *count += 1;
        }
        tally
    }

    pub(crate) fn is_cancelled(&self, place: Cursor) -> bool {
        !self.cancelled.is_empty() && self.cancelled.binary_search(&place).is_ok()
    }

    /// Those that are handed over in a transaction under way.
    pub(crate) fn uncommitted(&self) -> Range<usize> {
        self.committed..self.next_unsent
    }
}

/// Of several flights the one that has the least place of all that are not handed over, and the least place of the others.
pub(crate) fn next_batch<'a>(
    flights: impl Iterator<Item = (u32, &'a ClaimedBatch)>,
) -> Option<(u32, Option<Cursor>)> {
    let (mut first, mut second): (Option<(Cursor, u32)>, Option<Cursor>) = (None, None);
    for (number, place) in
        flights.filter_map(|(number, aloft)| Some((number, aloft.next_unsent_place()?)))
    {
        if first.is_none_or(|(least, _)| place < least) {
            second = first.map(|(least, _)| least);
            first = Some((place, number));
        } else if second.is_none_or(|least| place < least) {
            second = Some(place);
        }
    }
    first.map(|(_, number)| (number, second))
}

/// What goes out beside a message's own parts; reused from record to record.
#[derive(Default)]
pub(crate) struct RecordBuilder {
    origin: String,
    due: String,
    detail: String,
    retry: String,
}

/// Where records of a shard go.
#[derive(Clone, Copy)]
pub(crate) struct RecordContext<'a> {
    pub(crate) shard: &'a ShardId,
    pub(crate) origins: &'a OriginFormat,
    pub(crate) target: &'a str,
    pub(crate) dead_letter: &'a str,
}

/// The due time that the message's consumer is told: the first record's own, through all retries. `None`: it never had one.
pub(crate) fn original_due(message: &Message<'_>) -> Option<Timestamp> {
    match message.body.disposition {
        Disposition::Deliver => Some(message.position.due),
        Disposition::Relay { timestamp } => Some(timestamp),
        Disposition::Retry(retry) => Some(retry.due),
        Disposition::DeadLetter { .. } => None,
    }
}

/// A record on its way to its target, without what only its dialect has a use for.
fn without_dialect_parts(
    whole: OutgoingRecord<'_>,
    dialect: Option<Dialect>,
) -> OutgoingRecord<'_> {
    let Some(dialect) = dialect else { return whole };
    OutgoingRecord {
        key: dialect.key_on_delivery(whole.key, whole.headers),
        keep_header: dialect.stays_on_delivery(),
        ..whole
    }
}

impl RecordBuilder {
    /// Calls `send` with the record that `message` goes out as.
    pub(crate) fn build<T>(
        &mut self,
        ways: RecordContext<'_>,
        message: &Message<'_>,
        diverted: Option<&Reroute>,
        send: impl FnOnce(&OutgoingRecord<'_>) -> T,
    ) -> T {
        self.write_labels(ways, message, diverted);
        let origin = (header_name::ORIGIN, self.origin.as_bytes());
        let due = (header_name::DUE, self.due.as_bytes());
        let code = (
            header_name::ERROR,
            diverted
                .map_or("", |diverted| diverted.reason.code())
                .as_bytes(),
        );
        let detail = (header_name::ERROR_DETAIL, self.detail.as_bytes());
        let retry = [(ControlHeader::Retry.name(), self.retry.as_bytes())];
        let labels = [due, origin, code, detail];
        // What never had a due time is told none.
        let labels = &labels[usize::from(self.due.is_empty())..];
        let whole = OutgoingRecord {
            topic: ways.target,
            partition: None,
            key: message.body.key,
            payload: message.body.payload,
            headers: message.body.headers,
            keep_header: header_name::stays_on_delivery,
            extra_headers: &labels[..labels.len() - 2],
        };
        let dead = OutgoingRecord {
            topic: ways.dead_letter,
            keep_header: header_name::stays_on_dead_letter,
            extra_headers: labels,
            ..whole
        };
        match diverted.map_or(Destination::Target, |diverted| diverted.destination) {
            Destination::Target => send(&without_dialect_parts(whole, message.body.dialect)),
            Destination::RetryViaSource { .. } => {
                let Partition { topic, index } = &ways.shard.partition;
                send(&OutgoingRecord {
                    topic,
                    partition: Some(*index),
                    keep_header: header_name::stays_on_retry,
                    extra_headers: &retry,
                    ..whole
                })
            }
            Destination::DeadLetter => send(&dead),
            Destination::DeadLetterByReference => send(&OutgoingRecord {
                payload: None,
                keep_header: |_| false,
                ..dead
            }),
            Destination::DeadLetterWithoutKey => send(&OutgoingRecord {
                key: None,
                payload: None,
                keep_header: |_| false,
                ..dead
            }),
        }
    }

    fn write_labels(
        &mut self,
        ways: RecordContext<'_>,
        message: &Message<'_>,
        diverted: Option<&Reroute>,
    ) {
        for text in [
            &mut self.origin,
            &mut self.due,
            &mut self.detail,
            &mut self.retry,
        ] {
            text.clear();
        }
        match message.body.disposition {
            Disposition::Retry(retry) => self.origin.push_str(retry.origin),
            _ => ways
                .origins
                .append_origin(message.position.offset, &mut self.origin),
        }
        if let Some(due) = original_due(message) {
            self.due
                .push_str(itoa::Buffer::new().format(due.as_millis()));
        }
        let Some(Reroute {
            destination: stage,
            reason,
            detail,
            ..
        }) = diverted
        else {
            return;
        };
        self.detail.push_str(detail);
        match *stage {
            Destination::Target | Destination::DeadLetter => {}
            Destination::DeadLetterByReference | Destination::DeadLetterWithoutKey => {
                let (payload, headers) = (
                    message.body.payload.map_or(0, <[u8]>::len),
                    message.body.headers.as_block().len(),
                );
                let _infallible = write!(
                    self.detail,
                    "; sent by reference: its payload has {payload} bytes, its headers {headers}"
                );
                if *stage == Destination::DeadLetterWithoutKey {
                    let _infallible = write!(
                        self.detail,
                        ", its key, which is left out too, {}",
                        message.body.key.map_or(0, <[u8]>::len)
                    );
                }
            }
            Destination::RetryViaSource { attempt, next } => {
                let due = original_due(message).unwrap_or(message.position.due);
                let retry = RetryState {
                    attempt,
                    origin: &self.origin,
                    due,
                    error: *reason,
                };
                let _infallible = write!(
                    self.retry,
                    "{}",
                    retry::RetryHeader {
                        retry,
                        target: message.body.target,
                        dialect: message.body.dialect,
                        at: next
                    }
                );
            }
        }
    }
}

/// One message in flight, as a number that a target carries for us: the work's slot, the flight, the index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) slot: u16,
    pub(crate) batch: u32,
    pub(crate) index: u16,
}

impl Ticket {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.slot) << 48 | u64::from(self.batch) << 16 | u64::from(self.index)
    }

    pub(crate) fn unpack(packed: u64) -> Self {
        Self {
            slot: (packed >> 48) as u16,
            batch: (packed >> 16) as u32,
            index: packed as u16,
        }
    }

    /// Whether the two are of one flight of one work.
    pub(crate) fn is_same_batch(self, other: Self) -> bool {
        (self.slot, self.batch) == (other.slot, other.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::{Body, Headers, Offset};

    type Sent = (String, Option<Vec<u8>>, Vec<String>);

    /// Topic, key and the names of the headers, as they go out.
    fn sent(message: &Message<'_>, stage: Destination) -> Sent {
        let shard = ShardId::new("r", Partition::new("source", 3));
        let origins = OriginFormat::new("d", &shard);
        let ways = RecordContext {
            shard: &shard,
            origins: &origins,
            target: "target",
            dead_letter: "dead",
        };
        let diverted = Reroute {
            destination: stage,
            reason: Reason::TimedOut,
            detail: String::new(),
            failures: 0,
        };
        RecordBuilder::default().build(
            ways,
            message,
            Some(&diverted).filter(|diverted| diverted.destination != Destination::Target),
            |record| {
                let names = record
                    .all_headers()
                    .map(|(name, _)| String::from_utf8_lossy(name).into_owned());
                (
                    record.topic.to_owned(),
                    record.key.map(<[u8]>::to_vec),
                    names.collect(),
                )
            },
        )
    }

    #[test]
    fn what_a_dialect_said_stays_on_a_message_until_its_target() {
        let names = [
            "own",
            "postdate-id",
            "scheduler-epoch",
            "scheduler-target-key",
            "x-delay",
        ];
        let mut block = Vec::new();
        names
            .iter()
            .for_each(|name| push_header(&mut block, name.as_bytes(), Some(name.as_bytes())));
        let headers = Headers::from_block(&block);
        let body = |dialect, disposition| Body {
            key: Some(b"key"),
            payload: Some(b"payload"),
            headers,
            id: None,
            target: None,
            dialect,
            disposition,
        };
        let place = Cursor::new(Timestamp::from_millis(7), Offset(1));
        let retry = RetryState {
            attempt: 1,
            origin: "o",
            due: Timestamp::from_millis(5),
            error: Reason::TimedOut,
        };
        let back = Destination::RetryViaSource {
            attempt: 1,
            next: Timestamp::from_millis(9),
        };
        let expected = |topic: &str, key: &str, kept: &[&str], added: &[&str]| -> Sent {
            (
                topic.to_owned(),
                Some(key.as_bytes().to_vec()),
                [kept, added]
                    .concat()
                    .into_iter()
                    .map(str::to_owned)
                    .collect(),
            )
        };
        let (labels, errors) = (
            ["postdate-due", "postdate-origin"],
            [
                "postdate-due",
                "postdate-origin",
                "postdate-error",
                "postdate-error-detail",
            ],
        );
        for disposition in [Disposition::Deliver, Disposition::Retry(retry)] {
            let message = Message {
                position: place,
                body: body(Some(Dialect::Etf1), disposition),
            };
            assert_eq!(
                sent(&message, Destination::Target),
                expected(
                    "target",
                    "scheduler-target-key",
                    &["own", "x-delay"],
                    &labels
                )
            );
            assert_eq!(
                sent(&message, back),
                expected("source", "key", &names, &["postdate-retry"])
            );
            assert_eq!(
                sent(&message, Destination::DeadLetter),
                expected("dead", "key", &names, &errors)
            );
            assert_eq!(
                sent(&message, Destination::DeadLetterByReference),
                expected("dead", "key", &[], &errors)
            );
        }
        let message = Message {
            position: place,
            body: body(None, Disposition::Deliver),
        };
        assert_eq!(
            sent(&message, Destination::Target),
            expected(
                "target",
                "key",
                &["own", "scheduler-epoch", "scheduler-target-key", "x-delay"],
                &labels
            )
        );
    }
}
