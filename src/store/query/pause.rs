//! Which shards of a route are paused.

use super::pending::shards_of_route;
use super::{QueryContext, StoreQuery};
use crate::limit::QUERY_SHARDS_PER_CALL_MAX;
use crate::model::{ShardId, Timestamp};
use crate::store::{Error, StoredShard};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use utoipa::ToSchema;

/// The pause of a route. Each shard is paused and resumed by a record of its own
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PauseReport {
    pub(crate) deployment: String,
    pub(crate) route: String,
    pub(crate) at_ms: i64,
    /// Shards of the sources of the route that the store knows. After a pause or a resume: all partitions.
    pub(crate) shards: u64,
    /// Paused shards.
    pub(crate) paused: u64,
    /// Paused shards with messages that were claimed before the pause. They may still arrive, unless the owner of the
    /// claim has died.
    pub(crate) in_flight: u64,
    /// Begin of the oldest pause that lasts.
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
    /// The time of the last pause or resume that was read.
    pub(crate) changed_ms: Option<i64>,
}

impl PauseReport {
    fn add(&mut self, shard: &ShardId, state: &StoredShard) {
        let paused = state.is_paused();
        let changed_ms = state.pause.as_ref().map(|pause| pause.at.as_millis());
        self.shards += 1;
        self.paused += u64::from(paused);
        self.in_flight += u64::from(paused && !state.delivered.includes(state.claimed));
        self.places.push(PausePlace {
            topic: shard.partition.topic.to_string(),
            partition: shard.partition.index,
            paused,
            changed_ms,
        });
        let Some(pause) = &state.pause else { return };
        let since = pause.since.as_millis();
        if paused && self.since_ms.is_none_or(|known| since < known) {
            self.since_ms = Some(since);
        }
        if changed_ms > self.changed_ms {
            (self.changed_ms, self.note) = (changed_ms, Some(pause.note.to_string()));
        }
    }

    /// Adds the partitions that got a record and that the store does not know.
    pub(crate) fn add_unknown(&mut self, written: &[(String, i32)]) {
        let places = self.places.iter();
        let known: BTreeSet<_> = places
            .map(|place| (place.topic.clone(), place.partition))
            .collect();
        let unknown = written.iter().filter(|place| !known.contains(*place));
        let unknown = unknown.map(|(topic, partition)| PausePlace {
            topic: topic.clone(),
            partition: *partition,
            ..PausePlace::default()
        });
        self.places.extend(unknown);
        self.shards = self.places.len() as u64;
    }

    /// True if all shards have read the record of this time, and no other after it.
    pub(crate) fn is_reached(&self, pauses: bool, at: Timestamp) -> bool {
        let is_read = |place: &PausePlace| place.changed_ms == Some(at.as_millis());
        let mut places = self.places.iter();
        places.all(|place| place.paused == pauses && is_read(place))
    }

    /// Why the record of this time has no effect on some shards: they have read a record of a later
    /// time, which another sender wrote. `None`: it may have one.
    pub(crate) fn overtaken(&self, pauses: bool, at: Timestamp) -> Option<String> {
        let at = at.as_millis();
        let is_later = |place: &&PausePlace| {
            place.changed_ms > Some(at) || place.changed_ms == Some(at) && place.paused != pauses
        };
        let place = self.places.iter().find(is_later)?;
        let (topic, partition) = (&place.topic, place.partition);
        Some(format!(
            "{topic}/{partition} has read a pause or a resume of a later time, from another sender: look at the pause of the route, and repeat this request if it is still wanted"
        ))
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

    fn place(partition: i32, paused: bool, changed_ms: Option<i64>) -> PausePlace {
        PausePlace {
            topic: "in".to_owned(),
            partition,
            paused,
            changed_ms,
        }
    }

    #[test]
    fn a_change_is_reached_when_each_shard_has_read_its_record() {
        let is_reached = |places: &[PausePlace], pauses| {
            let report = PauseReport {
                places: places.to_vec(),
                ..PauseReport::default()
            };
            report.is_reached(pauses, Timestamp::from_millis(5))
        };
        let (read, earlier) = (place(0, true, Some(5)), place(1, true, Some(4)));
        assert!(is_reached(&[read.clone(), place(1, true, Some(5))], true));
        assert!(!is_reached(std::slice::from_ref(&read), false));
        assert!(!is_reached(&[read, earlier], true), "by an earlier pause");
        assert!(!is_reached(&[place(0, false, None)], false), "no record");
    }

    #[test]
    fn a_record_of_an_earlier_time_than_the_last_one_is_overtaken() {
        let overtaken = |places: &[PausePlace], pauses| {
            let report = PauseReport {
                places: places.to_vec(),
                ..PauseReport::default()
            };
            let at = Timestamp::from_millis(5);
            assert!(!report.is_reached(pauses, at));
            report.overtaken(pauses, at)
        };
        let unread = place(0, false, Some(4));
        assert_eq!(
            overtaken(&[unread.clone(), place(1, false, None)], true),
            None
        );
        let later = place(1, true, Some(6));
        let why = overtaken(&[unread.clone(), later], true).unwrap();
        assert!(why.starts_with("in/1 has read"), "{why}");
        let same_time = place(1, false, Some(5));
        assert!(overtaken(&[unread, same_time], true).is_some());
    }

    #[test]
    fn a_partition_that_the_store_does_not_know_has_not_read_its_record() {
        let mut report = PauseReport {
            shards: 1,
            places: vec![place(0, true, Some(5))],
            ..PauseReport::default()
        };
        report.add_unknown(&[("in".to_owned(), 0), ("in".to_owned(), 1)]);
        assert_eq!((report.shards, report.paused), (2, 0));
        assert_eq!(report.places[1], place(1, false, None));
        assert!(!report.is_reached(true, Timestamp::from_millis(5)));
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
