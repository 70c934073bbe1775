//! The rights of the service on a Kafka cluster. `deploy/kafka/acls.sh` grants the same rights. A test
//! of `command/plan/rights.rs` compares the two.

use crate::broker::cluster::RouteUse;

/// Commands that grant the rights, each once.
pub(super) fn lines(brokers: &str, routes: &[RouteUse<'_>]) -> Vec<String> {
    let mut lines = Vec::new();
    for rights in routes.iter().flat_map(rights) {
        let line = format!(
            "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:postdate {rights}"
        );
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// The operations and resources of a route.
fn rights(route: &RouteUse<'_>) -> Vec<String> {
    let (group, is_source) = (&route.group, !route.sources.is_empty());
    let mut rights = Vec::new();
    for topic in route.sources {
        for operation in ["Read", "Write", "DescribeConfigs"] {
            rights.push(format!("--operation {operation} --topic {topic}"));
        }
    }
    if is_source {
        rights.push(format!("--operation Read --group {group}"));
    }
    let targets = route.targets.iter();
    rights.extend(targets.map(|pattern| match pattern.split_once('*') {
        None => format!("--operation Write --topic {pattern}"),
        Some(("", _)) => "--operation Write --topic '*'".to_owned(),
        // An ACL has no wildcard in the middle, so this may allow more topics than the route does.
        Some((start, _)) => {
            format!("--operation Write --topic {start} --resource-pattern-type prefixed")
        }
    }));
    if let Some(dead_letter) = route.dead_letter {
        rights.push(format!("--operation Read --topic {dead_letter}"));
        rights.push(format!(
            "--operation Read --group {group}.redrive --resource-pattern-type prefixed"
        ));
    }
    if is_source && route.dead_letter.is_some() {
        rights.push(format!(
            "--operation Write --transactional-id {group}. --resource-pattern-type prefixed"
        ));
    }
    if is_source && route.is_exactly_once {
        rights.push(format!(
            "--operation Read --group {group}.delivered --resource-pattern-type prefixed"
        ));
    }
    rights
}
