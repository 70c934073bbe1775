//! Writes runs: their bytes, from messages that are encoded and sorted.

use super::RunSummary;
use super::header::{self, Codec, RunHeader};
use super::record::push_signed;
use crate::limit;
use crate::model::Cursor;
use crate::model::header::push_varint;
use bytes::Bytes;
use zstd::bulk::Compressor;

/// Level 3 was measured: its output is not enough smaller for its time, and no faster to read.
const ZSTD_LEVEL: i32 = 1;

/// Smaller content is not compressed: it has few repetitions, and the call costs more than the
/// rest.
const COMPRESS_BYTES_MIN: usize = 256;

/// Encodes runs. It reuses the compressor and the buffers.
pub(crate) struct RunEncoder {
    compressor: Compressor<'static>,
    raw: Vec<u8>,
    compressed: Vec<u8>,
}

impl RunEncoder {
    pub(crate) fn new() -> Self {
        Self {
            compressor: Compressor::new(ZSTD_LEVEL).expect("zstd supports this level"),
            raw: Vec::new(),
            compressed: Vec::new(),
        }
    }

    /// Encodes the run of `records`: places in strictly ascending order (I3), with bodies that
    /// [`super::record::encode`] wrote. The caller bounds their number and size (I6).
    ///
    /// # Panics
    /// If no reader would accept the run: it has no messages, is not sorted, or is larger than
    /// [`limit::RUN_BYTES_MAX`].
    pub(crate) fn encode<'a, R>(&mut self, records: R) -> (RunSummary, Bytes)
    where
        R: ExactSizeIterator<Item = (Cursor, &'a [u8])> + Clone,
    {
        let summary = summarize(records.clone().map(|(place, _)| place));
        for (_, record) in records.clone() {
            self.raw.extend_from_slice(record);
        }
        let records_size = self.raw.len();
        push_columns(&mut self.raw, summary.first, records);
        let raw_size = self.raw.len();
        assert!(
            raw_size <= limit::RUN_BYTES_MAX,
            "a run of {raw_size} bytes could not be read back"
        );
        let (codec, content) = self.compress();
        let header = RunHeader {
            codec,
            summary,
            raw_size: raw_size as u32,
            records_size: records_size as u32,
        };
        let bytes = Bytes::from(header::write(&header, content));
        // Shrinks the buffers, so that one large record does not occupy memory for ever.
        for buffer in [&mut self.raw, &mut self.compressed] {
            buffer.clear();
            buffer.shrink_to(2 * limit::BATCH_BYTES_MAX);
        }
        (summary, bytes)
    }

    /// Compresses the raw content if that makes it smaller.
    fn compress(&mut self) -> (Codec, &[u8]) {
        let raw = &self.raw;
        if raw.len() >= COMPRESS_BYTES_MIN {
            self.compressed.reserve(zstd::compress_bound(raw.len()));
            let size = self
                .compressor
                .compress_to_buffer(raw, &mut self.compressed);
            if size.expect("the buffer has the size that zstd requires") < raw.len() {
                return (Codec::Zstd, &self.compressed);
            }
        }
        (Codec::None, raw)
    }
}

fn summarize(mut places: impl ExactSizeIterator<Item = Cursor>) -> RunSummary {
    let count = u32::try_from(places.len()).expect("a batch has fewer than 2^32 messages");
    let first = places.next().expect("a run holds at least one message");
    let single = RunSummary {
        count,
        first,
        last: first,
        least_offset: first.offset,
        greatest_offset: first.offset,
    };
    places.fold(single, |so_far, place| {
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
        // Dues ascend, so their difference fits into 64 bits without a sign.
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
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_summary_matches_the_messages(messages in messages_by_place(12)) {
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
        fn the_bytes_of_a_run_do_not_depend_on_earlier_runs(
            messages in messages_by_place(12),
            before in messages_by_place(4),
        ) {
            let mut used = RunEncoder::new();
            let runs: Vec<_> = [&messages, &before, &messages]
                .into_iter()
                .map(|messages| {
                    let records: Vec<_> = messages
                        .iter()
                        .map(|(place, sample)| (*place, sample.record()))
                        .collect();
                    used.encode(records.iter().map(|(place, record)| (*place, &record[..])))
                })
                .collect();
            prop_assert_eq!(&runs[0], &runs[2]);
            prop_assert_eq!(&runs[1], &encode_run(&before));
        }
    }

    #[test]
    fn only_content_that_becomes_smaller_is_compressed() {
        let alike = [b'a'; 4000];
        let unlike: Vec<u8> = (0..1000u64)
            .flat_map(|n| {
                (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n << 17).to_be_bytes()[..4].to_vec()
            })
            .collect();
        let (_, packed) = RunEncoder::new().encode([(at(1, 1), &alike[..])].into_iter());
        let (_, left) = RunEncoder::new().encode([(at(1, 1), &unlike[..])].into_iter());
        assert_eq!(header::parse(&packed).unwrap().header.codec, Codec::Zstd);
        assert_eq!(header::parse(&left).unwrap().header.codec, Codec::None);
        assert!(packed.len() < 150 && left.len() < unlike.len() + 100);
    }

    #[test]
    fn a_large_record_does_not_occupy_memory_for_ever() {
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
    fn an_unsorted_run_is_never_written() {
        RunEncoder::new().encode([(at(2, 1), &b"a"[..]), (at(1, 2), b"b")].into_iter());
    }

    #[test]
    #[should_panic(expected = "I3")]
    fn a_run_with_equal_places_is_never_written() {
        RunEncoder::new().encode([(at(1, 1), &b"a"[..]), (at(1, 1), b"b")].into_iter());
    }

    #[test]
    #[should_panic(expected = "at least one")]
    fn an_empty_run_is_never_written() {
        RunEncoder::new().encode([].into_iter());
    }
}
