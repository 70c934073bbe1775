//! The store port: durable state of shards, kept in runs. Each call takes requests for many shards and answers one outcome each, in the
//! order of the requests; how they travel together is the adapter's affair.
//!
//! What a caller must act on is a value; `Err` is only for retry, report or stop, and then nothing is known of any request of the call.
//! Every call may be repeated: a repeated append or birth answers what is there, a repeated claim, release or delete changes nothing more.
//!
//! Each request is atomic for its shard, and requests of one call are independent of one another. On a shard that was never born, or whose
//! state was lost or is not in this version's layout, every call but [`Store::open`] answers `Unknown` and writes nothing.

pub(crate) mod embedded;
mod forecast;
mod ledger;
mod lineage;
pub(crate) mod live_workers;
pub(crate) mod redis;
pub(crate) mod shard;
pub(crate) mod survey;
pub(crate) mod with_metrics;

use crate::model::{
    Cursor, Lease, Offset, Progress, ShardId, Slice, SourceIdentity, Timestamp, Watermark, WorkerId,
};
use crate::run::{Run, RunName};
use async_trait::async_trait;
use bytes::Bytes;
pub(crate) use forecast::Forecast;
pub(crate) use ledger::{Balance, Ledger, OutcomeCounts};
pub(crate) use lineage::{AppendEpoch, Lineage};
use std::time::Duration;
pub(crate) use survey::{ShardContents, SliceCount, StoreQuery};

/// See the module's own page. Implementations are held by one loop on one thread; they need not be `Send`.
#[async_trait(?Send)]
pub(crate) trait Store {
    /// Birth: if the shard is absent, writes identity, layout version, W and delivered (claimed becomes the same pair) in one step.
    /// Else changes nothing. Needs free memory. Safe to repeat.
    async fn open(&self, births: &[NewShard]) -> Result<Vec<Opened>, Error>;

    /// Appends a batch if its `from` is the shard's watermark (I2): applies ids and cancels in offset order, adds the runs, moves W to
    /// `to` - all or nothing. Needs free memory ([`Error::Full`] if there is none). Safe to repeat: the repeat of a stored append answers
    /// `Elsewhere` with `to`.
    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error>;

    /// What the store knows of each shard, read in one step a shard. `None`: unborn.
    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error>;

    /// The two positions that move and the history, of each shard, as cheaply as can be: tells whether anything has happened. `None`: unborn.
    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error>;

    /// Takes a lease that is free, expired by the store's own time, or already held with this very token.
    async fn acquire(&self, leases: &[Lease], length: Duration) -> Result<Vec<Acquired>, Error>;

    /// Extends a lease to `length` from the store's now. A lease past its end that nobody took is extended too.
    async fn renew(&self, leases: &[Lease], length: Duration) -> Result<Vec<Renewed>, Error>;

    /// Gives leases back early; another holder's lease is left alone (I5).
    async fn release(&self, leases: &[Lease]) -> Result<(), Error>;

    /// Names of the runs whose least due lies in `from..=until`, by least due and then by least offset, at most `limit` a shard.
    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error>;

    /// Runs by name. `None` for a name that is gone: read the names again. A run whose name is there and whose bytes are lost is empty, and
    /// so unreadable.
    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error>;

    /// What was appended past `after`, oldest first.
    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error>;

    /// Done, then the next claim, in one step (I4, I5): checks the token; moves `delivered` forward (never back, and only to a pair that
    /// includes it) and deletes by name the runs inside it, with their ids; then moves `claimed` forward, per component, and answers the
    /// cancelled offsets inside `claim`. Works on a full store.
    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error>;

    /// Sets unreadable runs aside: out of their slice, into the shard's quarantine with their bytes and counts, so that lowest pending stays
    /// below them. Checks the token; a run that is gone is left out. Answers how many were moved. Works on a full store.
    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error>;

    /// Puts runs in the place of others that hold the same messages but for delivered ones, all or nothing: checks the token, that it is known
    /// of every rewrite that there was, and that every input is there; counts it. The tail goes on naming the inputs, which are gone. Needs free memory. Safe to repeat: the repeat of one that was
    /// done answers `Done`, or `Changed` if it brought no run.
    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error>;

    /// Notes that a worker of the deployment lives until `length` from the store's now, and answers all that live, this one included, in
    /// the order of their names. It concerns no shard. Works on a full store.
    async fn heartbeat_worker(
        &self,
        worker: WorkerId,
        length: Duration,
    ) -> Result<Vec<LiveWorker>, Error>;

    /// The worker is to be counted among those that live no longer.
    async fn remove_worker(&self, worker: WorkerId) -> Result<(), Error>;

    /// Deletes all that is kept of the shards, whatever it is.
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error>;
}

/// What a birth writes.
#[derive(Clone, Debug)]
pub(crate) struct NewShard {
    pub(crate) shard: ShardId,
    pub(crate) identity: SourceIdentity,
    pub(crate) watermark: Watermark,
    pub(crate) delivered: Progress,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Written by this call.
    Created(StoredShard),
    /// It was there.
    Existing(StoredShard),
    /// What is kept under the shard's name is not ours to touch: another layout version, or foreign bytes. Says what was found.
    Incompatible(String),
}

/// How far a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardPosition {
    pub(crate) watermark: Watermark,
    pub(crate) delivered: Progress,
    pub(crate) lineage: Lineage,
}

/// One shard as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredShard {
    pub(crate) identity: SourceIdentity,
    pub(crate) watermark: Watermark,
    pub(crate) claimed: Progress,
    pub(crate) delivered: Progress,
    /// No message below this offset is pending; may be too low, never too high.
    pub(crate) lowest_pending: Offset,
    /// Messages in runs that are not deleted yet: a run leaves when the last of its messages is delivered.
    pub(crate) pending: u64,
    /// Bytes of these runs, as they are stored.
    pub(crate) stored_bytes: u64,
    /// Messages in quarantine.
    pub(crate) quarantined: u64,
    pub(crate) forecast: Forecast,
    pub(crate) ledger: Ledger,
}

/// A batch that covers the source offsets `from..to`; without runs and changes it only moves the watermark.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    pub(crate) shard: ShardId,
    /// The reading that it is of.
    pub(crate) epoch: AppendEpoch,
    pub(crate) from: Watermark,
    pub(crate) to: Watermark,
    pub(crate) runs: Vec<Run>,
    /// In offset order.
    pub(crate) changes: Vec<IdChange>,
}

/// What a record with an id does to the message that waits under that id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdChange {
    pub(crate) id: Box<str>,
    pub(crate) kind: IdChangeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdChangeKind {
    /// The id now names the message at this place (which is in one of the append's runs); one that waited under it is cancelled.
    Schedule(Cursor),
    /// The message that waits under the id is cancelled, if it is outside claimed.
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    Done {
        /// Cancels and replacements that came in time.
        cancelled: u32,
        /// Cancels that found nothing waiting under their id, or came after the claim.
        missed: u32,
    },
    /// Nothing written; the watermark is here.
    WatermarkMismatch(Watermark),
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted {
        state: StoredShard,
        /// The store's time, to measure clocks by.
        now: Timestamp,
    },
    /// Somebody holds it.
    HeldByOther,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::enum_variant_names,
    reason = "the outcome of `renew` is that it was renewed"
)]
pub(crate) enum Renewed {
    Renewed {
        now: Timestamp,
    },
    /// Another process holds the shard: drop its work, do not retry.
    Fenced,
    Unknown,
}

/// A worker that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveWorker {
    pub(crate) worker: WorkerId,
    /// For how long yet, if nothing more is heard of it.
    pub(crate) expires_in: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(crate) shard: ShardId,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) limit: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    Runs {
        watermark: Watermark,
        /// As it was when the names were read, or later.
        lineage: Lineage,
        runs: Vec<RunEntry>,
        /// The limit cut the list: more runs follow at or after the last one's least due.
        has_more: bool,
    },
    Unknown,
}

/// A run's place in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunEntry {
    pub(crate) slice: Slice,
    pub(crate) name: RunName,
    pub(crate) least_due: Timestamp,
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
    /// Bytes are sent along only for runs whose least due is not later: the timer's horizon.
    pub(crate) until: Timestamp,
    /// At most so many runs, in whole batches, though always one batch; the answer's `seen` then ends before the shard's watermark.
    pub(crate) limit: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tailed {
    Runs {
        /// The shard's watermark.
        watermark: Watermark,
        /// How far the answer reaches: everything stored in `after..seen` is in `runs`. Equals `watermark` unless the limit cut it.
        complete_to: Watermark,
        lineage: Lineage,
        runs: Vec<TailRun>,
    },
    /// The tail no longer reaches back to `after`, or the store went back behind it: load the shard again.
    OutOfRange {
        watermark: Watermark,
    },
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailRun {
    pub(crate) entry: RunEntry,
    /// `None`: beyond the asked horizon, or gone already.
    pub(crate) bytes: Option<Bytes>,
}

/// What one tick of a timer writes for one shard.
#[derive(Clone, Debug)]
pub(crate) struct Advance {
    pub(crate) lease: Lease,
    pub(crate) delivered: Option<Progress>,
    /// The pair that was told before, and what was settled between it and `delivered`: for the ledger.
    pub(crate) delivered_before: Progress,
    pub(crate) outcomes: OutcomeCounts,
    /// Runs wholly inside `delivered` (of this or an earlier call).
    pub(crate) deletes: Vec<(Slice, RunName)>,
    /// Ids of delivered messages; an id goes only if it still names that place.
    pub(crate) delivered_ids: Vec<(Box<str>, Cursor)>,
    pub(crate) claim: Option<Progress>,
    /// How far `claim`'s due may lie past the store's time.
    pub(crate) clock_skew_max: Duration,
}

impl Advance {
    /// Whether it changes what is known to be done.
    fn reports_delivery(&self) -> bool {
        self.delivered.is_some() || !self.deletes.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Advanced {
    Done {
        watermark: Watermark,
        /// Cancelled places inside `claim` and outside what was delivered before: not to be handed over.
        cancelled: Vec<Cursor>,
    },
    /// The claim lies too far past the store's time and was refused; the rest was done.
    ClockAhead {
        watermark: Watermark,
        now: Timestamp,
    },
    Fenced,
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct Quarantine {
    pub(crate) lease: Lease,
    pub(crate) runs: Vec<(Slice, RunName)>,
}

/// Runs of one shard, and those that are to be in their place. Their messages are due after what is loaded.
#[derive(Clone, Debug)]
pub(crate) struct ReplaceRuns {
    pub(crate) lease: Lease,
    /// So many rewrites of the shard are known of.
    pub(crate) known_replacements: u64,
    pub(crate) inputs: Vec<(Slice, RunName)>,
    pub(crate) outputs: Vec<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    Done,
    /// Some input is not there, or there were more or fewer rewrites than are known of: nothing was written.
    Conflict,
    Fenced,
    Unknown,
}

/// Fills in the bytes of those runs of the tails that are due within the asked horizons.
async fn fetch_tail_bytes(
    store: &impl Store,
    requests: &[Tail],
    tails: &mut [Tailed],
) -> Result<(), Error> {
    let mut fetches = Vec::new();
    let mut takers = Vec::new();
    for (request, tail) in requests.iter().zip(tails) {
        let Tailed::Runs { runs, .. } = tail else {
            continue;
        };
        let within: Vec<&mut TailRun> = runs
            .iter_mut()
            .filter(|run| run.entry.least_due <= request.until)
            .collect();
        if !within.is_empty() {
            let names = within
                .iter()
                .map(|run| (run.entry.slice, run.entry.name.clone()))
                .collect();
            fetches.push(Fetch {
                shard: request.shard.clone(),
                runs: names,
            });
            takers.push(within);
        }
    }
    if fetches.is_empty() {
        return Ok(());
    }
    for (within, found) in takers.into_iter().zip(store.fetch(&fetches).await?) {
        for (run, bytes) in within.into_iter().zip(found) {
            run.bytes = bytes;
        }
    }
    Ok(())
}

/// Why a call did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    #[error(
        "the store is full: give it more memory (Redis: maxmemory) or disk (the embedded store), or wait until what is due has been delivered"
    )]
    Full,
    #[error("the store cannot be used: {0}")]
    Unusable(String),
}

impl Error {
    /// Whether the same call may succeed later without anybody doing anything.
    pub(crate) fn is_transient(&self) -> bool {
        !matches!(self, Self::Unusable(_))
    }
}

/// A lease from its parts.
#[cfg(test)]
pub(crate) fn lease(shard: &ShardId, token: crate::model::LeaseToken) -> Lease {
    Lease {
        shard: shard.clone(),
        token,
    }
}
