//! The two rates of a route: `rate` for everything that it sends to its targets, and
//! `catch_up_rate` for messages that are later than `CATCH_UP_LATENESS_MIN` after an outage.
//!
//! All workers together keep to a rate: each has a part of it in proportion to the shards that it
//! serves. A lease gives a shard to one worker at a time, so the parts never exceed the whole.
//!
//! `rate` counts messages when they are sent, and reserves tokens for those that are claimed. So a
//! claimed message never waits for the rate. `catch_up_rate` counts messages when they are claimed.

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

pub(crate) struct RouteRate {
    all: Rate,
    late: Rate,
    /// Shards of the route over all workers. 0 if unknown.
    total_shards: usize,
    /// Messages that are claimed and not sent.
    reserved: usize,
}

/// A rate that a reload of the configuration may change.
struct Rate {
    option: watch::Receiver<Option<u32>>,
    /// `None`: no limit.
    bucket: Option<RateBucket>,
}

impl RouteRates {
    pub(crate) fn new(routes: &BTreeMap<Arc<str>, Rc<RouteOptions>>) -> Self {
        let rates = routes.iter().map(|(route, options)| {
            let (all, late) = (options.rate.clone(), options.catch_up_rate.clone());
            (route.clone(), RouteRate::new(all, late))
        });
        Self(rates.collect())
    }

    /// Sets how many shards each route has over all workers.
    pub(crate) fn set_shard_counts(&mut self, shards: &BTreeMap<Arc<str>, usize>) {
        for (route, rate) in &mut self.0 {
            rate.total_shards = shards.get(route).copied().unwrap_or(0);
        }
    }

    /// Begins a plan of claims: sets how many shards of each route this worker serves, and forgets
    /// the reserved messages.
    pub(crate) fn begin_plan(&mut self, served: impl Fn(&str) -> usize, now: Instant) {
        for (route, rate) in &mut self.0 {
            let (served, total) = (served(route), rate.total_shards);
            rate.all.set_served(served, total, now);
            rate.late.set_served(served, total, now);
            rate.reserved = 0;
        }
    }

    pub(crate) fn of(&mut self, route: &str) -> Option<&mut RouteRate> {
        self.0.get_mut(route)
    }
}

impl RouteRate {
    fn new(all: watch::Receiver<Option<u32>>, late: watch::Receiver<Option<u32>>) -> Self {
        Self {
            all: Rate::new(all),
            late: Rate::new(late),
            total_shards: 0,
            reserved: 0,
        }
    }

    /// True if the rate limits all messages of the route.
    pub(crate) fn limits_all(&self) -> bool {
        self.all.bucket.is_some()
    }

    /// Keeps tokens for messages that are claimed.
    pub(crate) fn reserve(&mut self, messages: usize) {
        self.reserved += messages;
    }

    /// Returns how many messages may be claimed now, or as an error the time to ask again.
    pub(crate) fn room(&mut self, now: Instant) -> Result<usize, Instant> {
        let reserved = self.reserved;
        let bucket = self.all.bucket.as_mut();
        bucket.map_or(Ok(usize::MAX), |bucket| bucket.room(reserved, now))
    }

    /// Messages were sent to targets.
    pub(crate) fn on_sent(&mut self, messages: usize, now: Instant) {
        if let Some(bucket) = &mut self.all.bucket {
            bucket.spend(messages, now);
        }
    }

    /// Like [`RouteRate::room`], for a shard that is behind.
    pub(crate) fn catch_up_room(&mut self, now: Instant) -> Result<usize, Instant> {
        let bucket = self.late.bucket.as_mut();
        bucket.map_or(Ok(usize::MAX), |bucket| bucket.room(0, now))
    }

    /// Late messages were claimed.
    pub(crate) fn on_late_claimed(&mut self, messages: usize, now: Instant) {
        if let Some(bucket) = &mut self.late.bucket {
            bucket.spend(messages, now);
        }
    }
}

impl Rate {
    fn new(option: watch::Receiver<Option<u32>>) -> Self {
        Self {
            option,
            bucket: None,
        }
    }

    /// Starts an empty bucket if the option has changed.
    fn set_served(&mut self, served: usize, total_shards: usize, now: Instant) {
        let option = *self.option.borrow();
        let known = self.bucket.as_ref().map(RateBucket::rate);
        if known != option.map(f64::from) {
            self.bucket = option.map(|rate| RateBucket::new(rate, now));
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.set_served(served, total_shards, now);
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

    fn rates(rate: Option<u32>, shards: usize) -> RouteRates {
        let route = Arc::<str>::from("orders");
        let option = || watch::channel(rate).1;
        let rate = RouteRate::new(option(), option());
        let mut rates = RouteRates(BTreeMap::from([(route.clone(), rate)]));
        rates.set_shard_counts(&BTreeMap::from([(route, shards)]));
        rates
    }

    /// The messages that may be claimed after a second without any.
    fn room(rates: &mut RouteRates, served: usize, now: &mut Instant) -> usize {
        rates.begin_plan(|_| served, *now);
        *now += Duration::from_secs(1);
        let rate = rates.of("orders").expect("the route is known");
        assert_eq!(rate.catch_up_room(*now), rate.room(*now));
        rate.room(*now).unwrap_or(0)
    }

    #[test]
    fn workers_together_keep_to_the_rate_while_shards_move() {
        const SHARDS: usize = 8;
        let start = Instant::now();
        let rate = 1_000;
        let mut workers: Vec<_> = (0..3).map(|_| rates(Some(rate), SHARDS)).collect();
        let (mut taken, mut burst) = (0, 0);
        for millis in 0..60_000u64 {
            let now = start + Duration::from_millis(millis);
            // Every twenty seconds one more worker joins. Each shard has one worker at a time.
            let live = 1 + (millis / 20_000) as usize;
            for (me, rates) in workers.iter_mut().enumerate() {
                let served = (0..SHARDS).filter(|shard| shard % live == me).count();
                rates.begin_plan(|_| served, now);
                let rate = rates.of("orders").expect("the route is known");
                if served > 0
                    && let Ok(room) = rate.room(now)
                {
                    rate.on_sent(room, now);
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
        let mut now = Instant::now();
        for (shards, served, part) in [
            (0, 1, 0), // The number of shards is unknown.
            (2, 1, 50),
            (2, 2, 100),
            (8, 0, 0),
            (8, 2, 25),
        ] {
            // A tenth of a second fits into the bucket.
            let mut rates = rates(Some(1_000), shards);
            let room = room(&mut rates, served, &mut now);
            assert_eq!(room, part, "{served} of {shards}");
        }
    }

    #[test]
    fn a_changed_rate_applies_to_the_next_claim() {
        let mut now = Instant::now();
        let option = watch::Sender::new(None);
        let rate = RouteRate::new(option.subscribe(), option.subscribe());
        let mut rates = RouteRates(BTreeMap::from([("orders".into(), rate)]));
        rates.set_shard_counts(&BTreeMap::from([("orders".into(), 1)]));
        for (changed, expected) in [
            (Some(1_000), 100),
            (Some(200), 20),
            (None, usize::MAX),
            (Some(700), 70),
        ] {
            option.send_replace(changed);
            assert_eq!(room(&mut rates, 1, &mut now), expected);
        }
    }
}
