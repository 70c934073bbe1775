//! Makes runs: their names, and their bytes from messages that are encoded and sorted already. Which messages belong together is the
//! caller's choice.

use super::header::{self, Codec, RunHeader};
use super::record::push_signed;
use super::{RunName, RunSummary};
use crate::limit;
use crate::model::header::push_varint;
use crate::model::{Cursor, Offset};
use bytes::Bytes;
use zstd::bulk::Compressor;

/// Level 3 measured worse on every axis: slower by more than it is smaller, and no faster to read.
const ZSTD_LEVEL: i32 = 1;

/// Content below this stays as it is: there is little in it to repeat, and the call alone costs more than all the rest.
const COMPRESS_BYTES_MIN: usize = 256;

/// Gives out run names. The writer's id is random and drawn anew by each process, so no name comes twice: not after a restart, and not from
/// a store that went back.
#[derive(Debug)]
pub(crate) struct RunNamer {
    writer: u64,
    counter: u64,
}

impl RunNamer {
    pub(crate) fn new(writer: u64) -> Self {
        Self { writer, counter: 0 }
    }

    pub(crate) fn writer(&self) -> u64 {
        self.writer
    }

    pub(crate) fn next_name(&mut self, count: u32, least_offset: Offset) -> RunName {
        self.counter += 1;
        let reused = fault!(ReuseRunNames);
        let (writer, counter, least_offset) = if reused {
            (0, 0, Offset(0))
        } else {
            (self.writer, self.counter, least_offset)
        };
        RunName::new(format!(
            "{writer:x}-{counter:x}-{count:x}-{least_offset:x}",
            least_offset = least_offset.0
        ))
    }
}

/// Encodes runs. Owns what is worth using again: the compressor's context and the buffers.
pub(crate) struct RunEncoder {
    compressor: Compressor<'static>,
    raw: Vec<u8>,
    compressed: Vec<u8>,
}

impl RunEncoder {
    pub(crate) fn new() -> Self {
        let compressor =
            Compressor::new(ZSTD_LEVEL).expect("zstd takes the level, and no dictionary is set");
        Self {
            compressor,
            raw: Vec::new(),
            compressed: Vec::new(),
        }
    }

    /// The run of `records`: places in strictly ascending order (I3), each with its body as [`super::record::encode`] left it. Their number
    /// and bytes are the caller's to bound (I6). A run that no reader would take is a broken invariant and ends the process before it is
    /// stored: one without messages, out of order, or larger than [`limit::RUN_BYTES_MAX`] with its columns.
    pub(crate) fn encode<'a, R>(&mut self, records: R) -> (RunSummary, Bytes)
    where
        R: ExactSizeIterator<Item = (Cursor, &'a [u8])> + Clone,
    {
        let summary = summarize(records.clone().map(|(place, _)| place));
        for (_, record) in records.clone() {
            self.raw.extend_from_slice(record);
        }
        let records_size = self.raw_size();
        push_columns(&mut self.raw, summary.first, records);
        let raw_size = self.raw_size();
        let (codec, content) = self.compress();
        let header = RunHeader {
            codec,
            summary,
            raw_size,
            records_size,
        };
        let bytes = Bytes::from(header::write(&header, content));
        self.reset();
        (summary, bytes)
    }

    fn raw_size(&self) -> u32 {
        assert!(
            self.raw.len() <= limit::RUN_BYTES_MAX,
            "a run of {} bytes could not be read back",
            self.raw.len()
        );
        self.raw.len() as u32
    }

    /// The raw content as it is stored: compressed where that makes it smaller.
    fn compress(&mut self) -> (Codec, &[u8]) {
        if self.raw.len() >= COMPRESS_BYTES_MIN {
            self.compressed
                .reserve(zstd::compress_bound(self.raw.len()));
            let packed = self
                .compressor
                .compress_to_buffer(&self.raw, &mut self.compressed);
            if packed.expect("the buffer is as large as zstd asks for") < self.raw.len() {
                return (Codec::Zstd, &self.compressed);
            }
        }
        (Codec::None, &self.raw)
    }

    /// One giant record must not keep its memory for as long as the process lives.
    fn reset(&mut self) {
        for buffer in [&mut self.raw, &mut self.compressed] {
            buffer.clear();
            buffer.shrink_to(2 * limit::BATCH_BYTES_MAX);
        }
    }
}

fn summarize(mut places: impl ExactSizeIterator<Item = Cursor>) -> RunSummary {
    let count = u32::try_from(places.len()).expect("a batch is bounded far below 2^32 messages");
    let first = places.next().expect("a run holds at least one message");
    let alone = RunSummary {
        count,
        first,
        last: first,
        least_offset: first.offset,
        greatest_offset: first.offset,
    };
    places.fold(alone, |so_far, place| {
        assert!(
            so_far.last < place,
            "{place:?} after {:?}: a run's messages are sorted by due and offset (I3)",
            so_far.last
        );
        RunSummary {
            last: place,
            least_offset: so_far.least_offset.min(place.offset),
            greatest_offset: so_far.greatest_offset.max(place.offset),
            ..so_far
        }
    })
}

fn push_columns<'a>(
    raw: &mut Vec<u8>,
    first: Cursor,
    records: impl Iterator<Item = (Cursor, &'a [u8])> + Clone,
) {
    let mut before = first.due.as_millis();
    for (place, _) in records.clone() {
        let due = place.due.as_millis();
        // The difference of any two instants fits 64 bits without a sign, and the later one comes second.
        push_varint(raw, due.wrapping_sub(before) as u64);
        before = due;
    }
    let mut before = first.offset.0;
    for (place, _) in records.clone() {
        push_signed(raw, place.offset.0.wrapping_sub(before) as i64);
        before = place.offset.0;
    }
    for (_, record) in records {
        push_varint(raw, record.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{at, encode_run, messages_by_place};
    use super::*;
    use crate::testing::fault_injection::{self, InjectedFault};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_summary_is_that_of_the_messages(messages in messages_by_place(12)) {
            let (summary, _) = encode_run(&messages);
            let offsets: BTreeSet<_> = messages.keys().map(|place| place.offset).collect();
            let expected = RunSummary {
                count: messages.len() as u32,
                first: *messages.keys().next().unwrap(),
                last: *messages.keys().next_back().unwrap(),
                least_offset: *offsets.first().unwrap(),
                greatest_offset: *offsets.last().unwrap(),
            };
            prop_assert_eq!(summary, expected);
        }

        #[test]
        fn a_run_is_the_same_bytes_whatever_was_encoded_before(messages in messages_by_place(12), before in messages_by_place(4)) {
            let mut used = RunEncoder::new();
            let runs: Vec<_> = [&messages, &before, &messages]
                .into_iter()
                .map(|messages| {
                    let records: Vec<_> = messages.iter().map(|(place, sample)| (*place, sample.record())).collect();
                    used.encode(records.iter().map(|(place, record)| (*place, &record[..])))
                })
                .collect();
            prop_assert_eq!(&runs[0], &runs[2]);
            prop_assert_eq!(&runs[1], &encode_run(&before));
        }

        #[test]
        fn a_name_tells_count_and_least_offset(writer: u64, count: u32, least: u64) {
            let name = RunNamer::new(writer).next_name(count, Offset(least));
            prop_assert_eq!((name.count(), name.least_offset()), (count, Offset(least)));
        }
    }

    #[test]
    fn a_name_never_comes_twice() {
        let mut namers = [RunNamer::new(7), RunNamer::new(8)];
        let names: BTreeSet<_> = (0..200)
            .map(|turn| namers[turn % 2].next_name(5, Offset(9)))
            .collect();
        assert_eq!(names.len(), 200);
        assert!(names.contains(&RunName::new("7-1-5-9")));
    }

    #[test]
    fn the_planted_fault_gives_the_same_name_to_runs_of_as_many_messages() {
        let names = fault_injection::with(Some(InjectedFault::ReuseRunNames), || {
            [7, 8].map(|writer| RunNamer::new(writer).next_name(5, Offset(writer)))
        });
        assert_eq!(names, [RunName::new("0-0-5-0"), RunName::new("0-0-5-0")]);
    }

    #[test]
    fn what_repeats_is_packed_and_what_does_not_is_left_as_it_is() {
        let alike = [b'a'; 4000];
        let unlike: Vec<u8> = (0..1000u64)
            .flat_map(|n| {
                (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n << 17).to_be_bytes()[..4].to_vec()
            })
            .collect();
        let (_, packed) = RunEncoder::new().encode([(at(1, 1), &alike[..])].into_iter());
        let (_, left) = RunEncoder::new().encode([(at(1, 1), &unlike[..])].into_iter());
        assert_eq!(header::parse(&packed).unwrap().0.codec, Codec::Zstd);
        assert_eq!(header::parse(&left).unwrap().0.codec, Codec::None);
        assert!(packed.len() < 150 && left.len() < unlike.len() + 100);
    }

    #[test]
    fn a_giant_record_does_not_keep_its_memory() {
        let (giant, bound) = (
            vec![0; 3 * limit::BATCH_BYTES_MAX],
            2 * limit::BATCH_BYTES_MAX,
        );
        let mut encoder = RunEncoder::new();
        encoder.encode([(at(1, 1), &giant[..])].into_iter());
        assert!(encoder.raw.capacity() <= bound && encoder.compressed.capacity() <= bound);
    }

    #[test]
    #[should_panic(expected = "I3")]
    fn a_run_out_of_order_is_never_made() {
        RunEncoder::new().encode([(at(2, 1), &b"a"[..]), (at(1, 2), b"b")].into_iter());
    }

    #[test]
    #[should_panic(expected = "I3")]
    fn a_run_with_one_place_twice_is_never_made() {
        RunEncoder::new().encode([(at(1, 1), &b"a"[..]), (at(1, 1), b"b")].into_iter());
    }

    #[test]
    #[should_panic(expected = "at least one")]
    fn a_run_without_messages_is_never_made() {
        RunEncoder::new().encode([].into_iter());
    }
}
