//! The outcomes of the store port: one per request.

use super::{Ledger, Lineage};
use crate::model::{
    Cursor, LeaseToken, Offset, Pause, Progress, SessionId, Slice, SourceIdentity, Timestamp,
    Watermark, WorkerEntry,
};
use crate::run::RunName;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// Everything that the store knows about one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredShard {
    pub(crate) identity: SourceIdentity,
    pub(crate) watermark: Watermark,
    pub(crate) claimed: Progress,
    pub(crate) delivered: Progress,
    /// Claims wait until the watermark is here, see [`Hold`].
    pub(crate) hold: Watermark,
    /// Covers messages that may have been delivered before the store lost writes. Used only to count
    /// possible duplicates.
    pub(crate) possibly_delivered: Progress,
    /// `None`: there was no control record.
    pub(crate) pause: Option<Pause>,
    /// No message below this offset is pending. May be too low, never too high.
    pub(crate) lowest_pending: Offset,
    /// The slices with stored runs, ordered.
    pub(crate) slices: Vec<SliceCount>,
    /// Messages in quarantine, which belong to no slice.
    pub(crate) quarantined: u64,
    /// The messages in stored runs by the name of the key that encrypts them. Plain ones are not included.
    pub(crate) keys: BTreeMap<Box<str>, u64>,
    pub(crate) ledger: Ledger,
}

impl StoredShard {
    /// Messages in stored runs.
    pub(crate) fn pending(&self) -> u64 {
        self.slices.iter().map(|count| count.messages).sum()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.is_paused)
    }

    /// Compressed size of the stored runs.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.slices.iter().map(|count| count.bytes).sum()
    }
}

/// The stored runs of one slice. A run is deleted when its last message has been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceCount {
    pub(crate) slice: Slice,
    pub(crate) messages: u64,
    /// Compressed size.
    pub(crate) bytes: u64,
}

/// The part of a shard's state that a position check reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardPosition {
    pub(crate) watermark: Watermark,
    pub(crate) delivered: Progress,
    pub(crate) lineage: Lineage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// This call created the shard.
    Created(StoredShard),
    /// The shard existed.
    Existing(StoredShard),
    /// There is no shard, and the call creates none.
    Absent,
    /// Another layout version, a slice of a newer version, or foreign data is stored under the name
    /// of the shard. Postdate does not touch it. The text names it and tells what to do.
    Incompatible(String),
}

impl Opened {
    pub(crate) fn state(&self) -> Option<&StoredShard> {
        match self {
            Self::Created(state) | Self::Existing(state) => Some(state),
            Self::Absent | Self::Incompatible(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    Done {
        /// Messages that a cancel or a replacement cancelled in time.
        cancelled: u32,
        /// Cancels and reschedules without effect: no message waited under the id, it was claimed
        /// already, or it is not due before its new due time.
        missed: u32,
        /// The effects of the changes that ask for them and name another message, in the order of the
        /// changes.
        told: Vec<ToldEffect>,
    },
    /// The batch does not start at the watermark, which is this one, or another epoch has followed
    /// that of the batch. The store wrote nothing.
    WatermarkMismatch(Watermark),
    Unknown,
}

/// The effect of an id change on the message that waited under the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToldEffect {
    /// The number of the change in its append, from 0.
    pub(crate) change: usize,
    /// The place of the message.
    pub(crate) named: Cursor,
    /// False: the message keeps its place, because it was claimed, keeps the id, or is not due before its
    /// new due time. Or it may have been delivered before the store lost writes.
    pub(crate) is_changed: bool,
}

/// Name, slice and least due of a stored run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunEntry {
    pub(crate) slice: Slice,
    pub(crate) name: RunName,
    pub(crate) least_due: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    Runs {
        watermark: Watermark,
        /// The lineage when the names were read. It may be older in a store that cannot roll back
        /// while its process runs: an old count only makes a replacement of runs fail.
        lineage: Lineage,
        runs: Vec<RunEntry>,
        /// The limit cut the list. More runs follow at or after the least due of the last one.
        has_more: bool,
    },
    Unknown,
}

/// The wait of a shard's claims for the source log. A record further on in the log can cancel a
/// message, and a store that lost writes has to read it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Claims wait while the watermark is lower.
    Until(Watermark),
    /// No stored message waits under an id, so no later record can cancel one.
    NoIds,
    /// The hold ended early, because the store or the quota of the route was full. No append has succeeded since.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tailed {
    Runs {
        /// The watermark of the shard.
        watermark: Watermark,
        /// `runs` holds everything that was stored in `after..complete_to`. Equals `watermark`
        /// unless the limit cut the answer.
        complete_to: Watermark,
        lineage: Lineage,
        hold: Hold,
        pause: Option<Pause>,
        runs: Vec<TailRun>,
    },
    /// The tail starts after `after`, or the store rolled back behind `after`: load the shard
    /// again.
    OutOfRange {
        watermark: Watermark,
    },
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailRun {
    pub(crate) entry: RunEntry,
    /// `None`: the run is due after the requested horizon, or it is gone.
    pub(crate) bytes: Option<Bytes>,
}

/// The effect of a request on the message that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestEffect {
    pub(crate) request: Offset,
    pub(crate) place: Cursor,
    pub(crate) kind: EffectKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EffectKind {
    /// Kept for the answer: the request cancelled the message, or gave it another due time.
    Changed,
    /// Kept for the answer: the message was claimed already, or the request keeps it.
    Unchanged,
    /// Kept for the message: it goes back to its source with this due time.
    Moved(Timestamp),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Advanced {
    Done {
        watermark: Watermark,
        /// Cancelled places inside `claim` and outside the delivered pair: do not deliver them.
        cancelled: Vec<Cursor>,
        /// The effects of the claimed answers' requests, and of those that changed such places. A
        /// request without effect is missing. Sorted.
        effects: Vec<RequestEffect>,
    },
    /// The claim is too far ahead of the clock of the store and was refused. The rest was done.
    ClockAhead {
        watermark: Watermark,
        now: Timestamp,
    },
    /// The watermark is below the one that the timer has seen, so the store lost writes. The claim
    /// was refused. The rest was done.
    RolledBack {
        watermark: Watermark,
    },
    /// The shard is paused. The claim was refused. The rest was done.
    Paused {
        watermark: Watermark,
        pause: Pause,
    },
    /// The lease has another token, or none. The store wrote nothing.
    Fenced,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    Done,
    /// An input is gone, or the caller does not know all replacements. The store wrote nothing.
    Conflict,
    /// The lease has another token, or none. The store wrote nothing.
    Fenced,
    Unknown,
}

/// Where a scan of a shard's ids, or of all its entries, continues. Only the store that has made it understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdPosition(pub(super) Box<[u8]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restored {
    Done,
    /// The quarantine does not have the run, or not any more.
    Gone,
    /// A message would be inside the claimed or the delivered pair, so no timer would deliver it.
    /// The store wrote nothing.
    TooEarly,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted(StoredShard),
    /// Another token holds the lease.
    HeldBy(LeaseToken),
    /// A newer version has stored messages that this one cannot read. The text names them and tells
    /// what to do.
    Incompatible(String),
    /// The shard holds messages of another installation, from this source.
    OtherCluster(SourceIdentity),
    Unknown,
}

/// The answer to a heartbeat. Except for `Renewed`, the store recorded nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heartbeat {
    Renewed {
        /// The clock of the store.
        now: Timestamp,
        /// All sessions that have not ended, expired ones included, ordered by id.
        sessions: Vec<Session>,
    },
    /// The session has ended, and the others have not. The worker must begin another one.
    Ended(Vec<Session>),
    /// Among these sessions is one of another worker with the same name.
    NameTaken(Vec<Session>),
    /// The workers of the other sessions read from none of this worker's clusters.
    OtherClusters(Vec<Session>),
    /// This many workers of version 0.1.0 are alive.
    OlderWorkers(usize),
}

/// A session that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) entry: WorkerEntry,
    /// Number of its last heartbeat.
    pub(crate) heartbeats: u64,
    /// The time that it lasts after a heartbeat.
    pub(crate) length: Duration,
    /// Time until it expires by the clock of the store, unless it is renewed; zero if it has
    /// expired.
    pub(crate) expires_in: Duration,
    /// False if the store had a connection of its process at its last heartbeat, and has none now.
    pub(crate) is_connected: bool,
}
