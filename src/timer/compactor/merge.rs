//! Builds the new runs of a compaction from the messages of the old runs. Pure.

use super::Bounds;
use super::plan::{CompactionPolicy, JobKind};
use crate::model::{Cursor, Level, ShardId, Slice, Timestamp};
use crate::run::{EncodedMessage, FarTarget, LoadedRun, Run, RunBuilder};
use std::time::Duration;

/// Builds the runs that replace `inputs`, without delivered messages. Returns `None` if a message
/// that is not delivered is frozen.
pub(super) fn merge_runs(
    shard: &ShardId,
    inputs: &[LoadedRun],
    kind: JobKind,
    bounds: Bounds,
    policy: &CompactionPolicy,
    builder: &mut RunBuilder,
) -> Option<Vec<Run>> {
    let own_hours_until = bounds.frozen_until.plus(policy.own_hour_within);
    let mut messages = remaining_messages(inputs, bounds, |run, place| {
        new_slice(kind, run.slice, place.due, own_hours_until)
    });
    if messages
        .iter()
        .any(|message| bounds.is_frozen(message.place))
    {
        return None;
    }
    if fault!(CompactionDropsMessage) {
        messages.pop();
    }
    if fault!(CompactionDuplicatesMessages) {
        messages.extend(messages.clone().into_iter().map(|mut message| {
            message.place.due = message.place.due.plus(Duration::from_millis(1));
            message
        }));
    }
    let shared_slice = match kind {
        JobKind::SplitFar => Some(Slice::at(Level::Far, bounds.frozen_until)),
        JobKind::SplitDay => inputs.first().map(|run| run.slice),
        JobKind::MergeSlice | JobKind::SplitHour | JobKind::Encrypt => None,
    };
    let messages_min = own_run_min(messages.len(), policy);
    let far = shared_slice.map(|slice| FarTarget {
        slice,
        ends_after: own_hours_until,
        messages_min,
    });
    Some(builder.build(shard, &mut messages, far))
}

/// The slice of a message in the new runs. An hour that ends by `own_hours_until` has its own slice
/// in any case.
fn new_slice(kind: JobKind, old: Slice, due: Timestamp, own_hours_until: Timestamp) -> Slice {
    let hour = Slice::at(Level::Hour, due);
    match kind {
        JobKind::MergeSlice | JobKind::Encrypt => old,
        JobKind::SplitFar if hour.end().is_none_or(|end| end > own_hours_until) => {
            Slice::at(Level::Day, due)
        }
        JobKind::SplitFar | JobKind::SplitDay => hour,
        JobKind::SplitHour => Slice::at(Level::Minute, due),
    }
}

/// The messages that are not delivered, in order. Each comes once, even if it is in several runs.
fn remaining_messages(
    inputs: &[LoadedRun],
    bounds: Bounds,
    slice_of: impl Fn(&LoadedRun, Cursor) -> Slice,
) -> Vec<EncodedMessage<'_>> {
    let mut messages = Vec::new();
    for run in inputs {
        for index in 0..run.len() {
            let place = run.place(index);
            if !bounds.delivered.covers(place) {
                messages.push(EncodedMessage {
                    slice: slice_of(run, place),
                    place,
                    record: run.record(index),
                });
            }
        }
    }
    messages.sort_by_key(|message| message.place);
    messages.dedup_by_key(|message| message.place);
    messages
}

/// The number of messages from which an hour or a day gets its own run. A large job uses a low
/// number, because waiting for more messages gains nothing: only very small hours stay together.
fn own_run_min(messages: usize, policy: &CompactionPolicy) -> usize {
    let is_large = messages as u64 >= policy.job_messages_max / 2;
    if is_large {
        policy.thin.messages_min.div_ceil(8)
    } else {
        policy.thin.messages_min
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, Progress, Watermark};
    use crate::run::test_messages::shard;
    use crate::run::{RunDecoder, RunName, ThinHours};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const POLICY: CompactionPolicy = CompactionPolicy {
        thin: ThinHours {
            ends_after: Duration::ZERO,
            messages_min: 3,
        },
        job_messages_max: 1_000,
        ..CompactionPolicy::DEFAULT
    };
    const FROZEN_UNTIL: Timestamp = Timestamp::from_millis(100);
    const DAY_MS: i64 = 24 * 3_600_000;

    fn place(due: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(due), Offset(offset))
    }

    fn bounds(delivered: Progress) -> Bounds {
        Bounds {
            delivered,
            frozen_until: FROZEN_UNTIL,
        }
    }

    /// A run of messages at these places. The record of each message is its offset.
    fn loaded(number: usize, level: Level, places: &BTreeSet<Cursor>) -> LoadedRun {
        let slice = Slice::at(level, places.first().unwrap().due);
        let records: Vec<_> = places
            .iter()
            .map(|place| (*place, place.offset.0.to_be_bytes()))
            .collect();
        let mut messages: Vec<_> = records
            .iter()
            .map(|(place, record)| EncodedMessage {
                slice,
                place: *place,
                record,
            })
            .collect();
        let run = RunBuilder::plain(number as u64)
            .build(&shard(), &mut messages, None)
            .remove(0);
        RunDecoder::plain()
            .decode(
                &shard(),
                RunName::new(format!("{number}")),
                slice,
                &run.bytes,
            )
            .unwrap()
    }

    /// The records of all messages. Checks that each message is in one run only, of a slice that
    /// may hold it.
    fn read(runs: &[Run]) -> BTreeMap<Cursor, Vec<u8>> {
        let mut found = BTreeMap::new();
        for run in runs {
            let loaded = RunDecoder::plain()
                .decode(&shard(), run.name.clone(), run.slice, &run.bytes)
                .unwrap();
            for index in 0..loaded.len() {
                let place = loaded.place(index);
                let earlier = found.insert(place, loaded.record(index).to_vec());
                assert_eq!(earlier, None, "{place:?} is in two runs");
                assert!(run.slice.least_due() <= place.due);
                assert!(run.slice.end().is_none_or(|end| place.due < end));
            }
        }
        found
    }

    proptest! {
        #[test]
        fn every_message_that_is_not_delivered_is_in_the_new_runs_once(
            inputs in prop::collection::vec(
                prop::collection::btree_set((1i64..20_000_000, 0u64..40), 1..12),
                1..6,
            ),
            job in prop::sample::select(&[
                (JobKind::SplitFar, Level::Far),
                (JobKind::SplitDay, Level::Day),
                (JobKind::MergeSlice, Level::Far),
                (JobKind::SplitHour, Level::Hour),
            ]),
            delivered in (0i64..20_000_000, 0u64..40),
        ) {
            let (kind, level) = job;
            let inputs: Vec<BTreeSet<_>> = inputs
                .iter()
                .map(|places| places.iter().map(|(due, offset)| place(*due, *offset)).collect())
                .collect();
            let runs: Vec<_> = inputs
                .iter()
                .enumerate()
                .map(|(number, places)| loaded(number, level, places))
                .collect();
            let delivered =
                Progress::new(place(delivered.0, delivered.1), Watermark(delivered.1));
            let expected: BTreeMap<_, _> = inputs
                .iter()
                .flatten()
                .filter(|place| !delivered.covers(**place))
                .map(|place| (*place, place.offset.0.to_be_bytes().to_vec()))
                .collect();
            let mut builder = RunBuilder::plain(9);
            let outputs = merge_runs(&shard(), &runs, kind, bounds(delivered), &POLICY, &mut builder);
            if expected.keys().any(|place| place.due <= FROZEN_UNTIL) {
                prop_assert!(outputs.is_none());
            } else {
                prop_assert_eq!(read(&outputs.unwrap()), expected);
            }
        }
    }

    fn no_gain_until(inputs: &[LoadedRun], kind: JobKind) -> Option<Timestamp> {
        let mut builder = RunBuilder::plain(9);
        let outputs = merge_runs(
            &shard(),
            inputs,
            kind,
            bounds(Progress::START),
            &POLICY,
            &mut builder,
        );
        POLICY.no_gain_until(inputs, &outputs.unwrap(), kind, FROZEN_UNTIL)
    }

    #[test]
    fn runs_that_do_not_become_fewer_are_skipped() {
        let run = |number, level, due| {
            loaded(number, level, &BTreeSet::from([place(due, number as u64)]))
        };
        let hours = [
            run(1, Level::Hour, 200),
            run(2, Level::Hour, 3_600_200),
            run(3, Level::Hour, 7_200_200),
        ];
        assert_eq!(
            no_gain_until(&hours, JobKind::MergeSlice),
            Some(Timestamp::MAX),
            "three hours stay three runs"
        );
        let same_hour = [run(1, Level::Hour, 200), run(2, Level::Hour, 201)];
        assert_eq!(no_gain_until(&same_hour, JobKind::MergeSlice), None);
    }

    #[test]
    fn a_far_run_that_cannot_be_split_is_skipped_until_it_begins_soon() {
        let two_days = BTreeSet::from([place(2 * DAY_MS, 1), place(3 * DAY_MS, 2)]);
        assert_eq!(
            no_gain_until(&[loaded(1, Level::Far, &two_days)], JobKind::SplitFar),
            Some(Timestamp::from_millis(2 * DAY_MS).minus(POLICY.split_lead))
        );
        let soon = loaded(1, Level::Far, &BTreeSet::from([place(200, 1)]));
        let later = loaded(2, Level::Far, &BTreeSet::from([place(2 * DAY_MS, 2)]));
        assert_eq!(no_gain_until(&[soon, later], JobKind::SplitFar), None);
    }
}
