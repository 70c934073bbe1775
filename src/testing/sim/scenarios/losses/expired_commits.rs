//! A service is down until its offset commits expire, and the store may be lost meanwhile. A store that
//! has its shards needs no commit. Without both, each record that the source retains is read again.

use super::{assert_kept, is_caught};
use crate::testing::fault_injection::InjectedFault;
use crate::testing::sim::faults::single::Faults;

#[test]
fn commits_that_expire_lose_nothing_also_together_with_the_store() {
    assert_kept(95_800, Faults::COMMITS_EXPIRE, |world| world);
}

#[test]
fn a_lost_shard_without_a_commit_that_skips_its_log_is_caught() {
    let faults = [InjectedFault::SkipLogWithoutCommit];
    assert!(is_caught(&faults, 95_800, Faults::COMMITS_EXPIRE));
}
