//! The table of all shards and of this worker's leases. It decides which shards to acquire and
//! which to hand over; the lease keeper acts on it.

use super::acquire_schedule::AcquireSchedule;
use super::committed::LastKnown;
use super::events::LeaseEvent;
use crate::limit::{HANDOVER_RETRY_DELAY, HANDOVERS_MAX};
use crate::membership::WorkView;
use crate::metric;
use crate::model::{Lease, LeaseToken, SessionId, ShardId, SourceIdentity};
use crate::store::Acquire;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct HeldLease {
    pub(super) lease: Lease,
    pub(super) handover_since: Option<Instant>,
    handover_not_before: Option<Instant>,
    /// The shard is assigned to a live worker that did not acquire it. This worker keeps it until
    /// the shards are assigned again.
    is_adopted: bool,
    /// Resets its gauge when it is dropped.
    _metric: metric::LeaseHeld,
}

/// The shards of the deployment, and the leases that this worker holds.
pub(super) struct LeaseTable {
    pub(super) view: Arc<WorkView>,
    pub(super) held: BTreeMap<ShardId, HeldLease>,
    /// The shards that this process owned.
    pub(super) last_known: BTreeMap<ShardId, LastKnown>,
    /// Shards whose lease was lost and whose work has not stopped yet.
    pub(super) stopping: BTreeSet<ShardId>,
    pub(super) acquire_schedule: AcquireSchedule,
    /// Number of the last attempt to acquire a shard.
    tenure: u64,
    /// Set during a shutdown: from this time on, all shards are handed over.
    pub(super) departs_at: Option<Instant>,
}

impl LeaseTable {
    pub(super) fn new(view: Arc<WorkView>, now: Instant) -> Self {
        Self {
            view,
            held: BTreeMap::new(),
            last_known: BTreeMap::new(),
            stopping: BTreeSet::new(),
            acquire_schedule: AcquireSchedule::new(now),
            tenure: 0,
            departs_at: None,
        }
    }

    /// Follows a change of the assignment.
    pub(super) fn update_view(&mut self, view: Arc<WorkView>, now: Instant) {
        let is_reassigned = view.settled_at != self.view.settled_at || view.mine != self.view.mine;
        self.view = view;
        if is_reassigned {
            self.acquire_schedule.on_reassigned(now);
            for held in self.held.values_mut() {
                held.is_adopted = false;
            }
        }
    }

    pub(super) fn is_mine(&self, shard: &ShardId) -> bool {
        self.view.mine.contains(shard)
    }

    /// One request for each shard, with a token that no other request has.
    pub(super) fn requests(&mut self, session: SessionId, shards: Vec<ShardId>) -> Vec<Acquire> {
        let request = |shard| {
            self.tenure += u64::from(!fault!(ReuseLeaseTokens));
            let tenure = self.tenure;
            let identity = self.view.identities.get(&shard).cloned();
            Acquire {
                identity: identity.unwrap_or_else(|| SourceIdentity::new(None, None)),
                lease: Lease {
                    shard,
                    token: LeaseToken { session, tenure },
                },
                ended_holder: None,
            }
        };
        shards.into_iter().map(request).collect()
    }

    /// Tells how many shards each route has. Before that, a route with a rate delivers nothing.
    pub(super) fn count_shards(&self) -> LeaseEvent {
        let routes = self.view.shards.chunk_by(|a, b| a.route == b.route);
        let counts = routes.map(|shards| (shards[0].route.clone(), shards.len()));
        LeaseEvent::ShardsCounted(counts.collect())
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
        let shards = self.view.shards.iter();
        shards
            .filter(|shard| !self.held.contains_key(*shard) && !self.stopping.contains(*shard))
            .cloned()
            .partition(|shard| self.is_mine(shard) || fault!(AcquireUnassignedShards))
    }

    pub(super) fn insert_held(&mut self, lease: Lease) {
        let shard = lease.shard.clone();
        let held = HeldLease {
            lease,
            handover_since: None,
            handover_not_before: None,
            is_adopted: !self.is_mine(&shard),
            _metric: metric::LeaseHeld::new(&shard),
        };
        self.held.insert(shard, held);
    }

    /// Starts the handovers that are due, and returns their shards. Limits how many run at once, so
    /// that the new owners can keep up.
    pub(super) fn next_handovers(&mut self, now: Instant) -> Vec<ShardId> {
        let is_departing = self.departs_at.is_some_and(|at| at <= now);
        let Self { held, view, .. } = self;
        let is_settled = is_departing || view.settled_at <= now;
        let running = held
            .values()
            .filter(|held| held.handover_since.is_some())
            .count();
        let mut to_hand_over: Vec<_> = held
            .iter_mut()
            .filter(|(shard, held)| match self.departs_at {
                Some(_) => is_departing,
                None => is_assigned_elsewhere(view, shard, held),
            })
            .collect();
        let limit = HANDOVERS_MAX.max(to_hand_over.len() / 10);
        to_hand_over.retain(|(shard, held)| {
            (is_settled || view.for_newcomers.contains(*shard))
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

    /// The next time at which there may be a shard to acquire, if the worker `may_acquire`, or to
    /// hand over.
    pub(super) fn next_wakeup(&self, now: Instant, may_acquire: bool) -> Option<Instant> {
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
        let settled_at = self.view.settled_at;
        let awaits_settling = settled_at > now
            && held.any(|(shard, held)| is_assigned_elsewhere(&self.view, shard, held));
        let (own, others) = self.not_held();
        let next_try = self
            .acquire_schedule
            .next_at(now, !own.is_empty(), !others.is_empty());
        // Without a session nothing is acquired. The view changes when it begins.
        let next_try = next_try.filter(|_| may_acquire && self.view.session.is_some());
        let settled = awaits_settling.then_some(settled_at);
        [next_try, postponed, settled].into_iter().flatten().min()
    }
}

fn is_assigned_elsewhere(view: &WorkView, shard: &ShardId, held: &HeldLease) -> bool {
    !held.is_adopted && !view.mine.contains(shard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::PARTITION_DISCOVERY_INTERVAL;
    use crate::membership::Roster;
    use crate::model::{Partition, WorkerEntry, WorkerId};

    const SLOW: Duration = Duration::from_millis(250);

    /// The lease table of worker `a`, and the membership that it follows.
    struct Fleet {
        roster: Roster,
        table: LeaseTable,
    }

    impl Fleet {
        fn set_workers(&mut self, names: &[&str], now: Instant) {
            let workers = names.iter().map(|name| WorkerEntry::for_test(name));
            self.roster.update_workers(workers, now);
            let session = LeaseToken::for_test(7).session;
            self.roster.set_sessions(Some(session), [session]);
            let view = Arc::new(self.roster.view().clone());
            self.table.update_view(view, now);
        }

        fn acquire_all(&mut self, now: Instant) {
            for shard in self.table.next_to_acquire(now, SLOW) {
                let token = LeaseToken::for_test(7);
                let lease = Lease { shard, token };
                self.table.insert_held(lease);
            }
        }
    }

    /// A worker that acquired all `shards` while it was the only worker.
    fn single_worker(shards: i32, now: Instant) -> Fleet {
        let mut roster = Roster::new(WorkerId::of_name("a"), now);
        let shard = |index| {
            let shard = ShardId::new("r", Partition::new("in", index));
            (shard, SourceIdentity::new(None, None))
        };
        roster.add_shards((0..shards).map(shard).collect(), true, now);
        let mut table = LeaseTable::new(Arc::new(roster.view().clone()), now);
        assert_eq!(table.next_to_acquire(now, SLOW), [], "no session yet");
        let mut fleet = Fleet { roster, table };
        fleet.set_workers(&["a"], now);
        fleet.acquire_all(now);
        assert_eq!(fleet.table.held.len(), shards as usize);
        fleet
    }

    #[test]
    fn a_second_worker_gets_half_of_the_shards_a_few_at_a_time() {
        let now = Instant::now();
        let mut fleet = single_worker(16, now);
        fleet.set_workers(&["a", "b"], now);
        let table = &mut fleet.table;
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
        fleet.set_workers(&["a"], now);
        let acquired = fleet.table.next_to_acquire(now, SLOW).into_iter();
        assert_eq!(acquired.collect::<BTreeSet<_>>(), handed_over);
    }

    /// One of four workers, after another one has left. It still holds its earlier shards.
    fn after_departure_of(left: &str, now: Instant) -> LeaseTable {
        let mut fleet = single_worker(32, now);
        fleet.set_workers(&["a", "b", "c", left], now);
        let mine = fleet.table.view.mine.clone();
        fleet.table.held.retain(|shard, _| mine.contains(shard));
        fleet.set_workers(&["a", "b", "c"], now + PARTITION_DISCOVERY_INTERVAL);
        fleet.table
    }

    #[test]
    fn a_handover_waits_until_the_new_owner_has_seen_the_membership_change() {
        let now = Instant::now();
        let moved = |table: &LeaseTable| {
            let held = table.held.keys();
            held.filter(|shard| !table.is_mine(shard)).count()
        };
        let mut table = (4..99)
            .map(|left| after_departure_of(&left.to_string(), now))
            .find(|table| moved(table) > 0)
            .expect("some departures move shards between the remaining workers");
        let changed_at = now + PARTITION_DISCOVERY_INTERVAL;
        assert_eq!(table.next_handovers(changed_at), []);
        assert!(table.next_wakeup(changed_at, true) <= Some(table.view.settled_at));
        assert!(table.next_wakeup(changed_at, true).is_some());
        assert_eq!(
            table.next_handovers(table.view.settled_at).len(),
            moved(&table).min(HANDOVERS_MAX)
        );
    }

    #[test]
    fn a_worker_whose_session_has_ended_waits_for_another_one() {
        let now = Instant::now();
        let mut fleet = single_worker(2, now);
        fleet.table.held.clear();
        assert!(fleet.table.next_wakeup(now, true).is_some());
        fleet.roster.set_sessions(None, []);
        let view = Arc::new(fleet.roster.view().clone());
        fleet.table.update_view(view, now);
        assert_eq!(fleet.table.next_wakeup(now, true), None);
    }

    #[test]
    fn a_postponed_handover_is_tried_again_later() {
        let now = Instant::now();
        let mut fleet = single_worker(2, now);
        fleet.set_workers(&["a", "b"], now);
        let table = &mut fleet.table;
        let next = table.next_handovers(now);
        table.postpone_handover(&next[0], now);
        assert_eq!(table.next_handovers(now), []);
        assert!(
            table
                .next_wakeup(now, true)
                .is_some_and(|at| at <= now + HANDOVER_RETRY_DELAY)
        );
        assert_eq!(table.next_handovers(now + HANDOVER_RETRY_DELAY), next);
    }

    #[test]
    fn an_adopted_shard_is_kept_until_the_membership_changes() {
        let now = Instant::now();
        let mut fleet = single_worker(2, now);
        fleet.set_workers(&["a", "b"], now);
        for shard in fleet.table.next_handovers(now) {
            fleet.table.held.remove(&shard);
        }
        let later = now + crate::limit::UNASSIGNED_ACQUIRE_INTERVAL;
        fleet.acquire_all(later);
        assert_eq!(fleet.table.held.len(), 2);
        assert_eq!(fleet.table.next_handovers(later), []);
        fleet.set_workers(&["a", "b", "c"], later);
        let moving = fleet.table.next_handovers(fleet.table.view.settled_at);
        assert_eq!(moving.len() + fleet.table.view.mine.len(), 2);
    }

    #[test]
    fn a_departing_worker_acquires_nothing_and_hands_everything_over_once_others_know() {
        let now = Instant::now();
        let mut table = single_worker(2, now).table;
        table.departs_at = Some(now + SLOW);
        let shards = table.view.shards.clone();
        table.held.remove(&shards[0]);
        assert_eq!(table.next_to_acquire(now, SLOW), []);
        assert_eq!(table.next_handovers(now), []);
        assert_eq!(table.next_wakeup(now, true), Some(now + SLOW));
        assert_eq!(table.next_handovers(now + SLOW), shards[1..]);
    }
}
