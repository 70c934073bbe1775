//! Asks the brokers which delivered pairs are committed.
//!
//! Each request has a timeout, so that a slow group coordinator delays no takeover.

use crate::broker::Catalog;
use crate::limit::COORDINATOR_WAIT_MAX;
use crate::membership::{SessionClock, with_timeout};
use crate::model::{
    CommitMetadata, Partition, Progress, ShardId, SourceIdentity, UnreadableCommit, Watermark,
};
use crate::store::StoredShard;
use crate::store::rules::NO_HOLD;
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
    /// The greatest watermark that was seen.
    pub(super) seen: Watermark,
}

impl LastKnown {
    pub(super) fn at_start(state: &StoredShard, delivered: Progress) -> Self {
        Self {
            identity: state.identity.clone(),
            delivered,
            seen: state.watermark.max(state.hold),
        }
    }
}

/// The watermark up to which claims wait. A store that is behind the one in the commit, or the one
/// that this process has seen, lost writes.
pub(super) fn hold(
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
