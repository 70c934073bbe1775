//! The byte layout of a run: header, checksum and codec. `writer` writes the content, `seal`
//! encrypts it, `reader` reads it.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic, `PDRN` |
//! | 4 | 1 | format version: 1 plain, 2 encrypted |
//! | 5 | 8 | xxh3-64 of every byte after this field |
//! | 13 | 1 | codec: 0 none, 1 zstd; 2 is reserved for lz4 |
//! | 14 | 4 | count of messages, at least 1 |
//! | 18 | 4 | raw size: bytes of the decompressed content |
//! | 22 | 4 | records size: bytes of the records in the content |
//! | 26 | 16 | place of the first message: due, offset |
//! | 42 | 16 | place of the last message: due, offset |
//! | 58 | 8 | least offset |
//! | 66 | 8 | greatest offset |
//! | 74 | .. | content; in version 2 its ciphertext, 16 bytes of the tag and 12 of the nonce |
//!
//! Numbers are little-endian; due times are signed. The checksum precedes the bytes that it covers,
//! so that one pass over contiguous memory verifies it. Magic and version need no checksum, because
//! a changed version makes the run unreadable in any case.
//!
//! | decompressed content | what |
//! |---|---|
//! | records size | records, as `record` lays them out |
//! | count varints | due times: difference from the previous one (the first: from the header's) |
//! | count varints | offsets: difference from the previous one, modulo 2^64, zig-zag |
//! | count varints | lengths of the records |
//!
//! Everything is in order of (due, offset). The columns are separate from the records, because
//! equal kinds of data compress better together, and because places are needed long before bodies.
//! They come last, so that a reader drops them, or the messages beyond its horizon, by truncation.

use super::RunSummary;
use crate::encryption::{NONCE_LENGTH, TAG_LENGTH};
use crate::limit;
use crate::model::{Cursor, Offset, Timestamp, readable_level};
use bytes::{Buf, BufMut};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 4] = *b"PDRN";
/// The content can be read without a key.
const PLAIN: u8 = 1;
pub(super) const SEALED: u8 = 2;
pub(super) const VERSION_AT: usize = 4;
const CHECKSUM_AT: usize = 5;
pub(super) const CODEC_AT: usize = 13;
pub(super) const HEADER_LENGTH: usize = 74;

/// The least size of a message in the columns: one byte in each.
const COLUMN_BYTES_MIN: u32 = 3;

const _: () = assert!(
    limit::RUN_BYTES_MAX <= u32::MAX as usize,
    "raw size and record ends are 32 bits wide"
);

/// The reason why a run is unreadable. A damaged run goes to quarantine, because no retry can help. A
/// run of a newer version waits for that version, and a run without its key waits for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RunError {
    #[error("not a run: the magic number is missing")]
    BadMagic,
    #[error("unsupported run format version {0}")]
    UnknownVersion(u8),
    #[error("run is truncated within its header, after {0} bytes")]
    Truncated(usize),
    #[error("checksum of the run does not match")]
    Checksum,
    #[error("unsupported run codec {0}")]
    UnknownCodec(u8),
    #[error("decompressed size of the run is over the limit: {0} bytes")]
    TooLarge(u32),
    #[error("message count of the run is invalid: {0}")]
    Count(u32),
    #[error("content of the run does not decompress to the size in its header")]
    Decompress,
    #[error("columns of the run are malformed")]
    Columns,
    #[error("the key ring does not have the key of the run")]
    MissingKey,
    #[error("run does not open with its key: it was changed, or belongs to another place")]
    Sealed,
    #[error("messages of the run are not sorted by due time and offset")]
    Unsorted,
    #[error("messages of the run do not match the places in its header")]
    Range,
    #[error("records of the run do not match the size in its header")]
    Records,
}

impl RunError {
    /// True if the run is not damaged: a newer version wrote it, or its key is missing.
    pub(crate) fn is_undamaged(self) -> bool {
        match self {
            Self::UnknownVersion(version) => version > PLAIN,
            Self::UnknownCodec(_) | Self::MissingKey => true,
            _ => false,
        }
    }
}

/// The compression of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    None = 0,
    Zstd = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunHeader {
    pub(crate) codec: Codec,
    pub(crate) summary: RunSummary,
    pub(crate) raw_size: u32,
    pub(crate) records_size: u32,
}

/// Writes a header and its content as one plain run.
pub(crate) fn write(header: &RunHeader, content: &[u8]) -> Vec<u8> {
    let summary = &header.summary;
    let mut bytes = Vec::with_capacity(HEADER_LENGTH + content.len() + TAG_LENGTH + NONCE_LENGTH);
    bytes.put_slice(&MAGIC);
    bytes.put_u8(PLAIN);
    bytes.put_u64_le(0);
    bytes.put_u8(header.codec as u8);
    bytes.put_u32_le(summary.count);
    bytes.put_u32_le(header.raw_size);
    bytes.put_u32_le(header.records_size);
    for place in [summary.first, summary.last] {
        bytes.put_i64_le(place.due.as_millis());
        bytes.put_u64_le(place.offset.0);
    }
    bytes.put_u64_le(summary.least_offset.0);
    bytes.put_u64_le(summary.greatest_offset.0);
    debug_assert_eq!(bytes.len(), HEADER_LENGTH);
    bytes.put_slice(content);
    write_checksum(&mut bytes);
    bytes
}

pub(super) fn write_checksum(bytes: &mut [u8]) {
    let checksum = xxh3_64(&bytes[CODEC_AT..]);
    bytes[CHECKSUM_AT..CODEC_AT].copy_from_slice(&checksum.to_le_bytes());
}

/// A run whose checksum and limits were verified.
pub(crate) struct ParsedRun<'a> {
    pub(crate) header: RunHeader,
    pub(super) is_sealed: bool,
    /// Compressed, and encrypted if the run is sealed.
    pub(super) content: &'a [u8],
}

/// Level 0 has no encrypted runs.
fn is_readable(version: u8) -> bool {
    version == PLAIN || version == SEALED && readable_level() > 0
}

/// Verifies the checksum and the limits of a run. Never panics.
pub(crate) fn parse(bytes: &[u8]) -> Result<ParsedRun<'_>, RunError> {
    let truncated = RunError::Truncated(bytes.len());
    if !bytes.starts_with(&MAGIC) {
        return Err(if MAGIC.starts_with(bytes) {
            truncated
        } else {
            RunError::BadMagic
        });
    }
    match bytes.get(VERSION_AT) {
        Some(version) if is_readable(*version) => {}
        Some(version) => return Err(RunError::UnknownVersion(*version)),
        None => return Err(truncated),
    }
    let (fields, content) = bytes.split_at_checked(HEADER_LENGTH).ok_or(truncated)?;
    if (&fields[CHECKSUM_AT..]).get_u64_le() != xxh3_64(&bytes[CODEC_AT..]) {
        return Err(RunError::Checksum);
    }
    Ok(ParsedRun {
        header: read_fields(&fields[CODEC_AT..])?,
        is_sealed: bytes[VERSION_AT] == SEALED,
        content,
    })
}

/// The message count and the raw size of a run, without a check of its checksum.
pub(crate) fn peek_sizes(bytes: &[u8]) -> Option<(usize, usize)> {
    let version = bytes.get(VERSION_AT);
    let is_run = bytes.starts_with(&MAGIC) && version.is_some_and(|it| is_readable(*it));
    let fields = bytes.get(CODEC_AT..HEADER_LENGTH).filter(|_| is_run)?;
    let header = read_fields(fields).ok()?;
    Some((header.summary.count as usize, header.raw_size as usize))
}

/// Reads and checks the fields from the codec on, in their full length.
fn read_fields(mut fields: &[u8]) -> Result<RunHeader, RunError> {
    let codec = match fields.get_u8() {
        0 => Codec::None,
        1 => Codec::Zstd,
        other => return Err(RunError::UnknownCodec(other)),
    };
    let (count, raw_size) = (fields.get_u32_le(), fields.get_u32_le());
    let records_size = fields.get_u32_le();
    if raw_size as usize > limit::RUN_BYTES_MAX {
        return Err(RunError::TooLarge(raw_size));
    }
    let columns_size = raw_size
        .checked_sub(records_size)
        .ok_or(RunError::Records)?;
    if count == 0 || count > columns_size / COLUMN_BYTES_MIN {
        return Err(RunError::Count(count));
    }
    let summary = RunSummary {
        count,
        first: read_place(&mut fields),
        last: read_place(&mut fields),
        least_offset: Offset(fields.get_u64_le()),
        greatest_offset: Offset(fields.get_u64_le()),
    };
    Ok(RunHeader {
        codec,
        summary,
        raw_size,
        records_size,
    })
}

fn read_place(fields: &mut &[u8]) -> Cursor {
    let due = Timestamp::from_millis(fields.get_i64_le());
    Cursor::new(due, Offset(fields.get_u64_le()))
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{TestDisposition, TestMessage, at, encode_run, shard};
    use super::super::{RunDecoder, RunName};
    use super::*;
    use crate::model::{DeadLetterReason, Dialect, Level, Message, Slice};
    use std::collections::BTreeMap;

    /// A run of version 1 without compression, which must never change. The header is followed by
    /// four records and three columns.
    const PLAIN: &[&str] = &[
        "5044524e01 1098b3ba1fd3d315 00 04000000 6d000000 57000000",
        "0000000000000080 e803000000000000 fa505c18a3010000 ea03000000000000 e603000000000000 ea03000000000000",
        "11 00 07 72656c61796564 01 80a0abfef962",
        "12 00 00 02 09 6e6f5f746172676574 03 776879",
        "2c 03 6b6579 07 01610001620263 02 7b7d 02 6964 02 746f 07",
        "12 03 6b6579 00 03 02 09 642f722f742f302f35 0d 09 74696d65645f6f7574",
        "00 00 80a0f1c2b1b480808001 fa01",
        "00 02 05 08",
        "11 12 17 1d",
    ];

    /// A run of version 1, compressed with zstd.
    const PACKED: &[&str] = &[
        "5044524e01 9c80319f970bb4b7 01 28000000 1d050000 7e040000",
        "00505c18a3010000 4600000000000000 58e85c18a3010000 1f00000000000000 1f00000000000000 4600000000000000",
        "28b52ffd601d0495050062c5131eb0271d0cc3300ce5a4b5c2d640b12c7892535b5bb3290506fe1ec92fdf3b089d634c4922e5ffffffb76ddbb6cb",
        "b22ccbb22c591e0c05c24070b73dd852a7d6058e29100c48e312692d5a72008a093620908382e2010c13587e4686267c0c6324730cc308730ccb08",
        "7318c6087319c608e618c648e666580946ea8e8463ec6484bb774c84137417c2317402c21d3af6c109baf3e0183ae9e000c871704c17e3423694f0",
        "862c94f086ac8482f7be13",
    ];

    fn bytes(hex: &[&str]) -> Vec<u8> {
        let digits = hex.concat().replace(' ', "");
        (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect()
    }

    fn assert_reads(run: &[u8], messages: &BTreeMap<Cursor, TestMessage>) {
        let loaded = RunDecoder::plain()
            .decode(
                &shard(),
                RunName::new("1-1-4-3e6"),
                Slice {
                    level: Level::Now,
                    start: 0,
                },
                run,
            )
            .unwrap();
        let read: Vec<_> = (0..loaded.len())
            .map(|index| loaded.message(index).unwrap())
            .collect();
        let expected: Vec<_> = messages
            .iter()
            .map(|(place, sample)| Message {
                place: *place,
                body: sample.body(),
            })
            .collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn the_bytes_of_version_1_never_change() {
        assert_eq!(encode_run(&of_every_kind()).1, bytes(PLAIN));
    }

    #[test]
    fn version_1_is_readable() {
        assert_reads(&bytes(PLAIN), &of_every_kind());
    }

    /// Compares no compressed bytes: another version of zstd may produce others.
    #[test]
    fn compressed_version_1_is_readable() {
        assert_reads(&bytes(PACKED), &much_alike());
        assert_eq!(
            parse(&encode_run(&much_alike()).1).unwrap().header,
            parse(&bytes(PACKED)).unwrap().header
        );
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_detected() {
        for run in [bytes(PLAIN), bytes(PACKED)] {
            for at in 0..run.len() {
                assert!(parse(&run[..at]).is_err(), "cut to {at}");
                for bit in 0..8 {
                    let mut flipped = run.clone();
                    flipped[at] ^= 1 << bit;
                    assert!(parse(&flipped).is_err(), "bit {bit} of byte {at}");
                }
            }
        }
    }

    fn of_every_kind() -> BTreeMap<Cursor, TestMessage> {
        let bytes = |text: &str| Some(text.as_bytes().to_vec());
        let relayed = TestMessage {
            payload: bytes("relayed"),
            disposition: TestDisposition::Relay(1_700_000_000_000),
            ..TestMessage::default()
        };
        let refused = TestMessage {
            key: bytes(""),
            disposition: TestDisposition::DeadLetter(DeadLetterReason::NoTarget, "why".into()),
            ..TestMessage::default()
        };
        let waiting = TestMessage {
            key: bytes("key"),
            payload: bytes("{}"),
            headers: b"\x01a\x00\x01b\x02c".to_vec(),
            id: Some("id".into()),
            target: Some("to".into()),
            until: None,
            dialect: Some(Dialect::Karafka),
            disposition: TestDisposition::Deliver,
        };
        let retried = TestMessage {
            key: bytes("key"),
            disposition: TestDisposition::Retry(
                2,
                "d/r/t/0/5".into(),
                -7,
                DeadLetterReason::TimedOut,
            ),
            ..TestMessage::default()
        };
        BTreeMap::from([
            (at(i64::MIN, 1000), relayed),
            (at(i64::MIN, 1001), refused),
            (at(1_800_000_000_000, 998), waiting),
            (at(1_800_000_000_250, 1002), retried),
        ])
    }

    fn much_alike() -> BTreeMap<Cursor, TestMessage> {
        let message = |n: u64| TestMessage {
            payload: Some(format!("payload number {n} of forty").into_bytes()),
            ..TestMessage::default()
        };
        (0..40)
            .map(|n| (at(1_800_000_000_000 + n as i64 * 1000, 70 - n), message(n)))
            .collect()
    }
}
