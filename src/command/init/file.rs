//! The text of a new configuration file.

use super::Answers;
use serde_json::json;

pub(super) fn text(answers: &Answers) -> String {
    let deployment = json!(answers.deployment);
    let cluster = (answers.kind.facts().init.cluster_table)(&answers.servers);
    let (store, route) = (store(answers), route(answers));
    format!(
        "\
# The configuration of Postdate, written by `postdate init`. All options not named here have defaults:
# `config/default.toml` and docs/configuration.md describe them. Environment variables override this file.
#
#     postdate check --config FILE --fix     tests it, and plans missing topics and rights
#     postdate run --config FILE             starts the service

# The name of this installation. Do not change it later: the waiting messages belong to it.
deployment = {deployment}

{store}
{cluster}
{route}"
    )
}

fn store(answers: &Answers) -> String {
    let store = json!(answers.store);
    if answers.store.contains("://") {
        format!(
            "\
# Messages wait in this Redis: 7.0 or later, with maxmemory-policy noeviction and appendonly yes.
[store.redis]
url = {store}
#username = \"postdate\"
#password_file = \"/run/secrets/redis-password\"
"
        )
    } else {
        format!(
            "\
# Messages wait in this folder on a local disk. Only one process can use it; several processes need a [store.redis].
[store.embedded]
path = {store}
"
        )
    }
}

fn route(answers: &Answers) -> String {
    let max_delay = json!(answers.max_delay);
    let [target, dead_letter] = [&answers.target, &answers.dead_letter].map(|name| json!(name));
    let facts = answers.kind.facts();
    let key = format!("{} = \"main\", {}", facts.key, answers.kind.name_key());
    format!(
        "\
# Producers write to the source, with a header such as `postdate-after: 30m`. The message arrives at the target.
# Rejected messages go to the dead letters, with the reason in the header `postdate-error`.
[route.{route}]
source = {{ {source} }}
target = {{ {key} = {target} }}
dead_letter = {{ {key} = {dead_letter} }}
# Messages with a longer delay are rejected. The source must keep its messages for longer than this.
max_delay = {max_delay}
{rest}",
        route = answers.route,
        source = answers.source_keys,
        rest = facts.init.route_lines
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BrokerKind, Config};

    fn answers(kind: BrokerKind, servers: &str, store: &str, source: &str) -> Answers {
        Answers {
            kind,
            servers: servers.into(),
            store: store.into(),
            deployment: "prod".into(),
            route: "orders".into(),
            source_keys: (kind.facts().init.source_keys)(source).unwrap(),
            target: "orders".into(),
            dead_letter: "dead".into(),
            max_delay: "7d".into(),
        }
    }

    #[test]
    fn every_file_is_a_valid_configuration_with_its_comments_removed_or_not() {
        let kafka = answers(BrokerKind::Kafka, "a:1, b:2", "redis://r:6379", "s");
        let nats = answers(BrokerKind::Nats, "nats://n:4222", "./data", "S:s.>");
        for answers in [kafka, nats] {
            let text = text(&answers);
            Config::parse_builtin(&text).unwrap();
            let is_option = |line: &&str| {
                let line = line.strip_prefix('#');
                line.is_some_and(|line| {
                    line.starts_with(|c: char| "[\"".contains(c) || c.is_alphabetic())
                })
            };
            let options = text.lines().filter(is_option).count();
            assert!(options > 1, "{text}");
            let is_secret = |line: &&str| line.contains("_file") || line.contains("username");
            let lines = text.lines().filter(|line| !is_secret(line));
            let lines = lines.map(|line| match is_option(&line) {
                true => &line[1..],
                false => line,
            });
            let all = lines.collect::<Vec<_>>().join("\n");
            Config::parse_builtin(&all).unwrap();
        }
    }

    #[test]
    fn the_file_of_kafka_says_what_each_part_is_for() {
        let answers = answers(BrokerKind::Kafka, "a:1", "redis://r:6379", "orders.delayed");
        insta::assert_snapshot!(text(&answers));
    }
}
