//! Measures the processor time of a service whose shards have no messages.

use std::time::Duration;

use crate::env::Postdate;
use crate::meter::Usage;
use crate::row::{Row, Stage};
use crate::stage::{Bench, judge_waiting, stop};

/// The usual number of shards of one process.
pub(crate) const SHARDS: i32 = 64;

/// Time for the work that follows a start or a load, such as acquiring leases and commits.
const SETTLING: Duration = Duration::from_secs(10);

const MEASURED: Duration = Duration::from_secs(60);

impl Bench<'_> {
    /// Measures the whole service in one process, on new topics without a record.
    pub(crate) fn idle(&self, shards: i32) -> Row {
        let topics = self.ends.with(shards);
        Bench {
            ends: &topics,
            ..*self
        }
        .at_rest(shards)
    }

    fn at_rest(&self, shards: i32) -> Row {
        self.progress.step(&format!("idle: {shards} shards"));
        let route = self.route();
        let mut service = route.serve(&["ingress", "timer"]);
        service.wait_until_ready();
        let usage = self.resting(&service);
        let pending = route.stored(self.redis).pending();
        stop(service);
        Row::at_rest(
            Stage::Idle(shards as usize),
            &usage,
            judge_waiting(&route, 0, pending),
        )
    }

    /// Measures a service that has nothing to do.
    pub(crate) fn resting(&self, service: &Postdate) -> Usage {
        std::thread::sleep(SETTLING);
        let start = self.meter.read(service.cpu());
        self.rest(MEASURED);
        start.until(self.meter.read(service.cpu()))
    }

    fn rest(&self, time: Duration) {
        const LOOK: Duration = Duration::from_secs(1);
        let looks = time.as_secs() as usize;
        for look in 0..looks {
            self.progress.at(look, looks);
            std::thread::sleep(LOOK);
        }
    }
}
