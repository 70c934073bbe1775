//! The rows of the database: their tables, keys and values. `codec` encodes the values.
//!
//! A shard has a *number*, given when it is created and never reused. Its rows contain the number;
//! only `meta` maps the name of the shard to it. So deleting the `meta` row erases a shard at once,
//! and its other rows can be deleted later.
//!
//! | row | table | key after its first letter | value |
//! |---|---|---|---|
//! | next | index | | number of the next new shard |
//! | meta | index | deployment, route, topic (each with its length), partition | number, watermark, claimed, delivered, identity; only the number until a copy ends |
//! | garbage | index | number | empty; rows of this number must be deleted |
//! | ledger | index | number | counts, watermark, delivered; a version without ledgers writes none |
//! | hold | index | number | watermark up to which claims wait; empty: the hold has ended |
//! | possibly delivered | index | number | pair: what may have been delivered before the folder was lost |
//! | pause | index | number | text of the pause; none before the first control record |
//! | count | index | number, slice; without slice: quarantine | runs, messages, bytes, least offset |
//! | key use | index | number, name of a key | messages in slices that this key encrypts |
//! | order | index | number, least due, least offset, name | slice; used to list runs |
//! | run | index | number, slice, name | least due, size; used to find a run by name |
//! | id | index | number, id, or its hash | place of the message that waits under the id |
//! | cancelled | index | number, place | the message must not be delivered: offset of the request, if it asks for an answer; then, if it is rescheduled, offset of the record that gave it its due time, and the due time |
//! | effect | index | number, offset of a request | place of the message that it names, and 1 if it is changed |
//! | audit | index | deployment (with its length), position of the line | a line of the audit list about a change, or its encrypted form |
//! | frequent audit | index | deployment (with its length), position of the line | another line of the audit list, or its encrypted form |
//! | request | index | deployment (with its length), name of a request with an idempotency key | when it ends, and its state: JSON, or its encrypted form |
//! | request order | index | deployment (with its length), end of a request, its name | empty |
//! | bytes | pool | slice, number, name | encoded run |
//! | quarantined | pool | number, name | bytes of an unreadable run |
//! | gc marker | pool | | empty; see `gc` |
//!
//! In the pool the slice comes first. Runs that are due together are stored and freed together.

use super::codec;
use crate::model::{Cursor, Offset, Partition, ShardId, Slice, Timestamp};
use crate::run::RunName;
use crate::store::{AuditPart, ShardEntry};
use std::ops::RangeInclusive;
use std::str::from_utf8;

/// Identifies a shard in the keys of its rows.
pub(super) type ShardNumber = u32;

/// First letters of the keys.
const META: u8 = b'm';
const GARBAGE: u8 = b'g';
const LEDGER: u8 = b'l';
const HOLD: u8 = b'h';
const POSSIBLY_DELIVERED: u8 = b'd';
const PAUSE: u8 = b'z';
const COUNT: u8 = b'c';
const KEY_USE: u8 = b'k';
const ORDER: u8 = b'o';
const RUN: u8 = b'r';
const ID: u8 = b'i';
const CANCELLED: u8 = b'x';
const EFFECT: u8 = b'e';
const AUDIT: u8 = b'a';
const FREQUENT_AUDIT: u8 = b'f';
const REQUEST: u8 = b'y';
const REQUEST_ORDER: u8 = b'w';
const BYTES: u8 = b'p';
const QUARANTINED: u8 = b'q';

pub(super) const NEXT: &[u8] = b"n";
pub(super) const GC_MARKER: &[u8] = b"s";
/// Prefix of the garbage rows.
pub(super) const ALL_GARBAGE: &[u8] = &[GARBAGE];

/// True for a row of the pool, false for a row of the index.
pub(super) fn is_in_pool(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(BYTES | QUARANTINED))) || key == GC_MARKER
}

/// A key of the shard with this number.
fn key(letter: u8, number: ShardNumber, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    key.push(letter);
    key.extend(number.to_be_bytes());
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
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

pub(super) fn meta(deployment: &str, shard: &ShardId) -> Vec<u8> {
    let mut key = all_metas(deployment);
    push_text(&mut key, &shard.route);
    push_text(&mut key, &shard.partition.topic);
    key.extend(shard.partition.index.to_be_bytes());
    key
}

pub(super) fn garbage(number: ShardNumber) -> Vec<u8> {
    key(GARBAGE, number, &[])
}

pub(super) fn ledger(number: ShardNumber) -> Vec<u8> {
    key(LEDGER, number, &[])
}

pub(super) fn hold(number: ShardNumber) -> Vec<u8> {
    key(HOLD, number, &[])
}

pub(super) fn possibly_delivered(number: ShardNumber) -> Vec<u8> {
    key(POSSIBLY_DELIVERED, number, &[])
}

pub(super) fn pause(number: ShardNumber) -> Vec<u8> {
    key(PAUSE, number, &[])
}

/// Prefix of the count rows.
pub(super) fn all_counts(number: ShardNumber) -> Vec<u8> {
    key(COUNT, number, &[])
}

pub(super) fn count(number: ShardNumber, slice: Option<Slice>) -> Vec<u8> {
    key(COUNT, number, &[&slice.map_or_else(Vec::new, codec::slice)])
}

/// Prefix of the key use rows.
pub(super) fn all_key_uses(number: ShardNumber) -> Vec<u8> {
    key(KEY_USE, number, &[])
}

pub(super) fn key_use(number: ShardNumber, name: &str) -> Vec<u8> {
    key(KEY_USE, number, &[name.as_bytes()])
}

/// The name of the key of a key use row.
pub(super) fn to_key_use(key: &[u8]) -> Option<Box<str>> {
    from_utf8(key.get(5..)?).ok().map(Box::from)
}

pub(super) fn order(number: ShardNumber, least_due: Timestamp, name: &RunName) -> Vec<u8> {
    let offset = name.least_offset().0.to_be_bytes();
    order_from(number, least_due, &[&offset, name.as_str().as_bytes()])
}

fn order_from(number: ShardNumber, least_due: Timestamp, rest: &[&[u8]]) -> Vec<u8> {
    let due = least_due.to_ordered_bits().to_be_bytes();
    key(ORDER, number, &[&due, &rest.concat()])
}

/// The order rows with a least due in `from..=until`.
pub(super) fn order_range(
    number: ShardNumber,
    from: Timestamp,
    until: Timestamp,
) -> RangeInclusive<Vec<u8>> {
    // The end sorts behind any rest of a key.
    order_from(number, from, &[])..=order_from(number, until, &[&[0xff; 9]])
}

pub(super) fn run(number: ShardNumber, slice: Slice, name: &RunName) -> Vec<u8> {
    key(
        RUN,
        number,
        &[&codec::slice(slice), name.as_str().as_bytes()],
    )
}

/// Prefix of the run rows.
pub(super) fn all_runs(number: ShardNumber) -> Vec<u8> {
    key(RUN, number, &[])
}

/// `name` is one of the names of an id.
pub(super) fn id(number: ShardNumber, name: &[u8]) -> Vec<u8> {
    key(ID, number, &[name])
}

/// The id rows. No text and no hash starts with the byte at the end of the range.
pub(super) fn all_ids(number: ShardNumber) -> RangeInclusive<Vec<u8>> {
    key(ID, number, &[])..=key(ID, number, &[&[0xff]])
}

/// The name of an id row.
pub(super) fn name_of_id(key: &[u8]) -> &[u8] {
    key.get(5..).unwrap_or_default()
}

/// Prefix of the cancelled rows.
pub(super) fn all_cancelled(number: ShardNumber) -> Vec<u8> {
    key(CANCELLED, number, &[])
}

pub(super) fn cancelled(number: ShardNumber, place: Cursor) -> Vec<u8> {
    key(CANCELLED, number, &[&codec::place(place)])
}

/// The cancelled rows, as a range.
pub(super) fn cancelled_range(number: ShardNumber) -> RangeInclusive<Vec<u8>> {
    let last = [0xff; 17];
    all_cancelled(number)..=key(CANCELLED, number, &[&last])
}

pub(super) fn effect(number: ShardNumber, request: Offset) -> Vec<u8> {
    key(EFFECT, number, &[&request.0.to_be_bytes()])
}

pub(super) fn all_effects(number: ShardNumber) -> RangeInclusive<Vec<u8>> {
    effect(number, Offset(0))..=effect(number, Offset(u64::MAX))
}

/// The request of an effect row.
pub(super) fn to_request(key: &[u8]) -> Option<Offset> {
    let (EFFECT, bytes) = (*key.first()?, key.get(5..)?) else {
        return None;
    };
    bytes.try_into().ok().map(u64::from_be_bytes).map(Offset)
}

pub(super) fn audit(part: AuditPart, deployment: &str, position: &str) -> Vec<u8> {
    let letter = match part {
        AuditPart::Changes => AUDIT,
        AuditPart::Frequent => FREQUENT_AUDIT,
    };
    of_deployment(letter, deployment, &[position.as_bytes()])
}

fn of_deployment(letter: u8, deployment: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = vec![letter];
    push_text(&mut key, deployment);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

pub(super) fn request(deployment: &str, name: &str) -> Vec<u8> {
    of_deployment(REQUEST, deployment, &[name.as_bytes()])
}

pub(super) fn request_order(deployment: &str, end: Timestamp, name: &str) -> Vec<u8> {
    let end = end.to_ordered_bits().to_be_bytes();
    of_deployment(REQUEST_ORDER, deployment, &[&end, name.as_bytes()])
}

/// The request order rows of a deployment. No time of the next million years starts with the byte at the end of the range.
pub(super) fn all_request_orders(deployment: &str) -> RangeInclusive<Vec<u8>> {
    of_deployment(REQUEST_ORDER, deployment, &[])
        ..=of_deployment(REQUEST_ORDER, deployment, &[&[0xff]])
}

/// End and name of a request order row.
pub(super) fn to_request_order(key: &[u8]) -> Option<(Timestamp, &str)> {
    let (_deployment, rest) = split_text(key.get(1..)?)?;
    let (end, name) = rest.split_first_chunk::<8>()?;
    let end = Timestamp::from_ordered_bits(u64::from_be_bytes(*end));
    Some((end, from_utf8(name).ok()?))
}

/// The audit rows of a deployment in this part. No position starts with the byte at the end of the range.
pub(super) fn all_audit(part: AuditPart, deployment: &str) -> RangeInclusive<Vec<u8>> {
    let first = audit(part, deployment, "");
    let last = [&first[..], &[0xff]].concat();
    first..=last
}

/// The position of an audit row.
pub(super) fn position_of_audit(key: &[u8]) -> Option<&str> {
    let (_deployment, position) = split_text(key.get(1..)?)?;
    from_utf8(position).ok()
}

pub(super) fn bytes(number: ShardNumber, slice: Slice, name: &RunName) -> Vec<u8> {
    let mut key = vec![BYTES];
    key.extend(codec::slice(slice));
    key.extend(number.to_be_bytes());
    key.extend(name.as_str().as_bytes());
    key
}

pub(super) fn quarantined(number: ShardNumber, name: &RunName) -> Vec<u8> {
    key(QUARANTINED, number, &[name.as_str().as_bytes()])
}

/// Prefix of the quarantined rows.
pub(super) fn all_quarantined(number: ShardNumber) -> Vec<u8> {
    key(QUARANTINED, number, &[])
}

/// The run of a quarantined row.
pub(super) fn to_quarantined(key: &[u8]) -> Option<RunName> {
    from_utf8(key.get(5..)?).ok().map(RunName::new)
}

/// Prefixes of the rows of an erased shard. Each run row names a bytes row, see
/// [`bytes_of_run`].
pub(super) fn all_of_a_shard(number: ShardNumber) -> [Vec<u8>; 12] {
    let index = [
        LEDGER,
        HOLD,
        POSSIBLY_DELIVERED,
        PAUSE,
        COUNT,
        KEY_USE,
        ORDER,
        RUN,
        ID,
        CANCELLED,
        EFFECT,
        QUARANTINED,
    ];
    index.map(|letter| key(letter, number, &[]))
}

/// The shard of a meta row. `None`: unreadable.
pub(super) fn to_shard(key: &[u8]) -> Option<ShardId> {
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
pub(super) fn to_garbage(key: &[u8]) -> Option<ShardNumber> {
    Some(ShardNumber::from_be_bytes(key.get(1..)?.try_into().ok()?))
}

/// The slice of a count row; `Some(None)` is the quarantine.
pub(super) fn to_counted(key: &[u8]) -> Option<Option<Slice>> {
    match key.get(5..)? {
        [] => Some(None),
        slice => codec::to_slice(slice).map(Some),
    }
}

/// True for the count row of a slice whose level this version does not know.
pub(super) fn is_newer_count(key: &[u8]) -> bool {
    key.get(5..).is_some_and(codec::is_newer_slice)
}

/// Least due and name of the run of an order row.
pub(super) fn to_ordered(key: &[u8]) -> Option<(Timestamp, RunName)> {
    let (due, rest) = key.get(5..)?.split_first_chunk::<8>()?;
    let name = from_utf8(rest.get(8..)?).ok()?;
    Some((
        Timestamp::from_ordered_bits(u64::from_be_bytes(*due)),
        RunName::new(name),
    ))
}

/// The place of a cancelled row.
pub(super) fn to_cancelled(key: &[u8]) -> Option<Cursor> {
    codec::to_place(key.get(5..)?)
}

/// The entry of an id row, a cancelled row or an effect row. `None`: unreadable.
pub(super) fn to_entry(key: &[u8], value: &[u8]) -> Option<ShardEntry> {
    match *key.first()? {
        ID => Some(ShardEntry::Id(
            name_of_id(key).into(),
            codec::to_place(value)?,
        )),
        CANCELLED => Some(ShardEntry::Changed(
            to_cancelled(key)?,
            codec::to_change(value)?,
        )),
        EFFECT => codec::to_effect(to_request(key)?, value).map(ShardEntry::Effect),
        _ => None,
    }
}

/// The key of the bytes row, if this is the key of a run row.
pub(super) fn bytes_of_run(key: &[u8]) -> Option<Vec<u8>> {
    let (&[RUN, ref number @ ..], rest) = key.split_first_chunk::<5>()? else {
        return None;
    };
    let (slice, name) = rest.split_at_checked(9)?;
    Some([&[BYTES], slice, number, name].concat())
}
