//! Reads runs: turns bytes into messages that are views of one buffer.
//!
//! No input makes it panic, or allocate more than the largest run. The caller handles unreadable
//! runs.

use super::header::{self, Codec, RunError, RunHeader};
use super::record::{self, HAS_DISPOSITION, HAS_ID, IS_ANSWER};
use super::seal::open;
use super::{RunName, RunSummary};
use crate::encryption::KeyRing;
use crate::model::{Body, Cursor, Level, Message, Offset, ShardId, Slice, Timestamp};
use integer_encoding::VarInt;
use std::borrow::Cow;
use zstd::bulk::Decompressor;

/// The maximum length of a name that Postdate writes: four numbers in hex, fingerprint and key id.
const NAME_BYTES_MAX: usize = 60 + 34;

/// Decodes runs. It reuses the decompressor, because creating one costs more than reading a small
/// run.
pub(crate) struct RunDecoder {
    decompressor: Decompressor<'static>,
    keys: KeyRing,
}

impl RunDecoder {
    /// A decoder of plain runs.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self::new(KeyRing::plain())
    }

    pub(crate) fn new(keys: KeyRing) -> Self {
        Self {
            keys,
            decompressor: Decompressor::new().expect("creation without a dictionary cannot fail"),
        }
    }

    /// Decrypts and decodes a run of this shard. Verifies its checksum, its columns against its header, and the order of its
    /// places (I3). The bodies of messages are decoded later, by [`LoadedRun::message`].
    pub(crate) fn decode(
        &mut self,
        shard: &ShardId,
        name: RunName,
        slice: Slice,
        bytes: &[u8],
    ) -> Result<LoadedRun, RunError> {
        let parsed = header::parse(bytes)?;
        let packed = open(&self.keys, shard, &name, bytes, &parsed)?;
        let header = parsed.header;
        let mut records = self.decompress(&header, packed)?;
        let (places, ends) = read_columns(&header, &records)?;
        records.truncate(header.records_size as usize);
        let all = ends
            .windows(2)
            .map(|ends| &records[ends[0] as usize..ends[1] as usize]);
        let flags = all.fold(0, |flags, record| flags | record::flags_of(record));
        Ok(LoadedRun {
            name,
            slice,
            summary: header.summary,
            is_computed: false,
            records,
            flags,
            places,
            ends,
            first_dropped_due: None,
        })
    }

    /// Never allocates more than the raw size in the header.
    fn decompress(
        &mut self,
        header: &RunHeader,
        packed: Cow<'_, [u8]>,
    ) -> Result<Vec<u8>, RunError> {
        let size = header.raw_size as usize;
        let content = match header.codec {
            Codec::None => Ok(packed.into_owned()),
            Codec::Zstd => self.decompressor.decompress(&packed, size),
        };
        let content = content.ok().filter(|content| content.len() == size);
        content.ok_or(RunError::Decompress)
    }
}

/// The memory that a run needs once it is decoded, or slightly more. It is computed from the header
/// alone, and is 0 if the bytes are not a run.
pub(crate) fn decoded_size(bytes: &[u8]) -> usize {
    header::peek_sizes(bytes).map_or(0, |(count, raw_size)| {
        let columns = count * size_of::<Cursor>() + (count + 1) * size_of::<u32>();
        size_of::<LoadedRun>() + NAME_BYTES_MAX + raw_size + columns
    })
}

/// A run in memory, whole or up to a horizon. Messages are in order of (due, offset). Methods
/// with an index panic if it is not below [`LoadedRun::len`].
#[derive(Debug)]
pub(crate) struct LoadedRun {
    pub(crate) name: RunName,
    pub(crate) slice: Slice,
    /// The summary of the stored run, including messages that were dropped from memory.
    pub(crate) summary: RunSummary,
    /// Its messages are occurrences of schedules. No store has the run.
    pub(crate) is_computed: bool,
    /// The due time of the first message that [`LoadedRun::drop_after`] dropped. By then, the run
    /// must be read again.
    pub(crate) first_dropped_due: Option<Timestamp>,
    records: Vec<u8>,
    /// The union of the flags of all records. If no record has a flag, callers need not read the
    /// record.
    flags: u8,
    places: Vec<Cursor>,
    /// The end of each record, after a leading 0. A record starts at the element before its own.
    ends: Vec<u32>,
}

/// Builds a run of occurrences, which exists only in memory.
#[derive(Default)]
pub(crate) struct ComputedRun {
    records: Vec<u8>,
    places: Vec<Cursor>,
    ends: Vec<u32>,
}

impl ComputedRun {
    /// Adds a message. Places must ascend.
    pub(crate) fn add(&mut self, place: Cursor, body: &Body<'_>) {
        record::encode(body, &mut self.records);
        self.places.push(place);
        let end = u32::try_from(self.records.len());
        self.ends.push(end.expect("the caller bounds the size"));
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.len()
    }

    /// `None` without messages.
    pub(crate) fn finish(mut self) -> Option<LoadedRun> {
        let (first, last) = (*self.places.first()?, *self.places.last()?);
        let offsets = self.places.iter().map(|place| place.offset);
        self.ends.insert(0, 0);
        Some(LoadedRun {
            name: RunName::new("occurrences"),
            slice: Slice::at(Level::Hour, first.due),
            summary: RunSummary {
                count: u32::try_from(self.places.len()).expect("the caller bounds the number"),
                first,
                last,
                least_offset: offsets.clone().min()?,
                greatest_offset: offsets.max()?,
            },
            is_computed: true,
            records: self.records,
            flags: HAS_DISPOSITION,
            places: self.places,
            ends: self.ends,
            first_dropped_due: None,
        })
    }
}

impl LoadedRun {
    /// The number of messages in memory.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn place(&self, index: usize) -> Cursor {
        self.places[index]
    }

    /// Decodes a message. Returns `None` if its body is malformed or of a newer version; its place
    /// is valid nevertheless.
    pub(crate) fn message(&self, index: usize) -> Option<Message<'_>> {
        let place = self.places[index];
        let body = record::decode(self.record(index))?;
        Some(Message { place, body })
    }

    /// Returns whether the message has an id. Much cheaper than [`LoadedRun::message`].
    pub(crate) fn has_id(&self, index: usize) -> bool {
        self.has_flag(index, HAS_ID)
    }

    /// Returns whether the message is delivered as usual, to its target. As cheap as `has_id`.
    pub(crate) fn is_plain_delivery(&self, index: usize) -> bool {
        !self.has_flag(index, HAS_DISPOSITION)
    }

    /// Returns whether the message is an answer that was not retried. As cheap as `has_id`.
    pub(crate) fn is_answer(&self, index: usize) -> bool {
        self.has_flag(index, IS_ANSWER)
    }

    fn has_flag(&self, index: usize, flag: u8) -> bool {
        self.flags & flag != 0 && record::flags_of(self.record(index)) & flag != 0
    }

    /// The encoded body of a message.
    pub(crate) fn record(&self, index: usize) -> &[u8] {
        &self.records[self.ends[index] as usize..self.ends[index + 1] as usize]
    }

    /// The memory that the run uses, in bytes.
    pub(crate) fn memory_size(&self) -> usize {
        let columns =
            self.places.capacity() * size_of::<Cursor>() + self.ends.capacity() * size_of::<u32>();
        size_of::<Self>() + self.name.as_str().len() + self.records.capacity() + columns
    }

    /// Drops the leading messages that are done, and frees their memory. The first remaining
    /// message then has index 0.
    pub(crate) fn drop_leading(&mut self, is_done: impl Fn(Cursor) -> bool) {
        let left = self.places.iter().position(|place| !is_done(*place));
        let done = left.unwrap_or(self.places.len());
        let base = self.ends[done];
        if done > 0 {
            self.records.drain(..base as usize);
            self.places.drain(..done);
            self.ends.drain(..done);
            self.ends.iter_mut().for_each(|end| *end -= base);
            self.free_unused();
        }
    }

    /// Drops the messages that are due after `horizon`, and frees their memory.
    pub(crate) fn drop_after(&mut self, horizon: Timestamp) {
        let kept = self.places.partition_point(|place| place.due <= horizon);
        if let Some(dropped) = self.places.get(kept) {
            self.first_dropped_due = Some(dropped.due);
            self.records.truncate(self.ends[kept] as usize);
            self.places.truncate(kept);
            self.ends.truncate(kept + 1);
            self.free_unused();
        }
    }

    fn free_unused(&mut self) {
        self.records.shrink_to_fit();
        self.places.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

/// Reads the places and the ends of the records. `header::parse` has checked that the content has
/// room for them.
fn read_columns(header: &RunHeader, content: &[u8]) -> Result<(Vec<Cursor>, Vec<u32>), RunError> {
    let summary = &header.summary;
    let count = summary.count as usize;
    let mut column = Column(&content[header.records_size as usize..]);
    let mut places = Vec::with_capacity(count);
    let mut due = summary.first.due.as_millis();
    for _ in 0..count {
        let next = due.checked_add_unsigned(column.next()?);
        due = next.ok_or(RunError::Columns)?;
        places.push(Cursor::new(Timestamp::from_millis(due), Offset(0)));
    }
    let (mut offset, mut least, mut greatest) = (summary.first.offset, Offset::MAX, Offset(0));
    for place in &mut places {
        offset = Offset(offset.0.wrapping_add_signed(column.next()?));
        (least, greatest) = (least.min(offset), greatest.max(offset));
        place.offset = offset;
    }
    if (least, greatest) != (summary.least_offset, summary.greatest_offset) {
        return Err(RunError::Range);
    }
    let mut ends = Vec::with_capacity(count + 1);
    let mut end = 0u32;
    ends.push(end);
    for _ in 0..count {
        end = end.checked_add(column.next()?).ok_or(RunError::Records)?;
        ends.push(end);
    }
    if !column.0.is_empty() {
        return Err(RunError::Columns);
    }
    if end != header.records_size {
        return Err(RunError::Records);
    }
    if !places.is_sorted_by(|a, b| a < b) {
        return Err(RunError::Unsorted);
    }
    if (places[0], places[count - 1]) != (summary.first, summary.last) {
        return Err(RunError::Range);
    }
    Ok((places, ends))
}

/// The unread part of the columns.
struct Column<'a>(&'a [u8]);

impl Column<'_> {
    fn next<V: VarInt>(&mut self) -> Result<V, RunError> {
        let (value, length) = V::decode_var(self.0).ok_or(RunError::Columns)?;
        self.0 = &self.0[length..];
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{TestMessage, at, encode_run, messages_by_place, shard};
    use super::super::{RunEncoder, header::write};
    use super::*;
    use crate::model::Disposition;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn decode(bytes: &[u8]) -> Result<LoadedRun, RunError> {
        RunDecoder::plain().decode(
            &shard(),
            RunName::new("1-1-1-0"),
            Slice {
                level: Level::Hour,
                start: 1,
            },
            bytes,
        )
    }

    fn assert_holds(loaded: &LoadedRun, messages: &BTreeMap<Cursor, TestMessage>) {
        assert_eq!(loaded.len(), messages.len());
        for (index, (place, sample)) in messages.iter().enumerate() {
            assert_eq!(loaded.place(index), *place);
            let body = sample.body();
            assert_eq!(loaded.has_id(index), body.id.is_some());
            assert_eq!(
                loaded.is_plain_delivery(index),
                body.disposition == Disposition::Deliver
            );
            assert_eq!(
                loaded.message(index),
                Some(Message {
                    place: *place,
                    body
                })
            );
        }
    }

    proptest! {
        #[test]
        fn every_message_reads_back_as_it_was_and_in_order(messages in messages_by_place(20)) {
            let (summary, bytes) = encode_run(&messages);
            let loaded = decode(&bytes).unwrap();
            assert_holds(&loaded, &messages);
            prop_assert_eq!(loaded.summary, summary);
            prop_assert_eq!(loaded.first_dropped_due, None);
            let size = loaded.memory_size();
            prop_assert!((size..size + 100).contains(&decoded_size(&bytes)));
        }

        #[test]
        fn a_decoder_keeps_nothing_of_earlier_runs(
            messages in messages_by_place(6),
            before in messages_by_place(6),
            damage: u8,
        ) {
            let (mut decoder, slice) = (RunDecoder::plain(), Slice { level: Level::Now, start: -1 });
            let mut damaged = encode_run(&before).1.to_vec();
            *damaged.last_mut().unwrap() ^= damage;
            let _ = decoder.decode(&shard(), RunName::new("1-1-1-1"), slice, &damaged);
            let loaded = decoder
                .decode(&shard(), RunName::new("1-2-1-1"), slice, &encode_run(&messages).1)
                .unwrap();
            assert_holds(&loaded, &messages);
        }

        #[test]
        fn a_horizon_keeps_only_the_messages_due_by_it(
            messages in messages_by_place(20),
            horizons in horizons(),
        ) {
            let mut loaded = decode(&encode_run(&messages).1).unwrap();
            let mut least = i64::MAX;
            for horizon in horizons {
                loaded.drop_after(Timestamp::from_millis(horizon));
                least = least.min(horizon);
                let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) = messages
                    .clone()
                    .into_iter()
                    .partition(|(place, _)| place.due.as_millis() <= least);
                assert_holds(&loaded, &kept);
                let first_dropped_due = dropped.keys().next().map(|place| place.due);
                prop_assert_eq!(loaded.first_dropped_due, first_dropped_due);
            }
        }

        #[test]
        fn only_leading_messages_that_are_done_are_dropped(
            messages in messages_by_place(20),
            watermarks in prop::collection::vec(0..60u64, 1..4),
        ) {
            let mut loaded = decode(&encode_run(&messages).1).unwrap();
            let whole = loaded.memory_size();
            let mut kept = messages;
            for watermark in watermarks {
                let is_done = |place: Cursor| place.offset < Offset(watermark);
                loaded.drop_leading(is_done);
                kept = kept.into_iter().skip_while(|(place, _)| is_done(*place)).collect();
                assert_holds(&loaded, &kept);
                prop_assert!(loaded.memory_size() <= whole, "memory is freed");
            }
        }

        #[test]
        fn every_changed_byte_is_detected(
            messages in messages_by_place(6),
            places: [prop::sample::Index; 8],
            change in 1u8..,
        ) {
            let bytes = encode_run(&messages).1;
            for at in places.map(|place| place.index(bytes.len())) {
                let mut changed = bytes.to_vec();
                changed[at] ^= change;
                prop_assert!(decode(&changed).is_err(), "byte {at}");
            }
        }

        #[test]
        fn missing_or_added_bytes_are_detected(
            messages in messages_by_place(6),
            places: [prop::sample::Index; 8],
            extra in prop::collection::vec(any::<u8>(), 1..9),
        ) {
            let bytes = encode_run(&messages).1;
            for at in places.map(|place| place.index(bytes.len())) {
                prop_assert!(decode(&bytes[..at]).is_err(), "truncated to {at}");
                prop_assert!(decode(&bytes[at + 1..]).is_err(), "without the first {at}");
                let longer = [&bytes[..at], &extra, &bytes[at..]].concat();
                prop_assert!(decode(&longer).is_err(), "inserted at {at}");
            }
            prop_assert!(decode(&[&bytes[..], &extra].concat()).is_err());
        }

        #[test]
        fn a_change_with_a_matching_checksum_never_panics(
            messages in messages_by_place(6),
            changes: Vec<(prop::sample::Index, u8)>,
        ) {
            let mut bytes = encode_run(&messages).1.to_vec();
            for (at, to) in changes {
                let at = 13 + at.index(bytes.len() - 13);
                bytes[at] = to;
            }
            read_all(&signed(bytes));
        }

        #[test]
        fn random_content_never_panics(header in header(), content: Vec<u8>) {
            read_all(&write(&header, &content));
            let size = content.len() as u32;
            let records_size = header.records_size.min(size);
            read_all(&write(&RunHeader { raw_size: size, records_size, ..header }, &content));
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            read_all(&bytes);
        }
    }

    fn horizons() -> impl Strategy<Value = Vec<i64>> {
        prop::collection::vec(
            prop_oneof![
                6 => -1..52i64,
                1 => any::<i64>(),
                1 => Just(i64::MAX),
                1 => Just(i64::MIN),
            ],
            1..4,
        )
    }

    fn header() -> impl Strategy<Value = RunHeader> {
        let place = || (any::<i64>(), any::<u64>()).prop_map(|(due, offset)| at(due, offset));
        let sizes = (
            prop_oneof![0..9u32, any::<u32>()],
            prop_oneof![0..99u32, any::<u32>()],
            prop_oneof![0..99u32, any::<u32>()],
        );
        let offsets = (any::<u64>(), any::<u64>())
            .prop_map(|(least, greatest)| (Offset(least), Offset(greatest)));
        (any::<bool>(), sizes, place(), place(), offsets).prop_map(
            |(packed, (count, raw_size, records_size), first, last, offsets)| RunHeader {
                codec: if packed { Codec::Zstd } else { Codec::None },
                summary: RunSummary {
                    count,
                    first,
                    last,
                    least_offset: offsets.0,
                    greatest_offset: offsets.1,
                },
                raw_size,
                records_size,
            },
        )
    }

    /// The same bytes with a matching checksum.
    fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[13..]);
        bytes[5..13].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn read_all(bytes: &[u8]) {
        let expected = decoded_size(bytes);
        if let Ok(loaded) = decode(bytes) {
            assert!(loaded.memory_size() <= expected);
            for index in 0..loaded.len() {
                let _ = loaded.message(index);
            }
        }
    }

    /// The error of a run of two messages after `change`. The messages are due at 10 and 20, with
    /// offsets 7 and 5, and records `a` and `bc`.
    fn forged(change: impl FnOnce(&mut RunHeader, &mut Vec<u8>)) -> Option<RunError> {
        let summary = RunSummary {
            count: 2,
            first: at(10, 7),
            last: at(20, 5),
            least_offset: Offset(5),
            greatest_offset: Offset(7),
        };
        let mut header = RunHeader {
            codec: Codec::None,
            summary,
            raw_size: 9,
            records_size: 3,
        };
        let mut content = [&b"abc"[..], &[0, 10], &[0, 3], &[1, 2]].concat();
        change(&mut header, &mut content);
        decode(&write(&header, &content)).err()
    }

    #[test]
    fn each_kind_of_damage_has_its_own_error() {
        assert_eq!(forged(|_, _| {}), None);
        assert_eq!(
            forged(|header, _| header.summary.count = 0),
            Some(RunError::Count(0))
        );
        assert_eq!(
            forged(|header, _| header.summary.count = 3),
            Some(RunError::Count(3))
        );
        assert_eq!(
            forged(|header, _| header.summary.count = 1),
            Some(RunError::Range)
        );
        assert_eq!(
            forged(|header, _| header.summary.first = at(9, 7)),
            Some(RunError::Range)
        );
        assert_eq!(
            forged(|header, _| header.summary.last = at(20, 6)),
            Some(RunError::Range)
        );
        assert_eq!(
            forged(|header, _| header.summary.least_offset = Offset(4)),
            Some(RunError::Range)
        );
        assert_eq!(
            forged(|header, _| header.summary.greatest_offset = Offset(8)),
            Some(RunError::Range)
        );
        assert_eq!(
            forged(|header, _| header.raw_size = u32::MAX),
            Some(RunError::TooLarge(u32::MAX))
        );
        assert_eq!(
            forged(|header, _| header.raw_size = 10),
            Some(RunError::Decompress)
        );
        assert_eq!(
            forged(|header, _| header.codec = Codec::Zstd),
            Some(RunError::Decompress)
        );
        assert_eq!(
            forged(|header, _| header.records_size = 10),
            Some(RunError::Records)
        );
        assert_eq!(forged(|_, content| content[8] = 3), Some(RunError::Records));
        assert_eq!(
            forged(|_, content| content[8] = 0x80),
            Some(RunError::Columns)
        );
        assert_eq!(
            forged(|_, content| content[4] = 0),
            Some(RunError::Unsorted)
        );
    }

    #[test]
    fn a_due_beyond_the_end_of_time_is_malformed() {
        let corrupt = forged(|header, content| {
            header.summary.first.due = Timestamp::MAX;
            content[4] = 1;
        });
        assert_eq!(corrupt, Some(RunError::Columns));
    }

    #[test]
    fn lengths_that_only_add_up_by_overflow_are_refused() {
        let corrupt = forged(|header, content| {
            header.raw_size += 4;
            content.splice(7..9, [0xff, 0xff, 0xff, 0xff, 0x0f, 4]);
        });
        assert_eq!(corrupt, Some(RunError::Records));
    }

    #[test]
    fn a_column_that_ends_late_is_malformed() {
        let corrupt = forged(|header, content| {
            header.raw_size += 1;
            content.push(0);
        });
        assert_eq!(corrupt, Some(RunError::Columns));
    }

    #[test]
    fn a_newer_version_or_codec_differs_from_damage() {
        let mut bytes = encode_run(&BTreeMap::from([(at(1, 1), TestMessage::default())]))
            .1
            .to_vec();
        bytes[13] = 2;
        let unsigned = bytes.clone();
        let signed = signed(bytes.clone());
        bytes[4] = 2;
        let sealed = bytes.clone();
        bytes[4] = 3;
        let version_3 = bytes.clone();
        bytes[4] = 0;
        let version_0 = bytes.clone();
        bytes[0] = b'x';
        for (run, why, is_newer) in [
            (&signed[..], RunError::UnknownCodec(2), true),
            (&unsigned, RunError::Checksum, false),
            (&sealed, RunError::Checksum, false),
            (&version_3, RunError::UnknownVersion(3), true),
            (&version_0, RunError::UnknownVersion(0), false),
            (&bytes, RunError::BadMagic, false),
            (b"PDRN\x01", RunError::Truncated(5), false),
            (b"", RunError::Truncated(0), false),
        ] {
            assert_eq!(decode(run).err(), Some(why));
            assert_eq!(why.is_undamaged(), is_newer, "{why}");
        }
    }

    #[test]
    fn content_larger_than_its_header_says_is_refused() {
        let packed = zstd::bulk::compress(&[0; 1 << 20], 1).unwrap();
        let corrupt = forged(|header, content| {
            header.codec = Codec::Zstd;
            *content = packed;
        });
        assert_eq!(corrupt, Some(RunError::Decompress));
    }

    #[test]
    fn one_malformed_body_leaves_the_others_readable() {
        let good = TestMessage::default().record();
        let records = [
            (at(1, 1), &good[..]),
            (at(2, 2), b"\xff"),
            (at(3, 3), &good[..]),
        ];
        let loaded = decode(&RunEncoder::new().encode(records.into_iter()).1).unwrap();
        let readable: Vec<_> = (0..3)
            .map(|index| loaded.message(index).map(|message| message.place))
            .collect();
        assert_eq!(readable, [Some(at(1, 1)), None, Some(at(3, 3))]);
        assert_eq!(loaded.place(1), at(2, 2));
    }

    #[test]
    fn messages_beyond_a_horizon_free_their_memory() {
        let payload = Some(vec![7; 100]);
        let messages = (0..1000)
            .map(|n| {
                (
                    at(n, n as u64),
                    TestMessage {
                        payload: payload.clone(),
                        ..TestMessage::default()
                    },
                )
            })
            .collect();
        let mut loaded = decode(&encode_run(&messages).1).unwrap();
        let before = loaded.memory_size();
        loaded.drop_after(Timestamp::from_millis(9));
        assert!(before > 1000 * 120, "{before}");
        assert!(
            loaded.memory_size() < 10 * 130 + size_of::<LoadedRun>() + 10,
            "{}",
            loaded.memory_size()
        );
    }
}
