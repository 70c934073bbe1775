//! Divides the configured memory among the parts of this process.

use crate::config::{Config, Delivery, Role, Store};
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
        has_embedded_store: matches!(config.store.kind, Store::Embedded(_)),
    };
    MemoryPlan::new(config.memory_budget(), users)
}

/// A fast and a bulk producer for each cluster of an at-least-once route, and one set of
/// transactional producers for each cluster of an exactly-once route. A cluster with outcome records
/// has one more.
fn producers(config: &Config) -> usize {
    let [mut plain, mut transactional, mut outcomes] = [const { BTreeSet::new() }; 3];
    for route in config.routes.values() {
        let source = route.source.cluster.as_str();
        if route.delivery == Delivery::ExactlyOnce {
            transactional.insert(source);
        } else {
            plain.extend([source, route.target_cluster(), &route.dead_letter.cluster]);
        }
        outcomes.extend(route.outcomes.as_ref().map(|_| route.target_cluster()));
    }
    2 * plain.len() + transactional.len() + outcomes.len()
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
