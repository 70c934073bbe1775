//! Measures the embedded store: ingress into it and delivery out of it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::env::{Postdate, now_ms};
use crate::fresh::find_memory;
use crate::route::{Route, begun, wait_for};
use crate::row::{Row, Stage, System};
use crate::stage::{Bench, LOOK, OVERDUE_SPAN, PACE, judge_waiting, millis, stop};
use crate::workload::spread;

/// One process runs both roles, because the embedded store allows only one process per folder.
const ROLES: &[&str] = &["ingress", "timer"];

impl Bench<'_> {
    /// Measures ingress from the source into the folder.
    pub(crate) fn embedded_ingress(&self) -> Row {
        self.progress.step("embedded store: ingress");
        let folder = tempfile::tempdir().expect("a folder for the store");
        let (route, count) = (Route::embedded(self.ends, folder.path()), self.load.count);
        self.fill(&route.source, count, |number| {
            ("postdate-after", self.load.delay.of(number))
        });
        self.progress.phase("embedded store: into the folder");
        find_memory();
        let mut service = route.serve(ROLES);
        begun(&mut service, "the shards are created", |service| {
            self.told(service, "shard created")
        });
        let start = self.meter.read(service.cpu());
        let pending = wait_for(self.progress, count, Duration::from_millis(20), || {
            pending(&service)
        });
        let usage = start.until(self.meter.read(service.cpu()));
        stop(service);
        let verdict = judge_waiting(&route, count, pending);
        let row = Row::service(System::Embedded, Stage::Store, &usage, verdict)
            .within(usage.wall.as_secs_f64());
        Row {
            bytes: Some(size(folder.path()) as f64 / count as f64),
            redis_cpu_us: None,
            ..row
        }
    }

    /// Measures delivery from the folder to the target. All messages became due while the service
    /// was down.
    pub(crate) fn embedded_drain(&self) -> Row {
        self.progress.step("embedded store: drain");
        let folder = tempfile::tempdir().expect("a folder for the store");
        let (route, count) = (Route::embedded(self.ends, folder.path()), self.load.count);
        let first = now_ms() + millis(2 * PACE * count as u32 + Duration::from_secs(10));
        let due = |number| first + spread(number, OVERDUE_SPAN);
        self.fill(&route.source, count, |number| ("postdate-at", due(number)));
        let service = route.serve(ROLES);
        wait_for(self.progress, count, LOOK, || pending(&service));
        let ahead = now_ms() < first;
        stop(service);
        self.wait_until_due(first);
        let how = if ahead {
            ""
        } else {
            ", though some of it was due before it was stored"
        };
        self.progress
            .phase(&format!("embedded store: out of the folder{how}"));
        find_memory();
        let mut service = route.serve(ROLES);
        begun(&mut service, "the shards are leased", |service| {
            self.told(service, "lease acquired")
        });
        let (start, since) = (self.meter.read(service.cpu()), now_ms());
        wait_for(self.progress, count, LOOK, || route.delivered());
        let usage = start.until(self.meter.read(service.cpu()));
        stop(service);
        let arrivals = self.judge_arrived(&route, count, due);
        let seconds = (arrivals.last(0..count) - since) as f64 / 1e3;
        Row {
            redis_cpu_us: None,
            ..Row::service(System::Embedded, Stage::Drain, &usage, arrivals.verdict).within(seconds)
        }
    }

    /// Returns true if the service logged `what` once per shard.
    fn told(&self, service: &Postdate, what: &str) -> bool {
        service.logs().matches(what).count() == self.ends.partitions as usize
    }
}

/// Number of pending messages, from the service's HTTP endpoint. Only the service can open its
/// folder.
fn pending(service: &Postdate) -> usize {
    let Some((200, body)) = service.get("/pending") else {
        return 0;
    };
    let report: serde_json::Value = serde_json::from_str(&body).expect("a JSON document");
    report["total"]["messages"]
        .as_u64()
        .map_or(0, |messages| messages as usize)
}

/// Total bytes of the files under a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            if entry.path().is_dir() {
                size(&entry.path())
            } else {
                entry.metadata().map_or(0, |meta| meta.len())
            }
        })
        .sum()
}
