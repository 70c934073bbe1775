//! Asks the brokers which shards exist.

use crate::broker::{Catalog, Error};
use crate::health::HealthPart;
use crate::model::{ShardId, SourceIdentity};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The source topics of one route.
pub(crate) struct SourceTopics {
    pub(crate) route: Arc<str>,
    pub(crate) topics: Vec<String>,
    /// Ready while the broker lists the partitions.
    pub(crate) health: HealthPart,
}

/// One cluster, and the routes that read from it.
pub(crate) struct ClusterCatalog {
    pub(crate) catalog: Box<dyn Catalog>,
    pub(crate) routes: Vec<SourceTopics>,
}

/// The shards that exist, and whether every broker has answered.
pub(super) struct Discovered {
    pub(super) shards: Vec<(ShardId, SourceIdentity)>,
    pub(super) is_complete: bool,
}

/// Ends a request to a broker that does not answer within `limit`.
pub(crate) async fn with_timeout<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, String> {
    timeout(limit, answer)
        .await
        .map_err(|_| "no answer in time".to_owned())?
        .map_err(|error| error.to_string())
}

/// Lists the shards of all routes, each with the identity of its source.
pub(super) async fn list_shards(clusters: &mut [ClusterCatalog], limit: Duration) -> Discovered {
    let found = join_all(clusters.iter_mut().map(|it| list_cluster(it, limit))).await;
    let mut all = Discovered {
        shards: Vec::new(),
        is_complete: true,
    };
    for found in found {
        all.shards.extend(found.shards);
        all.is_complete &= found.is_complete;
    }
    all
}

/// One request for each route, so that a topic that the broker refuses affects its route only.
async fn list_cluster(cluster: &mut ClusterCatalog, limit: Duration) -> Discovered {
    let ClusterCatalog { catalog, routes } = cluster;
    let mut found = Discovered {
        shards: Vec::new(),
        is_complete: true,
    };
    for route in routes {
        match with_timeout(limit, catalog.partitions(&route.topics)).await {
            Ok(partitions) => {
                route.health.set_ready();
                let shard = |(partition, identity)| {
                    (ShardId::new(route.route.clone(), partition), identity)
                };
                found.shards.extend(partitions.into_iter().map(shard));
            }
            Err(error) => {
                found.is_complete = false;
                let reason = format!("cannot list the source's partitions: {error}");
                route.health.set_not_ready(reason);
            }
        }
    }
    found
}
