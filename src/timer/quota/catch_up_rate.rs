//! Limits how fast a route catches up after an outage.
//!
//! The limit applies to messages that are later than `CATCH_UP_LATENESS_MIN`. All workers together
//! keep to the route's rate: each has a part of it in proportion to the shards that it serves.

use crate::limit::{CATCH_UP_CLAIM_SPAN, CATCH_UP_LATENESS_MIN};
use crate::model::Timestamp;
use crate::timer::RouteOptions;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) struct CatchUpRates(BTreeMap<Arc<str>, RouteRate>);

/// The rate of one route.
struct RouteRate {
    option: watch::Receiver<Option<u32>>,
    /// Shards of the route over all workers. 0 if unknown.
    total_shards: usize,
    /// `None`: no limit.
    bucket: Option<RateBucket>,
}

/// A token bucket that holds up to two bursts.
///
/// A claim may overdraw it, because late messages and others are claimed together. Then the next
/// claims wait until the debt is paid.
pub(crate) struct RateBucket {
    rate: f64,
    /// This worker's part of the rate.
    per_second: f64,
    tokens: f64,
    refilled_at: Instant,
}

impl CatchUpRates {
    pub(crate) fn new(routes: &BTreeMap<Arc<str>, Rc<RouteOptions>>, now: Instant) -> Self {
        let rates = routes.iter().map(|(route, options)| {
            let rate = RouteRate::new(options.catch_up_rate.clone(), now);
            (route.clone(), rate)
        });
        Self(rates.collect())
    }

    /// Sets how many shards each route has over all workers.
    pub(crate) fn set_shard_counts(&mut self, shards: &BTreeMap<Arc<str>, usize>) {
        for (route, rate) in &mut self.0 {
            rate.total_shards = shards.get(route).copied().unwrap_or(0);
        }
    }

    /// Sets how many shards of each route this worker serves.
    pub(crate) fn set_served(&mut self, served: impl Fn(&str) -> usize, now: Instant) {
        for (route, rate) in &mut self.0 {
            rate.follow_option(now);
            if let Some(bucket) = &mut rate.bucket {
                bucket.set_served(served(route), rate.total_shards, now);
            }
        }
    }

    pub(crate) fn bucket(&mut self, route: &str) -> Option<&mut RateBucket> {
        self.0.get_mut(route)?.bucket.as_mut()
    }
}

impl RouteRate {
    fn new(option: watch::Receiver<Option<u32>>, now: Instant) -> Self {
        let mut rate = Self {
            option,
            total_shards: 0,
            bucket: None,
        };
        rate.follow_option(now);
        rate
    }

    /// Starts an empty bucket if the option has changed.
    fn follow_option(&mut self, now: Instant) {
        let option = *self.option.borrow();
        let known = self.bucket.as_ref().map(|bucket| bucket.rate);
        if known != option.map(f64::from) {
            self.bucket = option.map(|rate| RateBucket::new(rate, now));
        }
    }
}

/// The limit applies to messages that are due before this time.
pub(crate) fn catch_up_before(wall: Timestamp) -> Timestamp {
    wall.minus(CATCH_UP_LATENESS_MIN)
}

impl RateBucket {
    fn new(rate: u32, now: Instant) -> Self {
        let rate = f64::from(rate);
        Self {
            rate,
            per_second: rate,
            tokens: 0.0,
            refilled_at: now,
        }
    }

    fn set_served(&mut self, served: usize, total_shards: usize, now: Instant) {
        // Tokens up to now were earned at the old rate.
        self.refill(now);
        let part = served.max(1) as f64 / total_shards.max(1) as f64;
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
        (self.per_second * CATCH_UP_CLAIM_SPAN.as_secs_f64()).max(1.0)
    }

    /// Returns how many messages a shard that is behind may claim now, or as an error the time to
    /// ask again.
    pub(crate) fn room(&mut self, now: Instant) -> Result<usize, Instant> {
        self.refill(now);
        let missing = self.burst() - self.tokens;
        if missing > 0.0 {
            Err(now + Duration::from_secs_f64(missing / self.per_second))
        } else {
            Ok(self.tokens as usize)
        }
    }

    pub(crate) fn spend(&mut self, messages: usize) {
        self.tokens -= messages as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let mut bucket = RateBucket::new(rate, start);
            let mut now = start;
            let mut taken = 0;
            while now < start + Duration::from_secs(60) {
                match bucket.room(now) {
                    Ok(room) => {
                        let some = room.min(greed);
                        bucket.tokens -= some as f64;
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

    fn rates(rate: u32, shards: usize, start: Instant) -> CatchUpRates {
        let route = Arc::<str>::from("orders");
        let rate = RouteRate::new(watch::channel(Some(rate)).1, start);
        let mut rates = CatchUpRates(BTreeMap::from([(route.clone(), rate)]));
        rates.set_shard_counts(&BTreeMap::from([(route, shards)]));
        rates
    }

    #[test]
    fn workers_together_keep_to_the_rate_while_shards_move() {
        const SHARDS: usize = 8;
        let start = Instant::now();
        let rate = 1_000;
        let mut workers: Vec<_> = (0..3).map(|_| rates(rate, SHARDS, start)).collect();
        let mut taken = 0;
        let mut burst = 0;
        for millis in 0..60_000u64 {
            let now = start + Duration::from_millis(millis);
            // Every twenty seconds one more worker joins. Each shard has one worker at a time.
            let live = 1 + (millis / 20_000) as usize;
            for (me, rates) in workers.iter_mut().enumerate() {
                let served = (0..SHARDS).filter(|shard| shard % live == me).count();
                rates.set_served(|_| served, now);
                if served > 0
                    && let Some(bucket) = rates.bucket("orders")
                    && let Ok(room) = bucket.room(now)
                {
                    bucket.spend(room);
                    taken += room;
                    burst = burst.max(room);
                }
            }
        }
        let all = 60 * rate as usize;
        assert!(taken <= all + 3 * burst && taken >= all * 9 / 10, "{taken}");
    }

    #[test]
    fn a_worker_has_the_part_of_the_rate_that_its_shards_have_of_the_route() {
        let start = Instant::now();
        let mut rates = rates(100, 0, start);
        let mut part_of = |shards: usize, served: usize| {
            rates.set_shard_counts(&BTreeMap::from([("orders".into(), shards)]));
            rates.set_served(|_| served, start);
            rates.bucket("orders").unwrap().per_second.round() as u32
        };
        assert_eq!(part_of(0, 1), 100, "the number of shards is unknown");
        let parts = [part_of(2, 1), part_of(2, 2), part_of(8, 0), part_of(8, 2)];
        assert_eq!(parts, [50, 100, 13, 25]);
    }

    #[test]
    fn a_changed_rate_applies_to_the_next_claim() {
        let start = Instant::now();
        let option = watch::Sender::new(None);
        let rate = RouteRate::new(option.subscribe(), start);
        let mut rates = CatchUpRates(BTreeMap::from([("orders".into(), rate)]));
        let mut per_second = |changed: Option<u32>| {
            option.send_replace(changed);
            rates.set_served(|_| 1, start);
            rates
                .bucket("orders")
                .map(|bucket| bucket.per_second as u32)
        };
        for changed in [Some(100), Some(20), None, Some(7)] {
            assert_eq!(per_second(changed), changed);
        }
    }

    #[test]
    fn unused_tokens_do_not_add_up() {
        let start = Instant::now();
        let mut bucket = RateBucket::new(1_000, start);
        let later = start + Duration::from_secs(3_600);
        assert_eq!(bucket.room(later), Ok(2 * bucket.burst() as usize));
        bucket.tokens -= 500.0;
        let at = bucket.room(later).expect_err("the bucket is overdrawn");
        assert_eq!(bucket.room(at).map(|room| room > 0), Ok(true));
    }
}
