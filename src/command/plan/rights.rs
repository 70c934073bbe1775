//! The rights that the service needs on its clusters and its store, as lines for an administrator.

use super::Rights;
use crate::broker::cluster::RouteUse;
use crate::config::{Config, Delivery, Store};
use crate::role::groups;

/// The rights on Redis. The words `prod` and `PASSWORD` stand for the deployment and the password.
const REDIS_USERS: &str = include_str!("../../../deploy/redis/users.acl");

pub(super) fn of(config: &Config) -> Vec<Rights> {
    let clusters = config.clusters().map(|(_, name, _)| {
        let cluster = config.cluster(name);
        Rights {
            area: cluster.qualified_name(),
            lines: cluster.rights(&route_uses(config, name)),
        }
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

/// The topics and groups that the routes use on this cluster.
fn route_uses<'a>(config: &'a Config, cluster: &str) -> Vec<RouteUse<'a>> {
    let routes = config.routes.iter().map(|(name, route)| {
        let is_here = |name: &str| name == cluster;
        let target = route.target.iter().filter(|it| is_here(&it.cluster));
        let target = target.map(|it| it.name.as_str());
        let allow = route.allow.iter().chain(&route.allow_replies).flatten();
        let allow = allow.filter(|_| is_here(route.target_cluster()));
        let dead_letter = &route.dead_letter;
        let dead_letter = is_here(&dead_letter.cluster).then_some(dead_letter.name.as_str());
        let targets = target.chain(allow.map(String::as_str)).chain(dead_letter);
        RouteUse {
            group: groups(config, name).0,
            sources: match is_here(&route.source.cluster) {
                true => &route.source.topics,
                false => &[],
            },
            targets: targets.collect(),
            dead_letter,
            is_exactly_once: route.delivery == Delivery::ExactlyOnce,
        }
    });
    routes.collect()
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
    use std::collections::BTreeSet;

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
        let rights = of(&config);
        let ours = rights[0].lines.iter().map(|line| {
            let (_, right) = line.split_once("User:postdate ").unwrap();
            right.to_owned()
        });
        let mut ours: BTreeSet<String> = ours.collect();
        for start in ["billing.", "x", "replies."] {
            let allowed =
                format!("--operation Write --topic {start} --resource-pattern-type prefixed");
            assert!(ours.remove(&allowed), "{ours:?}");
        }
        assert_eq!(ours, of_script);
        assert_eq!(rights.len(), 2);
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
