//! Generates the demo's messages. The output depends only on the time and the seed.

use crate::limit::{DEMO_SENDS_PER_TICK_MAX, DEMO_TICK_INTERVAL};
use crate::model::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// One message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) number: u64,
    pub(super) key: String,
    pub(super) text: String,
    pub(super) when: When,
}

/// The requested delivery time, in the form of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    After(Duration),
    At(Timestamp),
}

impl When {
    /// The earliest due time if the message is sent at `now` or later.
    pub(super) fn due(self, now: Timestamp) -> Timestamp {
        match self {
            Self::After(delay) => now.plus(delay),
            Self::At(due) => due,
        }
    }
}

/// A kind of message: key prefix, payload, and range of delays in seconds.
struct Kind {
    key: &'static str,
    text: &'static str,
    seconds: (u64, u64),
}

const KINDS: [Kind; 5] = [
    Kind {
        key: "order",
        text: "close it unless it was paid",
        seconds: (4, 9),
    },
    Kind {
        key: "payment",
        text: "try the card again",
        seconds: (1, 4),
    },
    Kind {
        key: "cart",
        text: "still there? remind the customer",
        seconds: (3, 11),
    },
    Kind {
        key: "parcel",
        text: "ask whether it has arrived",
        seconds: (5, 10),
    },
    Kind {
        key: "webhook",
        text: "call again, it did not answer",
        seconds: (2, 6),
    },
];

/// Every few seconds, a group of messages with the same due time.
const WAVE: Kind = Kind {
    key: "offer",
    text: "tell the subscribers: it begins now",
    seconds: (3, 8),
};
const WAVE_LETTERS: usize = 18;
const WAVE_BEATS: u64 = 50;

/// The generator's state.
pub(super) struct Shop {
    random: StdRng,
    beat: u64,
    next: u64,
}

impl Shop {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            beat: 0,
            next: 0,
        }
    }

    /// The messages of this tick. All are due by `end`.
    pub(super) fn letters(&mut self, now: Timestamp, end: Timestamp) -> Vec<Letter> {
        self.beat += 1;
        let mut letters = Vec::new();
        for _ in 0..self.random.random_range(1..=3) {
            let kind = &KINDS[self.random.random_range(0..KINDS.len())];
            letters.extend(
                self.delay(kind, end.since(now))
                    .and_then(|delay| self.letter(kind, When::After(delay), (now, end))),
            );
        }
        if self.beat % WAVE_BEATS == WAVE_BEATS / 5 {
            let ahead = i64::try_from(self.random.random_range(WAVE.seconds.0..=WAVE.seconds.1))
                .expect("some seconds");
            let due =
                Timestamp::from_millis((now.as_millis().div_euclid(1_000) + 1 + ahead) * 1_000);
            letters.extend(
                (0..WAVE_LETTERS).filter_map(|_| self.letter(&WAVE, When::At(due), (now, end))),
            );
        }
        debug_assert!(letters.len() <= DEMO_SENDS_PER_TICK_MAX);
        letters
    }

    /// A random delay for the kind. It shortens near the end; `None` if even the minimum is too
    /// long.
    fn delay(&mut self, kind: &Kind, left: Duration) -> Option<Duration> {
        let (least, left) = (
            kind.seconds.0 * 1_000,
            u64::try_from(left.saturating_sub(2 * DEMO_TICK_INTERVAL).as_millis())
                .unwrap_or(u64::MAX),
        );
        let most = left.min(kind.seconds.1 * 1_000);
        (least <= most).then(|| Duration::from_millis(self.random.random_range(least..=most)))
    }

    fn letter(
        &mut self,
        kind: &Kind,
        when: When,
        (now, end): (Timestamp, Timestamp),
    ) -> Option<Letter> {
        // Sending may take up to one tick.
        (when.due(now).plus(DEMO_TICK_INTERVAL) <= end).then(|| {
            let key = format!("{}-{}", kind.key, self.random.random_range(1_000..10_000));
            self.next += 1;
            Letter {
                number: self.next - 1,
                key,
                text: kind.text.to_owned(),
                when,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(seed: u64, length: i64) -> Vec<Letter> {
        let (mut shop, end) = (Shop::new(seed), Timestamp::from_millis(length));
        let beats = (0..length).step_by(usize::try_from(DEMO_TICK_INTERVAL.as_millis()).unwrap());
        beats
            .flat_map(|now| shop.letters(Timestamp::from_millis(now), end))
            .collect()
    }

    #[test]
    fn numbers_have_no_gaps_and_a_seed_repeats_the_messages() {
        let letters = day(7, 30_000);
        assert!(
            letters
                .iter()
                .enumerate()
                .all(|(index, letter)| letter.number == index as u64)
        );
        assert_eq!(letters, day(7, 30_000));
        assert_ne!(letters, day(8, 30_000));
    }

    #[test]
    fn some_are_due_in_the_same_instant() {
        let letters = day(7, 30_000);
        let waves = letters
            .iter()
            .filter(|letter| matches!(letter.when, When::At(_)))
            .count();
        assert!(
            waves >= 4 * WAVE_LETTERS && waves.is_multiple_of(WAVE_LETTERS),
            "{waves}"
        );
    }

    #[test]
    fn nothing_is_due_after_the_end() {
        let (mut shop, end) = (Shop::new(1), Timestamp::from_millis(8_000));
        for now in (0..9_000).step_by(100).map(Timestamp::from_millis) {
            assert!(
                shop.letters(now, end)
                    .iter()
                    .all(|letter| letter.when.due(now) < end)
            );
        }
    }
}
