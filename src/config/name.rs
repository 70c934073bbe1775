//! What names may look like: deployments, routes and clusters, Kafka topics, streams, brokers.

use std::net::Ipv6Addr;

/// Names stand in Redis keys, consumer groups and metrics, each of which is shown whole in logs.
const NAME_LENGTH_MAX: usize = 64;
/// Kafka's own bound.
const TOPIC_LENGTH_MAX: usize = 249;

pub(super) const NAME: &str = "use 1 to 64 of a-z 0-9 _";
pub(super) const DEPLOYMENT: &str = "use 1 to 64 of a-z 0-9 _ - and begin with a letter or digit";
pub(super) const TOPIC: &str = "use 1 to 249 of A-Z a-z 0-9 . _ -";
pub(super) const PATTERN: &str = "use 1 to 249 of A-Z a-z 0-9 . _ - and * for any characters";
pub(super) const STREAM: &str = "use 1 to 64 of A-Z a-z 0-9 _ -";
pub(super) const SUBJECT: &str = "use printable ASCII: tokens with dots between them, no wildcards, and none that begins with $ or _INBOX";
pub(super) const FILTER: &str = "use tokens of A-Z a-z 0-9 _ - with dots between them; * for any one token, > at the end for one or more";
pub(super) const BROKER: &str = "write host:port, such as \"kafka-0.example.com:9092\"; the protocol is set by \"security.protocol\" in properties";

/// Of a route or a cluster.
pub(super) fn fault_of_name(name: &str) -> Option<&'static str> {
    let fits = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    (!fits || name.is_empty() || name.len() > NAME_LENGTH_MAX)
        .then_some("this is not a possible name")
}

pub(super) fn is_stream(name: &str) -> bool {
    name.len() <= NAME_LENGTH_MAX
        && !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

pub(super) fn is_deployment(name: &str) -> bool {
    !name.starts_with(['_', '-']) && fault_of_name(&name.replace('-', "_")).is_none()
}

/// Of a topic that is read, or that a route itself names.
pub(super) fn fault_of_topic(name: &str) -> Option<&'static str> {
    let fits = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if !fits || name.is_empty() || name.len() > TOPIC_LENGTH_MAX || name == "." || name == ".." {
        Some("Kafka allows no such topic name")
    } else if name.starts_with("__") {
        Some("topics that begin with __ are Kafka's own")
    } else {
        None
    }
}

/// Of an entry of an allow-list.
pub(super) fn is_pattern(pattern: &str) -> bool {
    let topic = pattern.replace('*', "x");
    !topic.starts_with("__") && fault_of_topic(&topic).is_none()
}

pub(super) fn is_broker(broker: &str) -> bool {
    let Some((host, port)) = broker.rsplit_once(':') else {
        return false;
    };
    let is_port =
        port.chars().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_name = !host.is_empty()
        && host
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    is_port && (is_name || in_brackets.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_bounded() {
        for name in ["orders", "a", "a_1", "_", &"x".repeat(64)] {
            assert_eq!(fault_of_name(name), None, "{name}");
        }
        for name in ["", "Orders", "a-b", "a.b", "a b", "ä", &"x".repeat(65)] {
            assert!(fault_of_name(name).is_some(), "{name}");
        }
        assert!(
            is_deployment("prod-eu_1")
                && !is_deployment("-prod")
                && !is_deployment("prod.eu")
                && !is_deployment("")
        );
    }

    #[test]
    fn topics_are_what_kafka_allows_and_not_its_own() {
        for topic in ["orders", "Orders.v1_x-y", "_schemas", &"x".repeat(249)] {
            assert_eq!(fault_of_topic(topic), None, "{topic}");
        }
        for topic in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "^a.*",
            "a*",
            "__consumer_offsets",
            "ä",
            &"x".repeat(250),
        ] {
            assert!(fault_of_topic(topic).is_some(), "{topic}");
        }
        assert!(
            is_pattern("*")
                && is_pattern("billing.*")
                && !is_pattern("__*")
                && !is_pattern("")
                && !is_pattern("a b")
        );
    }

    #[test]
    fn brokers_are_a_host_and_a_port() {
        for broker in [
            "kafka:9092",
            "10.0.0.1:1",
            "kafka-0.kafka.svc.cluster.local:65535",
            "[::1]:9092",
        ] {
            assert!(is_broker(broker), "{broker}");
        }
        for broker in [
            "kafka",
            "kafka:",
            ":9092",
            "kafka:0",
            "kafka:65536",
            "kafka:+1",
            "PLAINTEXT://kafka:9092",
            "a:9092,b:9092",
            "::1:9092",
            "a b:1",
        ] {
            assert!(!is_broker(broker), "{broker}");
        }
    }
}
