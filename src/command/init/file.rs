//! The text of a new configuration file.

use super::Answers;
use crate::config::BrokerKind;
use serde_json::json;

pub(super) fn text(answers: &Answers) -> String {
    let deployment = json!(answers.deployment);
    let (store, cluster, route) = (store(answers), cluster(answers), route(answers));
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

fn cluster(answers: &Answers) -> String {
    match answers.kind {
        BrokerKind::Kafka => {
            let brokers: Vec<&str> = answers.servers.split(',').map(str::trim).collect();
            let brokers = json!(brokers);
            format!(
                "\
[kafka.main]
brokers = {brokers}
# TLS and a login, with the names of librdkafka:
#[kafka.main.properties]
#\"security.protocol\" = \"SASL_SSL\"
#\"sasl.mechanisms\" = \"SCRAM-SHA-512\"
#\"sasl.username\" = \"postdate\"
#\"sasl.password_file\" = \"/run/secrets/kafka-password\"
"
            )
        }
        BrokerKind::Nats => {
            let servers = json!(answers.servers);
            format!(
                "\
[nats.main]
url = {servers}
# A login, and an authority for TLS:
#credentials_file = \"/run/secrets/nats.creds\"
#ca = \"/etc/ssl/nats-ca.pem\"
"
            )
        }
    }
}

fn route(answers: &Answers) -> String {
    let max_delay = json!(answers.max_delay);
    let [target, dead_letter] = [&answers.target, &answers.dead_letter].map(|name| json!(name));
    let (source, key) = match (answers.kind, answers.source.split_once(':')) {
        (BrokerKind::Nats, Some((stream, subject))) => {
            let (stream, subject) = (json!(stream), json!(subject));
            let source = format!("nats = \"main\", stream = {stream}, subjects = [{subject}]");
            (source, "nats = \"main\", subject")
        }
        _ => {
            let source = format!("kafka = \"main\", topics = [{}]", json!(answers.source));
            (source, "kafka = \"main\", topic")
        }
    };
    let exactly_once = match answers.kind {
        BrokerKind::Kafka => {
            "\
# For consumers with isolation.level=read_committed that must see each message once:
#delivery = \"exactly-once\"
"
        }
        BrokerKind::Nats => "",
    };
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
{exactly_once}",
        route = answers.route
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn answers(kind: BrokerKind, servers: &str, store: &str, source: &str) -> Answers {
        Answers {
            kind,
            servers: servers.into(),
            store: store.into(),
            deployment: "prod".into(),
            route: "orders".into(),
            source: source.into(),
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
