//! The outcome of a record that changes a waiting message, as far as the store knows it.

use super::{PlaceChange, StoreQuery};
use crate::model::{Cursor, Offset, ShardId, Timestamp};
use crate::store::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A message, and the record that was written to change it, to the same partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeQuery {
    pub(crate) shard: ShardId,
    pub(crate) place: Cursor,
    pub(crate) record: Offset,
    pub(crate) change: AskedChange,
}

/// The content of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AskedChange {
    Cancel,
    Reschedule(Timestamp),
    /// A copy with this due time, which takes the place of the message.
    Copy(Timestamp),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ChangeOutcome {
    /// The record is in the source and was not read yet.
    #[default]
    Pending,
    Cancelled,
    /// The message has the new due time.
    Rescheduled,
    /// The change has no effect: the message was being sent, or an earlier record has cancelled it. Asked
    /// later: or a later change has replaced this one.
    TooLate,
    /// The due time that the message had before the change, or that of its copy, has passed. The store
    /// does not know any more whether the change was in time.
    Passed,
}

/// Reads the outcome.
pub(super) async fn change_outcome(
    query: &dyn StoreQuery,
    change: &ChangeQuery,
) -> Result<ChangeOutcome, Error> {
    let state = async || {
        let states = query.states(std::slice::from_ref(&change.shard)).await?;
        Ok::<_, Error>(states.into_iter().next().flatten())
    };
    let Some(before) = state().await? else {
        return Ok(ChangeOutcome::Pending);
    };
    if !before.watermark.covers(change.record) {
        return Ok(ChangeOutcome::Pending);
    }
    let copy = match change.change {
        AskedChange::Copy(due) => Some(Cursor::new(due, change.record)),
        AskedChange::Cancel | AskedChange::Reschedule(_) => None,
    };
    let places = [Some(change.place), copy];
    let places = places.into_iter().flatten();
    let places: Vec<_> = places.map(|place| (change.shard.clone(), place)).collect();
    let found = query.changes(&places).await?;
    let found = |index: usize| found.get(index).copied().flatten();
    // Read after the marks: the mark of a place is removed when the delivered pair covers it.
    let delivered = state().await?.unwrap_or(before).delivered;
    let is_past = |place: &Cursor| delivered.covers(*place);
    // A copy that has taken no place is cancelled. Once it is past, an absent mark does not tell.
    let is_dropped = found(1) == Some(PlaceChange::Cancelled);
    let is_copy_past = copy.as_ref().is_some_and(is_past);
    Ok(match (change.change, found(0)) {
        (AskedChange::Cancel, Some(PlaceChange::Cancelled)) => ChangeOutcome::Cancelled,
        (AskedChange::Copy(_), Some(PlaceChange::Cancelled)) if !is_dropped && !is_copy_past => {
            ChangeOutcome::Rescheduled
        }
        (AskedChange::Reschedule(due), Some(PlaceChange::Moved(found))) if due == found => {
            ChangeOutcome::Rescheduled
        }
        _ if is_copy_past || is_past(&change.place) => ChangeOutcome::Passed,
        _ => ChangeOutcome::TooLate,
    })
}
