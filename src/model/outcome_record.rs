//! The outcome record of a message: its fate, as a small JSON record for an audit.

use crate::model::answer::{DUPLICATE, Effect, Request};
use crate::model::headers::origin::{OriginFormat, is_id_of_offset, offset_of_id};
use crate::model::message::RetryState;
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
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

/// A record that changes what waits. Its outcome records are made once the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutcomeDraft {
    /// The offset of the record.
    pub(crate) offset: Offset,
    pub(crate) id: Option<Box<str>>,
    pub(crate) kind: DraftKind,
    /// The number of its id change in the append, whose effect decides.
    pub(crate) change: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DraftKind {
    Request(Request),
    /// The message came back through the source. The record waits in its place.
    SentBack(SentBack),
    /// The record takes the place of the message, if that still waits.
    Copied(SentBack),
}

/// A message that came back through the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentBack {
    /// The first record of the message.
    origin: Box<str>,
    due: Timestamp,
    /// The number of failed attempts.
    attempt: u32,
    code: Option<&'static str>,
}

impl From<RetryState<'_>> for SentBack {
    fn from(retry: RetryState<'_>) -> Self {
        Self {
            origin: retry.origin.into(),
            due: retry.due,
            attempt: retry.attempt,
            code: retry.error.map(DeadLetterReason::code),
        }
    }
}

impl SentBack {
    /// The record at the origin `by` holds the message now.
    fn record(&self, id: Option<&str>, partition: i32, by: String) -> OutcomeRecord {
        let (fate, attempt, code) = match self.attempt {
            0 => (Fate::Rescheduled, None, None),
            failed => (Fate::Retried, Some(failed), self.code),
        };
        OutcomeRecord {
            attempt,
            code,
            by: Some(by),
            ..OutcomeRecord::new(fate, self.origin.to_string(), id, partition, Some(self.due))
        }
    }
}

impl OutcomeDraft {
    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let origin = match &self.kind {
            DraftKind::Request(_) => 0,
            DraftKind::SentBack(message) | DraftKind::Copied(message) => message.origin.len(),
        };
        origin + self.id.as_ref().map_or(0, |id| id.len())
    }

    /// The effect of a change on the message at the place `named`.
    pub(crate) fn effect(&self, named: Cursor, is_changed: bool) -> Effect {
        match self.kind {
            _ if is_changed => Effect::Changed(named),
            DraftKind::Request(request) if request.keeps(named) => Effect::Kept(named),
            _ => Effect::TooLate(named),
        }
    }

    /// The outcome records, if the change had this effect.
    pub(crate) fn records(
        &self,
        effect: Effect,
        partition: i32,
        origins: &OriginFormat,
    ) -> [Option<OutcomeRecord>; 2] {
        let id = self.id.as_deref();
        let sent_back = match &self.kind {
            DraftKind::Request(request) => {
                return records_of_request(*request, id, effect, self.offset, partition, origins);
            }
            // The message was delivered or cancelled before, and the store has dropped the copy.
            DraftKind::Copied(_) if !matches!(effect, Effect::Changed(_)) => return [None, None],
            DraftKind::SentBack(message) | DraftKind::Copied(message) => message,
        };
        let by = origin_of(self.offset, origins);
        [Some(sent_back.record(id, partition, by)), None]
    }
}

fn origin_of(offset: Offset, origins: &OriginFormat) -> String {
    let mut text = String::new();
    origins.append_origin(offset, &mut text);
    text
}

/// The records of the request at this offset. A request that changes no message has none. A refused record becomes
/// a dead letter, and a message without a delay is delivered at once: these ends have their own.
pub(crate) fn records_of_request(
    request: Request,
    id: Option<&str>,
    effect: Effect,
    offset: Offset,
    partition: i32,
    origins: &OriginFormat,
) -> [Option<OutcomeRecord>; 2] {
    let origin = |offset| origin_of(offset, origins);
    let first = id.and_then(offset_of_id);
    let named = |place: Cursor| origin(first.unwrap_or(place.offset));
    let new = |fate, due| OutcomeRecord::new(fate, origin(offset), id, partition, Some(due));
    let changed = |fate, place: Cursor, due| OutcomeRecord {
        by: Some(origin(offset)),
        ..OutcomeRecord::new(fate, named(place), id, partition, Some(due))
    };
    match (request, effect) {
        (Request::ScheduleFirst { due }, Effect::Kept(place)) => {
            let dropped = OutcomeRecord {
                code: Some(DUPLICATE),
                by: Some(named(place)),
                ..new(Fate::Dropped, due)
            };
            [Some(dropped), None]
        }
        (Request::Schedule { due } | Request::ScheduleFirst { due }, effect) => {
            let scheduled = (!due.is_at_once()).then(|| new(Fate::Scheduled, due));
            let replaced = match effect {
                Effect::Changed(place) => Some(changed(Fate::Replaced, place, place.due)),
                _ => None,
            };
            [scheduled, replaced]
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
    use crate::model::{Partition, ShardId};

    /// The records of a record at offset 9.
    fn records_of(id: &str, request: Request, effect: Effect) -> Vec<serde_json::Value> {
        records_of_kind(id, DraftKind::Request(request), effect)
    }

    fn records_of_kind(id: &str, kind: DraftKind, effect: Effect) -> Vec<serde_json::Value> {
        let shard = ShardId::new("r", Partition::new("in", 3));
        let origins = OriginFormat::new("d", &shard);
        let draft = OutcomeDraft {
            offset: Offset(9),
            id: Some(id.into()),
            kind,
            change: None,
        };
        let records = draft.records(effect, 3, &origins);
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
    fn a_message_without_a_delay_is_not_scheduled_and_may_replace_another_one() {
        let request = Request::Schedule {
            due: Timestamp::AT_ONCE,
        };
        assert!(records_of("a", request, Effect::None).is_empty());
        let replaced = record("replaced", 5, 70, Some(9));
        assert_eq!(
            records_of("a", request, Effect::Changed(named())),
            [replaced]
        );
    }

    fn sent_back(attempt: u32, error: Option<DeadLetterReason>) -> SentBack {
        let origin = "d/r/in/3/2";
        let due = DUE;
        SentBack::from(RetryState {
            attempt,
            origin,
            due,
            error,
        })
    }

    #[test]
    fn a_message_that_comes_back_keeps_its_origin_and_names_the_record_that_holds_it() {
        let failed = sent_back(2, Some(DeadLetterReason::TimedOut));
        let mut retried = record("retried", 2, 90, Some(9));
        retried["code"] = "timed_out".into();
        retried["attempt"] = 2.into();
        let records = records_of_kind("a", DraftKind::SentBack(failed), Effect::None);
        assert_eq!(records, [retried]);
        let moved = record("rescheduled", 2, 90, Some(9));
        let records = records_of_kind("a", DraftKind::SentBack(sent_back(0, None)), Effect::None);
        assert_eq!(records, [moved]);
    }

    #[test]
    fn a_copy_has_a_record_only_if_it_takes_the_place_of_its_message() {
        let copy = || DraftKind::Copied(sent_back(0, None));
        for effect in [Effect::None, Effect::TooLate(named())] {
            assert!(records_of_kind("a", copy(), effect).is_empty());
        }
        let moved = record("rescheduled", 2, 90, Some(9));
        assert_eq!(
            records_of_kind("a", copy(), Effect::Changed(named())),
            [moved]
        );
    }

    #[test]
    fn a_change_that_leaves_the_message_as_it_is_was_too_late_or_keeps_it() {
        let effect = |request, is_changed| {
            let draft = OutcomeDraft {
                offset: Offset(9),
                id: None,
                kind: DraftKind::Request(request),
                change: Some(0),
            };
            draft.effect(named(), is_changed)
        };
        assert_eq!(effect(Request::Cancel, true), Effect::Changed(named()));
        assert_eq!(effect(Request::Cancel, false), Effect::TooLate(named()));
        let first = Request::ScheduleFirst { due: DUE };
        assert_eq!(effect(first, false), Effect::Kept(named()));
    }
}
