//! The embedded store: into it and out of it, by the whole service.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::LIMIT;
use crate::env::{Postdate, eventually, now_ms};
use crate::ledger::{Verdict, judge};
use crate::route::{Route, begun, wait_for};
use crate::stage::{Bench, LOOK, OVERDUE_SPAN, PACE, millis, progress, stop};
use crate::table::Row;
use crate::topics::PARTITIONS;
use crate::workload::spread;

/// What one process does, for the folder is its own: it never runs one role without the other.
const ROLES: &[&str] = &["ingress", "timer"];

impl Bench<'_> {
    /// From the source into the folder, dues spread over a day.
    pub(crate) fn embedded_ingress(&self) -> Row {
        let folder = tempfile::tempdir().expect("a folder for the store");
        let route = Route::embedded(self.topics, folder.path());
        let day = Duration::from_secs(86_400);
        self.fill(&route.source, self.count, |number| ("postdate-after", 600_000 + spread(number, day)));
        progress("embedded store: ingress");
        let mut service = route.serve(ROLES);
        begun(&mut service, "the shards are born", |service| told(service, "shard born"));
        let start = self.meter.read(Some(&service));
        let pending = wait_for(self.count, Duration::from_millis(20), || pending(&service));
        let usage = start.until(self.meter.read(Some(&service)));
        stop(service);
        let verdict = Verdict {
            count: self.count,
            lost: self.count.saturating_sub(pending),
            doubled: pending.saturating_sub(self.count),
            early: route.delivered(),
            dead: route.dead(),
            ..Verdict::default()
        };
        let row = Row::service("embedded: source to store", Some(usage.wall.as_secs_f64()), &usage, verdict);
        Row { bytes: Some(size(folder.path()) as f64 / self.count as f64), redis_cpu: None, ..row }
    }

    /// From the folder to the target: what became due while the service was down.
    pub(crate) fn embedded_drain(&self) -> Row {
        let folder = tempfile::tempdir().expect("a folder for the store");
        let route = Route::embedded(self.topics, folder.path());
        let first = now_ms() + millis(2 * PACE * self.count as u32 + Duration::from_secs(10));
        let due = |number| first + spread(number, OVERDUE_SPAN);
        self.fill(&route.source, self.count, |number| ("postdate-at", due(number)));
        let service = route.serve(ROLES);
        wait_for(self.count, LOOK, || pending(&service));
        let ahead = now_ms() < first;
        stop(service);
        eventually("the messages are due", LIMIT, || (now_ms() > first + millis(OVERDUE_SPAN)).then_some(()));
        progress(if ahead { "embedded store: drain" } else { "embedded store: drain, though some of it was due before it was stored" });
        let mut service = route.serve(ROLES);
        begun(&mut service, "the shards are leased", |service| told(service, "lease acquired"));
        let (start, since) = (self.meter.read(Some(&service)), now_ms());
        wait_for(self.count, LOOK, || route.delivered());
        let usage = start.until(self.meter.read(Some(&service)));
        stop(service);
        let arrivals = judge(self.topics, &route.target, self.count, |number| Some(due(number)));
        let verdict = Verdict { dead: route.dead(), ..arrivals.verdict };
        let seconds = (arrivals.last - since) as f64 / 1e3;
        Row { redis_cpu: None, ..Row::service("embedded: store to target, overdue", Some(seconds), &usage, verdict) }
    }
}

/// Whether the service said it of each shard.
fn told(service: &Postdate, what: &str) -> bool {
    service.logs().matches(what).count() == PARTITIONS as usize
}

/// Messages that wait, as the service answers: its folder is its own.
fn pending(service: &Postdate) -> usize {
    let Some((200, body)) = service.get("/pending") else { return 0 };
    let report: serde_json::Value = serde_json::from_str(&body).expect("a JSON document");
    report["total"]["messages"].as_u64().map_or(0, |messages| messages as usize)
}

/// Bytes of the files under a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { size(&entry.path()) } else { entry.metadata().map_or(0, |meta| meta.len()) }).sum()
}
