//! Checks how options fit together: references to clusters, delivery loops, and pairs of options.
//! The sections check each value by itself.

use super::check::At;
use super::cluster::{BrokerKind, Destination};
use super::decode::nearest;
use super::route::{Delivery, Route};
use super::{Config, Store};
use crate::model::{filters_overlap, is_filter, is_template, split_source_topic, template_error};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(config: &Config, at: &At<'_>) {
    // No other process can read an embedded store, so one process must store and deliver.
    if matches!(config.store.kind, Store::Embedded(_)) && config.roles.len() == 1 {
        at.key("roles").refuse(
            "the embedded store belongs to one process, which must have both roles",
            "write [\"ingress\", \"timer\"]; to separate the roles, add [store.redis]",
        );
    }
    // Metrics, logs and `check` identify a cluster by its name alone.
    let mut kinds = BTreeMap::new();
    for (kind, name, _) in config.clusters() {
        if let Some(other) = kinds.insert(name, kind) {
            at.key(kind.facts().key).key(name).refuse(
                format!("{}.{name} has the same name", other.facts().key),
                "rename one of the two",
            );
        }
    }
    for (name, route) in &config.routes {
        let at = at.key("route").key(name);
        check_clusters(config, route, &at);
        check_loops(config, route, &at);
        check_template(route, &at.key("target").key("subject"));
        check_targets(config, route, &at);
        check_delivery(route, &at.key("delivery"));
    }
}

/// Every cluster that the route names must exist.
fn check_clusters(config: &Config, route: &Route, at: &At<'_>) {
    for (key, kind, cluster) in clusters(route) {
        let of_kind = config.clusters().filter(|(other, ..)| *other == kind);
        let known: Vec<&str> = of_kind.map(|(_, name, _)| name).collect();
        if known.contains(&cluster) {
            continue;
        }
        let kind = kind.facts().key;
        let fix = match nearest(cluster, known.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None if known.is_empty() => format!("add [{kind}.{cluster}]: see config/{kind}.toml"),
            None => format!(
                "choose from: {}; or add [{kind}.{cluster}]",
                known.join(", ")
            ),
        };
        let what = format!("there is no cluster {cluster:?}");
        at.key(key).key(kind).refuse(what, fix);
    }
}

/// The default target and the dead letters must not go to a topic that a route reads.
fn check_loops(config: &Config, route: &Route, at: &At<'_>) {
    let target = route.target.as_ref().map(|target| ("target", target));
    for (key, destination) in target
        .into_iter()
        .chain([("dead_letter", &route.dead_letter)])
    {
        let name_key = destination.kind.name_key();
        if let Some(what) = config.loop_error(&destination.cluster, &destination.name, name_key) {
            let fix = format!("choose a {name_key} that no route reads");
            at.key(key).key(name_key).refuse(what, fix);
        }
    }
}

/// A target that is a template needs the wildcards of the source's subjects.
fn check_template(route: &Route, at: &At<'_>) {
    let target = route.target.as_ref();
    let Some(target) = target.filter(|it| it.kind.has_subjects() && is_template(&it.name)) else {
        return;
    };
    if !route.source.kind.has_subjects() {
        let title = route.source.kind.facts().title;
        at.refuse(
            format!(
                "a template needs the subject of a message, and messages from {title} have none"
            ),
            "write the subject without $",
        );
    }
    let topics = route.source.topics.iter();
    let mut filters = topics.filter_map(|topic| split_source_topic(topic));
    if let Some(what) = filters.find_map(|(_, filter)| template_error(&target.name, filter)) {
        at.refuse(
            what,
            "write $1 for the token that matches the first wildcard of each of the source's subjects, $2 for the second",
        );
    }
}

/// A message needs a target, which no route may read and which must not take dead letters.
fn check_targets(config: &Config, route: &Route, at: &At<'_>) {
    let patterns = route.allow.as_deref().unwrap_or_default();
    if route.target.is_none() && patterns.is_empty() {
        at.key("target").refuse(
            "missing",
            "add target = { kafka = \"main\", topic = \"orders\" }, or allow = [\"orders\"] with the targets that messages may name",
        );
    }
    let name_key = route.target_kind().name_key();
    let replies = route.allow_replies.as_deref().unwrap_or_default();
    for (key, patterns) in [("allow", patterns), ("allow_replies", replies)] {
        for (index, pattern) in patterns.iter().enumerate() {
            if let Some(what) = config.loop_error(route.target_cluster(), pattern, name_key) {
                at.key(key).key(index).refuse(what, "remove it");
            }
        }
    }
    let dead_letter = &route.dead_letter;
    let is_dead_letter = |target: &Destination| {
        target.name == dead_letter.name
            && config.is_same_cluster(&target.cluster, &dead_letter.cluster)
    };
    if route.target.as_ref().is_some_and(is_dead_letter) {
        let name_key = dead_letter.kind.name_key();
        at.key("dead_letter").key(name_key).refuse(
            "dead letters would go to the target, whose consumers would take them for messages",
            format!("choose another {name_key} for the dead letters"),
        );
    }
}

/// A transaction needs a broker that has them, and spans one cluster. Two names of one cluster count as two
/// clusters.
fn check_delivery(route: &Route, at: &At<'_>) {
    if route.delivery != Delivery::ExactlyOnce {
        return;
    }
    let source = &route.source.cluster;
    let mut without = clusters(route).filter_map(|(key, kind, _)| {
        let facts = kind.facts();
        facts
            .without_transactions
            .map(|fix| (key, facts.title, fix))
    });
    if let Some((key, title, fix)) = without.next() {
        at.refuse(
            format!("exactly-once needs transactions, and the {key} is on {title}, which has none"),
            fix,
        );
    } else if let Some((key, _, cluster)) = clusters(route).find(|(.., cluster)| cluster != source)
    {
        at.refuse(
            format!("exactly-once needs one cluster, and the source is on {source:?}, the {key} on {cluster:?}: no transaction spans both"),
            format!("write \"at-least-once\", or name topics of kafka = {source:?}"),
        );
    }
}

/// The clusters that a route names, with the keys of the tables that name them.
fn clusters(route: &Route) -> impl Iterator<Item = (&'static str, BrokerKind, &str)> {
    let Route {
        source,
        target,
        dead_letter,
        ..
    } = route;
    let target = target
        .as_ref()
        .map(|target| ("target", target.kind, &*target.cluster));
    [("source", source.kind, &*source.cluster)]
        .into_iter()
        .chain(target)
        .chain([("dead_letter", dead_letter.kind, &*dead_letter.cluster)])
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

    /// Two names may mean one cluster, each with its own login. They then share a broker.
    pub(crate) fn is_same_cluster(&self, a: &str, b: &str) -> bool {
        a == b || !self.brokers(a).is_disjoint(&self.brokers(b))
    }
}
