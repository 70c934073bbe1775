//! Builds the record that goes out for a message: to its target, back to its source, or to the
//! dead-letter topic.

use super::outcome::ShardContext;
use crate::broker::OutgoingRecord;
use crate::model::header_name::{self, BY_REFERENCE, ControlHeader};
use crate::model::retry::RetryHeader;
use crate::model::{
    DeadLetterReason, Disposition, Effect, Message, Partition, RetryState, ScheduleState, Timestamp,
};
use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Target,
    /// Back to the source topic, with a retry header that makes the message due again at `next`.
    RetryViaSource {
        attempt: u32,
        next: Timestamp,
    },
    /// Back to the source topic, with a retry header that gives the message this due time.
    Reschedule {
        due: Timestamp,
    },
    /// The dead-letter topic, with payload, key and headers.
    DeadLetter,
    /// The dead-letter topic without payload and headers, because the whole record is too large.
    DeadLetterByReference,
    /// The dead-letter topic without payload, headers and key, because the key alone is too large.
    /// One record must not block its shard.
    DeadLetterWithoutKey,
    /// Nowhere: an answer that its target does not take, or a message that has expired.
    Dropped,
}

impl Destination {
    pub(super) fn is_dead_letter(self) -> bool {
        let others = matches!(
            self,
            Self::Target | Self::RetryViaSource { .. } | Self::Reschedule { .. } | Self::Dropped
        );
        !others
    }
}

/// A destination other than the message's target, and the reason for it.
#[derive(Clone, Debug)]
pub(crate) struct Reroute {
    pub(crate) destination: Destination,
    pub(crate) reason: DeadLetterReason,
    pub(crate) detail: String,
    /// Failed attempts to send to this destination.
    pub(crate) failures: u32,
}

impl Reroute {
    pub(crate) fn new(destination: Destination, reason: DeadLetterReason, detail: String) -> Self {
        Self {
            destination,
            reason,
            detail,
            failures: 0,
        }
    }

    /// The reason is never shown.
    pub(crate) fn reschedule(due: Timestamp) -> Self {
        let destination = Destination::Reschedule { due };
        Self::new(destination, DeadLetterReason::TimedOut, String::new())
    }

    pub(crate) fn dead_letter(reason: DeadLetterReason, detail: String) -> Self {
        Self::new(Destination::DeadLetter, reason, detail)
    }
}

/// The due time in the delivered record: that of the first record, kept through all retries. `None`
/// if the message never had one.
pub(crate) fn original_due(message: &Message<'_>) -> Option<Timestamp> {
    match message.body.disposition {
        Disposition::Deliver => Some(message.place.due),
        Disposition::Relay { timestamp } => Some(timestamp),
        Disposition::Retry(retry) => Some(retry.due),
        Disposition::Occurrence(occurrence) => Some(occurrence.planned),
        Disposition::DeadLetter { .. } | Disposition::Answer(_) | Disposition::RetriedAnswer(_) => {
            None
        }
    }
}

/// Builds records. Its buffers hold the values of the added headers and are reused.
#[derive(Default)]
pub(crate) struct RecordBuilder {
    origin: String,
    due: String,
    next: String,
    detail: String,
    retry: String,
    answer: Vec<u8>,
}

/// The index of the origin among the added headers.
const ORIGIN_AT: usize = 3;

/// Room for the headers that a record gets in addition to its own.
pub(super) type AddedHeaders<'a> = [(&'a str, &'a [u8]); 6];

impl RecordBuilder {
    /// `target` is the topic of a message without a reroute. The record borrows the buffers of the
    /// builder, and `added`.
    pub(super) fn build<'a>(
        &'a mut self,
        context: &'a ShardContext,
        target: &'a str,
        message: &Message<'a>,
        effect: Option<Effect>,
        reroute: Option<&Reroute>,
        added: &'a mut AddedHeaders<'a>,
    ) -> OutgoingRecord<'a> {
        self.write_values(context, message, effect, reroute);
        let body = &message.body;
        let is_answer = matches!(body.disposition, Disposition::Answer(_));
        let code = reroute.map_or("", |reroute| reroute.reason.code());
        let schedule = match body.disposition {
            Disposition::Occurrence(ScheduleState { schedule, .. }) => schedule,
            _ => "",
        };
        // An absent header comes before the others, so that those that are used follow each other.
        *added = [
            (header_name::NEXT, self.next.as_bytes()),
            (header_name::SCHEDULE, schedule.as_bytes()),
            (header_name::DUE, self.due.as_bytes()),
            (header_name::ORIGIN, self.origin.as_bytes()),
            (header_name::ERROR, code.as_bytes()),
            (header_name::ERROR_DETAIL, self.detail.as_bytes()),
        ];
        // A message that never had a due time gets no due header.
        let values = [&*self.next, schedule, &*self.due];
        let first = values.iter().position(|value| !value.is_empty());
        let mut used = first.unwrap_or(ORIGIN_AT)..ORIGIN_AT + 1;
        let mut record = OutgoingRecord {
            topic: target,
            partition: None,
            key: body.key,
            payload: match is_answer {
                true => Some(&self.answer),
                false => body.payload,
            },
            headers: body.headers,
            keep_header: header_name::stays_on_delivery,
            extra_headers: &[],
        };
        match reroute.map_or(Destination::Target, |reroute| reroute.destination) {
            Destination::Target | Destination::Dropped => {
                if !schedule.is_empty() {
                    record.keep_header = header_name::stays_on_occurrence;
                }
                if let Some(dialect) = body.dialect {
                    record.key = dialect.key_on_delivery(body.key, body.headers);
                    record.keep_header = dialect.stays_on_delivery();
                }
                if body.is_answer() {
                    added[ORIGIN_AT].0 = header_name::ANSWER;
                }
            }
            Destination::RetryViaSource { .. } | Destination::Reschedule { .. } => {
                added[0] = (ControlHeader::Retry.name(), self.retry.as_bytes());
                used = 0..1;
                let Partition { topic, index } = &context.shard.partition;
                record.topic = topic;
                record.partition = Some(*index);
                record.keep_header = header_name::stays_on_retry;
            }
            destination @ (Destination::DeadLetter
            | Destination::DeadLetterByReference
            | Destination::DeadLetterWithoutKey) => {
                used.end = 6;
                record.topic = &context.route.dead_letter;
                record.keep_header = header_name::stays_on_dead_letter;
                if destination != Destination::DeadLetter {
                    record.payload = None;
                    record.keep_header = |_| false;
                }
                if destination == Destination::DeadLetterWithoutKey {
                    record.key = None;
                }
            }
        }
        record.extra_headers = &added[used];
        record
    }

    fn write_values(
        &mut self,
        context: &ShardContext,
        message: &Message<'_>,
        effect: Option<Effect>,
        reroute: Option<&Reroute>,
    ) {
        self.answer.clear();
        if let Disposition::Answer(answer) = &message.body.disposition {
            let effect = effect.unwrap_or(Effect::None);
            context.append_answer(answer, message.place.offset, effect, &mut self.answer);
        }
        self.origin.clear();
        self.due.clear();
        self.next.clear();
        self.detail.clear();
        self.retry.clear();
        context.append_origin(message, &mut self.origin);
        let due = original_due(message);
        let mut digits = itoa::Buffer::new();
        if let Some(due) = due {
            self.due.push_str(digits.format(due.as_millis()));
        }
        if let Disposition::Occurrence(ScheduleState {
            next: Some(next), ..
        }) = message.body.disposition
        {
            self.next.push_str(digits.format(next.as_millis()));
        }
        let Some(reroute) = reroute else { return };
        self.detail.push_str(&reroute.detail);
        match reroute.destination {
            Destination::Target | Destination::DeadLetter | Destination::Dropped => {}
            Destination::DeadLetterByReference => self.write_sizes(message, false),
            Destination::DeadLetterWithoutKey => self.write_sizes(message, true),
            Destination::RetryViaSource { attempt, next } => {
                let due = match message.body.disposition {
                    Disposition::RetriedAnswer(retry) => retry.due,
                    _ => due.unwrap_or(next),
                };
                let error = Some(reroute.reason);
                self.write_retry(context, message, attempt, error, due, next);
            }
            Destination::Reschedule { due } => {
                let (attempt, error) = match message.body.disposition {
                    Disposition::Retry(retry) => (retry.attempt, retry.error),
                    _ => (0, None),
                };
                self.write_retry(context, message, attempt, error, due, due);
            }
        }
    }

    /// Writes the header of a message that goes back to its source: its failed attempts with the last
    /// error, its due time, and the time of the next attempt.
    fn write_retry(
        &mut self,
        context: &ShardContext,
        message: &Message<'_>,
        attempt: u32,
        error: Option<DeadLetterReason>,
        due: Timestamp,
        at: Timestamp,
    ) {
        let body = &message.body;
        let header = RetryHeader {
            retry: RetryState {
                attempt,
                origin: &self.origin,
                due,
                error,
            },
            target: body.target,
            dialect: body.dialect,
            at,
            is_answer: body.is_answer(),
            id: body.id,
            replaces: None,
        };
        let payload = match body.disposition {
            Disposition::Answer(_) => Some(&*self.answer),
            _ => body.payload,
        };
        let keys = &context.route.rules.retry_keys;
        header.append_line(keys, body.key, payload, &mut self.retry);
    }

    /// Appends the sizes of the parts that a dead letter by reference leaves out.
    fn write_sizes(&mut self, message: &Message<'_>, without_key: bool) {
        let payload = message.body.payload.map_or(0, <[u8]>::len);
        let headers = message.body.headers.as_block().len();
        let _infallible = write!(
            self.detail,
            "{BY_REFERENCE}its payload has {payload} bytes, its headers {headers}"
        );
        if without_key {
            let key = message.body.key.map_or(0, <[u8]>::len);
            let _infallible = write!(self.detail, ", its key, which is left out too, {key}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::{AnswerState, Body, Cursor, Dialect, Headers, Offset, Request, ShardId};

    type Sent = (String, Option<Vec<u8>>, Vec<String>);

    /// Topic, key and header names of the record that goes to `destination`.
    fn sent(message: &Message<'_>, destination: Destination) -> Sent {
        let context = ShardContext::for_test(ShardId::new("r", Partition::new("source", 3)));
        let reroute = Reroute::new(destination, DeadLetterReason::TimedOut, String::new());
        let reroute = Some(&reroute).filter(|_| destination != Destination::Target);
        let mut builder = RecordBuilder::default();
        let mut added = AddedHeaders::default();
        let record = builder.build(&context, "target", message, None, reroute, &mut added);
        let names = record
            .all_headers()
            .map(|(name, _)| String::from_utf8_lossy(name).into_owned());
        (
            record.topic.to_owned(),
            record.key.map(<[u8]>::to_vec),
            names.collect(),
        )
    }

    fn expected(topic: &str, key: &str, kept: &[&str], added: &[&str]) -> Sent {
        let names = [kept, added].concat().into_iter().map(str::to_owned);
        (
            topic.to_owned(),
            Some(key.as_bytes().to_vec()),
            names.collect(),
        )
    }

    /// The headers of each message.
    const NAMES: [&str; 5] = [
        "own",
        "postdate-id",
        "scheduler-epoch",
        "scheduler-target-key",
        "x-delay",
    ];

    /// The headers that a delivered message gets, and those that a dead letter gets.
    const LABELS: [&str; 2] = ["postdate-due", "postdate-origin"];
    const ERRORS: [&str; 4] = [
        "postdate-due",
        "postdate-origin",
        "postdate-error",
        "postdate-error-detail",
    ];

    fn block_of_names() -> Vec<u8> {
        let mut block = Vec::new();
        for name in NAMES {
            push_header(&mut block, name.as_bytes(), Some(name.as_bytes()));
        }
        block
    }

    fn message<'a>(
        block: &'a [u8],
        dialect: Option<Dialect>,
        disposition: Disposition<'a>,
    ) -> Message<'a> {
        Message {
            place: Cursor::new(Timestamp::from_millis(7), Offset(1)),
            body: Body {
                key: Some(b"key"),
                payload: Some(b"payload"),
                headers: Headers::from_block(block),
                id: None,
                target: None,
                until: None,
                dialect,
                replaces: None,
                disposition,
            },
        }
    }

    #[test]
    fn dialect_headers_stay_on_a_message_until_it_reaches_its_target() {
        let block = block_of_names();
        let retry = RetryState {
            attempt: 1,
            origin: "o",
            due: Timestamp::from_millis(5),
            error: Some(DeadLetterReason::TimedOut),
        };
        let back = Destination::RetryViaSource {
            attempt: 1,
            next: Timestamp::from_millis(9),
        };
        for disposition in [Disposition::Deliver, Disposition::Retry(retry)] {
            let message = message(&block, Some(Dialect::Etf1), disposition);
            let kept = ["own", "x-delay"];
            for (destination, wanted) in [
                (
                    Destination::Target,
                    expected("target", "scheduler-target-key", &kept, &LABELS),
                ),
                (back, expected("source", "key", &NAMES, &["postdate-retry"])),
                (
                    Destination::DeadLetter,
                    expected("dead", "key", &NAMES, &ERRORS),
                ),
                (
                    Destination::DeadLetterByReference,
                    expected("dead", "key", &[], &ERRORS),
                ),
            ] {
                assert_eq!(sent(&message, destination), wanted, "{destination:?}");
            }
        }
    }

    #[test]
    fn headers_of_an_unused_dialect_stay_on_a_message() {
        let block = block_of_names();
        let message = message(&block, None, Disposition::Deliver);
        assert_eq!(
            sent(&message, Destination::Target),
            expected(
                "target",
                "key",
                &["own", "scheduler-epoch", "scheduler-target-key", "x-delay"],
                &LABELS
            )
        );
    }

    #[test]
    fn an_answer_is_another_record_than_the_message_of_its_request() {
        let answer = Disposition::Answer(AnswerState {
            request: Request::Cancel,
            request_id: Some("q"),
            id: Some("a"),
        });
        let message = message(&[], None, answer);
        let context = ShardContext::for_test(ShardId::new("r", Partition::new("source", 3)));
        let back = Destination::RetryViaSource {
            attempt: 1,
            next: Timestamp::from_millis(9),
        };
        let retry = Reroute::new(back, DeadLetterReason::TimedOut, String::new());
        for reroute in [None, Some(&retry)] {
            let mut builder = RecordBuilder::default();
            let mut added = AddedHeaders::default();
            let record = builder.build(&context, "replies", &message, None, reroute, &mut added);
            let payload = str::from_utf8(record.payload.unwrap()).unwrap();
            assert!(
                payload.starts_with(r#"{"outcome":"not_found","#),
                "{payload}"
            );
            let id = record.message_id().unwrap();
            match reroute {
                None => assert_eq!(id, "d/r/source/3/1/answer"),
                Some(_) => assert!(id.ends_with(" at=9 answer=1"), "{id}"),
            }
        }
    }
}
