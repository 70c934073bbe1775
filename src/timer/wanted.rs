//! What a claimer knows of the shards that it wants: which there are, which it holds, which it is to hand over and which to take. Decides;
//! the claimer does.

use super::fleet::Membership;
use super::term::LeaseDeadline;
use super::tries::AcquireSchedule;
use crate::limit::{
    HANDOVER_RETRY_DELAY, HANDOVERS_DIVISOR, HANDOVERS_MAX, MEMBERSHIP_INTERVAL,
    PARTITION_DISCOVERY_INTERVAL, SHUTDOWN_ANNOUNCE_MARGIN,
};
use crate::metric;
use crate::model::{Lease, Progress, ShardId, SourceIdentity, WorkerId};
use crate::store::LiveWorker;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A lease, and its metric, which is 0 again when this is dropped.
pub(super) struct HeldLease {
    pub(super) lease: Lease,
    pub(super) deadline: LeaseDeadline,
    /// Since when its work is being finished, for another worker to have it.
    pub(super) handover_since: Option<Instant>,
    /// It is not handed over again before.
    handover_not_before: Option<Instant>,
    /// It was another worker's, who lives and did not take it: it stays here until the fleet changes.
    is_adopted: bool,
    _metric: metric::LeaseHeld,
}

/// See the module's page.
pub(super) struct LeaseTable {
    pub(super) shards: Vec<ShardId>,
    pub(super) held: BTreeMap<ShardId, HeldLease>,
    /// The last pair that this process itself finished: it may be ahead of what a store that went back remembers. It speaks of one
    /// incarnation of the source; the offsets of the next one mean other messages.
    pub(super) last_delivered: BTreeMap<ShardId, (SourceIdentity, Progress)>,
    /// Told to be dropped, and not yet.
    pub(super) stopping: BTreeSet<ShardId>,
    pub(super) membership: Membership,
    pub(super) acquire_schedule: AcquireSchedule,
    /// When all that live have surely seen what this worker sees of the fleet. What is handed over before to one that has not is delivered by nobody
    /// until it has.
    membership_settled_at: Instant,
    /// All is to go, from then on.
    pub(super) departs_at: Option<Instant>,
}

impl LeaseTable {
    pub(super) fn new(me: WorkerId, now: Instant) -> Self {
        Self {
            shards: Vec::new(),
            held: BTreeMap::new(),
            last_delivered: BTreeMap::new(),
            stopping: BTreeSet::new(),
            membership: Membership::new(me),
            acquire_schedule: AcquireSchedule::new(now),
            membership_settled_at: now,
            departs_at: None,
        }
    }

    /// Takes in which shards there are. Answers whether some were not known.
    pub(super) fn add_shards(
        &mut self,
        shards: impl Iterator<Item = ShardId>,
        now: Instant,
    ) -> bool {
        let before = self.shards.len();
        for shard in shards {
            if let Err(at) = self.shards.binary_search(&shard) {
                self.shards.insert(at, shard);
            }
        }
        let is_news = self.shards.len() > before;
        if is_news {
            self.reassign(now);
            self.membership_settled_at = now + PARTITION_DISCOVERY_INTERVAL;
        }
        is_news
    }

    /// How many shards each route has.
    pub(super) fn shard_counts(&self) -> BTreeMap<Arc<str>, usize> {
        let routes = self.shards.chunk_by(|a, b| a.route == b.route);
        routes
            .map(|shards| (shards[0].route.clone(), shards.len()))
            .collect()
    }

    /// Takes in who lives. Answers whether that is news.
    pub(super) fn update_workers(&mut self, peers: &[LiveWorker], now: Instant) -> bool {
        let is_news = self.membership.update(peers);
        if is_news {
            self.reassign(now);
            self.membership_settled_at = self
                .membership_settled_at
                .max(now + MEMBERSHIP_INTERVAL + SHUTDOWN_ANNOUNCE_MARGIN);
        }
        is_news
    }

    fn reassign(&mut self, now: Instant) {
        self.membership.reassign(&self.shards);
        self.acquire_schedule.on_reassigned(now);
        self.held
            .values_mut()
            .for_each(|held| held.is_adopted = false);
    }

    /// What to try to take now.
    pub(super) fn next_to_acquire(&mut self, now: Instant, slow: Duration) -> Vec<ShardId> {
        if self.departs_at.is_some() {
            return Vec::new();
        }
        let (own, others) = self.not_held();
        self.acquire_schedule.next_batch(now, slow, &own, &others)
    }

    /// The shards that are not held: this worker's own, and others'.
    fn not_held(&self) -> (Vec<ShardId>, Vec<ShardId>) {
        let missing = self
            .shards
            .iter()
            .filter(|shard| !self.held.contains_key(*shard) && !self.stopping.contains(*shard));
        missing
            .cloned()
            .partition(|shard| self.membership.is_mine(shard) || fault!(AcquireUnassignedShards))
    }

    /// It was taken.
    pub(super) fn insert_held(&mut self, lease: Lease, term: LeaseDeadline) {
        let (shard, is_stray) = (lease.shard.clone(), !self.membership.is_mine(&lease.shard));
        let _metric = metric::LeaseHeld::new(&shard);
        self.held.insert(
            shard,
            HeldLease {
                lease,
                deadline: term,
                handover_since: None,
                handover_not_before: None,
                is_adopted: is_stray,
                _metric,
            },
        );
    }

    /// What to hand over now, as many at a time as is good for those who are to take it.
    pub(super) fn next_handovers(&mut self, now: Instant) -> Vec<ShardId> {
        let is_departing = self.departs_at.is_some_and(|at| at <= now);
        let goes = |shard: &ShardId, held: &HeldLease| {
            is_departing || self.departs_at.is_none() && self.is_assigned_elsewhere(shard, held)
        };
        let going: Vec<_> = self
            .held
            .iter()
            .filter(|(shard, held)| goes(shard, held))
            .map(|(shard, _)| shard.clone())
            .collect();
        let under_way = self
            .held
            .values()
            .filter(|held| held.handover_since.is_some())
            .count();
        let room = HANDOVERS_MAX
            .max(going.len() / HANDOVERS_DIVISOR)
            .saturating_sub(under_way);
        let is_seen = |shard: &ShardId| {
            is_departing
                || self.membership_settled_at <= now
                || self.membership.is_for_newcomer(shard)
        };
        let is_next = |held: &HeldLease| {
            held.handover_since.is_none() && held.handover_not_before.is_none_or(|at| at <= now)
        };
        let next: Vec<_> = going
            .into_iter()
            .filter(|shard| is_seen(shard) && is_next(&self.held[shard]))
            .take(room)
            .collect();
        for shard in &next {
            self.held
                .get_mut(shard)
                .expect("it was just found there")
                .handover_since = Some(now);
        }
        next
    }

    fn is_assigned_elsewhere(&self, shard: &ShardId, held: &HeldLease) -> bool {
        !held.is_adopted && !self.membership.is_mine(shard)
    }

    /// Its work could not be finished in time, and goes on.
    pub(super) fn postpone_handover(&mut self, shard: &ShardId, now: Instant) {
        if let Some(held) = self.held.get_mut(shard) {
            (held.handover_since, held.handover_not_before) =
                (None, Some(now + HANDOVER_RETRY_DELAY));
        }
    }

    /// When there is something to take, or to hand over, that no message will announce.
    pub(super) fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        let waits = self
            .held
            .values()
            .filter(|held| held.handover_since.is_none())
            .filter_map(|held| held.handover_not_before)
            .filter(|at| *at > now)
            .min();
        if self.departs_at.is_some() {
            return self
                .departs_at
                .filter(|at| *at > now)
                .into_iter()
                .chain(waits)
                .min();
        }
        let is_unsettled = self.membership_settled_at > now
            && self
                .held
                .iter()
                .any(|(shard, held)| self.is_assigned_elsewhere(shard, held));
        let (own, others) = self.not_held();
        let tries = self
            .acquire_schedule
            .next_at(now, !own.is_empty(), !others.is_empty());
        tries
            .into_iter()
            .chain(waits)
            .chain(is_unsettled.then_some(self.membership_settled_at))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LeaseToken, Partition};

    const SLOW: Duration = Duration::from_millis(250);

    fn peers(workers: &[u128]) -> Vec<LiveWorker> {
        workers
            .iter()
            .map(|id| LiveWorker {
                worker: WorkerId(*id),
                expires_in: Duration::from_secs(1),
            })
            .collect()
    }

    /// A worker that has taken all of so many shards while it was alone.
    fn alone(shards: i32, now: Instant) -> LeaseTable {
        let mut wanted = LeaseTable::new(WorkerId(1), now);
        wanted.add_shards(
            (0..shards).map(|index| ShardId::new("r", Partition::new("in", index))),
            now,
        );
        assert_eq!(wanted.next_to_acquire(now, SLOW), [], "it has not enrolled");
        assert!(wanted.update_workers(&peers(&[1]), now));
        take_all(&mut wanted, now);
        assert_eq!(wanted.held.len(), shards as usize);
        wanted
    }

    fn take_all(wanted: &mut LeaseTable, now: Instant) {
        for shard in wanted.next_to_acquire(now, SLOW) {
            wanted.insert_held(
                Lease {
                    shard,
                    token: LeaseToken(7),
                },
                LeaseDeadline::new(now, SLOW),
            );
        }
    }

    #[test]
    fn who_is_joined_hands_over_half_a_few_at_a_time() {
        let now = Instant::now();
        let mut wanted = alone(16, now);
        assert!(wanted.update_workers(&peers(&[1, 2]), now));
        let mut given = BTreeSet::new();
        loop {
            let next = wanted.next_handovers(now);
            assert!(
                next.len() <= HANDOVERS_MAX && wanted.next_handovers(now).is_empty(),
                "no more than so many at a time"
            );
            if next.is_empty() {
                break;
            }
            for shard in next {
                wanted.held.remove(&shard);
                given.insert(shard);
            }
        }
        assert_eq!((given.len(), wanted.held.len()), (8, 8));
        assert_eq!(
            wanted.next_to_acquire(now, SLOW),
            [],
            "they are the other's"
        );
        assert!(wanted.update_workers(&peers(&[1]), now));
        assert_eq!(
            wanted
                .next_to_acquire(now, SLOW)
                .into_iter()
                .collect::<BTreeSet<_>>(),
            given
        );
    }

    /// One of a fleet that another has left: it holds what was its own before that.
    fn left(by: u128, now: Instant) -> LeaseTable {
        let mut wanted = alone(32, now);
        wanted.update_workers(&peers(&[1, 2, 3, by]), now);
        let fleet = &wanted.membership;
        wanted.held.retain(|shard, _| fleet.is_mine(shard));
        wanted.update_workers(&peers(&[1, 2, 3]), now + PARTITION_DISCOVERY_INTERVAL);
        wanted
    }

    #[test]
    fn what_goes_to_one_that_was_there_before_is_kept_until_that_one_has_seen_the_change() {
        let now = Instant::now();
        let moved = |wanted: &LeaseTable| {
            wanted
                .held
                .keys()
                .filter(|shard| !wanted.membership.is_mine(shard))
                .count()
        };
        let mut wanted = (4..99)
            .map(|by| left(by, now))
            .find(|wanted| moved(wanted) > 0)
            .expect("some change places now and then");
        let seen = now + PARTITION_DISCOVERY_INTERVAL;
        assert_eq!(
            (
                wanted.next_handovers(seen),
                wanted
                    .next_wakeup(seen)
                    .map(|at| at <= wanted.membership_settled_at)
            ),
            (Vec::new(), Some(true))
        );
        let settled = seen + MEMBERSHIP_INTERVAL + SHUTDOWN_ANNOUNCE_MARGIN;
        assert_eq!(
            wanted.next_handovers(settled).len(),
            moved(&wanted).min(HANDOVERS_MAX)
        );
    }

    #[test]
    fn what_cannot_be_finished_goes_on_and_is_handed_over_later() {
        let now = Instant::now();
        let mut wanted = alone(2, now);
        wanted.update_workers(&peers(&[1, 2]), now);
        let next = wanted.next_handovers(now);
        wanted.postpone_handover(&next[0], now);
        assert_eq!(wanted.next_handovers(now), []);
        assert_eq!(
            wanted
                .next_wakeup(now)
                .map(|at| at <= now + HANDOVER_RETRY_DELAY),
            Some(true)
        );
        assert_eq!(wanted.next_handovers(now + HANDOVER_RETRY_DELAY), next);
    }

    #[test]
    fn what_its_worker_did_not_take_is_kept_until_the_fleet_changes() {
        let now = Instant::now();
        let mut wanted = alone(2, now);
        wanted.update_workers(&peers(&[1, 2]), now);
        wanted
            .next_handovers(now)
            .iter()
            .for_each(|shard| _ = wanted.held.remove(shard));
        let later = now + crate::limit::UNASSIGNED_ACQUIRE_INTERVAL;
        take_all(&mut wanted, later);
        assert_eq!(
            (wanted.held.len(), wanted.next_handovers(later)),
            (2, Vec::new())
        );
        wanted.update_workers(&peers(&[1, 2, 3]), later);
        assert!(
            wanted
                .next_handovers(later + MEMBERSHIP_INTERVAL + SHUTDOWN_ANNOUNCE_MARGIN)
                .len()
                + wanted.membership.assigned_count()
                == 2
        );
    }

    #[test]
    fn who_departs_takes_nothing_and_hands_over_all_when_the_others_know() {
        let now = Instant::now();
        let mut wanted = alone(2, now);
        wanted.departs_at = Some(now + SLOW);
        wanted.held.remove(&wanted.shards[0]);
        assert_eq!(
            (
                wanted.next_to_acquire(now, SLOW),
                wanted.next_handovers(now)
            ),
            (Vec::new(), Vec::new())
        );
        assert_eq!(wanted.next_wakeup(now), Some(now + SLOW));
        assert_eq!(wanted.next_handovers(now + SLOW), wanted.shards[1..]);
    }
}
