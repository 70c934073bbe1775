//! The rights that the service needs on its clusters and its store, as lines for an administrator.
//!
//! `deploy/kafka/acls.sh` grants the same rights on Kafka. A test compares the two.

use super::Rights;
use crate::broker::nats::stream_name;
use crate::config::{BrokerKind, Config, Delivery, Route, Store};
use crate::model::{covering_filter, split_source_topic};
use std::collections::BTreeSet;

/// The rights on Redis. The words `prod` and `PASSWORD` stand for the deployment and the password.
const REDIS_USERS: &str = include_str!("../../../deploy/redis/users.acl");

pub(super) fn of(config: &Config) -> Vec<Rights> {
    let clusters = config.clusters().map(|(kind, name)| Rights {
        area: format!("{}.{name}", kind.facts().key),
        lines: match kind {
            BrokerKind::Kafka => kafka_lines(config, name),
            BrokerKind::Nats => nats_lines(config, name),
        },
    });
    let mut rights: Vec<Rights> = clusters.filter(|it| !it.lines.is_empty()).collect();
    if let Store::Redis(redis) = &config.store.kind {
        let mut line = redis_line(&config.deployment);
        // Each node of the cluster needs the user.
        if redis.cluster.is_some() {
            line.push_str(" '+cluster|info' '+cluster|slots'");
        }
        rights.push(Rights {
            area: "store".to_owned(),
            lines: vec![line],
        });
    }
    rights
}

fn kafka_lines(config: &Config, cluster: &str) -> Vec<String> {
    let brokers = config.kafka[cluster].brokers.join(",");
    let mut lines = Vec::new();
    for (name, route) in &config.routes {
        for rights in kafka_rights(&config.deployment, name, route, cluster) {
            let line = format!(
                "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:postdate {rights}"
            );
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// The operations and resources of a route on this cluster.
fn kafka_rights(deployment: &str, name: &str, route: &Route, cluster: &str) -> Vec<String> {
    let mut rights = Vec::new();
    if route.source.cluster == cluster {
        for topic in &route.source.topics {
            for operation in ["Read", "Write", "DescribeConfigs"] {
                rights.push(format!("--operation {operation} --topic {topic}"));
            }
        }
        rights.push(format!("--operation Read --group {deployment}.{name}"));
    }
    let targets = targets(route, cluster).into_iter();
    rights.extend(targets.map(|pattern| match pattern.split_once('*') {
        None => format!("--operation Write --topic {pattern}"),
        Some(("", _)) => "--operation Write --topic '*'".to_owned(),
        // An ACL has no wildcard in the middle, so this may allow more topics than the route does.
        Some((start, _)) => {
            format!("--operation Write --topic {start} --resource-pattern-type prefixed")
        }
    }));
    if route.dead_letter.cluster == cluster {
        let dead_letter = &route.dead_letter.name;
        rights.push(format!("--operation Read --topic {dead_letter}"));
        rights.push(format!(
            "--operation Read --group {deployment}.{name}.redrive --resource-pattern-type prefixed"
        ));
    }
    if route.source.cluster == cluster && route.dead_letter.cluster == cluster {
        rights.push(format!("--operation Write --transactional-id {deployment}.{name}. --resource-pattern-type prefixed"));
    }
    if route.delivery == Delivery::ExactlyOnce && route.source.cluster == cluster {
        rights.push(format!("--operation Read --group {deployment}.{name}.delivered --resource-pattern-type prefixed"));
    }
    rights
}

/// The targets and patterns of a route on this cluster, with its dead letters.
fn targets(route: &Route, cluster: &str) -> Vec<String> {
    let target = route
        .target
        .iter()
        .filter(|target| target.cluster == cluster);
    let allow = route.allow.iter().chain(&route.allow_replies).flatten();
    let allow = allow.filter(|_| route.target_cluster() == cluster);
    let dead_letter = std::iter::once(&route.dead_letter).filter(|it| it.cluster == cluster);
    let targets = target.map(|it| &it.name).chain(allow);
    targets
        .chain(dead_letter.map(|it| &it.name))
        .cloned()
        .collect()
}

/// The permissions of a user, in the form of the server's configuration file.
fn nats_lines(config: &Config, cluster: &str) -> Vec<String> {
    // With a domain, the client publishes the keys of a bucket below the API, too.
    let (api, keys) = match &config.nats[cluster].domain {
        Some(domain) => (format!("$JS.{domain}.API"), format!("$JS.{domain}.API.$KV")),
        None => ("$JS.API".to_owned(), "$KV".to_owned()),
    };
    let mut publish = BTreeSet::new();
    for route in config.routes.values() {
        let is_source = route.source.cluster == cluster;
        if is_source {
            let topics = route.source.topics.iter();
            for (stream, filter) in topics.filter_map(|topic| split_source_topic(topic)) {
                let calls = [
                    format!("{api}.STREAM.MSG.GET.{stream}"),
                    format!("{api}.CONSUMER.CREATE.{stream}"),
                    format!("{api}.CONSUMER.CREATE.{stream}.>"),
                    format!("{api}.CONSUMER.MSG.NEXT.{stream}.>"),
                ];
                publish.extend(calls);
                publish.insert(filter.to_owned());
            }
        }
        let holds_dead_letters = route.dead_letter.cluster == cluster;
        if holds_dead_letters {
            let stream = stream_name(&route.dead_letter.name);
            publish.insert(format!("{api}.STREAM.MSG.GET.{stream}"));
        }
        if is_source || holds_dead_letters {
            let bucket = format!("postdate-{}", config.deployment);
            let calls = ["STREAM.CREATE", "STREAM.MSG.GET", "DIRECT.GET"];
            publish.extend(calls.map(|call| format!("{api}.{call}.KV_{bucket}")));
            publish.insert(format!("{api}.DIRECT.GET.KV_{bucket}.>"));
            publish.insert(format!("{api}.INFO"));
            publish.insert(format!("{keys}.{bucket}.>"));
        }
        let targets = targets(route, cluster);
        publish.extend(targets.iter().map(|target| covering_filter(target)));
    }
    if publish.is_empty() {
        return Vec::new();
    }
    // They find the stream of a target.
    publish.insert(format!("{api}.STREAM.NAMES"));
    publish.insert(format!("{api}.STREAM.INFO.*"));
    let publish: Vec<String> = publish.iter().map(|it| format!("\"{it}\"")).collect();
    vec![format!(
        "permissions: {{ publish: [{}], subscribe: [\"_INBOX.>\"] }}",
        publish.join(", ")
    )]
}

fn redis_line(deployment: &str) -> String {
    let is_user = |line: &&str| line.starts_with("user postdate ");
    let user = REDIS_USERS.lines().find(is_user).unwrap_or_default();
    let quoted = user.split(' ').skip(1).map(|word| {
        let word = word.replace("{prod", &format!("{{{deployment}"));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-@".contains(c);
        if word.chars().all(is_plain) {
            word
        } else {
            format!("'{word}'")
        }
    });
    let words: Vec<String> = quoted.collect();
    format!("redis-cli ACL SETUSER {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse_builtin(text).unwrap()
    }

    const EXACT: &str = r#"
        deployment = "d"
        [store.redis]
        url = "redis://r:6379"
        [kafka.main]
        brokers = ["a:1"]
        [route.r]
        source = { kafka = "main", topics = ["s"] }
        target = { kafka = "main", topic = "t" }
        allow = ["t", "billing.*", "x*y"]
        allow_replies = ["replies.*"]
        dead_letter = { kafka = "main", topic = "dead" }
        delivery = "exactly-once"
    "#;

    #[test]
    fn the_rights_on_kafka_are_those_of_the_script() {
        let script = include_str!("../../../deploy/kafka/acls.sh");
        let lines = script.lines().filter_map(|line| line.strip_prefix("acl "));
        let lines = lines.map(|line| {
            let values = [
                ("$SOURCE", "s"),
                ("$TARGET", "t"),
                ("$DEAD_LETTER", "dead"),
                ("$DEPLOYMENT", "d"),
                ("$ROUTE", "r"),
                ("\"", ""),
            ];
            let fill = |line: String, (name, value): &(&str, &str)| line.replace(name, value);
            values.iter().fold(line.to_owned(), fill)
        });
        let of_script: BTreeSet<String> = lines.collect();
        let config = config(EXACT);
        let ours = kafka_rights("d", "r", &config.routes["r"], "main");
        let mut ours: BTreeSet<String> = ours.into_iter().collect();
        for start in ["billing.", "x", "replies."] {
            let allowed =
                format!("--operation Write --topic {start} --resource-pattern-type prefixed");
            assert!(ours.remove(&allowed), "{ours:?}");
        }
        assert_eq!(ours, of_script);
        assert_eq!(of(&config).len(), 2);
    }

    #[test]
    fn each_cluster_gets_the_rights_of_its_side_of_a_route() {
        let config = config(
            r#"
            deployment = "d"
            [kafka.main]
            brokers = ["a:1"]
            [nats.edge]
            url = "nats://n:4222"
            domain = "leaf"
            [route.r]
            source = { nats = "edge", stream = "DELAYED", subjects = ["delayed.*"] }
            target = { kafka = "main", topic = "t" }
            dead_letter = { nats = "edge", subject = "dead" }
        "#,
        );
        let rights = of(&config);
        let areas: Vec<&str> = rights.iter().map(|it| &*it.area).collect();
        assert_eq!(areas, ["kafka.main", "nats.edge"]);
        assert_eq!(
            rights[0].lines,
            [
                "kafka-acls.sh --bootstrap-server a:1 --add --allow-principal User:postdate --operation Write --topic t"
            ]
        );
        let nats = &rights[1].lines[0];
        for subject in [
            "$JS.leaf.API.STREAM.MSG.GET.DELAYED",
            "$JS.leaf.API.STREAM.MSG.GET.DEAD",
            "$JS.leaf.API.$KV.postdate-d.>",
            "delayed.*",
            "dead",
        ] {
            assert!(nats.contains(&format!("\"{subject}\"")), "{nats}");
        }
    }

    #[test]
    fn the_rights_on_redis_are_quoted_for_a_shell() {
        let line = redis_line("shop");
        assert!(
            line.starts_with("redis-cli ACL SETUSER postdate on '>PASSWORD' '~pd:{shop/*' "),
            "{line}"
        );
        assert!(
            line.contains("'&pd:{shop}:hints'") && !line.contains("prod"),
            "{line}"
        );
    }
}
