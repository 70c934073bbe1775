//! Which runs of a shard are to be rewritten next. Pure.
//!
//! Runs are merged by their sizes, as in a log-structured merge tree: a few of about the same size become one of the next, so that a message
//! is written anew only a few times, however thin the runs were that it came in.

use crate::limit;
use crate::model::{Level, Slice, Timestamp};
use crate::run::{Loaded, Name, Run, Thin};
use crate::store::Listing;
use std::collections::BTreeMap;
use std::time::Duration;

/// How runs should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) thin: Thin,
    /// So many runs of one size are merged.
    pub(crate) fan: usize,
    /// A run of so many messages is as good as any: it costs what its messages cost.
    pub(crate) full: u64,
    /// Far runs and those of days that begin sooner are taken apart, for they would be read again for every message that is due,
    pub(crate) far_least: Duration,
    /// and hours that end within so long then have runs of their own.
    pub(crate) far_after: Duration,
    /// To take apart what begins within so long is urgent.
    pub(crate) urgent: Duration,
    /// Messages in one job.
    pub(crate) messages_max: u64,
    /// What is due within so long after what is loaded is left alone.
    pub(crate) margin: Duration,
}

impl Shape {
    pub(crate) const DEFAULT: Self = Self {
        thin: Thin::DEFAULT,
        fan: limit::REWRITE_FAN,
        full: limit::REWRITE_FULL,
        far_least: limit::REWRITE_FAR_LEAST,
        far_after: limit::REWRITE_FAR_AFTER,
        urgent: limit::REWRITE_URGENT,
        messages_max: limit::REWRITE_MESSAGES_MAX,
        margin: limit::REWRITE_MARGIN,
    };
}

/// Runs to rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) runs: Vec<(Slice, Name)>,
    pub(crate) into: Into,
    pub(crate) is_urgent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    /// One slice's runs into fewer.
    Fewer,
    /// Far runs by the days of their dues, or the hours if they come soon; what is still thin into a far run again.
    Days,
    /// A day's runs by the hours of their dues; what is thin and comes later into a run of the day again.
    Hours,
    /// An hour's runs by the minutes of their dues.
    Minutes,
}

impl Shape {
    /// What is due later may be rewritten.
    pub(super) fn beyond(&self, loaded: Timestamp) -> Timestamp {
        loaded.plus(self.margin)
    }

    /// Until then runs of which the first message is due at `least_due` may be put in their place: half of the margin is for making them, half
    /// for a call whose answer is lost.
    pub(super) fn before(&self, least_due: Timestamp) -> Timestamp {
        least_due.minus(self.margin / 2)
    }

    /// Runs that are full by their bytes may come out as many as they went in, and would for ever. Until when they are left alone then.
    pub(super) fn is_useless(
        &self,
        inputs: &[Loaded],
        outputs: &[Run],
        into: Into,
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
        let until = || (least > self.soon(beyond)).then(|| least.minus(self.far_least));
        match into {
            Into::Fewer => (outputs.len() * 2 > inputs.len()).then_some(Timestamp::MAX),
            Into::Days => until().filter(|_| coarse(Level::Far)),
            Into::Hours => until().filter(|_| coarse(Level::Day)),
            Into::Minutes => None,
        }
    }

    /// `listed`: runs by least due. Runs of hours and minutes that begin by `beyond` are being loaded, and left alone. `hour_max`: messages
    /// of an hour that can be loaded together.
    pub(crate) fn plan(&self, listed: &[Listing], beyond: Timestamp, hour_max: u64) -> Option<Job> {
        let mut slices: BTreeMap<Slice, Vec<&Listing>> = BTreeMap::new();
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
            return Some(self.job(runs.clone(), Into::Minutes, beyond));
        }
        if let Some(runs) = of(Level::Day)
            .map(|runs| self.begun(runs, beyond))
            .find(|begun| !begun.is_empty())
        {
            return Some(self.job(runs, Into::Hours, beyond));
        }
        let far: Vec<_> = of(Level::Far).flatten().copied().collect();
        let begun = self.begun(&far, beyond);
        if let Some(runs) = if begun.is_empty() {
            self.alike(far, u64::MAX)
        } else {
            Some(begun)
        } {
            return Some(self.job(runs, Into::Days, beyond));
        }
        let fine = [Level::Day, Level::Hour, Level::Minute]
            .into_iter()
            .flat_map(of);
        fine.filter_map(|runs| self.alike(runs.clone(), self.full))
            .max_by_key(Vec::len)
            .map(|runs| self.job(runs, Into::Fewer, beyond))
    }

    /// Those of the runs that begin soon.
    fn begun<'a>(&self, runs: &[&'a Listing], beyond: Timestamp) -> Vec<&'a Listing> {
        runs.iter()
            .copied()
            .filter(|run| run.least_due <= self.soon(beyond))
            .collect()
    }

    /// Far runs and those of days that begin by then are taken apart.
    fn soon(&self, beyond: Timestamp) -> Timestamp {
        beyond.plus(self.far_least)
    }

    /// The runs of the least size of which there are enough, and all smaller ones.
    fn alike<'a>(&self, mut runs: Vec<&'a Listing>, full: u64) -> Option<Vec<&'a Listing>> {
        runs.retain(|run| size(run) < full);
        runs.sort_by_key(|run| size(run));
        let class = |run: &&Listing| size(run).max(1).ilog(self.fan as u64);
        let mut end = 0;
        for group in runs.chunk_by(|a, b| class(a) == class(b)) {
            end += group.len();
            if group.len() >= self.fan {
                runs.truncate(end);
                return Some(runs);
            }
        }
        None
    }

    /// As many of the runs as one job may have.
    fn job(&self, mut runs: Vec<&Listing>, into: Into, beyond: Timestamp) -> Job {
        let mut sum = 0;
        let fits = |run: &&&Listing| {
            let fits = sum == 0 || sum + size(run) <= self.messages_max;
            sum += size(run);
            fits
        };
        let most = runs
            .iter()
            .take(limit::REWRITE_RUNS_MAX)
            .take_while(fits)
            .count();
        runs.truncate(most);
        let is_urgent = into != Into::Fewer
            && runs
                .iter()
                .any(|run| run.least_due <= beyond.plus(self.urgent));
        Job {
            runs: runs
                .into_iter()
                .map(|run| (run.slice, run.name.clone()))
                .collect(),
            into,
            is_urgent,
        }
    }
}

fn size(run: &Listing) -> u64 {
    u64::from(run.name.count())
}

fn messages(runs: &[&Listing]) -> u64 {
    runs.iter().map(|run| size(run)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        fan: 4,
        full: 64,
        far_least: Duration::from_secs(100),
        messages_max: 1_000,
        ..Shape::DEFAULT
    };
    const BEYOND: Timestamp = Timestamp::from_millis(1_000);

    fn listing(level: Level, number: usize, count: u64, least_due: i64) -> Listing {
        let least_due = Timestamp::from_millis(least_due);
        Listing {
            slice: Slice { level, start: 0 },
            name: Name::new(format!("1-{number:x}-{count:x}-0")),
            least_due,
        }
    }

    fn listings(level: Level, counts: &[u64], least_due: i64) -> Vec<Listing> {
        counts
            .iter()
            .enumerate()
            .map(|(number, count)| listing(level, number, *count, least_due))
            .collect()
    }

    fn sizes(job: Option<Job>) -> Option<(Into, Vec<u64>)> {
        job.map(|job| {
            (
                job.into,
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
            Some((Into::Fewer, vec![1, 1, 1, 2]))
        );
        assert_eq!(
            plan(&[1, 5, 6, 7, 8, 20]),
            Some((Into::Fewer, vec![1, 5, 6, 7, 8]))
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
        assert_eq!(plan(&[900], 101_000), Some((Into::Days, vec![900])));
        assert_eq!(
            plan(&[100, 90, 80, 70], 200_000),
            Some((Into::Days, vec![70, 80, 90, 100]))
        );
        assert_eq!(
            plan(&[400, 400, 400, 400], 200_000),
            Some((Into::Days, vec![400, 400])),
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
            Some((Into::Hours, vec![900, 50]))
        );
        assert_eq!(
            plan(&[900, 70, 80, 90, 100], 101_001),
            None,
            "they are full"
        );
        assert_eq!(
            plan(&[900, 20, 30, 40, 50], 101_001),
            Some((Into::Fewer, vec![20, 30, 40, 50]))
        );
        let mut days = listings(Level::Day, &[5], 100_000);
        days.push(Listing {
            slice: Slice {
                level: Level::Day,
                start: 1,
            },
            ..listing(Level::Day, 9, 6, 100_000)
        });
        assert_eq!(
            sizes(SHAPE.plan(&days, BEYOND, u64::MAX)),
            Some((Into::Hours, vec![5])),
            "one day at a time"
        );
    }

    #[test]
    fn to_take_apart_what_begins_soon_is_urgent_and_to_merge_is_not() {
        let shape = Shape {
            urgent: Duration::from_secs(40),
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
            Some((Into::Minutes, vec![500, 500]))
        );
        assert_eq!(
            sizes(SHAPE.plan(&runs, BEYOND, 1_100)),
            Some((Into::Days, vec![1, 1, 1, 1]))
        );
        let minute = listings(Level::Minute, &[500, 500, 100], 5_000);
        assert_eq!(
            SHAPE.plan(&minute, BEYOND, 1),
            None,
            "there is nothing finer"
        );
    }
}
