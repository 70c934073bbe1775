//! The broker ports. [`Cluster`] opens the others: [`Source`], [`Target`], [`Catalog`],
//! [`GroupAdmin`], [`StoredRecords`], `Inspector`, [`TransactionalProducers`].
//!
//! Every header and byte that a source returns can be sent to a target. Blocking client calls run
//! on the adapters' own threads. Every `async` method is cancel-safe: a result that was not
//! returned comes with the next call.

pub(crate) mod cluster;
mod event_queue;
pub(crate) mod facts;
pub(crate) mod inspection;
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod send_budget;
mod transactions;

pub(crate) use cluster::Cluster;
pub(crate) use transactions::{ProducerEvent, ProducerIdentity, TransactionalProducers, TxnOffset};

use crate::model::header::{Header, push_header};
use crate::model::header_name::{ANSWER, ControlHeader, ERROR, ORIGIN};
use crate::model::{
    DeadLetterReason, Headers, Offset, Partition, Record, SourceIdentity, Timestamp,
};
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;

/// Reads partitions. The caller says which ones and where reading starts: the membership assigns
/// partitions, and positions come from the store's watermark. A consumer group only keeps commits.
#[async_trait(?Send)]
pub(crate) trait Source {
    /// Waits for the next event. Events are in order, and their number is bounded: if the caller
    /// does not call this, the client stops fetching. After an error, the source cannot be used.
    async fn next_event(&mut self) -> Result<Event, Error>;

    /// Asks the broker for the identity and the retained range of each partition. A partition that
    /// cannot be described, for example without a leader, has its own error. Other calls may follow
    /// before the answer.
    fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Result<PartitionInfo, Error>>, Error>>;

    /// The metadata of the group's last commit of each partition; `None`: no commit. Other calls may
    /// follow before the answer. On Kafka only this call and a commit need the group coordinator.
    fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Option<String>>, Error>>;

    /// Like [`GroupAdmin::offsets_at`]. Other calls may follow before the answer.
    fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> LocalBoxFuture<'static, Result<Vec<Offset>, Error>>;

    /// Starts or restarts reading a partition at `from`. Later events of the partition
    /// have this `epoch`; the caller must drop events of another epoch.
    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64);

    /// Stops reading a partition. Safe to repeat.
    fn stop(&mut self, partition: &Partition);

    /// The end offset of a partition that is read, from the client's last fetch, without a request.
    /// It may be outdated. `None`: unknown, for example because the client only learns of records.
    fn known_end(&self, _partition: &Partition) -> Option<Offset> {
        None
    }

    /// Commits offsets with metadata for the group (I1), which must have no members. Not atomic over
    /// partitions. Safe to repeat. Other calls may follow before the result, except another commit.
    fn commit(&mut self, commits: Vec<OffsetCommit>) -> LocalBoxFuture<'static, Result<(), Error>>;

    /// Stops reading and closes the clients. No call may follow.
    async fn close(&mut self);
}

#[derive(Debug)]
pub(crate) enum Event {
    Records(RecordBatch),
    /// All records before `at` were returned, or the reader does not get them: they were compacted,
    /// filtered out, or belong to an aborted transaction.
    EndReached {
        partition: Partition,
        epoch: u64,
        at: Offset,
    },
    /// The broker removed up to `count` records, starting at `from`, before they were read. Reading
    /// continues after them.
    RecordsRemoved {
        partition: Partition,
        epoch: u64,
        from: Offset,
        count: u64,
    },
    /// The partition cannot be read now. The source tries again at the same position.
    Unreadable {
        partition: Partition,
        epoch: u64,
        /// Names the partition.
        reason: String,
    },
    /// The position is not between the first offset and the end, or the topic was recreated.
    OutOfRange {
        partition: Partition,
        epoch: u64,
    },
}

/// Records of one partition in offset order, in one buffer.
#[derive(Debug)]
pub(crate) struct RecordBatch {
    pub(crate) partition: Partition,
    pub(crate) epoch: u64,
    buffer: Vec<u8>,
    records: Vec<RecordSpan>,
}

/// One record in a batch's buffer: key, payload and headers follow each other.
#[derive(Clone, Copy, Debug)]
struct RecordSpan {
    offset: Offset,
    timestamp: Option<Timestamp>,
    start: usize,
    /// Lengths in bytes; `None`: null.
    key: Option<usize>,
    payload: Option<usize>,
    headers: usize,
}

impl RecordBatch {
    pub(crate) fn new(partition: Partition, epoch: u64) -> Self {
        Self {
            partition,
            epoch,
            buffer: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Allocates room, because growing copies the buffer.
    pub(crate) fn reserve(&mut self, records: usize, bytes: usize) {
        self.records.reserve(records);
        self.buffer.reserve(bytes);
    }

    pub(crate) fn push<'h>(
        &mut self,
        offset: Offset,
        timestamp: Option<Timestamp>,
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: impl IntoIterator<Item = Header<'h>>,
    ) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(key.unwrap_or_default());
        self.buffer.extend_from_slice(payload.unwrap_or_default());
        let headers_at = self.buffer.len();
        for (name, value) in headers {
            push_header(&mut self.buffer, name, value);
        }
        self.records.push(RecordSpan {
            offset,
            timestamp,
            start,
            key: key.map(<[u8]>::len),
            payload: payload.map(<[u8]>::len),
            headers: self.buffer.len() - headers_at,
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Size of keys, payloads and headers.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        self.records.iter().map(|span| {
            let bytes = &self.buffer[span.start..];
            let (key, bytes) = bytes.split_at(span.key.unwrap_or(0));
            let (payload, bytes) = bytes.split_at(span.payload.unwrap_or(0));
            Record {
                offset: span.offset,
                timestamp: span.timestamp,
                key: span.key.map(|_| key),
                payload: span.payload.map(|_| payload),
                headers: Headers::from_block(&bytes[..span.headers]),
            }
        })
    }
}

/// A partition as the broker describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionInfo {
    /// `None`: the broker has no ids at all, so only offsets show a recreation.
    pub(crate) identity: Option<SourceIdentity>,
    /// The first retained offset.
    pub(crate) first_offset: Offset,
    /// One past the last offset, or the start of the first open transaction.
    pub(crate) end_offset: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OffsetCommit {
    pub(crate) partition: Partition,
    pub(crate) offset: Offset,
    pub(crate) metadata: String,
}

/// Requests of a timer about sources. Separate from [`Source`], because a timer reads no records
/// and may run in a process without ingress.
#[async_trait(?Send)]
pub(crate) trait Catalog {
    /// All partitions of the topics, each with its incarnation. A topic that does not exist has
    /// none.
    async fn partitions(
        &mut self,
        topics: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error>;

    /// The metadata of the last commit of `group` for each partition; `None`: no commit.
    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error>;

    /// Closes the client. No call may follow.
    async fn close(&mut self);
}

/// Moves the position of a group that has no members, for `postdate reset`.
#[async_trait(?Send)]
pub(crate) trait GroupAdmin: Catalog {
    /// Like [`Source::describe`]. Fails if one partition cannot be described.
    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error>;

    /// The offset of the first record of each partition that is not older than `time`, by the
    /// broker's timestamp. The end of the partition if there is none.
    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error>;

    /// Like [`Source::commit`], for a group that no process uses. Fails if it has a live member.
    async fn commit_unused(&mut self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error>;
}

/// Reads stored records of any topic, without a group: for dead letters.
#[async_trait(?Send)]
pub(crate) trait StoredRecords {
    /// The topic whose partitions hold the records that were sent to `destination`. `None`: it does not exist.
    async fn topic_of(&mut self, destination: &str) -> Result<Option<String>, Error>;

    /// The next records of a partition, from `from` on, and the offset behind them. No records: `end` is reached. Records at
    /// or behind `end` may follow in the same batch.
    async fn read(
        &mut self,
        partition: &Partition,
        from: Offset,
        end: Offset,
    ) -> Result<(RecordBatch, Offset), Error>;
}

/// Sends records to the topics of one cluster. Records of one target partition keep their order,
/// unless one of them fails.
#[async_trait(?Send)]
pub(crate) trait Target {
    /// Copies a record into the send queue, without waiting. `ticket` returns with the report.
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult;

    /// Waits until there is a delivery report. Each accepted record gets one.
    async fn next_reports(&mut self) -> Vec<DeliveryReport>;

    /// Gives up the records in flight and closes the client. No call may follow.
    async fn close(&mut self);
}

/// A record to send. Its headers are those of `headers` that `keep_header` accepts, then
/// `extra_headers`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingRecord<'a> {
    pub(crate) topic: &'a str,
    /// A retry returns to its source partition. `None`: the partitioner chooses (Kafka: murmur2).
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: Headers<'a>,
    pub(crate) keep_header: fn(&[u8]) -> bool,
    pub(crate) extra_headers: &'a [(&'a str, &'a [u8])],
}

impl<'a> OutgoingRecord<'a> {
    pub(crate) fn all_headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let keep_header = self.keep_header;
        let kept = self.headers.iter();
        let kept = kept.filter(move |(name, _)| keep_header(name));
        let extra = self.extra_headers.iter();
        kept.chain(extra.map(|(name, value)| (name.as_bytes(), Some(*value))))
    }

    /// The value of an extra header, if it is text.
    pub(crate) fn extra_header(&self, name: &str) -> Option<&str> {
        let mut extra = self.extra_headers.iter();
        let (_, value) = extra.find(|(extra, _)| *extra == name)?;
        std::str::from_utf8(value).ok()
    }

    /// The id by which a broker recognises a resend as a duplicate. It comes from the origin. A
    /// dead letter, an answer and each retry are messages of their own. `None`: the record has no
    /// origin.
    pub(crate) fn message_id(&self) -> Option<String> {
        if let Some(request) = self.extra_header(ANSWER) {
            return Some(format!("{request}/answer"));
        }
        let Some(origin) = self.extra_header(ORIGIN) else {
            let retry = self.extra_header(ControlHeader::Retry.name());
            return retry.map(str::to_owned);
        };
        let is_dead_letter = self.extra_header(ERROR).is_some();
        Some(if is_dead_letter {
            format!("{origin}/dead")
        } else {
            origin.to_owned()
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// A report will follow.
    Accepted,
    /// The send queue is full. Try again after the next reports.
    QueueFull,
    /// No report will follow.
    Failed(DeliveryFailure),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryReport {
    pub(crate) ticket: u64,
    /// Partition and offset of a delivered record, if known.
    pub(crate) position: Option<(i32, Offset)>,
    pub(crate) outcome: Result<(), DeliveryFailure>,
}

/// Why a record was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryFailure {
    pub(crate) kind: FailureKind,
    pub(crate) reason: DeadLetterReason,
    /// The text of the broker, the client library or the adapter.
    pub(crate) detail: String,
}

impl DeliveryFailure {
    pub(crate) fn new(
        kind: FailureKind,
        reason: DeadLetterReason,
        detail: impl Into<String>,
    ) -> Self {
        let detail = detail.into();
        Self {
            kind,
            reason,
            detail,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The broker will always reject this record: too large, invalid, or not allowed.
    Rejected,
    /// Not delivered, but a retry may succeed: for example the topic does not exist or is full.
    NotDelivered,
    /// The client gave up waiting, so the record may have been delivered.
    MaybeDelivered,
    /// The client was closed or failed fatally. The outcome is unknown, and another client must
    /// send further records.
    ClientFailed,
}

/// Why a call of a port failed. A send fails with a [`DeliveryFailure`].
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the broker is unavailable: {0}")]
    Unavailable(String),
    /// An operator must act: access is denied, credentials are wrong, or a topic does not exist.
    #[error("the broker refuses: {0}")]
    Rejected(String),
    #[error("the broker's client failed fatally: {0}")]
    Fatal(String),
}

impl Error {
    /// Returns whether a repeated call may succeed in this process. An operator may fix a
    /// rejection.
    pub(crate) fn is_transient(&self) -> bool {
        !matches!(self, Self::Fatal(_))
    }
}
