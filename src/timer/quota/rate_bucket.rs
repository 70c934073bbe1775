//! A token bucket: how many messages of a route this worker may claim now.

use crate::limit::{RATE_ASK_INTERVAL_MAX, RATE_ASK_INTERVAL_MIN, RATE_BURST_MIN, RATE_BURST_SPAN};
use std::time::Duration;
use tokio::time::Instant;

/// A token is the right to claim one message. The bucket is empty at first, and holds one burst.
pub(crate) struct RateBucket {
    /// The rate of the route, in messages per second.
    rate: u32,
    /// The share of this worker. It earns this many tokens per second.
    per_second: f64,
    tokens: f64,
    refilled_at: Instant,
    /// For how long the bucket was full, in total.
    full_time: Duration,
}

impl RateBucket {
    pub(super) fn new(rate: u32, now: Instant) -> Self {
        Self {
            rate,
            per_second: 0.0,
            tokens: 0.0,
            refilled_at: now,
            full_time: Duration::ZERO,
        }
    }

    pub(super) fn rate(&self) -> u32 {
        self.rate
    }

    /// Sets the share: the served part of all shards of the route. It is 0 while their number is unknown.
    pub(super) fn set_share(&mut self, served: usize, shards: usize, now: Instant) {
        // Tokens up to now were earned with the old share.
        self.refill(now);
        let part = served as f64 / shards.max(1) as f64;
        self.per_second = match shards {
            0 => 0.0,
            _ => f64::from(self.rate) * part.min(1.0),
        };
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled_at);
        let earned = elapsed.as_secs_f64() * self.per_second;
        let lost = self.tokens + earned - self.burst();
        if lost > 0.0 && self.has_share() {
            self.full_time += Duration::from_secs_f64(lost.min(earned) / self.per_second);
        }
        self.tokens = (self.tokens + earned).min(self.burst());
        self.refilled_at = now;
    }

    /// Returns for how long the bucket was full, in total. During this time the rate was not what kept
    /// messages waiting.
    pub(crate) fn full_time(&self) -> Duration {
        self.full_time
    }

    /// False while the number of shards is unknown, so that nothing may be claimed.
    pub(crate) fn has_share(&self) -> bool {
        self.per_second > 0.0
    }

    /// The greatest number of messages that may be claimed at once.
    pub(super) fn burst(&self) -> f64 {
        (self.per_second * RATE_BURST_SPAN.as_secs_f64()).max(RATE_BURST_MIN)
    }

    /// The least number of tokens that is given out. Claims of single messages would cost more than
    /// the messages. A claim of two has room for a late message and a fresh one.
    fn portion(&self) -> f64 {
        (self.burst() / 2.0).max(RATE_BURST_MIN)
    }

    /// Returns how many messages may be claimed now, or as an error the time to ask again.
    pub(crate) fn room(&mut self, now: Instant) -> Result<usize, Instant> {
        self.refill(now);
        let missing = self.portion() - self.tokens;
        if missing > 0.0 {
            // Without a share this is infinite.
            let wait = missing / self.per_second;
            let wait = Duration::from_secs_f64(wait.min(RATE_ASK_INTERVAL_MAX.as_secs_f64()));
            Err(now + wait.max(RATE_ASK_INTERVAL_MIN))
        } else {
            Ok(self.tokens as usize)
        }
    }

    /// May take more than there is. The next claims then wait until the debt is paid.
    pub(crate) fn spend(&mut self, messages: usize) {
        self.tokens -= messages as f64;
    }

    /// Messages that were claimed are not sent.
    pub(crate) fn give_back(&mut self, messages: usize) {
        self.tokens = (self.tokens + messages as f64).min(self.burst());
    }

    /// Returns whether as many messages are claimed and not acknowledged as one second of the share allows.
    /// If more were claimed, the end of an outage of the target would send them all at once.
    pub(crate) fn is_backed_up(&self, unacknowledged: usize) -> bool {
        unacknowledged as f64 >= self.per_second.max(self.burst())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: u32, now: Instant) -> RateBucket {
        let mut bucket = RateBucket::new(rate, now);
        bucket.set_share(1, 1, now);
        bucket
    }

    #[test]
    fn claims_keep_to_the_rate_however_often_and_however_much_is_claimed() {
        for (rate, greed) in [
            (1, 1),
            (7, 1),
            (30, 2),
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
                match bucket.room(now) {
                    Ok(room) => {
                        let some = room.min(greed);
                        bucket.spend(some);
                        assert!(
                            bucket.tokens >= 0.0,
                            "a claim within the room makes no debt"
                        );
                        taken += some;
                        now += Duration::from_millis(1);
                    }
                    // A tick may come late.
                    Err(at) => now = at + Duration::from_millis(2),
                }
            }
            let most = 60 * rate as usize + bucket.burst() as usize;
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
        assert_eq!(bucket.room(later), Ok(100));
        bucket.give_back(50);
        assert_eq!(bucket.room(later), Ok(100));
        bucket.spend(500);
        let at = bucket.room(later).expect_err("the bucket is overdrawn");
        assert_eq!(at, later + RATE_ASK_INTERVAL_MAX, "the rate may change");
        let paid = later + Duration::from_millis(451);
        assert_eq!(bucket.room(paid).map(|room| room > 0), Ok(true));
    }

    #[test]
    fn the_time_in_which_tokens_are_lost_is_measured() {
        let start = Instant::now();
        let mut bucket = bucket(100, start);
        let after = |millis| start + Duration::from_millis(millis);
        let full_time = |bucket: &mut RateBucket, millis| {
            let _ = bucket.room(after(millis));
            (bucket.full_time().as_secs_f64() * 1_000.0).round() as u64
        };
        assert_eq!(full_time(&mut bucket, 100), 0, "it holds ten tokens");
        assert_eq!(full_time(&mut bucket, 500), 400);
        bucket.spend(10);
        assert_eq!(full_time(&mut bucket, 590), 400);
        assert_eq!(full_time(&mut bucket, 602), 402);
    }

    #[test]
    fn one_second_of_the_share_may_wait_for_its_acknowledgement() {
        let now = Instant::now();
        let mut bucket = bucket(100, now);
        assert!(!bucket.is_backed_up(99) && bucket.is_backed_up(100));
        bucket.set_share(1, 1_000, now);
        assert!(!bucket.is_backed_up(1), "a burst is always allowed");
        assert!(bucket.is_backed_up(2));
    }

    #[test]
    fn a_small_share_gives_out_two_tokens_at_once() {
        let start = Instant::now();
        let mut bucket = bucket(10, start);
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(bucket.room(after(150)), Err(after(200)));
        let almost = after(200) - Duration::from_nanos(1);
        assert!(bucket.room(almost).is_err_and(|at| at > almost));
        assert_eq!(bucket.room(after(201)), Ok(2));
        assert_eq!(bucket.room(after(9_000)), Ok(2), "no more are kept");
    }
}
