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
pub(crate) enum Mutant {
    /// Append does not compare its first offset with the watermark.
    NoCompare,
    /// Append accepts a batch that starts after the watermark.
    BlindWatermark,
    /// A run is deleted when it is claimed, not when it is delivered.
    DeletesEarly,
    /// A message stored behind the cursor is not delivered.
    SkipsLate,
    /// After a lost store, reading starts at the committed offset, not at the lowest pending one.
    RewindsToCommit,
    /// A new owner's claim may move the store's claim back.
    ClaimsBack,
    /// The due time is not looked at again at hand-over.
    NoLastLook,
    /// Nor when a message is sent again.
    NoLookAgain,
    /// Runs of as many messages have one name.
    ReusesNames,
    /// A timer takes every shard for one that nothing was appended to.
    TakesForQuiet,
    /// An ingress takes a shard that was quiet for one that still is.
    TakesForStill,
    /// A timer does not notice that the store went back.
    IgnoresRollback,
    /// A timer does not notice that the store went back and was filled again.
    IgnoresHistory,
    /// The tail is read by the number of runs, not by offset.
    TailByNumber,
    /// What was told of a shard's messages is told again with the next pair.
    TalliesTwice,
    /// A takeover counts nothing of what it delivers.
    TalliesNothing,
    /// A rewrite leaves a message out.
    RewriteDrops,
    /// A rewrite writes messages twice.
    RewriteDoubles,
    /// Runs that are being loaded are rewritten too.
    RewriteRaces,
    /// What is being put in the place of others is loaded meanwhile.
    LoadsMeanwhile,
    /// Another run was put in the place of one that is to be read on, and it is not remembered.
    ForgetsReplaced,
    /// A shard is loaded no further until the rewriter has looked at it.
    AwaitsRewriter,
    /// A worker that was frozen, or cut off, does not look whether its lease has run out.
    IgnoresTerm,
    /// A worker hands a shard over before it has finished what it claimed.
    HandsOverEarly,
    /// A worker places shards by its own list of workers: itself.
    PlacesByOwnList,
    /// A worker that hands a shard over does not tell the store what it has delivered of it.
    HandsOverUntold,
    /// A worker takes what another is to have.
    TakesOthers,
    /// Exactly-once: a new owner reads the marker before it has fenced the old one.
    MarkerBeforeFence,
    /// Exactly-once: the marker is not in the transaction of the delivery.
    SeparateMarker,
    /// Exactly-once: the marker holds the cursor without the watermark.
    PlainCursor,
    /// A timer goes on claiming while the store is behind its own watermark.
    NoWait,
    /// Ingress itself sends what need not wait, beside the shard.
    IngressRelays,
    /// Exactly-once: the work goes on from the store's pair, not from the marker.
    IgnoresMarker,
    /// Exactly-once: what was claimed is handed over again after a commit of unknown end, without a look at the marker.
    KeepsFlights,
    /// Exactly-once: what is stored late, before what is handed over, is taken for handed over with it.
    PassesLate,
    /// Exactly-once: the store is told what is delivered while a commit is under way that counts from before it.
    TellsMeanwhile,
    /// Exactly-once: what went in a transaction that was undone is not handed over again.
    ForgetsUndone,
    /// What a reader brings again is stored again.
    ReadsAgain,
    /// What is sent bears no id, by which a target could pass over what it has already.
    NoMessageId,
    /// A source that was made again is taken for the old one.
    TakesForOld,
    /// What was committed of a source that was made again is taken for the new one's.
    TakesOldCommit,
}

#[cfg(not(test))]
pub(crate) const fn active(_: Mutant) -> bool {
    false
}

#[cfg(test)]
pub(crate) use planted::{active, with};

#[cfg(test)]
mod planted {
    use super::Mutant;
    use std::cell::Cell;

    // A bit for each that is planted on this thread.
    thread_local!(static PLANTED: Cell<u64> = const { Cell::new(0) });

    pub(crate) fn active(mutant: Mutant) -> bool {
        PLANTED.get() & bit(mutant) != 0
    }

    /// Plants `mutants`, all together and no others, on this thread while `body` runs.
    pub(crate) fn with<T>(
        mutants: impl IntoIterator<Item = Mutant>,
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

    fn bit(mutant: Mutant) -> u64 {
        1 << mutant as u32
    }
}
