//! Faults of the shared parts of a world: store, clock, target, network and producers.

use super::{TARGET, World};
use crate::broker::{DeliveryFailure, FailureKind};
use crate::model::{DeadLetterReason, Partition};
use crate::testing::sim::clock::EPOCH;
use crate::testing::sim::process::LEASE;
use crate::testing::store::memory::StoreSnapshot;
use rand::RngExt;
use rand::rngs::StdRng;
use std::time::Duration;
use tokio::time::Instant;

/// The number of store snapshots that a rollback chooses from.
const SNAPSHOTS_MAX: usize = 8;
/// A delivery is in a commit after this time, in milliseconds.
const COMMITTED_AFTER: i64 = 2_000;

impl World {
    /// Keeps a snapshot of the store for a later rollback.
    pub(crate) fn take_snapshot(&self) {
        self.check_ledgers();
        let mut snapshots = self.0.snapshots.borrow_mut();
        snapshots.push_back((self.elapsed(), self.0.store.snapshot()));
        if snapshots.len() > SNAPSHOTS_MAX {
            snapshots.pop_front();
        }
    }

    /// The whole store goes back to a snapshot.
    pub(crate) fn roll_back(&self, random: &mut StdRng) {
        self.go_back(random, |snapshot| self.0.store.roll_back_to(snapshot));
    }

    /// One shard goes back to a snapshot, and the others and the sessions stay.
    pub(crate) fn roll_back_shard(&self, random: &mut StdRng) {
        let shards = self.0.store.watermarks();
        if shards.is_empty() {
            return;
        }
        let (shard, _) = &shards[random.random_range(0..shards.len())];
        self.note(format!("only shard {shard} goes back:"));
        self.go_back(random, |snapshot| {
            self.0.store.roll_back_shard(shard, snapshot);
        });
    }

    fn go_back(&self, random: &mut StdRng, roll_back_to: impl FnOnce(&StoreSnapshot)) {
        let mut snapshots = self.0.snapshots.borrow_mut();
        if snapshots.is_empty() {
            return;
        }
        let to = random.random_range(0..snapshots.len());
        self.note(format!(
            "the store rolls back by {} snapshots",
            snapshots.len() - to
        ));
        self.note_stored();
        self.forget_recent_cancels();
        let (since, snapshot) = &snapshots[to];
        // No commit may be newer than the snapshot, and another worker may take the shards.
        if self.elapsed() - since < COMMITTED_AFTER {
            self.note_unknown_deliveries(*since);
        }
        roll_back_to(snapshot);
        snapshots.truncate(to + 1);
        self.mark_store_lost();
    }

    /// Since this time there are two stores, and each has writes that the other lacks. Both deliver.
    pub(crate) fn note_second_store(&self, since: i64) {
        self.note_stored();
        self.forget_recent_cancels();
        self.note_unknown_deliveries(since - COMMITTED_AFTER);
        self.mark_store_lost();
    }

    pub(crate) fn wipe(&self) {
        self.note("the store loses everything");
        self.note_stored();
        self.0.store.wipe();
        self.0.snapshots.borrow_mut().clear();
        self.mark_store_lost();
    }

    /// The store writes to its disk.
    pub(crate) fn sync_store(&self) {
        self.0.store.sync();
        self.0.synced_at.set(self.elapsed());
    }

    /// The servers of the store lose their power, and start again. Each one has lost its last writes.
    pub(crate) async fn lose_power(&self, random: &mut StdRng) {
        self.store_down(true);
        tokio::time::sleep(Duration::from_millis(random.random_range(10..2_000))).await;
        self.note_stored();
        self.forget_recent_cancels();
        self.note_unknown_deliveries(self.0.synced_at.get());
        let lost = (self.0.store).lose_power(|writes| random.random_range(0..=writes));
        self.note(format!("the store has lost its last {lost} writes"));
        self.sync_store();
        self.mark_store_lost();
        self.store_down(false);
    }

    /// Deliveries since then may be repeated without being counted.
    pub(super) fn note_unknown_deliveries(&self, since: i64) {
        let deliveries = self.0.deliveries.borrow();
        let unknown = deliveries.iter().filter(|delivery| delivery.at >= since);
        let unknown = self.0.unknown_deliveries.get() + unknown.count();
        self.0.unknown_deliveries.set(unknown);
    }

    pub(crate) fn note_clocks_differ(&self) {
        self.0.clocks_differ.set(true);
    }

    fn mark_store_lost(&self) {
        self.0.store_lost.set(true);
        // A message that was due by one clock may be due later by another.
        if self.0.clocks_differ.get() {
            self.note_unknown_deliveries(self.elapsed() - 2 * COMMITTED_AFTER);
        }
        self.allow_duplicates();
    }

    /// A fault happened after which duplicates are allowed.
    pub(crate) fn allow_duplicates(&self) {
        self.0.duplicates_allowed.set(true);
    }

    /// Takes the leaders of these source partitions away, and gives all others theirs back.
    pub(crate) fn set_leaderless(&self, partitions: &[Partition]) {
        self.0.cluster.set_leaderless(partitions);
    }

    pub(crate) fn step_clock(&self, by: i64) {
        let off = (self.0.clock.offset() + by).clamp(-3_000, 3_000);
        if by < 0 {
            self.note_clocks_differ();
        }
        self.note(format!("the clock of the workers is {off} ms off"));
        self.0.clock.set_offset(off);
    }

    /// Sets the clocks of the workers and of the store, as if they ran on one machine.
    pub(crate) fn set_all_clocks(&self, off: i64) {
        self.note(format!(
            "the clocks of the workers and the store are {off} ms off"
        ));
        self.0.clock.set_offset(off);
        self.0.store_clock.set_offset(off);
    }

    /// The clocks of the workers and of the store jump forward, and back after some seconds.
    pub(crate) async fn jump_clocks(&self, random: &mut StdRng) {
        self.set_all_clocks(random.random_range(1_500..30_000));
        tokio::time::sleep(Duration::from_millis(random.random_range(10..5_000))).await;
        self.set_all_clocks(0);
    }

    pub(crate) fn store_down(&self, down: bool) {
        self.note(if down {
            "the store does not answer"
        } else {
            "the store answers"
        });
        self.0.store.set_down(down);
        let now = Instant::now();
        let outage = match self.0.store_outage.get() {
            Some((start, None)) if !down => (start, Some(now)),
            _ => (now, (!down).then_some(now)),
        };
        self.0.store_outage.set(Some(outage));
    }

    /// A process ends a session of another one. After the store was away for the length of a
    /// session, each session gets its whole length again.
    pub(crate) fn check_end_of_session(&self, process: usize) {
        if let Some((start, Some(end))) = self.0.store_outage.get()
            && end - start > LEASE
            && end.elapsed() < LEASE
        {
            self.report_violation(format!(
                "process {process} ends a session too early after an outage of the store"
            ));
        }
    }

    pub(crate) fn store_full(&self, full: bool) {
        self.note(if full {
            "the store is full"
        } else {
            "the store has room"
        });
        self.0.store.set_full(full);
    }

    pub(crate) fn target_missing(&self, missing: bool) {
        self.note(if missing {
            "the target is missing"
        } else {
            "the target exists again"
        });
        let failure = DeliveryFailure {
            kind: FailureKind::NotDelivered,
            reason: DeadLetterReason::UnknownTarget,
            detail: "no such topic".into(),
        };
        self.0
            .cluster
            .refuse_records(TARGET, missing.then_some(failure));
    }

    pub(crate) fn hold_reports(&self, hold: bool) {
        self.note(if hold {
            "reports are held back"
        } else {
            "reports arrive again"
        });
        self.0.cluster.hold_reports(hold);
    }

    pub(crate) fn hold_sends(&self, hold: bool) {
        self.note(if hold {
            "the network holds sent records"
        } else {
            "the network releases sent records"
        });
        self.0.cluster.hold_sends(hold);
    }

    pub(crate) fn producers_failed(&self, failed: bool) {
        self.note(if failed {
            "the producers fail permanently"
        } else {
            "the producers are replaced"
        });
        self.0.cluster.fail_producers(failed);
        self.0.sends_failed.set(true);
        self.note_interruption();
    }

    /// Ends all ongoing faults.
    pub(crate) fn heal(&self) {
        self.note("all faults heal");
        self.set_all_clocks(0);
        self.0.store.set_down(false);
        self.0.store.set_full(false);
        self.0.cluster.refuse_records(TARGET, None);
        self.0.cluster.hold_reports(false);
        self.0.cluster.hold_sends(false);
        self.0.cluster.fail_producers(false);
        self.mark_healed();
    }

    /// When the last fault ended, by the clock of the brokers; `None`: it has not ended yet.
    pub(crate) fn healed_at(&self) -> Option<i64> {
        self.0.healed_at.get()
    }

    /// From now on no fault is injected.
    pub(crate) fn mark_healed(&self) {
        self.0.healed_at.set(Some(EPOCH + self.elapsed()));
    }
}
