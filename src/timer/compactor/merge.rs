//! The messages of runs that are rewritten, but for those that are delivered. Pure.

use super::plan::{CompactionPolicy, JobKind};
use crate::model::{Cursor, Level, Progress, Slice, Timestamp};
use crate::run::{EncodedMessage, FarTarget, LoadedRun, Run, RunBuilder};
use std::time::Duration;

/// The runs that `inputs` become. `None`: some of it is due by `beyond`, and being delivered.
pub(super) fn merge_runs(
    inputs: &[LoadedRun],
    into: JobKind,
    (delivered, beyond): (Progress, Timestamp),
    shape: &CompactionPolicy,
    sealer: &mut RunBuilder,
) -> Option<Vec<Run>> {
    let after = beyond.plus(shape.own_hour_within);
    let mut messages = messages(inputs, (into, after), delivered);
    if messages.iter().any(|message| message.place.due <= beyond) {
        return None;
    }
    if fault!(CompactionDropsMessage) {
        messages.pop();
    }
    if fault!(CompactionDuplicatesMessages) {
        let later = |message: &EncodedMessage<'_>| Cursor {
            due: message.place.due.plus(Duration::from_millis(1)),
            ..message.place
        };
        let doubles: Vec<_> = messages
            .iter()
            .map(|message| EncodedMessage {
                place: later(message),
                ..*message
            })
            .collect();
        messages.extend(doubles);
    }
    let below = own_run_min(messages.len(), shape);
    let coarse = match into {
        JobKind::SplitFar => Some(Slice::at(Level::Far, beyond)),
        JobKind::SplitDay => inputs.first().map(LoadedRun::slice),
        JobKind::MergeSlice | JobKind::SplitHour => None,
    };
    Some(sealer.build(
        &mut messages,
        coarse.map(|slice| FarTarget {
            slice,
            ends_after: after,
            messages_min: below,
        }),
    ))
}

/// In order, each once: the same message may be in several runs. Hours that end by `after` are told apart in any case.
fn messages(
    inputs: &[LoadedRun],
    (into, after): (JobKind, Timestamp),
    delivered: Progress,
) -> Vec<EncodedMessage<'_>> {
    let of = |run: &'_ LoadedRun, index| {
        let place = run.place(index);
        let slice = match into {
            JobKind::MergeSlice => run.slice(),
            JobKind::SplitFar if !ends_by(Slice::at(Level::Hour, place.due), after) => {
                Slice::at(Level::Day, place.due)
            }
            JobKind::SplitFar | JobKind::SplitDay => Slice::at(Level::Hour, place.due),
            JobKind::SplitHour => Slice::at(Level::Minute, place.due),
        };
        (slice, place)
    };
    let all = inputs.iter().flat_map(|run| {
        (0..run.len()).map(move |index| {
            let (slice, place) = of(run, index);
            EncodedMessage {
                slice,
                place,
                record: run.record(index),
            }
        })
    });
    let mut messages: Vec<_> = all
        .filter(|message| !delivered.covers(message.place))
        .collect();
    messages.sort_by_key(|message| message.place);
    messages.dedup_by_key(|message| message.place);
    messages
}

fn ends_by(slice: Slice, after: Timestamp) -> bool {
    slice.end().is_some_and(|end| end <= after)
}

/// From how many messages on an hour or a day has a run of its own. Where as much came together as one job may have, nothing is gained by
/// waiting for more: only what is next to nothing stays as it was.
fn own_run_min(messages: usize, shape: &CompactionPolicy) -> usize {
    let is_most = messages as u64 >= shape.job_messages_max / 2;
    if is_most {
        shape.thin.messages_min.div_ceil(8)
    } else {
        shape.thin.messages_min
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, Watermark};
    use crate::run::{RunDecoder, RunName, ThinHours};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SHAPE: CompactionPolicy = CompactionPolicy {
        thin: ThinHours {
            ends_after: Duration::ZERO,
            messages_min: 3,
        },
        job_messages_max: 1_000,
        ..CompactionPolicy::DEFAULT
    };
    const BEYOND: Timestamp = Timestamp::from_millis(100);

    fn at(due: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(due), Offset(offset))
    }

    /// A run of these messages, each with its offset as record, as it would be read back.
    fn loaded(number: usize, level: Level, places: &BTreeSet<Cursor>) -> LoadedRun {
        let records: Vec<_> = places
            .iter()
            .map(|place| (*place, place.offset.0.to_be_bytes()))
            .collect();
        let slice = Slice::at(level, places.first().unwrap().due);
        let mut placed: Vec<_> = records
            .iter()
            .map(|(place, record)| EncodedMessage {
                slice,
                place: *place,
                record,
            })
            .collect();
        let run = RunBuilder::new(number as u64)
            .build(&mut placed, None)
            .remove(0);
        RunDecoder::new()
            .decode(RunName::new(format!("{number}")), slice, &run.bytes)
            .unwrap()
    }

    fn read(runs: &[Run]) -> BTreeMap<Cursor, Vec<u8>> {
        let mut found = BTreeMap::new();
        for run in runs {
            let loaded = RunDecoder::new()
                .decode(run.name.clone(), run.slice, &run.bytes)
                .unwrap();
            for index in 0..loaded.len() {
                assert!(
                    found
                        .insert(loaded.place(index), loaded.record(index).to_vec())
                        .is_none(),
                    "twice"
                );
                assert!(
                    run.slice.least_due() <= loaded.place(index).due
                        && run
                            .slice
                            .end()
                            .is_none_or(|end| loaded.place(index).due < end)
                );
            }
        }
        found
    }

    proptest! {
        #[test]
        fn every_message_that_is_not_delivered_comes_out_once_whatever_runs_it_was_in(
            inputs in prop::collection::vec(prop::collection::btree_set((1i64..20_000_000, 0u64..40), 1..12), 1..6),
            into in prop::sample::select(&[(JobKind::SplitFar, Level::Far), (JobKind::SplitDay, Level::Day), (JobKind::MergeSlice, Level::Far), (JobKind::SplitHour, Level::Hour)]),
            delivered in (0i64..20_000_000, 0u64..40),
        ) {
            let (into, level) = into;
            let place = |(due, offset): &(i64, u64)| at(*due, *offset);
            let inputs: Vec<BTreeSet<_>> = inputs.iter().map(|places| places.iter().map(place).collect()).collect();
            let runs: Vec<_> = inputs.iter().enumerate().map(|(number, places)| loaded(number, level, places)).collect();
            let delivered = Progress::new(at(delivered.0, delivered.1), Watermark(delivered.1));
            let wanted: BTreeSet<_> = inputs.iter().flatten().copied().filter(|place| !delivered.covers(*place)).collect();
            let outputs = merge_runs(&runs, into, (delivered, BEYOND), &SHAPE, &mut RunBuilder::new(9));
            if wanted.iter().any(|place| place.due <= BEYOND) {
                prop_assert!(outputs.is_none());
            } else {
                let wanted: BTreeMap<_, _> = wanted.into_iter().map(|place| (place, place.offset.0.to_be_bytes().to_vec())).collect();
                prop_assert_eq!(read(&outputs.unwrap()), wanted);
            }
        }
    }

    #[test]
    fn runs_that_would_come_out_as_many_are_left_alone() {
        let run =
            |number, level, due| loaded(number, level, &BTreeSet::from([at(due, number as u64)]));
        let useless = |inputs: &[LoadedRun], into| {
            let outputs = merge_runs(
                inputs,
                into,
                (Progress::START, BEYOND),
                &SHAPE,
                &mut RunBuilder::new(9),
            )
            .unwrap();
            SHAPE.no_gain_until(inputs, &outputs, into, BEYOND)
        };
        let hours = [
            run(1, Level::Hour, 200),
            run(2, Level::Hour, 3_600_200),
            run(3, Level::Hour, 7_200_200),
        ];
        assert_eq!(
            useless(&hours, JobKind::MergeSlice),
            Some(Timestamp::MAX),
            "three hours stay three runs"
        );
        assert_eq!(
            useless(
                &[run(1, Level::Hour, 200), run(2, Level::Hour, 201)],
                JobKind::MergeSlice
            ),
            None,
            "one of two"
        );
        let days = 24 * 3_600_000;
        let two_days = BTreeSet::from([at(2 * days, 1), at(3 * days, 2)]);
        let far = [loaded(1, Level::Far, &two_days)];
        let until = Timestamp::from_millis(2 * days).minus(SHAPE.split_lead);
        assert_eq!(
            useless(&far, JobKind::SplitFar),
            Some(until),
            "one far run stays one, until it begins"
        );
        assert_eq!(
            useless(
                &[run(1, Level::Far, 200), run(2, Level::Far, 2 * days)],
                JobKind::SplitFar
            ),
            None,
            "one begins, and is taken apart"
        );
    }
}
