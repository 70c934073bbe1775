//! The answer to a request: what became of a schedule, a cancel or a reschedule, as a JSON record.

use crate::model::headers::origin::{OriginFormat, is_id_of_offset, offset_of_id};
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
use crate::model::protocol::progress::Cursor;
use crate::model::shard::Offset;
use crate::model::time::Timestamp;
use serde::Serialize;

/// The stored part of an answer. Its outcome depends on the store, so the claim adds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerState<'a> {
    pub(crate) request: Request,
    /// `None`: the origin of the request.
    pub(crate) request_id: Option<&'a str>,
    /// The id of the message that the request names.
    pub(crate) id: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Schedule {
        due: Timestamp,
    },
    /// A schedule that keeps the message that waits under its id.
    ScheduleFirst {
        due: Timestamp,
    },
    Cancel,
    /// The message gets this due time.
    Reschedule {
        due: Timestamp,
    },
    Refused(DeadLetterReason),
}

impl Request {
    /// True if the request leaves the message at this place as it is.
    pub(crate) fn keeps(self, place: Cursor) -> bool {
        match self {
            Self::ScheduleFirst { .. } => true,
            Self::Reschedule { due } => due <= place.due,
            _ => false,
        }
    }
}

/// The effect of a request on the message that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// No message waited under the id.
    None,
    /// The message was cancelled, or gets the due time of the request.
    Changed(Cursor),
    /// The request leaves the message as it is: see [`Request::keeps`].
    Kept(Cursor),
    /// The message was claimed already.
    TooLate(Cursor),
}

/// The code of a refused schedule: an earlier message waits under its id.
pub(super) const DUPLICATE: &str = "duplicate";
/// The code of a refused reschedule: its due time is not later than that of the message.
const NOT_LATER: &str = "not_later";

/// The fields of the record. They are never renamed or removed.
#[derive(Serialize)]
struct Answer<'a> {
    outcome: &'static str,
    code: Option<&'static str>,
    request_id: &'a str,
    request_origin: &'a str,
    id: Option<&'a str>,
    /// The message that waits, was cancelled or rescheduled, or was too late for it.
    origin: Option<String>,
    partition: i32,
    due: Option<i64>,
    replaced_origin: Option<String>,
    /// The message that a schedule would have replaced, had it not been too late.
    late_for: Option<String>,
}

impl AnswerState<'_> {
    /// The code of the outcome.
    pub(crate) fn outcome(&self, effect: Effect) -> &'static str {
        match (self.request, effect) {
            (Request::Refused(_), _) | (_, Effect::Kept(_)) => "refused",
            (Request::Schedule { .. }, Effect::Changed(_)) => "replaced",
            (Request::Schedule { .. } | Request::ScheduleFirst { .. }, _) => "scheduled",
            (_, Effect::None) => "not_found",
            (Request::Cancel, Effect::Changed(_)) => "cancelled",
            (Request::Reschedule { .. }, Effect::Changed(_)) => "rescheduled",
            (_, Effect::TooLate(_)) => "too_late",
        }
    }

    /// Appends the payload of the answer to the request at `offset`.
    pub(crate) fn append_json(
        &self,
        effect: Effect,
        offset: Offset,
        partition: i32,
        origins: &OriginFormat,
        json: &mut Vec<u8>,
    ) {
        let origin = |offset| {
            let mut text = String::new();
            origins.append_origin(offset, &mut text);
            text
        };
        let request_origin = origin(offset);
        let named = match effect {
            Effect::None => None,
            Effect::Changed(place) | Effect::Kept(place) | Effect::TooLate(place) => Some(place),
        };
        // A message without an id is named by its first record, also after a retry or a reschedule.
        let first = self.id.and_then(offset_of_id);
        let named_origin = || named.map(|place| origin(first.unwrap_or(place.offset)));
        let mut answer = Answer {
            outcome: self.outcome(effect),
            code: None,
            request_id: self.request_id.unwrap_or(&request_origin),
            request_origin: &request_origin,
            id: self.id.filter(|id| !is_id_of_offset(id)),
            origin: None,
            partition,
            due: None,
            replaced_origin: None,
            late_for: None,
        };
        let due = match self.request {
            Request::Refused(reason) => {
                answer.code = Some(reason.code());
                None
            }
            Request::Cancel => {
                answer.origin = named_origin();
                named.map(|place| place.due)
            }
            Request::Reschedule { due } => {
                answer.origin = named_origin();
                match effect {
                    Effect::Changed(_) => Some(due),
                    Effect::Kept(place) => {
                        answer.code = Some(NOT_LATER);
                        Some(place.due)
                    }
                    _ => named.map(|place| place.due),
                }
            }
            Request::ScheduleFirst { .. } if named.is_some() => {
                answer.code = Some(DUPLICATE);
                answer.origin = named_origin();
                named.map(|place| place.due)
            }
            Request::Schedule { due } | Request::ScheduleFirst { due } => {
                answer.origin = Some(request_origin.clone());
                match effect {
                    Effect::Changed(_) => answer.replaced_origin = named_origin(),
                    _ => answer.late_for = named_origin(),
                }
                Some(due)
            }
        };
        answer.due = due
            .filter(|due| !due.is_at_once())
            .map(Timestamp::as_millis);
        let _infallible = serde_json::to_writer(json, &answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Partition, ShardId};

    fn json(request: Request, effect: Effect) -> serde_json::Value {
        json_of("a", request, effect)
    }

    fn json_of(id: &str, request: Request, effect: Effect) -> serde_json::Value {
        let shard = ShardId::new("r", Partition::new("in", 3));
        let state = AnswerState {
            request,
            request_id: None,
            id: Some(id),
        };
        let mut json = Vec::new();
        state.append_json(
            effect,
            Offset(9),
            3,
            &OriginFormat::new("d", &shard),
            &mut json,
        );
        serde_json::from_slice(&json).unwrap()
    }

    /// The expected answer, with the offsets of its message, the replaced one, and one that was late.
    fn answer(
        outcome: &str,
        [origin, replaced, late]: [Option<u64>; 3],
        due: Option<i64>,
    ) -> serde_json::Value {
        let text = |offset: Option<u64>| offset.map(|offset| format!("d/r/in/3/{offset}"));
        serde_json::json!({
            "outcome": outcome, "code": null, "id": "a", "partition": 3, "due": due,
            "request_id": "d/r/in/3/9", "request_origin": "d/r/in/3/9",
            "origin": text(origin), "replaced_origin": text(replaced), "late_for": text(late),
        })
    }

    #[test]
    fn the_answer_to_a_schedule_names_both_messages() {
        let named = Cursor::new(Timestamp::from_millis(70), Offset(5));
        let due = Timestamp::from_millis(90);
        let schedule = Request::Schedule { due };
        let origins = |replaced, late| [Some(9), replaced, late];
        assert_eq!(
            json(schedule, Effect::None),
            answer("scheduled", origins(None, None), Some(90))
        );
        assert_eq!(
            json(schedule, Effect::Changed(named)),
            answer("replaced", origins(Some(5), None), Some(90))
        );
        assert_eq!(
            json(schedule, Effect::TooLate(named)),
            answer("scheduled", origins(None, Some(5)), Some(90))
        );
        let due = Timestamp::AT_ONCE;
        assert_eq!(
            json(Request::Schedule { due }, Effect::None),
            answer("scheduled", origins(None, None), None)
        );
    }

    #[test]
    fn the_answer_to_a_cancel_names_the_message() {
        let named = Cursor::new(Timestamp::from_millis(70), Offset(5));
        let origins = [Some(5), None, None];
        assert_eq!(
            json(Request::Cancel, Effect::None),
            answer("not_found", [None; 3], None)
        );
        assert_eq!(
            json(Request::Cancel, Effect::Changed(named)),
            answer("cancelled", origins, Some(70))
        );
        assert_eq!(
            json(Request::Cancel, Effect::TooLate(named)),
            answer("too_late", origins, Some(70))
        );
    }

    #[test]
    fn the_answer_names_a_message_without_id_by_its_first_record() {
        let named = Cursor::new(Timestamp::from_millis(70), Offset(7));
        let mut expected = answer("cancelled", [Some(5), None, None], Some(70));
        expected["id"] = serde_json::Value::Null;
        let json = json_of("/5", Request::Cancel, Effect::Changed(named));
        assert_eq!(json, expected);
    }

    #[test]
    fn the_answer_to_a_reschedule_has_the_due_time_of_the_message() {
        let named = Cursor::new(Timestamp::from_millis(70), Offset(5));
        let due = Timestamp::from_millis(90);
        let later = Request::Reschedule { due };
        let origins = [Some(5), None, None];
        assert_eq!(
            json(later, Effect::None),
            answer("not_found", [None; 3], None)
        );
        assert_eq!(
            json(later, Effect::Changed(named)),
            answer("rescheduled", origins, Some(90))
        );
        assert_eq!(
            json(later, Effect::TooLate(named)),
            answer("too_late", origins, Some(70))
        );
        let mut refused = answer("refused", origins, Some(70));
        refused["code"] = "not_later".into();
        assert_eq!(json(later, Effect::Kept(named)), refused);
        let first = Request::ScheduleFirst { due };
        refused["code"] = "duplicate".into();
        assert_eq!(json(first, Effect::Kept(named)), refused);
        assert_eq!(
            json(first, Effect::None),
            answer("scheduled", [Some(9), None, None], Some(90))
        );
        assert!(first.keeps(named) && !later.keeps(named));
        assert!(Request::Reschedule { due: named.due }.keeps(named));
    }

    #[test]
    fn the_answer_to_a_dead_letter_has_its_code() {
        let refused = Request::Refused(DeadLetterReason::InvalidAt);
        let mut expected = answer("refused", [None; 3], None);
        expected["code"] = "invalid_at".into();
        assert_eq!(json(refused, Effect::None), expected);
    }
}
