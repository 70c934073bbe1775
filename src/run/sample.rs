//! Messages of every kind for the tests of this folder. Nothing here is about the bytes.

use super::{Encoder, Summary, record};
use crate::model::header::push_header;
use crate::model::{Body, Cursor, Dialect, Disposition, Headers, Offset, Reason, Retry, Timestamp};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A message that owns its parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<u8>,
    pub(crate) id: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) fate: Fate,
}

/// A disposition that owns its texts.
#[derive(Clone, Debug, Default)]
pub(crate) enum Fate {
    #[default]
    Deliver,
    Relay(i64),
    DeadLetter(Reason, String),
    Retry(u32, String, i64, Reason),
}

impl Sample {
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
            dialect: self.dialect,
            disposition: match &self.fate {
                Fate::Deliver => Disposition::Deliver,
                Fate::Relay(timestamp) => Disposition::Relay {
                    timestamp: Timestamp::from_millis(*timestamp),
                },
                Fate::DeadLetter(reason, detail) => Disposition::DeadLetter {
                    reason: *reason,
                    detail,
                },
                Fate::Retry(attempt, origin, due, error) => Disposition::Retry(Retry {
                    attempt: *attempt,
                    origin,
                    due: Timestamp::from_millis(*due),
                    error: *error,
                }),
            },
        }
    }
}

/// The run of those messages.
pub(crate) fn run_of(messages: &BTreeMap<Cursor, Sample>) -> (Summary, Bytes) {
    let records: Vec<_> = messages
        .iter()
        .map(|(place, sample)| (*place, sample.record()))
        .collect();
    Encoder::new().encode(records.iter().map(|(place, record)| (*place, &record[..])))
}

/// From one to `count_max` messages without places.
pub(crate) fn samples(count_max: usize) -> impl Strategy<Value = Vec<Sample>> {
    prop::collection::vec(sample(), 1..=count_max)
}

/// From one to `count_max` messages by place, extremes of due and offset among them.
pub(crate) fn placed(count_max: usize) -> impl Strategy<Value = BTreeMap<Cursor, Sample>> {
    prop::collection::btree_map(place(), sample(), 1..=count_max)
}

/// A place by its numbers.
pub(crate) fn at(due: i64, offset: u64) -> Cursor {
    Cursor::new(Timestamp::from_millis(due), Offset(offset))
}

fn place() -> impl Strategy<Value = Cursor> {
    let due =
        prop_oneof![5 => 0..50i64, 2 => any::<i64>(), 1 => Just(i64::MIN), 1 => Just(i64::MAX)];
    let offset = prop_oneof![5 => 0..50u64, 2 => any::<u64>(), 1 => Just(u64::MAX)];
    (due, offset).prop_map(|(due, offset)| at(due, offset))
}

fn sample() -> impl Strategy<Value = Sample> {
    let dialect = || prop::option::of(prop::sample::select(&Dialect::ALL));
    (
        bytes(),
        bytes(),
        headers(),
        text(),
        text(),
        dialect(),
        fate(),
    )
        .prop_map(
            |(key, payload, headers, id, target, dialect, fate)| Sample {
                key,
                payload,
                headers,
                id,
                target,
                dialect,
                fate,
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

fn fate() -> impl Strategy<Value = Fate> {
    let reason = || prop::sample::select(Reason::ALL);
    prop_oneof![
        Just(Fate::Deliver),
        any::<i64>().prop_map(Fate::Relay),
        (reason(), ".{0,12}").prop_map(|(reason, detail)| Fate::DeadLetter(reason, detail)),
        (any::<u32>(), ".{0,12}", any::<i64>(), reason())
            .prop_map(|(a, o, d, e)| Fate::Retry(a, o, d, e)),
    ]
}
