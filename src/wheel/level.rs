//! One level of the timing wheel: 64 slots, and a bitmap of the slots that are occupied.
//!
//! An instant is an unsigned 64-bit number, read as groups of six bits from the right. Its digit at
//! level L is bits `6L..6L+6`, and that digit is its slot. A due time later than now is stored at
//! the level of the highest digit in which the two differ:
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
//! | 10 | 60..64 | 37 million years | all instants, in 16 slots |
//!
//! Above its level a due time has the same digits as now, and at its level a greater digit. Hence:
//!
//! - Everything at a lower level is due before everything at a higher level.
//! - The slots of a level are due from left to right, and none is left of now's digit.
//! - Every instant has a slot.

/// Marks the end of a list.
pub(super) const NIL: u32 = u32::MAX;

/// Number of levels that cover every instant.
pub(super) const LEVELS: u32 = u64::BITS.div_ceil(DIGIT_BITS);

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;

/// The level of `due` at the time `now`, which must be earlier.
pub(super) fn level_of(now: u64, due: u64) -> usize {
    debug_assert!(now < due, "a handle that is already due has no slot");
    ((now ^ due).ilog2() / DIGIT_BITS) as usize
}

/// The slots of one level. The wheel owns the lists; a slot stores only the head of its list.
#[derive(Debug)]
pub(super) struct Level {
    /// Number of bits below this level's digit.
    shift: u32,
    occupied: u64,
    /// Valid only for the slots marked in `occupied`.
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

    /// Makes `head` the first entry in the slot of `due`. Returns the previous first entry.
    pub(super) fn push(&mut self, due: u64, head: u32) -> u32 {
        let slot = self.digit(due);
        let rest = std::mem::replace(&mut self.heads[slot], head);
        let was_empty = self.occupied & (1 << slot) == 0;
        self.occupied |= 1 << slot;
        if was_empty { NIL } else { rest }
    }

    /// Removes the list of the first occupied slot that starts at `now` or earlier. `before` is the
    /// previous position of the wheel.
    pub(super) fn pop(&mut self, before: u64, now: u64) -> Option<u32> {
        let slot = self.occupied.trailing_zeros() as usize;
        if self.occupied == 0 || (self.shares_upper_digits(before, now) && slot > self.digit(now)) {
            return None;
        }
        self.occupied &= self.occupied - 1;
        Some(self.heads[slot])
    }

    /// Returns whether `a` and `b` agree in all digits above this level. If so, the time between
    /// them passes no slot of a higher level.
    pub(super) fn shares_upper_digits(&self, a: u64, b: u64) -> bool {
        (a ^ b) & !self.span_mask() == 0
    }

    /// The start of the first occupied slot, for a wheel at the position `now`.
    pub(super) fn first_slot_start(&self, now: u64) -> Option<u64> {
        let slot = u64::from(self.occupied.trailing_zeros());
        (self.occupied != 0).then(|| (now & !self.span_mask()) | (slot << self.shift))
    }

    fn digit(&self, instant: u64) -> usize {
        (instant >> self.shift) as usize % SLOTS
    }

    /// Mask of this level's digit and all lower digits.
    fn span_mask(&self) -> u64 {
        1u64.checked_shl(self.shift + DIGIT_BITS)
            .map_or(u64::MAX, |above| above - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_of_a_due_time_is_the_highest_differing_digit() {
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
    fn the_first_slot_start_follows_the_first_occupied_slot() {
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
    fn a_slot_is_popped_at_its_start_and_not_earlier() {
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
        assert_eq!(level.pop(0, 4096), None);
        assert_eq!(level.first_slot_start(0), None);
    }

    #[test]
    fn shared_upper_digits_mean_that_no_higher_slot_was_passed() {
        let level = Level::new(1);
        assert!(level.shares_upper_digits(4096, 8191));
        assert!(!level.shares_upper_digits(4095, 4096));
        assert!(Level::new(LEVELS - 1).shares_upper_digits(0, u64::MAX));
    }
}
