//! Groups messages into runs by slice. Slices with few messages share far runs.

use super::seal::seal;
use super::writer::RunEncoder;
use super::{Run, RunName};
use crate::encryption::KeyRing;
use crate::limit::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, HOUR_RUN_HORIZON, HOUR_RUN_MESSAGES_MIN};
use crate::model::{Cursor, Level, Offset, ShardId, Slice, Timestamp};
use std::time::Duration;

/// A message to store in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedMessage<'a> {
    pub(crate) slice: Slice,
    pub(crate) place: Cursor,
    pub(crate) record: &'a [u8],
}

/// Decides which hours have too few messages for a run of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThinHours {
    /// An hour that ends sooner has its own run, because it is loaded soon.
    pub(crate) ends_after: Duration,
    /// An hour with this many messages has its own run.
    pub(crate) messages_min: usize,
}

impl ThinHours {
    pub(crate) const DEFAULT: Self = Self {
        ends_after: HOUR_RUN_HORIZON,
        messages_min: HOUR_RUN_MESSAGES_MIN,
    };
}

/// The slice that takes hours and days with few messages: a far slice, or a day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarTarget {
    pub(crate) slice: Slice,
    /// Only hours and days that end after this time are moved there.
    pub(crate) ends_after: Timestamp,
    /// Only hours and days with fewer messages are moved there.
    pub(crate) messages_min: usize,
}

impl FarTarget {
    /// The far slice for messages that are stored at `now`.
    pub(crate) fn at(now: Timestamp, thin: ThinHours) -> Self {
        Self {
            slice: Slice::at(Level::Far, now),
            ends_after: now.plus(thin.ends_after),
            messages_min: thin.messages_min,
        }
    }
}

/// Builds runs from messages. Names them by a random id, which is new for each process, and a
/// counter. So no name is used twice, even after a restart or a rollback of the store (I3).
pub(crate) struct RunBuilder {
    encoder: RunEncoder,
    keys: KeyRing,
    writer: u64,
    counter: u64,
}

impl RunBuilder {
    /// `writer` must be a new random id for each process.
    pub(crate) fn new(writer: u64, keys: KeyRing) -> Self {
        Self {
            encoder: RunEncoder::new(),
            keys,
            writer,
            counter: 0,
        }
    }

    /// A builder of plain runs.
    #[cfg(test)]
    pub(crate) fn plain(writer: u64) -> Self {
        Self::new(writer, KeyRing::plain())
    }

    /// The keys by which the runs are encrypted.
    pub(crate) fn keys(&self) -> &KeyRing {
        &self.keys
    }

    /// True if the builder would encrypt the run with another key, or not at all.
    pub(crate) fn has_other_key(&self, run: &RunName) -> bool {
        self.keys.writer().map(|key| &**key) != run.key()
    }

    /// The random id of this builder.
    pub(crate) fn writer(&self) -> u64 {
        self.writer
    }

    /// Builds the runs of these messages, each sorted by (due, offset) (I3) and at most as large as
    /// a batch. No place may occur twice. Only this shard can read an encrypted run.
    pub(crate) fn build(
        &mut self,
        shard: &ShardId,
        messages: &mut [EncodedMessage<'_>],
        far: Option<FarTarget>,
    ) -> Vec<Run> {
        sort(messages);
        if far.is_some_and(|far| move_thin_to_far(messages, far)) {
            sort(messages);
        }
        let mut runs = Vec::new();
        for mut rest in messages.chunk_by(same_slice) {
            while let Some(first) = rest.first() {
                let (part, after) = rest.split_at(run_length(rest));
                let records = part.iter().map(|message| (message.place, message.record));
                let (summary, bytes) = self.encoder.encode(records);
                let name = self.next_name(summary.count, summary.least_offset);
                runs.push(Run {
                    bytes: seal(&self.keys, shard, &name, bytes),
                    name,
                    slice: first.slice,
                    summary,
                });
                rest = after;
            }
        }
        runs
    }

    fn next_name(&mut self, count: u32, least_offset: Offset) -> RunName {
        self.counter += 1;
        if fault!(ReuseRunNames) {
            return RunName::new(format!("0-0-{count:x}-0"));
        }
        let (writer, counter, least) = (self.writer, self.counter, least_offset.0);
        let numbers = format!("{writer:x}-{counter:x}-{count:x}-{least:x}");
        match self.keys.writer() {
            Some(key) => RunName::new(format!("{numbers}-{key}")),
            None => RunName::new(numbers),
        }
    }
}

fn sort(messages: &mut [EncodedMessage<'_>]) {
    messages.sort_unstable_by_key(|message| (message.slice, message.place));
}

fn same_slice(a: &EncodedMessage<'_>, b: &EncodedMessage<'_>) -> bool {
    a.slice == b.slice
}

/// Moves hours and days with few messages to the far slice, if there are at least two. Returns
/// whether it moved any.
fn move_thin_to_far(messages: &mut [EncodedMessage<'_>], far: FarTarget) -> bool {
    let is_thin = |group: &[EncodedMessage<'_>]| {
        let slice = group[0].slice;
        matches!(slice.level, Level::Day | Level::Hour)
            && slice.end().is_some_and(|end| end > far.ends_after)
            && group.len() < far.messages_min
    };
    let groups = messages.chunk_by(same_slice);
    if groups.filter(|group| is_thin(group)).count() < 2 {
        return false;
    }
    for group in messages.chunk_by_mut(same_slice) {
        if is_thin(group) {
            for message in group {
                message.slice = far.slice;
            }
        }
    }
    true
}

/// The number of messages for the next run: as many as a batch may hold.
fn run_length(messages: &[EncodedMessage<'_>]) -> usize {
    let mut bytes = 0;
    let has_room = |message: &&EncodedMessage<'_>| {
        let has_room = bytes < BATCH_BYTES_MAX;
        bytes += message.record.len();
        has_room
    };
    let messages = messages.iter().take(BATCH_MESSAGES_MAX);
    messages.take_while(has_room).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunDecoder;
    use crate::run::test_messages::shard;
    use crate::testing::fault_injection::{self, InjectedFault};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const HOUR: i64 = 3_600_000;

    fn placed(messages: &BTreeMap<Cursor, Vec<u8>>) -> Vec<EncodedMessage<'_>> {
        messages
            .iter()
            .map(|(place, record)| EncodedMessage {
                slice: Slice::at(Level::Hour, place.due),
                place: *place,
                record,
            })
            .collect()
    }

    fn at(hour: i64, millis: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(hour * HOUR + millis), Offset(offset))
    }

    fn slices(runs: &[Run]) -> Vec<(String, u32)> {
        runs.iter()
            .map(|run| (run.slice.to_string(), run.summary.count))
            .collect()
    }

    #[test]
    fn distant_hours_with_few_messages_share_a_run_and_all_others_have_their_own() {
        let places = [(1, 2), (5, 3), (6, 1), (7, 2)]
            .into_iter()
            .flat_map(|(hour, count)| (0..count).map(move |n| (hour, n)));
        let messages = places
            .enumerate()
            .map(|(offset, (hour, n))| (at(hour, n, offset as u64), vec![0]))
            .collect();
        let far = FarTarget {
            slice: Slice {
                level: Level::Far,
                start: 0,
            },
            ends_after: Timestamp::from_millis(2 * HOUR),
            messages_min: 3,
        };
        let seal = |far| slices(&RunBuilder::plain(1).build(&shard(), &mut placed(&messages), far));
        let of = |names: &[(&str, u32)]| {
            names
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect::<Vec<_>>()
        };
        assert_eq!(seal(Some(far)), of(&[("f0", 3), ("h1", 2), ("h5", 3)]));
        assert_eq!(
            seal(Some(FarTarget {
                messages_min: 2,
                ..far
            })),
            of(&[("h1", 2), ("h5", 3), ("h6", 1), ("h7", 2)]),
            "a single thin hour keeps its run"
        );
        assert_eq!(
            seal(None),
            of(&[("h1", 2), ("h5", 3), ("h6", 1), ("h7", 2)])
        );
    }

    proptest! {
        #[test]
        fn every_message_is_in_one_run_of_a_slice_that_may_hold_it(
            dues in prop::collection::btree_set((0..12i64, 0..50i64), 1..60),
            after in 0..12i64,
            below in 0..6usize,
            sizes in prop::collection::vec(
                prop_oneof![9 => Just(3usize), 1 => Just(BATCH_BYTES_MAX / 2)],
                60,
            ),
        ) {
            let record = |(offset, (hour, millis)): (usize, &(i64, i64))| {
                (at(*hour, *millis, offset as u64), vec![7; sizes[offset]])
            };
            let messages: BTreeMap<_, _> = dues.iter().enumerate().map(record).collect();
            let far = FarTarget {
                slice: Slice { level: Level::Far, start: 0 },
                ends_after: Timestamp::from_millis(after * HOUR),
                messages_min: below,
            };
            let runs = RunBuilder::plain(1).build(&shard(), &mut placed(&messages), Some(far));
            let mut found = BTreeMap::new();
            for run in &runs {
                let loaded = RunDecoder::plain()
                    .decode(&shard(), run.name.clone(), run.slice, &run.bytes)
                    .unwrap();
                for index in 0..loaded.len() {
                    let place = loaded.place(index);
                    prop_assert!(run.slice.least_due() <= place.due);
                    prop_assert!(run.slice.end().is_none_or(|end| place.due < end));
                    let earlier = found.insert(place, loaded.record(index).to_vec());
                    prop_assert_eq!(earlier, None, "{:?} is in two runs", place);
                }
            }
            prop_assert_eq!(found, messages);
        }
    }

    proptest! {
        #[test]
        fn a_name_contains_count_and_least_offset(writer: u64, count: u32, least: u64) {
            let name = RunBuilder::plain(writer).next_name(count, Offset(least));
            prop_assert_eq!((name.count(), name.least_offset()), (count, Offset(least)));
        }
    }

    #[test]
    fn a_name_is_never_used_twice() {
        let mut builders = [RunBuilder::plain(7), RunBuilder::plain(8)];
        let names: BTreeSet<_> = (0..200)
            .map(|turn| builders[turn % 2].next_name(5, Offset(9)))
            .collect();
        assert_eq!(names.len(), 200);
        assert!(names.contains(&RunName::new("7-1-5-9")));
    }

    #[test]
    fn the_injected_fault_reuses_names() {
        let names = fault_injection::with(Some(InjectedFault::ReuseRunNames), || {
            [7, 8].map(|writer| RunBuilder::plain(writer).next_name(5, Offset(writer)))
        });
        assert_eq!(names, [RunName::new("0-0-5-0"), RunName::new("0-0-5-0")]);
    }
}
