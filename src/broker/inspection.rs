//! The port that inspects a cluster for people, and makes repairs: `postdate check`, `postdate init`
//! and `postdate reset`.

use super::{Catalog, Error};
use crate::model::Timestamp;
use async_trait::async_trait;
use serde::Serialize;
use std::time::Duration;

const RETENTION_MARGIN: Duration = Duration::from_secs(24 * 3_600);

/// Only [`Inspector::apply`] changes something. All calls are safe to repeat.
#[async_trait(?Send)]
pub(crate) trait Inspector: Catalog {
    /// Inspects the cluster for these uses. The parts are read one after the other, not at one
    /// moment. `Err`: the cluster did not answer or rejected everything. A failed detail is a
    /// finding.
    async fn inspect(&mut self, uses: &[TopicUse]) -> Result<Vec<Finding>, Error>;

    /// The remedy for an error of [`Inspector::inspect`].
    fn remedy(&self, error: &Error) -> String;

    /// Makes a change that a finding proposed. A topic or stream that exists already counts as
    /// created, and is not changed.
    async fn apply(&mut self, change: &Change) -> Result<(), Error>;

    /// A shell command of the broker's own tools that makes the same change.
    fn command(&self, change: &Change) -> String;

    /// The streams that may take messages for a target or a target template, with the ends of their
    /// duplicate windows. Until then a stream drops a message whose id it has seen.
    async fn duplicate_windows(&mut self, target: &str) -> Result<Vec<(String, Timestamp)>, Error>;
}

/// The use of a topic by routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicUse {
    pub(crate) topic: String,
    pub(crate) role: TopicRole,
    /// The routes that use the topic in this role.
    pub(crate) routes: Vec<String>,
    /// The longest delay of these routes. It matters for sources only.
    pub(crate) max_delay: Duration,
    /// One of these routes reads the headers of NATS' own message schedules.
    pub(crate) reads_schedules: bool,
    /// One of these routes reads definitions of schedules.
    pub(crate) is_recurring: bool,
    /// The size of the topic if it is missing.
    pub(crate) size: TopicSize,
}

/// The size of a new topic. NATS has no partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicSize {
    pub(crate) partitions: u16,
    /// `None`: three, or fewer if the cluster has fewer brokers.
    pub(crate) replicas: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TopicRole {
    Source,
    Target,
    DeadLetters,
}

impl TopicUse {
    /// For example `source of orders, mail`.
    pub(crate) fn text(&self) -> String {
        let role = match self.role {
            TopicRole::Source => "source",
            TopicRole::Target => "target",
            TopicRole::DeadLetters => "dead-letter topic",
        };
        format!("{role} of {}", self.routes.join(", "))
    }

    /// The retention that a source needs. The margin covers messages that are delivered late.
    pub(crate) fn retention(&self) -> Duration {
        self.max_delay + RETENTION_MARGIN
    }

    /// The change that creates this topic, or a stream for these subjects. Only a source needs a
    /// retention. Dead letters are few, so one partition is enough.
    pub(crate) fn creation(&self, name: &str, subjects: Vec<String>, replicas: u8) -> Change {
        let is_source = self.role == TopicRole::Source;
        Change::Create(NewTopic {
            name: name.to_owned(),
            subjects,
            partitions: match self.role {
                TopicRole::DeadLetters => 1,
                TopicRole::Source | TopicRole::Target => self.size.partitions,
            },
            replicas: self.size.replicas.unwrap_or(replicas),
            retention: is_source.then(|| self.retention()),
            is_compacted: is_source && self.is_recurring,
        })
    }
}

/// A change of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Create(NewTopic),
    /// Raises the time for which a topic or a stream keeps its records.
    SetRetention {
        name: String,
        retention: Duration,
    },
}

/// A topic of Kafka, or a stream of NATS, to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewTopic {
    pub(crate) name: String,
    /// The subjects of the stream; empty for a topic.
    pub(crate) subjects: Vec<String>,
    pub(crate) partitions: u16,
    pub(crate) replicas: u8,
    /// `None`: the broker's default.
    pub(crate) retention: Option<Duration>,
    /// Keeps the last record of each key, and has no retention.
    pub(crate) is_compacted: bool,
}

/// One checked fact. In the JSON of `postdate check`, fields are only added, never renamed or
/// removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) subject: String,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    /// The remedy; `None` if there is no problem.
    pub(crate) fix: Option<String>,
    /// The change that would be the remedy, if Postdate can make it.
    #[serde(skip)]
    pub(crate) change: Option<Change>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    /// It works now, but may fail later.
    Warn,
    Fail,
}

impl Finding {
    pub(crate) fn ok(subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            verdict: Verdict::Ok,
            found: found.into(),
            fix: None,
            change: None,
        }
    }

    pub(crate) fn warn(
        subject: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warn,
            fix: Some(fix.into()),
            ..Self::ok(subject, found)
        }
    }

    pub(crate) fn fail(
        subject: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::warn(subject, found, fix)
        }
    }

    pub(crate) fn repaired_by(self, change: Change) -> Self {
        Self {
            change: Some(change),
            ..self
        }
    }
}
