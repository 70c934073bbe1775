//! etf1's kafka-message-scheduler: its README ("How does it work ?") and its `clientlib`.
//!
//! | header | there | here |
//! |---|---|---|
//! | `scheduler-epoch` | "the date of the schedule in epoch (number of second since 1970)" | whole seconds since 1970 |
//! | `scheduler-target-topic` | "the topic to send the message to" | as `postdate-to`; without it, the route's default |
//! | `scheduler-target-key` | "the key to use when sending the triggered schedule" | the key at the target, of any bytes, null and empty included; without it the record's own |
//!
//! **The record's key is the schedule's id**: a later schedule with the same key replaces the
//! waiting one, and "a tombstone message (nil payload)" deletes it. Here, a record with a null
//! payload cancels the waiting message of its key if it has one of these headers, or no header of a
//! dialect or of Postdate. The scheduler writes tombstones of the first kind,
//! `clientlib.DeleteSchedule` those of the second.

use super::{DialectRequest, SECONDS_AT, ScheduleRequest, missing_due};
use crate::model::headers::header::Headers;
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::message::Record;
use crate::model::parsing::rejection::Rejection;

pub(super) const HEADERS: [&str; 3] = [
    "scheduler-epoch",
    "scheduler-target-topic",
    "scheduler-target-key",
];
const EPOCH: usize = 0;
const TOPIC: usize = 1;
const KEY: usize = 2;

const TOMBSTONE: DialectRequest<'_> = DialectRequest::Cancel("a null payload with etf1's headers");

pub(super) fn read<'a>(
    headers: &HeaderLookup<'a>,
    record: &Record<'a>,
) -> Result<DialectRequest<'a>, Rejection> {
    if record.payload.is_none() {
        return Ok(TOMBSTONE);
    }
    headers.bytes(KEY)?;
    let delivery = SECONDS_AT
        .read(headers, EPOCH)?
        .ok_or_else(|| missing_due(headers, EPOCH))?;
    Ok(DialectRequest::Schedule(ScheduleRequest {
        target: headers.text(TOPIC)?,
        key_is_id: true,
        ..delivery
    }))
}

/// A tombstone without headers. Without a key it is an ordinary record.
pub(super) fn read_without_headers<'a>(record: &Record<'a>) -> Option<DialectRequest<'a>> {
    let is_tombstone = record.payload.is_none() && record.key.is_some_and(|key| !key.is_empty());
    is_tombstone.then_some(TOMBSTONE)
}

pub(super) fn key_on_delivery<'a>(key: Option<&'a [u8]>, headers: Headers<'a>) -> Option<&'a [u8]> {
    headers
        .iter()
        .find(|(name, _)| *name == HEADERS[KEY].as_bytes())
        .map_or(key, |(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, NOW, Row, check, check_records, delivered_key, record};
    use crate::model::message::Record;
    use crate::model::{Dialect, Reason};

    const TOPIC: &str = "scheduler-target-topic: audit";
    const KEY: &str = "scheduler-target-key: vid1";

    /// The README's example first.
    #[test]
    #[rustfmt::skip]
    fn a_schedule_is_in_seconds_and_its_key_is_its_id() {
        let epoch = format!("scheduler-epoch: {}", NOW / 1_000 + 60);
        let (epoch, due) = (epoch.as_str(), NOW + 60_000);
        check(Dialect::Etf1, &[
            Row(&[epoch, TOPIC, KEY, "customer-header: dummy"], Is::Keyed(due, "audit", "key")),
            Row(&["scheduler-epoch: 1600000000", TOPIC, KEY], Is::Keyed(1_600_000_000_000, "audit", "key")),
            Row(&[epoch, TOPIC, "scheduler-target-key"], Is::Keyed(due, "audit", "key")),
            Row(&[epoch, TOPIC, "scheduler-target-key: "], Is::Keyed(due, "audit", "key")),
            Row(&[epoch, TOPIC], Is::Keyed(due, "audit", "key")),
            Row(&["scheduler-epoch: 1893456000", TOPIC, KEY], Is::DeadLetter(Reason::DelayAboveMax)),
            Row(&["scheduler-epoch: 1700000060000", TOPIC], Is::DeadLetter(Reason::DelayAboveMax)),
            Row(&["scheduler-epoch: soon", TOPIC], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["scheduler-epoch: ", TOPIC], Is::DeadLetter(Reason::EmptyValue)),
            Row(&[TOPIC, KEY], Is::DeadLetter(Reason::MissingDue)),
            Row(&[epoch, "scheduler-target-topic: other"], Is::DeadLetter(Reason::TargetNotAllowed)),
            Row(&[epoch, "scheduler-target-topic: ..", KEY], Is::DeadLetter(Reason::InvalidTarget)),
            Row(&[epoch, KEY, KEY], Is::DeadLetter(Reason::DuplicateHeader)),
            Row(&["scheduler-key: vid1-online", "scheduler-timestamp: 1607918336"], Is::Relayed),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn a_tombstone_cancels_the_waiting_message_of_its_key() {
        const EPOCH: &str = "scheduler-epoch: 1893456000";
        let dead = |lines: &'static [&'static str], key: Option<&'static [u8]>| (lines, Record { key, payload: None, ..record(Some(NOW), &[]) });
        check_records(Dialect::Etf1, &[
            (dead(&[], Some(b"vid1-online")), Is::Cancelled("vid1-online")),
            (dead(&["own: 1"], Some(b"vid1-online")), Is::Cancelled("vid1-online")),
            (dead(&[EPOCH, TOPIC, KEY], Some(b"vid1-online")), Is::Cancelled("vid1-online")),
            (dead(&["scheduler-epoch: x"], Some(b"vid1-online")), Is::Cancelled("vid1-online")),
            (dead(&["postdate-id: other", TOPIC], Some(b"vid1-online")), Is::Cancelled("other")),
            (dead(&["postdate-op: schedule", TOPIC], Some(b"vid1-online")), Is::DeadLetter(Reason::MissingDue)),
            (dead(&["postdate-after: 5"], Some(b"vid1-online")), Is::After(5)),
            (dead(&["postdate-to: audit"], Some(b"vid1-online")), Is::Relayed),
            (dead(&[], Some(b"a b")), Is::DeadLetter(Reason::InvalidId)),
            (dead(&[TOPIC], Some(b"a b")), Is::DeadLetter(Reason::InvalidId)),
            (dead(&[TOPIC], None), Is::DeadLetter(Reason::CancelWithoutId)),
            (dead(&[TOPIC], Some(b"")), Is::DeadLetter(Reason::CancelWithoutId)),
            (dead(&[], None), Is::Relayed),
            (dead(&[], Some(b"")), Is::Relayed),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn a_key_that_is_not_a_valid_id_is_rejected() {
        let lines: &[&str] = &["scheduler-epoch: 1700000060", TOPIC];
        let keyed = |key: Option<&'static [u8]>| (lines, Record { key, ..record(Some(NOW), &[]) });
        let other: &[&str] = &["scheduler-epoch: 1700000060", TOPIC, "postdate-id: own"];
        check_records(Dialect::Etf1, &[
            (keyed(None), Is::AtTo(1_700_000_060_000, "audit")),
            (keyed(Some(b"")), Is::AtTo(1_700_000_060_000, "audit")),
            (keyed(Some(b"video 1")), Is::DeadLetter(Reason::InvalidId)),
            (keyed(Some(b"\xff")), Is::DeadLetter(Reason::InvalidId)),
            (keyed(Some(&[b'x'; 129])), Is::DeadLetter(Reason::InvalidId)),
            ((other, Record { key: Some(b"video 1"), ..record(Some(NOW), &[]) }), Is::Keyed(1_700_000_060_000, "audit", "own")),
        ]);
    }

    #[test]
    fn the_delivered_key_is_the_target_key_of_the_schedule() {
        let key = |lines: &[&str]| delivered_key(Dialect::Etf1, lines);
        assert_eq!(key(&[TOPIC, KEY]), Some(b"vid1".to_vec()));
        assert_eq!(key(&["scheduler-target-key: "]), Some(Vec::new()));
        assert_eq!(key(&["scheduler-target-key"]), None);
        assert_eq!(key(&[TOPIC]), Some(b"key".to_vec()));
    }
}
