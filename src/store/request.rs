//! The requests of the store port. One request concerns one shard.

use super::{AppendEpoch, IdPosition};
use crate::encryption::StoredId;
use crate::limit;
use crate::model::{
    Cursor, Lease, LeaseToken, Offset, OutcomeCounts, Pause, Progress, SessionId, ShardId, Slice,
    SourceIdentity, Timestamp, Watermark, WorkerEntry,
};
use crate::run::{Run, RunName};
use std::time::Duration;

/// The first state of a shard.
#[derive(Clone, Debug)]
pub(crate) struct NewShard {
    pub(crate) shard: ShardId,
    /// False: the shard is only changed if it exists.
    pub(crate) creates: bool,
    pub(crate) identity: SourceIdentity,
    pub(crate) watermark: Watermark,
    pub(crate) delivered: Progress,
    /// Claims wait until the watermark is here.
    pub(crate) hold: Watermark,
    /// Covers messages that may have been delivered before the store lost the shard, or its last
    /// writes.
    pub(crate) possibly_delivered: Progress,
    /// An existing shard gets it if it is newer than its own.
    pub(crate) pause: Option<Pause>,
}

/// A batch that covers the source offsets `from..to`. Without runs and changes it only moves the
/// watermark.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    pub(crate) shard: ShardId,
    /// The epoch of the ingress that read the batch.
    pub(crate) epoch: AppendEpoch,
    /// As the shard has it. The store does not know a shard that has another one.
    pub(crate) identity: SourceIdentity,
    pub(crate) from: Watermark,
    pub(crate) to: Watermark,
    pub(crate) runs: Vec<Run>,
    /// In offset order. A store does not know a shard that uses another key than those by which
    /// the ids are hashed.
    pub(crate) changes: Vec<IdChange>,
    /// Set if the batch has a control record. The shard keeps the newest.
    pub(crate) pause: Option<Pause>,
}

/// Takes a lease for a worker that reads this incarnation of the source.
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) lease: Lease,
    pub(crate) identity: SourceIdentity,
    /// The holder, if its session has ended.
    pub(crate) ended_holder: Option<LeaseToken>,
}

/// Begins a session, or extends it to `length` from now.
#[derive(Clone, Debug)]
pub(crate) struct SessionHeartbeat {
    pub(crate) session: SessionId,
    /// Number of this heartbeat. The first one begins the session.
    pub(crate) heartbeats: u64,
    /// Number of the last heartbeat that the store has answered; 0: none.
    pub(crate) answered: u64,
    pub(crate) length: Duration,
    pub(crate) entry: WorkerEntry,
}

/// Ends a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionEnd {
    pub(crate) session: SessionId,
    /// End it only if this is its last heartbeat.
    pub(crate) heartbeats: Option<u64>,
}

/// The effect of a record with an id on the message that waits under this id. The store gets ids
/// only in their stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdChange<I = StoredId> {
    pub(crate) id: I,
    pub(crate) kind: IdChangeKind,
    /// The record asks for an answer. The store keeps the effect on the named message under this
    /// offset.
    pub(crate) request: Option<Offset>,
    /// A claimed message is changed too, unless it is delivered. The timer of an exactly-once
    /// route decides whether that was in time.
    pub(crate) changes_claimed: bool,
    /// The outcome of the append tells the effect on the named message. Not together with
    /// `changes_claimed`.
    pub(crate) tells_effect: bool,
}

impl<I> IdChange<I> {
    pub(crate) fn new(id: impl Into<I>, kind: IdChangeKind) -> Self {
        Self {
            id: id.into(),
            kind,
            request: None,
            changes_claimed: false,
            tells_effect: false,
        }
    }

    pub(crate) fn map_id<J>(self, to: impl FnOnce(I) -> J) -> IdChange<J> {
        IdChange {
            id: to(self.id),
            kind: self.kind,
            request: self.request,
            changes_claimed: self.changes_claimed,
            tells_effect: self.tells_effect,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdChangeKind {
    /// The id now names the message at this place, which is in one of the runs of the append. A
    /// message that waited under the id is cancelled.
    Schedule(Cursor),
    /// The id now names the message at this place, unless another message waits under it that is not
    /// claimed. Cancels nothing.
    Retry(Cursor),
    /// The id now names the message at this place. But if another message waits under it that is due
    /// after `timestamp`, that one keeps the id, and the message at this place is cancelled.
    KeepFirst { place: Cursor, timestamp: Timestamp },
    /// The message that waits under the id is cancelled, unless it is claimed.
    Cancel,
    /// The message that waits under the id gets this due time from the record at offset `by`, unless
    /// it is claimed or due then or later. The claim of its place tells so.
    Reschedule { by: Offset, due: Timestamp },
    /// The delivered pair covers this record, so it is not stored again. It still cancels the message
    /// that waits under the id, and is never counted as missed.
    Delivered,
    /// The message at this place replaces the one at offset `of`, which is cancelled. But if that one
    /// does not wait under the id, or is claimed, the message at this place is cancelled.
    TakePlace { place: Cursor, of: Offset },
    /// The delivered pair covers the message that has taken the place of the one at offset `of`. That
    /// one is cancelled again if it waits under the id.
    PlaceTaken { of: Offset },
}

impl IdChangeKind {
    /// The offset of the only message that the change may cancel. `None`: the one under the id.
    pub(crate) fn replaces(self) -> Option<Offset> {
        match self {
            Self::TakePlace { of, .. } | Self::PlaceTaken { of } => Some(of),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(crate) shard: ShardId,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) limit: usize,
}

impl List {
    /// The number of runs that the answer may have.
    pub(super) fn limit(&self) -> usize {
        self.limit.min(limit::REQUESTED_RUNS_MAX)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub(crate) shard: ShardId,
    pub(crate) runs: Vec<(Slice, RunName)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Tail {
    pub(crate) shard: ShardId,
    pub(crate) after: Watermark,
    /// The load horizon of the timer: runs whose least due is later come without bytes.
    pub(crate) until: Timestamp,
    /// At most this many runs, in whole batches, but always at least one batch. If the limit cuts
    /// the answer, its `complete_to` ends before the watermark of the shard.
    pub(crate) limit: usize,
    /// The answer ends, after whole batches, with the run that reaches this decoded size. It holds at
    /// least one batch.
    pub(crate) bytes_max: usize,
}

/// The acknowledgement of previous claims, and the next claim.
#[derive(Clone, Debug)]
pub(crate) struct Advance {
    pub(crate) lease: Lease,
    /// The new delivered pair; `None` leaves it unchanged.
    pub(crate) delivered: Option<Progress>,
    /// The delivered pair that this timer acknowledged before.
    pub(crate) delivered_before: Progress,
    /// Outcomes of the messages between `delivered_before` and `delivered`, for the ledger.
    pub(crate) outcomes: OutcomeCounts,
    /// The number of occurrences of schedules among these messages. No append has counted them.
    pub(crate) occurrences: u64,
    /// Runs that are completely inside the delivered pair of this or of an earlier call.
    pub(crate) deletes: Vec<(Slice, RunName)>,
    /// Ids of delivered messages. An id is removed only if it still names this place.
    pub(crate) delivered_ids: Vec<(StoredId, Cursor)>,
    /// The requests whose answers are in the claim. The outcome tells their effects.
    pub(crate) claimed_answers: Vec<Offset>,
    /// The requests whose answers are delivered. The store forgets their effects.
    pub(crate) delivered_answers: Vec<Offset>,
    /// The next claim; `None` claims nothing.
    pub(crate) claim: Option<Progress>,
    /// The watermark that this timer has seen. A store that is behind it refuses the claim.
    pub(crate) seen: Watermark,
    /// Limit for the due time of `claim` minus the clock of the store.
    pub(crate) clock_skew_max: Duration,
}

impl Advance {
    /// True if the request acknowledges deliveries, which changes the ledger.
    pub(super) fn reports_delivery(&self) -> bool {
        self.delivered.is_some() || !self.deletes.is_empty()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Quarantine {
    pub(crate) lease: Lease,
    pub(crate) runs: Vec<(Slice, RunName)>,
}

/// Puts the messages of a quarantined run back, as `runs`, which is not empty.
#[derive(Clone, Debug)]
pub(crate) struct Restore {
    pub(crate) shard: ShardId,
    pub(crate) quarantined: RunName,
    pub(crate) runs: Vec<Run>,
}

impl Restore {
    /// The place of the first message. A claim must not have passed it.
    pub(crate) fn first_place(&self) -> Cursor {
        let places = self.runs.iter().map(|run| run.summary.first);
        places.min().unwrap_or(Progress::START.cursor)
    }
}

/// Removes the ids of finished messages, and the effects of finished requests, in one part of a
/// shard.
#[derive(Clone, Debug)]
pub(crate) struct FinishedIds {
    pub(crate) shard: ShardId,
    /// Where the part begins; `None`: at the first id.
    pub(crate) from: Option<IdPosition>,
}

/// Replaces `inputs` by `outputs`, whose messages are all due after the load horizon.
#[derive(Clone, Debug)]
pub(crate) struct ReplaceRuns {
    pub(crate) lease: Lease,
    /// Number of replacements of this shard that the caller knows about.
    pub(crate) known_replacements: u64,
    pub(crate) inputs: Vec<(Slice, RunName)>,
    pub(crate) outputs: Vec<Run>,
    /// Ids of messages whose key changes. An id gets its first name if it still names this place.
    pub(crate) renamed_ids: Vec<(StoredId, Cursor)>,
}
