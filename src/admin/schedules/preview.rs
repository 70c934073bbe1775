//! The next occurrences of a definition.

use crate::model::{Definition, Timestamp, zone_data_version};
use serde::{Deserialize, Serialize};
use std::iter;
use std::time::Duration;
use utoipa::ToSchema;

/// When a schedule is due. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Preview {
    /// The schedule in words.
    pub(crate) schedule: String,
    pub(crate) paused: bool,
    /// Rule for missed occurrences: latest, skip or all.
    pub(crate) missed: String,
    /// Missed occurrences that are later than this are never delivered.
    pub(crate) missed_within_ms: Option<u64>,
    /// The release of the time-zone data.
    pub(crate) zone_data: String,
    pub(crate) next: Vec<PreviewTime>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PreviewTime {
    pub(crate) due_ms: i64,
    pub(crate) due: String,
    /// The planned time, which is earlier than `due` by the schedule's place in the spread.
    pub(crate) planned: String,
    /// The planned time in the zone of the schedule. Absent for an interval.
    pub(crate) local: Option<String>,
    /// The clock skips the planned time, so the occurrence is at the end of the gap.
    pub(crate) moved: bool,
}

impl Preview {
    /// The first occurrences after a time, also if the schedule is paused.
    pub(crate) fn new(definition: &Definition, after: Timestamp, count: usize) -> Self {
        let recurrence = &definition.recurrence;
        let first = recurrence.next_after(after);
        let occurrences = iter::successors(first, |last| recurrence.next_after(last.due));
        let next = occurrences.take(count).map(|occurrence| {
            let local = recurrence.local_time(occurrence.planned);
            PreviewTime {
                due_ms: occurrence.due.as_millis(),
                due: occurrence.due.to_rfc3339(),
                planned: occurrence.planned.to_rfc3339(),
                moved: local.as_ref().is_some_and(|local| local.is_moved),
                local: local.map(|local| local.text),
            }
        });
        Self {
            schedule: recurrence.timing().to_string(),
            paused: definition.is_paused,
            missed: definition.missed.policy.name().to_owned(),
            missed_within_ms: definition.missed.within.map(millis),
            zone_data: zone_data_version().to_owned(),
            next: next.collect(),
        }
    }
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
