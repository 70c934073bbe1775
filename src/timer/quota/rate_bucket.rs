//! A token bucket: how many messages a worker may send now so that it keeps to a rate.

use crate::limit::RATE_BURST_SPAN;
use std::time::Duration;
use tokio::time::Instant;

/// Holds up to two bursts of tokens, and starts empty.
///
/// More may be spent than it holds. Then the next messages wait until the debt is paid.
pub(crate) struct RateBucket {
    rate: f64,
    /// This worker's part of the rate.
    per_second: f64,
    tokens: f64,
    refilled_at: Instant,
}

impl RateBucket {
    pub(super) fn new(rate: u32, now: Instant) -> Self {
        Self {
            rate: f64::from(rate),
            per_second: 0.0,
            tokens: 0.0,
            refilled_at: now,
        }
    }

    /// The rate of all workers together.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Sets this worker's part of the rate. `total_shards` is 0 if their number is unknown: then the
    /// worker has no part.
    pub(super) fn set_served(&mut self, served: usize, total_shards: usize, now: Instant) {
        // Tokens up to now were earned at the old rate.
        self.refill(now);
        let part = match total_shards {
            0 => 0.0,
            total => served as f64 / total as f64,
        };
        self.per_second = self.rate * part.min(1.0);
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled_at);
        let earned = elapsed.as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + earned).min(2.0 * self.burst());
        self.refilled_at = now;
    }

    /// The least number of tokens that is given out: claims of single messages would cost more than
    /// the messages.
    fn burst(&self) -> f64 {
        (self.per_second * RATE_BURST_SPAN.as_secs_f64()).max(1.0)
    }

    /// Returns how many messages may be claimed now, or as an error the time to ask again. `reserved`
    /// messages are claimed already, and have not spent their tokens yet.
    pub(super) fn room(&mut self, reserved: usize, now: Instant) -> Result<usize, Instant> {
        self.refill(now);
        let free = self.tokens - reserved as f64;
        let missing = self.burst() - free;
        if missing <= 0.0 {
            Ok(free as usize)
        } else if self.per_second > 0.0 {
            Err(now + Duration::from_secs_f64(missing / self.per_second))
        } else {
            Err(now + RATE_BURST_SPAN)
        }
    }

    pub(super) fn spend(&mut self, messages: usize, now: Instant) {
        self.refill(now);
        self.tokens -= messages as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket(rate: u32, now: Instant) -> RateBucket {
        let mut bucket = RateBucket::new(rate, now);
        bucket.set_served(1, 1, now);
        bucket
    }

    #[test]
    fn claims_keep_to_the_rate_however_often_and_however_much_is_claimed() {
        for (rate, greed) in [
            (1, 1),
            (7, 1),
            (200, 3),
            (200, 500),
            (50_000, 100_000),
            (10_000_000, 4_096),
        ] {
            let start = Instant::now();
            let mut bucket = bucket(rate, start);
            let mut now = start;
            let mut taken = 0;
            while now < start + Duration::from_secs(60) {
                match bucket.room(0, now) {
                    Ok(room) => {
                        let some = room.min(greed);
                        bucket.spend(some, now);
                        taken += some;
                        now += Duration::from_millis(1);
                    }
                    // A tick may come late.
                    Err(at) => now = at + Duration::from_millis(2),
                }
            }
            let most = 60 * rate as usize + 2 * bucket.burst() as usize;
            assert!(taken <= most, "{rate}: {taken}");
            assert!(
                taken >= (60 * rate as usize * 9 / 10).min(greed * 50_000),
                "{rate}: {taken}"
            );
        }
    }

    #[test]
    fn unused_tokens_do_not_add_up() {
        let start = Instant::now();
        let mut bucket = bucket(1_000, start);
        let later = start + Duration::from_secs(3_600);
        assert_eq!(bucket.room(0, later), Ok(2 * bucket.burst() as usize));
        bucket.spend(500, later);
        let at = bucket.room(0, later).expect_err("the bucket is overdrawn");
        assert_eq!(bucket.room(0, at).map(|room| room > 0), Ok(true));
    }

    #[test]
    fn claimed_messages_keep_their_tokens() {
        let start = Instant::now();
        let mut bucket = bucket(1_000, start);
        let later = start + Duration::from_secs(1);
        let room = bucket.room(0, later).expect("it is full");
        assert!(bucket.room(room, later).is_err());
        bucket.spend(room, later);
        assert!(bucket.room(0, later).is_err(), "they were sent");
    }

    #[test]
    fn a_worker_that_does_not_know_its_part_sends_nothing() {
        let start = Instant::now();
        let mut bucket = RateBucket::new(1_000, start);
        let later = start + Duration::from_secs(3_600);
        assert!(bucket.room(0, later).is_err());
        bucket.set_served(4, 0, later);
        assert!(bucket.room(0, later + Duration::from_secs(60)).is_err());
    }

    proptest! {
        /// Messages are claimed ahead, and sent some time later. However they are sent, no window of
        /// time has more than the rate allows for it and two bursts.
        #[test]
        fn no_window_has_more_messages_than_the_rate_and_two_bursts(
            rate in 1u32..5_000,
            steps in prop::collection::vec((0u64..300, 0usize..400, 0usize..400), 1..120),
        ) {
            let start = Instant::now();
            let mut bucket = bucket(rate, start);
            let (mut now, mut claimed) = (start, 0);
            let mut sends: Vec<(Instant, usize)> = Vec::new();
            for (wait, greed, sent) in steps {
                now += Duration::from_millis(wait);
                if let Ok(room) = bucket.room(claimed, now) {
                    claimed += room.min(greed);
                }
                let sent = sent.min(claimed);
                bucket.spend(sent, now);
                claimed -= sent;
                sends.push((now, sent));
            }
            for (index, (from, _)) in sends.iter().enumerate() {
                let mut sum = 0;
                for (at, sent) in &sends[index..] {
                    sum += sent;
                    let most = f64::from(rate) * (*at - *from).as_secs_f64() + 2.0 * bucket.burst();
                    prop_assert!(sum as f64 <= most + 1e-6, "{sum} of {most}");
                }
            }
        }
    }
}
