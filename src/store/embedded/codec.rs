//! How places, slices, positions and counts are written in rows: numbers in big-endian order, of fixed width, so that the order of the bytes
//! is the order of what they say. Which row holds what stands in `key`.

use super::key::ShardNumber;
use crate::model::{Cursor, Level, Offset, Progress, Slice, SourceIdentity, Timestamp, Watermark};
use crate::store::rules::{RunTotals, ShardMeta};
use crate::store::{Ledger, Lineage, OutcomeCounts};

/// What a meta row holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetaRow {
    pub(super) number: ShardNumber,
    pub(super) meta: ShardMeta,
}

/// Number, W, claimed, delivered; behind them the identity's text.
const META_LENGTH: usize = 4 + 8 + 24 + 24;

pub(super) fn meta(meta: &MetaRow) -> Vec<u8> {
    let ShardMeta {
        identity,
        watermark,
        claimed,
        delivered,
        ..
    } = &meta.meta;
    let mut bytes = Vec::with_capacity(META_LENGTH + identity.0.len());
    bytes.extend(meta.number.to_be_bytes());
    bytes.extend(watermark.0.to_be_bytes());
    bytes.extend(claim(*claimed));
    bytes.extend(claim(*delivered));
    bytes.extend(identity.0.as_bytes());
    bytes
}

/// `None`: nothing that this version writes. The ledger has a row of its own. The history is not kept on disk: it tells of a store that went back,
/// and a folder does so only between two processes. A folder that is opened anew begins another, and its timers load their shards again.
pub(super) fn to_meta(bytes: &[u8]) -> Option<MetaRow> {
    let (fixed, identity) = bytes.split_first_chunk::<META_LENGTH>()?;
    let (number, rest) = fixed.split_first_chunk::<4>()?;
    let (watermark, rest) = rest.split_first_chunk::<8>()?;
    let (claimed, delivered) = rest.split_at(24);
    let positions = ShardMeta {
        identity: SourceIdentity(std::str::from_utf8(identity).ok()?.into()),
        watermark: Watermark(u64::from_be_bytes(*watermark)),
        claimed: to_claim(claimed)?,
        delivered: to_claim(delivered)?,
        ledger: Ledger::default(),
        lineage: Lineage::default(),
    };
    Some(MetaRow {
        number: ShardNumber::from_be_bytes(*number),
        meta: positions,
    })
}

fn claim(claim: Progress) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&place(claim.cursor));
    bytes[16..].copy_from_slice(&claim.watermark.0.to_be_bytes());
    bytes
}

fn to_claim(bytes: &[u8]) -> Option<Progress> {
    let (cursor, watermark) = bytes.split_first_chunk::<16>()?;
    Some(Progress::new(
        to_place(cursor)?,
        Watermark(u64::from_be_bytes(watermark.try_into().ok()?)),
    ))
}

/// Due, then offset.
pub(super) fn place(place: Cursor) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&place.due.to_ordered_bits().to_be_bytes());
    bytes[8..].copy_from_slice(&place.offset.0.to_be_bytes());
    bytes
}

pub(super) fn to_place(bytes: &[u8]) -> Option<Cursor> {
    let (due, offset) = bytes.split_first_chunk::<8>()?;
    Some(Cursor::new(
        Timestamp::from_ordered_bits(u64::from_be_bytes(*due)),
        Offset(u64::from_be_bytes(offset.try_into().ok()?)),
    ))
}

/// Start, then the level's letter.
pub(super) fn slice(slice: Slice) -> [u8; 9] {
    let mut bytes = [0; 9];
    bytes[..8].copy_from_slice(
        &Timestamp::from_millis(slice.start)
            .to_ordered_bits()
            .to_be_bytes(),
    );
    bytes[8] = slice.level.letter();
    bytes
}

/// `None`: of a level that this version does not know.
pub(super) fn to_slice(bytes: &[u8]) -> Option<Slice> {
    let (start, level) = bytes.split_first_chunk::<8>()?;
    let [letter] = level else { return None };
    let level = Level::from_letter(*letter)?;
    Some(Slice {
        level,
        start: Timestamp::from_ordered_bits(u64::from_be_bytes(*start)).as_millis(),
    })
}

pub(super) fn count(count: RunTotals) -> Vec<u8> {
    [
        count.runs,
        count.messages,
        count.bytes,
        count.least_offset.0,
    ]
    .map(u64::to_be_bytes)
    .concat()
}

pub(super) fn to_count(bytes: &[u8]) -> Option<RunTotals> {
    let (parts, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let [runs, messages, bytes, least] = <[[u8; 8]; 4]>::try_from(parts)
        .ok()?
        .map(u64::from_be_bytes);
    Some(RunTotals {
        runs,
        messages,
        bytes,
        least_offset: Offset(least),
    })
}

/// Accepted, delivered, cancelled, dead-lettered, sent back, gone, and 1 if it is unsure; behind them the W and the delivered pair that it
/// belongs to.
pub(super) fn ledger(positions: &ShardMeta) -> Vec<u8> {
    let Ledger {
        accepted,
        outcomes: settled,
        removed: gone,
        is_uncertain: is_unsure,
    } = positions.ledger;
    let OutcomeCounts {
        delivered,
        cancelled,
        dead_lettered,
        retried: sent_back,
    } = settled;
    let mut bytes = [
        accepted,
        delivered,
        cancelled,
        dead_lettered,
        sent_back,
        gone,
        u64::from(is_unsure),
    ]
    .map(u64::to_be_bytes)
    .concat();
    bytes.extend(positions.watermark.0.to_be_bytes());
    bytes.extend(claim(positions.delivered));
    bytes
}

/// `None`: not of these positions, so that a version without ledgers has been at work.
pub(super) fn to_ledger(bytes: &[u8], positions: &ShardMeta) -> Option<Ledger> {
    let (numbers, of) = bytes.split_at_checked(7 * 8)?;
    if of
        != [
            &positions.watermark.0.to_be_bytes()[..],
            &claim(positions.delivered),
        ]
        .concat()
    {
        return None;
    }
    let (parts, []) = numbers.as_chunks::<8>() else {
        return None;
    };
    let parts = <[[u8; 8]; 7]>::try_from(parts)
        .ok()?
        .map(u64::from_be_bytes);
    let [
        accepted,
        delivered,
        cancelled,
        dead_lettered,
        sent_back,
        gone,
        unsure,
    ] = parts;
    Some(Ledger {
        accepted,
        outcomes: OutcomeCounts {
            delivered,
            cancelled,
            dead_lettered,
            retried: sent_back,
        },
        removed: gone,
        is_uncertain: unsure > 0,
    })
}

/// What a run row says: the least due, and how many bytes the run has.
pub(super) fn run(least_due: Timestamp, bytes: usize) -> Vec<u8> {
    [least_due.to_ordered_bits(), bytes as u64]
        .map(u64::to_be_bytes)
        .concat()
}

pub(super) fn to_run(bytes: &[u8]) -> Option<(Timestamp, usize)> {
    let (due, length) = bytes.split_first_chunk::<8>()?;
    let length = u64::from_be_bytes(length.try_into().ok()?);
    Some((
        Timestamp::from_ordered_bits(u64::from_be_bytes(*due)),
        usize::try_from(length).ok()?,
    ))
}
