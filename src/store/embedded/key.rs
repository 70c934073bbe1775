//! The rows of a folder: their keys, in the order in which they are read. What the values look like stands in `form`.
//!
//! A shard's rows lie under its *number*, given at birth and never used again; only `meta` knows the shard by name. So an erased shard is
//! gone with its `meta`, and what is left of it can be deleted bit by bit.
//!
//! | row | keyspace | key behind the first letter | value |
//! |---|---|---|---|
//! | next | index | | the number that the next birth is given |
//! | meta | index | deployment, route, topic (each with its length), partition | number, positions, identity |
//! | garbage | index | number | nothing: rows of this number are still to be deleted |
//! | ledger | index | number | accepted, delivered, cancelled, dead-lettered, sent back, gone, unsure; W and delivered; an older version writes none |
//! | count | index | number, slice; no slice: the quarantine | runs, messages, bytes, least offset |
//! | order | index | number, least due, least offset, name | slice: so runs are listed |
//! | run | index | number, slice, name | least due, bytes: so runs are found by name |
//! | id | index | number, id | place of the message that waits under it |
//! | cancelled | index | number, place | nothing: not to be delivered |
//! | bytes | pool | slice's start and level, number, name | the encoded run |
//! | aside | pool | number, name | a run that could not be read |
//! | sweep | pool | | nothing: see `sweep` |
//!
//! In the pool the hour comes first: what falls due together lies together on disk, and is freed together.

use crate::model::{Cursor, Partition, ShardId, Slice, Timestamp};
use crate::run::RunName;
use std::ops::RangeInclusive;
use std::str::from_utf8;

/// What stands for a shard in the keys of its rows.
pub(super) type ShardNumber = u32;

/// See the module's table.
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

/// First letters. Those of a shard's index rows are all that a garbage number can have left in the index.
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
const ASIDE: u8 = b'q';
const SWEEP: u8 = b's';
const OF_A_SHARD: [u8; 6] = [LEDGER, COUNT, ORDER, RUN, ID, CANCELLED];

impl Key<'_> {
    pub(super) fn is_in_pool(self) -> bool {
        matches!(
            self,
            Self::Bytes(..) | Self::Quarantined(..) | Self::GcMarker
        )
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
                key.extend(super::codec::place(place));
            }
            Self::Bytes(number, slice, name) => {
                key.push(BYTES);
                push_slice(&mut key, slice);
                key.extend(number.to_be_bytes());
                key.extend(name.as_str().as_bytes());
            }
            Self::Quarantined(number, name) => {
                push_number(&mut key, ASIDE, number);
                key.extend(name.as_str().as_bytes());
            }
            Self::GcMarker => key.push(SWEEP),
        }
        key
    }
}

fn push_number(key: &mut Vec<u8>, letter: u8, number: ShardNumber) {
    key.push(letter);
    key.extend(number.to_be_bytes());
}

/// Start, then level: in the order of time.
fn push_slice(key: &mut Vec<u8>, slice: Slice) {
    key.extend(super::codec::slice(slice));
}

fn push_text(key: &mut Vec<u8>, text: &str) {
    key.extend((text.len() as u32).to_be_bytes());
    key.extend(text.as_bytes());
}

/// What the keys of a deployment's metas begin with.
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

pub(super) fn all_aside(number: ShardNumber) -> Vec<u8> {
    prefix(ASIDE, number)
}

pub(super) fn all_cancelled(number: ShardNumber) -> Vec<u8> {
    prefix(CANCELLED, number)
}

/// What the index rows of a shard begin with. The runs come last: by them the bytes are found.
pub(super) fn all_of_a_shard(number: ShardNumber) -> [Vec<u8>; 6] {
    OF_A_SHARD.map(|letter| prefix(letter, number))
}

fn prefix(letter: u8, number: ShardNumber) -> Vec<u8> {
    let mut key = Vec::with_capacity(5);
    push_number(&mut key, letter, number);
    key
}

/// The order rows of least dues in `from..=until`.
pub(super) fn order_range(
    number: ShardNumber,
    from: Timestamp,
    until: Timestamp,
) -> RangeInclusive<Vec<u8>> {
    let mut last = order_from(number, until);
    // Longer than the rest of any key.
    last.extend([0xff; 9]);
    order_from(number, from)..=last
}

fn order_from(number: ShardNumber, least_due: Timestamp) -> Vec<u8> {
    let mut key = prefix(ORDER, number);
    key.extend(least_due.to_ordered_bits().to_be_bytes());
    key
}

/// The cancelled rows of places in `from..=until`.
pub(super) fn cancelled_range(
    number: ShardNumber,
    from: Cursor,
    until: Cursor,
) -> RangeInclusive<Vec<u8>> {
    Key::Cancelled(number, from).to_bytes()..=Key::Cancelled(number, until).to_bytes()
}

/// The shard that a meta row is about; `None`: nothing that we wrote.
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

/// The number in a garbage row's key.
pub(super) fn garbage(key: &[u8]) -> Option<ShardNumber> {
    Some(ShardNumber::from_be_bytes(key.get(1..)?.try_into().ok()?))
}

/// The slice that a count row is about, `None` inside: the quarantine.
pub(super) fn counted(key: &[u8]) -> Option<Option<Slice>> {
    match key.get(5..)? {
        [] => Some(None),
        slice => super::codec::to_slice(slice).map(Some),
    }
}

/// Least due and name of the run that an order row is about.
pub(super) fn ordered(key: &[u8]) -> Option<(Timestamp, RunName)> {
    let (due, rest) = key.get(5..)?.split_first_chunk::<8>()?;
    let (_least_offset, name) = rest.split_first_chunk::<8>()?;
    Some((
        Timestamp::from_ordered_bits(u64::from_be_bytes(*due)),
        RunName::new(from_utf8(name).ok()?),
    ))
}

/// Slice and name of the run that a run row is about.
pub(super) fn named(key: &[u8]) -> Option<(Slice, RunName)> {
    let (slice, name) = key.get(5..)?.split_first_chunk::<9>()?;
    Some((
        super::codec::to_slice(slice)?,
        RunName::new(from_utf8(name).ok()?),
    ))
}

/// The name of the run that an aside row holds.
pub(super) fn aside(key: &[u8]) -> Option<RunName> {
    Some(RunName::new(from_utf8(key.get(5..)?).ok()?))
}

/// The place that a cancelled row is about.
pub(super) fn cancelled(key: &[u8]) -> Option<Cursor> {
    super::codec::to_place(key.get(5..)?)
}
