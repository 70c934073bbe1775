//! One partition's records, with the offsets that are gone or never were.

use super::Arrived;
use crate::model::header::{Header, push_header};
use crate::model::{Headers, Offset, Timestamp};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Log {
    first: u64,
    end: u64,
    records: BTreeMap<u64, Stored>,
}

pub(super) struct Stored {
    at: Timestamp,
    pub(super) timestamp: Option<Timestamp>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) payload: Option<Vec<u8>>,
    headers: Vec<u8>,
}

impl Stored {
    pub(super) fn new<'h>(
        at: Timestamp,
        timestamp: Option<Timestamp>,
        (key, payload): (Option<&[u8]>, Option<&[u8]>),
        headers: impl IntoIterator<Item = Header<'h>>,
    ) -> Self {
        let mut block = Vec::new();
        for (name, value) in headers {
            push_header(&mut block, name, value);
        }
        Self { at, timestamp, key: key.map(<[u8]>::to_vec), payload: payload.map(<[u8]>::to_vec), headers: block }
    }

    /// It may have waited for long; its timestamp is its producer's and stays.
    pub(super) fn arrive(&mut self, at: Timestamp) {
        self.at = at;
    }

    pub(super) fn headers(&self) -> Headers<'_> {
        Headers::from_block(&self.headers)
    }

    pub(super) fn size(&self) -> usize {
        self.key.as_ref().map_or(0, Vec::len) + self.payload.as_ref().map_or(0, Vec::len) + self.headers.len()
    }
}

impl Log {
    pub(super) fn append(&mut self, stored: Stored) -> Offset {
        let offset = self.end;
        self.records.insert(offset, stored);
        self.end += 1;
        Offset(offset)
    }

    pub(super) fn skip(&mut self, count: u64) {
        self.end += count;
    }

    pub(super) fn trim(&mut self, first: u64) {
        self.first = first.clamp(self.first, self.end);
        self.records = self.records.split_off(&self.first);
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn from(&self, offset: u64) -> impl Iterator<Item = (u64, &Stored)> {
        self.records.range(offset..).map(|(offset, stored)| (*offset, stored))
    }

    pub(super) fn arrived(&self, partition: i32) -> impl Iterator<Item = Arrived> + use<'_> {
        self.records.iter().map(move |(offset, stored)| Arrived {
            partition,
            offset: Offset(*offset),
            at: stored.at,
            key: stored.key.clone(),
            payload: stored.payload.clone(),
            headers: stored.headers().iter().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect(),
        })
    }
}
