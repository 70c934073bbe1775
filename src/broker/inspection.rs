//! The port that inspects a cluster for people: `postdate check` and `postdate reset`.

use super::{Catalog, Error};
use crate::model::Timestamp;
use async_trait::async_trait;
use serde::Serialize;
use std::time::Duration;

/// Its calls change nothing and are safe to repeat.
#[async_trait(?Send)]
pub(crate) trait Inspector: Catalog {
    /// Inspects the cluster for these uses. The parts are read one after the other, not at one
    /// moment. `Err`: the cluster did not answer or rejected everything. A failed detail is a
    /// finding.
    async fn inspect(&mut self, uses: &[TopicUse]) -> Result<Vec<Finding>, Error>;

    /// The remedy for an error of [`Inspector::inspect`].
    fn remedy(&self, error: &Error) -> String;

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
}
