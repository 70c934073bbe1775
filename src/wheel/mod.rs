//! A hierarchical timing wheel with millisecond resolution: handles in memory, ordered by due time.
//!
//! The wheel does not know the meaning of a handle, and it reads no clock. Handles that are due at
//! the same time come out in no particular order.

mod level;

use crate::model::Timestamp;
use level::{LEVELS, Level, NIL};

/// A timing wheel. An insert costs the same however many handles wait. Advancing costs one step per
/// occupied slot that is passed; each handle moves down at most once per level.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// The latest time that the wheel was advanced to, as ordered bits.
    now: u64,
    levels: [Level; LEVELS as usize],
    /// List of handles that were already due when they were inserted. They have no slot.
    ready: u32,
    /// The least due time in `ready`.
    ready_min_due: Timestamp,
    /// All entries. Each is in the list of a slot, in `ready`, or in `free`.
    entries: Vec<Entry>,
    free: u32,
}

/// An element of a list. Lists are linked by index, so a slot needs no allocation of its own.
#[derive(Clone, Copy, Debug)]
struct Entry {
    due: Timestamp,
    handle: u32,
    next: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Wheel {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            now: now.to_ordered_bits(),
            levels: std::array::from_fn(|number| Level::new(number as u32)),
            ready: NIL,
            ready_min_due: Timestamp::MAX,
            entries: Vec::new(),
            free: NIL,
        }
    }

    /// Inserts a handle; the same handle may be inserted more than once. A handle that is already
    /// due comes out with the next call of [`Wheel::advance`], even if time does not pass.
    pub(crate) fn insert(&mut self, due: Timestamp, handle: u32) {
        let index = self.allocate(Entry {
            due,
            handle,
            next: NIL,
        });
        self.link(index);
    }

    /// Removes every handle that is due at `now` and appends it to `out`. The wheel never moves
    /// back. At an earlier `now`, only handles that were inserted since can be due.
    pub(crate) fn advance(&mut self, now: Timestamp, out: &mut Vec<(Timestamp, u32)>) {
        let before = self.now;
        self.now = before.max(now.to_ordered_bits());
        for number in 0..self.levels.len() {
            while let Some(head) = self.levels[number].pop(before, self.now) {
                self.redistribute(head, now, out);
            }
            if self.levels[number].shares_upper_digits(before, self.now) {
                break;
            }
        }
        // After the clock was set far back, all new handles are in `ready`. The minimum avoids a
        // scan of them at each step.
        if self.ready_min_due <= now {
            self.ready_min_due = Timestamp::MAX;
            let ready = std::mem::replace(&mut self.ready, NIL);
            self.redistribute(ready, now, out);
        }
    }

    /// The time until which [`Wheel::advance`] would change nothing; `None` if the wheel is empty.
    /// This is the least due time if that is near, otherwise the start of a slot before it.
    pub(crate) fn next_wakeup(&self) -> Option<Timestamp> {
        if self.ready != NIL {
            return Some(self.ready_min_due);
        }
        self.levels
            .iter()
            .find_map(|level| level.first_slot_start(self.now))
            .map(Timestamp::from_ordered_bits)
    }

    /// Splits a list that was removed from its slot: due handles go to `out`, the others to new
    /// slots.
    fn redistribute(&mut self, head: u32, now: Timestamp, out: &mut Vec<(Timestamp, u32)>) {
        let mut index = head;
        while index != NIL {
            let Entry { due, handle, next } = self.entries[index as usize];
            if due <= now {
                out.push((due, handle));
                self.release(index);
            } else {
                self.link(index);
            }
            index = next;
        }
    }

    fn allocate(&mut self, entry: Entry) -> u32 {
        if let Some(free) = self.entries.get_mut(self.free as usize) {
            let index = std::mem::replace(&mut self.free, free.next);
            *free = entry;
            index
        } else {
            self.entries.push(entry);
            u32::try_from(self.entries.len() - 1)
                .ok()
                .filter(|index| *index != NIL)
                .expect("a wheel holds fewer than 2^32 handles")
        }
    }

    /// Puts an entry into its list, as seen from the current position of the wheel.
    fn link(&mut self, index: u32) {
        let due = self.entries[index as usize].due;
        let bits = due.to_ordered_bits();
        self.entries[index as usize].next = if bits <= self.now {
            self.ready_min_due = self.ready_min_due.min(due);
            std::mem::replace(&mut self.ready, index)
        } else {
            self.levels[level::level_of(self.now, bits)].push(bits, index)
        };
    }

    fn release(&mut self, index: u32) {
        self.entries[index as usize].next = std::mem::replace(&mut self.free, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ms(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    impl Wheel {
        /// The number of handles in the wheel.
        fn len(&self) -> usize {
            let mut free_count = 0;
            let mut index = self.free;
            while index != NIL {
                free_count += 1;
                index = self.entries[index as usize].next;
            }
            self.entries.len() - free_count
        }
    }

    /// A step of a random test.
    #[derive(Clone, Debug)]
    enum Step {
        /// Inserts a handle that is due this long after the last advance.
        Insert(i64),
        InsertAt(i64),
        /// Advances by this time, which may be negative.
        Advance(i64),
        AdvanceTo(i64),
        /// Advances to the time that the wheel returns as its next wake-up.
        AdvanceToNext,
    }

    fn distance() -> impl Strategy<Value = i64> {
        let day = 86_400_000i64;
        prop_oneof![
            4 => -3..70i64,
            3 => -10..5_000i64,
            3 => -5_000..300_000i64,
            2 => -day..day,
            1 => -day..400 * day,
            1 => any::<i64>(),
        ]
    }

    fn instant() -> impl Strategy<Value = i64> {
        prop_oneof![
            Just(i64::MIN),
            Just(i64::MIN + 1),
            Just(i64::MAX - 1),
            Just(i64::MAX),
            Just(-1),
            Just(0),
            any::<i64>()
        ]
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            12 => distance().prop_map(Step::Insert),
            1 => instant().prop_map(Step::InsertAt),
            4 => distance().prop_map(Step::Advance),
            4 => Just(Step::AdvanceToNext),
        ];
        let last = instant().prop_map(Step::AdvanceTo);
        (
            prop::collection::vec(step, 0..60),
            prop::option::of(last),
            prop::collection::vec(distance().prop_map(Step::Insert), 0..9),
        )
            .prop_map(|(mut steps, last, more)| {
                steps.extend(last);
                steps.extend(more);
                steps
            })
    }

    /// A wheel and a sorted set, which must behave alike.
    struct Pair {
        wheel: Wheel,
        reference: BTreeSet<(Timestamp, u32)>,
        now: i64,
        latest: i64,
    }

    impl Pair {
        fn new(now: i64) -> Self {
            Self {
                wheel: Wheel::new(ms(now)),
                reference: BTreeSet::new(),
                now,
                latest: now,
            }
        }

        fn take(&mut self, step: &Step, handle: u32) {
            match *step {
                Step::Insert(distance) => self.insert(self.now.saturating_add(distance), handle),
                Step::InsertAt(due) => self.insert(due, handle),
                Step::Advance(distance) => self.advance(self.now.saturating_add(distance)),
                Step::AdvanceTo(now) => self.advance(now),
                Step::AdvanceToNext => {
                    let next = self.wheel.next_wakeup();
                    self.advance(next.map_or(self.now, Timestamp::as_millis));
                }
            }
        }

        fn insert(&mut self, due: i64, handle: u32) {
            self.wheel.insert(ms(due), handle);
            self.reference.insert((ms(due), handle));
            self.check();
        }

        fn advance(&mut self, now: i64) {
            let next = self.wheel.next_wakeup();
            let mut out = vec![(ms(7), 7)];
            self.wheel.advance(ms(now), &mut out);
            assert_eq!(out.remove(0), (ms(7), 7), "earlier entries stay");
            out.sort_unstable();
            let later = self.reference.split_off(&(ms(now), u32::MAX));
            let due: Vec<_> = std::mem::replace(&mut self.reference, later)
                .into_iter()
                .collect();
            assert_eq!(out, due);
            assert!(
                now > self.latest || !due.is_empty() || self.wheel.next_wakeup() == next,
                "a step back changed the next wake-up"
            );
            self.now = now;
            self.latest = self.latest.max(now);
            self.check();
        }

        fn check(&self) {
            assert_eq!(self.wheel.len(), self.reference.len());
            let first = self.reference.first().map(|(due, _)| *due);
            let next = self.wheel.next_wakeup();
            assert_eq!(next.is_some(), first.is_some());
            assert!(next <= first, "{first:?} is due before {next:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn handles_come_out_once_and_on_time(now in instant(), steps in steps()) {
            let mut pair = Pair::new(now);
            for (handle, step) in steps.iter().enumerate() {
                pair.take(step, handle as u32);
            }
            pair.advance(i64::MAX);
            prop_assert_eq!(pair.wheel.len(), 0);
        }

        #[test]
        fn waking_at_the_next_wakeup_is_on_time_and_rare(
            now in -1_000_000_000_000..4_000_000_000_000i64,
            waits in prop::collection::vec(distance(), 0..20),
        ) {
            let mut pair = Pair::new(now);
            for (handle, wait) in waits.iter().enumerate() {
                pair.insert(now.saturating_add(*wait), handle as u32);
            }
            let mut wakeups = 0;
            while let Some(next) = pair.wheel.next_wakeup() {
                let due = pair.reference.first().unwrap().0;
                prop_assert!(next <= due);
                pair.advance(next.as_millis());
                wakeups += 1;
                prop_assert!(
                    wakeups <= waits.len() * LEVELS as usize,
                    "{wakeups} wake-ups for {} handles",
                    waits.len()
                );
            }
        }

        #[test]
        fn the_next_wakeup_is_exact_for_a_near_due_time(
            now in 0..4_000_000_000_000i64,
            waits in prop::collection::vec(1..64i64, 1..9),
        ) {
            let now = now & !63;
            let mut wheel = Wheel::new(ms(now));
            for wait in &waits {
                wheel.insert(ms(now + wait), 1);
            }
            let first = waits.iter().min().map(|wait| ms(now + wait));
            prop_assert_eq!(wheel.next_wakeup(), first);
        }
    }

    #[test]
    fn a_handle_that_is_already_due_comes_out_even_if_time_does_not_pass() {
        let mut pair = Pair::new(1_000);
        for due in [i64::MIN, 999, 1_000, 1_001] {
            pair.insert(due, 1);
        }
        pair.advance(1_000);
        assert_eq!(pair.wheel.len(), 1);
    }

    #[test]
    fn a_clock_that_steps_back_repeats_nothing_and_makes_nothing_early() {
        let mut pair = Pair::new(0);
        for due in [50, 150, 70_000] {
            pair.insert(due, due as u32);
        }
        for now in [100, 20, 99, 149, 150, -5, i64::MIN, 69_999, 70_000] {
            pair.advance(now);
        }
        assert_eq!(pair.wheel.len(), 0);
    }

    #[test]
    fn handles_inserted_after_a_step_back_are_due_by_the_earlier_clock() {
        let mut pair = Pair::new(3_600_000);
        pair.insert(70, 1);
        pair.insert(90, 2);
        for (now, left) in [(60, 2), (69, 2), (70, 1), (89, 1), (90, 0)] {
            pair.advance(now);
            assert_eq!(pair.wheel.len(), left, "at {now}");
        }
    }

    #[test]
    fn a_handle_inserted_twice_comes_out_twice() {
        let mut wheel = Wheel::new(ms(0));
        wheel.insert(ms(5), 1);
        wheel.insert(ms(5), 1);
        let mut out = Vec::new();
        wheel.advance(ms(5), &mut out);
        assert_eq!(out, [(ms(5), 1); 2]);
    }

    #[test]
    fn entries_are_reused() {
        let mut wheel = Wheel::new(ms(0));
        let mut out = Vec::new();
        for now in 0..10_000 {
            wheel.insert(ms(now + 100), now as u32);
            wheel.advance(ms(now), &mut out);
        }
        assert_eq!(out.len() + wheel.len(), 10_000);
        assert!(wheel.entries.len() <= 101, "{}", wheel.entries.len());
    }
}
