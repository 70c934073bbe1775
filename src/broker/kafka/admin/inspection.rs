//! The [`Inspector`] port on Kafka: judges the cluster as `describe` finds it.

use super::describe::{ClusterInfo, TopicConfig, TopicInfo};
use super::{KafkaCatalog, change};
use crate::broker::Error;
use crate::broker::inspection::{Change, Finding, Inspector, TopicRole, TopicUse};
use crate::model::Timestamp;
use crate::model::readable::{length, several, size};
use async_trait::async_trait;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Postdate refreshes commits daily. A group must keep its offsets even if one refresh is missed.
const OFFSETS_RETENTION_MIN: Duration = DAY.saturating_mul(2);

const REPLICAS_DEFAULT: usize = 3;

#[async_trait(?Send)]
impl Inspector for KafkaCatalog {
    async fn inspect(&mut self, uses: &[TopicUse]) -> Result<Vec<Finding>, Error> {
        let mut topics: Vec<String> = uses.iter().map(|used| used.topic.clone()).collect();
        topics.sort();
        topics.dedup();
        Ok(judge(uses, &self.describe_cluster(&topics).await?))
    }

    fn remedy(&self, error: &Error) -> String {
        remedy(&self.cluster.name, &self.cluster.brokers, error)
    }

    async fn apply(&mut self, change: &Change) -> Result<(), Error> {
        self.change(change).await
    }

    fn command(&self, change: &Change) -> String {
        change::command(&self.cluster.brokers.join(","), change)
    }

    async fn duplicate_windows(&mut self, _: &str) -> Result<Vec<(String, Timestamp)>, Error> {
        Ok(Vec::new())
    }
}

fn remedy(name: &str, brokers: &[String], error: &Error) -> String {
    let text = error.to_string();
    let words = ["authentication", "SASL", "SSL", "certificate"];
    match error {
        Error::Fatal(_) | Error::Rejected(_) => {
            format!("check kafka.{name}.properties, and what this client may do")
        }
        Error::Unavailable(_) if words.iter().any(|word| text.contains(word)) => {
            format!("check the user, the password and the certificates in kafka.{name}.properties")
        }
        Error::Unavailable(_) => format!(
            "check kafka.{name}.brokers ({}), the network between, and whether the listener wants TLS or a login",
            brokers.join(", ")
        ),
    }
}

fn judge(uses: &[TopicUse], info: &ClusterInfo) -> Vec<Finding> {
    let brokers = several(info.broker_count as u64, "broker");
    let reachable = |of: &str| format!("{brokers}{of}; the login is accepted");
    let mut findings = vec![match &info.cluster_id {
        Some(id) => Finding::ok("reachable", reachable(&format!(" of cluster {id}"))),
        None => Finding::warn(
            "reachable",
            reachable(" of a cluster without an id"),
            "upgrade the brokers: without cluster ids, a second installation with this `deployment` is not noticed",
        ),
    }];
    for used in uses {
        let (name, of, right) = (&used.topic, used.text(), right(used.role));
        findings.extend(match info.topics.get(name) {
            Some(Ok(Some(topic))) => judge_topic(used, topic),
            Some(Err(why)) => {
                let fix = format!("grant this client DESCRIBE and {right} on the topic");
                let found = format!("{of} cannot be described: {why}");
                vec![Finding::fail(name, found, fix)]
            }
            Some(Ok(None)) | None => {
                let fix = "create it: `postdate check --fix` shows how";
                let finding = Finding::fail(name, format!("{of} does not exist"), fix);
                let replicas = info.broker_count.min(REPLICAS_DEFAULT) as u8;
                vec![finding.repaired_by(used.creation(name, Vec::new(), replicas))]
            }
        });
    }
    findings.extend(info.offsets_retention.as_ref().map(judge_offsets));
    findings
}

fn right(role: TopicRole) -> &'static str {
    match role {
        TopicRole::Source => "READ, and WRITE for retries,",
        TopicRole::Target | TopicRole::DeadLetters => "WRITE",
    }
}

fn judge_topic(used: &TopicUse, topic: &TopicInfo) -> Vec<Finding> {
    let found = format!(
        "{}: {}",
        used.text(),
        several(topic.partitions as u64, "partition")
    );
    let missing = match topic.permissions {
        Some((false, _)) if used.role == TopicRole::Source => Some("read"),
        Some((_, false)) => Some("write to"),
        _ => None,
    };
    let mut findings = vec![match missing {
        None => Finding::ok(&used.topic, found),
        Some(missing) => {
            let fix = format!("grant this client {} on the topic", right(used.role));
            let found = format!("{found}, and this client may not {missing} it");
            Finding::fail(&used.topic, found, fix)
        }
    }];
    if used.role == TopicRole::Source {
        findings.extend(judge_retention(used, &topic.config));
    }
    findings
}

fn judge_retention(used: &TopicUse, config: &Result<TopicConfig, String>) -> Vec<Finding> {
    let (topic, longest) = (&used.topic, length(used.max_delay));
    let warn = |found, fix| Finding::warn(format!("{topic} retention"), found, fix);
    let config = match config {
        Ok(config) => config,
        Err(why) => {
            let fix = format!(
                "check that the retention exceeds {longest}, or grant DESCRIBE_CONFIGS on the topic"
            );
            return vec![warn(format!("not known: {why}"), fix)];
        }
    };
    if used.is_recurring {
        return vec![judge_compaction(topic, config)];
    }
    let mut findings = Vec::new();
    if config.is_compacted {
        let found = "cleanup.policy has compact: after a loss of the store, only the latest message of each key can be read again";
        let fix = format!("set cleanup.policy=delete on {topic}");
        findings.push(warn(found.to_owned(), fix));
    }
    let kept = config.retention.filter(|_| config.has_retention);
    let kept_for = kept.map_or("for ever".to_owned(), |kept| {
        format!("for {}", length(kept))
    });
    findings.push(if kept.is_some_and(|kept| kept < used.max_delay) {
        let found = format!(
            "kept {kept_for}, less than route.{}.max_delay {longest}: after a loss of the store, messages that wait longer cannot be read again and are lost",
            used.routes.join(", ")
        );
        let needed = used.retention().as_millis();
        let fix = format!("set retention.ms={needed} or more on {topic}, or lower max_delay");
        warn(found, fix).repaired_by(Change::SetRetention {
            name: topic.clone(),
            retention: used.retention(),
        })
    } else {
        let found = format!("kept {kept_for}; the longest delay is {longest}");
        Finding::ok(format!("{topic} retention"), found)
    });
    if let Some(bytes) = config.retention_bytes.filter(|_| config.has_retention) {
        let found = format!(
            "retention.bytes keeps only {} per partition: after a loss of the store, waiting messages beyond it cannot be read again",
            size(bytes)
        );
        let fix = format!("set retention.bytes=-1 on {topic}, and let retention.ms bound it");
        findings.push(warn(found, fix));
    }
    findings
}

/// A topic of definitions keeps the last record of each schedule for ever.
fn judge_compaction(topic: &str, config: &TopicConfig) -> Finding {
    let subject = format!("{topic} compaction");
    if config.is_compacted && !config.has_retention {
        return Finding::ok(subject, "the last record of each schedule is kept");
    }
    let found = "cleanup.policy is not compact alone: definitions of schedules are deleted, and their schedules end";
    let fix = format!("set cleanup.policy=compact on {topic}");
    Finding::fail(subject, found, fix)
}

fn judge_offsets(retention: &Result<Duration, String>) -> Finding {
    let (subject, needed) = ("offsets.retention.minutes", OFFSETS_RETENTION_MIN);
    match retention {
        Ok(kept) if *kept < needed => {
            let found = "Postdate refreshes the commit of an idle group daily, and it may expire before that";
            let found = format!("{}: {found}", length(*kept));
            let fix = format!("set it to {} or more on the brokers", needed.as_secs() / 60);
            Finding::warn(subject, found, fix)
        }
        Ok(kept) => Finding::ok(subject, length(*kept)),
        Err(why) => {
            let found = format!(
                "not shown to this client ({why}); {} is enough",
                length(needed)
            );
            Finding::ok(subject, found)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::TopicSize;
    use crate::broker::inspection::Verdict::{Fail, Ok as Fine, Warn};

    const SETTINGS: TopicConfig = TopicConfig {
        is_compacted: false,
        has_retention: true,
        retention: None,
        retention_bytes: None,
    };

    fn topic(settings: Result<TopicConfig, String>) -> TopicInfo {
        TopicInfo {
            partitions: 4,
            permissions: Some((true, true)),
            config: settings,
        }
    }

    fn used(role: TopicRole) -> TopicUse {
        TopicUse {
            topic: "t".into(),
            role,
            routes: vec!["orders".into()],
            max_delay: 30 * DAY,
            reads_schedules: false,
            is_recurring: false,
            size: TopicSize {
                partitions: 6,
                replicas: None,
            },
        }
    }

    #[test]
    fn a_source_is_judged_by_how_long_it_keeps_what_waits() {
        let of =
            |settings: TopicConfig| judge_topic(&used(TopicRole::Source), &topic(Ok(settings)));
        let verdicts = |settings| {
            of(settings)
                .iter()
                .map(|item| item.verdict)
                .collect::<Vec<_>>()
        };
        assert_eq!(verdicts(SETTINGS), [Fine, Fine]);
        assert_eq!(
            verdicts(TopicConfig {
                retention: Some(30 * DAY),
                ..SETTINGS
            }),
            [Fine, Fine]
        );
        assert_eq!(
            verdicts(TopicConfig {
                retention: Some(7 * DAY),
                ..SETTINGS
            }),
            [Fine, Warn]
        );
        assert_eq!(
            verdicts(TopicConfig {
                retention: Some(DAY),
                has_retention: false,
                is_compacted: true,
                ..SETTINGS
            }),
            [Fine, Warn, Fine]
        );
        assert_eq!(
            verdicts(TopicConfig {
                retention_bytes: Some(1 << 30),
                ..SETTINGS
            }),
            [Fine, Fine, Warn]
        );
        let short = of(TopicConfig {
            retention: Some(7 * DAY),
            ..SETTINGS
        })
        .remove(1);
        assert_eq!(
            short.fix.unwrap(),
            "set retention.ms=2678400000 or more on t, or lower max_delay"
        );
        assert!(
            short.found.contains(
                "kept for 7d, less than route.orders.max_delay 30d: after a loss of the store"
            ),
            "{}",
            short.found
        );
        let unknown = judge_topic(&used(TopicRole::Source), &topic(Err("denied".into())));
        assert_eq!(
            (unknown[1].verdict, &*unknown[1].found),
            (Warn, "not known: denied")
        );
    }

    #[test]
    fn a_topic_of_definitions_must_be_compacted() {
        let verdict = |is_compacted, has_retention| {
            let used = TopicUse {
                is_recurring: true,
                ..used(TopicRole::Source)
            };
            let settings = TopicConfig {
                is_compacted,
                has_retention,
                ..SETTINGS
            };
            judge_topic(&used, &topic(Ok(settings)))[1].verdict
        };
        assert_eq!(verdict(true, false), Fine);
        assert_eq!(verdict(true, true), Fail);
        assert_eq!(verdict(false, true), Fail);
    }

    #[test]
    fn a_topic_needs_the_rights_that_its_duty_asks_for() {
        let verdict = |role, read, write| {
            let topic = TopicInfo {
                permissions: Some((read, write)),
                ..topic(Ok(SETTINGS))
            };
            judge_topic(&used(role), &topic)[0].verdict
        };
        for (role, read, write, expected) in [
            (TopicRole::Source, true, true, Fine),
            (TopicRole::Source, false, true, Fail),
            (TopicRole::Source, true, false, Fail),
            (TopicRole::Target, false, true, Fine),
            (TopicRole::Target, true, false, Fail),
            (TopicRole::DeadLetters, false, true, Fine),
            (TopicRole::DeadLetters, false, false, Fail),
        ] {
            assert_eq!(
                verdict(role, read, write),
                expected,
                "{role:?} {read} {write}"
            );
        }
        let silent = TopicInfo {
            permissions: None,
            ..topic(Ok(SETTINGS))
        };
        assert_eq!(
            judge_topic(&used(TopicRole::Target), &silent)[0].verdict,
            Fine
        );
    }

    #[test]
    fn missing_topics_and_unreachable_clusters_fail_with_a_fix() {
        let mut facts = ClusterInfo {
            broker_count: 3,
            cluster_id: Some("c1".into()),
            offsets_retention: Some(Ok(DAY)),
            ..ClusterInfo::default()
        };
        let uses = [
            used(TopicRole::Target),
            TopicUse {
                topic: "u".into(),
                ..used(TopicRole::DeadLetters)
            },
        ];
        facts.topics.insert("t".into(), Ok(None));
        facts.topics.insert("u".into(), Err("denied".into()));
        let items = judge(&uses, &facts);
        assert_eq!(
            items.iter().map(|item| item.verdict).collect::<Vec<_>>(),
            [Fine, Fail, Fail, Warn]
        );
        assert_eq!(items[1].found, "target of orders does not exist");
        for (error, fix) in [
            (
                Error::Unavailable("Connection refused".into()),
                "check kafka.main.brokers (a:1), ",
            ),
            (
                Error::Unavailable("SASL authentication error".into()),
                "check the user, the password",
            ),
            (
                Error::Rejected("denied".into()),
                "check kafka.main.properties",
            ),
        ] {
            let remedy = remedy("main", &["a:1".into()], &error);
            assert!(remedy.starts_with(fix), "{remedy}");
        }
    }
}
