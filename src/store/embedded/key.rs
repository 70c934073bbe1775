//! The rows of the database: their tables, keys and values. `codec` encodes the values.
//!
//! A shard has a *number*, given when it is created and never reused. Its rows contain the number;
//! only `meta` maps the name of the shard to it. So deleting the `meta` row erases a shard at once,
//! and its other rows can be deleted later.
//!
//! | row | table | key after its first letter | value |
//! |---|---|---|---|
//! | next | index | | number of the next new shard |
//! | meta | index | deployment, route, topic (each with its length), partition | number, watermark, claimed, delivered, identity |
//! | garbage | index | number | empty; rows of this number must be deleted |
//! | ledger | index | number | counts, watermark, delivered; a version without ledgers writes none |
//! | count | index | number, slice; without slice: quarantine | runs, messages, bytes, least offset |
//! | order | index | number, least due, least offset, name | slice; used to list runs |
//! | run | index | number, slice, name | least due, size; used to find a run by name |
//! | id | index | number, id | place of the message that waits under the id |
//! | cancelled | index | number, place | empty; the message must not be delivered |
//! | bytes | pool | slice, number, name | encoded run |
//! | quarantined | pool | number, name | bytes of an unreadable run |
//! | gc marker | pool | | empty; see `gc` |
//!
//! In the pool the slice comes first. Runs that are due together are stored and freed together.

use super::codec;
use super::write_batch::Table;
use crate::model::{Cursor, Partition, ShardId, Slice, Timestamp};
use crate::run::RunName;
use std::ops::RangeInclusive;
use std::str::from_utf8;

/// Identifies a shard in the keys of its rows.
pub(super) type ShardNumber = u32;

/// One row. See the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key<'a> {
    Next,
    Meta {
        deployment: &'a str,
        shard: &'a ShardId,
    },
    Garbage(ShardNumber),
    Ledger(ShardNumber),
    Count(ShardNumber, Option<Slice>),
    Order(ShardNumber, Timestamp, &'a RunName),
    Run(ShardNumber, Slice, &'a RunName),
    Id(ShardNumber, &'a str),
    Cancelled(ShardNumber, Cursor),
    Bytes(ShardNumber, Slice, &'a RunName),
    Quarantined(ShardNumber, &'a RunName),
    GcMarker,
}

/// First letters of the keys.
const NEXT: u8 = b'n';
const META: u8 = b'm';
const GARBAGE: u8 = b'g';
const LEDGER: u8 = b'l';
const COUNT: u8 = b'c';
const ORDER: u8 = b'o';
const RUN: u8 = b'r';
const ID: u8 = b'i';
const CANCELLED: u8 = b'x';
const BYTES: u8 = b'p';
const QUARANTINED: u8 = b'q';
const GC_MARKER: u8 = b's';
/// Index rows of a shard that remain after its meta row was deleted. Run rows name the rows in the
/// pool.
const OF_A_SHARD: [u8; 6] = [LEDGER, COUNT, ORDER, RUN, ID, CANCELLED];

impl Key<'_> {
    pub(super) fn table(self) -> Table {
        match self {
            Self::Bytes(..) | Self::Quarantined(..) | Self::GcMarker => Table::Pool,
            _ => Table::Index,
        }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut key = Vec::with_capacity(64);
        match self {
            Self::Next => key.push(NEXT),
            Self::Meta { deployment, shard } => {
                key.extend(all_metas(deployment));
                push_text(&mut key, &shard.route);
                push_text(&mut key, &shard.partition.topic);
                key.extend(shard.partition.index.to_be_bytes());
            }
            Self::Garbage(number) => push_number(&mut key, GARBAGE, number),
            Self::Ledger(number) => push_number(&mut key, LEDGER, number),
            Self::Count(number, slice) => {
                push_number(&mut key, COUNT, number);
                slice
                    .into_iter()
                    .for_each(|slice| push_slice(&mut key, slice));
            }
            Self::Order(number, least_due, name) => {
                key.extend(order_from(number, least_due));
                key.extend(name.least_offset().0.to_be_bytes());
                key.extend(name.as_str().as_bytes());
            }
            Self::Run(number, slice, name) => {
                push_number(&mut key, RUN, number);
                push_slice(&mut key, slice);
                key.extend(name.as_str().as_bytes());
            }
            Self::Id(number, id) => {
                push_number(&mut key, ID, number);
                key.extend(id.as_bytes());
            }
            Self::Cancelled(number, place) => {
                push_number(&mut key, CANCELLED, number);
                key.extend(codec::place(place));
            }
            Self::Bytes(number, slice, name) => {
                key.push(BYTES);
                push_slice(&mut key, slice);
                key.extend(number.to_be_bytes());
                key.extend(name.as_str().as_bytes());
            }
            Self::Quarantined(number, name) => {
                push_number(&mut key, QUARANTINED, number);
                key.extend(name.as_str().as_bytes());
            }
            Self::GcMarker => key.push(GC_MARKER),
        }
        key
    }
}

fn push_number(key: &mut Vec<u8>, letter: u8, number: ShardNumber) {
    key.push(letter);
    key.extend(number.to_be_bytes());
}

/// Start, then level: sorts by time.
fn push_slice(key: &mut Vec<u8>, slice: Slice) {
    key.extend(codec::slice(slice));
}

fn push_text(key: &mut Vec<u8>, text: &str) {
    key.extend((text.len() as u32).to_be_bytes());
    key.extend(text.as_bytes());
}

/// Prefix of the meta rows of a deployment.
pub(super) fn all_metas(deployment: &str) -> Vec<u8> {
    let mut key = vec![META];
    push_text(&mut key, deployment);
    key
}

pub(super) fn all_garbage() -> Vec<u8> {
    vec![GARBAGE]
}

pub(super) fn all_counts(number: ShardNumber) -> Vec<u8> {
    prefix(COUNT, number)
}

pub(super) fn all_runs(number: ShardNumber) -> Vec<u8> {
    prefix(RUN, number)
}

pub(super) fn all_quarantined(number: ShardNumber) -> Vec<u8> {
    prefix(QUARANTINED, number)
}

pub(super) fn all_cancelled(number: ShardNumber) -> Vec<u8> {
    prefix(CANCELLED, number)
}

/// Prefixes of the index rows of a shard, in the order in which they are deleted.
pub(super) fn all_of_a_shard(number: ShardNumber) -> [Vec<u8>; 6] {
    OF_A_SHARD.map(|letter| prefix(letter, number))
}

fn prefix(letter: u8, number: ShardNumber) -> Vec<u8> {
    let mut key = Vec::with_capacity(5);
    push_number(&mut key, letter, number);
    key
}

/// The order rows with a least due in `from..=until`.
pub(super) fn order_range(
    number: ShardNumber,
    from: Timestamp,
    until: Timestamp,
) -> RangeInclusive<Vec<u8>> {
    let mut last = order_from(number, until);
    // Sorts behind any rest of a key.
    last.extend([0xff; 9]);
    order_from(number, from)..=last
}

fn order_from(number: ShardNumber, least_due: Timestamp) -> Vec<u8> {
    let mut key = prefix(ORDER, number);
    key.extend(least_due.to_ordered_bits().to_be_bytes());
    key
}

/// The cancelled rows with a place in `from..=until`.
pub(super) fn cancelled_range(
    number: ShardNumber,
    from: Cursor,
    until: Cursor,
) -> RangeInclusive<Vec<u8>> {
    Key::Cancelled(number, from).to_bytes()..=Key::Cancelled(number, until).to_bytes()
}

/// The shard of a meta row. `None`: unreadable.
pub(super) fn shard(key: &[u8]) -> Option<ShardId> {
    let (_deployment, rest) = split_text(key.get(1..)?)?;
    let (route, rest) = split_text(rest)?;
    let (topic, rest) = split_text(rest)?;
    Some(ShardId::new(
        route,
        Partition::new(topic, i32::from_be_bytes(rest.try_into().ok()?)),
    ))
}

fn split_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((from_utf8(text).ok()?, rest))
}

/// The number of a garbage row.
pub(super) fn garbage(key: &[u8]) -> Option<ShardNumber> {
    Some(ShardNumber::from_be_bytes(key.get(1..)?.try_into().ok()?))
}

/// The slice of a count row; `Some(None)` is the quarantine.
pub(super) fn counted(key: &[u8]) -> Option<Option<Slice>> {
    match key.get(5..)? {
        [] => Some(None),
        slice => codec::to_slice(slice).map(Some),
    }
}

/// Least due and name of the run of an order row.
pub(super) fn ordered(key: &[u8]) -> Option<(Timestamp, RunName)> {
    let (due, rest) = key.get(5..)?.split_first_chunk::<8>()?;
    let (_least_offset, name) = rest.split_first_chunk::<8>()?;
    Some((
        Timestamp::from_ordered_bits(u64::from_be_bytes(*due)),
        RunName::new(from_utf8(name).ok()?),
    ))
}

/// Slice and name of the run of a run row.
pub(super) fn named(key: &[u8]) -> Option<(Slice, RunName)> {
    let (slice, name) = key.get(5..)?.split_first_chunk::<9>()?;
    Some((codec::to_slice(slice)?, RunName::new(from_utf8(name).ok()?)))
}

/// The name of the run of a quarantined row.
pub(super) fn quarantined(key: &[u8]) -> Option<RunName> {
    Some(RunName::new(from_utf8(key.get(5..)?).ok()?))
}

/// The place of a cancelled row.
pub(super) fn cancelled(key: &[u8]) -> Option<Cursor> {
    codec::to_place(key.get(5..)?)
}
