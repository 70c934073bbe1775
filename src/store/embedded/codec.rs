//! The values of rows, encoded. Numbers are big-endian with a fixed width, so that encoded values
//! sort like the values themselves. `key` lists the rows.

use super::key::ShardNumber;
use crate::model::{Cursor, Level, Offset, Progress, Slice, SourceIdentity, Timestamp, Watermark};
use crate::store::rules::{RunTotals, ShardMeta};
use crate::store::{Ledger, Lineage, OutcomeCounts};

/// A meta row. It contains neither the ledger, which has its own row, nor the lineage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetaRow {
    pub(super) number: ShardNumber,
    pub(super) meta: ShardMeta,
}

/// Number, watermark, claimed, delivered. The text of the identity follows.
const META_LENGTH: usize = 4 + 8 + 24 + 24;

pub(super) fn meta(row: &MetaRow) -> Vec<u8> {
    let identity = row.meta.identity.0.as_bytes();
    let mut bytes = Vec::with_capacity(META_LENGTH + identity.len());
    bytes.extend(row.number.to_be_bytes());
    bytes.extend(row.meta.watermark.0.to_be_bytes());
    bytes.extend(pair(row.meta.claimed));
    bytes.extend(pair(row.meta.delivered));
    bytes.extend(identity);
    bytes
}

/// `None`: unreadable. The lineage is not on disk, because it shows rollbacks, and a folder cannot
/// roll back while its process runs. After a restart every timer loads its shards again.
pub(super) fn to_meta(bytes: &[u8]) -> Option<MetaRow> {
    let (fixed, identity) = bytes.split_first_chunk::<META_LENGTH>()?;
    let (number, rest) = fixed.split_first_chunk::<4>()?;
    let (watermark, rest) = rest.split_first_chunk::<8>()?;
    let (claimed, delivered) = rest.split_at(24);
    let meta = ShardMeta {
        identity: SourceIdentity(std::str::from_utf8(identity).ok()?.into()),
        watermark: Watermark(u64::from_be_bytes(*watermark)),
        claimed: to_pair(claimed)?,
        delivered: to_pair(delivered)?,
        ledger: Ledger::default(),
        lineage: Lineage::default(),
    };
    Some(MetaRow {
        number: ShardNumber::from_be_bytes(*number),
        meta,
    })
}

fn pair(pair: Progress) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&place(pair.cursor));
    bytes[16..].copy_from_slice(&pair.watermark.0.to_be_bytes());
    bytes
}

fn to_pair(bytes: &[u8]) -> Option<Progress> {
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

/// Start, then the letter of the level.
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

/// `None`: this version does not know the level.
pub(super) fn to_slice(bytes: &[u8]) -> Option<Slice> {
    let (start, level) = bytes.split_first_chunk::<8>()?;
    let [letter] = level else { return None };
    let level = Level::from_letter(*letter)?;
    Some(Slice {
        level,
        start: Timestamp::from_ordered_bits(u64::from_be_bytes(*start)).as_millis(),
    })
}

pub(super) fn totals(totals: RunTotals) -> Vec<u8> {
    [
        totals.runs,
        totals.messages,
        totals.bytes,
        totals.least_offset.0,
    ]
    .map(u64::to_be_bytes)
    .concat()
}

pub(super) fn to_totals(bytes: &[u8]) -> Option<RunTotals> {
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

/// Accepted, delivered, cancelled, dead-lettered, retried, removed, and 1 if uncertain. The
/// watermark and the delivered pair that the ledger belongs to follow.
pub(super) fn ledger(meta: &ShardMeta) -> Vec<u8> {
    let Ledger {
        accepted,
        outcomes,
        removed,
        is_uncertain,
    } = meta.ledger;
    let numbers = [
        accepted,
        outcomes.delivered,
        outcomes.cancelled,
        outcomes.dead_lettered,
        outcomes.retried,
        removed,
        u64::from(is_uncertain),
    ];
    let mut bytes = numbers.map(u64::to_be_bytes).concat();
    bytes.extend(ledger_positions(meta));
    bytes
}

/// The positions that a ledger belongs to.
fn ledger_positions(meta: &ShardMeta) -> Vec<u8> {
    let mut bytes = meta.watermark.0.to_be_bytes().to_vec();
    bytes.extend(pair(meta.delivered));
    bytes
}

/// `None`: the ledger belongs to other positions, so a version without ledgers moved them.
pub(super) fn to_ledger(bytes: &[u8], meta: &ShardMeta) -> Option<Ledger> {
    let (numbers, positions) = bytes.split_at_checked(7 * 8)?;
    if positions != ledger_positions(meta) {
        return None;
    }
    let (numbers, []) = numbers.as_chunks::<8>() else {
        return None;
    };
    let numbers = <[[u8; 8]; 7]>::try_from(numbers).ok()?;
    let [
        accepted,
        delivered,
        cancelled,
        dead_lettered,
        retried,
        removed,
        uncertain,
    ] = numbers.map(u64::from_be_bytes);
    Some(Ledger {
        accepted,
        outcomes: OutcomeCounts {
            delivered,
            cancelled,
            dead_lettered,
            retried,
        },
        removed,
        is_uncertain: uncertain > 0,
    })
}

/// Least due, and number of bytes.
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
