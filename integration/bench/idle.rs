//! What a service takes that has shards and nothing to do with them.

use std::time::Duration;

use crate::row::{Row, Stage};
use crate::stage::{Bench, judge_waiting, stop};

/// As many as a large deployment gives one process.
const SHARDS: i32 = 64;

/// Until what follows a start is over: leases, first commits.
const SETTLING: Duration = Duration::from_secs(10);

const MEASURED: Duration = Duration::from_secs(60);

impl Bench<'_> {
    /// The whole service in one process, on topics of its own, none of which has a record.
    pub(crate) fn idle(&self) -> Row {
        let topics = self.ends.with(SHARDS);
        Bench {
            ends: &topics,
            ..*self
        }
        .at_rest()
    }

    fn at_rest(&self) -> Row {
        self.progress.step(&format!("idle: {SHARDS} shards"));
        let route = self.route();
        let mut service = route.serve(&["ingress", "timer"]);
        service.wait_until_ready();
        std::thread::sleep(SETTLING);
        let start = self.meter.read(service.cpu());
        self.rest(MEASURED);
        let usage = start.until(self.meter.read(service.cpu()));
        let pending = route.stored(self.redis).pending();
        stop(service);
        Row::at_rest(
            Stage::Idle(SHARDS as usize),
            &usage,
            judge_waiting(&route, 0, pending),
        )
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
