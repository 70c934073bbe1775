//! Random messages of every kind, for the tests of this folder.

use super::{RunEncoder, RunSummary, record};
use crate::model::header::push_header;
use crate::model::{
    AnswerState, Body, Cursor, DeadLetterReason, Dialect, Disposition, Headers, Offset, Partition,
    Request, RetryState, ShardId, Timestamp,
};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A message with owned fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestMessage {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<u8>,
    pub(crate) id: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) until: Option<i64>,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) disposition: TestDisposition,
}

/// A disposition with owned texts.
#[derive(Clone, Debug, Default)]
pub(crate) enum TestDisposition {
    #[default]
    Deliver,
    Relay(i64),
    DeadLetter(DeadLetterReason, String),
    Retry(u32, String, i64, DeadLetterReason),
    RetriedAnswer(u32, String, i64, DeadLetterReason),
    Answer(Request, String, String),
}

impl TestMessage {
    pub(crate) fn record(&self) -> Vec<u8> {
        let mut record = Vec::new();
        record::encode(&self.body(), &mut record);
        record
    }

    pub(crate) fn body(&self) -> Body<'_> {
        Body {
            key: self.key.as_deref(),
            payload: self.payload.as_deref(),
            headers: Headers::from_block(&self.headers),
            id: self.id.as_deref(),
            target: self.target.as_deref(),
            until: self.until.map(Timestamp::from_millis),
            dialect: self.dialect,
            replaces: None,
            sent_from: None,
            disposition: match &self.disposition {
                TestDisposition::Deliver => Disposition::Deliver,
                TestDisposition::Relay(timestamp) => Disposition::Relay {
                    timestamp: Timestamp::from_millis(*timestamp),
                },
                TestDisposition::DeadLetter(reason, detail) => Disposition::DeadLetter {
                    reason: *reason,
                    detail,
                },
                TestDisposition::Retry(attempt, origin, due, error) => {
                    Disposition::Retry(retry(*attempt, origin, *due, *error))
                }
                TestDisposition::RetriedAnswer(attempt, origin, due, error) => {
                    Disposition::RetriedAnswer(retry(*attempt, origin, *due, *error))
                }
                TestDisposition::Answer(request, request_id, id) => {
                    let present = |text: &'_ String| !text.is_empty();
                    Disposition::Answer(AnswerState {
                        request: *request,
                        request_id: Some(request_id)
                            .filter(|it| present(it))
                            .map(|it| it.as_str()),
                        id: Some(id).filter(|it| present(it)).map(|it| it.as_str()),
                    })
                }
            },
        }
    }
}

fn retry(attempt: u32, origin: &str, due: i64, error: DeadLetterReason) -> RetryState<'_> {
    RetryState {
        attempt,
        origin,
        due: Timestamp::from_millis(due),
        error: (attempt > 0).then_some(error),
    }
}

/// Encodes the run of these messages.
pub(crate) fn encode_run(messages: &BTreeMap<Cursor, TestMessage>) -> (RunSummary, Bytes) {
    let records: Vec<_> = messages
        .iter()
        .map(|(place, sample)| (*place, sample.record()))
        .collect();
    RunEncoder::new().encode(records.iter().map(|(place, record)| (*place, &record[..])))
}

/// Generates one to `count_max` messages without places.
pub(crate) fn any_messages(count_max: usize) -> impl Strategy<Value = Vec<TestMessage>> {
    prop::collection::vec(sample(), 1..=count_max)
}

/// Generates one to `count_max` messages by place, including extreme due times and offsets.
pub(crate) fn messages_by_place(
    count_max: usize,
) -> impl Strategy<Value = BTreeMap<Cursor, TestMessage>> {
    prop::collection::btree_map(place(), sample(), 1..=count_max)
}

/// The shard of every run.
pub(crate) fn shard() -> ShardId {
    ShardId::new("orders", Partition::new("orders.delayed", 0))
}

/// A place from its numbers.
pub(crate) fn at(due: i64, offset: u64) -> Cursor {
    Cursor::new(Timestamp::from_millis(due), Offset(offset))
}

fn place() -> impl Strategy<Value = Cursor> {
    let due =
        prop_oneof![5 => 0..50i64, 2 => any::<i64>(), 1 => Just(i64::MIN), 1 => Just(i64::MAX)];
    let offset = prop_oneof![5 => 0..50u64, 2 => any::<u64>(), 1 => Just(u64::MAX)];
    (due, offset).prop_map(|(due, offset)| at(due, offset))
}

fn sample() -> impl Strategy<Value = TestMessage> {
    let dialect = || prop::option::of(prop::sample::select(&Dialect::ALL));
    (
        bytes(),
        bytes(),
        headers(),
        text(),
        text(),
        prop::option::of(any::<i64>()),
        dialect(),
        fate(),
    )
        .prop_map(
            |(key, payload, headers, id, target, until, dialect, fate)| TestMessage {
                key,
                payload,
                headers,
                id,
                target,
                until,
                dialect,
                disposition: fate,
            },
        )
}

fn bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    let huge = (any::<u8>(), 20_000..40_000usize).prop_map(|(byte, length)| vec![byte; length]);
    prop::option::of(prop_oneof![20 => prop::collection::vec(any::<u8>(), 0..40), 1 => huge])
}

fn headers() -> impl Strategy<Value = Vec<u8>> {
    let one = (
        prop_oneof![Just(b"same".to_vec()), any::<Vec<u8>>()],
        any::<Option<Vec<u8>>>(),
    );
    prop::collection::vec(one, 0..4).prop_map(|headers| {
        let mut block = Vec::new();
        for (name, value) in &headers {
            push_header(&mut block, name, value.as_deref());
        }
        block
    })
}

fn text() -> impl Strategy<Value = Option<String>> {
    prop::option::of(".{0,12}")
}

fn fate() -> impl Strategy<Value = TestDisposition> {
    let reason = || prop::sample::select(DeadLetterReason::ALL);
    prop_oneof![
        Just(TestDisposition::Deliver),
        any::<i64>().prop_map(TestDisposition::Relay),
        (reason(), ".{0,12}")
            .prop_map(|(reason, detail)| TestDisposition::DeadLetter(reason, detail)),
        (any::<u32>(), ".{0,12}", any::<i64>(), reason())
            .prop_map(|(a, o, d, e)| TestDisposition::Retry(a, o, d, e)),
        (any::<u32>(), ".{0,12}", any::<i64>(), reason())
            .prop_map(|(a, o, d, e)| TestDisposition::RetriedAnswer(a, o, d, e)),
        (request(), ".{0,12}", ".{0,12}").prop_map(|(r, i, o)| TestDisposition::Answer(r, i, o)),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<i64>().prop_map(|due| Request::Schedule {
            due: Timestamp::from_millis(due)
        }),
        Just(Request::Cancel),
        any::<i64>().prop_map(|due| Request::ScheduleFirst {
            due: Timestamp::from_millis(due)
        }),
        any::<i64>().prop_map(|due| Request::Reschedule {
            due: Timestamp::from_millis(due)
        }),
        prop::sample::select(DeadLetterReason::ALL).prop_map(Request::Refused),
    ]
}
