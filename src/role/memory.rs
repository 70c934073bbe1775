//! Divides the configured memory among the parts of this process.

use crate::config::{self, Config, Delivery, Role, Store};
use crate::limit::{MemoryPlan, MemoryUsers};
use std::collections::BTreeSet;

pub(crate) fn memory_plan(config: &Config) -> MemoryPlan {
    let has = |role| config.roles.contains(&role);
    // The timer reads definitions with a source of its own.
    let recurring = config.routes.values().filter(|route| route.recurring);
    let sources = [
        (Role::Ingress, config.routes.len()),
        (Role::Timer, recurring.count()),
    ];
    let sources = sources.into_iter().filter(|(role, _)| has(*role));
    let users = MemoryUsers {
        sources: sources.map(|(_, count)| count).sum(),
        has_timer: has(Role::Timer),
        producers: producers(config),
        outcome_clients: outcome_clusters(config).len(),
        has_embedded_store: matches!(config.store.kind, Store::Embedded(_)),
    };
    MemoryPlan::new(config.memory_budget(), users)
}

/// A fast and a bulk producer for each cluster of an at-least-once route, and one set of
/// transactional producers for each cluster of an exactly-once route.
fn producers(config: &Config) -> usize {
    let (mut plain, mut transactional) = (BTreeSet::new(), BTreeSet::new());
    for route in config.routes.values() {
        let source = route.source.cluster.as_str();
        if route.delivery == Delivery::ExactlyOnce {
            transactional.insert(source);
        } else {
            plain.extend([source, route.target_cluster(), &route.dead_letter.cluster]);
        }
    }
    2 * plain.len() + transactional.len()
}

/// The clusters with outcome records.
pub(super) fn outcome_clusters(config: &Config) -> BTreeSet<&str> {
    let routes = config.routes.values();
    let with_outcomes = routes.filter(|route| route.outcomes.is_some());
    with_outcomes.map(config::Route::target_cluster).collect()
}

/// Resident memory of this process. `None` on systems without `/proc`.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}
