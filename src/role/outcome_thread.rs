//! Starts the thread that sends the outcome records of all routes.

use super::brokers::{Cluster, TargetOptions, TargetPurpose};
use super::memory::outcome_clusters;
use crate::broker::Target;
use crate::broker::send_budget::SendBudget;
use crate::config::Config;
use crate::health::Health;
use crate::limit::{MemoryPlan, OUTCOME_RECORD_BYTES};
use crate::outcomes::{OutcomeSender, OutcomeTopic, outcome_topics};
use crate::task::{StopToken, TaskGroup};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the outcome topics by route. The thread ends when all of them are dropped, or when `give_up` is cancelled.
/// `sender` is a number that no other process has.
pub(super) fn start(
    group: &mut TaskGroup,
    config: &Config,
    memory: MemoryPlan,
    give_up: StopToken,
    sender: u64,
) -> Result<BTreeMap<String, OutcomeTopic>> {
    let routes = config.routes.iter().filter_map(|(name, route)| {
        let topic = route.outcomes.clone()?;
        Some((name.clone(), route.target_cluster().to_owned(), topic))
    });
    let routes: Vec<_> = routes.collect();
    if routes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let records_max = memory.outcomes / OUTCOME_RECORD_BYTES;
    let (topics, routes, records) = outcome_topics(&config.deployment, routes, records_max);
    let clusters = outcome_clusters(config).into_iter();
    let clusters: Vec<_> = clusters
        .map(|name| (name.to_owned(), Cluster::of(config, name)))
        .collect();
    group.spawn_thread("outcomes", move |_stop| async move {
        let mut targets: BTreeMap<String, Box<dyn Target>> = BTreeMap::new();
        for (name, cluster) in clusters {
            let options = TargetOptions {
                purpose: TargetPurpose::Bulk,
                budget: Arc::new(SendBudget::new(records_max, memory.outcomes)),
                sender: format!("{sender:016x}/outcomes client"),
            };
            // The process is ready without this client, because no message waits for its records.
            let target = cluster.target(options, Health::new().register("outcomes"));
            targets.insert(name, target.with_context(|| cluster.qualified_name())?);
        }
        let sender = OutcomeSender::new(targets, routes, records_max);
        sender.serve(records, give_up).await;
        anyhow::Ok(())
    })?;
    Ok(topics)
}
