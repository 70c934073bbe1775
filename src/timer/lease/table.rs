//! The table of all shards and of this worker's leases. It decides which shards to acquire and
//! which to hand over; the lease keeper acts on it.

use super::acquire_schedule::AcquireSchedule;
use super::events::LeaseClock;
use super::membership::Membership;
use crate::limit::{
    HANDOVER_RETRY_DELAY, HANDOVERS_MAX, MEMBERSHIP_INTERVAL, PARTITION_DISCOVERY_INTERVAL,
    SHUTDOWN_ANNOUNCE_MARGIN,
};
use crate::metric;
use crate::model::{Lease, LeaseToken, Progress, ShardId, SourceIdentity, WorkerId};
use crate::store::{Acquire, LiveWorker};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct HeldLease {
    pub(super) lease: Lease,
    pub(super) clock: LeaseClock,
    pub(super) handover_since: Option<Instant>,
    handover_not_before: Option<Instant>,
    /// The shard is assigned to a live worker that did not acquire it. This worker keeps it until
    /// the shards are assigned again.
    is_adopted: bool,
    /// Resets its gauge when it is dropped.
    _metric: metric::LeaseHeld,
}

/// All shards, the leases that this worker holds, and the workers that share the shards.
pub(super) struct LeaseTable {
    /// Sorted.
    pub(super) shards: Vec<ShardId>,
    /// The source of each shard, as its broker described it last.
    pub(super) identities: BTreeMap<ShardId, SourceIdentity>,
    pub(super) held: BTreeMap<ShardId, HeldLease>,
    /// The last delivered pair of each shard that this process owned. After a rollback it may be
    /// ahead of the store's pair. It is valid only for one incarnation of the source.
    pub(super) last_delivered: BTreeMap<ShardId, (SourceIdentity, Progress)>,
    /// Shards whose lease was lost and whose work has not stopped yet.
    pub(super) stopping: BTreeSet<ShardId>,
    pub(super) membership: Membership,
    pub(super) acquire_schedule: AcquireSchedule,
    /// The time at which all live workers have certainly seen the current membership. A worker that
    /// has not seen it would not acquire a shard that is handed to it.
    membership_settled_at: Instant,
    /// Set during a shutdown: from this time on, all shards are handed over.
    pub(super) departs_at: Option<Instant>,
}

impl LeaseTable {
    pub(super) fn new(me: WorkerId, now: Instant) -> Self {
        Self {
            shards: Vec::new(),
            identities: BTreeMap::new(),
            held: BTreeMap::new(),
            last_delivered: BTreeMap::new(),
            stopping: BTreeSet::new(),
            membership: Membership::new(me),
            acquire_schedule: AcquireSchedule::new(now),
            membership_settled_at: now,
            departs_at: None,
        }
    }

    /// Adds the shards that exist now. Returns whether any of them is new. `is_complete`: every
    /// source has answered.
    pub(super) fn add_shards(
        &mut self,
        shards: Vec<(ShardId, SourceIdentity)>,
        is_complete: bool,
        now: Instant,
    ) -> bool {
        if is_complete {
            self.membership.add_clusters(&shards);
        }
        let before = self.shards.len();
        for (shard, identity) in shards {
            self.identities.insert(shard.clone(), identity);
            if let Err(at) = self.shards.binary_search(&shard) {
                self.shards.insert(at, shard);
            }
        }
        let has_new = self.shards.len() > before;
        if has_new {
            self.reassign(now);
            self.membership_settled_at = now + PARTITION_DISCOVERY_INTERVAL;
        }
        has_new
    }

    pub(super) fn request(&self, shard: ShardId, token: LeaseToken) -> Acquire {
        let identity = self.identities.get(&shard).cloned();
        Acquire {
            identity: identity.unwrap_or_else(|| SourceIdentity::new(None, None)),
            lease: Lease { shard, token },
        }
    }

    pub(super) fn shard_counts(&self) -> BTreeMap<Arc<str>, usize> {
        let routes = self.shards.chunk_by(|a, b| a.route == b.route);
        routes
            .map(|shards| (shards[0].route.clone(), shards.len()))
            .collect()
    }

    /// Records which workers are alive. Returns whether that changed.
    pub(super) fn update_workers(&mut self, workers: &[LiveWorker], now: Instant) -> bool {
        let has_changed = self.membership.update(workers);
        if has_changed {
            self.reassign(now);
            let settled_at = now + MEMBERSHIP_INTERVAL + SHUTDOWN_ANNOUNCE_MARGIN;
            self.membership_settled_at = self.membership_settled_at.max(settled_at);
        }
        has_changed
    }

    fn reassign(&mut self, now: Instant) {
        self.membership.reassign(&self.shards);
        self.acquire_schedule.on_reassigned(now);
        for held in self.held.values_mut() {
            held.is_adopted = false;
        }
    }

    /// The shards to try to acquire now. `slow` is the usual interval between two tries.
    pub(super) fn next_to_acquire(&mut self, now: Instant, slow: Duration) -> Vec<ShardId> {
        if self.departs_at.is_some() {
            return Vec::new();
        }
        let (own, others) = self.not_held();
        self.acquire_schedule.next_batch(now, slow, &own, &others)
    }

    /// The shards that this worker does not hold: those assigned to it, and those of other workers.
    fn not_held(&self) -> (Vec<ShardId>, Vec<ShardId>) {
        self.shards
            .iter()
            .filter(|shard| !self.held.contains_key(*shard) && !self.stopping.contains(*shard))
            .cloned()
            .partition(|shard| self.membership.is_mine(shard) || fault!(AcquireUnassignedShards))
    }

    pub(super) fn insert_held(&mut self, lease: Lease, clock: LeaseClock) {
        let shard = lease.shard.clone();
        let held = HeldLease {
            lease,
            clock,
            handover_since: None,
            handover_not_before: None,
            is_adopted: !self.membership.is_mine(&shard),
            _metric: metric::LeaseHeld::new(&shard),
        };
        self.held.insert(shard, held);
    }

    /// Starts the handovers that are due, and returns their shards. Limits how many run at once, so
    /// that the new owners can keep up.
    pub(super) fn next_handovers(&mut self, now: Instant) -> Vec<ShardId> {
        let is_departing = self.departs_at.is_some_and(|at| at <= now);
        let Self {
            held, membership, ..
        } = self;
        let is_settled = is_departing || self.membership_settled_at <= now;
        let running = held
            .values()
            .filter(|held| held.handover_since.is_some())
            .count();
        let mut to_hand_over: Vec<_> = held
            .iter_mut()
            .filter(|(shard, held)| match self.departs_at {
                Some(_) => is_departing,
                None => is_assigned_elsewhere(membership, shard, held),
            })
            .collect();
        let limit = HANDOVERS_MAX.max(to_hand_over.len() / 10);
        to_hand_over.retain(|(shard, held)| {
            (is_settled || membership.is_for_newcomer(shard))
                && held.handover_since.is_none()
                && held.handover_not_before.is_none_or(|at| at <= now)
        });
        let start = |(shard, held): (&ShardId, &mut HeldLease)| {
            held.handover_since = Some(now);
            shard.clone()
        };
        let next = to_hand_over.into_iter().take(limit.saturating_sub(running));
        next.map(start).collect()
    }

    /// Ends a handover whose messages were not acknowledged in time. It is tried again later.
    pub(super) fn postpone_handover(&mut self, shard: &ShardId, now: Instant) {
        if let Some(held) = self.held.get_mut(shard) {
            held.handover_since = None;
            held.handover_not_before = Some(now + HANDOVER_RETRY_DELAY);
        }
    }

    /// The next time at which there may be a shard to acquire or to hand over.
    pub(super) fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        let waiting = self
            .held
            .values()
            .filter(|held| held.handover_since.is_none());
        let postponed = waiting
            .filter_map(|held| held.handover_not_before)
            .filter(|at| *at > now)
            .min();
        if let Some(departs_at) = self.departs_at {
            let departure = Some(departs_at).filter(|at| *at > now);
            return departure.into_iter().chain(postponed).min();
        }
        let mut held = self.held.iter();
        let awaits_settling = self.membership_settled_at > now
            && held.any(|(shard, held)| is_assigned_elsewhere(&self.membership, shard, held));
        let (own, others) = self.not_held();
        let next_try = self
            .acquire_schedule
            .next_at(now, !own.is_empty(), !others.is_empty());
        let settled = awaits_settling.then_some(self.membership_settled_at);
        [next_try, postponed, settled].into_iter().flatten().min()
    }
}

fn is_assigned_elsewhere(membership: &Membership, shard: &ShardId, held: &HeldLease) -> bool {
    !held.is_adopted && !membership.is_mine(shard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;

    const SLOW: Duration = Duration::from_millis(250);

    fn workers(ids: &[u128]) -> Vec<LiveWorker> {
        ids.iter()
            .map(|id| LiveWorker {
                worker: WorkerId(*id),
                expires_in: Duration::from_secs(1),
            })
            .collect()
    }

    /// A worker that acquired all `shards` while it was the only worker.
    fn single_worker(shards: i32, now: Instant) -> LeaseTable {
        let mut table = LeaseTable::new(WorkerId(1), now);
        let shard = |index| {
            let shard = ShardId::new("r", Partition::new("in", index));
            (shard, SourceIdentity::new(None, None))
        };
        table.add_shards((0..shards).map(shard).collect(), true, now);
        assert_eq!(table.next_to_acquire(now, SLOW), [], "no heartbeat yet");
        assert!(table.update_workers(&workers(&[1]), now));
        acquire_all(&mut table, now);
        assert_eq!(table.held.len(), shards as usize);
        table
    }

    fn acquire_all(table: &mut LeaseTable, now: Instant) {
        for shard in table.next_to_acquire(now, SLOW) {
            let token = LeaseToken(7);
            table.insert_held(Lease { shard, token }, LeaseClock::for_test(now));
        }
    }

    #[test]
    fn a_second_worker_gets_half_of_the_shards_a_few_at_a_time() {
        let now = Instant::now();
        let mut table = single_worker(16, now);
        assert!(table.update_workers(&workers(&[1, 2]), now));
        let mut handed_over = BTreeSet::new();
        loop {
            let next = table.next_handovers(now);
            assert!(next.len() <= HANDOVERS_MAX);
            assert_eq!(table.next_handovers(now), [], "the limit is reached");
            if next.is_empty() {
                break;
            }
            for shard in next {
                table.held.remove(&shard);
                handed_over.insert(shard);
            }
        }
        assert_eq!((handed_over.len(), table.held.len()), (8, 8));
        assert_eq!(table.next_to_acquire(now, SLOW), [], "assigned elsewhere");
        assert!(table.update_workers(&workers(&[1]), now));
        let acquired: BTreeSet<_> = table.next_to_acquire(now, SLOW).into_iter().collect();
        assert_eq!(acquired, handed_over);
    }

    /// One of four workers, after worker `left` has left. It still holds its earlier shards.
    fn after_departure_of(left: u128, now: Instant) -> LeaseTable {
        let mut table = single_worker(32, now);
        table.update_workers(&workers(&[1, 2, 3, left]), now);
        let membership = &table.membership;
        table.held.retain(|shard, _| membership.is_mine(shard));
        table.update_workers(&workers(&[1, 2, 3]), now + PARTITION_DISCOVERY_INTERVAL);
        table
    }

    #[test]
    fn a_handover_waits_until_the_new_owner_has_seen_the_membership_change() {
        let now = Instant::now();
        let moved = |table: &LeaseTable| {
            table
                .held
                .keys()
                .filter(|shard| !table.membership.is_mine(shard))
                .count()
        };
        let mut table = (4..99)
            .map(|left| after_departure_of(left, now))
            .find(|table| moved(table) > 0)
            .expect("some departures move shards between the remaining workers");
        let changed_at = now + PARTITION_DISCOVERY_INTERVAL;
        assert_eq!(table.next_handovers(changed_at), []);
        assert!(table.next_wakeup(changed_at) <= Some(table.membership_settled_at));
        assert!(table.next_wakeup(changed_at).is_some());
        let settled_at = changed_at + MEMBERSHIP_INTERVAL + SHUTDOWN_ANNOUNCE_MARGIN;
        assert_eq!(
            table.next_handovers(settled_at).len(),
            moved(&table).min(HANDOVERS_MAX)
        );
    }

    #[test]
    fn a_postponed_handover_is_tried_again_later() {
        let now = Instant::now();
        let mut table = single_worker(2, now);
        table.update_workers(&workers(&[1, 2]), now);
        let next = table.next_handovers(now);
        table.postpone_handover(&next[0], now);
        assert_eq!(table.next_handovers(now), []);
        assert!(
            table
                .next_wakeup(now)
                .is_some_and(|at| at <= now + HANDOVER_RETRY_DELAY)
        );
        assert_eq!(table.next_handovers(now + HANDOVER_RETRY_DELAY), next);
    }

    #[test]
    fn an_adopted_shard_is_kept_until_the_membership_changes() {
        let now = Instant::now();
        let mut table = single_worker(2, now);
        table.update_workers(&workers(&[1, 2]), now);
        for shard in table.next_handovers(now) {
            table.held.remove(&shard);
        }
        let later = now + crate::limit::UNASSIGNED_ACQUIRE_INTERVAL;
        acquire_all(&mut table, later);
        assert_eq!(table.held.len(), 2);
        assert_eq!(table.next_handovers(later), []);
        table.update_workers(&workers(&[1, 2, 3]), later);
        let settled_at = later + MEMBERSHIP_INTERVAL + SHUTDOWN_ANNOUNCE_MARGIN;
        let moving = table.next_handovers(settled_at).len();
        assert_eq!(moving + table.membership.mine.len(), 2);
    }

    #[test]
    fn a_departing_worker_acquires_nothing_and_hands_everything_over_once_others_know() {
        let now = Instant::now();
        let mut table = single_worker(2, now);
        table.departs_at = Some(now + SLOW);
        table.held.remove(&table.shards[0]);
        assert_eq!(table.next_to_acquire(now, SLOW), []);
        assert_eq!(table.next_handovers(now), []);
        assert_eq!(table.next_wakeup(now), Some(now + SLOW));
        assert_eq!(table.next_handovers(now + SLOW), table.shards[1..]);
    }
}
