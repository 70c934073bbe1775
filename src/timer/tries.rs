//! When a claimer tries to take which shards. Its own that another still holds it tries quickly for a while after the fleet has changed: the
//! other is about to hand them over, or has just died. Others' it tries rarely, in case that their worker lives and does not take them. Pure.

use crate::limit::{
    ACQUIRES_PER_TURN_MAX, HANDOVER_ACQUIRE_DURATION, HANDOVER_ACQUIRE_INTERVAL,
    UNASSIGNED_ACQUIRE_INTERVAL,
};
use crate::model::ShardId;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(super) struct AcquireSchedule {
    all_own_at: Instant,
    next_quick_at: Instant,
    quick_until: Instant,
    others_at: Instant,
    /// Its own that somebody held when it tried last.
    contested: BTreeSet<ShardId>,
    /// The last that was tried quickly: the next turn begins behind it.
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

    /// Other shards are this worker's from now on.
    pub(super) fn on_reassigned(&mut self, now: Instant) {
        (
            self.all_own_at,
            self.next_quick_at,
            self.quick_until,
            self.others_at,
        ) = (
            now,
            now,
            now + HANDOVER_ACQUIRE_DURATION,
            now + UNASSIGNED_ACQUIRE_INTERVAL,
        );
        self.contested.clear();
    }

    /// What to try now, of the shards that are its own and are not held, and of those that are others'.
    pub(super) fn next_batch(
        &mut self,
        now: Instant,
        slow: Duration,
        own: &[ShardId],
        others: &[ShardId],
    ) -> Vec<ShardId> {
        let mut tries = Vec::new();
        if self.all_own_at <= now {
            (self.all_own_at, self.next_quick_at) = (now + slow, now + HANDOVER_ACQUIRE_INTERVAL);
            tries.extend_from_slice(own);
        } else if self.is_quick(now) && self.next_quick_at <= now {
            self.next_quick_at = now + HANDOVER_ACQUIRE_INTERVAL;
            tries.extend(self.quick_batch(own));
        }
        if self.others_at <= now {
            self.others_at = now + UNASSIGNED_ACQUIRE_INTERVAL;
            tries.extend_from_slice(others);
        }
        tries
    }

    /// Those that come after the last turn's, as many as one turn may have.
    fn quick_batch(&mut self, own: &[ShardId]) -> Vec<ShardId> {
        let contested: Vec<_> = own
            .iter()
            .filter(|shard| self.contested.contains(*shard))
            .collect();
        let begin = self
            .last_quick
            .as_ref()
            .map_or(0, |last| contested.partition_point(|shard| *shard <= last));
        let turn: Vec<_> = contested[begin..]
            .iter()
            .chain(&contested[..begin])
            .take(ACQUIRES_PER_TURN_MAX)
            .map(|shard| (*shard).clone())
            .collect();
        self.last_quick = turn.last().cloned();
        turn
    }

    /// What became of a try. Answers whether it is news that somebody holds it.
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

    /// When to try next, if there is anything to try.
    pub(super) fn next_at(&self, now: Instant, has_own: bool, has_others: bool) -> Option<Instant> {
        let own = if self.is_quick(now) {
            self.all_own_at.min(self.next_quick_at)
        } else {
            self.all_own_at
        };
        [has_own.then_some(own), has_others.then_some(self.others_at)]
            .into_iter()
            .flatten()
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;

    const SLOW: Duration = Duration::from_millis(250);

    fn shards(range: std::ops::Range<i32>) -> Vec<ShardId> {
        range
            .map(|index| ShardId::new("r", Partition::new("in", index)))
            .collect()
    }

    #[test]
    fn what_another_holds_is_tried_quickly_after_a_change_and_slowly_later() {
        let (start, own) = (Instant::now(), shards(0..2));
        let mut tries = AcquireSchedule::new(start);
        tries.on_reassigned(start);
        assert_eq!(tries.next_batch(start, SLOW, &own, &[]), own);
        tries.on_attempt(&own[0], true);
        tries.on_attempt(&own[1], false);
        assert_eq!(
            tries.next_at(start, true, false),
            Some(start + HANDOVER_ACQUIRE_INTERVAL)
        );
        assert_eq!(
            tries.next_batch(start + HANDOVER_ACQUIRE_INTERVAL, SLOW, &own, &[]),
            own[..1],
            "nobody has borne the other one yet"
        );
        let later = start + HANDOVER_ACQUIRE_DURATION;
        assert_eq!(tries.next_batch(later, SLOW, &own, &[]), own);
        assert_eq!(tries.next_at(later, true, false), Some(later + SLOW));
        assert_eq!(
            tries.next_batch(later + HANDOVER_ACQUIRE_INTERVAL, SLOW, &own, &[]),
            []
        );
    }

    #[test]
    fn who_has_all_that_is_its_own_tries_nothing_but_strays_and_these_rarely() {
        let (start, others) = (Instant::now(), shards(2..4));
        let mut tries = AcquireSchedule::new(start);
        assert_eq!(tries.next_at(start, false, false), None);
        assert_eq!(tries.next_batch(start, SLOW, &[], &others), []);
        assert_eq!(
            tries.next_at(start, false, true),
            Some(start + UNASSIGNED_ACQUIRE_INTERVAL)
        );
        assert_eq!(
            tries.next_batch(start + UNASSIGNED_ACQUIRE_INTERVAL, SLOW, &[], &others),
            others
        );
        assert_eq!(
            tries.next_batch(
                start + UNASSIGNED_ACQUIRE_INTERVAL + SLOW,
                SLOW,
                &[],
                &others
            ),
            []
        );
        tries.on_reassigned(start + UNASSIGNED_ACQUIRE_INTERVAL);
        assert_eq!(
            tries.next_at(start, false, true),
            Some(start + 2 * UNASSIGNED_ACQUIRE_INTERVAL),
            "whoever is to take them now is given its time"
        );
    }

    #[test]
    fn a_turn_has_its_bound_and_all_have_their_turn() {
        let (start, own) = (
            Instant::now(),
            shards(0..3 * ACQUIRES_PER_TURN_MAX as i32 / 2),
        );
        let mut tries = AcquireSchedule::new(start);
        tries.on_reassigned(start);
        tries.next_batch(start, SLOW, &own, &[]);
        own.iter()
            .for_each(|shard| assert!(tries.on_attempt(shard, true)));
        let (first, second) = (
            tries.next_batch(start + HANDOVER_ACQUIRE_INTERVAL, SLOW, &own, &[]),
            tries.next_batch(start + 2 * HANDOVER_ACQUIRE_INTERVAL, SLOW, &own, &[]),
        );
        assert_eq!(
            (first.len(), second.len()),
            (ACQUIRES_PER_TURN_MAX, ACQUIRES_PER_TURN_MAX)
        );
        let both: BTreeSet<_> = first.into_iter().chain(second).collect();
        assert_eq!(both.len(), own.len());
    }
}
