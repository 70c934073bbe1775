//! The records of one partition, and the offsets without a record.

use super::StoredRecord;
use crate::model::header::{Header, push_header};
use crate::model::{Headers, Offset, Timestamp};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct PartitionLog {
    first: u64,
    end: u64,
    records: BTreeMap<u64, LogRecord>,
    /// The first offset of each open transaction, by its writer.
    open_transactions: BTreeMap<u64, u64>,
    /// The high watermark while no follower copies the log. Later records are not acknowledged, and no
    /// consumer gets them.
    replicated_to: Option<u64>,
}

pub(super) struct LogRecord {
    at: Timestamp,
    pub(super) timestamp: Option<Timestamp>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) payload: Option<Vec<u8>>,
    headers: Vec<u8>,
    /// The writer of its open transaction.
    writer: Option<u64>,
}

impl LogRecord {
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
        Self {
            at,
            timestamp,
            key: key.map(<[u8]>::to_vec),
            payload: payload.map(<[u8]>::to_vec),
            headers: block,
            writer: None,
        }
    }

    /// Sets the time of arrival. The timestamp of the producer stays.
    pub(super) fn set_arrival_time(&mut self, at: Timestamp) {
        self.at = at;
    }

    pub(super) fn headers(&self) -> Headers<'_> {
        Headers::from_block(&self.headers)
    }

    pub(super) fn size(&self) -> usize {
        self.key.as_ref().map_or(0, Vec::len)
            + self.payload.as_ref().map_or(0, Vec::len)
            + self.headers.len()
    }
}

impl PartitionLog {
    pub(super) fn append(&mut self, stored: LogRecord) -> Offset {
        let offset = self.end;
        self.records.insert(offset, stored);
        self.end += 1;
        Offset(offset)
    }

    /// Appends in a transaction of `writer`.
    pub(super) fn append_in_transaction(&mut self, mut stored: LogRecord, writer: u64) -> Offset {
        self.open_transactions.entry(writer).or_insert(self.end);
        stored.writer = Some(writer);
        self.append(stored)
    }

    /// Ends the transaction of `writer` with a control record, which takes one offset.
    pub(super) fn end_transaction(&mut self, writer: u64, is_committed: bool) {
        let Some(first) = self.open_transactions.remove(&writer) else {
            return;
        };
        let mine: Vec<u64> = self
            .records
            .range(first..)
            .filter(|(_, stored)| stored.writer == Some(writer))
            .map(|(offset, _)| *offset)
            .collect();
        for offset in mine {
            if is_committed {
                self.records
                    .get_mut(&offset)
                    .expect("it was just found there")
                    .writer = None;
            } else {
                self.records.remove(&offset);
            }
        }
        self.skip(1);
    }

    /// The offset up to which no transaction is open. Consumers with `read_committed` stop here.
    pub(super) fn last_stable_offset(&self) -> u64 {
        let open = self.open_transactions.values().min().copied();
        open.unwrap_or(self.end).min(self.end())
    }

    pub(super) fn skip(&mut self, count: u64) {
        self.end += count;
    }

    pub(super) fn trim(&mut self, first: u64) {
        self.first = first.clamp(self.first, self.end);
        self.records = self.records.split_off(&self.first);
    }

    pub(super) fn truncate(&mut self, end: u64) {
        self.end = end.clamp(self.first, self.end);
        self.records.split_off(&self.end);
    }

    /// The first offset whose record is not older.
    pub(super) fn offset_at(&self, time: Timestamp) -> Offset {
        let mut records = self.records.iter();
        let found = records.find(|(_, record)| record.timestamp.unwrap_or(record.at) >= time);
        Offset(found.map_or(self.end, |(offset, _)| *offset))
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The end that consumers see.
    pub(super) fn end(&self) -> u64 {
        match self.replicated_to {
            Some(end) if !fault!(ReadUnreplicatedRecords) => end,
            _ => self.end,
        }
    }

    /// Sets the high watermark, or removes it if followers copy the log.
    pub(super) fn set_replicated(&mut self, is_replicated: bool) {
        let end = (!is_replicated).then_some(self.end);
        self.replicated_to = end.map(|end| self.replicated_to.unwrap_or(end));
    }

    /// A follower becomes the leader. Records that it has not copied are lost. Returns the offset at
    /// which they began.
    pub(super) fn change_leader(&mut self) -> u64 {
        let end = self.replicated_to.take().unwrap_or(self.end);
        self.truncate(end);
        end
    }

    /// The records that a consumer with `read_committed` receives.
    pub(super) fn committed_from(&self, offset: u64) -> impl Iterator<Item = (u64, &LogRecord)> {
        self.records
            .range(offset..self.last_stable_offset().max(offset))
            .map(|(offset, stored)| (*offset, stored))
    }

    pub(super) fn committed_records(
        &self,
        partition: i32,
    ) -> impl Iterator<Item = StoredRecord> + use<'_> {
        self.committed_from(self.first)
            .map(move |(offset, stored)| StoredRecord {
                partition,
                offset: Offset(offset),
                at: stored.at,
                key: stored.key.clone(),
                payload: stored.payload.clone(),
                headers: stored
                    .headers()
                    .iter()
                    .map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec)))
                    .collect(),
            })
    }
}
