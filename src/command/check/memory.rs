//! Compares the memory budget with the limit of the container. Pure, except for reading the limit.

use crate::broker::inspection::Finding;
use crate::config::{Config, Store};
use crate::limit::{MEMORY_BESIDE_BUDGET_BYTES, MEMORY_BESIDE_EMBEDDED_BYTES};

/// Files with the limit of this process's control group: version 2, then version 1.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// Findings that need an action, as seen from where the command runs.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let limits = LIMITS
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok());
    let limit = limits.filter_map(|text| text.trim().parse().ok()).min();
    let former = config.has_former_memory().then(|| {
        let memory = config.memory_budget() >> 20;
        let fix = format!("replace it by memory = \"{memory}MiB\", which means the same");
        let found = "timer.memory is deprecated";
        Finding::warn("memory option", found, fix)
    });
    let store = match config.store.kind {
        Store::Redis(_) => 0,
        Store::Embedded(_) => MEMORY_BESIDE_EMBEDDED_BYTES,
    };
    let small = small_limit(config.memory_budget() + store, limit);
    former.into_iter().chain(small).collect()
}

fn small_limit(budget: u64, limit: Option<u64>) -> Option<Finding> {
    let needed = budget + MEMORY_BESIDE_BUDGET_BYTES;
    let limit = limit.filter(|limit| *limit < needed)?;
    let found = format!(
        "the process may take {} MiB, and its container {} MiB",
        needed >> 20,
        limit >> 20
    );
    let fix = "lower `memory`, or raise the limit of the container";
    Some(Finding::warn("memory limit", found, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::Verdict;

    #[test]
    fn a_container_without_room_for_the_budget_and_the_rest_is_found() {
        const MIB: u64 = 1 << 20;
        assert_eq!(small_limit(512 * MIB, None), None);
        assert_eq!(small_limit(512 * MIB, Some(576 * MIB)), None);
        let found = small_limit(512 * MIB, Some(575 * MIB)).expect("1 MiB is missing");
        assert_eq!(found.verdict, Verdict::Warn);
        let expected = "the process may take 576 MiB, and its container 575 MiB";
        assert_eq!(found.found, expected);
    }
}
