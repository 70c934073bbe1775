//! Runs the ingress and timer processes of one deployment.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::env::{Postdate, eventually};
use crate::server::PARTITIONS;

/// Longer than a healthy deployment needs to assign every shard or to acknowledge every message.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Fleet {
    config: String,
    pub(crate) timers: Vec<Postdate>,
    pub(crate) ingresses: Vec<Postdate>,
    /// Possible duplicates that timers reported before they were killed or stopped.
    possible: f64,
    /// Processes that exited although no fault hit them, or that exited with an error when they
    /// were stopped.
    crashes: usize,
}

/// The sums over all shards' ledgers at the end of the run.
#[derive(Debug)]
pub(crate) struct Ledgers {
    /// Messages that the ledgers miss or have in excess.
    pub(crate) difference: u64,
    pub(crate) pending: u64,
    /// Shards whose ledger is unsure. `difference` does not include them.
    pub(crate) unsure: usize,
}

impl Ledgers {
    /// Parses the output of `postdate ledger --json`.
    fn of(sheet: &Value) -> Self {
        let sums: Vec<_> = sheet["shards"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|shard| &shard["sum"])
            .collect();
        let (sure, unsure): (Vec<_>, Vec<_>) = sums.iter().partition(|sum| sum["unsure"] == false);
        let count = |sums: &[&&Value], of: &str| {
            sums.iter()
                .map(|sum| sum[of].as_i64().expect("a number").unsigned_abs())
                .sum()
        };
        let pending: u64 = [&sure, &unsure]
            .map(|sums| count(sums, "pending"))
            .iter()
            .sum();
        // A shard that is missing from the store has no ledger, so it counts as unsure.
        Self {
            difference: count(&sure, "difference"),
            pending,
            unsure: PARTITIONS as usize - sure.len(),
        }
    }

    fn is_settled(&self) -> bool {
        (self.difference, self.pending, self.unsure) == (0, 0, 0)
    }
}

impl Fleet {
    pub(crate) fn start(config: String) -> Self {
        let mut fleet = Self {
            config,
            timers: Vec::new(),
            ingresses: Vec::new(),
            possible: 0.0,
            crashes: 0,
        };
        fleet.timers = (0..3).map(|_| fleet.process("timer")).collect();
        fleet.ingresses = (0..2).map(|_| fleet.process("ingress")).collect();
        for process in fleet.timers.iter_mut().chain(&mut fleet.ingresses) {
            process.wait_until_ready();
        }
        fleet.wait_until_whole(None, Instant::now());
        fleet
    }

    fn process(&self, role: &str) -> Postdate {
        Postdate::start_with(
            &self.config,
            &[("POSTDATE_ROLES", &format!(r#"["{role}"]"#))],
        )
    }

    pub(crate) fn add_timer(&mut self) {
        self.timers.push(self.process("timer"));
    }

    /// Waits until ready workers hold all shards, not counting timer `aside`. Returns the time
    /// since `began`.
    pub(crate) fn wait_until_whole(&mut self, aside: Option<usize>, began: Instant) -> Duration {
        eventually("every shard has an owner", LIMIT, || {
            (self.held(aside) >= PARTITIONS as usize).then_some(())
        });
        began.elapsed()
    }

    /// Shards that timers other than `aside` hold. A frozen timer would block the request for its
    /// metrics.
    fn held(&self, aside: Option<usize>) -> usize {
        let others = self
            .timers
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != aside)
            .map(|(_, timer)| timer);
        others
            .filter(|timer| timer.ready())
            .map(|timer| timer.metrics().sum("postdate_leases_held") as usize)
            .sum()
    }

    /// Saves the timer's count of possible duplicates. Call this before a kill or a stop, because
    /// the count ends with the process.
    pub(crate) fn note(&mut self, timer: usize) {
        self.possible += possible(&self.timers[timer]);
    }

    /// Messages that may have been delivered twice, as counted by the timers.
    pub(crate) fn possible_duplicates(&self) -> usize {
        (self.possible + self.timers.iter().map(possible).sum::<f64>()) as usize
    }

    /// Reads the ledgers until they show no difference and no pending message, or until `LIMIT` has
    /// passed.
    pub(crate) fn ledgers(&self) -> Ledgers {
        let began = Instant::now();
        loop {
            let output = self.timers[0].command(&["ledger", "--json"]);
            let sheet = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|error| panic!("not a ledger: {error}: {output:?}"));
            let ledgers = Ledgers::of(&sheet);
            if ledgers.is_settled() || began.elapsed() > LIMIT {
                return ledgers;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Counts and restarts processes that exited on their own. Call this before a fault, which
    /// would hide such a crash.
    pub(crate) fn look_after(&mut self) {
        for (role, processes) in [
            ("timer", &mut self.timers),
            ("ingress", &mut self.ingresses),
        ] {
            for (at, process) in processes.iter_mut().enumerate() {
                if let Some(status) = process.ended() {
                    say_crash(&format!("{role} {at} ended by itself: {status}"), process);
                    self.crashes += 1;
                    process.restart();
                }
            }
        }
    }

    pub(crate) fn stop_timer(&mut self, timer: usize) {
        self.note(timer);
        self.crashes += usize::from(!ends_well(&mut self.timers[timer]));
    }

    pub(crate) fn stop_ingress(&mut self, ingress: usize) {
        self.crashes += usize::from(!ends_well(&mut self.ingresses[ingress]));
    }

    /// Stops the timer that was added last, and does not restart it.
    pub(crate) fn remove_timer(&mut self) {
        let last = self.timers.len() - 1;
        self.stop_timer(last);
        self.timers.truncate(last);
    }

    /// Resumes or restarts every process, so that all of them run again.
    pub(crate) fn heal(&mut self) {
        for process in self.timers.iter_mut().chain(&mut self.ingresses) {
            if process.runs() {
                process.resume();
            } else {
                process.restart();
            }
        }
    }

    /// Writes the logs, readiness and metrics of every process to files. Returns their folder.
    pub(crate) fn keep_logs(&self) -> PathBuf {
        let folder = tempfile::Builder::new()
            .prefix("postdate-chaos-")
            .tempdir()
            .expect("a folder for temporary files")
            .keep();
        for (role, processes) in [("timer", &self.timers), ("ingress", &self.ingresses)] {
            for (at, process) in processes.iter().enumerate() {
                let page = |path| process.get(path).map(|(_, page)| page).unwrap_or_default();
                let all = format!(
                    "{}\n{}\n{}",
                    process.logs(),
                    page("/readyz"),
                    page("/metrics")
                );
                std::fs::write(folder.join(format!("{role}-{at}.log")), all)
                    .expect("the folder is there");
            }
        }
        folder
    }

    /// Processes that exited although no fault hit them, or that exited with an error when they
    /// were stopped.
    pub(crate) fn crashes(&self) -> usize {
        self.crashes
    }
}

/// Possible duplicates that a timer counted, or zero if the timer does not answer.
fn possible(timer: &Postdate) -> f64 {
    let is_there = timer.get("/healthz").is_some();
    if is_there {
        timer.metrics().sum("postdate_possible_duplicates_total")
    } else {
        0.0
    }
}

fn ends_well(process: &mut Postdate) -> bool {
    let (status, _) = process.terminate();
    if !status.success() {
        say_crash(
            &format!("a process that was asked to end did so with {status}"),
            process,
        );
    }
    status.success()
}

fn say_crash(what: &str, process: &Postdate) {
    let logs = process.logs();
    let lines: Vec<&str> = logs.lines().collect();
    eprintln!(
        "chaos: {what}; its last lines:\n{}",
        lines[lines.len().saturating_sub(20)..].join("\n")
    );
}
