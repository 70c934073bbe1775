//! How options go together: references, loops, pairs of bounds. Looks at values that are each possible by themselves.

use super::key::nearest;
use super::read::Reader;
use super::route::{BACKOFF, BACKOFF_MAX, Delivery, Overdue, Route, Topic};
use super::unit::Quantity;
use super::{Config, Roles, Store};
use std::collections::BTreeSet;

pub(super) fn check(config: &Config, reader: &Reader) {
    check_roles(config, reader);
    for (name, route) in &config.routes {
        let at = |keys: &[&str]| reader.find(&[&["route", name.as_str()], keys].concat());
        let refuse = |keys: &[&str], what: String, fix: String| at(keys).iter().for_each(|field| field.refuse(what.clone(), fix.clone()));
        for (key, cluster) in clusters(route) {
            if !config.kafka.contains_key(cluster) {
                refuse(&[key, "kafka"], format!("there is no cluster {cluster:?}"), known_clusters(config, cluster));
            }
        }
        for (key, topic) in [("target", route.target.as_ref()), ("dead_letter", Some(&route.dead_letter))] {
            if let Some(reader) = topic.and_then(|topic| config.reader_of(&topic.cluster, &topic.topic)) {
                let what = format!("route {reader} reads this topic, so what is sent there would come back: a loop");
                refuse(&[key, "topic"], what, "choose a topic that no route reads".to_owned());
            }
        }
        check_allow(name, config, reader);
        check_delivery(name, config, reader);
        if route.target.as_ref().is_some_and(|target| config.is_same_topic(target, &route.dead_letter)) {
            let what = "the dead letters would go to the target, and its consumers would take them for messages";
            refuse(&["dead_letter", "topic"], what.to_owned(), "choose a topic of their own for the dead letters".to_owned());
        }
        check_overdue(name, route, reader);
        if route.retry.backoff > route.retry.backoff_max {
            let keys: &[&str] = if at(&["retry", "backoff"]).is_some() { &["retry", "backoff"] } else { &["retry", "backoff_max"] };
            let fix = format!(
                "raise backoff_max (default {}) or lower backoff (default {})",
                BACKOFF_MAX.default.write(),
                BACKOFF.default.write()
            );
            refuse(keys, "backoff is longer than backoff_max".to_owned(), fix);
        }
    }
}

/// Nobody else can read an embedded store: what one process stores, itself must deliver.
fn check_roles(config: &Config, reader: &Reader) {
    let does_all = config.roles == Roles { ingress: true, timer: true };
    let field = reader.find(&["roles"]).filter(|_| matches!(config.store, Store::Embedded(_)) && !does_all);
    if let Some(field) = field {
        let what = "the embedded store belongs to one process, which has to do both";
        field.refuse(what, format!("write {}; to run the two apart, add [store.redis]", field.example("[\"ingress\", \"timer\"]")));
    }
}

/// A time without what follows from it, and the other way round, is half of a wish.
fn check_overdue(name: &str, route: &Route, reader: &Reader) {
    match (route.overdue, reader.find(&["route", name, "overdue_after"])) {
        (Overdue::DeadLetter, None) => {
            let fix = "say from when on a message is too late: overdue_after = \"1h\"";
            reader.root().table("route").table(name).missing("overdue_after", fix);
        }
        (Overdue::Deliver, Some(field)) if reader.find(&["route", name, "overdue"]).is_none() => {
            field.refuse("without overdue it means nothing", "add overdue = \"dead-letter\", or remove it");
        }
        _ => {}
    }
}

fn check_allow(name: &str, config: &Config, reader: &Reader) {
    let route = &config.routes[name];
    let patterns = route.allow.as_deref().unwrap_or_default();
    if route.target.is_none() && patterns.is_empty() {
        let fix = "add target = { kafka = \"main\", topic = \"orders\" }, or allow = [\"orders\"] with what messages may name";
        reader.root().table("route").table(name).missing("target", fix);
    }
    let entries = reader.find(&["route", name, "allow"]).filter(|_| !patterns.is_empty()).and_then(|field| field.list("[]"));
    for entry in entries.into_iter().flatten() {
        if let Some(reader) = entry.text().and_then(|pattern| config.reader_of(route.target_cluster(), pattern)) {
            entry.refuse(format!("route {reader} reads this topic, so what is sent there would come back: a loop"), "remove it");
        }
    }
}

/// A transaction spans one cluster, and what a route names twice may be two.
fn check_delivery(name: &str, config: &Config, reader: &Reader) {
    let route = &config.routes[name];
    let source = &route.source.cluster;
    let other = clusters(route).find(|(_, cluster)| cluster != source);
    if let Some((key, cluster)) = other.filter(|_| route.delivery == Delivery::ExactlyOnce) {
        let what =
            format!("exactly-once needs one cluster, and the source is on {source:?}, the {key} on {cluster:?}: no transaction spans both");
        if let Some(field) = reader.find(&["route", name, "delivery"]) {
            let fix = format!("write {}, or name topics of kafka = {source:?}", field.example("\"at-least-once\""));
            field.refuse(what, fix);
        }
    }
}

/// The clusters that a route names, with the table that names them.
fn clusters(route: &Route) -> impl Iterator<Item = (&'static str, &str)> {
    let target = route.target.as_ref().map(|target| ("target", target.cluster.as_str()));
    let source = ("source", route.source.cluster.as_str());
    let dead_letter = ("dead_letter", route.dead_letter.cluster.as_str());
    [Some(source), target, Some(dead_letter)].into_iter().flatten().filter(|(_, cluster)| !cluster.is_empty())
}

fn known_clusters(config: &Config, cluster: &str) -> String {
    let known: Vec<_> = config.kafka.keys().map(String::as_str).collect();
    match (nearest(cluster, known.iter().copied()), known.as_slice()) {
        (Some(near), _) => format!("did you mean \"{near}\"?"),
        (None, []) => format!("add [kafka.{cluster}] with brokers = [\"127.0.0.1:9092\"]"),
        (None, known) => format!("known are: {}; or add [kafka.{cluster}] with its brokers", known.join(", ")),
    }
}

impl Config {
    /// The topics of `cluster` that some route reads.
    pub(crate) fn source_topics(&self, cluster: &str) -> BTreeSet<String> {
        let sources = self.routes.values().map(|route| &route.source).filter(|source| self.is_same_cluster(&source.cluster, cluster));
        sources.flat_map(|source| source.topics.iter().cloned()).collect()
    }

    /// The route that reads `topic`.
    fn reader_of(&self, cluster: &str, topic: &str) -> Option<&str> {
        let reads =
            |route: &Route| route.source.topics.iter().any(|read| read == topic) && self.is_same_cluster(&route.source.cluster, cluster);
        self.routes.iter().find(|(_, route)| reads(route)).map(|(name, _)| name.as_str())
    }

    fn is_same_topic(&self, a: &Topic, b: &Topic) -> bool {
        !a.topic.is_empty() && a.topic == b.topic && self.is_same_cluster(&a.cluster, &b.cluster)
    }

    /// Two names may stand for one cluster, with a login of their own each: then they have a broker in common.
    fn is_same_cluster(&self, a: &str, b: &str) -> bool {
        let brokers =
            |name: &str| self.kafka.get(name).map(|kafka| kafka.brokers.iter().map(|b| b.to_lowercase()).collect::<BTreeSet<_>>());
        a == b || brokers(a).is_some_and(|a| brokers(b).is_some_and(|b| !a.is_disjoint(&b)))
    }
}
