//! `[route.<name>]`: where messages come from, where they go, and by which rules. What a target's name means is not decided here; how the
//! options of several routes go together is checked in `relation`.

use super::field::Field;
use super::name;
use super::read::{Range, Table};
use crate::model::{Dialect, Dialects, filters_overlap, is_filter, is_subject, source_topic};
use std::time::Duration;

/// One route, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) source: Source,
    /// The default target; without it each message names its own.
    pub(crate) target: Option<Destination>,
    /// What `postdate-to` may name, `*` for any characters; `None`: only the default target.
    pub(crate) allow: Option<Vec<String>>,
    pub(crate) dead_letter: Destination,
    pub(crate) delivery: Delivery,
    pub(crate) max_delay: Duration,
    pub(crate) without_delay: WithoutDelay,
    pub(crate) dialects: Dialects,
    pub(crate) on_source_gap: OnSourceGap,
    pub(crate) overdue: Overdue,
    /// From so long after its due on a message is overdue.
    pub(crate) overdue_after: Option<Duration>,
    /// Messages a second, of those that are behind.
    pub(crate) catch_up_rate: Option<u32>,
    pub(crate) retry: Retry,
}

impl Route {
    /// The cluster that a topic named by `postdate-to` is on.
    pub(crate) fn target_cluster(&self) -> &str {
        self.target
            .as_ref()
            .map_or(&self.source.cluster, |target| &target.cluster)
    }

    /// What that cluster is.
    pub(crate) fn target_kind(&self) -> BrokerKind {
        self.target
            .as_ref()
            .map_or(self.source.kind, |target| target.kind)
    }
}

/// What a cluster is. No two clusters have one name, whatever they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    #[default]
    Kafka,
    Nats,
}

impl BrokerKind {
    /// The key that names a cluster of the kind.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
        }
    }

    /// The key of what is written to, in a table of a target.
    pub(super) const fn name_key(self) -> &'static str {
        match self {
            Self::Kafka => "topic",
            Self::Nats => "subject",
        }
    }
}

/// Topics of one cluster that are read; of NATS, as [`source_topic`] writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) kind: BrokerKind,
    pub(crate) cluster: String,
    pub(crate) topics: Vec<String>,
}

/// A topic, or a subject, that is written to. A subject may be a template of the one that a message came by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) kind: BrokerKind,
    pub(crate) cluster: String,
    pub(crate) name: String,
}

/// What consumers may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    AtLeastOnce,
    /// In transactions, for consumers that read what is committed.
    ExactlyOnce,
}

/// What becomes of a record without a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutDelay {
    Relay,
    DeadLetter,
}

/// What to do if the source no longer has messages that were never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnSourceGap {
    Continue,
    Stop,
}

/// What becomes of a message that is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    Deliver,
    DeadLetter,
}

/// How often and when a delivery that failed for now is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) max_attempts: u32,
    /// Before the second attempt; each further wait is twice the one before it.
    pub(crate) backoff: Duration,
    pub(crate) backoff_max: Duration,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Ten years: a due time beyond it is a mistake in the producer, such as microseconds sent as milliseconds.
const MAX_DELAY: Range<Duration> = Range {
    default: DAY.saturating_mul(30),
    least: Duration::from_millis(1),
    greatest: DAY.saturating_mul(3650),
};
/// Shorter than a takeover or a restart takes, it would set aside what nobody did wrong.
const OVERDUE_AFTER: Range<Duration> = Range {
    default: Duration::from_secs(3600),
    least: Duration::from_secs(1),
    greatest: DAY.saturating_mul(3650),
};
const CATCH_UP_RATE: Range<u32> = Range {
    default: 5_000,
    least: 1,
    greatest: 10_000_000,
};
const MAX_ATTEMPTS: Range<u32> = Range {
    default: 10,
    least: 1,
    greatest: 1000,
};
pub(super) const BACKOFF: Range<Duration> = Range {
    default: Duration::from_secs(1),
    least: Duration::from_millis(100),
    greatest: DAY,
};
pub(super) const BACKOFF_MAX: Range<Duration> = Range {
    default: Duration::from_secs(300),
    least: Duration::from_millis(100),
    greatest: DAY,
};

pub(super) fn read(table: &Table<'_>) -> Route {
    let (source, target) = (source(table), topic(table, "target"));
    let kind = target.as_ref().map_or(source.kind, |target| target.kind);
    Route {
        delivery: table.choice("delivery", &[("at-least-once", Delivery::AtLeastOnce), ("exactly-once", Delivery::ExactlyOnce)]),
        source,
        target,
        allow: table.field("allow").and_then(|field| allow(&field, kind)),
        dead_letter: topic(table, "dead_letter").unwrap_or_else(|| {
            table.missing("dead_letter", "say where refused messages go: dead_letter = { kafka = \"main\", topic = \"orders.dead\" }");
            Destination::default()
        }),
        max_delay: table.quantity("max_delay", &MAX_DELAY),
        without_delay: table.choice("without_delay", &[("relay", WithoutDelay::Relay), ("dead-letter", WithoutDelay::DeadLetter)]),
        dialects: table.field("dialects").map(|field| dialects(&field)).unwrap_or_default(),
        on_source_gap: table.choice("on_source_gap", &[("continue", OnSourceGap::Continue), ("stop", OnSourceGap::Stop)]),
        overdue: table.choice("overdue", &[("deliver", Overdue::Deliver), ("dead-letter", Overdue::DeadLetter)]),
        overdue_after: table.field("overdue_after").and_then(|field| field.quantity(&OVERDUE_AFTER)),
        catch_up_rate: table.field("catch_up_rate").and_then(|field| field.integer(&CATCH_UP_RATE)),
        retry: retry(&table.table("retry")),
    }
}

fn source(route: &Table<'_>) -> Source {
    let table = route.table("source");
    if !table.is_there() {
        route.missing(
            "source",
            "say what is read: source = { kafka = \"main\", topics = [\"orders.delayed\"] }",
        );
        return Source::default();
    }
    let kind = kind(&table, &["topics"], &["stream", "subjects"]);
    let topics = match kind {
        BrokerKind::Kafka => {
            let topics = table.required("topics", "add topics = [\"orders.delayed\"]");
            let topics = topics
                .map(|field| field.texts("[\"orders.delayed\"]"))
                .unwrap_or_default();
            topics
                .iter()
                .for_each(|(field, name)| check_topic(field, name));
            topics
                .into_iter()
                .map(|(_, name)| name.to_owned())
                .collect()
        }
        BrokerKind::Nats => filters(&table),
    };
    Source {
        kind,
        cluster: cluster(&table, kind),
        topics,
    }
}

/// What is read of a stream, each filter subject a partition.
fn filters(table: &Table<'_>) -> Vec<String> {
    let example = "[\"delayed.orders.>\"]";
    let stream = table.required("stream", "add stream = \"DELAYED\"");
    let name = stream.as_ref().and_then(Field::text).unwrap_or_default();
    if let Some(field) = stream.filter(|_| !name.is_empty() && !name::is_stream(name)) {
        field.refuse(
            format!("{:?} is not the name of a stream", field.shown()),
            name::STREAM,
        );
    }
    let subjects = table.required(
        "subjects",
        "add subjects = [\"delayed.orders.>\"], with what is to be read of the stream",
    );
    let subjects = subjects
        .map(|field| field.texts(example))
        .unwrap_or_default();
    for (place, (field, filter)) in subjects.iter().enumerate() {
        if !is_filter(filter) {
            field.refuse(
                format!("{:?} is not a subject that can be read", field.shown()),
                name::FILTER,
            );
        } else if let Some((_, other)) = subjects[..place]
            .iter()
            .find(|(_, other)| filters_overlap(other, filter))
        {
            let what =
                format!("{other} lets through what this does, which would be delivered twice");
            field.refuse(what, "name subjects of which each message has one");
        }
    }
    subjects
        .into_iter()
        .map(|(_, filter)| source_topic(name, filter))
        .collect()
}

/// What the cluster is that a table names, by the key that names it; what belongs to the other kind is refused.
fn kind(table: &Table<'_>, of_kafka: &[&str], of_nats: &[&str]) -> BrokerKind {
    let kind = if table.field("nats").is_some() && table.field("kafka").is_none() {
        BrokerKind::Nats
    } else {
        BrokerKind::Kafka
    };
    let strange = match kind {
        BrokerKind::Kafka => of_nats,
        BrokerKind::Nats => of_kafka,
    };
    let both = table.field("nats").filter(|_| kind == BrokerKind::Kafka);
    if let Some(field) = both {
        field.refuse("kafka and nats stand in one table", "keep one of the two");
    }
    for field in strange.iter().filter_map(|key| table.field(key)) {
        field.refuse(
            format!(
                "this is no key of a table that names a cluster by `{}`",
                kind.key()
            ),
            "remove it, or name the other cluster",
        );
    }
    kind
}

fn topic(route: &Table<'_>, key: &str) -> Option<Destination> {
    let table = route.table(key);
    if !table.is_there() {
        return None;
    }
    let kind = kind(&table, &["topic"], &["subject"]);
    let field = table.required(
        kind.name_key(),
        &format!("add {} = \"<name>\"", kind.name_key()),
    );
    let name = field.and_then(|field| {
        field.text().inspect(|name| match kind {
            BrokerKind::Kafka => check_topic(&field, name),
            BrokerKind::Nats => check_subject(&field, name, key == "target"),
        })
    });
    Some(Destination {
        kind,
        cluster: cluster(&table, kind),
        name: name.unwrap_or_default().to_owned(),
    })
}

fn cluster(table: &Table<'_>, kind: BrokerKind) -> String {
    let key = kind.key();
    let fix = match kind {
        BrokerKind::Kafka => {
            "add kafka = \"<name>\" with the name of a [kafka.<name>], or nats = \"<name>\" with that of a [nats.<name>]"
        }
        BrokerKind::Nats => "add nats = \"<name>\" with the name of a [nats.<name>]",
    };
    table
        .required(key, fix)
        .and_then(|field| field.text())
        .unwrap_or_default()
        .to_owned()
}

/// Of a template the tokens with a `$` stand for others; whether the source has them is checked in `relation`.
fn check_subject(field: &Field<'_>, subject: &str, may_be_template: bool) {
    let filled = if may_be_template {
        subject.replace('$', "x")
    } else {
        subject.to_owned()
    };
    if !is_subject(&filled) {
        field.refuse(
            format!("{:?} is not a subject that can be sent to", field.shown()),
            name::SUBJECT,
        );
    }
}

fn check_topic(field: &Field<'_>, topic: &str) {
    if let Some(fault) = name::fault_of_topic(topic) {
        field.refuse(format!("{:?}: {fault}", field.shown()), name::TOPIC);
    }
}

fn allow(field: &Field<'_>, kind: BrokerKind) -> Option<Vec<String>> {
    let entries = field.list("[\"orders\", \"billing.*\"]")?;
    let checked = entries.iter().filter_map(|entry| {
        let pattern = entry.text()?;
        match kind {
            BrokerKind::Kafka if !name::is_pattern(pattern) => {
                entry.refuse(
                    format!(
                        "{:?} matches no topic that could be a target",
                        entry.shown()
                    ),
                    name::PATTERN,
                );
            }
            BrokerKind::Nats if !is_filter(pattern) => {
                entry.refuse(
                    format!(
                        "{:?} matches no subject that could be a target",
                        entry.shown()
                    ),
                    name::FILTER,
                );
            }
            _ => {}
        }
        Some(pattern.to_owned())
    });
    Some(checked.collect())
}

fn dialects(field: &Field<'_>) -> Dialects {
    let known = Dialect::ALL.map(|dialect| (dialect.name(), dialect));
    let example = "[\"rabbitmq\"]";
    if field.list(example).is_none_or(|entries| entries.is_empty()) {
        return Dialects::default();
    }
    field
        .texts(example)
        .iter()
        .filter_map(|(entry, _)| entry.choice(&known))
        .collect()
}

fn retry(table: &Table<'_>) -> Retry {
    let max_attempts = table
        .field("max_attempts")
        .and_then(|field| field.integer(&MAX_ATTEMPTS));
    Retry {
        max_attempts: max_attempts.unwrap_or(MAX_ATTEMPTS.default),
        backoff: table.quantity("backoff", &BACKOFF),
        backoff_max: table.quantity("backoff_max", &BACKOFF_MAX),
    }
}
