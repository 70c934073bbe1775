//! Which of the two clients of a cluster a shard hands its messages to, and how many. A client sends in order, so what is in its queue is what
//! the next message of every shard waits for: a shard that has a flood goes on by a client for floods, and the others are not behind it. It
//! changes only when nothing of it is in a client's hands, or messages would overtake each other (G4). Pure.

use crate::limit::{HAND_TURN_MAX, HANDED_LONG_MAX, HANDED_SHARD_LEAST, HANDED_SHORT_MAX};

/// See the module's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Short,
    /// Of those that have more than fits into the short one.
    Long,
}

/// What one shard has in a client's queue.
#[derive(Debug)]
pub(crate) struct Queued {
    queue: Queue,
    /// Handed over, and not reported on yet.
    inside: usize,
    /// More is due than could be handed over in the last turn.
    is_more: bool,
    /// It was, and the queue had no room for it.
    is_full: bool,
    /// It was, and what a turn may hand over was.
    is_cut: bool,
}

impl Queue {
    pub(super) const ALL: [Self; 2] = [Self::Short, Self::Long];

    /// Messages that each of so many shards may have in it.
    pub(super) fn share(self, shards: usize) -> usize {
        let all = match self {
            Self::Short => HANDED_SHORT_MAX,
            Self::Long => HANDED_LONG_MAX,
        };
        (all / shards.max(1)).max(HANDED_SHARD_LEAST)
    }
}

impl Queued {
    pub(super) fn new() -> Self {
        Self {
            queue: Queue::Short,
            inside: 0,
            is_more: false,
            is_full: false,
            is_cut: false,
        }
    }

    pub(super) fn queue(&self) -> Queue {
        self.queue
    }

    /// Whether more could be handed over at once: a client that takes nothing for now is not asked again so soon.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// A turn of handing over begins: where it has the choice, the shard goes where it fits.
    pub(super) fn choose(&mut self) {
        if self.inside == 0 {
            self.queue = if self.is_more {
                Queue::Long
            } else {
                Queue::Short
            };
            self.is_full = false;
        }
    }

    /// How many messages may be handed over in this turn, if `share` may be in the queue.
    pub(super) fn room(&self, share: usize) -> usize {
        match self.queue {
            // All that it has here is to be through before it goes on in the other queue.
            Queue::Short if self.is_full => 0,
            _ => share.saturating_sub(self.inside).min(HAND_TURN_MAX),
        }
    }

    /// A turn ends: so many were handed over, and `is_more`: not all that is due.
    pub(super) fn handed(&mut self, count: usize, share: usize, is_more: bool) {
        self.inside += count;
        self.is_more = is_more;
        self.is_full = is_more && (self.is_full || self.inside >= share);
        self.is_cut = is_more && !self.is_full && count == HAND_TURN_MAX;
    }

    /// One that waited to be sent again is handed over, whatever room there is: they are few.
    pub(super) fn again(&mut self) {
        self.inside += 1;
    }

    pub(super) fn reported(&mut self, count: usize) {
        self.inside = self
            .inside
            .checked_sub(count)
            .expect("a record is reported on once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One turn of a shard that has `due` messages to hand over; answers how many it did, and where to.
    fn turn(queued: &mut Queued, due: usize, share: usize) -> (usize, Queue) {
        queued.choose();
        let room = queued.room(share);
        let count = room.min(due);
        queued.handed(count, share, due > room);
        (count, queued.queue())
    }

    #[test]
    fn a_flood_goes_on_in_the_long_queue_once_the_short_one_is_through() {
        let mut queued = Queued::new();
        assert_eq!(turn(&mut queued, 5_000, 300), (300, Queue::Short));
        assert_eq!(turn(&mut queued, 4_700, 300), (0, Queue::Short));
        queued.reported(299);
        assert_eq!(
            turn(&mut queued, 4_700, 300),
            (0, Queue::Short),
            "one is still on its way"
        );
        queued.reported(1);
        assert_eq!(
            turn(&mut queued, 4_700, 5_000),
            (HAND_TURN_MAX, Queue::Long)
        );
        queued.reported(HAND_TURN_MAX);
        assert_eq!(
            turn(&mut queued, 900, 5_000),
            (900, Queue::Long),
            "it is not over while more is due than went"
        );
        queued.reported(900);
        assert_eq!(turn(&mut queued, 10, 300), (10, Queue::Short), "it is over");
    }

    #[test]
    fn a_shard_that_fits_stays_in_the_short_queue() {
        let mut queued = Queued::new();
        for _ in 0..100 {
            assert_eq!(turn(&mut queued, 250, 300), (250, Queue::Short));
            queued.reported(250);
        }
    }

    #[test]
    fn what_one_turn_may_not_hand_over_the_next_one_does_at_once() {
        let mut queued = Queued::new();
        assert_eq!(
            turn(&mut queued, 10_000, 50_000),
            (HAND_TURN_MAX, Queue::Short)
        );
        assert!(queued.is_cut());
        assert_eq!(turn(&mut queued, 0, 50_000), (0, Queue::Short));
        assert!(!queued.is_cut());
        queued.handed(3, 50_000, true);
        assert!(!queued.is_cut(), "the client took no more");
    }

    #[test]
    fn what_a_client_holds_does_not_grow_with_the_shards() {
        for (queue, all) in [
            (Queue::Short, HANDED_SHORT_MAX),
            (Queue::Long, HANDED_LONG_MAX),
        ] {
            assert_eq!(
                (queue.share(0), queue.share(1)),
                (all, all),
                "one alone has all of it"
            );
            for shards in 2..=all / HANDED_SHARD_LEAST {
                assert!(queue.share(shards) * shards <= all, "{shards}");
            }
            assert_eq!(queue.share(10_000), HANDED_SHARD_LEAST, "each goes on");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_due_and_reported_the_queue_changes_only_when_nothing_is_in_it_and_no_one_waits_for_ever(
            turns in prop::collection::vec((0usize..20_000, 0usize..20_000, 256usize..9_000), 1..60),
        ) {
            let (mut queued, mut inside, mut due) = (Queued::new(), 0, 0);
            for (more, reported, share) in turns {
                due += more;
                let before = queued.queue();
                let (count, queue) = turn(&mut queued, due, share);
                prop_assert!(inside == 0 || queue == before, "{inside} in {before:?}");
                prop_assert!(count == 0 || inside + count <= share);
                prop_assert!(count > 0 || due == 0 || inside > 0, "it stands still");
                due -= count;
                inside += count;
                let reported = reported.min(inside);
                queued.reported(reported);
                inside -= reported;
            }
        }
    }
}
