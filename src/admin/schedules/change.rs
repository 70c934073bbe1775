//! A change of a schedule by an operator: its definition is written again, with other headers.

use super::{Schedule, ScheduleState};
use crate::admin::changes::{Change, ChangeKind};
use crate::limit::RECORD_BYTES_MAX;
use crate::model::header::push_header;
use crate::model::header_name::ScheduleHeader;
use crate::model::{Headers, Offset, ParsedDefinition, Record, Timestamp, parse_definition};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScheduleAction {
    Pause,
    Resume,
    /// One more occurrence, now.
    Fire,
}

/// The definition after a change. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScheduleReceipt {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// The offset of the new definition. Absent: the schedule had this state already, so nothing was written.
    pub(crate) offset: Option<u64>,
    pub(crate) state: ScheduleState,
}

/// A definition that was written again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrittenDefinition {
    pub(crate) offset: u64,
    /// Another record of the schedule that was written at the same time.
    pub(crate) other: Option<u64>,
}

impl WrittenDefinition {
    /// The problem of two changes at the same time: only the last record defines the schedule. Both may fire
    /// it.
    pub(crate) fn conflict(&self, action: ScheduleAction) -> Option<String> {
        let Self { offset, other } = self;
        let other = (*other)?;
        let fires = action == ScheduleAction::Fire;
        if other < *offset {
            let once_more = match fires {
                true => " Do not repeat this change: it is delivered",
                false => "",
            };
            return Some(format!(
                "the record at offset {other} was written at the same time, and the one of this change, at offset {offset}, has replaced it: send the other one again.{once_more}"
            ));
        }
        let text = format!(
            "the record at offset {other} was written at the same time, and has replaced the one of this change, at offset {offset}"
        );
        Some(text).filter(|_| !fires)
    }
}

impl ScheduleAction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Fire => "fire",
        }
    }

    /// In audit lines, which also name the pause of a route and the fire of a message.
    pub(crate) fn audit_name(self) -> &'static str {
        match self {
            Self::Pause => "pause-schedule",
            Self::Resume => "resume-schedule",
            Self::Fire => "fire-schedule",
        }
    }

    /// The record to write. `None`: the schedule has this state already. Fails with the reason if the service
    /// would reject the record.
    pub(crate) fn change(
        self,
        route: &str,
        schedule: &Schedule,
        now: Timestamp,
    ) -> Result<Option<Change>, String> {
        if let Some(error) = &schedule.error {
            return Err(format!("the definition is wrong: {error}"));
        }
        let record = schedule.record.as_ref().ok_or("the record is missing")?;
        let Some(headers) = self.headers(schedule, &schedule.as_record(record)) else {
            return Ok(None);
        };
        let changed = Record {
            offset: Offset::MAX,
            timestamp: Some(now),
            headers: Headers::from_block(&headers),
            ..schedule.as_record(record)
        };
        if let ParsedDefinition::Rejected(rejection) =
            parse_definition(&changed, Some(&schedule.id))
        {
            let (code, detail) = (rejection.reason.code(), rejection.detail);
            return Err(format!(
                "the service would reject the new definition ({code}): {detail}"
            ));
        }
        let bytes = changed.bytes();
        if bytes > RECORD_BYTES_MAX {
            return Err(format!(
                "the new definition would have {bytes} bytes, and at most {RECORD_BYTES_MAX} can be read"
            ));
        }
        Ok(Some(Change {
            route: route.to_owned(),
            topic: Some(schedule.topic.clone()),
            partition: Some(schedule.partition),
            offset: Some(schedule.offset),
            id: Some(schedule.id.clone()),
            kind: ChangeKind::Definition {
                payload: record.payload.clone(),
                headers,
                read_to: record.read_to,
            },
            ..Change::default()
        }))
    }

    /// The headers of the new definition. `None`: those of the old one have this effect already.
    fn headers(self, schedule: &Schedule, old: &Record<'_>) -> Option<Vec<u8>> {
        let parsed = parse_definition(old, Some(&schedule.id));
        let ParsedDefinition::Defined(definition) = parsed else {
            return None;
        };
        let is_paused = match self {
            Self::Pause => true,
            Self::Resume => false,
            Self::Fire => definition.is_paused,
        };
        if self != Self::Fire && is_paused == definition.is_paused {
            return None;
        }
        let mut headers = Vec::new();
        let is_set = |name: &[u8]| {
            let header = ScheduleHeader::from_name(name);
            // An old fire must not be repeated.
            matches!(header, Some(ScheduleHeader::Paused | ScheduleHeader::Fire))
        };
        for (name, value) in old.headers.iter().filter(|(name, _)| !is_set(name)) {
            push_header(&mut headers, name, value);
        }
        let has = |header: ScheduleHeader| old.headers.get(header.name()).is_some();
        // The occurrences before this record count, too. The first of them is no new anchor for an interval.
        let first = definition
            .recurrence
            .first_planned()
            .filter(|_| has(ScheduleHeader::Times) && !has(ScheduleHeader::From));
        let mut set = |header: ScheduleHeader, value: &str| {
            push_header(
                &mut headers,
                header.name().as_bytes(),
                Some(value.as_bytes()),
            );
        };
        if let Some(first) = first {
            set(ScheduleHeader::From, &first.to_rfc3339());
        }
        if is_paused {
            set(ScheduleHeader::Paused, "true");
        }
        if self == Self::Fire {
            set(ScheduleHeader::Fire, "true");
        }
        Some(headers)
    }

    /// The answer to a change. `offset` is that of the new record.
    pub(crate) fn receipt(self, schedule: Schedule, offset: Option<u64>) -> ScheduleReceipt {
        ScheduleReceipt {
            id: schedule.id,
            topic: schedule.topic,
            partition: schedule.partition,
            offset,
            state: match self {
                _ if offset.is_none() => schedule.state,
                Self::Pause => ScheduleState::Paused,
                Self::Resume => ScheduleState::Active,
                Self::Fire => schedule.state,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::schedules::DefinitionRecord;
    use crate::model::header::block_of_lines;
    use crate::model::{Definition, Watermark};

    /// 2027-01-31T09:00:00Z, a Sunday.
    const DEFINED: i64 = 1_801_386_000_000;
    const HOUR: i64 = 3_600_000;

    fn schedule(lines: &[&str]) -> Schedule {
        let record = DefinitionRecord {
            timestamp: Some(Timestamp::from_millis(DEFINED)),
            payload: b"template".to_vec(),
            headers: block_of_lines(lines),
            read_to: Watermark(9),
        };
        Schedule {
            id: "invoices".to_owned(),
            topic: "schedules".to_owned(),
            partition: 3,
            offset: 7,
            state: ScheduleState::Active,
            schedule: None,
            next_ms: None,
            next: None,
            error: None,
            record: Some(Box::new(record)),
        }
    }

    /// The headers of the record that is written hours later, and its meaning then.
    fn changed(
        action: ScheduleAction,
        lines: &[&str],
        hours: i64,
    ) -> Result<Option<(Vec<String>, Definition)>, String> {
        let now = Timestamp::from_millis(DEFINED + hours * HOUR);
        let schedule = schedule(lines);
        let change = action.change("reports", &schedule, now)?;
        let Some(change) = change else {
            return Ok(None);
        };
        assert_eq!(
            (change.partition, change.id.as_deref()),
            (Some(3), Some("invoices"))
        );
        let ChangeKind::Definition {
            headers, payload, ..
        } = change.kind
        else {
            panic!("{:?}", change.kind)
        };
        assert_eq!(payload, b"template");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let lines = Headers::from_block(&headers).iter();
        let lines = lines.map(|(name, value)| text(name) + ": " + &text(value.unwrap_or(b"null")));
        let lines = lines.collect();
        let record = Record {
            offset: Offset(8),
            timestamp: Some(now),
            key: None,
            payload: Some(&payload),
            headers: Headers::from_block(&headers),
        };
        match parse_definition(&record, Some("invoices")) {
            ParsedDefinition::Defined(definition) => Ok(Some((lines, definition))),
            other => panic!("{other:?}"),
        }
    }

    fn dues(definition: &Definition) -> Vec<i64> {
        let next = |after: &Timestamp| definition.recurrence.next_after(*after).map(|it| it.due);
        std::iter::successors(next(&Timestamp::AT_ONCE), next)
            .map(|due| (due.as_millis() - DEFINED) / 60_000)
            .take(4)
            .collect()
    }

    #[test]
    fn a_change_keeps_all_other_headers() {
        let lines = [
            "own: header",
            "postdate-paused: false",
            "postdate-cron: 0 9 * * *",
            "postdate-fire: true",
        ];
        let headers = |action| changed(action, &lines, 1).unwrap().unwrap().0;
        let kept = ["own: header", "postdate-cron: 0 9 * * *"].map(str::to_owned);
        let with = |line: &str| [&kept[..], &[line.to_owned()]].concat();
        assert_eq!(
            headers(ScheduleAction::Pause),
            with("postdate-paused: true")
        );
        assert_eq!(headers(ScheduleAction::Fire), with("postdate-fire: true"));
        assert!(
            changed(ScheduleAction::Resume, &lines, 1)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_fire_leaves_a_paused_schedule_paused() {
        let lines = ["postdate-every: 1h", "postdate-paused: true"];
        let (headers, definition) = changed(ScheduleAction::Fire, &lines, 1).unwrap().unwrap();
        let expected = [lines[0], lines[1], "postdate-fire: true"];
        assert_eq!(headers, expected);
        assert!(definition.is_paused);
        assert!(changed(ScheduleAction::Pause, &lines, 1).unwrap().is_none());
        let (headers, _) = changed(ScheduleAction::Resume, &lines, 1).unwrap().unwrap();
        assert_eq!(headers, ["postdate-every: 1h"]);
    }

    #[test]
    fn a_number_of_times_counts_from_the_first_definition() {
        let every = ["postdate-every: 7h", "postdate-times: 3"];
        let before = dues(&changed(ScheduleAction::Fire, &every, 0).unwrap().unwrap().1);
        let (headers, after) = changed(ScheduleAction::Fire, &every, 9).unwrap().unwrap();
        assert_eq!(before.len(), 4, "three and the fire");
        assert_eq!(dues(&after)[1..], before[3 - (dues(&after).len() - 2)..]);
        assert!(
            headers[2].starts_with("postdate-from: 2027-01-31T"),
            "{headers:?}"
        );
        // The bound is kept by further changes.
        let lines: Vec<&str> = headers.iter().map(String::as_str).collect();
        let (again, _) = changed(ScheduleAction::Pause, &lines, 9).unwrap().unwrap();
        assert_eq!(again[2], headers[2]);
    }

    #[test]
    fn a_schedule_that_is_over_fires_and_cannot_be_paused() {
        let over = ["postdate-every: 1h", "postdate-until: 2027-01-31T10:00:00Z"];
        let (_, definition) = changed(ScheduleAction::Fire, &over, 2).unwrap().unwrap();
        assert_eq!(dues(&definition), [120]);
        let refused = changed(ScheduleAction::Pause, &over, 2).unwrap_err();
        assert!(refused.contains("(never_due)"), "{refused}");
        let wrong = Schedule {
            error: Some("no hour".to_owned()),
            ..schedule(&[])
        };
        let now = Timestamp::from_millis(DEFINED);
        let refused = ScheduleAction::Fire.change("reports", &wrong, now);
        assert_eq!(refused.unwrap_err(), "the definition is wrong: no hour");
    }

    #[test]
    fn the_last_of_two_records_counts() {
        let conflict = |other, action| WrittenDefinition { offset: 9, other }.conflict(action);
        let has_text = |other, action, text: &str| {
            conflict(Some(other), action).is_some_and(|found| found.contains(text))
        };
        let (pause, fire) = (ScheduleAction::Pause, ScheduleAction::Fire);
        assert_eq!(conflict(None, pause), None);
        assert!(has_text(8, pause, "send the other one again"));
        assert!(has_text(10, pause, "has replaced the one of this change"));
        assert!(has_text(8, fire, "Do not repeat this change"));
        assert_eq!(conflict(Some(10), fire), None, "it is delivered");
    }
}
