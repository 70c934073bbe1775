//! The broker ports: where messages come from and where they go. Source and target line up: what one hands out, the other takes.
//!
//! Blocking client calls live in the adapters, on threads of their own; every `async` method here is safe to drop at any await, and what it
//! would have answered comes with the next call.

mod client_thread;
mod delivery_reports;
pub(crate) mod describe;
pub(crate) mod kafka;
pub(crate) mod nats;
mod transactions;

pub(crate) use transactions::{ProducerEvent, ProducerIdentity, TransactionalProducers, TxnOffset};

use crate::model::header::{Header, push_header};
use crate::model::header_name::{ControlHeader, ERROR, ORIGIN};
use crate::model::{Headers, Offset, Partition, Reason, Record, SourceIdentity, Timestamp};
use async_trait::async_trait;

/// Reads the partitions that a consumer group gives to this process. Partitions are gained and lost by the group's doing; reading starts
/// only where [`Source::start`] says, for positions come from the store's watermark and never from the broker.
#[async_trait(?Send)]
pub(crate) trait Source {
    /// What happened next, in order; waits until something has. Bounded: a reader that does not call this makes the client stop fetching.
    async fn next_event(&mut self) -> Result<Event, Error>;

    /// Identity and retained range of partitions, from the broker.
    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error>;

    /// The metadata last committed for each partition; `None`: none.
    async fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error>;

    /// Begins (or begins anew) to read a gained partition at `from`. Everything of the partition that [`Source::next`] hands out from here on
    /// bears `epoch`; what bears another epoch was under way and is to be dropped.
    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64);

    /// Ceases to read a partition; it stays assigned. Nothing happens if it was not read.
    fn stop(&mut self, partition: &Partition);

    /// The end of a partition that is read, as the client last heard of it: no call, so it may lag behind. `None`: nothing was heard, as by
    /// a client that is told of records only.
    fn known_end(&self, _partition: &Partition) -> Option<Offset> {
        None
    }

    /// Commits positions with metadata for the group (I1). Safe to repeat.
    async fn commit(&mut self, commits: &[OffsetCommit]) -> Result<(), Error>;

    /// Leaves the group; the next owner need not wait for a timeout. Nothing may be called after it.
    async fn close(&mut self);
}

/// What a source tells.
#[derive(Debug)]
pub(crate) enum Event {
    /// None: the group has shared out its partitions, and there is none (or no more than before) for this one.
    Assigned(Vec<Partition>),
    /// Must not be read or committed any longer; a commit that is under way may fail.
    Revoked(Vec<Partition>),
    Records(RecordBatch),
    /// The reader stands at the partition's end: all before `at` was handed out or is not readable (compacted away, an aborted
    /// transaction).
    EndReached {
        partition: Partition,
        epoch: u64,
        at: Offset,
    },
    /// Records were removed before the reader came to them, behind the position asked for: at most so many, from `from` on. Reading goes on
    /// behind them.
    RecordsRemoved {
        partition: Partition,
        epoch: u64,
        from: Offset,
        count: u64,
    },
    /// The position asked for is not retained: before the first offset or past the end.
    OutOfRange {
        partition: Partition,
        epoch: u64,
    },
}

/// Records of one partition in offset order, in one flat buffer.
#[derive(Debug)]
pub(crate) struct RecordBatch {
    pub(crate) partition: Partition,
    pub(crate) epoch: u64,
    buffer: Vec<u8>,
    records: Vec<RecordSpan>,
}

/// Where one record lies in a batch's buffer: key, payload and headers one after the other.
#[derive(Clone, Copy, Debug)]
struct RecordSpan {
    offset: Offset,
    timestamp: Option<Timestamp>,
    start: usize,
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

    /// Makes room for as much as another batch holds: batches of a busy partition are much alike, and growing is copying.
    pub(crate) fn reserve(&mut self, (records, bytes): (usize, usize)) {
        self.records.reserve(records);
        self.buffer.reserve(bytes);
    }

    /// Adds a record by copying its parts; the headers are written by `headers` as [`push_header`] does.
    pub(crate) fn push<'h>(
        &mut self,
        (offset, timestamp): (Offset, Option<Timestamp>),
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: impl IntoIterator<Item = Header<'h>>,
    ) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(key.unwrap_or_default());
        self.buffer.extend_from_slice(payload.unwrap_or_default());
        let before = self.buffer.len();
        for (name, value) in headers {
            push_header(&mut self.buffer, name, value);
        }
        let headers = self.buffer.len() - before;
        self.records.push(RecordSpan {
            offset,
            timestamp,
            start,
            key: key.map(<[u8]>::len),
            payload: payload.map(<[u8]>::len),
            headers,
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        self.records.iter().map(|entry| {
            let payload_at = entry.start + entry.key.unwrap_or(0);
            let headers_at = payload_at + entry.payload.unwrap_or(0);
            Record {
                offset: entry.offset,
                timestamp: entry.timestamp,
                key: entry
                    .key
                    .map(|length| &self.buffer[entry.start..entry.start + length]),
                payload: entry
                    .payload
                    .map(|length| &self.buffer[payload_at..payload_at + length]),
                headers: Headers::from_block(&self.buffer[headers_at..headers_at + entry.headers]),
            }
        })
    }
}

/// A partition as the broker knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionInfo {
    /// `None`: the broker has no identities (older than Kafka 2.8), so a recreated topic shows only by its offsets.
    pub(crate) identity: Option<SourceIdentity>,
    /// The first offset that is still retained.
    pub(crate) first_offset: Offset,
    /// One past the last offset.
    pub(crate) end_offset: Offset,
}

/// One position to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OffsetCommit {
    pub(crate) partition: Partition,
    pub(crate) offset: Offset,
    pub(crate) metadata: String,
}

/// What a timer asks of its sources: which partitions there are, and what was committed. Apart from [`Source`], for a timer reads nothing
/// and may run where no ingress does.
#[async_trait(?Send)]
pub(crate) trait Catalog {
    /// The partitions that the topics have now. A topic that does not exist has none.
    async fn partitions(&mut self, topics: &[String]) -> Result<Vec<Partition>, Error>;

    /// As [`Source::committed`], for `group`.
    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error>;

    /// Ends the client. Nothing may be called after it.
    async fn close(&mut self);
}

/// Sends records to the topics of one cluster. Records of one target partition keep their order, unless the client itself has to give one up.
#[async_trait(?Send)]
pub(crate) trait Target {
    /// Takes a record over, copying it; never waits. `ticket` comes back with the report.
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult;

    /// What became of records taken over, each once; waits until there is at least one.
    async fn next_reports(&mut self) -> Vec<DeliveryReport>;

    /// Nothing will be sent any more: gives up what is under way and ends the client.
    async fn close(&mut self);
}

/// A record on its way out. Its headers are those of `headers` that `stays` keeps, then `extra`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingRecord<'a> {
    pub(crate) topic: &'a str,
    /// `None`: the partitioner decides, by Kafka's murmur2 for any key that is not null.
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: Headers<'a>,
    pub(crate) keep_header: fn(&[u8]) -> bool,
    pub(crate) extra_headers: &'a [(&'a str, &'a [u8])],
}

impl<'a> OutgoingRecord<'a> {
    /// The headers as they go out.
    pub(crate) fn all_headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let stays = self.keep_header;
        let kept = self.headers.iter().filter(move |(name, _)| stays(name));
        kept.chain(
            self.extra_headers
                .iter()
                .map(|(name, value)| (name.as_bytes(), Some(*value))),
        )
    }

    /// The text of a header that this service adds.
    pub(crate) fn extra_header(&self, name: &str) -> Option<&str> {
        let (_, value) = self
            .extra_headers
            .iter()
            .find(|(extra, _)| *extra == name)?;
        std::str::from_utf8(value).ok()
    }

    /// What makes a record that is sent again a no-op, where a broker passes over what it has already: its origin; a dead letter is another
    /// message than the one that could not be delivered, and so is each way back through the source. `None`: it bears nothing of the kind.
    pub(crate) fn message_id(&self) -> Option<String> {
        if fault!(SendWithoutMessageId) {
            return None;
        }
        match (
            self.extra_header(ORIGIN),
            self.extra_header(ERROR),
            self.extra_header(ControlHeader::Retry.name()),
        ) {
            (Some(origin), None, _) => Some(origin.to_owned()),
            (Some(origin), Some(_), _) => Some(format!("{origin}/dead")),
            (None, _, retry) => retry.map(str::to_owned),
        }
    }
}

/// Whether a target took a record over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// A report will follow.
    Accepted,
    /// The client's buffer is full; try again after the next reports.
    QueueFull,
    /// No report will follow.
    Failed(DeliveryFailure),
}

/// What became of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryReport {
    pub(crate) ticket: u64,
    /// Where it lies in its topic, if it was delivered and that is known.
    pub(crate) position: Option<(i32, Offset)>,
    pub(crate) outcome: Result<(), DeliveryFailure>,
}

/// Why a record was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryFailure {
    pub(crate) kind: FailureKind,
    pub(crate) reason: Reason,
    /// The broker's own words.
    pub(crate) detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The same record will be refused again: too large, invalid, not allowed.
    Rejected,
    /// Not taken, but may be later: the topic does not exist.
    NotDelivered,
    /// It may have arrived: the client gave up waiting.
    MaybeDelivered,
    /// The client was closed, or has failed as a whole: nothing is known, and nothing else can be sent by it.
    ClientFailed,
}

/// Why a source or a catalog did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the broker does not answer: {0}")]
    Unavailable(String),
    /// A person must act: access denied, wrong credentials, a topic that does not exist.
    #[error("the broker refuses: {0}")]
    Rejected(String),
    #[error("the broker's client has failed for good: {0}")]
    Fatal(String),
}

impl Error {
    /// Whether the same call may succeed later in this process. A refusal may: somebody may create the topic or grant the access.
    pub(crate) fn is_transient(&self) -> bool {
        !matches!(self, Self::Fatal(_))
    }
}
