//! One level of the wheel: 64 slots, and a bit for each that says whether anything lies in it. What lies there is the wheel's affair: a slot
//! is the head of a list.
//!
//! An instant is taken as 64 bits without a sign, in groups of six from the right: its digit at level L is bits `6L..6L+6`, and the slot
//! where it lies. A due later than now lies at the level of the highest digit in which the two differ:
//!
//! | level | bits | a slot spans | the level spans |
//! |---|---|---|---|
//! | 0 | 0..6 | 1 ms | 64 ms |
//! | 1 | 6..12 | 64 ms | 4.1 s |
//! | 2 | 12..18 | 4.1 s | 4.4 min |
//! | 3 | 18..24 | 4.4 min | 4.7 h |
//! | 4 | 24..30 | 4.7 h | 12.4 days |
//! | 5 | 30..36 | 12.4 days | 2.2 years |
//! | 6 | 36..42 | 2.2 years | 139 years |
//! | 7 | 42..48 | 139 years | 8,900 years |
//! | 8 | 48..54 | 8,900 years | 570 thousand years |
//! | 9 | 54..60 | 570 thousand years | 37 million years |
//! | 10 | 60..64 | 37 million years | every instant there is, in 16 slots |
//!
//! So above its level a due has the digits of now, and at its level a greater one. Hence all of a lower level is due before all of a higher
//! one, slots of a level are due from left to right, none lies left of now's digit, and nothing is too far away for the wheel.

/// Ends a list.
pub(super) const NIL: u32 = u32::MAX;

/// Levels that it takes to hold any instant.
pub(super) const LEVELS: u32 = u64::BITS.div_ceil(DIGIT_BITS);

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;

/// The level where `due` lies if it is now `now`, which is earlier.
pub(super) fn level_of(now: u64, due: u64) -> usize {
    debug_assert!(now < due, "what is due lies in no slot");
    ((now ^ due).ilog2() / DIGIT_BITS) as usize
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Level {
    /// Bits to the right of this level's digit.
    shift: u32,
    occupied: u64,
    /// Meaningful where `occupied` says so.
    heads: [u32; SLOTS],
}

impl Level {
    pub(super) fn new(number: u32) -> Self {
        Self {
            shift: number * DIGIT_BITS,
            occupied: 0,
            heads: [NIL; SLOTS],
        }
    }

    /// Makes `head` the first of the slot of `due`, and answers what was before: the rest of its list.
    pub(super) fn push(&mut self, due: u64, head: u32) -> u32 {
        let slot = self.digit(due);
        let rest = std::mem::replace(&mut self.heads[slot], head);
        let was_empty = self.occupied & (1 << slot) == 0;
        self.occupied |= 1 << slot;
        if was_empty { NIL } else { rest }
    }

    /// Takes the list of the first occupied slot that begins in `..=now`, if the wheel stood at `before`.
    pub(super) fn pop(&mut self, before: u64, now: u64) -> Option<u32> {
        let slot = self.occupied.trailing_zeros() as usize;
        if self.occupied == 0 || (self.shares_upper_digits(before, now) && slot > self.digit(now)) {
            return None;
        }
        self.occupied &= self.occupied - 1;
        Some(self.heads[slot])
    }

    /// Whether `a` and `b` differ in no digit above this level, so that time between the two passes no slot of a higher one.
    pub(super) fn shares_upper_digits(&self, a: u64, b: u64) -> bool {
        (a ^ b) & !self.span_mask() == 0
    }

    /// When the first occupied slot begins, if the wheel stands at `now`.
    pub(super) fn first_slot_start(&self, now: u64) -> Option<u64> {
        let slot = u64::from(self.occupied.trailing_zeros());
        (self.occupied != 0).then(|| (now & !self.span_mask()) | (slot << self.shift))
    }

    fn digit(&self, instant: u64) -> usize {
        (instant >> self.shift) as usize % SLOTS
    }

    /// Ones where this level's digit and the lower ones are.
    fn span_mask(&self) -> u64 {
        1u64.checked_shl(self.shift + DIGIT_BITS)
            .map_or(u64::MAX, |above| above - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_due_lies_at_the_level_of_the_highest_digit_that_differs() {
        let table = [
            (0, 1, 0),
            (0, 63, 0),
            (0, 64, 1),
            (63, 64, 1),
            (4095, 4096, 2),
            (64, 65, 0),
            (100, 128, 1),
            (0, u64::MAX, 10),
        ];
        for (now, due, level) in table {
            assert_eq!(level_of(now, due), level, "{due} at {now}");
        }
        assert_eq!(level_of(u64::MAX - 1, u64::MAX), 0);
        assert_eq!(level_of((1 << 60) - 1, 1 << 60), 10);
    }

    #[test]
    fn next_is_where_the_first_occupied_slot_begins() {
        let now = 5 << 12 | 3 << 6;
        let mut level = Level::new(1);
        assert_eq!(level.first_slot_start(now), None);
        level.push(now + 64 * 9 + 17, 1);
        level.push(now + 64 * 4 + 63, 2);
        assert_eq!(level.first_slot_start(now), Some(now + 64 * 4));
        let mut top = Level::new(LEVELS - 1);
        top.push(u64::MAX, 1);
        assert_eq!(top.first_slot_start(now), Some(15 << 60));
    }

    #[test]
    fn slots_come_out_when_they_begin_and_not_before() {
        let mut level = Level::new(1);
        assert_eq!(
            (level.push(130, 1), level.push(190, 2), level.push(200, 3)),
            (NIL, 1, NIL)
        );
        assert_eq!(level.pop(0, 127), None);
        assert_eq!(level.pop(0, 128), Some(2));
        assert_eq!(level.pop(0, 128), None);
        assert_eq!(level.push(200, 4), 3);
        assert_eq!(level.pop(0, 4096), Some(4));
        assert_eq!(
            (level.pop(0, 4096), level.first_slot_start(0)),
            (None, None)
        );
    }

    #[test]
    fn levels_that_time_between_two_instants_does_not_reach_are_told() {
        let level = Level::new(1);
        assert!(level.shares_upper_digits(4096, 8191) && !level.shares_upper_digits(4095, 4096));
        assert!(Level::new(LEVELS - 1).shares_upper_digits(0, u64::MAX));
    }
}
