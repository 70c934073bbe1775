//! The port that describes a cluster, for `postdate check`.

use super::Error;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::time::Duration;

#[async_trait(?Send)]
pub(crate) trait ClusterDescriber {
    /// Describes the cluster and these topics. Changes nothing and is safe to repeat. The parts are
    /// read one after the other, not at one moment. `Err`: the cluster did not answer or rejected
    /// everything. A failed detail is an error in its own place.
    async fn describe_cluster(&mut self, topics: &[String]) -> Result<ClusterInfo, Error>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterInfo {
    pub(crate) broker_count: usize,
    /// Retention of the offsets of an inactive group.
    pub(crate) offsets_retention: Option<Result<Duration, String>>,
    /// By name. `None`: the topic does not exist.
    pub(crate) topics: BTreeMap<String, Result<Option<TopicInfo>, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicInfo {
    pub(crate) partitions: usize,
    /// Permissions of this client; `None`: the cluster does not report them.
    pub(crate) permissions: Option<TopicPermissions>,
    pub(crate) config: Result<TopicConfig, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicPermissions {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// The settings that decide how long a topic keeps its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicConfig {
    /// Compaction may delete all but the latest record of a key.
    pub(crate) is_compacted: bool,
    /// Old records are deleted, beyond the bounds below. `None`: no bound.
    pub(crate) has_retention: bool,
    pub(crate) retention: Option<Duration>,
    /// Per partition.
    pub(crate) retention_bytes: Option<u64>,
}
