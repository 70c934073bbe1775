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

/// Identifies one incarnation of a source partition: `<cluster id>:<topic id>`. The text of
/// an id that the broker does not have is `-`. A text without a colon is a topic id only, as version 0.1.0
/// wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceIdentity(pub(crate) Arc<str>);

impl SourceIdentity {
    pub(crate) fn new(cluster: Option<&str>, topic: Option<&str>) -> Self {
        // A cluster id is part of lines of fields, so it must not contain their separators.
        let is_safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let cluster = cluster.unwrap_or("-");
        let cluster = cluster.replace(|c| !is_safe(c), "_");
        Self(format!("{cluster}:{}", topic.unwrap_or("-")).into())
    }

    fn parts(&self) -> (Option<&str>, Option<&str>) {
        let (cluster, topic) = self.0.split_once(':').unwrap_or(("-", &self.0));
        let known = |part| Some(part).filter(|part| *part != "-");
        (known(cluster), known(topic))
    }

    pub(crate) fn cluster(&self) -> Option<&str> {
        self.parts().0
    }

    /// True if both may belong to one installation of the broker. Two installations differ in the
    /// cluster and in the topic. Only Kafka before 0.10.1 has no cluster id.
    pub(crate) fn may_share_cluster(&self, other: &Self) -> bool {
        let ((cluster, topic), (other_cluster, other_topic)) = (self.parts(), other.parts());
        let is_same = cluster == other_cluster || (topic.is_some() && topic == other_topic);
        is_same || cluster.is_none() || other_cluster.is_none() || fault!(IgnoreOtherCluster)
    }

    /// True if both name the same incarnation. Topic ids are unique across clusters.
    pub(crate) fn is_same_source(&self, other: &Self) -> bool {
        self.parts().1 == other.parts().1 && self.may_share_cluster(other)
    }
}

/// Why a shard of another installation is left alone, and the remedy.
pub(crate) fn other_installation(
    shard: &ShardId,
    stored: &SourceIdentity,
    own: &SourceIdentity,
) -> String {
    let (topic, route) = (&shard.partition.topic, &shard.route);
    let cluster = |identity: &SourceIdentity| identity.cluster().unwrap_or("-").to_owned();
    format!(
        "the stored messages of topic {topic} of route {route} belong to another installation: they are from cluster \
         {}, and this process reads from cluster {}. Give each installation its own `deployment` or its own store. \
         To move to this cluster, let the old installation deliver them, stop it, and run: postdate reset \
         --config FILE --route {route} --topic {topic}",
        cluster(stored),
        cluster(own)
    )
}

impl fmt::Display for SourceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(text: &str) -> SourceIdentity {
        SourceIdentity(text.into())
    }

    #[test]
    fn an_identity_names_cluster_and_topic() {
        for (cluster, topic, text) in [
            (Some("q83v"), Some("AA/+"), "q83v:AA/+"),
            (Some("q83v"), None, "q83v:-"),
            (None, Some("AA"), "-:AA"),
            (None, None, "-:-"),
            (Some("a b:c"), Some("AA"), "a_b_c:AA"),
        ] {
            assert_eq!(SourceIdentity::new(cluster, topic), identity(text));
        }
        assert_eq!(identity("q83v:AA").cluster(), Some("q83v"));
        for unknown in ["-:AA", "AA", "-"] {
            assert_eq!(identity(unknown).cluster(), None, "{unknown}");
        }
    }

    #[test]
    fn a_source_is_the_same_if_its_topic_id_is() {
        for (a, b, is_same) in [
            ("k1:t1", "k1:t1", true),
            ("k1:t1", "k2:t1", true),
            ("t1", "k1:t1", true),
            ("k1:t1", "k1:t2", false),
            ("k1:-", "k1:-", true),
            ("k1:-", "k2:-", false),
            ("-", "k2:-", true),
            ("k1:-", "k1:t1", false),
        ] {
            let (a, b) = (identity(a), identity(b));
            assert_eq!(a.is_same_source(&b), is_same, "{a} {b}");
            assert_eq!(b.is_same_source(&a), is_same, "{b} {a}");
        }
    }
}
