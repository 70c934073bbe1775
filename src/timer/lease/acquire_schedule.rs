//! Decides when a worker tries to acquire which shards. Pure.
//!
//! After a membership change, a worker retries its contested shards quickly for a while: the
//! previous owner is handing them over, or has crashed. It rarely tries the shards of other
//! workers, in case their worker is alive and does not acquire them.

use crate::limit::{
    ACQUIRES_PER_TURN_MAX, HANDOVER_ACQUIRE_DURATION, HANDOVER_ACQUIRE_INTERVAL,
    UNASSIGNED_ACQUIRE_INTERVAL,
};
use crate::model::ShardId;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct AcquireSchedule {
    /// The next try of all own shards.
    all_own_at: Instant,
    /// The next quick try of contested own shards, until `quick_until`.
    next_quick_at: Instant,
    quick_until: Instant,
    /// The next try of shards that are assigned to other workers.
    others_at: Instant,
    /// Own shards that another worker held at the last try.
    contested: BTreeSet<ShardId>,
    /// The last shard of the previous quick try. The next one starts after it.
    last_quick: Option<ShardId>,
}

impl AcquireSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            all_own_at: now,
            next_quick_at: now,
            quick_until: now,
            others_at: now + UNASSIGNED_ACQUIRE_INTERVAL,
            contested: BTreeSet::new(),
            last_quick: None,
        }
    }

    pub(super) fn on_reassigned(&mut self, now: Instant) {
        self.all_own_at = now;
        self.next_quick_at = now;
        self.quick_until = now + HANDOVER_ACQUIRE_DURATION;
        self.others_at = now + UNASSIGNED_ACQUIRE_INTERVAL;
        self.contested.clear();
    }

    /// The shards to try now. `own` and `others` are the shards that this worker does not hold, by
    /// assignment; `slow` is the interval between two tries of all own shards.
    pub(super) fn next_batch(
        &mut self,
        now: Instant,
        slow: Duration,
        own: &[ShardId],
        others: &[ShardId],
    ) -> Vec<ShardId> {
        let mut batch = Vec::new();
        if self.all_own_at <= now {
            self.all_own_at = now + slow;
            self.next_quick_at = now + HANDOVER_ACQUIRE_INTERVAL;
            batch.extend_from_slice(own);
        } else if self.is_quick(now) && self.next_quick_at <= now {
            self.next_quick_at = now + HANDOVER_ACQUIRE_INTERVAL;
            batch.extend(self.quick_batch(own));
        }
        if self.others_at <= now {
            self.others_at = now + UNASSIGNED_ACQUIRE_INTERVAL;
            batch.extend_from_slice(others);
        }
        batch
    }

    fn quick_batch(&mut self, own: &[ShardId]) -> Vec<ShardId> {
        let is_contested = |shard: &&ShardId| self.contested.contains(*shard);
        let mut contested: Vec<_> = own.iter().filter(is_contested).cloned().collect();
        let start = contested.partition_point(|shard| Some(shard) <= self.last_quick.as_ref());
        contested.rotate_left(start);
        contested.truncate(ACQUIRES_PER_TURN_MAX);
        self.last_quick = contested.last().cloned();
        contested
    }

    /// Records the result of a try. Returns whether the shard has become contested.
    pub(super) fn on_attempt(&mut self, shard: &ShardId, is_held: bool) -> bool {
        if is_held {
            self.contested.insert(shard.clone())
        } else {
            self.contested.remove(shard);
            false
        }
    }

    fn is_quick(&self, now: Instant) -> bool {
        now < self.quick_until && !self.contested.is_empty()
    }

    /// The time of the next try, if there is a shard to try.
    pub(super) fn next_at(&self, now: Instant, has_own: bool, has_others: bool) -> Option<Instant> {
        let own_at = if self.is_quick(now) {
            self.all_own_at.min(self.next_quick_at)
        } else {
            self.all_own_at
        };
        let own = has_own.then_some(own_at);
        let others = has_others.then_some(self.others_at);
        own.into_iter().chain(others).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;

    const SLOW: Duration = Duration::from_millis(250);
    const QUICK: Duration = HANDOVER_ACQUIRE_INTERVAL;
    const RARE: Duration = UNASSIGNED_ACQUIRE_INTERVAL;

    fn shards(range: std::ops::Range<i32>) -> Vec<ShardId> {
        range
            .map(|index| ShardId::new("r", Partition::new("in", index)))
            .collect()
    }

    #[test]
    fn a_contested_shard_is_tried_quickly_after_a_change_and_slowly_later() {
        let start = Instant::now();
        let own = shards(0..2);
        let mut schedule = AcquireSchedule::new(start);
        schedule.on_reassigned(start);
        assert_eq!(schedule.next_batch(start, SLOW, &own, &[]), own);
        schedule.on_attempt(&own[0], true);
        schedule.on_attempt(&own[1], false);
        assert_eq!(schedule.next_at(start, true, false), Some(start + QUICK));
        assert_eq!(
            schedule.next_batch(start + QUICK, SLOW, &own, &[]),
            own[..1],
            "the second shard is not contested"
        );
        let later = start + HANDOVER_ACQUIRE_DURATION;
        assert_eq!(schedule.next_batch(later, SLOW, &own, &[]), own);
        assert_eq!(schedule.next_at(later, true, false), Some(later + SLOW));
        assert_eq!(schedule.next_batch(later + QUICK, SLOW, &own, &[]), []);
    }

    #[test]
    fn shards_of_other_workers_are_tried_rarely() {
        let start = Instant::now();
        let others = shards(2..4);
        let mut schedule = AcquireSchedule::new(start);
        assert_eq!(schedule.next_at(start, false, false), None);
        assert_eq!(schedule.next_batch(start, SLOW, &[], &others), []);
        assert_eq!(schedule.next_at(start, false, true), Some(start + RARE));
        assert_eq!(
            schedule.next_batch(start + RARE, SLOW, &[], &others),
            others
        );
        assert_eq!(
            schedule.next_batch(start + RARE + SLOW, SLOW, &[], &others),
            []
        );
        schedule.on_reassigned(start + RARE);
        assert_eq!(
            schedule.next_at(start, false, true),
            Some(start + 2 * RARE),
            "the new owners get their time"
        );
    }

    #[test]
    fn quick_tries_are_limited_and_rotate_over_all_contested_shards() {
        let start = Instant::now();
        let own = shards(0..3 * ACQUIRES_PER_TURN_MAX as i32 / 2);
        let mut schedule = AcquireSchedule::new(start);
        schedule.on_reassigned(start);
        schedule.next_batch(start, SLOW, &own, &[]);
        for shard in &own {
            assert!(schedule.on_attempt(shard, true));
        }
        let first = schedule.next_batch(start + QUICK, SLOW, &own, &[]);
        let second = schedule.next_batch(start + 2 * QUICK, SLOW, &own, &[]);
        assert_eq!(first.len(), ACQUIRES_PER_TURN_MAX);
        assert_eq!(second.len(), ACQUIRES_PER_TURN_MAX);
        let both: BTreeSet<_> = first.into_iter().chain(second).collect();
        assert_eq!(both.len(), own.len());
    }
}
