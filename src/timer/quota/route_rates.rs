//! The rates of the routes of a timer, in messages per second: `rate` for all messages, and
//! `catch_up_rate` for messages that are later than `CATCH_UP_LATENESS_MIN`.
//!
//! All workers together keep to a rate: each has a share in proportion to the shards that it serves.

use super::rate_bucket::RateBucket;
use crate::limit::CATCH_UP_LATENESS_MIN;
use crate::model::Timestamp;
use crate::timer::RouteOptions;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) struct RouteRates(BTreeMap<Arc<str>, RouteRate>);

struct RouteRate {
    all: RateLimit,
    late: RateLimit,
    /// Shards of the route over all workers. 0 if unknown.
    shards: usize,
}

/// An option of a route, and the bucket that keeps to it.
struct RateLimit {
    option: watch::Receiver<Option<u32>>,
    /// `None`: no limit.
    bucket: Option<RateBucket>,
}

impl RouteRates {
    pub(crate) fn new(routes: &BTreeMap<Arc<str>, Rc<RouteOptions>>, now: Instant) -> Self {
        let rates = routes.iter().map(|(route, options)| {
            let rate = RouteRate {
                all: RateLimit::new(options.rate.clone(), now),
                late: RateLimit::new(options.catch_up_rate.clone(), now),
                shards: 0,
            };
            (route.clone(), rate)
        });
        Self(rates.collect())
    }

    /// Sets how many shards each route has over all workers. A route that is not named keeps its number.
    pub(crate) fn set_shard_counts(&mut self, shards: &BTreeMap<Arc<str>, usize>) {
        for (route, count) in shards {
            if let Some(rate) = self.0.get_mut(route) {
                rate.shards = *count;
            }
        }
    }

    /// Sets how many shards of each route this worker serves.
    pub(crate) fn set_served(&mut self, served: impl Fn(&str) -> usize, now: Instant) {
        for (route, rate) in &mut self.0 {
            for limit in [&mut rate.all, &mut rate.late] {
                limit.follow_option(now);
                if let Some(bucket) = &mut limit.bucket {
                    bucket.set_share(served(route), rate.shards, now);
                }
            }
        }
    }

    /// The bucket for all messages of the route, if it has a `rate`.
    pub(crate) fn rate(&mut self, route: &str) -> Option<&mut RateBucket> {
        self.0.get_mut(route)?.all.bucket.as_mut()
    }

    /// The bucket for late messages of the route, if it has a `catch_up_rate`.
    pub(crate) fn catch_up_rate(&mut self, route: &str) -> Option<&mut RateBucket> {
        self.0.get_mut(route)?.late.bucket.as_mut()
    }

    /// Returns whether the route has a `rate`.
    pub(crate) fn has_rate(&self, route: &str) -> bool {
        self.0
            .get(route)
            .is_some_and(|rate| rate.all.bucket.is_some())
    }
}

impl RateLimit {
    fn new(option: watch::Receiver<Option<u32>>, now: Instant) -> Self {
        let mut limit = Self {
            option,
            bucket: None,
        };
        limit.follow_option(now);
        limit
    }

    /// Starts an empty bucket if the option has changed.
    fn follow_option(&mut self, now: Instant) {
        let option = *self.option.borrow();
        if self.bucket.as_ref().map(RateBucket::rate) != option {
            self.bucket = option.map(|rate| RateBucket::new(rate, now));
        }
    }
}

/// The catch-up rate applies to messages that are due before this time.
pub(crate) fn catch_up_before(wall: Timestamp) -> Timestamp {
    wall.minus(CATCH_UP_LATENESS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The rates of a worker. The option `rate` is what the test changes.
    fn rates(rate: watch::Receiver<Option<u32>>, shards: usize, start: Instant) -> RouteRates {
        let route = Arc::<str>::from("orders");
        let rate = RouteRate {
            all: RateLimit::new(rate, start),
            late: RateLimit::new(watch::channel(None).1, start),
            shards,
        };
        RouteRates(BTreeMap::from([(route, rate)]))
    }

    fn fixed(rate: u32) -> watch::Receiver<Option<u32>> {
        watch::channel(Some(rate)).1
    }

    /// The messages that the worker may claim after a second.
    fn room_after_a_second(rates: &mut RouteRates, served: usize, start: Instant) -> Option<usize> {
        rates.set_served(|_| served, start);
        let bucket = rates.rate("orders")?;
        Some(bucket.room(start + Duration::from_secs(1)).unwrap_or(0))
    }

    #[test]
    fn workers_together_keep_to_the_rate_while_shards_move() {
        const SHARDS: usize = 8;
        let start = Instant::now();
        let rate = 1_000;
        let mut workers: Vec<_> = (0..3).map(|_| rates(fixed(rate), SHARDS, start)).collect();
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
                    && let Some(bucket) = rates.rate("orders")
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
    fn a_worker_has_the_share_of_the_rate_that_its_shards_have_of_the_route() {
        let start = Instant::now();
        let share = |shards: usize, served: usize| {
            // A tenth of a second fits into the bucket.
            let mut rates = rates(fixed(1_000), shards, start);
            room_after_a_second(&mut rates, served, start)
        };
        assert_eq!(share(0, 1), Some(0), "the number of shards is unknown");
        let shares = [share(2, 1), share(2, 2), share(8, 0), share(8, 2)];
        assert_eq!(shares, [Some(50), Some(100), Some(0), Some(25)]);
    }

    #[test]
    fn a_route_that_is_not_counted_keeps_its_number_of_shards() {
        let start = Instant::now();
        let mut rates = rates(fixed(1_000), 0, start);
        rates.set_shard_counts(&BTreeMap::from([("orders".into(), 4)]));
        rates.set_shard_counts(&BTreeMap::from([("others".into(), 1)]));
        assert_eq!(room_after_a_second(&mut rates, 1, start), Some(25));
    }

    #[test]
    fn a_changed_rate_applies_to_the_next_claim() {
        let start = Instant::now();
        let option = watch::Sender::new(None);
        let mut rates = rates(option.subscribe(), 1, start);
        for (changed, expected) in [
            (Some(1_000), Some(100)),
            (Some(200), Some(20)),
            (None, None),
            (Some(700), Some(70)),
        ] {
            option.send_replace(changed);
            assert_eq!(room_after_a_second(&mut rates, 1, start), expected);
        }
    }
}
