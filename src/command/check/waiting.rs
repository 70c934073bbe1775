//! Judges the pending messages: their routes must be configured and their runs readable.

use super::item::Item;
use crate::command::page::several;
use crate::store::query::PendingReport;

const AREA: &str = "waiting";

pub(super) fn judge(found: &Result<PendingReport, String>) -> Vec<Item> {
    let report = match found {
        Ok(report) => report,
        Err(error) => {
            let fix = "if a service has the store to itself, give the configuration that it runs with; then `postdate pending` tells more";
            return vec![Item::warn(
                AREA,
                "messages",
                format!("not known: {error}"),
                fix,
            )];
        }
    };
    let found = match report.total.messages {
        0 => "none wait".to_owned(),
        messages => format!(
            "{} in {} (at most)",
            several(messages, "message"),
            several(report.shards.len() as u64, "shard")
        ),
    };
    let mut items = vec![Item::ok(AREA, "messages", found)];
    items.extend(report.routes.iter().filter(|route| !route.configured).map(|route| {
        let waits = route.amount.messages + route.amount.quarantined;
        let found = format!("{} under it, which the configuration no longer has: nobody delivers them", several(waits, "message"));
        let fix = format!(
            "add [route.{0}] again until nothing waits; to lose them, add it and run `postdate reset --route {0} --topic TOPIC --discard`",
            route.route
        );
        let is_empty = waits == 0;
        if is_empty {
            Item::ok(AREA, format!("route {}", route.route), "no longer in the configuration, and nothing waits under it")
        } else {
            Item::warn(AREA, format!("route {}", route.route), found, fix)
        }
    }));
    items.extend(removed_topics(report));
    if report.total.quarantined > 0 {
        let found = format!(
            "{} cannot be read, and will not be delivered",
            several(report.total.quarantined, "message")
        );
        items.push(Item::warn(
            AREA,
            "set aside",
            found,
            "see PostdateQuarantined in docs/runbook.md",
        ));
    }
    items
}

/// Warns of messages from source topics that a route no longer reads.
fn removed_topics(report: &PendingReport) -> Vec<Item> {
    let has_route = |name: &str| {
        report
            .routes
            .iter()
            .any(|route| route.configured && route.route == name)
    };
    let mut waits: Vec<(&str, &str, u64)> = Vec::new();
    for shard in report
        .shards
        .iter()
        .filter(|shard| !shard.configured && has_route(&shard.route))
    {
        let count = shard.amount.messages + shard.amount.quarantined;
        match waits
            .last_mut()
            .filter(|(route, topic, _)| *route == shard.route && *topic == shard.topic)
        {
            Some((_, _, sum)) => *sum += count,
            None => waits.push((&shard.route, &shard.topic, count)),
        }
    }
    let item = |(route, topic, count): (&str, &str, u64)| {
        let found = format!(
            "{} of a topic that route {route} no longer reads: nobody delivers them",
            several(count, "message")
        );
        Item::warn(
            AREA,
            format!("topic {topic}"),
            found,
            format!("add it to route.{route}.source.topics again until nothing waits"),
        )
    };
    waits
        .into_iter()
        .filter(|(_, _, count)| *count > 0)
        .map(item)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict::{Ok as Fine, Warn};
    use super::*;
    use crate::store::query::{Amount, PendingRoute, PendingShard};

    #[test]
    fn undeliverable_messages_cause_a_warning_and_empty_routes_do_not() {
        let amount = |messages| Amount {
            messages,
            ..Amount::default()
        };
        let route = |name: &str, configured, messages| PendingRoute {
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
        let items = judge(&Ok(report));
        let verdicts: Vec<_> = items
            .iter()
            .map(|item| (&*item.subject, item.verdict))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("messages", Fine),
                ("route empty", Fine),
                ("route gone", Warn),
                ("topic old", Warn),
                ("set aside", Warn)
            ]
        );
        assert!(
            items[3]
                .found
                .starts_with("4 messages of a topic that route orders no longer reads"),
            "{}",
            items[3].found
        );
        assert_eq!(judge(&Err("no answer".into()))[0].verdict, Warn);
    }
}
