//! Decodes `[route.<name>]`: the source, the destinations, and the rules between them.
//! `cross_checks` checks how options of several tables fit together.

use super::decode::{At, Range, Span, Table, choice};
use super::name;
use crate::model::{Dialect, Dialects, filters_overlap, is_filter, is_subject, source_topic};
use serde::Deserialize;
use std::time::Duration;

/// One route, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) source: Source,
    /// The default target. Without it every message names its own.
    pub(crate) target: Option<Destination>,
    /// Patterns of the targets that `postdate-to` may name; `None` allows the default target only.
    pub(crate) allow: Option<Vec<String>>,
    pub(crate) dead_letter: Destination,
    pub(crate) delivery: Delivery,
    pub(crate) max_delay: Duration,
    pub(crate) without_delay: WithoutDelay,
    pub(crate) dialects: Dialects,
    pub(crate) on_source_gap: OnSourceGap,
    pub(crate) overdue: Overdue,
    /// Lateness from which on a message is overdue.
    pub(crate) overdue_after: Option<Duration>,
    /// Late messages that are delivered in a second.
    pub(crate) catch_up_rate: Option<u32>,
    pub(crate) retry: Retry,
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
}

/// The kind of a cluster. Two clusters never have the same name, even if their kinds differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    #[default]
    Kafka,
    Nats,
}

impl BrokerKind {
    /// The key that names a cluster of this kind.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
        }
    }

    /// The key that names a destination on such a cluster.
    pub(super) const fn name_key(self) -> &'static str {
        match self {
            Self::Kafka => "topic",
            Self::Nats => "subject",
        }
    }
}

/// The topics of one cluster that a route reads. [`source_topic`] writes those of NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) kind: BrokerKind,
    pub(crate) cluster: String,
    pub(crate) topics: Vec<String>,
}

/// A topic or a subject that a route writes to. A target's subject may be a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) kind: BrokerKind,
    pub(crate) cluster: String,
    pub(crate) name: String,
}

/// The delivery guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Delivery {
    #[default]
    AtLeastOnce,
    /// Delivers in transactions, for consumers that read committed messages.
    ExactlyOnce,
}

/// The rule for records without a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WithoutDelay {
    #[default]
    Relay,
    DeadLetter,
}

/// The rule for messages that the source deleted before they were stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnSourceGap {
    #[default]
    Continue,
    Stop,
}

/// The rule for overdue messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Overdue {
    #[default]
    Deliver,
    DeadLetter,
}

/// Retries of a delivery with a transient failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) max_attempts: u32,
    /// Wait before the second attempt. Each further wait is twice as long.
    pub(crate) backoff: Duration,
    pub(crate) backoff_max: Duration,
}

const DAY: u64 = 24 * 3600;

/// A due time after ten years is a mistake of the producer, such as microseconds for milliseconds.
const MAX_DELAY: Range<Span> = Range::new(
    Span::from_secs(30 * DAY),
    Span::from_millis(1),
    Span::from_secs(3650 * DAY),
);
/// A time below a takeover or a restart would make dead letters of messages without a fault.
const OVERDUE_AFTER: Range<Span> = Range::new(
    Span::from_secs(3600),
    Span::from_secs(1),
    Span::from_secs(3650 * DAY),
);
const CATCH_UP_RATE: Range<u32> = Range::new(5_000, 1, 10_000_000);
const MAX_ATTEMPTS: Range<u32> = Range::new(10, 1, 1000);
pub(super) const BACKOFF: Range<Span> = Range::new(
    Span::from_secs(1),
    Span::from_millis(100),
    Span::from_secs(DAY),
);
pub(super) const BACKOFF_MAX: Range<Span> = Range::new(
    Span::from_secs(300),
    Span::from_millis(100),
    Span::from_secs(DAY),
);

/// `[route.<name>]` as it is written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RouteTable {
    source: Option<Table<SourceTable>>,
    target: Option<Table<DestinationTable>>,
    allow: Option<Vec<String>>,
    dead_letter: Option<Table<DestinationTable>>,
    #[serde(deserialize_with = "choice")]
    delivery: Delivery,
    max_delay: Option<Span>,
    #[serde(deserialize_with = "choice")]
    without_delay: WithoutDelay,
    dialects: Option<Vec<String>>,
    #[serde(deserialize_with = "choice")]
    on_source_gap: OnSourceGap,
    #[serde(deserialize_with = "choice")]
    overdue: Overdue,
    overdue_after: Option<Span>,
    catch_up_rate: Option<i64>,
    retry: Table<RetryTable>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SourceTable {
    kafka: Option<String>,
    topics: Option<Vec<String>>,
    nats: Option<String>,
    stream: Option<String>,
    subjects: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DestinationTable {
    kafka: Option<String>,
    topic: Option<String>,
    nats: Option<String>,
    subject: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RetryTable {
    max_attempts: Option<i64>,
    backoff: Option<Span>,
    backoff_max: Option<Span>,
}

pub(super) fn check(at: &At<'_>, table: RouteTable) -> Route {
    let source = check_source(&at.key("source"), table.source);
    let target = check_destination(&at.key("target"), table.target);
    let dead_letter = at.key("dead_letter");
    dead_letter.missing("name the destination of rejected messages: dead_letter = { kafka = \"main\", topic = \"orders.dead\" }");
    let target_kind = target.as_ref().map_or(source.kind, |target| target.kind);
    let overdue_after = table.overdue_after;
    let retry = table.retry.0;
    let retry_at = at.key("retry");
    Route {
        allow: check_allow(&at.key("allow"), table.allow, target_kind),
        source,
        target,
        dead_letter: check_destination(&dead_letter, table.dead_letter).unwrap_or_default(),
        delivery: table.delivery,
        max_delay: at.key("max_delay").in_range(table.max_delay, &MAX_DELAY).0,
        without_delay: table.without_delay,
        dialects: check_dialects(&at.key("dialects"), table.dialects),
        on_source_gap: table.on_source_gap,
        overdue: table.overdue,
        overdue_after: overdue_after.map(|_| {
            at.key("overdue_after")
                .in_range(overdue_after, &OVERDUE_AFTER)
                .0
        }),
        catch_up_rate: at
            .key("catch_up_rate")
            .number_in_range(table.catch_up_rate, &CATCH_UP_RATE),
        retry: Retry {
            max_attempts: retry_at
                .key("max_attempts")
                .number_in_range(retry.max_attempts, &MAX_ATTEMPTS)
                .unwrap_or(MAX_ATTEMPTS.default),
            backoff: retry_at.key("backoff").in_range(retry.backoff, &BACKOFF).0,
            backoff_max: retry_at
                .key("backoff_max")
                .in_range(retry.backoff_max, &BACKOFF_MAX)
                .0,
        },
    }
}

fn check_source(at: &At<'_>, table: Option<Table<SourceTable>>) -> Source {
    let Some(Table(table)) = table else {
        at.missing(
            "say what is read: source = { kafka = \"main\", topics = [\"orders.delayed\"] }",
        );
        return Source::default();
    };
    let kind = check_kind(at, &["topics"], &["stream", "subjects"]);
    let topics = match kind {
        BrokerKind::Kafka => {
            let topics = at.key("topics");
            topics.missing("add topics = [\"orders.delayed\"]");
            let topics = topics.entries(table.topics);
            for (at, topic) in &topics {
                check_topic(at, topic);
            }
            topics.into_iter().map(|(_, topic)| topic).collect()
        }
        BrokerKind::Nats => check_filters(at, table.stream.as_deref(), table.subjects),
    };
    Source {
        kind,
        cluster: check_cluster(at, kind, table.kafka, table.nats),
        topics,
    }
}

/// Checks the filter subjects of a stream. Each of them is a partition.
fn check_filters(at: &At<'_>, stream: Option<&str>, subjects: Option<Vec<String>>) -> Vec<String> {
    let stream_at = at.key("stream");
    stream_at.missing("add stream = \"DELAYED\"");
    let stream = stream.unwrap_or_default();
    if !stream.is_empty() && !name::is_stream(stream) {
        let what = format!("{:?} is not the name of a stream", stream_at.shown());
        stream_at.refuse(what, name::STREAM);
    }
    let subjects_at = at.key("subjects");
    subjects_at
        .missing("add the subjects of the stream that are read: subjects = [\"delayed.orders.>\"]");
    let subjects = subjects_at.entries(subjects);
    for (position, (at, filter)) in subjects.iter().enumerate() {
        let mut before = subjects[..position].iter();
        if !is_filter(filter) {
            let what = format!("{:?} is not a subject that can be read", at.shown());
            at.refuse(what, name::FILTER);
        } else if let Some((_, other)) = before.find(|(_, other)| filters_overlap(other, filter)) {
            at.refuse(
                format!(
                    "{other} matches some of the same messages, which would be delivered twice"
                ),
                "write subjects that match each message once",
            );
        }
    }
    subjects
        .iter()
        .map(|(_, filter)| source_topic(stream, filter))
        .collect()
}

/// The kind of the cluster that a table names. Keys of the other kind are reported.
fn check_kind(at: &At<'_>, of_kafka: &[&str], of_nats: &[&str]) -> BrokerKind {
    let nats = at.key("nats");
    let (kind, foreign) = if nats.is_set() && !at.key("kafka").is_set() {
        (BrokerKind::Nats, of_kafka)
    } else {
        (BrokerKind::Kafka, of_nats)
    };
    if nats.is_set() && kind == BrokerKind::Kafka {
        nats.refuse("kafka and nats are both set", "keep one of the two");
    }
    for at in foreign.iter().map(|key| at.key(key)).filter(At::is_set) {
        at.refuse(
            format!("a table with `{}` has no such key", kind.key()),
            "remove it, or name the other cluster",
        );
    }
    kind
}

fn check_destination(at: &At<'_>, table: Option<Table<DestinationTable>>) -> Option<Destination> {
    let Table(table) = table?;
    let kind = check_kind(at, &["topic"], &["subject"]);
    let name_at = at.key(kind.name_key());
    name_at.missing(format!("add {} = \"<name>\"", kind.name_key()));
    let name = match kind {
        BrokerKind::Kafka => table.topic,
        BrokerKind::Nats => table.subject,
    };
    match (kind, &name) {
        (BrokerKind::Kafka, Some(name)) => check_topic(&name_at, name),
        (BrokerKind::Nats, Some(name)) => check_subject(&name_at, name, at.name() == "target"),
        (_, None) => {}
    }
    Some(Destination {
        kind,
        cluster: check_cluster(at, kind, table.kafka, table.nats),
        name: name.unwrap_or_default(),
    })
}

fn check_cluster(
    at: &At<'_>,
    kind: BrokerKind,
    kafka: Option<String>,
    nats: Option<String>,
) -> String {
    at.key(kind.key()).missing(
        "add kafka = \"<name>\" with the name of a [kafka.<name>], or nats = \"<name>\" with the name of a [nats.<name>]",
    );
    let cluster = match kind {
        BrokerKind::Kafka => kafka,
        BrokerKind::Nats => nats,
    };
    cluster.unwrap_or_default()
}

/// A template has tokens with a `$`. `cross_checks` compares them with the subjects of the source.
fn check_subject(at: &At<'_>, subject: &str, may_be_template: bool) {
    let filled = subject.replace('$', if may_be_template { "x" } else { "$" });
    if !is_subject(&filled) {
        let what = format!("{:?} is not a subject that can be sent to", at.shown());
        at.refuse(what, name::SUBJECT);
    }
}

fn check_topic(at: &At<'_>, topic: &str) {
    if let Some(cause) = name::topic_error(topic) {
        at.refuse(format!("{:?}: {cause}", at.shown()), name::TOPIC);
    }
}

fn check_allow(at: &At<'_>, allow: Option<Vec<String>>, kind: BrokerKind) -> Option<Vec<String>> {
    allow.as_ref()?;
    let entries = at.any_entries(allow);
    for (at, pattern) in &entries {
        match kind {
            BrokerKind::Kafka if !name::is_pattern(pattern) => {
                let what = format!("{:?} matches no topic that could be a target", at.shown());
                at.refuse(what, name::PATTERN);
            }
            BrokerKind::Nats if !is_filter(pattern) => {
                let what = format!("{:?} matches no subject that could be a target", at.shown());
                at.refuse(what, name::FILTER);
            }
            _ => {}
        }
    }
    Some(entries.into_iter().map(|(_, pattern)| pattern).collect())
}

fn check_dialects(at: &At<'_>, dialects: Option<Vec<String>>) -> Dialects {
    let known = Dialect::ALL.map(|dialect| (dialect.name(), dialect));
    let dialects = at.entries(dialects.filter(|dialects| !dialects.is_empty()));
    dialects
        .iter()
        .filter_map(|(at, word)| at.choose(word, &known))
        .collect()
}
