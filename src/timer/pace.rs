//! How fast the routes of a process catch up: what is behind its due by more than a moment is taken no faster than the route's rate, over all
//! shards that this process holds. What is on time is none of its business. Pure.

use super::RouteOptions;
use super::memory::Resident;
use super::work::Work;
use crate::limit::{CATCH_UP_BEHIND, CATCH_UP_STEP};
use crate::model::Timestamp;
use crate::schedule::Take;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The paces of the routes that have one.
pub(super) struct Paces(BTreeMap<Arc<str>, Pace>);

/// A bucket that fills by the rate, up to two steps' worth. A claim may take more than there is, for what is behind and what is not come
/// together; then the next ones wait until it is made up for.
struct Pace {
    per_second: f64,
    level: f64,
    at: Instant,
}

impl Paces {
    pub(super) fn new(routes: &BTreeMap<Arc<str>, RouteOptions>, now: Instant) -> Self {
        let paced = routes.iter().filter_map(|(route, options)| Some((route.clone(), Pace::new(options.catch_up_rate?, now))));
        Self(paced.collect())
    }

    fn has(&self, route: &str) -> bool {
        self.0.contains_key(route)
    }

    /// How many messages of the route that are behind may be taken now; an error says when to ask again.
    fn room(&mut self, route: &str, now: Instant) -> Result<usize, Instant> {
        self.0.get_mut(route).map_or(Ok(usize::MAX), |pace| pace.room(now))
    }

    /// So many were taken.
    fn spend(&mut self, route: &str, messages: usize) {
        if let Some(pace) = self.0.get_mut(route) {
            pace.level -= messages as f64;
        }
    }
}

impl Work {
    /// How many messages may be taken, of `room`: fewer while the shard is behind and its route catches up by a rate.
    pub(super) fn paced(&mut self, paces: &mut Paces, room: usize, wall: Timestamp, now: Instant) -> usize {
        let route = &self.lease.shard.route;
        if room == 0 || !paces.has(route) || self.schedule.least_due(wall).is_none_or(|due| due >= behind(wall)) {
            return room;
        }
        match paces.room(route, now) {
            Ok(most) => room.min(most),
            Err(at) => {
                self.not_before = self.not_before.max(Some(at));
                0
            }
        }
    }

    /// What was taken counts, if it was behind.
    pub(super) fn spend(&self, paces: &mut Paces, take: &Take<Resident>, wall: Timestamp) {
        let route = &self.lease.shard.route;
        if paces.has(route) {
            let is_behind = |(resident, at): &&(Rc<Resident>, u32)| {
                let due = resident.run.place(*at as usize).due;
                !due.is_at_once() && due < behind(wall)
            };
            paces.spend(route, take.messages.iter().filter(is_behind).count());
        }
    }
}

/// What is due before it is behind.
fn behind(wall: Timestamp) -> Timestamp {
    Timestamp::from_millis(wall.as_millis().saturating_sub(CATCH_UP_BEHIND.as_millis() as i64))
}

impl Pace {
    fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second: f64::from(per_second), level: 0.0, at: now }
    }

    /// Nothing is given out before a step's worth is there: claims of a message each would cost more than the messages.
    fn step(&self) -> f64 {
        (self.per_second * CATCH_UP_STEP.as_secs_f64()).max(1.0)
    }

    fn room(&mut self, now: Instant) -> Result<usize, Instant> {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        self.level = (self.level + gained).min(2.0 * self.step());
        self.at = now;
        let lacks = self.step() - self.level;
        if lacks > 0.0 { Err(now + Duration::from_secs_f64(lacks / self.per_second)) } else { Ok(self.level as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_keeps_to_the_rate_however_often_and_however_much_is_asked_for() {
        for (rate, greed) in [(1, 1), (7, 1), (200, 3), (200, 500), (50_000, 100_000), (10_000_000, 4_096)] {
            let start = Instant::now();
            let (mut pace, mut now, mut taken) = (Pace::new(rate, start), start, 0);
            while now < start + Duration::from_secs(60) {
                match pace.room(now) {
                    Ok(room) => {
                        let some = room.min(greed);
                        (pace.level, taken) = (pace.level - some as f64, taken + some);
                        now += Duration::from_millis(1);
                    }
                    // A tick may come late.
                    Err(at) => now = at + Duration::from_millis(2),
                }
            }
            let most = 60 * rate as usize + 2 * pace.step() as usize;
            assert!(taken <= most, "{rate}: {taken}");
            assert!(taken >= (60 * rate as usize * 9 / 10).min(greed * 50_000), "{rate}: {taken}");
        }
    }

    #[test]
    fn what_was_not_used_is_no_flood_later() {
        let start = Instant::now();
        let mut pace = Pace::new(1_000, start);
        assert_eq!(pace.room(start + Duration::from_secs(3_600)), Ok(2 * pace.step() as usize));
        pace.level -= 500.0;
        let at = pace.room(start + Duration::from_secs(3_600)).expect_err("more was taken than there was");
        assert_eq!(pace.room(at).map(|room| room > 0), Ok(true), "and it is made up for");
    }
}
