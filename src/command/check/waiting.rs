//! Judges the pending messages: their routes must be configured and within their quotas, and their
//! runs readable.

use crate::broker::inspection::Finding;
use crate::command::pending::shards_of_removed_topics;
use crate::config::Route;
use crate::limit::QUOTA_WARN_FROM;
use crate::model::readable::several;
use crate::store::query::{PendingReport, PendingRoute};
use std::collections::BTreeMap;

pub(super) fn judge(
    found: &Result<PendingReport, String>,
    routes: &BTreeMap<String, Route>,
) -> Vec<Finding> {
    let report = match found {
        Ok(report) => report,
        Err(error) => {
            let fix = "if a service owns the store, give the configuration that it runs with; `postdate pending` shows the details";
            return vec![Finding::warn(
                "messages",
                format!("not known: {error}"),
                fix,
            )];
        }
    };
    let shards = several(report.shards.len() as u64, "shard");
    let found = match report.total.messages {
        0 => "none wait".to_owned(),
        messages => format!("{} in {shards} (at most)", several(messages, "message")),
    };
    let mut findings = vec![Finding::ok("messages", found)];
    for route in report.routes.iter().filter(|route| !route.configured) {
        let waits = route.amount.messages + route.amount.quarantined;
        let name = &route.route;
        let subject = format!("route {name}");
        findings.push(if waits == 0 {
            Finding::ok(subject, "no longer in the configuration, and nothing waits under it")
        } else {
            let found = format!(
                "{} of a route that the configuration no longer has: they are not delivered",
                several(waits, "message")
            );
            let fix = format!(
                "add [route.{name}] again until nothing waits; to lose them, add it and run `postdate reset --route {name} --topic TOPIC --discard`"
            );
            Finding::warn(subject, found, fix)
        });
    }
    let quotas = report.routes.iter().filter_map(|waiting| {
        let route = routes.get(&waiting.route)?;
        quota(route, waiting)
    });
    findings.extend(quotas);
    findings.extend(report.routes.iter().filter_map(|it| paused(it, routes)));
    findings.extend(removed_topics(report));
    if report.total.quarantined > 0 {
        let messages = several(report.total.quarantined, "message");
        let found = format!("{messages} cannot be read, and will not be delivered");
        let fix = "see PostdateQuarantined in docs/runbook.md";
        findings.push(Finding::warn("quarantined", found, fix));
    }
    findings
}

/// Warns of a paused route. It reads on over its quota, because the record that resumes it is in the source.
fn paused(found: &PendingRoute, routes: &BTreeMap<String, Route>) -> Option<Finding> {
    let (name, shards) = (&found.route, several(found.shards, "shard"));
    let has_quota = routes.get(name)?.max_waiting.is_some();
    let quota = match has_quota {
        true => ", and max_waiting is not kept meanwhile",
        false => "",
    };
    let text = format!(
        "{} of {shards} paused: their messages wait{quota}",
        found.paused
    );
    let fix = format!("`postdate resume --route {name}` ends the pause");
    (found.paused > 0).then(|| Finding::warn(format!("route {name}"), text, fix))
}

/// Warns if the quota of a route is nearly used up.
fn quota(route: &Route, waiting: &PendingRoute) -> Option<Finding> {
    let max = route.max_waiting?;
    let part = |used: u64, max: Option<u64>| max.map_or(0.0, |max| used as f64 / max as f64);
    let messages = part(waiting.amount.messages, max.messages.map(u64::from));
    let used = messages.max(part(waiting.amount.bytes, max.bytes));
    let found = format!("{:.0} % of max_waiting is used", 100.0 * used);
    let name = &waiting.route;
    let fix = format!("raise route.{name}.max_waiting, or find out why so many messages wait");
    (used >= QUOTA_WARN_FROM).then(|| Finding::warn(format!("route {name}"), found, fix))
}

/// Warns of messages from source topics that a route no longer reads.
fn removed_topics(report: &PendingReport) -> Vec<Finding> {
    let mut topics: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for shard in shards_of_removed_topics(report) {
        let waits = shard.amount.messages + shard.amount.quarantined;
        *topics.entry((&shard.route, &shard.topic)).or_default() += waits;
    }
    let topics = topics.into_iter().filter(|(_, count)| *count > 0);
    let finding = |((route, topic), count): ((&str, &str), u64)| {
        let messages = several(count, "message");
        let found = format!(
            "{messages} of a topic that route {route} no longer reads: they are not delivered"
        );
        let fix = format!("add it to route.{route}.source.topics again until nothing waits");
        Finding::warn(format!("topic {topic}"), found, fix)
    };
    topics.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::Verdict::{Ok as Fine, Warn};
    use crate::config::Config;
    use crate::store::query::{Amount, PendingShard};

    #[test]
    fn undeliverable_messages_cause_a_warning_and_empty_routes_do_not() {
        let amount = |messages| Amount {
            messages,
            ..Amount::default()
        };
        let route = |name: &str, configured, messages| PendingRoute {
            first_hour_ms: None,
            last_hour_ms: None,
            paused: u64::from(name == "orders"),
            route: name.into(),
            configured,
            shards: 1,
            amount: amount(messages),
        };
        let shard = |route: &str, topic: &str, partition, configured| PendingShard {
            route: route.into(),
            topic: topic.into(),
            partition,
            configured,
            amount: amount(2),
            first_hour_ms: None,
        };
        let report = PendingReport {
            total: Amount {
                messages: 9,
                bytes: 0,
                quarantined: 1,
            },
            routes: vec![
                route("empty", false, 0),
                route("gone", false, 2),
                route("orders", true, 6),
            ],
            shards: vec![
                shard("gone", "g", 0, false),
                shard("orders", "d", 0, true),
                shard("orders", "old", 0, false),
                shard("orders", "old", 1, false),
            ],
            ..PendingReport::default()
        };
        let text = include_str!("../../../config/kafka.toml");
        let text = text.replace("\ntarget =", "\nmax_waiting = { messages = 7 }\ntarget =");
        let routes = Config::parse_builtin(&text).unwrap().routes;
        let findings = judge(&Ok(report), &routes);
        let verdicts: Vec<_> = findings
            .iter()
            .map(|finding| (&*finding.subject, finding.verdict))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("messages", Fine),
                ("route empty", Fine),
                ("route gone", Warn),
                ("route orders", Warn),
                ("route orders", Warn),
                ("topic old", Warn),
                ("quarantined", Warn)
            ]
        );
        let removed = &findings[5].found;
        let expected = "4 messages of a topic that route orders no longer reads";
        assert!(removed.starts_with(expected), "{removed}");
        assert_eq!(findings[3].found, "86 % of max_waiting is used");
        assert_eq!(
            findings[4].found,
            "1 of 1 shard paused: their messages wait, and max_waiting is not kept meanwhile"
        );
        assert_eq!(judge(&Err("no answer".into()), &routes)[0].verdict, Warn);
    }
}
