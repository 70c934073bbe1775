//! Faults planted on purpose: each breaks one rule of the shard protocol, and a test shows that the checkers catch it. In the shipped
//! binary `active` is the constant `false` and the planted lines are gone.

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        reason = "named at the planted lines, which compile to nothing"
    )
)]
pub(crate) enum InjectedFault {
    /// Append does not compare its first offset with the watermark.
    AppendWithoutCompare,
    /// Append accepts a batch that starts after the watermark.
    AppendAcceptsGap,
    /// A run is deleted when it is claimed, not when it is delivered.
    DeleteRunsAtClaim,
    /// A message stored behind the cursor is not delivered.
    SkipLateMessages,
    /// After a lost store, reading starts at the committed offset, not at the lowest pending one.
    RestartAtCommittedOffset,
    /// A new owner's claim may move the store's claim back.
    ClaimMovesBack,
    /// The due time is not looked at again at hand-over.
    NoDueCheckAtSend,
    /// Nor when a message is sent again.
    NoDueCheckAtResend,
    /// Runs of as many messages have one name.
    ReuseRunNames,
    /// A timer takes every shard for one that nothing was appended to.
    TimerAssumesIdleShard,
    /// An ingress takes a shard that was quiet for one that still is.
    IngressAssumesIdleShard,
    /// A timer does not notice that the store went back.
    IgnoreRollback,
    /// A timer does not notice that the store went back and was filled again.
    IgnoreRefilledRollback,
    /// The tail is read by the number of runs, not by offset.
    TailByRunCount,
    /// What was told of a shard's messages is told again with the next pair.
    CountOutcomesTwice,
    /// A takeover counts nothing of what it delivers.
    CountNothingAfterTakeover,
    /// A rewrite leaves a message out.
    CompactionDropsMessage,
    /// A rewrite writes messages twice.
    CompactionDuplicatesMessages,
    /// Runs that are being loaded are rewritten too.
    CompactRunsBeingLoaded,
    /// What is being put in the place of others is loaded meanwhile.
    LoadRunsBeingReplaced,
    /// Another run was put in the place of one that is to be read on, and it is not remembered.
    ForgetReplacedRun,
    /// A shard is loaded no further until the rewriter has looked at it.
    LoadWaitsForCompactor,
    /// A worker that was frozen, or cut off, does not look whether its lease has run out.
    IgnoreLeaseExpiry,
    /// A worker hands a shard over before it has finished what it claimed.
    ReleaseWithClaimInFlight,
    /// A worker places shards by its own list of workers: itself.
    AssignByOwnList,
    /// A worker that hands a shard over does not tell the store what it has delivered of it.
    ReleaseWithoutDelivered,
    /// A worker takes what another is to have.
    AcquireUnassignedShards,
    /// Exactly-once: a new owner reads the marker before it has fenced the old one.
    ReadMarkerBeforeFence,
    /// Exactly-once: the marker is not in the transaction of the delivery.
    MarkerOutsideTransaction,
    /// Exactly-once: the marker holds the cursor without the watermark.
    MarkerWithoutWatermark,
    /// A timer goes on claiming while the store is behind its own watermark.
    ClaimWhileStoreIsBehind,
    /// Ingress itself sends what need not wait, beside the shard.
    IngressSendsDirectly,
    /// Exactly-once: the work goes on from the store's pair, not from the marker.
    IgnoreMarker,
    /// Exactly-once: what was claimed is handed over again after a commit of unknown end, without a look at the marker.
    ResendAfterUnknownCommit,
    /// Exactly-once: what is stored late, before what is handed over, is taken for handed over with it.
    TreatLateAsDelivered,
    /// Exactly-once: the store is told what is delivered while a commit is under way that counts from before it.
    AcknowledgeDuringCommit,
    /// Exactly-once: what went in a transaction that was undone is not handed over again.
    ForgetAbortedMessages,
    /// What a reader brings again is stored again.
    StoreRereadRecords,
    /// What is sent bears no id, by which a target could pass over what it has already.
    SendWithoutMessageId,
    /// A source that was made again is taken for the old one.
    IgnoreSourceRecreation,
    /// What was committed of a source that was made again is taken for the new one's.
    UseOldCommitAfterRecreation,
}

#[cfg(not(test))]
pub(crate) const fn active(_: InjectedFault) -> bool {
    false
}

#[cfg(test)]
pub(crate) use planted::{active, with};

#[cfg(test)]
mod planted {
    use super::InjectedFault;
    use std::cell::Cell;

    // A bit for each that is planted on this thread.
    thread_local!(static PLANTED: Cell<u64> = const { Cell::new(0) });

    pub(crate) fn active(mutant: InjectedFault) -> bool {
        PLANTED.get() & bit(mutant) != 0
    }

    /// Plants `mutants`, all together and no others, on this thread while `body` runs.
    pub(crate) fn with<T>(
        mutants: impl IntoIterator<Item = InjectedFault>,
        body: impl FnOnce() -> T,
    ) -> T {
        let before = PLANTED.replace(
            mutants
                .into_iter()
                .fold(0, |planted, mutant| planted | bit(mutant)),
        );
        let result = body();
        PLANTED.set(before);
        result
    }

    fn bit(mutant: InjectedFault) -> u64 {
        1 << mutant as u32
    }
}
