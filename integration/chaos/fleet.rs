//! The processes of Postdate: ingresses and timers of one deployment.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::env::{Postdate, eventually};
use crate::server::PARTITIONS;

/// Longer than it takes any fleet that will ever be whole again.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Fleet {
    config: String,
    pub(crate) timers: Vec<Postdate>,
    pub(crate) ingresses: Vec<Postdate>,
    /// What processes that were killed since had said of possible duplicates.
    possible: f64,
}

impl Fleet {
    pub(crate) fn start(config: String) -> Self {
        let mut fleet = Self { config, timers: Vec::new(), ingresses: Vec::new(), possible: 0.0 };
        fleet.timers = (0..3).map(|_| fleet.process("timer")).collect();
        fleet.ingresses = (0..2).map(|_| fleet.process("ingress")).collect();
        for process in fleet.timers.iter_mut().chain(&mut fleet.ingresses) {
            process.wait_until_ready();
        }
        fleet.wait_until_whole(None, Instant::now());
        fleet
    }

    fn process(&self, role: &str) -> Postdate {
        Postdate::start_with(&self.config, &[("POSTDATE_ROLES", &format!(r#"["{role}"]"#))])
    }

    pub(crate) fn add_timer(&mut self) {
        self.timers.push(self.process("timer"));
    }

    /// Every shard is held by a worker that answers, one of them left aside; how long that took since `began`.
    pub(crate) fn wait_until_whole(&mut self, aside: Option<usize>, began: Instant) -> Duration {
        eventually("every shard has an owner", LIMIT, || (self.held(aside) >= PARTITIONS as usize).then_some(()));
        began.elapsed()
    }

    /// Shards that are held by others than `aside`: one that is frozen would keep its caller waiting.
    fn held(&self, aside: Option<usize>) -> usize {
        let others = self.timers.iter().enumerate().filter(|(at, _)| Some(*at) != aside).map(|(_, timer)| timer);
        others.filter(|timer| timer.ready()).map(|timer| timer.metrics().sum("postdate_leases_held") as usize).sum()
    }

    /// Notes what the processes say, before one of them is killed and cannot be asked any more.
    pub(crate) fn note(&mut self, timer: usize) {
        if self.timers[timer].ready() {
            self.possible += possible(&self.timers[timer]);
        }
    }

    /// Messages that may have come twice, as the processes have told.
    pub(crate) fn possible_duplicates(&self) -> usize {
        let now: f64 = self.timers.iter().filter(|timer| timer.ready()).map(possible).sum();
        (self.possible + now) as usize
    }

    /// What the ledgers say is missing, and how many of them cannot say.
    pub(crate) fn ledgers(&self) -> (f64, usize) {
        let all: Vec<_> = self.timers.iter().chain(&self.ingresses).map(Postdate::metrics).collect();
        let sum = |name| all.iter().map(|metrics| metrics.sum(name).abs()).sum::<f64>();
        (sum("postdate_ledger_difference_messages"), sum("postdate_ledger_unsure") as usize)
    }

    /// Whatever was done to them: all run again.
    pub(crate) fn heal(&mut self) {
        for process in self.timers.iter_mut().chain(&mut self.ingresses) {
            if process.runs() {
                process.resume();
            } else {
                process.restart();
            }
        }
    }

    /// Writes down what all of them wrote and say of themselves; answers where.
    pub(crate) fn keep_logs(&self) -> PathBuf {
        let folder = tempfile::Builder::new().prefix("postdate-chaos-").tempdir().expect("a folder for temporary files").keep();
        for (role, processes) in [("timer", &self.timers), ("ingress", &self.ingresses)] {
            for (at, process) in processes.iter().enumerate() {
                let page = |path| process.get(path).map(|(_, page)| page).unwrap_or_default();
                let all = format!("{}\n{}\n{}", process.logs(), page("/readyz"), page("/metrics"));
                std::fs::write(folder.join(format!("{role}-{at}.log")), all).expect("the folder is there");
            }
        }
        folder
    }

    /// Processes that have ended though nobody asked or killed them, by what they wrote.
    pub(crate) fn crashed(&self) -> usize {
        let all = self.timers.iter().chain(&self.ingresses);
        all.filter(|process| process.logs().contains("panicked")).count()
    }
}

fn possible(timer: &Postdate) -> f64 {
    timer.metrics().sum("postdate_possible_duplicates_total")
}
