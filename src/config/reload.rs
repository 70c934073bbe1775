//! Compares a changed configuration with the one of a running process: which options it can take.

use super::{Config, Log};
use std::collections::{BTreeMap, BTreeSet};

/// The properties of a Kafka cluster that a running process can change. Both are secrets.
const LIVE_PROPERTIES: [&str; 2] = ["sasl.password", "sasl.oauthbearer.client.secret"];

impl Config {
    /// The names of the options that differ and that need a restart. All other options can be taken
    /// by a running process: `log.level`, the limits of a route, and the secrets of Kafka logins.
    pub(crate) fn changes_for_restart(&self, changed: &Self) -> Vec<String> {
        let new = self.with_live_options(changed);
        // A new option must be named here.
        let Self {
            deployment,
            roles,
            retry_key,
            accept_unsigned_retries,
            memory,
            store,
            kafka,
            nats,
            routes,
            worker,
            timer,
            admin,
            log,
            traces,
        } = self;
        let options = [
            ("deployment", *deployment == new.deployment),
            ("roles", *roles == new.roles),
            ("retry_key", *retry_key == new.retry_key),
            (
                "accept_unsigned_retries",
                *accept_unsigned_retries == new.accept_unsigned_retries,
            ),
            ("memory", *memory == new.memory),
            ("store", *store == new.store),
            ("worker", *worker == new.worker),
            ("timer", *timer == new.timer),
            ("admin", *admin == new.admin),
            ("log.format", *log == new.log),
            ("traces", *traces == new.traces),
        ];
        let options = options.into_iter().filter(|(_, is_same)| !is_same);
        let mut names: Vec<_> = options.map(|(name, _)| name.to_owned()).collect();
        names.extend(changed_tables("kafka", kafka, &new.kafka));
        names.extend(changed_tables("nats", nats, &new.nats));
        names.extend(changed_tables("route", routes, &new.routes));
        names
    }

    /// The changed configuration, with the live options of this one.
    fn with_live_options(&self, changed: &Self) -> Self {
        let mut new = changed.clone();
        new.log = Log {
            level: self.log.level.clone(),
            ..new.log
        };
        for (name, route) in &mut new.routes {
            if let Some(old) = self.routes.get(name) {
                route.max_waiting = old.max_waiting;
                route.over_quota = old.over_quota;
                route.rate = old.rate;
                route.catch_up_rate = old.catch_up_rate;
            }
        }
        for (name, cluster) in &mut new.kafka {
            let old = self.kafka.get(name).map(|old| &old.properties);
            for property in LIVE_PROPERTIES {
                // A login that begins or ends needs other clients.
                if let Some(value) = cluster.properties.get_mut(property)
                    && let Some(old) = old.and_then(|old| old.get(property))
                {
                    *value = old.clone();
                }
            }
        }
        new
    }
}

/// The names of the tables that were added, removed or changed.
fn changed_tables<T: PartialEq>(
    section: &str,
    old: &BTreeMap<String, T>,
    new: &BTreeMap<String, T>,
) -> Vec<String> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed = names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name));
    changed.map(|name| format!("{section}.{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: &str = r#"
deployment = "test"
[store.redis]
url = "redis://127.0.0.1:1"
[kafka.main]
brokers = ["127.0.0.1:1"]
properties = { "sasl.mechanisms" = "PLAIN", "sasl.username" = "u", "sasl.password" = "old" }
[route.orders]
source = { kafka = "main", topics = ["a"] }
target = { kafka = "main", topic = "b" }
dead_letter = { kafka = "main", topic = "c" }
max_waiting = { messages = 10 }
[log]
level = "info"
"#;

    /// The names after these replacements.
    fn changes(replacements: &[(&str, &str)]) -> Vec<String> {
        let running = Config::parse_builtin(RUNNING).unwrap();
        let text = replacements
            .iter()
            .fold(RUNNING.to_owned(), |text, (old, new)| {
                assert!(text.contains(old), "{old}");
                text.replace(old, new)
            });
        running.changes_for_restart(&Config::parse_builtin(&text).unwrap())
    }

    #[test]
    fn limits_the_log_level_and_secrets_of_kafka_need_no_restart() {
        let none = Vec::<String>::new();
        assert_eq!(changes(&[]), none);
        let all = [
            ("messages = 10", "messages = 20, bytes = \"1GiB\""),
            (
                "[log]",
                "over_quota = \"dead-letter\"\ncatch_up_rate = 5\nrate = 7\n[log]",
            ),
            ("\"info\"", "\"debug\""),
            ("\"old\"", "\"new\""),
        ];
        assert_eq!(changes(&all), none);
        assert_eq!(changes(&[("max_waiting = { messages = 10 }", "")]), none);
    }

    #[test]
    fn each_other_option_is_named() {
        for (old, new, expected) in [
            ("\"test\"", "\"other\"", "deployment"),
            ("[store", "roles = [\"timer\"]\n[store", "roles"),
            ("redis://127.0.0.1:1", "redis://127.0.0.1:2", "store"),
            ("\"u\"", "\"v\"", "kafka.main"),
            (", \"sasl.password\" = \"old\"", "", "kafka.main"),
            (
                "topics = [\"a\"]",
                "topics = [\"a\", \"d\"]",
                "route.orders",
            ),
            (
                "max_waiting",
                "max_delay = \"1d\"\nmax_waiting",
                "route.orders",
            ),
            ("[route.orders]", "[route.renamed]", "route.orders"),
            ("level", "format = \"json\"\nlevel", "log.format"),
            ("[log]", "[timer]\nlease = \"9s\"\n[log]", "timer"),
        ] {
            let names = changes(&[(old, new)]);
            assert_eq!(names.first().map(String::as_str), Some(expected), "{new}");
        }
        assert_eq!(
            changes(&[("[route.orders]", "[route.renamed]")]),
            ["route.orders", "route.renamed"]
        );
    }
}
