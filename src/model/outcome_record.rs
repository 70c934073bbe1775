//! The outcome record of a message: its fate, as a small JSON record for an audit.

use crate::model::answer::{AnswerState, DUPLICATE, Effect, Request};
use crate::model::headers::origin::{OriginFormat, is_id_of_offset, offset_of_id};
use crate::model::protocol::progress::Cursor;
use crate::model::shard::Offset;
use crate::model::time::Timestamp;
use serde::{Serialize, Serializer};

/// The fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It waits for its due time.
    Scheduled,
    /// It has another due time.
    Rescheduled,
    /// A later message has taken its place.
    Replaced,
    Cancelled,
    /// An earlier message keeps the id.
    Dropped,
    /// The target has acknowledged it.
    Delivered,
    /// It failed, and waits for the next attempt.
    Retried,
    DeadLettered,
    /// Its `postdate-until` had passed.
    Expired,
}

impl Fate {
    /// The names are never changed or removed.
    fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Rescheduled => "rescheduled",
            Self::Replaced => "replaced",
            Self::Cancelled => "cancelled",
            Self::Dropped => "dropped",
            Self::Delivered => "delivered",
            Self::Retried => "retried",
            Self::DeadLettered => "dead_lettered",
            Self::Expired => "expired",
        }
    }
}

impl Serialize for Fate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The fields of the record. They are never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OutcomeRecord {
    pub(crate) outcome: Fate,
    pub(crate) code: Option<&'static str>,
    /// The message. It is also the key of the record.
    pub(crate) origin: String,
    pub(crate) id: Option<String>,
    pub(crate) partition: i32,
    /// In milliseconds since 1970. `None`: the message has no due time.
    pub(crate) due: Option<i64>,
    /// The number of failed attempts of a message that is retried.
    pub(crate) attempt: Option<u32>,
    /// The record that changed the message, or the message that keeps the id.
    pub(crate) by: Option<String>,
}

impl OutcomeRecord {
    pub(crate) fn new(
        outcome: Fate,
        origin: String,
        id: Option<&str>,
        partition: i32,
        due: Option<Timestamp>,
    ) -> Self {
        let due = due.filter(|due| !due.is_at_once());
        Self {
            outcome,
            code: None,
            origin,
            id: id.filter(|id| !is_id_of_offset(id)).map(str::to_owned),
            partition,
            due: due.map(Timestamp::as_millis),
            attempt: None,
            by: None,
        }
    }

    /// Another id than that of any other record with the same origin.
    pub(crate) fn record_id(&self) -> String {
        let mut id = format!("{}/outcome/{}", self.origin, self.outcome.name());
        if let Some(attempt) = self.attempt {
            id.push_str(&format!("/{attempt}"));
        }
        if let Some(by) = &self.by {
            id.push('/');
            id.push_str(by);
        }
        id
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record of texts and numbers is valid JSON")
    }
}

/// The records of the request at this offset. A request that changes no message has none, and a refused
/// record becomes a dead letter, which has its own.
pub(crate) fn records_of_request(
    request: &AnswerState<'_>,
    effect: Effect,
    offset: Offset,
    partition: i32,
    origins: &OriginFormat,
) -> [Option<OutcomeRecord>; 2] {
    let origin = |offset| {
        let mut text = String::new();
        origins.append_origin(offset, &mut text);
        text
    };
    let first = request.id.and_then(offset_of_id);
    let origin_of = |place: Cursor| origin(first.unwrap_or(place.offset));
    let new =
        |fate, due| OutcomeRecord::new(fate, origin(offset), request.id, partition, Some(due));
    let changed = |fate, place: Cursor, due| OutcomeRecord {
        by: Some(origin(offset)),
        ..OutcomeRecord::new(fate, origin_of(place), request.id, partition, Some(due))
    };
    match (request.request, effect) {
        (Request::ScheduleFirst { due }, Effect::Kept(place)) => {
            let dropped = OutcomeRecord {
                code: Some(DUPLICATE),
                by: Some(origin_of(place)),
                ..new(Fate::Dropped, due)
            };
            [Some(dropped), None]
        }
        (Request::Schedule { due } | Request::ScheduleFirst { due }, effect) => {
            let replaced = match effect {
                Effect::Changed(place) => Some(changed(Fate::Replaced, place, place.due)),
                _ => None,
            };
            [Some(new(Fate::Scheduled, due)), replaced]
        }
        (Request::Cancel, Effect::Changed(place)) => {
            [Some(changed(Fate::Cancelled, place, place.due)), None]
        }
        (Request::Reschedule { due }, Effect::Changed(place)) => {
            [Some(changed(Fate::Rescheduled, place, due)), None]
        }
        (Request::Cancel | Request::Reschedule { .. } | Request::Refused(_), _) => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::parsing::dead_letter_reason::DeadLetterReason;
    use crate::model::{Partition, ShardId};

    fn records_of(id: &str, request: Request, effect: Effect) -> Vec<serde_json::Value> {
        let shard = ShardId::new("r", Partition::new("in", 3));
        let state = AnswerState {
            request,
            request_id: None,
            id: Some(id),
        };
        let origins = OriginFormat::new("d", &shard);
        let records = records_of_request(&state, effect, Offset(9), 3, &origins);
        let parse = |it: &OutcomeRecord| serde_json::from_slice(&it.to_json()).unwrap();
        records.iter().flatten().map(parse).collect()
    }

    fn record(outcome: &str, offset: u64, due: i64, by: Option<u64>) -> serde_json::Value {
        let origin = |offset| format!("d/r/in/3/{offset}");
        serde_json::json!({
            "outcome": outcome, "code": null, "origin": origin(offset), "id": "a",
            "partition": 3, "due": due, "attempt": null, "by": by.map(origin),
        })
    }

    const DUE: Timestamp = Timestamp::from_millis(90);

    fn named() -> Cursor {
        Cursor::new(Timestamp::from_millis(70), Offset(5))
    }

    #[test]
    fn a_schedule_has_a_record_and_one_for_the_message_that_it_replaces() {
        let request = Request::Schedule { due: DUE };
        let scheduled = record("scheduled", 9, 90, None);
        for effect in [Effect::None, Effect::TooLate(named())] {
            assert_eq!(
                records_of("a", request, effect),
                std::slice::from_ref(&scheduled)
            );
        }
        let replaced = record("replaced", 5, 70, Some(9));
        assert_eq!(
            records_of("a", request, Effect::Changed(named())),
            [scheduled, replaced]
        );
    }

    #[test]
    fn a_message_that_is_dropped_names_the_one_that_keeps_its_id() {
        let request = Request::ScheduleFirst { due: DUE };
        let mut dropped = record("dropped", 9, 90, Some(5));
        dropped["code"] = "duplicate".into();
        assert_eq!(records_of("a", request, Effect::Kept(named())), [dropped]);
        let scheduled = record("scheduled", 9, 90, None);
        assert_eq!(records_of("a", request, Effect::None), [scheduled]);
    }

    #[test]
    fn only_a_request_that_changes_a_message_has_a_record() {
        let reschedule = Request::Reschedule { due: DUE };
        let changed = Effect::Changed(named());
        let cancelled = record("cancelled", 5, 70, Some(9));
        assert_eq!(records_of("a", Request::Cancel, changed), [cancelled]);
        let rescheduled = record("rescheduled", 5, 90, Some(9));
        assert_eq!(records_of("a", reschedule, changed), [rescheduled]);
        let refused = Request::Refused(DeadLetterReason::InvalidAt);
        for (request, effect) in [
            (Request::Cancel, Effect::None),
            (Request::Cancel, Effect::TooLate(named())),
            (reschedule, Effect::Kept(named())),
            (reschedule, Effect::TooLate(named())),
            (refused, Effect::None),
        ] {
            assert!(records_of("a", request, effect).is_empty(), "{request:?}");
        }
    }

    #[test]
    fn a_message_without_id_is_named_by_its_first_record() {
        let place = Cursor::new(Timestamp::from_millis(70), Offset(7));
        let mut cancelled = record("cancelled", 5, 70, Some(9));
        cancelled["id"] = serde_json::Value::Null;
        let records = records_of("/5", Request::Cancel, Effect::Changed(place));
        assert_eq!(records, [cancelled]);
    }

    #[test]
    fn the_records_of_one_message_have_different_ids() {
        let due = Some(DUE);
        let delivered = OutcomeRecord::new(Fate::Delivered, "d/r/in/3/5".to_owned(), None, 3, due);
        let retried = |attempt| OutcomeRecord {
            outcome: Fate::Retried,
            attempt: Some(attempt),
            ..delivered.clone()
        };
        let moved = |by: &str| OutcomeRecord {
            outcome: Fate::Rescheduled,
            by: Some(by.to_owned()),
            ..delivered.clone()
        };
        let records = [
            delivered.clone(),
            retried(1),
            retried(2),
            moved("d/r/in/3/8"),
            moved("d/r/in/3/9"),
        ];
        let ids = records.map(|it| it.record_id());
        assert_eq!(
            ids,
            [
                "d/r/in/3/5/outcome/delivered",
                "d/r/in/3/5/outcome/retried/1",
                "d/r/in/3/5/outcome/retried/2",
                "d/r/in/3/5/outcome/rescheduled/d/r/in/3/8",
                "d/r/in/3/5/outcome/rescheduled/d/r/in/3/9",
            ]
        );
    }

    #[test]
    fn a_message_that_is_due_at_once_has_no_due_time() {
        let due = Timestamp::AT_ONCE;
        let records = records_of("a", Request::Schedule { due }, Effect::None);
        assert_eq!(records[0]["due"], serde_json::Value::Null);
    }
}
