//! The store port: durable state of shards. The messages of a shard wait in the store as runs.
//!
//! | trait | duty | used by |
//! |---|---|---|
//! | [`ShardStore`] | data of shards: runs, positions, ids, cancels, claims | ingress, timer, compactor |
//! | [`LeaseStore`] | which worker may deliver a shard | lease loop of the timer |
//! | [`Membership`] | sessions of the workers | membership loop |
//! | [`StoreAdmin`] | deletes shards | `postdate reset` |
//! | [`StoreQuery`] | read-only questions of people | commands that show or find messages, admin server |
//! | [`AdminStore`] | the audit list, requests with an idempotency key | admin server |
//! | [`CopyStore`] | moves shards to another store | `postdate store copy` |
//! | [`QuarantineStore`] | reads and restores quarantined runs | `postdate quarantine` |
//! | [`Notifier`] | hints from one process to the others | hints loop |
//!
//! [`Store`] combines the first four in one object. Requests are in `request`, results in
//! `outcome`. `rules` decides what a request does to a shard; stores inside this process use it.
//!
//! Rules for every call:
//! - A call carries requests for many shards. It returns one outcome per request, in their order.
//! - A request is atomic for its shard. Requests of one call are independent of each other.
//! - A result that the caller must act on is a value. After an `Err` the caller knows nothing about
//!   any request of the call: it may retry, report the error, or stop.
//! - A store may have several parts, each with some shards, that fail independently of each other. A
//!   call with shards of several parts waits for all of them, and fails if one does. So a caller whose
//!   shards must not wait for those of another part makes one call per part.
//! - Every call may be repeated. The repeat of an append or of an open finds the stored state. The
//!   repeat of a claim, a release or a delete changes nothing more.
//! - A shard is unknown if it was never created, was lost, or has another layout version. For an
//!   append, it is also unknown if its source has another identity. Every
//!   call but `open` and `erase` then writes nothing, and answers `Unknown`, `None` or 0.
//! - A shard with a slice whose level this version does not know was written by a newer one. It
//!   waits: no call that finds the slice answers runs, a state or a lease.
//! - Runs come encrypted, and ids hashed. A store counts by the names of the runs what each key
//!   encrypts.
//! - A full store refuses only calls that add data. Everything that a delivery needs still works.

mod admin;
mod copy;
pub(crate) mod embedded;
mod error;
mod key_use;
mod outcome;
pub(crate) mod query;
pub(crate) mod redis;
mod request;
pub(crate) mod rules;
pub(crate) mod tail_bytes;
pub(crate) mod with_metrics;

pub(crate) use crate::model::OutcomeCounts;
use crate::model::{Hint, Lease, ShardId};
pub(crate) use admin::{AdminStore, AuditPart, AuditPosition, AuditRow, RequestName};
use async_trait::async_trait;
use bytes::Bytes;
pub(crate) use copy::{
    CopyNumber, CopyState, CopyStore, PartCounts, ShardEntry, ShardPart, StoredRun, begun_copy,
};
pub(crate) use error::Error;
pub(crate) use key_use::OtherKeys;
pub(crate) use outcome::{
    Acquired, Advanced, Appended, EffectKind, Heartbeat, Hold, IdPosition, Listed, Opened,
    Replaced, RequestEffect, Restored, RunEntry, Session, ShardPosition, SliceCount, StoredShard,
    TailRun, Tailed, ToldEffect,
};
pub(crate) use query::{QuarantineStore, StoreQuery};
pub(crate) use request::{
    Acquire, Advance, Append, Fetch, FinishedIds, IdChange, IdChangeKind, List, NewShard,
    Quarantine, ReplaceRuns, Restore, SessionEnd, SessionHeartbeat, Tail,
};
pub(crate) use rules::{AppendEpoch, Balance, EpochStart, Ledger, Lineage, due_by};

/// A part of a store that may fail while the others answer: a primary of a Redis Cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StorePart(pub(crate) u16);

/// The data of shards. A store belongs to one loop on one thread, so it need not be `Send`.
#[async_trait(?Send)]
pub(crate) trait ShardStore {
    /// The part of the store that has the shard, as far as known. It may change between two calls.
    fn part_of(&self, _shard: &ShardId) -> StorePart {
        StorePart(0)
    }

    /// Creates the shard if it is absent and the call `creates` it: writes identity, layout version,
    /// watermark and delivered pair in one step, with claimed equal to delivered. If the shard exists, it only extends the
    /// pair `possibly_delivered`, each component on its own, and takes a newer pause.
    ///
    /// Safe to repeat. On a full store: [`Error::Full`], or the pair of an existing shard is extended.
    async fn open(&self, shards: &[NewShard]) -> Result<Vec<Opened>, Error>;

    /// Stores a batch if its `from` equals the watermark of the shard (I2). Applies ids and cancels
    /// in offset order, adds the runs, and moves the watermark to `to`: all or nothing.
    ///
    /// Safe to repeat: the repeat of a stored append answers `WatermarkMismatch` with `to`. On a
    /// full store: [`Error::Full`].
    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error>;

    /// Everything that the store knows about each shard, read in one step per shard.
    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error>;

    /// Ends the hold of each shard, see [`Hold`]: a full store, or a used quota, stops the reading of the log. Records
    /// that the hold was ended, until the next append. Safe to repeat. Works on a full store.
    async fn end_holds(&self, shards: &[ShardId]) -> Result<(), Error>;

    /// The positions and the lineage of each shard. This is the cheapest way to see whether
    /// anything has changed.
    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error>;

    /// Names of the runs whose least due is in `from..=until`: ordered by least due, then by least
    /// offset, at most `limit` per shard.
    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error>;

    /// The bytes of runs by name. `None`: the run is gone, so list the shard again. Empty bytes:
    /// the name is there but its bytes are lost, so the run is unreadable.
    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error>;

    /// The runs that were appended past the watermark `after`, oldest first.
    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error>;

    /// Acknowledges deliveries, then claims the next messages, in one step (I4, I5):
    /// 1. checks the lease token;
    /// 2. moves `delivered` forward, never back, and only to a pair that includes the old one;
    /// 3. deletes the named runs and the ids of delivered messages;
    /// 4. moves `claimed` forward, each component on its own;
    /// 5. answers the cancelled and rescheduled places inside the claim, and the effects of requests with
    ///    answers.
    ///
    /// Refuses a claim whose due time is too far ahead of the store's clock. Also if the watermark is
    /// below the one that the caller has seen, and while the shard is paused.
    ///
    /// Safe to repeat. Works on a full store.
    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error>;

    /// Moves unreadable runs from their slice to the quarantine of the shard, with bytes and
    /// counts, so that the lowest pending offset stays below them. Checks the lease token. Skips
    /// runs that are gone. Answers the number of moved runs.
    ///
    /// Safe to repeat. Works on a full store.
    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error>;

    /// Replaces runs by others that hold the same messages, except those already delivered: all or
    /// nothing. Checks the lease token, that the caller knows every earlier replacement, and that
    /// every input is there. Counts the replacement. Renames ids whose key changes, unless another message
    /// waits under the new name. The tail still names the removed inputs.
    ///
    /// Safe to repeat: the repeat answers `Done`, or `Conflict` if it adds no run. On a full store:
    /// [`Error::Full`].
    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error>;

    /// Removes what a timer left when it stopped: ids of messages inside the delivered pair, and
    /// effects whose answers are inside it. Looks at one part of them, and answers where the next part
    /// begins: `None` after the last one, and for an unknown shard.
    ///
    /// Safe to repeat. Works on a full store.
    async fn remove_finished_ids(
        &self,
        requests: &[FinishedIds],
    ) -> Result<Vec<Option<IdPosition>>, Error>;
}

/// Leases of shards: the right of a worker to deliver a shard while its session lasts (I5).
///
/// All calls are safe to repeat and work on a full store.
#[async_trait(?Send)]
pub(crate) trait LeaseStore {
    /// Takes a lease that has no holder, or the holder that the request names as ended. A shard of
    /// another installation stays untouched.
    ///
    /// The caller asks for the sessions after it has read the holder: a session that is absent then
    /// has ended for ever.
    async fn acquire(&self, requests: &[Acquire]) -> Result<Vec<Acquired>, Error>;

    /// Gives leases back. Leaves the lease of another holder alone.
    async fn release(&self, leases: &[Lease]) -> Result<(), Error>;
}

/// The sessions of the workers of the deployment. All calls work on a full store.
#[async_trait(?Send)]
pub(crate) trait Membership {
    /// Begins a session, or extends it. A first heartbeat ends the sessions of the same name, if
    /// they have the same lock. Refuses a worker while a session of the same name and another lock
    /// has not ended. Refuses a worker that shares none of its clusters with the other sessions, if
    /// both sides name some. Sessions that have expired count too: only another worker can tell
    /// whether they are over. A heartbeat that a later one has overtaken changes nothing.
    ///
    /// A repeat of the first heartbeat needs another session: this one may have ended meanwhile.
    async fn heartbeat(&self, request: &SessionHeartbeat) -> Result<Heartbeat, Error>;

    /// Ends sessions that had no heartbeat since the caller saw them. Safe to repeat.
    async fn end_sessions(&self, ends: &[SessionEnd]) -> Result<(), Error>;

    /// All sessions that have not ended, expired ones included, ordered by id.
    async fn sessions(&self) -> Result<Vec<Session>, Error>;
}

/// Administration by commands beside the service.
#[async_trait(?Send)]
pub(crate) trait StoreAdmin {
    /// Deletes the shards, readable or not: `open` can create them anew. Safe to repeat. Works on a
    /// full store.
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error>;
}

/// All parts of the port that the roles and commands use, in one object.
pub(crate) trait Store: ShardStore + LeaseStore + Membership + StoreAdmin {}

impl<S: ShardStore + LeaseStore + Membership + StoreAdmin> Store for S {}

/// Sends hints between the processes of a deployment: "a message that is due soon was appended to
/// this shard". A hint saves waiting time only. A lost hint is found by the next regular poll.
///
/// A store that one process uses alone has no notifier.
#[async_trait(?Send)]
pub(crate) trait Notifier {
    /// Sends the hints to all processes that listen. Sending a hint twice does no harm.
    async fn publish(&self, hints: &[Hint]) -> Result<(), Error>;

    /// Passes the hints of other processes to `on_hint`. Returns `Ok` after some minutes, because a
    /// connection that died silently delivers nothing: call it again, also after an error that
    /// [is transient](Error::is_transient).
    async fn listen(&self, on_hint: &mut dyn FnMut(Hint)) -> Result<(), Error>;
}

/// A lease from its parts.
#[cfg(test)]
pub(crate) fn lease(shard: &ShardId, token: crate::model::LeaseToken) -> Lease {
    Lease {
        shard: shard.clone(),
        token,
    }
}
