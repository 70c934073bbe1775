//! Checks names: of deployments, routes and clusters, Kafka topics, NATS streams, and broker
//! addresses.

use crate::model::is_topic_name;
use std::net::Ipv6Addr;

/// Characters of a name. Names are part of Redis keys, consumer groups and metrics.
const NAME_LENGTH_MAX: usize = 64;

pub(super) const NAME: &str = "use 1 to 64 of a-z 0-9 _";
pub(super) const DEPLOYMENT: &str = "use 1 to 64 of a-z 0-9 _ - and begin with a letter or digit";
pub(super) const WORKER: &str = "use 1 to 64 of A-Z a-z 0-9 . _ -";
pub(super) const TOPIC: &str = "use 1 to 249 of A-Z a-z 0-9 . _ -";
pub(super) const PATTERN: &str = "use 1 to 249 of A-Z a-z 0-9 . _ - and * for any characters";
pub(super) const STREAM: &str = "use 1 to 64 of A-Z a-z 0-9 _ -";
pub(super) const SUBJECT: &str = "use printable ASCII: tokens with dots between them, no wildcards, and none that begins with $ or _INBOX";
pub(super) const FILTER: &str = "use tokens of A-Z a-z 0-9 _ - with dots between them; * for any one token, > at the end for one or more";
pub(super) const BROKER: &str = "write host:port, such as \"kafka-0.example.com:9092\"; \"security.protocol\" in properties sets the protocol";

/// Returns whether a route or a cluster may have this name.
pub(super) fn is_name(name: &str) -> bool {
    has_length(name, NAME_LENGTH_MAX)
        && is_alphanumeric_or(name, "_")
        && !name.contains(|c: char| c.is_ascii_uppercase())
}

pub(super) fn is_stream(name: &str) -> bool {
    has_length(name, NAME_LENGTH_MAX) && is_alphanumeric_or(name, "_-")
}

pub(super) fn is_worker(name: &str) -> bool {
    has_length(name, NAME_LENGTH_MAX) && is_alphanumeric_or(name, "._-")
}

pub(super) fn is_deployment(name: &str) -> bool {
    !name.starts_with(['_', '-']) && is_name(&name.replace('-', "_"))
}

/// Why a route may not read or write a topic of this name.
pub(super) fn topic_error(name: &str) -> Option<&'static str> {
    if !is_topic_name(name) {
        Some("Kafka allows no such topic name")
    } else if name.starts_with("__") {
        Some("topics that begin with __ belong to Kafka")
    } else {
        None
    }
}

/// Returns whether an entry of an allow-list can match a topic.
pub(super) fn is_pattern(pattern: &str) -> bool {
    topic_error(&pattern.replace('*', "x")).is_none()
}

pub(super) fn is_broker(broker: &str) -> bool {
    let Some((host, port)) = broker.rsplit_once(':') else {
        return false;
    };
    let is_port =
        port.chars().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match in_brackets {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && is_alphanumeric_or(host, "._-"),
    };
    is_port && is_host
}

fn has_length(name: &str, max: usize) -> bool {
    (1..=max).contains(&name.len())
}

pub(super) fn is_alphanumeric_or(name: &str, signs: &str) -> bool {
    name.chars()
        .all(|c| c.is_ascii_alphanumeric() || signs.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_short() {
        for name in ["orders", "a", "a_1", "_", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "Orders", "a-b", "a.b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
        assert!(
            is_deployment("prod-eu_1")
                && !is_deployment("-prod")
                && !is_deployment("prod.eu")
                && !is_deployment("")
        );
    }

    #[test]
    fn kafka_limits_topic_names_and_keeps_some_for_itself() {
        for topic in ["orders", "Orders.v1_x-y", "_schemas", &"x".repeat(249)] {
            assert_eq!(topic_error(topic), None, "{topic}");
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
            assert!(topic_error(topic).is_some(), "{topic}");
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
