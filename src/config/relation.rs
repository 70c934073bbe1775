//! How options go together: references, loops, pairs of bounds. Looks at values that are each possible by themselves.

use super::key::nearest;
use super::read::Reader;
use super::route::{BACKOFF, BACKOFF_MAX, BrokerKind, Delivery, Destination, Overdue, Route};
use super::unit::Quantity;
use super::{Config, Roles, Store};
use crate::model::{filters_overlap, is_filter, is_template, split_source_topic, template_error};
use std::collections::BTreeSet;

pub(super) fn check(config: &Config, reader: &Reader) {
    check_roles(config, reader);
    check_names(config, reader);
    for (name, route) in &config.routes {
        let at = |keys: &[&str]| reader.find(&[&["route", name.as_str()], keys].concat());
        let refuse = |keys: &[&str], what: String, fix: String| {
            at(keys)
                .iter()
                .for_each(|field| field.refuse(what.clone(), fix.clone()))
        };
        for (key, kind, cluster) in clusters(route) {
            if !names(config, kind).contains(&cluster) {
                refuse(
                    &[key, kind.key()],
                    format!("there is no cluster {cluster:?}"),
                    known_clusters(config, kind, cluster),
                );
            }
        }
        for (key, topic) in [
            ("target", route.target.as_ref()),
            ("dead_letter", Some(&route.dead_letter)),
        ] {
            if let Some((topic, reader)) = topic
                .and_then(|topic| Some((topic, config.reader_of(&topic.cluster, &topic.name)?)))
            {
                let name = topic.kind.name_key();
                let what = format!(
                    "route {reader} reads this {name}, so what is sent there would come back: a loop"
                );
                refuse(
                    &[key, name],
                    what,
                    format!("choose a {name} that no route reads"),
                );
            }
        }
        check_template(name, route, reader);
        check_allow(name, config, reader);
        check_delivery(name, config, reader);
        if route
            .target
            .as_ref()
            .is_some_and(|target| config.is_same_topic(target, &route.dead_letter))
        {
            let what = "the dead letters would go to the target, and its consumers would take them for messages";
            let name = route.dead_letter.kind.name_key();
            refuse(
                &["dead_letter", name],
                what.to_owned(),
                format!("choose a {name} of their own for the dead letters"),
            );
        }
        check_overdue(name, route, reader);
        if route.retry.backoff > route.retry.backoff_max {
            let keys: &[&str] = if at(&["retry", "backoff"]).is_some() {
                &["retry", "backoff"]
            } else {
                &["retry", "backoff_max"]
            };
            let fix = format!(
                "raise backoff_max (default {}) or lower backoff (default {})",
                BACKOFF_MAX.default.write(),
                BACKOFF.default.write()
            );
            refuse(keys, "backoff is longer than backoff_max".to_owned(), fix);
        }
    }
}

/// Metrics, logs and `check` name a cluster by its name alone.
fn check_names(config: &Config, reader: &Reader) {
    for name in config
        .nats
        .keys()
        .filter(|name| config.kafka.contains_key(*name))
    {
        if let Some(field) = reader.find(&["nats", name]) {
            field.refuse(
                format!("a Kafka cluster has the name {name:?} too"),
                "give one of the two another name",
            );
        }
    }
}

/// A target that is made of the subject a message came by.
fn check_template(name: &str, route: &Route, reader: &Reader) {
    let Some(target) = route
        .target
        .as_ref()
        .filter(|target| target.kind == BrokerKind::Nats && is_template(&target.name))
    else {
        return;
    };
    let Some(field) = reader.find(&["route", name, "target", "subject"]) else {
        return;
    };
    if route.source.kind == BrokerKind::Kafka {
        field.refuse(
            "a message from Kafka came by no subject from which this could be made",
            "write the subject without $",
        );
    }
    let filters = route
        .source
        .topics
        .iter()
        .filter_map(|topic| split_source_topic(topic));
    if let Some(fault) = filters
        .filter_map(|(_, filter)| template_error(&target.name, filter))
        .next()
    {
        field.refuse(fault, "write $1 for what the first wildcard of each of the source's subjects stands for, $2 for the second");
    }
}

/// Nobody else can read an embedded store: what one process stores, itself must deliver.
fn check_roles(config: &Config, reader: &Reader) {
    let does_all = config.roles
        == Roles {
            ingress: true,
            timer: true,
        };
    let field = reader
        .find(&["roles"])
        .filter(|_| matches!(config.store, Store::Embedded(_)) && !does_all);
    if let Some(field) = field {
        let what = "the embedded store belongs to one process, which has to do both";
        field.refuse(
            what,
            format!(
                "write {}; to run the two apart, add [store.redis]",
                field.example("[\"ingress\", \"timer\"]")
            ),
        );
    }
}

/// A time without what follows from it, and the other way round, is half of a wish.
fn check_overdue(name: &str, route: &Route, reader: &Reader) {
    match (
        route.overdue,
        reader.find(&["route", name, "overdue_after"]),
    ) {
        (Overdue::DeadLetter, None) => {
            let fix = "say from when on a message is too late: overdue_after = \"1h\"";
            reader
                .root()
                .table("route")
                .table(name)
                .missing("overdue_after", fix);
        }
        (Overdue::Deliver, Some(field)) if reader.find(&["route", name, "overdue"]).is_none() => {
            field.refuse(
                "without overdue it means nothing",
                "add overdue = \"dead-letter\", or remove it",
            );
        }
        _ => {}
    }
}

fn check_allow(name: &str, config: &Config, reader: &Reader) {
    let route = &config.routes[name];
    let patterns = route.allow.as_deref().unwrap_or_default();
    if route.target.is_none() && patterns.is_empty() {
        let fix = "add target = { kafka = \"main\", topic = \"orders\" }, or allow = [\"orders\"] with what messages may name";
        reader
            .root()
            .table("route")
            .table(name)
            .missing("target", fix);
    }
    let entries = reader
        .find(&["route", name, "allow"])
        .filter(|_| !patterns.is_empty())
        .and_then(|field| field.list("[]"));
    for entry in entries.into_iter().flatten() {
        if let Some(reader) = entry
            .text()
            .and_then(|pattern| config.reader_of(route.target_cluster(), pattern))
        {
            let name = route.target_kind().name_key();
            entry.refuse(format!("route {reader} reads this {name}, so what is sent there would come back: a loop"), "remove it");
        }
    }
}

/// A transaction spans one cluster, and what a route names twice may be two.
fn check_delivery(name: &str, config: &Config, reader: &Reader) {
    let route = &config.routes[name];
    let source = &route.source.cluster;
    if let Some((key, ..)) = clusters(route)
        .find(|(_, kind, _)| *kind == BrokerKind::Nats)
        .filter(|_| route.delivery == Delivery::ExactlyOnce)
    {
        let what = format!(
            "exactly-once needs transactions, which NATS has not, and the {key} is on NATS"
        );
        if let Some(field) = reader.find(&["route", name, "delivery"]) {
            let fix = format!(
                "write {}: what is sent to NATS again within its stream's duplicate window is a no-op there",
                field.example("\"at-least-once\"")
            );
            field.refuse(what, fix);
        }
        return;
    }
    let other = clusters(route).find(|(.., cluster)| cluster != source);
    if let Some((key, _, cluster)) = other.filter(|_| route.delivery == Delivery::ExactlyOnce) {
        let what = format!(
            "exactly-once needs one cluster, and the source is on {source:?}, the {key} on {cluster:?}: no transaction spans both"
        );
        if let Some(field) = reader.find(&["route", name, "delivery"]) {
            let fix = format!(
                "write {}, or name topics of kafka = {source:?}",
                field.example("\"at-least-once\"")
            );
            field.refuse(what, fix);
        }
    }
}

/// The clusters that a route names, with the table that names them.
fn clusters(route: &Route) -> impl Iterator<Item = (&'static str, BrokerKind, &str)> {
    let target = route
        .target
        .as_ref()
        .map(|target| ("target", target.kind, target.cluster.as_str()));
    let source = ("source", route.source.kind, route.source.cluster.as_str());
    let dead_letter = (
        "dead_letter",
        route.dead_letter.kind,
        route.dead_letter.cluster.as_str(),
    );
    [Some(source), target, Some(dead_letter)]
        .into_iter()
        .flatten()
        .filter(|(.., cluster)| !cluster.is_empty())
}

fn names(config: &Config, kind: BrokerKind) -> Vec<&str> {
    match kind {
        BrokerKind::Kafka => config.kafka.keys().map(String::as_str).collect(),
        BrokerKind::Nats => config.nats.keys().map(String::as_str).collect(),
    }
}

fn known_clusters(config: &Config, kind: BrokerKind, cluster: &str) -> String {
    let (known, key) = (names(config, kind), kind.key());
    let (servers, example) = match kind {
        BrokerKind::Kafka => ("brokers", "brokers = [\"127.0.0.1:9092\"]"),
        BrokerKind::Nats => ("url", "url = \"nats://127.0.0.1:4222\""),
    };
    match (nearest(cluster, known.iter().copied()), known.as_slice()) {
        (Some(near), _) => format!("did you mean \"{near}\"?"),
        (None, []) => format!("add [{key}.{cluster}] with {example}"),
        (None, known) => format!(
            "known are: {}; or add [{key}.{cluster}] with its {servers}",
            known.join(", ")
        ),
    }
}

impl Config {
    /// The topics, or filter subjects, of `cluster` that some route reads.
    pub(crate) fn source_topics_of(&self, cluster: &str) -> BTreeSet<String> {
        let sources = self
            .routes
            .values()
            .map(|route| &route.source)
            .filter(|source| self.is_same_cluster(&source.cluster, cluster));
        let name = |topic: &String| {
            split_source_topic(topic).map_or_else(|| topic.clone(), |(_, filter)| filter.to_owned())
        };
        sources
            .flat_map(|source| source.topics.iter().map(name))
            .collect()
    }

    /// The route that reads `topic`, or a subject that `topic` could be.
    fn reader_of(&self, cluster: &str, topic: &str) -> Option<&str> {
        let is_read = |read: &str| match split_source_topic(read) {
            None => read == topic,
            // What stands in a template's place is not known here; the rules look at the subject that is made.
            Some((_, filter)) => is_filter(topic) && filters_overlap(filter, topic),
        };
        let reads = |route: &Route| {
            route.source.topics.iter().any(|read| is_read(read))
                && self.is_same_cluster(&route.source.cluster, cluster)
        };
        self.routes
            .iter()
            .find(|(_, route)| reads(route))
            .map(|(name, _)| name.as_str())
    }

    fn is_same_topic(&self, a: &Destination, b: &Destination) -> bool {
        !a.name.is_empty() && a.name == b.name && self.is_same_cluster(&a.cluster, &b.cluster)
    }

    /// Two names may stand for one cluster, with a login of their own each: then they have a broker in common.
    fn is_same_cluster(&self, a: &str, b: &str) -> bool {
        let brokers = |name: &str| match (self.kafka.get(name), self.nats.get(name)) {
            (Some(kafka), _) => Some(
                kafka
                    .brokers
                    .iter()
                    .map(|b| b.to_lowercase())
                    .collect::<BTreeSet<_>>(),
            ),
            (None, nats) => nats.map(|nats| {
                nats.host_ports()
                    .map(|server| server.to_lowercase())
                    .collect()
            }),
        };
        a == b || brokers(a).is_some_and(|a| brokers(b).is_some_and(|b| !a.is_disjoint(&b)))
    }
}
