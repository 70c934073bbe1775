//! Asks the brokers which shards exist.

use crate::broker::{Catalog, Error};
use crate::health::HealthPart;
use crate::model::{Partition, ShardId, SourceIdentity};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
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

const NO_ANSWER: &str = "no answer in time";

/// Ends a request to a broker that does not answer within `limit`.
pub(crate) async fn with_timeout<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, String> {
    timeout(limit, answer)
        .await
        .map_err(|_| NO_ANSWER.to_owned())?
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

/// One request for all routes. If the broker refuses it, one for each route, so that a topic that may
/// not be described affects its route only.
async fn list_cluster(cluster: &mut ClusterCatalog, limit: Duration) -> Discovered {
    let ClusterCatalog { catalog, routes } = cluster;
    let topics: BTreeSet<&String> = routes.iter().flat_map(|route| &route.topics).collect();
    let topics: Vec<String> = topics.into_iter().cloned().collect();
    let together = match timeout(limit, catalog.partitions(&topics)).await {
        Ok(Err(Error::Rejected(_))) => None,
        Ok(answer) => Some(answer.map(by_topic).map_err(|error| error.to_string())),
        Err(_) => Some(Err(NO_ANSWER.to_owned())),
    };
    let mut found = Discovered {
        shards: Vec::new(),
        is_complete: true,
    };
    for route in routes {
        let alone = match &together {
            Some(_) => Ok(Topics::new()),
            None => {
                let answer = with_timeout(limit, catalog.partitions(&route.topics)).await;
                answer.map(by_topic)
            }
        };
        match together.as_ref().unwrap_or(&alone) {
            Ok(topics) => {
                route.health.set_ready();
                let of_route = route.topics.iter().filter_map(|topic| topics.get(&**topic));
                found
                    .shards
                    .extend(of_route.flatten().map(|(partition, identity)| {
                        let shard = ShardId::new(route.route.clone(), partition.clone());
                        (shard, identity.clone())
                    }));
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

/// Partitions by topic.
type Topics = BTreeMap<Arc<str>, Vec<(Partition, SourceIdentity)>>;

fn by_topic(partitions: Vec<(Partition, SourceIdentity)>) -> Topics {
    let mut topics = Topics::new();
    for (partition, identity) in partitions {
        let of_topic = topics.entry(partition.topic.clone()).or_default();
        of_topic.push((partition, identity));
    }
    topics
}
