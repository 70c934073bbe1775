//! Faults that tests inject into production code. Each one breaks one rule of the shard protocol.
//!
//! Production code asks `fault!(Name)` on the line that the fault breaks. In the shipped binary the
//! macro is the constant `false`, so the compiler removes the faulty branch. A test injects the
//! fault with [`with`] and shows that a checker catches it.

#[cfg(not(test))]
macro_rules! fault {
    ($name:ident) => {
        false
    };
}

#[cfg(test)]
macro_rules! fault {
    ($name:ident) => {
        $crate::testing::fault_injection::is_injected(
            $crate::testing::fault_injection::InjectedFault::$name,
        )
    };
}

#[cfg(test)]
pub(crate) use injected::{is_injected, with};

/// One broken rule.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    // Store.
    /// An append does not compare its first offset with the watermark (I2).
    AppendWithoutCompare,
    /// An append accepts a batch that starts after the watermark (I2).
    AppendAcceptsGap,
    /// The claim of a new lease holder moves the claimed pair back (I5).
    ClaimMovesBack,
    /// Runs with the same number of messages get the same name (I3).
    ReuseRunNames,
    /// A paused shard accepts claims.
    ClaimWhilePaused,
    /// The tail is read by the number of runs instead of by offset.
    TailByRunCount,
    /// The runs and the watermark of an append are two writes, so a power loss can fall in between (I2).
    AppendInTwoSteps,
    /// An append changes ids although messages of the shard use a key that the caller lacks.
    ChangeIdsWithoutKey,

    /// Shards of another installation count as this one's.
    IgnoreOtherCluster,
    /// The membership admits workers of another installation.
    AdmitOtherClusters,
    /// An append does not compare the identity of its source with that of the shard.
    AppendToOtherIdentity,

    // Ingress.
    /// After a store loss, reading starts at the committed offset instead of the lowest pending one.
    RestartAtCommittedOffset,
    /// The ingress assumes that an idle shard is still idle, although its watermark has changed.
    IngressAssumesIdleShard,
    /// A used quota stops the reading of records that were stored before a store loss.
    QuotaStopsRebuild,
    /// A used quota refuses messages that were accepted before a store loss.
    QuotaRefusesStored,
    /// Shards wait for their source although a used quota stops its reading.
    QuotaKeepsHolds,
    /// A used quota does not end a hold that begins after the first claim of a reading.
    QuotaKeepsLaterHolds,
    /// A displaced reader continues at once, although it was assigned long ago.
    DisplacedReaderContinues,
    /// A takeover waits for the group coordinator until it answers.
    WaitForCoordinator,
    /// A reader that does not know the rules history commits its own rules in its place.
    CommitAssumedRules,
    /// A commit that a frozen worker sent late is never replaced while the shard is idle.
    NeverRepeatCommits,
    /// The ingress sends messages without a delay itself, past the shard.
    IngressSendsDirectly,
    /// Records that a consumer reads a second time are stored a second time.
    StoreRereadRecords,
    /// The end of a partition is compared with positions that were read after it.
    JudgeByEarlierEnd,
    /// A recreated source is treated as the old one.
    IgnoreSourceRecreation,
    /// A consumer gets records that no follower has copied, so they may be lost with their leader.
    ReadUnreplicatedRecords,
    /// A partition without a leader keeps the others from being opened.
    WaitForAllLeaders,
    /// A lost shard without a commit starts at the end of the log.
    SkipLogWithoutCommit,
    /// The hold of a shard does not end while the store is full.
    FullStoreKeepsHolds,
    /// The offset that was committed for a deleted source is used for its successor.
    UseOldCommitAfterRecreation,
    /// Records that are read again are parsed by the rules of today.
    IgnoreRulesHistory,
    /// A retry header of a newer version becomes a dead letter.
    RejectNewerRetry,
    /// A commit of a newer version counts as no commit.
    IgnoreNewerCommit,
    /// The pause of a shard is not committed.
    ForgetCommittedPause,
    /// A control record takes effect before it is committed.
    PauseBeforeCommit,
    /// A used quota stops the reading in front of a record that resumes the shard.
    QuotaStopsResume,
    /// An append has the pause only if its control record is the last record.
    RecordHidesPause,
    /// The rules history is not committed.
    CommitWithoutRules,
    /// After a crash, new rules begin at the watermark of the store instead of the end of the log.
    NewRulesAtWatermark,
    /// The store accepts a batch although another epoch has followed its epoch.
    AcceptFollowedEpoch,

    /// A shard is created without a hold, so messages are claimed before the log is read again.
    CreateWithoutHold,
    /// A message that was delivered before a store loss no longer cancels the one that it replaced.
    ForgetDeliveredReplacements,
    /// A retry, and a schedule that keeps the first message, take their id from a waiting message.
    AlwaysTakeId,
    /// A message that is claimed is rescheduled.
    RescheduleClaimed,
    /// A copy is delivered although its message does not wait under the id any more.
    CopyTakesAnyPlace,

    // Answers.
    /// At-least-once: an answer that a cancel was too late does not wait for the message.
    AnswerBeforeDelivery,
    /// Exactly-once: every request that names a message is answered as too late.
    AnswerByClaim,
    /// Exactly-once: a cancelled message is passed before the answer of its cancel.
    PassCancelledBeforeAnswer,
    /// Exactly-once: a request does not cancel a claimed message.
    ChangeUnclaimedOnly,

    // Reset.
    /// A reset leaves the committed position.
    ResetKeepsCommit,
    /// A reset leaves the exactly-once marker.
    ResetKeepsMarker,

    // Redrive.
    /// A redrive uses the position that it read before it fenced an earlier redrive.
    RedriveByOldPosition,
    /// A redrive does not commit its position.
    RedriveWithoutPosition,

    // Loading and claiming.
    /// The timer assumes that every shard is idle and never reads its tail.
    TimerAssumesIdleShard,
    /// A timer whose memory is full reads no tail, although it may claim nothing.
    FullMemoryStopsTail,
    /// The timer does not notice that the watermark went back.
    IgnoreRollback,
    /// The timer does not notice that the store went back and was filled again.
    IgnoreRefilledRollback,
    /// The timer claims while the watermark of the store is behind the one it has seen.
    ClaimWhileStoreIsBehind,
    /// After a rollback, a new lease holder ignores the watermark in the commit.
    IgnoreCommittedWatermark,
    /// Messages that may have been delivered before the store lost writes are not counted.
    ForgetLostDeliveries,
    /// After a rollback, the timer claims before the store is where it was.
    ForgetSeenWatermark,
    /// The store accepts a claim although its watermark is below the one that the timer has seen.
    ClaimFromRolledBackStore,
    /// The timer claims by its own clock, however far it is ahead of the store's.
    ClaimByOwnClock,
    /// A step forward of the machine's clock is followed at once.
    FollowClockStepsAtOnce,
    /// A message that is stored behind the cursor is not delivered.
    SkipLateMessages,
    /// W passes definitions while occurrences of the cursor's due time are left.
    PassInsideDueTime,
    /// The cursor does not move to the end of its due time when W passes definitions.
    KeepCursorAtPass,
    /// Occurrences are taken before every definition that the store knows was read.
    TakeBeforeDefinitionsAreRead,
    /// A definition ends as soon as the next one is read, and not when W passes that.
    EndWhenRead,
    /// A fire that is due before the cursor at which W passes its record is left out.
    SkipLateFire,
    /// W may move over the record of a late fire that was not taken.
    MoveOverLateFire,
    /// The start of a new shard of a recurring route is not claimed.
    KeepStartInMemory,
    /// A committed pair has the watermark of a claim of which nothing was sent.
    CommitClaimsNotBegun,
    /// A transaction may end before the cursor at which its last claim has passed definitions.
    CommitBeforeStartOfClaim,
    /// A run is deleted when it is claimed instead of when it is delivered (I4).
    DeleteRunsAtClaim,
    /// The timer counts the same outcomes again with the next delivered pair.
    CountOutcomesTwice,
    /// After a takeover, the timer counts none of the messages that it delivers.
    CountNothingAfterTakeover,

    // Delivery.
    /// The rate of a route does not limit its claims.
    ClaimBeyondRate,
    /// With a rate, messages are claimed while the target acknowledges nothing.
    ClaimDuringTargetOutage,
    /// The due time is not checked again when a message is sent.
    NoDueCheckAtSend,
    /// The due time is not checked again when a message is sent a second time.
    NoDueCheckAtResend,
    /// Records are sent without the id by which a NATS stream drops duplicates.
    SendWithoutMessageId,

    // Compaction.
    /// A rewrite leaves one message out.
    CompactionDropsMessage,
    /// A rewrite writes messages twice.
    CompactionDuplicatesMessages,
    /// A rewrite with another key leaves the ids under the old one.
    KeepIdsOfOldKey,
    /// Ids of finished messages that an earlier timer left are not removed.
    KeepFinishedIds,
    /// Runs that are being loaded are rewritten.
    CompactRunsBeingLoaded,
    /// The new runs of a rewrite are loaded before the rewrite is acknowledged.
    LoadRunsBeingReplaced,
    /// The timer forgets that a run from which it still has to read was replaced.
    ForgetReplacedRun,
    /// A shard is not loaded further until the compactor has scanned it.
    LoadWaitsForCompactor,

    /// A part of the store that does not answer keeps new messages out of the other parts.
    AppendInOnePartAtATime,
    /// A part of the store that does not answer keeps the other parts from being claimed.
    ClaimInOnePartAtATime,
    /// A part of the store that does not answer keeps the other parts from being read.
    LoadFromOnePartAtATime,

    // Leases and the store's server.
    /// A heartbeat waits for its answer as long as the default session lasts.
    RenewalOutlastsLease,
    /// Connections to the server before a failover are kept.
    KeepConnectionsToOldServer,
    /// The first sentinel that answers names the primary, also one that was cut off.
    BelieveFirstSentinel,
    /// A store that refuses a process which it has served ends the process.
    EndAtLateRefusal,
    /// A worker that was frozen or disconnected does not check whether its session is over.
    IgnoreLeaseExpiry,
    /// A worker trusts its leases after a pause of its machine.
    IgnoreMachinePause,
    /// A worker acquires shards while the store may have leases of which it does not know.
    AcquireWithUnknownLeases,
    /// Two tenures of a session have the same token.
    ReuseLeaseTokens,
    /// The store gives a shard to a worker although the session of its holder has not ended.
    TakeHeldShard,
    /// A worker releases a shard while claimed messages are in flight.
    ReleaseWithClaimInFlight,
    /// A worker releases a shard without storing its last delivered pair.
    ReleaseWithoutDelivered,
    /// Sessions are ended although no worker could reach the store.
    EndSessionsAfterOutage,
    /// A heartbeat that a later one has overtaken lowers the number of the last heartbeat.
    RecordOvertakenHeartbeat,
    /// A worker trusts its session for its whole length although a heartbeat has failed.
    IgnoreFailedHeartbeat,
    /// A session that has ended comes back with its next heartbeat.
    ReviveEndedSession,
    /// A session continues although the store has lost its last answered heartbeat.
    ContinueRolledBackSession,
    /// A worker assigns shards as if it were the only live worker.
    AssignByOwnList,
    /// A worker acquires shards that are assigned to other workers.
    AcquireUnassignedShards,

    // Exactly-once delivery.
    /// A new owner reads the marker before it fences the old owner.
    ReadMarkerBeforeFence,
    /// The marker is not written in the transaction of the messages that it covers.
    MarkerOutsideTransaction,
    /// The marker holds the cursor without the watermark.
    MarkerWithoutWatermark,
    /// A new owner continues from the delivered pair of the store instead of the marker.
    IgnoreMarker,
    /// After a commit with an unknown outcome, messages are sent again without reading the marker.
    ResendAfterUnknownCommit,
    /// A late message that is stored before the messages in a transaction counts as delivered with them.
    TreatLateAsDelivered,
    /// The delivered pair is stored while a commit that starts before it is in flight.
    AcknowledgeDuringCommit,
    /// Messages of an aborted transaction are not delivered again.
    ForgetAbortedMessages,
}

#[cfg(test)]
mod injected {
    use super::InjectedFault;
    use std::cell::Cell;

    // One bit for each fault that is injected on this thread.
    thread_local!(static INJECTED: Cell<u128> = const { Cell::new(0) });

    pub(crate) fn is_injected(fault: InjectedFault) -> bool {
        INJECTED.get() & bit(fault) != 0
    }

    /// Injects exactly these faults on this thread while `body` runs.
    pub(crate) fn with<T>(
        faults: impl IntoIterator<Item = InjectedFault>,
        body: impl FnOnce() -> T,
    ) -> T {
        let before = INJECTED.replace(faults.into_iter().fold(0, |all, fault| all | bit(fault)));
        let result = body();
        INJECTED.set(before);
        result
    }

    fn bit(fault: InjectedFault) -> u128 {
        1 << fault as u32
    }
}
