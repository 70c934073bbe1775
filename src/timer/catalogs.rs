//! What a claimer asks of the brokers: which shards there are, and what was committed of them. A broker that is slow is not waited for
//! longer than leases can go without renewal.

use crate::broker::{Catalog, Error};
use crate::health::HealthPart;
use crate::model::{CommitMetadata, Partition, Progress, ShardId, SourceIdentity};
use crate::store::StoredShard;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The shards of one route, as far as a claimer cares.
pub(crate) struct RouteCatalog {
    pub(crate) route: Arc<str>,
    pub(crate) topics: Vec<String>,
    /// Where the ingress of the route commits.
    pub(crate) group: String,
    pub(crate) catalog: Box<dyn Catalog>,
    pub(crate) health: HealthPart,
}

async fn with_timeout<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, String> {
    timeout(patience, answer)
        .await
        .map_err(|_| "no answer in time".to_owned())?
        .map_err(|error| error.to_string())
}

/// The shards that there are now, and whether those of all routes are known.
pub(super) async fn list_shards(
    routes: &mut [RouteCatalog],
    patience: Duration,
) -> (Vec<ShardId>, bool) {
    let answers = routes
        .iter_mut()
        .map(|route| with_timeout(patience, route.catalog.partitions(&route.topics)));
    let (answers, mut shards, mut is_all_known) = (join_all(answers).await, Vec::new(), true);
    for (route, answer) in routes.iter_mut().zip(answers) {
        match answer {
            Ok(partitions) => {
                route.health.set_ready();
                shards.extend(
                    partitions
                        .into_iter()
                        .map(|partition| ShardId::new(route.route.clone(), partition)),
                );
            }
            Err(error) => {
                is_all_known = false;
                route
                    .health
                    .set_not_ready(format!("the source's partitions are not known: {error}"));
            }
        }
    }
    (shards, is_all_known)
}

/// What was last committed of the shards. It could only save duplicates after a store went back, whose own pairs are true as well.
pub(super) async fn read_committed(
    routes: &mut [RouteCatalog],
    shards: &[&ShardId],
    patience: Duration,
) -> BTreeMap<ShardId, CommitMetadata> {
    let mut found = BTreeMap::new();
    for route in routes {
        let of_route = shards.iter().filter(|shard| shard.route == route.route);
        let partitions: Vec<Partition> = of_route.map(|shard| shard.partition.clone()).collect();
        if partitions.is_empty() {
            continue;
        }
        match with_timeout(
            patience,
            route.catalog.committed_metadata(&route.group, &partitions),
        )
        .await
        {
            Ok(texts) => found.extend(partitions.into_iter().zip(texts).filter_map(
                |(partition, text)| {
                    Some((
                        ShardId::new(route.route.clone(), partition),
                        CommitMetadata::parse(&text?)?,
                    ))
                },
            )),
            Err(error) => {
                tracing::warn!(route = %route.route, "what was committed is not known, the store's pairs are used: {error}");
            }
        }
    }
    found
}

/// The greatest of the pairs that the store, the last commit and this process itself know to be delivered, of this incarnation of the source.
pub(super) fn start_position(
    state: &StoredShard,
    committed: Option<&CommitMetadata>,
    own: Option<&(SourceIdentity, Progress)>,
) -> Progress {
    let committed = committed.filter(|committed| {
        committed
            .identity
            .as_ref()
            .is_none_or(|identity| *identity == state.identity)
    });
    let own = own.filter(|(identity, _)| *identity == state.identity);
    let committed = committed.map_or(Progress::START, |committed| committed.delivered);
    state
        .delivered
        .greatest(committed)
        .greatest(own.map_or(Progress::START, |(_, own)| *own))
}
