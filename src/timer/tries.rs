//! When a claimer tries to take which shards. Its own that another still holds it tries quickly for a while after the fleet has changed: the
//! other is about to hand them over, or has just died. Others' it tries rarely, in case that their worker lives and does not take them. Pure.

use crate::limit::{QUICK_FOR, QUICK_TRY, STRAY_TRY, TRIES_MAX};
use crate::model::ShardId;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(super) struct Tries {
    all_at: Instant,
    quick_at: Instant,
    quick_until: Instant,
    strays_at: Instant,
    /// Its own that somebody held when it tried last.
    contested: BTreeSet<ShardId>,
    /// The last that was tried quickly: the next turn begins behind it.
    last: Option<ShardId>,
}

impl Tries {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            all_at: now,
            quick_at: now,
            quick_until: now,
            strays_at: now + STRAY_TRY,
            contested: BTreeSet::new(),
            last: None,
        }
    }

    /// Other shards are this worker's from now on.
    pub(super) fn placed(&mut self, now: Instant) {
        (self.all_at, self.quick_at, self.quick_until, self.strays_at) =
            (now, now, now + QUICK_FOR, now + STRAY_TRY);
        self.contested.clear();
    }

    /// What to try now, of the shards that are its own and are not held, and of those that are others'.
    pub(super) fn next(
        &mut self,
        now: Instant,
        slow: Duration,
        own: &[ShardId],
        others: &[ShardId],
    ) -> Vec<ShardId> {
        let mut tries = Vec::new();
        if self.all_at <= now {
            (self.all_at, self.quick_at) = (now + slow, now + QUICK_TRY);
            tries.extend_from_slice(own);
        } else if self.is_quick(now) && self.quick_at <= now {
            self.quick_at = now + QUICK_TRY;
            tries.extend(self.quick_turn(own));
        }
        if self.strays_at <= now {
            self.strays_at = now + STRAY_TRY;
            tries.extend_from_slice(others);
        }
        tries
    }

    /// Those that come after the last turn's, as many as one turn may have.
    fn quick_turn(&mut self, own: &[ShardId]) -> Vec<ShardId> {
        let contested: Vec<_> = own
            .iter()
            .filter(|shard| self.contested.contains(*shard))
            .collect();
        let begin = self
            .last
            .as_ref()
            .map_or(0, |last| contested.partition_point(|shard| *shard <= last));
        let turn: Vec<_> = contested[begin..]
            .iter()
            .chain(&contested[..begin])
            .take(TRIES_MAX)
            .map(|shard| (*shard).clone())
            .collect();
        self.last = turn.last().cloned();
        turn
    }

    /// What became of a try. Answers whether it is news that somebody holds it.
    pub(super) fn tried(&mut self, shard: &ShardId, is_held: bool) -> bool {
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
            self.all_at.min(self.quick_at)
        } else {
            self.all_at
        };
        [has_own.then_some(own), has_others.then_some(self.strays_at)]
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
        let mut tries = Tries::new(start);
        tries.placed(start);
        assert_eq!(tries.next(start, SLOW, &own, &[]), own);
        tries.tried(&own[0], true);
        tries.tried(&own[1], false);
        assert_eq!(tries.next_at(start, true, false), Some(start + QUICK_TRY));
        assert_eq!(
            tries.next(start + QUICK_TRY, SLOW, &own, &[]),
            own[..1],
            "nobody has borne the other one yet"
        );
        let later = start + QUICK_FOR;
        assert_eq!(tries.next(later, SLOW, &own, &[]), own);
        assert_eq!(tries.next_at(later, true, false), Some(later + SLOW));
        assert_eq!(tries.next(later + QUICK_TRY, SLOW, &own, &[]), []);
    }

    #[test]
    fn who_has_all_that_is_its_own_tries_nothing_but_strays_and_these_rarely() {
        let (start, others) = (Instant::now(), shards(2..4));
        let mut tries = Tries::new(start);
        assert_eq!(tries.next_at(start, false, false), None);
        assert_eq!(tries.next(start, SLOW, &[], &others), []);
        assert_eq!(tries.next_at(start, false, true), Some(start + STRAY_TRY));
        assert_eq!(tries.next(start + STRAY_TRY, SLOW, &[], &others), others);
        assert_eq!(tries.next(start + STRAY_TRY + SLOW, SLOW, &[], &others), []);
        tries.placed(start + STRAY_TRY);
        assert_eq!(
            tries.next_at(start, false, true),
            Some(start + 2 * STRAY_TRY),
            "whoever is to take them now is given its time"
        );
    }

    #[test]
    fn a_turn_has_its_bound_and_all_have_their_turn() {
        let (start, own) = (Instant::now(), shards(0..3 * TRIES_MAX as i32 / 2));
        let mut tries = Tries::new(start);
        tries.placed(start);
        tries.next(start, SLOW, &own, &[]);
        own.iter()
            .for_each(|shard| assert!(tries.tried(shard, true)));
        let (first, second) = (
            tries.next(start + QUICK_TRY, SLOW, &own, &[]),
            tries.next(start + 2 * QUICK_TRY, SLOW, &own, &[]),
        );
        assert_eq!((first.len(), second.len()), (TRIES_MAX, TRIES_MAX));
        let both: BTreeSet<_> = first.into_iter().chain(second).collect();
        assert_eq!(both.len(), own.len());
    }
}
