//! Karafka Pro's scheduled messages: karafka.io/docs/Pro-Scheduled-Messages, and the envelope that
//! `Karafka::Pro::ScheduledMessages::Proxy` writes around a message.
//!
//! | header | there | here |
//! |---|---|---|
//! | `schedule_target_epoch` | "Unix time in seconds" | whole seconds since 1970 |
//! | `schedule_target_topic` | the topic it is dispatched to, required | as `postdate-to`; without it, the route's default |
//! | `schedule_target_key` | the key it is dispatched with | the key at the target, of any bytes |
//! | `schedule_source_type` | `schedule`, `cancel`, or `tombstone` after the dispatch | the latter two cancel the waiting message of the record's key |
//! | `schedule_schema_version` | `1.0.0`; a scheduler stops at a newer one | `1.0.0`; any other is rejected |
//! | `schedule_target_partition` | the partition it is dispatched to | rejected |
//! | `schedule_target_partition_key` | the key that selects its partition | rejected |
//!
//! **The envelope.** A record with a `schedule_source_type` is Karafka's envelope. Its key is the
//! unique id of the schedule, by which it can be replaced and cancelled. It is delivered with
//! `schedule_target_key`, or with a null key. A record without a `schedule_source_type` is not from
//! Karafka: its key is its own, unless it has a `schedule_target_key`.

use super::{DialectRequest, SECONDS_AT, ScheduleRequest, missing_due, reject_header, unsupported};
use crate::model::headers::header::Headers;
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::parsing::rejection::Rejection;

pub(super) const HEADERS: [&str; 7] = [
    "schedule_target_epoch",
    "schedule_target_topic",
    "schedule_target_key",
    "schedule_source_type",
    "schedule_schema_version",
    "schedule_target_partition",
    "schedule_target_partition_key",
];
const EPOCH: usize = 0;
const TOPIC: usize = 1;
const KEY: usize = 2;
const TYPE: usize = 3;
const VERSION: usize = 4;
const PARTITION: usize = 5;
const PARTITION_KEY: usize = 6;

pub(super) fn read<'a>(headers: &HeaderLookup<'a>) -> Result<DialectRequest<'a>, Rejection> {
    if let Some(version) = headers.text(VERSION)?
        && version != "1.0.0"
    {
        return Err(unsupported(
            HEADERS[VERSION],
            version,
            "only version 1.0.0 is supported",
        ));
    }
    let kind = headers.text(TYPE)?;
    match kind {
        None | Some("schedule") => {}
        Some("cancel" | "tombstone") => {
            return Ok(DialectRequest::Cancel(
                "a schedule_source_type of cancel or tombstone",
            ));
        }
        Some(other) => {
            return Err(unsupported(
                HEADERS[TYPE],
                other,
                "only schedule, cancel and tombstone are supported",
            ));
        }
    }
    for index in [PARTITION, PARTITION_KEY] {
        reject_header(
            headers,
            index,
            "only the key selects the partition of the target",
        )?;
    }
    headers.bytes(KEY)?;
    let delivery = SECONDS_AT
        .read(headers, EPOCH)?
        .ok_or_else(|| missing_due(headers, EPOCH))?;
    Ok(DialectRequest::Schedule(ScheduleRequest {
        target: headers.text(TOPIC)?,
        key_is_id: kind.is_some(),
        ..delivery
    }))
}

pub(super) fn key_on_delivery<'a>(key: Option<&'a [u8]>, headers: Headers<'a>) -> Option<&'a [u8]> {
    let find = |index: usize| {
        headers
            .iter()
            .find(|(name, _)| *name == HEADERS[index].as_bytes())
    };
    match (find(KEY), find(TYPE)) {
        (Some((_, key)), _) => key,
        (None, Some(_)) => None,
        (None, None) => key,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, NOW, Row, check, delivered_key};
    use crate::model::{Dialect, Reason};

    const VERSION: &str = "schedule_schema_version: 1.0.0";
    const SCHEDULE: &str = "schedule_source_type: schedule";
    const TOPIC: &str = "schedule_target_topic: audit";

    #[test]
    #[rustfmt::skip]
    fn an_envelope_is_unpacked_as_karafka_does() {
        let epoch = format!("schedule_target_epoch: {}", NOW / 1_000 + 60);
        let (epoch, due) = (epoch.as_str(), NOW + 60_000);
        check(Dialect::Karafka, &[
            Row(&[VERSION, epoch, SCHEDULE, TOPIC, "schedule_target_key: k"], Is::Keyed(due, "audit", "key")),
            Row(&[VERSION, epoch, SCHEDULE, TOPIC], Is::Keyed(due, "audit", "key")),
            Row(&[epoch, TOPIC], Is::AtTo(due, "audit")),
            Row(&[epoch], Is::At(due)),
            Row(&["schedule_target_epoch: 1600000000", TOPIC], Is::AtTo(1_600_000_000_000, "audit")),
            Row(&[VERSION, "schedule_source_type: cancel"], Is::Cancelled("key")),
            Row(&[VERSION, epoch, "schedule_source_type: tombstone", TOPIC, "schedule_target_partition: 1"], Is::Cancelled("key")),
            Row(&[epoch, "schedule_target_key", TOPIC], Is::AtTo(due, "audit")),
            Row(&[epoch, "schedule_target_key: ", TOPIC], Is::AtTo(due, "audit")),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn unsupported_parts_of_an_envelope_are_rejected() {
        let epoch = format!("schedule_target_epoch: {}", NOW / 1_000 + 60);
        let epoch = epoch.as_str();
        check(Dialect::Karafka, &[
            Row(&[epoch, "schedule_schema_version: 1.1.0"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[epoch, "schedule_source_type: message"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[epoch, "schedule_target_partition: 1"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[epoch, "schedule_target_partition_key: k"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[VERSION, SCHEDULE, TOPIC], Is::DeadLetter(Reason::MissingDue)),
            Row(&[epoch, "schedule_target_topic: other"], Is::DeadLetter(Reason::TargetNotAllowed)),
            Row(&[epoch, "schedule_target_topic"], Is::DeadLetter(Reason::EmptyValue)),
            Row(&[epoch, "schedule_target_key: a", "schedule_target_key: a"], Is::DeadLetter(Reason::DuplicateHeader)),
            Row(&["schedule_target_epoch: 1700000060000"], Is::DeadLetter(Reason::DelayAboveMax)),
            Row(&["schedule_target_epoch: 9223372036854776"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["schedule_target_epoch: 1700000060.5"], Is::DeadLetter(Reason::InvalidAt)),
        ]);
    }

    #[test]
    fn the_delivered_key_is_that_of_the_message_and_not_of_the_envelope() {
        let key = |lines: &[&str]| delivered_key(Dialect::Karafka, lines);
        assert_eq!(
            key(&[SCHEDULE, "schedule_target_key: k"]),
            Some(b"k".to_vec())
        );
        assert_eq!(key(&[SCHEDULE, "schedule_target_key: "]), Some(Vec::new()));
        assert_eq!(key(&[SCHEDULE, "schedule_target_key"]), None);
        assert_eq!(key(&[SCHEDULE]), None);
        assert_eq!(key(&["schedule_target_key: k"]), Some(b"k".to_vec()));
        assert_eq!(key(&[TOPIC]), Some(b"key".to_vec()));
    }
}
