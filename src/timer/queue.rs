//! Which of the two clients of a cluster a shard hands its messages to, and how many. A client sends in order, so what is in its queue is what
//! the next message of every shard waits for: a shard that has a flood goes on by a client for floods, and the others are not behind it. It
//! changes only when nothing of it is in a client's hands, or messages would overtake each other (G4). Pure.

use crate::limit::{
    BULK_LANE_MESSAGES_MAX, FAST_LANE_MESSAGES_MAX, LANE_MESSAGES_PER_SHARD_MIN,
    SHARD_SENDS_PER_TICK_MAX,
};

/// See the module's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Fast,
    /// Of those that have more than fits into the short one.
    Bulk,
}

/// What one shard has in a client's queue.
#[derive(Debug)]
pub(crate) struct LaneState {
    lane: Lane,
    /// Handed over, and not reported on yet.
    unreported: usize,
    /// More is due than could be handed over in the last turn.
    has_more_due: bool,
    /// It was, and the queue had no room for it.
    is_full: bool,
    /// It was, and what a turn may hand over was.
    hit_tick_limit: bool,
}

impl Lane {
    pub(super) const ALL: [Self; 2] = [Self::Fast, Self::Bulk];

    /// Messages that each of so many shards may have in it.
    pub(super) fn quota(self, shards: usize) -> usize {
        let all = match self {
            Self::Fast => FAST_LANE_MESSAGES_MAX,
            Self::Bulk => BULK_LANE_MESSAGES_MAX,
        };
        (all / shards.max(1)).max(LANE_MESSAGES_PER_SHARD_MIN)
    }
}

impl LaneState {
    pub(super) fn new() -> Self {
        Self {
            lane: Lane::Fast,
            unreported: 0,
            has_more_due: false,
            is_full: false,
            hit_tick_limit: false,
        }
    }

    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// Whether more could be handed over at once: a client that takes nothing for now is not asked again so soon.
    pub(super) fn hit_tick_limit(&self) -> bool {
        self.hit_tick_limit
    }

    /// A turn of handing over begins: where it has the choice, the shard goes where it fits.
    pub(super) fn choose_lane(&mut self) {
        if self.unreported == 0 {
            self.lane = if self.has_more_due {
                Lane::Bulk
            } else {
                Lane::Fast
            };
            self.is_full = false;
        }
    }

    /// How many messages may be handed over in this turn, if `share` may be in the queue.
    pub(super) fn room(&self, share: usize) -> usize {
        match self.lane {
            // All that it has here is to be through before it goes on in the other queue.
            Lane::Fast if self.is_full => 0,
            _ => share
                .saturating_sub(self.unreported)
                .min(SHARD_SENDS_PER_TICK_MAX),
        }
    }

    /// A turn ends: so many were handed over, and `is_more`: not all that is due.
    pub(super) fn on_sent(&mut self, count: usize, share: usize, is_more: bool) {
        self.unreported += count;
        self.has_more_due = is_more;
        self.is_full = is_more && (self.is_full || self.unreported >= share);
        self.hit_tick_limit = is_more && !self.is_full && count == SHARD_SENDS_PER_TICK_MAX;
    }

    /// One that waited to be sent again is handed over, whatever room there is: they are few.
    pub(super) fn on_resent(&mut self) {
        self.unreported += 1;
    }

    pub(super) fn on_reports(&mut self, count: usize) {
        self.unreported = self
            .unreported
            .checked_sub(count)
            .expect("a record is reported on once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One turn of a shard that has `due` messages to hand over; answers how many it did, and where to.
    fn turn(queued: &mut LaneState, due: usize, share: usize) -> (usize, Lane) {
        queued.choose_lane();
        let room = queued.room(share);
        let count = room.min(due);
        queued.on_sent(count, share, due > room);
        (count, queued.lane())
    }

    #[test]
    fn a_flood_goes_on_in_the_long_queue_once_the_short_one_is_through() {
        let mut queued = LaneState::new();
        assert_eq!(turn(&mut queued, 5_000, 300), (300, Lane::Fast));
        assert_eq!(turn(&mut queued, 4_700, 300), (0, Lane::Fast));
        queued.on_reports(299);
        assert_eq!(
            turn(&mut queued, 4_700, 300),
            (0, Lane::Fast),
            "one is still on its way"
        );
        queued.on_reports(1);
        assert_eq!(
            turn(&mut queued, 4_700, 5_000),
            (SHARD_SENDS_PER_TICK_MAX, Lane::Bulk)
        );
        queued.on_reports(SHARD_SENDS_PER_TICK_MAX);
        assert_eq!(
            turn(&mut queued, 900, 5_000),
            (900, Lane::Bulk),
            "it is not over while more is due than went"
        );
        queued.on_reports(900);
        assert_eq!(turn(&mut queued, 10, 300), (10, Lane::Fast), "it is over");
    }

    #[test]
    fn a_shard_that_fits_stays_in_the_short_queue() {
        let mut queued = LaneState::new();
        for _ in 0..100 {
            assert_eq!(turn(&mut queued, 250, 300), (250, Lane::Fast));
            queued.on_reports(250);
        }
    }

    #[test]
    fn what_one_turn_may_not_hand_over_the_next_one_does_at_once() {
        let mut queued = LaneState::new();
        assert_eq!(
            turn(&mut queued, 10_000, 50_000),
            (SHARD_SENDS_PER_TICK_MAX, Lane::Fast)
        );
        assert!(queued.hit_tick_limit());
        assert_eq!(turn(&mut queued, 0, 50_000), (0, Lane::Fast));
        assert!(!queued.hit_tick_limit());
        queued.on_sent(3, 50_000, true);
        assert!(!queued.hit_tick_limit(), "the client took no more");
    }

    #[test]
    fn what_a_client_holds_does_not_grow_with_the_shards() {
        for (queue, all) in [
            (Lane::Fast, FAST_LANE_MESSAGES_MAX),
            (Lane::Bulk, BULK_LANE_MESSAGES_MAX),
        ] {
            assert_eq!(
                (queue.quota(0), queue.quota(1)),
                (all, all),
                "one alone has all of it"
            );
            for shards in 2..=all / LANE_MESSAGES_PER_SHARD_MIN {
                assert!(queue.quota(shards) * shards <= all, "{shards}");
            }
            assert_eq!(
                queue.quota(10_000),
                LANE_MESSAGES_PER_SHARD_MIN,
                "each goes on"
            );
        }
    }

    proptest! {
        #[test]
        fn whatever_is_due_and_reported_the_queue_changes_only_when_nothing_is_in_it_and_no_one_waits_for_ever(
            turns in prop::collection::vec((0usize..20_000, 0usize..20_000, 256usize..9_000), 1..60),
        ) {
            let (mut queued, mut inside, mut due) = (LaneState::new(), 0, 0);
            for (more, reported, share) in turns {
                due += more;
                let before = queued.lane();
                let (count, queue) = turn(&mut queued, due, share);
                prop_assert!(inside == 0 || queue == before, "{inside} in {before:?}");
                prop_assert!(count == 0 || inside + count <= share);
                prop_assert!(count > 0 || due == 0 || inside > 0, "it stands still");
                due -= count;
                inside += count;
                let reported = reported.min(inside);
                queued.on_reports(reported);
                inside -= reported;
            }
        }
    }
}
