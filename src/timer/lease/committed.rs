//! Asks the brokers which delivered pairs are committed.
//!
//! Each request has a timeout, so that a slow group coordinator delays no takeover.

use crate::broker::Catalog;
use crate::limit::COORDINATOR_WAIT_MAX;
use crate::membership::{SessionClock, with_timeout};
use crate::model::{
    CommitMetadata, Partition, Pause, Progress, ShardId, SourceIdentity, Timestamp,
    UnreadableCommit, Watermark,
};
use crate::store::StoredShard;
use crate::store::rules::{self, NO_HOLD};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Where the ingress of a route commits.
pub(crate) struct RouteCatalog {
    pub(crate) route: Arc<str>,
    /// The consumer group.
    pub(crate) group: String,
    pub(crate) catalog: Box<dyn Catalog>,
}

/// The time that a takeover waits for the commits. It is longer if the store may have gone back,
/// because only the commits show that.
pub(super) fn wait_limit(session: &SessionClock, length: Duration) -> Duration {
    match session.is_settled(Instant::now()) && !fault!(WaitForCoordinator) {
        true => COORDINATOR_WAIT_MAX,
        false => length / 5,
    }
}

/// Reads the commit metadata of each shard, from all brokers at the same time. A missing answer is
/// safe: the pair in the store is also correct. But after a rollback of the store, only the commit
/// avoids duplicates and deliveries of cancelled messages. So a commit of a newer version must be
/// waited for.
pub(super) async fn read_committed(
    routes: &mut [RouteCatalog],
    shards: &[&ShardId],
    limit: Duration,
) -> BTreeMap<ShardId, Result<CommitMetadata, UnreadableCommit>> {
    let routes = routes.iter_mut();
    let answers = routes.map(|route| read_committed_of(route, shards, limit));
    join_all(answers).await.into_iter().flatten().collect()
}

async fn read_committed_of(
    route: &mut RouteCatalog,
    shards: &[&ShardId],
    limit: Duration,
) -> Vec<(ShardId, Result<CommitMetadata, UnreadableCommit>)> {
    let shards = shards.iter().filter(|shard| shard.route == route.route);
    let partitions: Vec<Partition> = shards.map(|shard| shard.partition.clone()).collect();
    if partitions.is_empty() {
        return Vec::new();
    }
    let answer = route.catalog.committed_metadata(&route.group, &partitions);
    let texts = with_timeout(limit, answer).await.unwrap_or_else(|error| {
        tracing::warn!(
            route = %route.route,
            %error,
            "cannot read commit metadata: starting from the delivered pairs in the store"
        );
        Vec::new()
    });
    let committed = partitions.into_iter().zip(texts);
    let committed = committed.filter_map(|(partition, text)| {
        let committed = CommitMetadata::parse(text.as_deref()?).transpose()?;
        Some((ShardId::new(route.route.clone(), partition), committed))
    });
    committed.collect()
}

fn of_same_source<'a>(
    state: &StoredShard,
    committed: Option<&'a CommitMetadata>,
) -> Option<&'a CommitMetadata> {
    let is_same = |identity: &SourceIdentity| identity.is_same_source(&state.identity);
    committed.filter(|committed| committed.identity.as_ref().is_none_or(is_same))
}

/// What this process knows of a shard that it owned. After a rollback it may be ahead of the store.
pub(super) struct LastKnown {
    /// The rest is valid only for one incarnation of the source.
    pub(super) identity: SourceIdentity,
    pub(super) delivered: Progress,
    pub(super) claimed: Progress,
    /// The greatest watermark that was seen.
    pub(super) seen: Watermark,
}

impl LastKnown {
    pub(super) fn at_start(state: &StoredShard, delivered: Progress) -> Self {
        Self {
            identity: state.identity.clone(),
            delivered,
            claimed: state.claimed,
            seen: state.watermark.max(state.hold),
        }
    }
}

/// Sets the hold and the pause as they were before the store lost writes, if it did.
pub(super) fn restore_waits(
    state: &mut StoredShard,
    committed: Option<&CommitMetadata>,
    own: Option<&LastKnown>,
) {
    state.hold = hold(state, committed, own);
    state.pause = pause(state, committed);
}

/// The watermark up to which claims wait. A store that is behind the one in the commit, or the one
/// that this process has seen, lost writes.
fn hold(
    state: &StoredShard,
    committed: Option<&CommitMetadata>,
    own: Option<&LastKnown>,
) -> Watermark {
    let stored = of_same_source(state, committed).map(|committed| committed.stored);
    let stored = stored.filter(|_| !fault!(IgnoreCommittedWatermark));
    let own = own.filter(|own| own.identity.is_same_source(&state.identity));
    let seen = own.map(|own| own.seen);
    let seen = seen.filter(|seen| state.watermark < *seen && !fault!(ForgetSeenWatermark));
    let known = stored.max(seen);
    state.hold.max(known.unwrap_or(NO_HOLD))
}

/// The newer pause of the store and the commit. A store that was rolled back may have an older one.
fn pause(state: &StoredShard, committed: Option<&CommitMetadata>) -> Option<Pause> {
    let committed = of_same_source(state, committed).and_then(|it| it.pause.clone());
    Pause::newest(state.pause.clone(), committed)
}

/// Covers messages that may have been delivered before the store lost writes. The reader of the shard
/// keeps the same pair in the store, but this owner may be earlier. `state` has the hold of this ownership.
pub(super) fn possibly_delivered(
    state: &StoredShard,
    committed: Option<&CommitMetadata>,
    own: Option<&LastKnown>,
    now: Timestamp,
) -> Progress {
    let committed = of_same_source(state, committed);
    let has_lost_stored = committed
        .is_some_and(|it| state.watermark < it.stored || !state.delivered.includes(it.delivered));
    let has_lost_claims = !state.claimed.includes(claimed(state, own));
    if !(has_lost_stored || has_lost_claims) || fault!(ForgetLostDeliveries) {
        return state.possibly_delivered;
    }
    let delivered = committed.map_or(Progress::START, |it| it.delivered);
    let stored = state.hold.max(state.watermark);
    let lost = rules::possibly_delivered(delivered, stored, now);
    state.possibly_delivered.union(lost)
}

/// The claims of earlier owners, as the store and this process know them.
pub(super) fn claimed(state: &StoredShard, own: Option<&LastKnown>) -> Progress {
    let own = own.filter(|own| own.identity.is_same_source(&state.identity));
    own.map_or(state.claimed, |own| state.claimed.union(own.claimed))
}

/// The greatest delivered pair of three: the store's, the last commit's, and this process's own.
/// Pairs of another incarnation of the source are ignored.
pub(super) fn start_position(
    state: &StoredShard,
    committed: Option<&CommitMetadata>,
    own: Option<&LastKnown>,
) -> Progress {
    let committed =
        of_same_source(state, committed).map_or(Progress::START, |committed| committed.delivered);
    let own = own
        .filter(|own| own.identity.is_same_source(&state.identity))
        .map_or(Progress::START, |own| own.delivered);
    state.delivered.greatest(committed).greatest(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, RulesHistory};
    use crate::store::NewShard;
    use crate::store::rules::{ShardCounts, ShardMeta};
    use crate::testing::fault_injection::{self, InjectedFault};
    use crate::testing::store::requests::new_shard;

    fn place(due: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(due), Offset(offset))
    }

    /// Everything below the offset 10 that was due by `due`.
    fn pair(due: i64) -> Progress {
        Progress::new(place(due, 9), Watermark(10))
    }

    fn state(delivered: Progress) -> StoredShard {
        let new = NewShard {
            watermark: Watermark(10),
            delivered,
            ..new_shard("t")
        };
        ShardCounts::default().state(&ShardMeta::new(&new))
    }

    fn commit(delivered: Progress, stored: u64) -> CommitMetadata {
        CommitMetadata {
            lowest_pending: Offset(0),
            delivered,
            stored: Watermark(stored),
            identity: None,
            end: None,
            rules: RulesHistory::default(),
            pause: None,
        }
    }

    #[test]
    fn everything_that_is_due_may_be_delivered_if_the_store_lost_writes() {
        let now = Timestamp::from_millis(9_000);
        let state = state(pair(5_000));
        let found = |committed: Option<&CommitMetadata>, own: Option<&LastKnown>| {
            possibly_delivered(&state, committed, own, now)
        };
        let own = |claimed| LastKnown {
            claimed,
            ..LastKnown::at_start(&state, Progress::START)
        };
        let kept = commit(pair(5_000), 10);
        assert_eq!(found(None, None), Progress::START);
        let earlier = own(pair(4_000));
        assert_eq!(found(Some(&kept), Some(&earlier)), Progress::START);
        let later = own(pair(6_000));
        let lost = [
            found(Some(&commit(pair(5_000), 11)), None),
            found(Some(&commit(pair(5_001), 10)), None),
            found(None, Some(&later)),
        ];
        for pair in lost {
            assert!(pair.covers(place(9_300, 9)) && !pair.covers(place(9_301, 9)));
        }
        assert_eq!(claimed(&state, Some(&later)), pair(6_000));
        let is_forgotten = || found(None, Some(&later)) == Progress::START;
        let faults = [InjectedFault::ForgetLostDeliveries];
        assert!(fault_injection::with(faults, is_forgotten));
    }

    #[test]
    fn a_worker_whose_clock_was_ahead_may_have_delivered_more() {
        let state = state(pair(5_000));
        let ahead = commit(pair(20_000), 10);
        let now = Timestamp::from_millis(9_000);
        let lost = possibly_delivered(&state, Some(&ahead), None, now);
        assert!(lost.covers(place(22_000, 9)) && !lost.covers(place(22_001, 9)));
    }

    #[test]
    fn what_the_store_keeps_of_an_earlier_loss_stays() {
        let state = StoredShard {
            possibly_delivered: pair(7_000),
            ..state(pair(5_000))
        };
        let now = Timestamp::from_millis(9_000);
        assert_eq!(possibly_delivered(&state, None, None, now), pair(7_000));
    }
}
