//! The shard, and positions in its source partition.

use super::Timestamp;
use std::fmt;
use std::sync::Arc;

/// A position in the source partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Offset(pub(crate) u64);

impl Offset {
    pub(crate) const MAX: Self = Self(u64::MAX);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The next source offset that the store accepts: all offsets below it are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Watermark(pub(crate) u64);

impl Watermark {
    pub(crate) fn covers(self, offset: Offset) -> bool {
        offset.0 < self.0
    }

    /// The first offset that the watermark does not cover.
    pub(crate) fn offset(self) -> Offset {
        Offset(self.0)
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One partition of a source, by the names of the broker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Partition {
    pub(crate) topic: Arc<str>,
    pub(crate) index: i32,
}

impl Partition {
    pub(crate) fn new(topic: impl Into<Arc<str>>, index: i32) -> Self {
        Self {
            topic: topic.into(),
            index,
        }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.index)
    }
}

/// Names a shard: the waiting messages of one source partition of one route. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShardId {
    pub(crate) route: Arc<str>,
    pub(crate) partition: Partition,
}

impl ShardId {
    pub(crate) fn new(route: impl Into<Arc<str>>, partition: Partition) -> Self {
        Self {
            route: route.into(),
            partition,
        }
    }
}

/// `<route>/<source topic>/<partition>`.
impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.route, self.partition)
    }
}

/// A notification that messages were appended to a shard, the first of them due at `least_due`.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    pub(crate) shard: ShardId,
    pub(crate) least_due: Timestamp,
}

/// Identifies one incarnation of a source partition, such as the topic id of Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceIdentity(pub(crate) Arc<str>);

impl fmt::Display for SourceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
