//! The values of rows, encoded. Numbers are big-endian with a fixed width, so that encoded values
//! sort like the values themselves. `key` lists the rows.

use super::key::ShardNumber;
use crate::model::{
    Cursor, Level, Offset, Pause, Progress, Slice, SourceIdentity, Timestamp, Watermark,
};
use crate::store::rules::{Change, Moved, NO_HOLD, RunTotals, ShardMeta};
use crate::store::{EffectKind, Ledger, Lineage, OutcomeCounts, RequestEffect};

fn numbers<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.map(u64::to_be_bytes).concat()
}

fn to_numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (parts, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let parts = <[[u8; 8]; N]>::try_from(parts).ok()?;
    Some(parts.map(u64::from_be_bytes))
}

/// Bytes of the number, and of watermark, claimed and delivered.
const META_LENGTH: usize = 4 + 7 * 8;

/// The text of the identity follows the numbers. The ledger has a row of its own.
pub(super) fn meta(number: ShardNumber, meta: &ShardMeta) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(META_LENGTH + meta.identity.0.len());
    bytes.extend(number.to_be_bytes());
    bytes.extend(meta.watermark.0.to_be_bytes());
    bytes.extend(numbers(pair_numbers(meta.claimed)));
    bytes.extend(numbers(pair_numbers(meta.delivered)));
    bytes.extend(meta.identity.0.as_bytes());
    bytes
}

/// `None`: unreadable. Ledger, hold, possible deliveries and pause have rows of their own. The lineage is not on disk, because it shows rollbacks, and a folder cannot
/// roll back while its process runs. After a restart every timer loads its shards again.
pub(super) fn to_meta(bytes: &[u8]) -> Option<(ShardNumber, ShardMeta)> {
    let (fixed, identity) = bytes.split_first_chunk::<META_LENGTH>()?;
    let (number, positions) = fixed.split_first_chunk::<4>()?;
    let [watermark, c1, c2, c3, delivered @ ..] = to_numbers::<7>(positions)?;
    let meta = ShardMeta {
        identity: SourceIdentity(std::str::from_utf8(identity).ok()?.into()),
        watermark: Watermark(watermark),
        claimed: to_pair([c1, c2, c3]),
        delivered: to_pair(delivered),
        hold: Some(NO_HOLD),
        possibly_delivered: Progress::START,
        pause: None,
        ledger: Ledger::default(),
        lineage: Lineage::default(),
    };
    Some((ShardNumber::from_be_bytes(*number), meta))
}

/// The meta row of a shard whose copy has not ended. It is shorter than any other.
pub(super) fn unfinished_copy(number: ShardNumber) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// The number of a shard whose copy has not ended.
pub(super) fn to_unfinished_copy(bytes: &[u8]) -> Option<ShardNumber> {
    bytes.try_into().ok().map(ShardNumber::from_be_bytes)
}

fn pair_numbers(pair: Progress) -> [u64; 3] {
    let [due, offset] = place_numbers(pair.cursor);
    [due, offset, pair.watermark.0]
}

fn to_pair([due, offset, watermark]: [u64; 3]) -> Progress {
    Progress::new(to_cursor([due, offset]), Watermark(watermark))
}

fn place_numbers(place: Cursor) -> [u64; 2] {
    [place.due.to_ordered_bits(), place.offset.0]
}

fn to_cursor([due, offset]: [u64; 2]) -> Cursor {
    Cursor::new(Timestamp::from_ordered_bits(due), Offset(offset))
}

/// Due, then offset.
pub(super) fn place(place: Cursor) -> Vec<u8> {
    numbers(place_numbers(place))
}

pub(super) fn to_place(bytes: &[u8]) -> Option<Cursor> {
    to_numbers(bytes).map(to_cursor)
}

/// The request if it asks for an answer. Then, for a rescheduled message, the record that gave it
/// its due time, and the due time.
pub(super) fn change(change: &Change) -> Vec<u8> {
    let request = change.request.into_iter().map(|offset| offset.0);
    let moved = change.moved.into_iter();
    let moved = moved.flat_map(|moved| [moved.by.0, moved.due.to_ordered_bits()]);
    let parts = request.chain(moved);
    parts.flat_map(|part| numbers([part])).collect()
}

pub(super) fn to_change(bytes: &[u8]) -> Option<Change> {
    let (request, moved) = match bytes.len() / 8 {
        0 => (None, None),
        1 => (to_numbers(bytes).map(|[request]| request), None),
        2 => (None, to_numbers(bytes)),
        _ => {
            let [request, by, due] = to_numbers(bytes)?;
            (Some(request), Some([by, due]))
        }
    };
    Some(Change {
        request: request.map(Offset),
        moved: moved.map(|[by, due]| Moved {
            by: Offset(by),
            due: Timestamp::from_ordered_bits(due),
        }),
    })
}

/// Place, then 1 if the message is changed.
pub(super) fn effect(effect: &RequestEffect) -> Vec<u8> {
    let [due, offset] = place_numbers(effect.place);
    numbers([due, offset, u64::from(effect.kind == EffectKind::Changed)])
}

pub(super) fn to_effect(request: Offset, bytes: &[u8]) -> Option<RequestEffect> {
    let [due, offset, is_changed] = to_numbers(bytes)?;
    Some(RequestEffect {
        request,
        place: to_cursor([due, offset]),
        kind: match is_changed {
            1 => EffectKind::Changed,
            _ => EffectKind::Unchanged,
        },
    })
}

/// Start, then the letter of the level.
pub(super) fn slice(slice: Slice) -> Vec<u8> {
    let start = Timestamp::from_millis(slice.start).to_ordered_bits();
    let mut bytes = numbers([start]);
    bytes.push(slice.level.letter());
    bytes
}

/// `None`: this version does not know the level.
pub(super) fn to_slice(bytes: &[u8]) -> Option<Slice> {
    let (letter, start) = bytes.split_last()?;
    let [start] = to_numbers(start)?;
    Some(Slice {
        level: Level::from_letter(*letter)?,
        start: Timestamp::from_ordered_bits(start).as_millis(),
    })
}

/// True for the bytes of a slice whose level this version does not know. A newer version wrote it.
pub(super) fn is_newer_slice(bytes: &[u8]) -> bool {
    matches!(bytes, [_, _, _, _, _, _, _, _, letter @ b'a'..=b'z']
        if Level::from_letter(*letter).is_none())
}

/// The watermark. Empty: the hold has ended, because the store or the quota was full.
pub(super) fn hold(hold: Option<Watermark>) -> Vec<u8> {
    hold.map_or_else(Vec::new, |until| numbers([until.0]))
}

pub(super) fn to_hold(bytes: &[u8]) -> Option<Watermark> {
    to_numbers(bytes).map(|[until]| Watermark(until))
}

pub(super) fn to_pause(bytes: &[u8]) -> Option<Pause> {
    Pause::parse(std::str::from_utf8(bytes).ok()?)
}

pub(super) fn pair(pair: Progress) -> Vec<u8> {
    numbers(pair_numbers(pair))
}

pub(super) fn to_pair_row(bytes: &[u8]) -> Option<Progress> {
    to_numbers(bytes).map(to_pair)
}

pub(super) fn totals(totals: &RunTotals) -> Vec<u8> {
    numbers([
        totals.runs,
        totals.messages,
        totals.bytes,
        totals.least_offset.0,
    ])
}

pub(super) fn to_totals(bytes: &[u8]) -> Option<RunTotals> {
    let [runs, messages, bytes, least_offset] = to_numbers(bytes)?;
    Some(RunTotals {
        runs,
        messages,
        bytes,
        least_offset: Offset(least_offset),
    })
}

pub(super) fn key_use(messages: u64) -> Vec<u8> {
    numbers([messages])
}

pub(super) fn to_key_use(bytes: &[u8]) -> Option<u64> {
    to_numbers(bytes).map(|[messages]| messages)
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
    let [watermark, due, offset, delivered_watermark] = ledger_positions(meta);
    numbers([
        accepted,
        outcomes.delivered,
        outcomes.cancelled,
        outcomes.dead_lettered,
        outcomes.retried,
        removed,
        u64::from(is_uncertain),
        watermark,
        due,
        offset,
        delivered_watermark,
    ])
}

fn ledger_positions(meta: &ShardMeta) -> [u64; 4] {
    let [due, offset, watermark] = pair_numbers(meta.delivered);
    [meta.watermark.0, due, offset, watermark]
}

/// `None`: the ledger belongs to other positions, so a version without ledgers moved them.
pub(super) fn to_ledger(bytes: &[u8], meta: &ShardMeta) -> Option<Ledger> {
    let [
        accepted,
        delivered,
        cancelled,
        dead_lettered,
        retried,
        removed,
        uncertain,
        positions @ ..,
    ] = to_numbers::<11>(bytes)?;
    (positions == ledger_positions(meta)).then_some(Ledger {
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
    numbers([least_due.to_ordered_bits(), bytes as u64])
}

pub(super) fn to_run(bytes: &[u8]) -> Option<(Timestamp, usize)> {
    let [due, length] = to_numbers(bytes)?;
    Some((
        Timestamp::from_ordered_bits(due),
        usize::try_from(length).ok()?,
    ))
}
