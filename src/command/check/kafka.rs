//! Judges a Kafka cluster for the routes that use it.

use super::item::Item;
use crate::broker::Error;
use crate::broker::kafka::{ClusterInfo, TopicConfig, TopicInfo, TopicPermissions};
use crate::command::page::{length, several, size};
use crate::config::Config;
use std::collections::BTreeMap;
use std::time::Duration;

/// Postdate refreshes commits daily. A group must keep its offsets even if one refresh is missed.
const OFFSETS_RETENTION_LEAST: Duration = Duration::from_secs(2 * 24 * 3600);

/// The use of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Duty {
    pub(super) topic: String,
    pub(super) role: Role,
    /// The routes that use the topic in this role.
    pub(super) routes: Vec<String>,
    /// The longest delay of these routes. It matters for sources only.
    pub(super) max_delay: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Source,
    Target,
    DeadLetters,
}

/// The topics of a cluster that the configuration names.
pub(super) fn duties(config: &Config, cluster: &str) -> Vec<Duty> {
    let mut duties: BTreeMap<(Role, String), Duty> = BTreeMap::new();
    for (name, route) in &config.routes {
        let sources = route
            .source
            .topics
            .iter()
            .map(|topic| (Role::Source, &route.source.cluster, topic));
        let target = route
            .target
            .iter()
            .map(|target| (Role::Target, &target.cluster, &target.name));
        let dead = std::iter::once((
            Role::DeadLetters,
            &route.dead_letter.cluster,
            &route.dead_letter.name,
        ));
        for (role, _, topic) in sources
            .chain(target)
            .chain(dead)
            .filter(|(_, of, _)| *of == cluster)
        {
            let new = || Duty {
                topic: topic.clone(),
                role,
                routes: Vec::new(),
                max_delay: Duration::ZERO,
            };
            let duty = duties.entry((role, topic.clone())).or_insert_with(new);
            duty.routes.push(name.clone());
            duty.max_delay = duty.max_delay.max(route.max_delay);
        }
    }
    duties.into_values().collect()
}

pub(super) fn judge(
    cluster: &str,
    brokers: &[String],
    duties: &[Duty],
    found: &Result<ClusterInfo, Error>,
) -> Vec<Item> {
    let area = &format!("kafka.{cluster}");
    let facts = match found {
        Ok(facts) => facts,
        Err(error) => return vec![unreachable(area, brokers, error)],
    };
    let mut items = vec![Item::ok(
        area,
        "reachable",
        format!(
            "{}; the login is accepted",
            several(facts.broker_count as u64, "broker")
        ),
    )];
    for duty in duties {
        match facts.topics.get(&duty.topic) {
            Some(Ok(Some(topic))) => items.extend(judge_topic(area, duty, topic)),
            Some(Err(words)) => items.push(Item::fail(
                area,
                &duty.topic,
                format!("{} cannot be looked at: {words}", of(duty)),
                format!("grant this client DESCRIBE and {} on the topic", right(duty.role)),
            )),
            Some(Ok(None)) | None => items.push(Item::fail(
                area,
                &duty.topic,
                format!("{} does not exist", of(duty)),
                format!("create it, with the partitions it should have: kafka-topics.sh --create --topic {}", duty.topic),
            )),
        }
    }
    items.extend(
        facts
            .offsets_retention
            .as_ref()
            .map(|retention| judge_offsets(area, retention)),
    );
    items
}

fn unreachable(area: &str, brokers: &[String], error: &Error) -> Item {
    let (found, brokers) = (error.to_string(), brokers.join(", "));
    let is_login = ["authentication", "SASL", "SSL", "certificate"]
        .iter()
        .any(|word| found.contains(word));
    let fix = match error {
        Error::Fatal(_) | Error::Rejected(_) => {
            format!("check {area}.properties, and what this client may do")
        }
        Error::Unavailable(_) if is_login => {
            format!("check the user, the password and the certificates in {area}.properties")
        }
        Error::Unavailable(_) => {
            format!(
                "check {area}.brokers ({brokers}), the network between, and whether the listener wants TLS or a login"
            )
        }
    };
    Item::fail(area, "reachable", found, fix)
}

pub(super) fn of(duty: &Duty) -> String {
    let role = match duty.role {
        Role::Source => "source",
        Role::Target => "target",
        Role::DeadLetters => "dead-letter topic",
    };
    format!("{role} of {}", duty.routes.join(", "))
}

fn right(role: Role) -> &'static str {
    match role {
        Role::Source => "READ, and WRITE for retries,",
        Role::Target | Role::DeadLetters => "WRITE",
    }
}

fn judge_topic(area: &str, duty: &Duty, topic: &TopicInfo) -> Vec<Item> {
    let partitions = several(topic.partitions as u64, "partition");
    let mut items = Vec::new();
    match topic
        .permissions
        .and_then(|rights| missing(duty.role, rights))
    {
        Some(missing) => items.push(Item::fail(
            area,
            &duty.topic,
            format!(
                "{}: {partitions}, and this client may not {missing} it",
                of(duty)
            ),
            format!("grant this client {} on the topic", right(duty.role)),
        )),
        None => items.push(Item::ok(
            area,
            &duty.topic,
            format!("{}: {partitions}", of(duty)),
        )),
    }
    if duty.role == Role::Source {
        items.extend(judge_retention(area, duty, &topic.config));
    }
    items
}

fn missing(role: Role, rights: TopicPermissions) -> Option<&'static str> {
    match (role, rights) {
        (Role::Source, TopicPermissions { read: false, .. }) => Some("read"),
        (_, TopicPermissions { write: false, .. }) => Some("write to"),
        _ => None,
    }
}

fn judge_retention(area: &str, duty: &Duty, settings: &Result<TopicConfig, String>) -> Vec<Item> {
    let subject = &format!("{} retention", duty.topic);
    let (route, topic, max_delay) = (duty.routes.join(", "), &duty.topic, duty.max_delay);
    let settings = match settings {
        Ok(settings) => settings,
        Err(words) => {
            let fix = format!(
                "look yourself that it is longer than {}, or grant DESCRIBE_CONFIGS on the topic",
                length(max_delay)
            );
            return vec![Item::warn(
                area,
                subject,
                format!("not known: {words}"),
                fix,
            )];
        }
    };
    let mut items = Vec::new();
    if settings.is_compacted {
        let found = "cleanup.policy has compact: of two messages with one key, only the later could be read again after a loss of the store";
        items.push(Item::warn(
            area,
            subject,
            found,
            format!("set cleanup.policy=delete on {topic}"),
        ));
    }
    match settings.retention.filter(|_| settings.has_retention) {
        Some(kept) if kept < max_delay => {
            let found = format!(
                "kept for {}, less than route.{route}.max_delay {}: after a loss of the store, what waits for longer than that cannot be read \
                 again and is lost",
                length(kept),
                length(max_delay)
            );
            let fix = format!(
                "set retention.ms={} or more on {topic}, or lower max_delay",
                (max_delay + DAY).as_millis()
            );
            items.push(Item::warn(area, subject, found, fix));
        }
        kept => {
            let kept = kept.map_or_else(
                || "for ever".to_owned(),
                |kept| format!("for {}", length(kept)),
            );
            items.push(Item::ok(
                area,
                subject,
                format!("kept {kept}; the longest delay is {}", length(max_delay)),
            ));
        }
    }
    if let Some(bytes) = settings.retention_bytes.filter(|_| settings.has_retention) {
        let found = format!(
            "retention.bytes keeps {} a partition, however old: what waits and lies beyond it cannot be read again after a loss of the store",
            size(bytes)
        );
        items.push(Item::warn(
            area,
            subject,
            found,
            format!("set retention.bytes=-1 on {topic}, and let retention.ms bound it"),
        ));
    }
    items
}

const DAY: Duration = Duration::from_secs(24 * 3600);

fn judge_offsets(area: &str, retention: &Result<Duration, String>) -> Item {
    let subject = "offsets.retention.minutes";
    match retention {
        Ok(kept) if *kept < OFFSETS_RETENTION_LEAST => Item::warn(
            area,
            subject,
            format!(
                "{}: what an idle group committed is refreshed daily, and may be forgotten before",
                length(*kept)
            ),
            format!(
                "set it to {} or more on the brokers",
                OFFSETS_RETENTION_LEAST.as_secs() / 60
            ),
        ),
        Ok(kept) => Item::ok(area, subject, length(*kept)),
        Err(words) => Item::ok(
            area,
            subject,
            format!(
                "not shown to this client ({words}); {} is enough",
                length(OFFSETS_RETENTION_LEAST)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict::{Fail, Ok as Fine, Warn};
    use super::*;

    const SETTINGS: TopicConfig = TopicConfig {
        is_compacted: false,
        has_retention: true,
        retention: None,
        retention_bytes: None,
    };

    fn topic(settings: Result<TopicConfig, String>) -> TopicInfo {
        TopicInfo {
            partitions: 4,
            permissions: Some(TopicPermissions {
                read: true,
                write: true,
            }),
            config: settings,
        }
    }

    fn duty(role: Role) -> Duty {
        Duty {
            topic: "t".into(),
            role,
            routes: vec!["orders".into()],
            max_delay: 30 * DAY,
        }
    }

    #[test]
    fn a_source_is_judged_by_how_long_it_keeps_what_waits() {
        let of = |settings: TopicConfig| {
            judge_topic("kafka.main", &duty(Role::Source), &topic(Ok(settings)))
        };
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
        let unknown = judge_topic(
            "kafka.main",
            &duty(Role::Source),
            &topic(Err("denied".into())),
        );
        assert_eq!(
            (unknown[1].verdict, &*unknown[1].found),
            (Warn, "not known: denied")
        );
    }

    #[test]
    fn a_topic_needs_the_rights_that_its_duty_asks_for() {
        let verdict = |role, read, write| {
            let topic = TopicInfo {
                permissions: Some(TopicPermissions { read, write }),
                ..topic(Ok(SETTINGS))
            };
            judge_topic("kafka.main", &duty(role), &topic)[0].verdict
        };
        for (role, read, write, expected) in [
            (Role::Source, true, true, Fine),
            (Role::Source, false, true, Fail),
            (Role::Source, true, false, Fail),
            (Role::Target, false, true, Fine),
            (Role::Target, true, false, Fail),
            (Role::DeadLetters, false, true, Fine),
            (Role::DeadLetters, false, false, Fail),
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
            judge_topic("kafka.main", &duty(Role::Target), &silent)[0].verdict,
            Fine
        );
    }

    #[test]
    fn missing_topics_and_unreachable_clusters_fail_with_a_fix() {
        let mut facts = ClusterInfo {
            broker_count: 3,
            offsets_retention: Some(Ok(DAY)),
            ..ClusterInfo::default()
        };
        let duties = [
            duty(Role::Target),
            Duty {
                topic: "u".into(),
                ..duty(Role::DeadLetters)
            },
        ];
        facts.topics.insert("t".into(), Ok(None));
        facts.topics.insert("u".into(), Err("denied".into()));
        let items = judge("main", &["a:1".into()], &duties, &Ok(facts));
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
            let items = judge("main", &["a:1".into()], &duties, &Err(error));
            assert_eq!((items.len(), items[0].verdict), (1, Fail));
            assert!(items[0].fix.as_ref().unwrap().starts_with(fix), "{items:?}");
        }
    }
}
