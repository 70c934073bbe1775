//! What becomes of one record: an entry of its shard, a change of an id, or nothing.

use super::intake::Intake;
use crate::limit::CLOCK_SKEW_MAX;
use crate::metric;
use crate::model::{Admission, Body, Cursor, Record, Rules, Slice, Timestamp, Warning, admit};
use crate::store::{Change, ChangeKind};
use std::time::Duration;

/// Makes a record an entry of its shard, or nothing (a cancel, or what was delivered before the store was lost).
pub(super) fn enter(rules: &Rules, metric: &metric::Route, intake: &mut Intake, record: &Record<'_>, now: Timestamp) {
    let refusal;
    let (due, body) = match admit(record, &intake.origins, rules) {
        Admission::Cancel { id } => {
            intake.batch.change(Change { id: id.into(), kind: ChangeKind::Cancel });
            // What it cancels may be due at any moment.
            intake.hasten(Duration::ZERO);
            return;
        }
        Admission::Message { due, body, warning } => {
            if warning == Some(Warning::DueBefore2000) {
                metric.suspicious_due.increment(1);
            }
            (due, body)
        }
        Admission::Refused(refused_for) => {
            refusal = refused_for;
            (Timestamp::AT_ONCE, Body::refused(record, &refusal))
        }
    };
    if record.timestamp.is_some_and(|timestamp| timestamp > now.plus(CLOCK_SKEW_MAX)) {
        metric.timestamp_ahead.increment(1);
    }
    let place = Cursor::new(due, record.offset);
    if intake.delivered.covers(place) {
        return;
    }
    if intake.rebuilt.is_some_and(|rebuilt| rebuilt.covers(place)) {
        metric.possible_duplicates.increment(1);
    }
    if let Some(id) = body.id {
        intake.batch.change(Change { id: id.into(), kind: ChangeKind::Schedule(place) });
    }
    // So may what a message with an id replaces.
    intake.hasten(if body.id.is_some() { Duration::ZERO } else { due.since(now) });
    intake.batch.add(Slice::of(due, now), place, &body);
}
