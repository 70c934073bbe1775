//! Checks how options fit together: references to clusters, delivery loops, and pairs of options.
//! Each value is already possible by itself.

use super::decode::{At, Report, nearest};
use super::route::{BACKOFF, BACKOFF_MAX, BrokerKind, Delivery, Destination, Overdue, Route};
use super::{Config, Roles, Store};
use crate::model::{filters_overlap, is_filter, is_template, split_source_topic, template_error};
use std::collections::BTreeSet;

pub(super) fn check(config: &Config, report: &Report) {
    check_roles(config, &report.at(&["roles"]));
    check_cluster_names(config, report);
    for (name, route) in &config.routes {
        let at = report.at(&["route", name]);
        check_clusters(config, route, report, &at);
        check_loops(config, route, &at);
        check_template(route, &at.key("target").key("subject"));
        check_targets(config, route, &at);
        check_delivery(route, &at.key("delivery"));
        check_overdue(route, &at);
        check_backoff(route, &at.key("retry"));
    }
}

/// No other process can read an embedded store, so one process must store and deliver.
fn check_roles(config: &Config, at: &At<'_>) {
    let is_embedded = matches!(config.store, Store::Embedded(_));
    if at.is_set() && is_embedded && config.roles != Roles::BOTH {
        let roles = at.example("[\"ingress\", \"timer\"]");
        at.refuse(
            "the embedded store belongs to one process, which must have both roles",
            format!("write {roles}; to separate the roles, add [store.redis]"),
        );
    }
}

/// Metrics, logs and `check` identify a cluster by its name alone.
fn check_cluster_names(config: &Config, report: &Report) {
    for name in config
        .nats
        .keys()
        .filter(|name| config.kafka.contains_key(*name))
    {
        report.at(&["nats", name]).refuse(
            format!("a Kafka cluster has the name {name:?}, too"),
            "rename one of the two",
        );
    }
}

/// Every cluster that the route names must exist.
fn check_clusters(config: &Config, route: &Route, report: &Report, at: &At<'_>) {
    for (key, kind, cluster) in clusters(route) {
        let known = cluster_names(config, kind);
        let is_broken = report.at(&[kind.key(), cluster]).is_set();
        if !known.contains(&cluster) && !is_broken {
            at.key(key).key(kind.key()).refuse(
                format!("there is no cluster {cluster:?}"),
                cluster_advice(kind, cluster, &known),
            );
        }
    }
}

fn cluster_advice(kind: BrokerKind, cluster: &str, known: &[&str]) -> String {
    let key = kind.key();
    let (servers, example) = match kind {
        BrokerKind::Kafka => ("brokers", "brokers = [\"127.0.0.1:9092\"]"),
        BrokerKind::Nats => ("url", "url = \"nats://127.0.0.1:4222\""),
    };
    match nearest(cluster, known.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if known.is_empty() => format!("add [{key}.{cluster}] with {example}"),
        None => {
            let known = known.join(", ");
            format!("choose from: {known}; or add [{key}.{cluster}] with its {servers}")
        }
    }
}

/// The default target and the dead letters must not go to a topic that a route reads.
fn check_loops(config: &Config, route: &Route, at: &At<'_>) {
    let destinations = [
        ("target", route.target.as_ref()),
        ("dead_letter", Some(&route.dead_letter)),
    ];
    for (key, destination) in destinations {
        let Some(destination) = destination else {
            continue;
        };
        let name_key = destination.kind.name_key();
        if let Some(what) = config.loop_error(&destination.cluster, &destination.name, name_key) {
            let fix = format!("choose a {name_key} that no route reads");
            at.key(key).key(name_key).refuse(what, fix);
        }
    }
}

/// A target that is a template needs the wildcards of the source's subjects.
fn check_template(route: &Route, at: &At<'_>) {
    let Some(target) = &route.target else {
        return;
    };
    if target.kind != BrokerKind::Nats || !is_template(&target.name) {
        return;
    }
    if route.source.kind == BrokerKind::Kafka {
        at.refuse(
            "a template needs the subject of a message, and messages from Kafka have none",
            "write the subject without $",
        );
    }
    let topics = route.source.topics.iter();
    let filters = topics.filter_map(|topic| split_source_topic(topic));
    if let Some(what) = filters
        .filter_map(|(_, filter)| template_error(&target.name, filter))
        .next()
    {
        at.refuse(
            what,
            "write $1 for the token that matches the first wildcard of each of the source's subjects, $2 for the second",
        );
    }
}

/// A message must have a target; no target may be read by a route, or receive the dead letters.
fn check_targets(config: &Config, route: &Route, at: &At<'_>) {
    let patterns = route.allow.as_deref().unwrap_or_default();
    if route.target.is_none() && patterns.is_empty() {
        at.key("target").missing(
            "add target = { kafka = \"main\", topic = \"orders\" }, or allow = [\"orders\"] with the targets that messages may name",
        );
    }
    let name_key = route.target_kind().name_key();
    for (at, pattern) in at.key("allow").any_entries(route.allow.clone()) {
        if let Some(what) = config.loop_error(route.target_cluster(), &pattern, name_key) {
            at.refuse(what, "remove it");
        }
    }
    let dead_letter = &route.dead_letter;
    let target = route.target.as_ref();
    if target.is_some_and(|target| config.is_same_destination(target, dead_letter)) {
        let name_key = dead_letter.kind.name_key();
        at.key("dead_letter").key(name_key).refuse(
            "dead letters would go to the target, whose consumers would take them for messages",
            format!("choose another {name_key} for the dead letters"),
        );
    }
}

/// A transaction needs Kafka, and spans one cluster. Two names of one cluster count as two
/// clusters.
fn check_delivery(route: &Route, at: &At<'_>) {
    if route.delivery != Delivery::ExactlyOnce {
        return;
    }
    let source = &route.source.cluster;
    let at_least_once = at.example("\"at-least-once\"");
    if let Some((key, ..)) = clusters(route).find(|(_, kind, _)| *kind == BrokerKind::Nats) {
        at.refuse(
            format!("exactly-once needs transactions, and the {key} is on NATS, which has none"),
            format!("write {at_least_once}: a NATS stream drops repeated messages within its duplicate window"),
        );
    } else if let Some((key, _, cluster)) = clusters(route).find(|(.., cluster)| cluster != source)
    {
        at.refuse(
            format!("exactly-once needs one cluster, and the source is on {source:?}, the {key} on {cluster:?}: no transaction spans both"),
            format!("write {at_least_once}, or name topics of kafka = {source:?}"),
        );
    }
}

/// `overdue = "dead-letter"` and `overdue_after` need each other.
fn check_overdue(route: &Route, at: &At<'_>) {
    let after = at.key("overdue_after");
    if route.overdue == Overdue::DeadLetter {
        after.missing(
            "say from which lateness on a message is a dead letter: overdue_after = \"1h\"",
        );
    } else if after.is_set() && !at.key("overdue").is_set() {
        after.refuse(
            "without overdue it has no effect",
            "add overdue = \"dead-letter\", or remove it",
        );
    }
}

fn check_backoff(route: &Route, at: &At<'_>) {
    if route.retry.backoff <= route.retry.backoff_max {
        return;
    }
    let backoff = at.key("backoff");
    let at = if backoff.is_set() {
        backoff
    } else {
        at.key("backoff_max")
    };
    let (default, max) = (BACKOFF.default, BACKOFF_MAX.default);
    at.refuse(
        "backoff is longer than backoff_max",
        format!("raise backoff_max (default {max}) or lower backoff (default {default})"),
    );
}

/// The clusters that a route names, with the keys of the tables that name them.
fn clusters(route: &Route) -> impl Iterator<Item = (&'static str, BrokerKind, &str)> {
    let source = ("source", route.source.kind, route.source.cluster.as_str());
    let target = route.target.as_ref();
    let target = target.map(|target| ("target", target.kind, target.cluster.as_str()));
    let dead_letter = &route.dead_letter;
    let dead_letter = (
        "dead_letter",
        dead_letter.kind,
        dead_letter.cluster.as_str(),
    );
    [Some(source), target, Some(dead_letter)]
        .into_iter()
        .flatten()
        .filter(|(.., cluster)| !cluster.is_empty())
}

fn cluster_names(config: &Config, kind: BrokerKind) -> Vec<&str> {
    match kind {
        BrokerKind::Kafka => config.kafka.keys().map(String::as_str).collect(),
        BrokerKind::Nats => config.nats.keys().map(String::as_str).collect(),
    }
}

impl Config {
    /// The topics, or filter subjects, of `cluster` that some route reads.
    pub(crate) fn source_topics_of(&self, cluster: &str) -> BTreeSet<String> {
        let routes = self.routes.values();
        let topics = routes
            .filter(|route| self.is_same_cluster(&route.source.cluster, cluster))
            .flat_map(|route| &route.source.topics);
        let name = |topic: &String| match split_source_topic(topic) {
            Some((_, filter)) => filter.to_owned(),
            None => topic.clone(),
        };
        topics.map(name).collect()
    }

    /// Why messages may not be sent to `name`: a route reads it, or a subject that it matches.
    fn loop_error(&self, cluster: &str, name: &str, name_key: &str) -> Option<String> {
        let is_read = |read: &str| match split_source_topic(read) {
            None => read == name,
            // A template is not checked here: the routing rules check each subject made from it.
            Some((_, filter)) => is_filter(name) && filters_overlap(filter, name),
        };
        let reads = |route: &Route| {
            route.source.topics.iter().any(|read| is_read(read))
                && self.is_same_cluster(&route.source.cluster, cluster)
        };
        let (reader, _) = self.routes.iter().find(|(_, route)| reads(route))?;
        Some(format!(
            "route {reader} reads this {name_key}, so its messages would come back: a loop"
        ))
    }

    fn is_same_destination(&self, a: &Destination, b: &Destination) -> bool {
        !a.name.is_empty() && a.name == b.name && self.is_same_cluster(&a.cluster, &b.cluster)
    }

    /// Two names may mean one cluster, each with its own login. They then share a broker.
    fn is_same_cluster(&self, a: &str, b: &str) -> bool {
        a == b || !self.brokers(a).is_disjoint(&self.brokers(b))
    }

    fn brokers(&self, cluster: &str) -> BTreeSet<String> {
        let kafka = self
            .kafka
            .get(cluster)
            .into_iter()
            .flat_map(|kafka| kafka.brokers.clone());
        let nats = self
            .nats
            .get(cluster)
            .filter(|_| !self.kafka.contains_key(cluster));
        let nats = nats.into_iter().flat_map(|nats| nats.host_ports());
        kafka
            .chain(nats)
            .map(|broker| broker.to_lowercase())
            .collect()
    }
}
