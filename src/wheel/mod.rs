//! The wheel: a priority queue of values by the places (due, offset) at which they are due next.
//!
//! A schedule has one value for each loaded run, some thousands at most, and a sender one for each
//! claim in flight. So the wheel is a heap, not a timing wheel with slots for spans of time. It reads
//! no clock.

use crate::model::Cursor;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Values that are equally due come out in no particular order.
pub(crate) struct Wheel<T> {
    entries: BinaryHeap<Entry<T>>,
}

struct Entry<T> {
    place: Cursor,
    value: T,
}

/// Reversed, so that the heap has the least place first.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.place.cmp(&self.place)
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl<T> Eq for Entry<T> {}

impl<T> Wheel<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: BinaryHeap::new(),
        }
    }

    pub(crate) fn insert(&mut self, place: Cursor, value: T) {
        self.entries.push(Entry { place, value });
    }

    /// The least place.
    pub(crate) fn next_place(&self) -> Option<Cursor> {
        self.entries.peek().map(|entry| entry.place)
    }

    /// Calls `turn` for the value with the least place. It returns a result and the next place.
    /// A value without a next place leaves the wheel.
    pub(crate) fn turn<R>(
        &mut self,
        turn: impl FnOnce(&mut T) -> (R, Option<Cursor>),
    ) -> Option<R> {
        let mut entry = self.entries.peek_mut()?;
        let (result, next) = turn(&mut entry.value);
        match next {
            Some(place) => entry.place = place,
            None => _ = PeekMut::pop(entry),
        }
        Some(result)
    }

    /// Removes the value with the least place.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.entries.pop().map(|entry| entry.value)
    }

    /// Changes every value, and removes those for which `change` returns false. It must not change
    /// the next place of a value that stays.
    pub(crate) fn retain_mut(&mut self, mut change: impl FnMut(&mut T) -> bool) {
        let mut entries = std::mem::take(&mut self.entries).into_vec();
        entries.retain_mut(|entry| change(&mut entry.value));
        self.entries = entries.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, Timestamp};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn place(due: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(due), Offset(offset))
    }

    /// A step of a random test.
    #[derive(Clone, Debug)]
    enum Step {
        Insert(i64),
        /// Turns the next value. It is due again after this time, or leaves the wheel.
        Turn(Option<i64>),
        /// Keeps the values for which bit `value % 8` is set.
        Retain(u8),
    }

    fn due() -> impl Strategy<Value = i64> {
        prop_oneof![
            4 => -3..70i64,
            1 => any::<i64>(),
            1 => prop::sample::select(&[i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX]),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => due().prop_map(Step::Insert),
            4 => prop::option::of(0..100i64).prop_map(Step::Turn),
            1 => any::<u8>().prop_map(Step::Retain),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn values_come_out_once_and_in_order(steps in prop::collection::vec(step(), 0..60)) {
            let mut wheel = Wheel::new();
            let mut reference = BTreeSet::new();
            for (step, value) in steps.into_iter().zip(0_u64..) {
                match step {
                    Step::Insert(due) => {
                        wheel.insert(place(due, value), value);
                        reference.insert((place(due, value), value));
                    }
                    Step::Turn(again) => {
                        let first = reference.pop_first();
                        let next = |(at, value): (Cursor, u64)| {
                            let wait = again?;
                            let due = at.due.as_millis().saturating_add(wait);
                            Some(place(due, value))
                        };
                        let turned = wheel.turn(|value| (*value, next(first.expect("as many"))));
                        prop_assert_eq!(turned, first.map(|(_, value)| value));
                        reference.extend(first.and_then(|first| Some((next(first)?, first.1))));
                    }
                    Step::Retain(bits) => {
                        let keeps = |value: u64| bits & 1 << (value % 8) != 0;
                        wheel.retain_mut(|value| keeps(*value));
                        reference.retain(|(_, value)| keeps(*value));
                    }
                }
                prop_assert_eq!(wheel.next_place(), reference.first().map(|(place, _)| *place));
            }
            for (_, value) in reference {
                prop_assert_eq!(wheel.turn(|value| (*value, None)), Some(value));
            }
            prop_assert_eq!(wheel.next_place(), None);
        }
    }

    #[test]
    fn a_value_inserted_twice_comes_out_twice() {
        let mut wheel = Wheel::new();
        wheel.insert(place(5, 1), 1);
        wheel.insert(place(5, 1), 1);
        let mut turn = || wheel.turn(|value| (*value, None));
        assert_eq!((turn(), turn(), turn()), (Some(1), Some(1), None));
    }
}
