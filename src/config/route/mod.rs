//! `[route.<name>]`: the source, the destinations, and the rules between them. `cross_checks` checks
//! how options of several tables fit together.

mod choice;

use super::check::At;
use super::cluster::{BrokerKind, Destination, Source};
use super::decode::quantity::{optional_quantity, quantity};
use super::decode::{choice, choices, invalid};
use super::name;
use crate::model::{Dialects, StartPoint, filters_overlap, is_filter, is_subject};
pub(crate) use choice::{
    Delivery, Expired, OnDuplicate, OnSourceGap, OverQuota, Overdue, WithoutDelay,
};
use serde::{Deserialize, Deserializer, de};
use std::time::Duration;

/// One route.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct Route {
    pub(crate) source: Source,
    /// The default target. Without it every message names its own.
    pub(crate) target: Option<Destination>,
    /// Patterns of the targets that `postdate-to` may name; `None` allows the default target only.
    pub(crate) allow: Option<Vec<String>>,
    /// Patterns of the targets that `postdate-reply-to` may name; `None`: the route gives no answers.
    pub(crate) allow_replies: Option<Vec<String>>,
    pub(crate) dead_letter: Destination,
    #[serde(default, deserialize_with = "choice")]
    pub(crate) delivery: Delivery,
    /// Its records define schedules.
    #[serde(default)]
    pub(crate) recurring: bool,
    #[serde(default = "default_max_delay", deserialize_with = "quantity")]
    pub(crate) max_delay: Duration,
    #[serde(default, deserialize_with = "choice")]
    pub(crate) without_delay: WithoutDelay,
    #[serde(default, deserialize_with = "choice")]
    pub(crate) on_duplicate: OnDuplicate,
    /// Messages without an id can be cancelled and rescheduled by their origins.
    #[serde(default)]
    pub(crate) change_by_origin: bool,
    #[serde(default, deserialize_with = "choices")]
    pub(crate) dialects: Dialects,
    #[serde(default, deserialize_with = "choice")]
    pub(crate) on_source_gap: OnSourceGap,
    /// Where the reading of a partition without a usable offset commit starts.
    #[serde(default, deserialize_with = "start_point")]
    pub(crate) start: StartPoint,
    #[serde(default, deserialize_with = "choice")]
    pub(crate) overdue: Overdue,
    /// Lateness from which on a message is overdue.
    #[serde(default, deserialize_with = "optional_quantity")]
    pub(crate) overdue_after: Option<Duration>,
    #[serde(default, deserialize_with = "choice")]
    pub(crate) expired: Expired,
    /// Messages that are delivered in a second.
    pub(crate) rate: Option<u32>,
    /// Messages that are delivered in a second although they are late by more than
    /// `CATCH_UP_LATENESS_MIN`.
    pub(crate) catch_up_rate: Option<u32>,
    /// The most that may wait. `None`: no limit.
    pub(crate) max_waiting: Option<MaxWaiting>,
    #[serde(default, deserialize_with = "choice")]
    pub(crate) over_quota: OverQuota,
    #[serde(default)]
    pub(crate) retry: Retry,
}

const fn default_max_delay() -> Duration {
    Duration::from_secs(30 * 24 * 3600)
}

fn start_point<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StartPoint, D::Error> {
    let text = String::deserialize(deserializer)?;
    // An offset would be for one partition only.
    let start = StartPoint::parse(&text).filter(|start| !matches!(start, StartPoint::Offset(_)));
    let refused = || {
        let fix = "write \"first\", \"end\", or a time such as \"2026-11-21T08:00:00Z\"";
        de::Error::custom(invalid(format!("{text:?} is not understood"), fix))
    };
    start.ok_or_else(refused)
}

/// A quota of waiting messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct MaxWaiting {
    pub(crate) messages: Option<u32>,
    #[serde(deserialize_with = "optional_quantity")]
    pub(crate) bytes: Option<u64>,
}

/// Retries of a delivery with a transient failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct Retry {
    pub(crate) max_attempts: u32,
    /// Wait before the second attempt. Each further wait is twice as long.
    #[serde(deserialize_with = "quantity")]
    pub(crate) backoff: Duration,
    #[serde(deserialize_with = "quantity")]
    pub(crate) backoff_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 10,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
        }
    }
}

impl Route {
    /// The cluster of the topics that `postdate-to` names.
    pub(crate) fn target_cluster(&self) -> &str {
        let target = self.target.as_ref();
        target.map_or(&self.source.cluster, |target| &target.cluster)
    }

    pub(crate) fn target_kind(&self) -> BrokerKind {
        let target = self.target.as_ref();
        target.map_or(self.source.kind, |target| target.kind)
    }

    pub(super) fn check(&self, at: &At<'_>) {
        check_source(&self.source, &at.key("source"));
        if let Some(target) = &self.target {
            check_destination(target, &at.key("target"), true);
        }
        check_destination(&self.dead_letter, &at.key("dead_letter"), false);
        let lists = [
            ("allow", &self.allow),
            ("allow_replies", &self.allow_replies),
        ];
        let patterns = lists.iter().flat_map(|(key, list)| {
            list.iter()
                .flatten()
                .enumerate()
                .map(move |pattern| (key, pattern))
        });
        for (key, (index, pattern)) in patterns {
            let kind = self.target_kind();
            let (is_valid, fix) = match kind.has_subjects() {
                false => (name::is_pattern(pattern), name::PATTERN),
                true => (is_filter(pattern), name::FILTER),
            };
            if !is_valid {
                let name_key = kind.name_key();
                let what = format!("{pattern:?} matches no {name_key} that could be a target");
                at.key(key).key(index).refuse(what, fix);
            }
        }
        // A due time after ten years is a mistake of the producer, such as microseconds for
        // milliseconds.
        at.key("max_delay").in_range(self.max_delay, "1ms", "3650d");
        for (key, rate) in [("rate", self.rate), ("catch_up_rate", self.catch_up_rate)] {
            if let Some(rate) = rate {
                at.key(key).in_range(rate, "1", "10000000");
            }
        }
        self.check_rate(at);
        self.check_quota(at);
        self.check_overdue(at);
        self.check_recurring(at);
        self.retry.check(&at.key("retry"));
    }

    /// A recurring route reads a compacted topic as a whole, and has no retries.
    fn check_recurring(&self, at: &At<'_>) {
        if !self.recurring {
            return;
        }
        if self.source.kind != BrokerKind::Kafka {
            let fix = "read the definitions from a compacted Kafka topic";
            at.key("recurring")
                .refuse("its source is not a Kafka topic", fix);
        }
        if self.rate.is_some() {
            at.key("rate").refuse(
                "on a recurring route, occurrences that wait for it would count as missed",
                "remove it",
            );
        }
        for key in [
            "allow_replies",
            "max_delay",
            "without_delay",
            "on_duplicate",
            "change_by_origin",
            "dialects",
            "on_source_gap",
            "start",
            "overdue",
            "expired",
            "max_waiting",
            "over_quota",
            "retry",
        ] {
            if at.key(key).is_set() {
                let what = "it has no meaning on a recurring route";
                at.key(key).refuse(what, "remove it");
            }
        }
    }

    /// With exactly-once delivery a changed message waits for the answer of its request, which would wait for
    /// the rate behind others.
    fn check_rate(&self, at: &At<'_>) {
        if self.rate.is_some()
            && self.delivery == Delivery::ExactlyOnce
            && self.allow_replies.is_some()
        {
            at.key("rate").refuse(
                "the route delivers exactly once with answers, and an answer that waits for the rate could undo a cancel",
                "remove rate or allow_replies, or write delivery = \"at-least-once\"",
            );
        }
    }

    fn check_quota(&self, at: &At<'_>) {
        let at_max = at.key("max_waiting");
        if let Some(max) = self.max_waiting {
            if max == MaxWaiting::default() {
                at_max.refuse("it limits nothing", "add messages or bytes, or remove it");
            }
            if let Some(messages) = max.messages {
                at_max.key("messages").in_range(messages, "1", "4000000000");
            }
            if let Some(bytes) = max.bytes {
                at_max.key("bytes").in_range(bytes, "1MiB", "1024TiB");
            }
        }
        if self.over_quota == OverQuota::Wait {
            return;
        }
        if self.max_waiting.is_none() {
            at_max.refuse(
                "missing",
                "add max_waiting = { messages = 1000000 }: over it new messages become dead letters",
            );
        }
        if self.delivery == Delivery::ExactlyOnce {
            at.key("over_quota").refuse(
                "the route delivers exactly once, and after a store loss a refused message could be delivered too",
                "write over_quota = \"wait\", or remove it",
            );
        }
    }

    /// `overdue = "dead-letter"` and `overdue_after` need each other.
    fn check_overdue(&self, at: &At<'_>) {
        let after = at.key("overdue_after");
        if let Some(lateness) = self.overdue_after {
            // A shorter time would make dead letters of messages without a fault: a takeover or a
            // restart takes longer.
            after.in_range(lateness, "1s", "3650d");
            if !at.key("overdue").is_set() {
                after.refuse(
                    "without overdue it has no effect",
                    "add overdue = \"dead-letter\", or remove it",
                );
            }
        } else if self.overdue == Overdue::DeadLetter {
            after.refuse(
                "missing",
                "add overdue_after = \"1h\": messages that are later become dead letters",
            );
        }
    }
}

fn check_source(source: &Source, at: &At<'_>) {
    if source.kind.has_subjects() {
        return check_subjects(&source.topics, at);
    }
    let at = at.key("topics");
    at.check_list(&source.topics);
    for (index, topic) in source.topics.iter().enumerate() {
        check_topic(&at.key(index), topic);
    }
}

fn check_subjects(topics: &[String], at: &At<'_>) {
    let at_list = at.key("subjects");
    at_list.check_list(topics);
    // `source_topic` puts a colon between them.
    let parts = topics.iter().filter_map(|topic| topic.split_once(':'));
    let (streams, filters): (Vec<_>, Vec<_>) = parts.unzip();
    if let Some(stream) = streams.first().filter(|stream| !name::is_stream(stream)) {
        let what = format!("{stream:?} is not the name of a stream");
        at.key("stream").refuse(what, name::STREAM);
    }
    for (index, filter) in filters.iter().enumerate() {
        let at = at_list.key(index);
        if !is_filter(filter) {
            let what = format!("{filter:?} is not a subject that can be read");
            at.refuse(what, name::FILTER);
            continue;
        }
        // Each filter is a partition.
        let mut before = filters[..index].iter().filter(|other| is_filter(other));
        if let Some(other) = before.find(|other| filters_overlap(other, filter)) {
            at.refuse(
                format!(
                    "{other} matches some of the same messages, which would be delivered twice"
                ),
                "write subjects that match each message once",
            );
        }
    }
}

/// `cross_checks` compares the tokens of a template with the subjects of the source.
fn check_destination(destination: &Destination, at: &At<'_>, may_be_template: bool) {
    let (kind, name) = (destination.kind, &destination.name);
    let at = at.key(kind.name_key());
    if !kind.has_subjects() {
        return check_topic(&at, name);
    }
    let filled = name.replace('$', if may_be_template { "x" } else { "$" });
    if !is_subject(&filled) {
        let what = format!("{name:?} is not a subject that can be sent to");
        at.refuse(what, name::SUBJECT);
    }
}

fn check_topic(at: &At<'_>, topic: &str) {
    if let Some(cause) = name::topic_error(topic) {
        at.refuse(format!("{topic:?}: {cause}"), name::TOPIC);
    }
}

impl Retry {
    fn check(&self, at: &At<'_>) {
        at.key("max_attempts")
            .in_range(self.max_attempts, "1", "1000");
        at.key("backoff").in_range(self.backoff, "100ms", "1d");
        at.key("backoff_max")
            .in_range(self.backoff_max, "100ms", "1d");
        if self.backoff > self.backoff_max {
            at.refuse(
                "backoff is longer than backoff_max",
                "raise backoff_max (default 5m) or lower backoff (default 1s)",
            );
        }
    }
}
