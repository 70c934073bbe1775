//! The embedded store: into it and out of it, by one process after the other on one folder.

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

impl Bench<'_> {
    /// The same messages, stored while none is due and delivered when all are.
    pub(crate) fn embedded(&self) -> [Row; 2] {
        let folder = tempfile::tempdir().expect("a folder for the store");
        let route = Route::embedded(self.topics, folder.path());
        let first = now_ms() + millis(2 * PACE * self.count as u32 + Duration::from_secs(10));
        let due = |number| first + spread(number, OVERDUE_SPAN);
        self.fill(&route.source, self.count, |number| ("postdate-at", due(number)));

        progress("embedded store: ingress");
        let mut service = route.serve(&["ingress"]);
        begun(&mut service, "the shards are born", |service| told(service, "shard born"));
        let start = self.meter.read(Some(&service));
        wait_for(self.count, Duration::from_millis(20), || pending(&service));
        let usage = start.until(self.meter.read(Some(&service)));
        let (pending, ahead) = (pending(&service), now_ms() < first);
        stop(service);
        let verdict = Verdict {
            count: self.count,
            lost: self.count.saturating_sub(pending),
            doubled: pending.saturating_sub(self.count),
            early: route.delivered(),
            dead: route.dead(),
            ..Verdict::default()
        };
        let ingress = Row::service("embedded: source to store", Some(usage.wall.as_secs_f64()), &usage, verdict);
        let bytes = Some(size(folder.path()) as f64 / self.count as f64);

        eventually("the messages are due", LIMIT, || (now_ms() > first + millis(OVERDUE_SPAN)).then_some(()));
        progress(if ahead { "embedded store: drain" } else { "embedded store: drain, though some of it was due before it was stored" });
        let mut service = route.serve(&["timer"]);
        begun(&mut service, "the shards are leased", |service| told(service, "lease acquired"));
        let (start, since) = (self.meter.read(Some(&service)), now_ms());
        wait_for(self.count, LOOK, || route.delivered());
        let usage = start.until(self.meter.read(Some(&service)));
        stop(service);
        let arrivals = judge(self.topics, &route.target, self.count, |number| Some(due(number)));
        let verdict = Verdict { dead: route.dead(), ..arrivals.verdict };
        let seconds = (arrivals.last - since) as f64 / 1e3;
        let drain = Row::service("embedded: store to target, overdue", Some(seconds), &usage, verdict);
        [Row { bytes, redis_cpu: None, ..ingress }, Row { redis_cpu: None, ..drain }]
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
