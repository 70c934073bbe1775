//! Inspects the clusters that the configuration names, and makes the planned changes if asked to.

use super::no_answer;
use crate::broker::Error;
use crate::broker::inspection::{Change, Finding, Inspector, TopicRole, TopicSize, TopicUse};
use crate::cli::{CheckArgs, SizeArgs};
use crate::command::plan::{self, Step};
use crate::config::Config;
use crate::health::Health;
use crate::limit::CHECK_TIMEOUT;
use crate::model::Dialect;
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Wait before another look at a cluster that does not show its changes yet.
const CHANGE_DELAY: Duration = Duration::from_millis(500);
const CHANGE_LOOKS: u32 = 10;

/// The findings about one cluster, and the changes that repair them.
pub(super) struct ClusterReport {
    pub(super) area: String,
    pub(super) was_inspected: bool,
    pub(super) findings: Vec<Finding>,
    pub(super) steps: Vec<Step>,
}

pub(super) async fn inspect_all(config: &Config, check: &CheckArgs) -> Vec<ClusterReport> {
    let names = config.routes.values().flat_map(|route| {
        let dead_letter = &*route.dead_letter.cluster;
        [&*route.source.cluster, route.target_cluster(), dead_letter]
    });
    let names: BTreeSet<&str> = names.collect();
    join_all(names.into_iter().map(|name| inspect(config, name, check))).await
}

async fn inspect(config: &Config, name: &str, check: &CheckArgs) -> ClusterReport {
    let cluster = config.cluster(name);
    let area = cluster.qualified_name();
    let fail = |error: Error, remedy| Finding::fail("reachable", error.to_string(), remedy);
    let mut inspector = match cluster.admin(None, Health::new().register("check")) {
        Ok(inspector) => inspector,
        Err(error) => {
            let remedy = format!("check {area}.properties, and what this client may do");
            return ClusterReport {
                area,
                was_inspected: false,
                findings: vec![fail(error, remedy)],
                steps: Vec::new(),
            };
        }
    };
    let uses = topic_uses(config, name, &check.size);
    let mut steps = Vec::new();
    let mut found = look(&mut *inspector, &uses).await;
    if let Ok(findings) = &found {
        let changes = changes(findings);
        for change in &changes {
            steps.push(step(&mut *inspector, &area, change, check.apply).await);
        }
        if check.apply && !changes.is_empty() {
            found = look_again(&mut *inspector, &uses, &steps).await;
        }
    }
    inspector.close().await;
    let was_inspected = found.is_ok();
    let findings = found.unwrap_or_else(|error| {
        let remedy = inspector.remedy(&error);
        vec![fail(error, remedy)]
    });
    ClusterReport {
        area,
        was_inspected,
        findings,
        steps,
    }
}

async fn look(inspector: &mut dyn Inspector, uses: &[TopicUse]) -> Result<Vec<Finding>, Error> {
    answered(inspector.inspect(uses)).await
}

/// Inspects the cluster until it shows all changes, because brokers learn of them one by one.
async fn look_again(
    inspector: &mut dyn Inspector,
    uses: &[TopicUse],
    steps: &[Step],
) -> Result<Vec<Finding>, Error> {
    let failed = steps.iter().filter(|step| step.error.is_some()).count();
    let mut found = look(inspector, uses).await;
    for _ in 0..CHANGE_LOOKS {
        if found
            .as_ref()
            .is_ok_and(|found| changes(found).len() <= failed)
        {
            break;
        }
        sleep(CHANGE_DELAY).await;
        found = look(inspector, uses).await;
    }
    found
}

fn changes(findings: &[Finding]) -> Vec<Change> {
    plan::merged(findings.iter().filter_map(|finding| finding.change.clone()))
}

async fn step(inspector: &mut dyn Inspector, area: &str, change: &Change, apply: bool) -> Step {
    let error = if apply {
        answered(inspector.apply(change)).await.err()
    } else {
        None
    };
    Step {
        area: area.to_owned(),
        change: plan::describe(change),
        command: inspector.command(change),
        applied: apply && error.is_none(),
        error: error.map(|error| error.to_string()),
    }
}

async fn answered<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = timeout(CHECK_TIMEOUT, call).await;
    answer.unwrap_or_else(|_| Err(Error::Unavailable(no_answer())))
}

/// The topics of a cluster that the configuration names.
fn topic_uses(config: &Config, cluster: &str, size: &SizeArgs) -> Vec<TopicUse> {
    let mut uses: BTreeMap<(TopicRole, &str), TopicUse> = BTreeMap::new();
    for (name, route) in &config.routes {
        let sources = route.source.topics.iter();
        let sources = sources.map(|topic| (TopicRole::Source, &route.source.cluster, topic));
        let target = route
            .target
            .iter()
            .map(|target| (TopicRole::Target, target));
        let targets = target.chain([(TopicRole::DeadLetters, &route.dead_letter)]);
        let targets = targets.map(|(role, target)| (role, &target.cluster, &target.name));
        for (role, _, topic) in sources.chain(targets).filter(|(_, of, _)| *of == cluster) {
            let used = uses
                .entry((role, topic.as_str()))
                .or_insert_with(|| TopicUse {
                    topic: topic.clone(),
                    role,
                    routes: Vec::new(),
                    max_delay: Duration::ZERO,
                    reads_schedules: false,
                    is_recurring: false,
                    size: TopicSize {
                        partitions: size.partitions,
                        replicas: size.replicas,
                    },
                });
            used.routes.push(name.clone());
            used.max_delay = used.max_delay.max(route.max_delay);
            used.reads_schedules |= route.dialects.has(Dialect::Nats);
            used.is_recurring |= route.recurring;
        }
    }
    uses.into_values().collect()
}
