//! Which runs of a shard are to be rewritten next. Pure.
//!
//! Runs are merged by their sizes, as in a log-structured merge tree: a few of about the same size become one of the next, so that a message
//! is written anew only a few times, however thin the runs were that it came in.

use crate::limit;
use crate::model::{Level, Slice, Timestamp};
use crate::run::{LoadedRun, Run, RunName, ThinHours};
use crate::store::RunEntry;
use std::collections::BTreeMap;
use std::time::Duration;

/// How runs should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactionPolicy {
    pub(crate) thin: ThinHours,
    /// So many runs of one size are merged.
    pub(crate) merge_count: usize,
    /// A run of so many messages is as good as any: it costs what its messages cost.
    pub(crate) full_messages: u64,
    /// Far runs and those of days that begin sooner are taken apart, for they would be read again for every message that is due,
    pub(crate) split_lead: Duration,
    /// and hours that end within so long then have runs of their own.
    pub(crate) own_hour_within: Duration,
    /// To take apart what begins within so long is urgent.
    pub(crate) urgent_within: Duration,
    /// Messages in one job.
    pub(crate) job_messages_max: u64,
    /// What is due within so long after what is loaded is left alone.
    pub(crate) margin: Duration,
}

impl CompactionPolicy {
    pub(crate) const DEFAULT: Self = Self {
        thin: ThinHours::DEFAULT,
        merge_count: limit::COMPACT_FAN_IN,
        full_messages: limit::COMPACT_FULL_RUN_MESSAGES,
        split_lead: limit::COMPACT_SPLIT_STARTS_WITHIN,
        own_hour_within: limit::COMPACT_SPLIT_DUE_WITHIN,
        urgent_within: limit::COMPACT_URGENT_WITHIN,
        job_messages_max: limit::COMPACT_MESSAGES_MAX,
        margin: limit::COMPACT_DUE_MARGIN,
    };
}

/// Runs to rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) runs: Vec<(Slice, RunName)>,
    pub(crate) kind: JobKind,
    pub(crate) is_urgent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// One slice's runs into fewer.
    MergeSlice,
    /// Far runs by the days of their dues, or the hours if they come soon; what is still thin into a far run again.
    SplitFar,
    /// A day's runs by the hours of their dues; what is thin and comes later into a run of the day again.
    SplitDay,
    /// An hour's runs by the minutes of their dues.
    SplitHour,
}

impl CompactionPolicy {
    /// What is due later may be rewritten.
    pub(super) fn frozen_until(&self, loaded: Timestamp) -> Timestamp {
        loaded.plus(self.margin)
    }

    /// Until then runs of which the first message is due at `least_due` may be put in their place: half of the margin is for making them, half
    /// for a call whose answer is lost.
    pub(super) fn replacement_valid_until(&self, least_due: Timestamp) -> Timestamp {
        least_due.minus(self.margin / 2)
    }

    /// Runs that are full by their bytes may come out as many as they went in, and would for ever. Until when they are left alone then.
    pub(super) fn no_gain_until(
        &self,
        inputs: &[LoadedRun],
        outputs: &[Run],
        into: JobKind,
        beyond: Timestamp,
    ) -> Option<Timestamp> {
        let least = inputs.iter().map(|run| run.summary().least_due()).min()?;
        let coarse = |level| {
            outputs
                .iter()
                .filter(|run| run.slice.level == level)
                .count()
                >= inputs.len()
        };
        let until = || (least > self.split_until(beyond)).then(|| least.minus(self.split_lead));
        match into {
            JobKind::MergeSlice => (outputs.len() * 2 > inputs.len()).then_some(Timestamp::MAX),
            JobKind::SplitFar => until().filter(|_| coarse(Level::Far)),
            JobKind::SplitDay => until().filter(|_| coarse(Level::Day)),
            JobKind::SplitHour => None,
        }
    }

    /// `listed`: runs by least due. Runs of hours and minutes that begin by `beyond` are being loaded, and left alone. `hour_max`: messages
    /// of an hour that can be loaded together.
    pub(crate) fn plan(
        &self,
        listed: &[RunEntry],
        beyond: Timestamp,
        hour_max: u64,
    ) -> Option<Job> {
        let mut slices: BTreeMap<Slice, Vec<&RunEntry>> = BTreeMap::new();
        for run in listed.iter().filter(|run| {
            matches!(run.slice.level, Level::Far | Level::Day) || run.least_due > beyond
        }) {
            slices.entry(run.slice).or_default().push(run);
        }
        let of = |level| {
            slices
                .iter()
                .filter(move |(slice, _)| slice.level == level)
                .map(|(_, runs)| runs)
        };
        if let Some(runs) = of(Level::Hour).find(|runs| messages(runs) > hour_max) {
            return Some(self.job(runs.clone(), JobKind::SplitHour, beyond));
        }
        if let Some(runs) = of(Level::Day)
            .map(|runs| self.starting_soon(runs, beyond))
            .find(|begun| !begun.is_empty())
        {
            return Some(self.job(runs, JobKind::SplitDay, beyond));
        }
        let far: Vec<_> = of(Level::Far).flatten().copied().collect();
        let begun = self.starting_soon(&far, beyond);
        if let Some(runs) = if begun.is_empty() {
            self.mergeable(far, u64::MAX)
        } else {
            Some(begun)
        } {
            return Some(self.job(runs, JobKind::SplitFar, beyond));
        }
        let fine = [Level::Day, Level::Hour, Level::Minute]
            .into_iter()
            .flat_map(of);
        fine.filter_map(|runs| self.mergeable(runs.clone(), self.full_messages))
            .max_by_key(Vec::len)
            .map(|runs| self.job(runs, JobKind::MergeSlice, beyond))
    }

    /// Those of the runs that begin soon.
    fn starting_soon<'a>(&self, runs: &[&'a RunEntry], beyond: Timestamp) -> Vec<&'a RunEntry> {
        runs.iter()
            .copied()
            .filter(|run| run.least_due <= self.split_until(beyond))
            .collect()
    }

    /// Far runs and those of days that begin by then are taken apart.
    fn split_until(&self, beyond: Timestamp) -> Timestamp {
        beyond.plus(self.split_lead)
    }

    /// The runs of the least size of which there are enough, and all smaller ones.
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

    /// As many of the runs as one job may have.
    fn job(&self, mut runs: Vec<&RunEntry>, into: JobKind, beyond: Timestamp) -> Job {
        let mut sum = 0;
        let fits = |run: &&&RunEntry| {
            let fits = sum == 0 || sum + size(run) <= self.job_messages_max;
            sum += size(run);
            fits
        };
        let most = runs
            .iter()
            .take(limit::COMPACT_RUNS_MAX)
            .take_while(fits)
            .count();
        runs.truncate(most);
        let is_urgent = into != JobKind::MergeSlice
            && runs
                .iter()
                .any(|run| run.least_due <= beyond.plus(self.urgent_within));
        Job {
            runs: runs
                .into_iter()
                .map(|run| (run.slice, run.name.clone()))
                .collect(),
            kind: into,
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

    const SHAPE: CompactionPolicy = CompactionPolicy {
        merge_count: 4,
        full_messages: 64,
        split_lead: Duration::from_secs(100),
        job_messages_max: 1_000,
        ..CompactionPolicy::DEFAULT
    };
    const BEYOND: Timestamp = Timestamp::from_millis(1_000);

    fn listing(level: Level, number: usize, count: u64, least_due: i64) -> RunEntry {
        let least_due = Timestamp::from_millis(least_due);
        RunEntry {
            slice: Slice { level, start: 0 },
            name: RunName::new(format!("1-{number:x}-{count:x}-0")),
            least_due,
        }
    }

    fn listings(level: Level, counts: &[u64], least_due: i64) -> Vec<RunEntry> {
        counts
            .iter()
            .enumerate()
            .map(|(number, count)| listing(level, number, *count, least_due))
            .collect()
    }

    fn sizes(job: Option<Job>) -> Option<(JobKind, Vec<u64>)> {
        job.map(|job| {
            (
                job.kind,
                job.runs
                    .iter()
                    .map(|(_, name)| u64::from(name.count()))
                    .collect(),
            )
        })
    }

    #[test]
    fn runs_of_one_size_are_merged_with_all_smaller_ones_once_there_are_enough() {
        let plan =
            |counts| sizes(SHAPE.plan(&listings(Level::Hour, counts, 5_000), BEYOND, u64::MAX));
        assert_eq!(plan(&[1, 1, 1]), None);
        assert_eq!(
            plan(&[1, 9, 1, 2, 1, 70]),
            Some((JobKind::MergeSlice, vec![1, 1, 1, 2]))
        );
        assert_eq!(
            plan(&[1, 5, 6, 7, 8, 20]),
            Some((JobKind::MergeSlice, vec![1, 5, 6, 7, 8]))
        );
        assert_eq!(plan(&[64, 65, 66, 67, 68]), None, "they are full");
    }

    #[test]
    fn what_is_being_loaded_is_left_alone() {
        let runs = |least_due| listings(Level::Hour, &[1, 1, 1, 1], least_due);
        assert_eq!(SHAPE.plan(&runs(1_000), BEYOND, 0), None);
        assert!(SHAPE.plan(&runs(1_001), BEYOND, u64::MAX).is_some());
        let now = listings(Level::Now, &[1, 1, 1, 1], i64::MAX);
        assert_eq!(SHAPE.plan(&now, BEYOND, 0), None);
    }

    #[test]
    fn far_runs_are_taken_apart_when_there_are_enough_or_they_begin_soon() {
        let plan = |counts, least_due| {
            sizes(SHAPE.plan(&listings(Level::Far, counts, least_due), BEYOND, u64::MAX))
        };
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
    fn the_runs_of_a_day_are_taken_apart_when_it_begins_soon_and_else_only_merged() {
        let plan = |counts, least_due| {
            sizes(SHAPE.plan(&listings(Level::Day, counts, least_due), BEYOND, u64::MAX))
        };
        assert_eq!(
            plan(&[900, 50], 101_000),
            Some((JobKind::SplitDay, vec![900, 50]))
        );
        assert_eq!(
            plan(&[900, 70, 80, 90, 100], 101_001),
            None,
            "they are full"
        );
        assert_eq!(
            plan(&[900, 20, 30, 40, 50], 101_001),
            Some((JobKind::MergeSlice, vec![20, 30, 40, 50]))
        );
        let mut days = listings(Level::Day, &[5], 100_000);
        days.push(RunEntry {
            slice: Slice {
                level: Level::Day,
                start: 1,
            },
            ..listing(Level::Day, 9, 6, 100_000)
        });
        assert_eq!(
            sizes(SHAPE.plan(&days, BEYOND, u64::MAX)),
            Some((JobKind::SplitDay, vec![5])),
            "one day at a time"
        );
    }

    #[test]
    fn to_take_apart_what_begins_soon_is_urgent_and_to_merge_is_not() {
        let shape = CompactionPolicy {
            urgent_within: Duration::from_secs(40),
            ..SHAPE
        };
        let is_urgent = |level, counts, least_due, hour_max| {
            shape
                .plan(&listings(level, counts, least_due), BEYOND, hour_max)
                .expect("there is a job")
                .is_urgent
        };
        for (level, hour_max) in [
            (Level::Far, u64::MAX),
            (Level::Day, u64::MAX),
            (Level::Hour, 500),
        ] {
            assert!(is_urgent(level, &[900], 41_000, hour_max), "{level:?}");
            assert!(!is_urgent(level, &[900], 41_001, hour_max), "{level:?}");
        }
        assert!(!is_urgent(Level::Hour, &[1, 1, 1, 1], 5_000, u64::MAX));
        let mut runs = listings(Level::Far, &[900], 41_000);
        runs.extend(listings(Level::Far, &[900], 90_000));
        runs.rotate_left(1);
        assert!(
            !shape
                .plan(&runs, BEYOND, u64::MAX)
                .expect("the first begins")
                .is_urgent,
            "the urgent one is not in this job"
        );
    }

    #[test]
    fn an_hour_that_is_too_much_at_once_is_split_first_of_all() {
        let mut runs = listings(Level::Hour, &[500, 500, 100], 5_000);
        runs.extend(listings(Level::Far, &[1, 1, 1, 1], 5_000));
        assert_eq!(
            sizes(SHAPE.plan(&runs, BEYOND, 1_099)),
            Some((JobKind::SplitHour, vec![500, 500]))
        );
        assert_eq!(
            sizes(SHAPE.plan(&runs, BEYOND, 1_100)),
            Some((JobKind::SplitFar, vec![1, 1, 1, 1]))
        );
        let minute = listings(Level::Minute, &[500, 500, 100], 5_000);
        assert_eq!(
            SHAPE.plan(&minute, BEYOND, 1),
            None,
            "there is nothing finer"
        );
    }
}
