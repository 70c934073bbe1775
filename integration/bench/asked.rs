//! Parses the command line: the measurements, the workload, and the number of runs.

use std::path::Path;
use std::time::Duration;

use crate::workload::{self, Workload};

/// The names that select measurements.
pub(crate) const STAGES: [&str; 21] = [
    "copy",
    "ingress",
    "drain",
    "through",
    "encrypted",
    "embedded",
    "steady",
    "burst",
    "answers",
    "exact",
    "fleet",
    "idle",
    "many",
    "routes",
    "flood",
    "deep",
    "layout",
    "asynq",
    "redisson",
    "bullmq",
    "nats",
];

/// Measurements that run only if they are named. `deep` takes minutes and gigabytes of disk, and
/// `nats` needs another server.
const NAMED_ONLY: [&str; 2] = ["deep", "nats"];

pub(crate) struct Asked {
    /// Empty: all measurements except `NAMED_ONLY`.
    stages: Vec<String>,
    pub(crate) runs: usize,
    pub(crate) load: Workload,
}

impl Asked {
    /// A number sets the message count, and a word selects a measurement. The options are `runs=3`,
    /// `waiting=50000000` and `workload=FILE`. Words that start with a dash belong to cargo.
    pub(crate) fn from(words: impl Iterator<Item = String>) -> Result<Asked, String> {
        let mut asked = Asked {
            stages: Vec::new(),
            runs: 1,
            load: Workload::default(),
        };
        let (mut count, mut waiting) = (None, None);
        for word in words.filter(|word| !word.starts_with('-')) {
            if let Some(file) = word.strip_prefix("workload=") {
                asked.load = workload::read(Path::new(file)).map_err(|error| {
                    error
                        .to_string()
                        .replacen("the configuration", "the workload", 1)
                })?;
            } else if let Some(runs) = word.strip_prefix("runs=") {
                let runs = runs.parse().ok().filter(|runs| (1..=99).contains(runs));
                asked.runs = runs.ok_or_else(|| {
                    format!("{word}: how many runs, from 1 to 99, such as RUNS=3")
                })?;
            } else if let Some(number) = word.strip_prefix("waiting=") {
                let number = number
                    .parse()
                    .ok()
                    .filter(|waiting| workload::WAITING.contains(waiting));
                let (least, most) = workload::WAITING.into_inner();
                waiting = Some(number.ok_or_else(|| {
                    format!("{word}: how many messages wait, from {least} to {most}")
                })?);
            } else if word.starts_with(|first: char| first.is_ascii_digit()) {
                let number = word
                    .parse()
                    .ok()
                    .filter(|count| (1_000..=workload::COUNT_MAX).contains(count));
                count = Some(number.ok_or_else(|| {
                    format!(
                        "{word}: how many messages, from 1000 to {}",
                        workload::COUNT_MAX
                    )
                })?);
            } else if STAGES.contains(&word.as_str()) {
                asked.stages.push(word);
            } else {
                return Err(format!(
                    "{word}: there is no such measurement; choose from {}",
                    STAGES.join(", ")
                ));
            }
        }
        asked.load.count = count.unwrap_or(asked.load.count);
        asked.load.deep.waiting = waiting.unwrap_or(asked.load.deep.waiting);
        if asked.load.partitions < 2 && asked.insists_on("burst") {
            return Err(
                "burst: it needs a partition that has none of it; let the workload have 2 or more"
                    .to_owned(),
            );
        }
        asked.refuse_too_much()?;
        Ok(asked)
    }

    /// Refuses a load that exceeds `LOAD_BYTES_MAX`, before anything starts. This prevents a full
    /// disk in the middle of a measurement.
    fn refuse_too_much(&self) -> Result<(), String> {
        let Workload { steady, deep, .. } = &self.load;
        let lasting = |rate: usize, lasts: Duration| rate.saturating_mul(lasts.as_secs() as usize);
        let most = steady
            .rates
            .iter()
            .max()
            .map_or(0, |rate| lasting(*rate, steady.lasts));
        let is_timely = [
            "steady", "answers", "exact", "layout", "asynq", "redisson", "bullmq", "nats",
        ]
        .iter()
        .any(|stage| self.wants(stage));
        let is_deep = self.wants("deep");
        let loads = [
            ("count", true, self.load.count),
            (
                "count",
                self.wants("through"),
                self.load.count * workload::BACKLOG_COUNTS,
            ),
            ("steady", is_timely, most),
            ("deep.waiting", is_deep, deep.waiting),
            ("deep.rate", is_deep, lasting(deep.rate, deep.lasts)),
        ];
        let too_much = |(key, _, count): (&str, bool, usize)| {
            self.load.too_much(count).map(|why| format!("{key}: {why}"))
        };
        let complaints: Vec<_> = loads
            .into_iter()
            .filter(|(_, is_wanted, _)| *is_wanted)
            .filter_map(too_much)
            .collect();
        if complaints.is_empty() {
            Ok(())
        } else {
            Err(complaints.join("\n"))
        }
    }

    /// Returns true if the measurement was named explicitly.
    pub(crate) fn insists_on(&self, stage: &str) -> bool {
        !self.stages.is_empty() && self.wants(stage)
    }

    /// Removes a measurement from the selection.
    pub(crate) fn leave_out(&mut self, stage: &str) {
        let wanted = STAGES
            .iter()
            .filter(|known| **known != stage && self.wants(known));
        self.stages = wanted.map(|stage| (*stage).to_owned()).collect();
    }

    pub(crate) fn wants(&self, stage: &str) -> bool {
        self.stages.is_empty() && !NAMED_ONLY.contains(&stage)
            || self.stages.iter().any(|asked| asked == stage)
    }

    /// Returns true if any measurement needs Kafka, which is every one except `nats`.
    pub(crate) fn wants_kafka(&self) -> bool {
        STAGES
            .iter()
            .any(|stage| *stage != "nats" && self.wants(stage))
    }

    /// Returns true if a Kafka measurement of lateness is selected. Such a measurement needs a warm
    /// broker.
    pub(crate) fn is_timely(&self) -> bool {
        [
            "steady", "burst", "answers", "exact", "fleet", "many", "routes", "deep",
        ]
        .iter()
        .any(|stage| self.wants(stage))
    }

    /// Number of measurements in all runs together.
    pub(crate) fn steps(&self) -> usize {
        let rates = self.load.steady.rates.len();
        let each = [
            ("copy", 1),
            ("ingress", 1),
            ("drain", 1),
            ("through", 2),
            ("encrypted", 2),
            ("embedded", 2),
            ("steady", rates + 1),
            ("burst", 1),
            ("answers", 1),
            ("exact", 5),
            ("fleet", 2),
            ("idle", 1),
            ("many", 4),
            ("routes", 4),
            ("deep", 4),
            ("layout", 2 + rates),
            ("asynq", 2 + rates),
            ("redisson", 2 + rates),
            ("bullmq", 2 + rates),
            ("nats", 4 + 2 * rates),
        ];
        self.runs
            * (usize::from(self.is_timely())
                + each
                    .iter()
                    .filter(|(stage, _)| self.wants(stage))
                    .map(|(_, steps)| steps)
                    .sum::<usize>())
    }
}
