//! Which shards of a route are paused.

use super::pending::shards_of_route;
use super::{QueryContext, StoreQuery};
use crate::limit::QUERY_SHARDS_PER_CALL_MAX;
use crate::model::{ShardId, Timestamp};
use crate::store::{Error, StoredShard};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The pause of a route. Each shard is paused and resumed by a record of its own
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PauseReport {
    pub(crate) deployment: String,
    pub(crate) route: String,
    pub(crate) at_ms: i64,
    /// Shards of the sources of the route that the store knows.
    pub(crate) shards: u64,
    /// Paused shards.
    pub(crate) paused: u64,
    /// Paused shards with messages that were claimed before the pause, and may be on their way.
    pub(crate) in_flight: u64,
    /// Since when the first of them is paused.
    pub(crate) since_ms: Option<i64>,
    /// The time of the last pause or resume.
    pub(crate) changed_ms: Option<i64>,
    /// The note of it.
    pub(crate) note: Option<String>,
    pub(crate) places: Vec<PausePlace>,
}

/// A shard of the route
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PausePlace {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) paused: bool,
}

impl PauseReport {
    fn add(&mut self, shard: &ShardId, state: &StoredShard) {
        let paused = state.is_paused();
        self.shards += 1;
        self.paused += u64::from(paused);
        self.in_flight += u64::from(paused && !state.delivered.includes(state.claimed));
        self.places.push(PausePlace {
            topic: shard.partition.topic.to_string(),
            partition: shard.partition.index,
            paused,
        });
        let Some(pause) = &state.pause else { return };
        let since = pause.since.as_millis();
        if paused && self.since_ms.is_none_or(|known| since < known) {
            self.since_ms = Some(since);
        }
        let changed = Some(pause.at.as_millis());
        if changed > self.changed_ms {
            (self.changed_ms, self.note) = (changed, Some(pause.note.to_string()));
        }
    }

    /// True if all shards are in the wanted state.
    pub(crate) fn is_reached(&self, pauses: bool) -> bool {
        self.paused == if pauses { self.shards } else { 0 }
    }

    /// The time of the next control record. It is later than the last one, which other clocks may
    /// have given.
    pub(crate) fn next_time(&self, now: Timestamp) -> Timestamp {
        let last = self.changed_ms.map_or(i64::MIN, |last| last + 1);
        now.max(Timestamp::from_millis(last))
    }
}

pub(super) async fn pause_report(
    query: &dyn StoreQuery,
    context: &QueryContext,
    route: &str,
    now: Timestamp,
) -> Result<PauseReport, Error> {
    let mut report = PauseReport {
        deployment: context.deployment.clone(),
        route: route.to_owned(),
        at_ms: now.as_millis(),
        ..PauseReport::default()
    };
    let mut shards = shards_of_route(query, Some(route)).await?;
    shards.retain(|shard| context.serves(shard));
    for shards in shards.chunks(QUERY_SHARDS_PER_CALL_MAX) {
        for (shard, state) in shards.iter().zip(query.states(shards).await?) {
            // A shard that was erased meanwhile has no state.
            if let Some(state) = state {
                report.add(shard, &state);
            }
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_paused_when_each_shard_is() {
        let mut report = PauseReport {
            shards: 3,
            paused: 2,
            ..PauseReport::default()
        };
        assert!(!report.is_reached(true) && !report.is_reached(false));
        report.paused = 3;
        assert!(report.is_reached(true));
        report.paused = 0;
        assert!(report.is_reached(false));
    }

    #[test]
    fn a_clock_that_is_behind_does_not_prevent_a_resume() {
        let now = Timestamp::from_millis(5);
        let mut report = PauseReport::default();
        assert_eq!(report.next_time(now), now);
        report.changed_ms = Some(9);
        assert_eq!(report.next_time(now), Timestamp::from_millis(10));
    }
}
