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

/// Routes that read from one cluster, and the catalog that lists their partitions with one request.
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

/// One request for all routes. Its error may be about a topic of one route, so each route is then asked
/// for alone. A cluster that does not answer is asked no more.
async fn list_cluster(cluster: &mut ClusterCatalog, limit: Duration) -> Discovered {
    let ClusterCatalog { catalog, routes } = cluster;
    let topics: BTreeSet<&String> = routes.iter().flat_map(|route| &route.topics).collect();
    let topics: Vec<String> = topics.into_iter().cloned().collect();
    let mut together = list_topics(&mut **catalog, &topics, limit).await;
    let are_many = routes.len() > 1;
    let mut found = Discovered {
        shards: Vec::new(),
        is_complete: true,
    };
    for route in routes {
        let alone = match &together {
            Some(Err(_)) if are_many => {
                Some(list_topics(&mut **catalog, &route.topics, limit).await)
            }
            _ => None,
        };
        if matches!(alone, Some(None)) {
            together = None;
        }
        let error = match alone.as_ref().unwrap_or(&together) {
            Some(Ok(topics)) => {
                route.health.set_ready();
                found.shards.extend(shards_of(route, topics));
                continue;
            }
            Some(Err(error)) => error.to_string(),
            None => NO_ANSWER.to_owned(),
        };
        found.is_complete = false;
        let reason = format!("cannot list the source's partitions: {error}");
        route.health.set_not_ready(reason);
    }
    found
}

fn shards_of(route: &SourceTopics, topics: &Topics) -> Vec<(ShardId, SourceIdentity)> {
    let of_route = route.topics.iter().filter_map(|topic| topics.get(&**topic));
    let shards = of_route.flatten().map(|(partition, identity)| {
        let shard = ShardId::new(route.route.clone(), partition.clone());
        (shard, identity.clone())
    });
    shards.collect()
}

/// `None`: no answer within `limit`.
async fn list_topics(
    catalog: &mut dyn Catalog,
    topics: &[String],
    limit: Duration,
) -> Option<Result<Topics, Error>> {
    let answer = timeout(limit, catalog.partitions(topics)).await.ok()?;
    Some(answer.map(by_topic))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Health;
    use async_trait::async_trait;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Fails if one of the topics is `broken`, and does not answer if one is `silent`.
    struct FakeCatalog {
        asked: Rc<RefCell<Vec<Vec<String>>>>,
    }

    #[async_trait(?Send)]
    impl Catalog for FakeCatalog {
        async fn partitions(
            &mut self,
            topics: &[String],
        ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
            self.asked.borrow_mut().push(topics.to_vec());
            if topics.iter().any(|topic| topic == "broken") {
                return Err(Error::Unavailable("broken".to_owned()));
            }
            if topics.iter().any(|topic| topic == "silent") {
                std::future::pending::<()>().await;
            }
            let topics = topics.iter().map(|topic| Partition::new(topic.as_str(), 0));
            let identity = || SourceIdentity::new(None, None);
            Ok(topics.map(|partition| (partition, identity())).collect())
        }

        async fn committed_metadata(
            &mut self,
            _group: &str,
            _partitions: &[Partition],
        ) -> Result<Vec<Option<String>>, Error> {
            Ok(Vec::new())
        }

        async fn close(&mut self) {}
    }

    /// The topics that were found, the number of requests, and the routes that are not ready.
    async fn listed(topics: &[&str]) -> (Vec<String>, usize, Vec<String>) {
        let (asked, health) = (Rc::default(), Health::new());
        let routes = topics.iter().map(|topic| SourceTopics {
            route: (*topic).into(),
            topics: vec![(*topic).to_owned()],
            health: health.register(*topic),
        });
        let mut clusters = [ClusterCatalog {
            routes: routes.collect(),
            catalog: Box::new(FakeCatalog {
                asked: Rc::clone(&asked),
            }),
        }];
        let found = list_shards(&mut clusters, Duration::from_secs(1)).await;
        let shards = found.shards.iter();
        let shards = shards.map(|(shard, _)| shard.partition.topic.to_string());
        let not_ready: Vec<String> = health.not_ready().into_iter().map(|it| it.part).collect();
        assert_eq!(found.is_complete, not_ready.is_empty());
        let requests = asked.borrow().len();
        (shards.collect(), requests, not_ready)
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_that_cannot_be_listed_hides_no_other_route() {
        let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let (found, requests, not_ready) = listed(&["a", "b"]).await;
        assert_eq!((found, requests), (names(&["a", "b"]), 1));
        assert_eq!(not_ready, names(&[]));
        let (found, requests, not_ready) = listed(&["a", "broken", "c"]).await;
        assert_eq!((found, requests), (names(&["a", "c"]), 4));
        assert_eq!(not_ready, names(&["broken"]));
        // The cluster has stopped to answer.
        let (found, requests, not_ready) = listed(&["a", "broken", "silent", "d"]).await;
        assert_eq!((found, requests), (names(&["a"]), 4));
        assert_eq!(not_ready, names(&["broken", "d", "silent"]));
        let (found, requests, _) = listed(&["a", "silent"]).await;
        assert_eq!((found, requests), (names(&[]), 1));
    }
}
