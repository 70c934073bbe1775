//! Compares a changed configuration with the one of a running process: how the process applies
//! it.

use super::{Config, Log};

/// How a process applies a changed configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// It changes only `log.level`, the limits of routes, the secrets of Kafka logins, and what no role
    /// reads.
    Live,
    /// The roles must end, and begin again.
    Restart,
    /// The names of the options that need a restart of the process.
    Refused(Vec<String>),
}

impl Config {
    /// How a process with this configuration applies the `changed` one.
    pub(crate) fn change_to(&self, changed: &Self) -> Change {
        let refused = self.changes_for_restart(changed);
        if !refused.is_empty() {
            Change::Refused(refused)
        } else if *self != self.with_live_options(changed) {
            Change::Restart
        } else if self != changed {
            Change::Live
        } else {
            Change::None
        }
    }

    /// The names of the options that differ, and that say which shards the process has, or that belong to
    /// the process and not to its roles.
    fn changes_for_restart(&self, changed: &Self) -> Vec<String> {
        let options = [
            ("deployment", self.deployment == changed.deployment),
            ("roles", self.roles == changed.roles),
            (
                "store",
                self.store.without_logins() == changed.store.without_logins(),
            ),
            ("admin.listen", self.admin.listen == changed.admin.listen),
            ("log.format", self.log.format == changed.log.format),
        ];
        let options = options.into_iter().filter(|(_, is_same)| !is_same);
        let mut names: Vec<_> = options.map(|(name, _)| name.to_owned()).collect();
        for (route, old) in &self.routes {
            let Some(new) = changed.routes.get(route) else {
                continue;
            };
            let options = [
                ("source", old.source == new.source),
                ("delivery", old.delivery == new.delivery),
                ("recurring", old.recurring == new.recurring),
            ];
            let options = options.into_iter().filter(|(_, is_same)| !is_same);
            names.extend(options.map(|(name, _)| format!("route.{route}.{name}")));
        }
        names
    }

    /// The changed configuration, with the options of this one that running roles can change.
    fn with_live_options(&self, changed: &Self) -> Self {
        let mut new = changed.clone();
        new.log = Log {
            level: self.log.level.clone(),
            ..new.log
        };
        new.include.clone_from(&self.include);
        new.worker.watch_config = self.worker.watch_config;
        for (name, route) in &mut new.routes {
            if let Some(old) = self.routes.get(name) {
                route.max_waiting = old.max_waiting;
                route.over_quota = old.over_quota;
                route.rate = old.rate;
                route.catch_up_rate = old.catch_up_rate;
            }
        }
        for (name, cluster) in &mut new.kafka {
            if let Some(old) = self.kafka.get(name) {
                cluster.take_live_properties(old);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: &str = r#"
deployment = "test"
[store.redis]
url = "redis://127.0.0.1:1"
username = "postdate"
password = "hidden"
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

    /// The change by these replacements.
    fn change(replacements: &[(&str, &str)]) -> Change {
        let running = Config::parse_builtin(RUNNING).unwrap();
        let text = replacements
            .iter()
            .fold(RUNNING.to_owned(), |text, (old, new)| {
                assert!(text.contains(old), "{old}");
                text.replace(old, new)
            });
        running.change_to(&Config::parse_builtin(&text).unwrap())
    }

    #[test]
    fn running_roles_take_limits_the_log_level_and_secrets_of_kafka() {
        assert_eq!(change(&[]), Change::None);
        let all = [
            ("messages = 10", "messages = 20, bytes = \"1GiB\""),
            (
                "[log]",
                "over_quota = \"dead-letter\"\ncatch_up_rate = 5\nrate = 7\n[log]",
            ),
            ("\"info\"", "\"debug\""),
            ("\"old\"", "\"new\""),
            ("[log]", "[worker]\nwatch_config = true\n[log]"),
        ];
        assert_eq!(change(&all), Change::Live);
        let no_quota = change(&[("max_waiting = { messages = 10 }", "")]);
        assert_eq!(no_quota, Change::Live);
    }

    #[test]
    fn roles_begin_again_with_all_other_options() {
        for (old, new) in [
            ("topic = \"b\"", "topic = \"other\""),
            ("topic = \"c\"", "topic = \"other\""),
            ("[route.orders]", "[route.renamed]"),
            ("[log]", "max_delay = \"31d\"\n[log]"),
            ("[log]", "[timer]\nlease = \"9s\"\n[log]"),
            ("[log]", "[worker]\nname = \"w\"\n[log]"),
            ("[log]", "[admin]\ntoken = \"0123456789abcdef\"\n[log]"),
            ("\"u\"", "\"another\""),
            ("\"hidden\"", "\"changed\""),
        ] {
            assert_eq!(change(&[(old, new)]), Change::Restart, "{new}");
        }
    }

    #[test]
    fn an_option_that_names_the_shards_or_belongs_to_the_process_needs_a_restart() {
        for (old, new, option) in [
            ("\"test\"", "\"other\"", "deployment"),
            ("[store", "roles = [\"timer\"]\n[store", "roles"),
            ("redis://127.0.0.1:1\"", "redis://127.0.0.1:2\"", "store"),
            (
                "[log]",
                "[admin]\nlisten = \"127.0.0.1:2\"\n[log]",
                "admin.listen",
            ),
            ("level", "format = \"json\"\nlevel", "log.format"),
            ("[\"a\"]", "[\"a\", \"d\"]", "route.orders.source"),
            (
                "[log]",
                "delivery = \"exactly-once\"\n[log]",
                "route.orders.delivery",
            ),
        ] {
            let refused = Change::Refused(vec![option.to_owned()]);
            assert_eq!(change(&[(old, new)]), refused, "{new}");
        }
    }
}
