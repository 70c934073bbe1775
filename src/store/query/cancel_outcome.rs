//! The outcome of a cancel record, as far as the store knows it.

use super::StoreQuery;
use crate::model::{Cursor, Offset, ShardId};
use crate::store::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A message, and the cancel record that was written for it to the same partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CancelQuery {
    pub(crate) shard: ShardId,
    pub(crate) place: Cursor,
    pub(crate) record: Offset,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CancelOutcome {
    /// The cancel is in the source and was not read yet.
    #[default]
    Pending,
    Cancelled,
    /// The message was being sent.
    TooLate,
    /// The message has become due meanwhile: it was delivered, or cancelled just before.
    Passed,
}

/// Reads the outcome.
pub(super) async fn cancel_outcome(
    query: &dyn StoreQuery,
    cancel: &CancelQuery,
) -> Result<CancelOutcome, Error> {
    let states = query.states(std::slice::from_ref(&cancel.shard)).await?;
    let Some(Some(state)) = states.into_iter().next() else {
        return Ok(CancelOutcome::Pending);
    };
    if !state.watermark.covers(cancel.record) {
        return Ok(CancelOutcome::Pending);
    }
    let place = (cancel.shard.clone(), cancel.place);
    let cancelled = query.are_cancelled(&[place]).await?;
    Ok(match cancelled.first() {
        Some(true) => CancelOutcome::Cancelled,
        _ if state.delivered.covers(cancel.place) => CancelOutcome::Passed,
        _ => CancelOutcome::TooLate,
    })
}
