//! Chooses the runs of a shard to compact next. Pure.
//!
//! Runs are merged by size, as in a log-structured merge tree: a few runs of about the same size
//! become one larger run. So a message is rewritten only a few times, however small its first run
//! was.

use crate::limit::{COMPACT_BYTES_MAX, COMPACT_RUNS_MAX};
use crate::model::{Level, Slice, Timestamp};
use crate::run::{LoadedRun, Run, RunName, ThinHours};
use crate::store::RunEntry;
use std::collections::BTreeMap;
use std::time::Duration;

/// The sizes and times by which runs are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactionPolicy {
    pub(crate) thin: ThinHours,
    /// The number of runs of similar size that are merged.
    pub(crate) merge_count: usize,
    /// A run with this many messages is large enough.
    pub(crate) full_messages: u64,
    /// Runs of days and far runs that begin within this time are split. Otherwise they would be
    /// read again for every message that becomes due.
    pub(crate) split_lead: Duration,
    /// After a split, an hour that ends within this time has its own run.
    pub(crate) own_hour_within: Duration,
    /// A split of runs that begin within this time is urgent: the compactor rests less.
    pub(crate) urgent_within: Duration,
    /// The number of messages in one job: some milliseconds of work for the store and the
    /// dispatcher.
    pub(crate) job_messages_max: u64,
    /// Bytes of memory at which a job fetches no more runs.
    pub(crate) job_bytes_max: usize,
    /// Messages due within this time after the loaded ones are left alone. The new runs must be
    /// stored before any of them is loaded, even if the reply is lost and the store acts some
    /// seconds later.
    pub(crate) margin: Duration,
}

impl CompactionPolicy {
    pub(crate) const DEFAULT: Self = Self {
        thin: ThinHours::DEFAULT,
        merge_count: 8,
        full_messages: 512,
        split_lead: Duration::from_hours(1),
        own_hour_within: Duration::from_hours(6),
        urgent_within: Duration::from_mins(20),
        job_messages_max: 32_768,
        job_bytes_max: COMPACT_BYTES_MAX,
        margin: Duration::from_secs(120),
    };
}

/// Runs to compact together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) runs: Vec<(Slice, RunName)>,
    pub(crate) kind: JobKind,
    pub(crate) is_urgent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// Merges the runs of one slice into fewer.
    MergeSlice,
    /// Splits far runs by day, and by hour where the hour comes soon. Thin days become a far run
    /// again.
    SplitFar,
    /// Splits the runs of a day by hour. Thin hours that come later become a run of the day again.
    SplitDay,
    /// Splits the runs of an hour by minute.
    SplitHour,
    /// Encrypts runs of one slice with the key that writes.
    Encrypt,
}

impl CompactionPolicy {
    /// Messages due by the returned time must not be touched, for a shard loaded up to `loaded`.
    pub(super) fn frozen_until(&self, loaded: Timestamp) -> Timestamp {
        loaded.plus(self.margin)
    }

    /// New runs whose first message is due at `least_due` may replace the old ones while the shard
    /// is not loaded up to the returned time. One half of the margin is for building the runs, the
    /// other half is for a store call without an answer.
    pub(super) fn replacement_valid_until(&self, least_due: Timestamp) -> Timestamp {
        least_due.minus(self.margin / 2)
    }

    /// Returns until when to skip the inputs, if the outputs are no improvement. Runs that are full
    /// by bytes may not become fewer.
    pub(super) fn no_gain_until(
        &self,
        inputs: &[LoadedRun],
        outputs: &[Run],
        kind: JobKind,
        frozen_until: Timestamp,
    ) -> Option<Timestamp> {
        let level = match kind {
            JobKind::MergeSlice => {
                return (outputs.len() * 2 > inputs.len()).then_some(Timestamp::MAX);
            }
            JobKind::SplitHour | JobKind::Encrypt => return None,
            JobKind::SplitFar => Level::Far,
            JobKind::SplitDay => Level::Day,
        };
        let unsplit = outputs.iter().filter(|run| run.slice.level == level);
        let least_due = inputs.iter().map(|run| run.summary.least_due()).min()?;
        let begins_soon = least_due <= frozen_until.plus(self.split_lead);
        (unsplit.count() >= inputs.len() && !begins_soon).then(|| least_due.minus(self.split_lead))
    }

    /// The next job among the `listed` runs. Runs of hours and minutes that begin by `frozen_until`
    /// are being loaded, and are left alone. `hour_messages_max` is the number of messages of one
    /// hour that can be loaded together.
    pub(crate) fn plan(
        &self,
        listed: &[RunEntry],
        frozen_until: Timestamp,
        hour_messages_max: u64,
    ) -> Option<Job> {
        let mut slices: BTreeMap<Slice, Vec<&RunEntry>> = BTreeMap::new();
        for run in listed {
            let is_coarse = matches!(run.slice.level, Level::Far | Level::Day);
            if is_coarse || run.least_due > frozen_until {
                slices.entry(run.slice).or_default().push(run);
            }
        }
        let of_level = |level| {
            slices
                .iter()
                .filter(move |(slice, _)| slice.level == level)
                .map(|(_, runs)| runs)
        };
        let large_hour = of_level(Level::Hour).find(|runs| messages(runs) > hour_messages_max);
        if let Some(runs) = large_hour {
            return Some(self.job(runs.clone(), JobKind::SplitHour, frozen_until));
        }
        let split_until = frozen_until.plus(self.split_lead);
        let begins_soon = |run: &&RunEntry| run.least_due <= split_until;
        if let Some(runs) = of_level(Level::Day).find(|runs| runs.iter().any(begins_soon)) {
            let runs = runs.iter().copied().filter(begins_soon).collect();
            return Some(self.job(runs, JobKind::SplitDay, frozen_until));
        }
        let far: Vec<_> = of_level(Level::Far).flatten().copied().collect();
        let far_runs = if far.iter().any(begins_soon) {
            Some(far.into_iter().filter(begins_soon).collect())
        } else {
            self.mergeable(far, u64::MAX)
        };
        if let Some(runs) = far_runs {
            return Some(self.job(runs, JobKind::SplitFar, frozen_until));
        }
        [Level::Day, Level::Hour, Level::Minute]
            .into_iter()
            .flat_map(of_level)
            .filter_map(|runs| self.mergeable(runs.clone(), self.full_messages))
            .max_by_key(Vec::len)
            .map(|runs| self.job(runs, JobKind::MergeSlice, frozen_until))
    }

    /// The next job that encrypts runs again. `old` are the runs with another key than the one that
    /// writes. Runs that are due soon keep their key.
    pub(super) fn plan_rewrite<'a>(
        &self,
        old: impl Iterator<Item = &'a RunEntry>,
        frozen_until: Timestamp,
    ) -> Option<Job> {
        let mut old = old.filter(|run| run.least_due > frozen_until);
        let first = old.next()?;
        let mut runs = vec![first];
        runs.extend(old.filter(|run| run.slice == first.slice));
        Some(self.job(runs, JobKind::Encrypt, frozen_until))
    }

    /// The smallest size class with enough runs to merge, together with all smaller runs. Runs with
    /// `full` messages or more are left out.
    fn mergeable<'a>(&self, mut runs: Vec<&'a RunEntry>, full: u64) -> Option<Vec<&'a RunEntry>> {
        runs.retain(|run| size(run) < full);
        runs.sort_by_key(|run| size(run));
        let class = |run: &&RunEntry| size(run).max(1).ilog(self.merge_count as u64);
        let mut end = 0;
        for group in runs.chunk_by(|a, b| class(a) == class(b)) {
            end += group.len();
            if group.len() >= self.merge_count {
                runs.truncate(end);
                return Some(runs);
            }
        }
        None
    }

    /// A job of the first runs, as many as one job may have.
    fn job(&self, mut runs: Vec<&RunEntry>, kind: JobKind, frozen_until: Timestamp) -> Job {
        let mut sum = 0;
        let fits = |run: &&&RunEntry| {
            let is_first = sum == 0;
            sum += size(run);
            is_first || sum <= self.job_messages_max
        };
        let first = runs.iter().take(COMPACT_RUNS_MAX);
        runs.truncate(first.take_while(fits).count());
        let urgent_until = frozen_until.plus(self.urgent_within);
        let is_split = !matches!(kind, JobKind::MergeSlice | JobKind::Encrypt);
        let is_urgent = is_split && runs.iter().any(|run| run.least_due <= urgent_until);
        let runs = runs.into_iter().map(|run| (run.slice, run.name.clone()));
        Job {
            runs: runs.collect(),
            kind,
            is_urgent,
        }
    }
}

fn size(run: &RunEntry) -> u64 {
    u64::from(run.name.count())
}

fn messages(runs: &[&RunEntry]) -> u64 {
    runs.iter().map(|run| size(run)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: CompactionPolicy = CompactionPolicy {
        merge_count: 4,
        full_messages: 64,
        split_lead: Duration::from_secs(100),
        job_messages_max: 1_000,
        ..CompactionPolicy::DEFAULT
    };
    const FROZEN_UNTIL: Timestamp = Timestamp::from_millis(1_000);

    fn entry(level: Level, number: usize, count: u64, least_due: i64) -> RunEntry {
        RunEntry {
            slice: Slice { level, start: 0 },
            name: RunName::new(format!("1-{number:x}-{count:x}-0")),
            least_due: Timestamp::from_millis(least_due),
        }
    }

    /// Runs of one slice with these message counts.
    fn entries(level: Level, counts: &[u64], least_due: i64) -> Vec<RunEntry> {
        counts
            .iter()
            .enumerate()
            .map(|(number, count)| entry(level, number, *count, least_due))
            .collect()
    }

    /// The kind of the next job, and the message counts of its runs.
    fn plan(runs: &[RunEntry], hour_messages_max: u64) -> Option<(JobKind, Vec<u64>)> {
        let job = POLICY.plan(runs, FROZEN_UNTIL, hour_messages_max)?;
        let counts = job
            .runs
            .iter()
            .map(|(_, name)| u64::from(name.count()))
            .collect();
        Some((job.kind, counts))
    }

    #[test]
    fn runs_of_similar_size_are_merged_with_all_smaller_ones_once_there_are_enough() {
        let plan = |counts| plan(&entries(Level::Hour, counts, 5_000), u64::MAX);
        assert_eq!(plan(&[1, 1, 1]), None);
        assert_eq!(
            plan(&[1, 9, 1, 2, 1, 70]),
            Some((JobKind::MergeSlice, vec![1, 1, 1, 2]))
        );
        assert_eq!(
            plan(&[1, 5, 6, 7, 8, 20]),
            Some((JobKind::MergeSlice, vec![1, 5, 6, 7, 8]))
        );
        assert_eq!(plan(&[64, 65, 66, 67, 68]), None, "the runs are full");
    }

    #[test]
    fn frozen_runs_are_left_alone() {
        let runs = |least_due| entries(Level::Hour, &[1, 1, 1, 1], least_due);
        assert_eq!(plan(&runs(1_000), 0), None);
        assert!(plan(&runs(1_001), u64::MAX).is_some());
        let now = entries(Level::Now, &[1, 1, 1, 1], i64::MAX);
        assert_eq!(plan(&now, 0), None);
    }

    #[test]
    fn far_runs_are_split_if_there_are_enough_or_they_begin_soon() {
        let plan = |counts, least_due| plan(&entries(Level::Far, counts, least_due), u64::MAX);
        assert_eq!(plan(&[900], 101_001), None);
        assert_eq!(plan(&[900], 101_000), Some((JobKind::SplitFar, vec![900])));
        assert_eq!(
            plan(&[100, 90, 80, 70], 200_000),
            Some((JobKind::SplitFar, vec![70, 80, 90, 100]))
        );
        assert_eq!(
            plan(&[400, 400, 400, 400], 200_000),
            Some((JobKind::SplitFar, vec![400, 400])),
            "as many as one job may have"
        );
    }

    #[test]
    fn a_day_is_split_if_it_begins_soon_and_otherwise_only_merged() {
        let plan_day = |counts, least_due| plan(&entries(Level::Day, counts, least_due), u64::MAX);
        assert_eq!(
            plan_day(&[900, 50], 101_000),
            Some((JobKind::SplitDay, vec![900, 50]))
        );
        assert_eq!(
            plan_day(&[900, 70, 80, 90, 100], 101_001),
            None,
            "the runs are full"
        );
        assert_eq!(
            plan_day(&[900, 20, 30, 40, 50], 101_001),
            Some((JobKind::MergeSlice, vec![20, 30, 40, 50]))
        );
        let mut days = entries(Level::Day, &[5], 100_000);
        days.push(RunEntry {
            slice: Slice {
                level: Level::Day,
                start: 1,
            },
            ..entry(Level::Day, 9, 6, 100_000)
        });
        assert_eq!(
            plan(&days, u64::MAX),
            Some((JobKind::SplitDay, vec![5])),
            "one day at a time"
        );
    }

    #[test]
    fn a_split_of_runs_that_begin_soon_is_urgent_and_a_merge_is_not() {
        let policy = CompactionPolicy {
            urgent_within: Duration::from_secs(40),
            ..POLICY
        };
        let is_urgent = |runs: &[RunEntry], hour_messages_max| {
            let job = policy.plan(runs, FROZEN_UNTIL, hour_messages_max);
            job.expect("there is a job").is_urgent
        };
        for (level, hour_messages_max) in [
            (Level::Far, u64::MAX),
            (Level::Day, u64::MAX),
            (Level::Hour, 500),
        ] {
            for (least_due, urgent) in [(41_000, true), (41_001, false)] {
                let runs = entries(level, &[900], least_due);
                assert_eq!(is_urgent(&runs, hour_messages_max), urgent, "{level:?}");
            }
        }
        let merge = entries(Level::Hour, &[1, 1, 1, 1], 5_000);
        assert!(!is_urgent(&merge, u64::MAX));
        let mut runs = entries(Level::Far, &[900], 90_000);
        runs.extend(entries(Level::Far, &[900], 41_000));
        assert!(
            !is_urgent(&runs, u64::MAX),
            "the urgent run is not in this job"
        );
    }

    #[test]
    fn runs_of_one_slice_with_an_old_key_are_encrypted_again_unless_they_are_frozen() {
        let mut runs = entries(Level::Hour, &[5, 1], 1_000);
        runs.extend(entries(Level::Hour, &[6, 900, 70], 1_001));
        runs.extend(entries(Level::Day, &[8], 9_000));
        let job = POLICY.plan_rewrite(runs.iter(), FROZEN_UNTIL);
        let job = job.expect("there is a job");
        let counts = job.runs.iter().map(|(_, name)| name.count());
        assert_eq!(Vec::from_iter(counts), [6, 900, 70]);
        assert_eq!((job.kind, job.is_urgent), (JobKind::Encrypt, false));
        assert_eq!(POLICY.plan_rewrite(runs[..2].iter(), FROZEN_UNTIL), None);
    }

    #[test]
    fn an_hour_that_is_too_large_is_split_first() {
        let mut runs = entries(Level::Hour, &[500, 500, 100], 5_000);
        runs.extend(entries(Level::Far, &[1, 1, 1, 1], 5_000));
        assert_eq!(
            plan(&runs, 1_099),
            Some((JobKind::SplitHour, vec![500, 500]))
        );
        assert_eq!(
            plan(&runs, 1_100),
            Some((JobKind::SplitFar, vec![1, 1, 1, 1]))
        );
        let minute = entries(Level::Minute, &[500, 500, 100], 5_000);
        assert_eq!(plan(&minute, 1), None, "a minute is never split");
    }
}
