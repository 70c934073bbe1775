//! How fast routes catch up: what is behind its due by more than a moment is taken no faster than the route's rate, by all workers together.
//! Each has the part of it that the shards that it serves are of the route's, and shares it out among them as they ask. What is on time is
//! none of its business. Pure.

use super::RouteOptions;
use super::load::ResidentRun;
use super::work::ShardState;
use crate::limit::{CATCH_UP_CLAIM_SPAN, CATCH_UP_LATENESS_MIN};
use crate::model::Timestamp;
use crate::schedule::TakenBatch;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The paces of the routes that have one.
pub(super) struct CatchUpRates(BTreeMap<Arc<str>, RateBucket>);

/// A bucket that fills by this worker's part of the rate, up to two steps' worth. A claim may take more than there is, for what is behind and
/// what is not come together; then the next ones wait until it is made up for.
struct RateBucket {
    rate: f64,
    /// The shards of the route, whoever serves them; 0: nobody has said it.
    total_shards: usize,
    /// This worker's part of the rate.
    per_second: f64,
    tokens: f64,
    refilled_at: Instant,
}

impl CatchUpRates {
    pub(super) fn new(routes: &BTreeMap<Arc<str>, RouteOptions>, now: Instant) -> Self {
        let paced = routes.iter().filter_map(|(route, options)| {
            Some((route.clone(), RateBucket::new(options.catch_up_rate?, now)))
        });
        Self(paced.collect())
    }

    /// So many shards the routes have, whoever serves them.
    pub(super) fn set_shard_counts(&mut self, shards: &BTreeMap<Arc<str>, usize>) {
        for (route, pace) in &mut self.0 {
            pace.total_shards = shards.get(route).copied().unwrap_or(0);
        }
    }

    /// Of a route this worker serves so many shards.
    pub(super) fn set_served(&mut self, served: impl Fn(&str) -> usize, now: Instant) {
        for (route, pace) in &mut self.0 {
            pace.set_served(served(route), now);
        }
    }

    fn has(&self, route: &str) -> bool {
        self.0.contains_key(route)
    }

    /// How many messages of the route that are behind may be taken now; an error says when to ask again.
    fn room(&mut self, route: &str, now: Instant) -> Result<usize, Instant> {
        self.0
            .get_mut(route)
            .map_or(Ok(usize::MAX), |pace| pace.room(now))
    }

    /// So many were taken.
    fn spend(&mut self, route: &str, messages: usize) {
        if let Some(pace) = self.0.get_mut(route) {
            pace.tokens -= messages as f64;
        }
    }
}

impl ShardState {
    /// How many messages may be taken, of `room`: fewer while the shard is behind and its route catches up by a rate.
    pub(super) fn limit_catch_up(
        &mut self,
        paces: &mut CatchUpRates,
        room: usize,
        wall: Timestamp,
        now: Instant,
    ) -> usize {
        let route = &self.lease.shard.route;
        if room == 0
            || !paces.has(route)
            || self
                .schedule
                .earliest_due(wall)
                .is_none_or(|due| due >= catch_up_before(wall))
        {
            return room;
        }
        match paces.room(route, now) {
            Ok(most) => room.min(most),
            Err(at) => {
                self.no_claim_before = self.no_claim_before.max(Some(at));
                0
            }
        }
    }

    /// What was taken counts, if it was behind.
    pub(super) fn spend_catch_up(
        &self,
        paces: &mut CatchUpRates,
        take: &TakenBatch<ResidentRun>,
        wall: Timestamp,
    ) {
        let route = &self.lease.shard.route;
        if paces.has(route) {
            let is_behind = |(resident, at): &&(Rc<ResidentRun>, u32)| {
                let due = resident.run.place(*at as usize).due;
                !due.is_at_once() && due < catch_up_before(wall)
            };
            paces.spend(route, take.messages.iter().filter(is_behind).count());
        }
    }
}

/// What is due before it is behind.
fn catch_up_before(wall: Timestamp) -> Timestamp {
    Timestamp::from_millis(
        wall.as_millis()
            .saturating_sub(CATCH_UP_LATENESS_MIN.as_millis() as i64),
    )
}

impl RateBucket {
    fn new(rate: u32, now: Instant) -> Self {
        let rate = f64::from(rate);
        Self {
            rate,
            total_shards: 0,
            per_second: rate,
            tokens: 0.0,
            refilled_at: now,
        }
    }

    /// What was gained so far was gained by the part that it had.
    fn set_served(&mut self, served: usize, now: Instant) {
        let is_all = served >= self.total_shards;
        let per_second = self.rate
            * if is_all {
                1.0
            } else {
                served.max(1) as f64 / self.total_shards as f64
            };
        if per_second.to_bits() != self.per_second.to_bits() {
            self.refill(now);
            self.per_second = per_second;
        }
    }

    fn refill(&mut self, now: Instant) {
        let gained = now
            .saturating_duration_since(self.refilled_at)
            .as_secs_f64()
            * self.per_second;
        self.tokens = (self.tokens + gained).min(2.0 * self.burst());
        self.refilled_at = now;
    }

    /// Nothing is given out before a step's worth is there: claims of a message each would cost more than the messages.
    fn burst(&self) -> f64 {
        (self.per_second * CATCH_UP_CLAIM_SPAN.as_secs_f64()).max(1.0)
    }

    fn room(&mut self, now: Instant) -> Result<usize, Instant> {
        self.refill(now);
        let lacks = self.burst() - self.tokens;
        if lacks > 0.0 {
            Err(now + Duration::from_secs_f64(lacks / self.per_second))
        } else {
            Ok(self.tokens as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_keeps_to_the_rate_however_often_and_however_much_is_asked_for() {
        for (rate, greed) in [
            (1, 1),
            (7, 1),
            (200, 3),
            (200, 500),
            (50_000, 100_000),
            (10_000_000, 4_096),
        ] {
            let start = Instant::now();
            let (mut pace, mut now, mut taken) = (RateBucket::new(rate, start), start, 0);
            while now < start + Duration::from_secs(60) {
                match pace.room(now) {
                    Ok(room) => {
                        let some = room.min(greed);
                        (pace.tokens, taken) = (pace.tokens - some as f64, taken + some);
                        now += Duration::from_millis(1);
                    }
                    // A tick may come late.
                    Err(at) => now = at + Duration::from_millis(2),
                }
            }
            let most = 60 * rate as usize + 2 * pace.burst() as usize;
            assert!(taken <= most, "{rate}: {taken}");
            assert!(
                taken >= (60 * rate as usize * 9 / 10).min(greed * 50_000),
                "{rate}: {taken}"
            );
        }
    }

    fn paces(rate: u32, shards: usize, start: Instant) -> CatchUpRates {
        let route = Arc::<str>::from("orders");
        let mut paces = CatchUpRates(BTreeMap::from([(
            route.clone(),
            RateBucket::new(rate, start),
        )]));
        paces.set_shard_counts(&BTreeMap::from([(route, shards)]));
        paces
    }

    #[test]
    fn workers_keep_to_the_rate_together_however_the_shards_move() {
        const SHARDS: usize = 8;
        let (start, rate) = (Instant::now(), 1_000);
        let mut workers: Vec<_> = (0..3).map(|_| paces(rate, SHARDS, start)).collect();
        let (mut taken, mut steps) = (0, 0);
        for millis in 0..60_000u64 {
            let (now, living) = (
                start + Duration::from_millis(millis),
                1 + (millis / 20_000) as usize,
            );
            for (me, paces) in workers.iter_mut().enumerate() {
                // Each shard has one worker at a time; there is one more every twenty seconds.
                let served = (0..SHARDS).filter(|shard| shard % living == me).count();
                paces.set_served(|_| served, now);
                if served > 0
                    && let Ok(room) = paces.room("orders", now)
                {
                    paces.spend("orders", room);
                    (taken, steps) = (taken + room, steps.max(room));
                }
            }
        }
        let all = 60 * rate as usize;
        assert!(taken <= all + 3 * steps && taken >= all * 9 / 10, "{taken}");
    }

    #[test]
    fn a_worker_alone_has_all_of_the_rate() {
        let start = Instant::now();
        let mut paces = paces(100, 0, start);
        let mut part_of = |shards: usize, served: usize| {
            paces.set_shard_counts(&BTreeMap::from([("orders".into(), shards)]));
            paces.set_served(|_| served, start);
            paces.0["orders"].per_second.round() as u32
        };
        assert_eq!(
            [
                part_of(0, 1),
                part_of(2, 1),
                part_of(2, 2),
                part_of(8, 0),
                part_of(8, 2)
            ],
            [100, 50, 100, 13, 25],
            "0: nobody said"
        );
    }

    #[test]
    fn what_was_not_used_is_no_flood_later() {
        let start = Instant::now();
        let mut pace = RateBucket::new(1_000, start);
        assert_eq!(
            pace.room(start + Duration::from_secs(3_600)),
            Ok(2 * pace.burst() as usize)
        );
        pace.tokens -= 500.0;
        let at = pace
            .room(start + Duration::from_secs(3_600))
            .expect_err("more was taken than there was");
        assert_eq!(
            pace.room(at).map(|room| room > 0),
            Ok(true),
            "and it is made up for"
        );
    }
}
