//! What is asked of a cluster before anything is served by it: for a person who wants to know whether it will do.

use super::Error;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::time::Duration;

/// Looks at a cluster, and changes nothing. A call may be repeated; what it tells is not of one moment.
#[async_trait(?Send)]
pub(crate) trait ClusterDescriber {
    /// The cluster and these topics. `Err` is for a cluster that does not answer, or refuses everything; what alone is refused - a topic's
    /// settings, say - is told in its place.
    async fn describe_cluster(&mut self, topics: &[String]) -> Result<ClusterInfo, Error>;
}

/// A cluster as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterInfo {
    pub(crate) broker_count: usize,
    /// How long it keeps what an idle group committed. An error says why that is not known.
    pub(crate) offsets_retention: Option<Result<Duration, String>>,
    /// By name; one that does not exist has no facts, one that may not be looked at an error.
    pub(crate) topics: BTreeMap<String, Result<Option<TopicInfo>, String>>,
}

/// A topic as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicInfo {
    pub(crate) partitions: usize,
    /// What this client may do with it; `None`: the cluster does not say.
    pub(crate) permissions: Option<TopicPermissions>,
    /// An error says why they are not known.
    pub(crate) config: Result<TopicConfig, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicPermissions {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// What becomes of a topic's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicConfig {
    /// Whether all but the latest record of a key may go.
    pub(crate) is_compacted: bool,
    /// Whether old records go at all, and then after how long, or beyond how many bytes of a partition; `None`: no bound.
    pub(crate) has_retention: bool,
    pub(crate) retention: Option<Duration>,
    pub(crate) retention_bytes: Option<u64>,
}
