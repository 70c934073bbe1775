//! The reports about waiting messages: the JSON of `postdate pending --json` and `GET /pending`.
//! Fields are never renamed or removed.

use super::StoreQuery;
use crate::encryption::{KeyRing, StoredId};
use crate::limit::{QUERY_SHARDS_PER_CALL_MAX, REPORT_HOURS_MAX, REPORT_SHARDS_MAX};
use crate::model::{Level, ShardId, Slice, Timestamp};
use crate::store::{Error, StoredShard};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use utoipa::ToSchema;

/// The configuration, as far as reports show it.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryContext {
    pub(crate) deployment: String,
    /// Description of the store for people.
    pub(crate) store: String,
    /// Source topics by route.
    pub(crate) routes: BTreeMap<String, BTreeSet<String>>,
    /// Answers contain payloads.
    pub(crate) shows_payloads: bool,
    /// Hashes ids.
    pub(crate) keys: KeyRing,
}

/// The waiting messages. All counts are upper bounds: a run is deleted when its last message has
/// been delivered, and a cancelled message stays in its run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PendingReport {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    pub(crate) total: Amount,
    pub(crate) routes: Vec<PendingRoute>,
    pub(crate) shards: Vec<PendingShard>,
    /// Number of shards that the list does not show.
    pub(crate) shards_left_out: u64,
    /// Messages that were due already when they were stored.
    pub(crate) due_when_stored: Amount,
    /// Messages in slices longer than an hour. They are not counted by hour yet.
    #[serde(default)]
    pub(crate) far: Amount,
    pub(crate) hours: Vec<PendingHour>,
    /// Messages that are due after the last listed hour.
    pub(crate) later: Amount,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Amount {
    pub(crate) messages: u64,
    /// Compressed size.
    pub(crate) bytes: u64,
    /// Messages in quarantine, not included in the other numbers.
    pub(crate) quarantined: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PendingRoute {
    pub(crate) route: String,
    /// True if the configuration has the route. Messages of other routes are not delivered.
    pub(crate) configured: bool,
    pub(crate) shards: u64,
    pub(crate) amount: Amount,
    /// Start of the first hour in which messages are due, in epoch ms. 0: some were due when they were
    /// stored. `None`: no message waits.
    #[serde(default)]
    pub(crate) first_hour_ms: Option<i64>,
    /// Start of the last hour in which messages may be due. `None` also if messages wait that are not
    /// counted by hour yet.
    #[serde(default)]
    pub(crate) last_hour_ms: Option<i64>,
    /// Paused shards of the sources that the configuration has.
    #[serde(default)]
    pub(crate) paused: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PendingShard {
    pub(crate) route: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// True if the configuration has the route, with this topic as a source.
    pub(crate) configured: bool,
    pub(crate) amount: Amount,
    /// Start of the first hour with messages, in epoch ms. 0: some were due when they were stored.
    pub(crate) first_hour_ms: Option<i64>,
}

/// Messages that are due in one hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PendingHour {
    pub(crate) start_ms: i64,
    pub(crate) start: String,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// The messages that wait under one id: at most one per shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct IdSearch {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    pub(crate) id: String,
    pub(crate) found: Vec<FoundMessage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct FoundMessage {
    pub(crate) route: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: u64,
    /// True if the configuration has the route, with this topic as a source.
    pub(crate) configured: bool,
    /// `None`: at once.
    pub(crate) due_ms: Option<i64>,
    pub(crate) due: String,
}

impl QueryContext {
    pub(super) fn serves(&self, shard: &ShardId) -> bool {
        self.routes
            .get(&*shard.route)
            .is_some_and(|topics| topics.contains(&*shard.partition.topic))
    }
}

impl PendingRoute {
    fn new(name: &str, configured: bool) -> Self {
        Self {
            route: name.to_owned(),
            configured,
            ..Self::default()
        }
    }
}

impl Amount {
    fn of(state: &StoredShard) -> Self {
        Self {
            messages: state.pending(),
            bytes: state.stored_bytes(),
            quarantined: state.quarantined,
        }
    }

    fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.quarantined += other.quarantined;
    }
}

/// Reports the waiting messages of one route, or of all routes. A configured route without messages
/// is listed as well.
pub(crate) async fn pending_report(
    query: &dyn StoreQuery,
    context: &QueryContext,
    route: Option<&str>,
    now: Timestamp,
) -> Result<PendingReport, Error> {
    let shards = shards_of_route(query, route).await?;
    let mut totals = PendingTotals::new(context, route, now);
    for shards in shards.chunks(QUERY_SHARDS_PER_CALL_MAX) {
        for (shard, state) in shards.iter().zip(query.states(shards).await?) {
            // A shard that was erased meanwhile has no state.
            if let Some(state) = state {
                totals.add(shard, &state);
            }
        }
    }
    Ok(totals.into_report())
}

/// Finds the messages that wait under `id`, in one route or in all routes.
pub(crate) async fn find_id(
    query: &dyn StoreQuery,
    context: &QueryContext,
    (id, route): (&str, Option<&str>),
    now: Timestamp,
) -> Result<IdSearch, Error> {
    let mut found = Vec::new();
    let shards = shards_of_route(query, route).await?;
    for shards in shards.chunks(QUERY_SHARDS_PER_CALL_MAX) {
        let ids: Vec<(ShardId, StoredId)> = shards
            .iter()
            .map(|shard| (shard.clone(), context.keys.stored_id(shard, id)))
            .collect();
        for (shard, place) in shards.iter().zip(query.find_ids(&ids).await?) {
            found.extend(place.map(|place| FoundMessage {
                route: shard.route.to_string(),
                topic: shard.partition.topic.to_string(),
                partition: shard.partition.index,
                offset: place.offset.0,
                configured: context.serves(shard),
                due_ms: (!place.due.is_at_once()).then(|| place.due.as_millis()),
                due: place.due.to_rfc3339(),
            }));
        }
    }
    Ok(IdSearch {
        deployment: context.deployment.clone(),
        store: context.store.clone(),
        at_ms: now.as_millis(),
        id: id.to_owned(),
        found,
    })
}

pub(super) async fn shards_of_route(
    query: &dyn StoreQuery,
    route: Option<&str>,
) -> Result<Vec<ShardId>, Error> {
    let mut shards = query.shards().await?;
    shards.retain(|shard| route.is_none_or(|route| *shard.route == *route));
    Ok(shards)
}

/// Adds up the shards of a report.
struct PendingTotals<'a> {
    context: &'a QueryContext,
    report: PendingReport,
    routes: BTreeMap<String, PendingRoute>,
    hours: BTreeMap<i64, Amount>,
    /// Routes with messages that are not counted by hour yet.
    routes_with_far: BTreeSet<String>,
}

impl<'a> PendingTotals<'a> {
    fn new(context: &'a QueryContext, route: Option<&str>, now: Timestamp) -> Self {
        let routes = context
            .routes
            .keys()
            .filter(|name| route.is_none_or(|route| route == *name))
            .map(|name| (name.clone(), PendingRoute::new(name, true)));
        Self {
            context,
            report: PendingReport {
                deployment: context.deployment.clone(),
                store: context.store.clone(),
                at_ms: now.as_millis(),
                ..PendingReport::default()
            },
            routes: routes.collect(),
            hours: BTreeMap::new(),
            routes_with_far: BTreeSet::new(),
        }
    }

    fn add(&mut self, shard: &ShardId, state: &StoredShard) {
        let amount = Amount::of(state);
        for count in &state.slices {
            let sum = match count.slice.level {
                Level::Now => &mut self.report.due_when_stored,
                Level::Far | Level::Day => &mut self.report.far,
                Level::Hour | Level::Minute => {
                    self.hours.entry(hour_start(count.slice)).or_default()
                }
            };
            sum.add(Amount {
                messages: count.messages,
                bytes: count.bytes,
                quarantined: 0,
            });
        }
        let route = self
            .routes
            .entry(shard.route.to_string())
            .or_insert_with(|| PendingRoute::new(&shard.route, false));
        route.shards += 1;
        route.amount.add(amount);
        route.paused += u64::from(state.is_paused() && self.context.serves(shard));
        for slice in state.slices.iter().map(|count| count.slice) {
            let first = hour_start(slice);
            route.first_hour_ms = Some(route.first_hour_ms.map_or(first, |hour| hour.min(first)));
            match last_hour(slice) {
                Some(last) => route.last_hour_ms = route.last_hour_ms.max(Some(last)),
                None => _ = self.routes_with_far.insert(shard.route.to_string()),
            }
        }
        self.report.total.add(amount);
        if self.report.shards.len() >= REPORT_SHARDS_MAX {
            self.report.shards_left_out += 1;
            return;
        }
        self.report.shards.push(PendingShard {
            route: shard.route.to_string(),
            topic: shard.partition.topic.to_string(),
            partition: shard.partition.index,
            configured: self.context.serves(shard),
            amount,
            first_hour_ms: state
                .slices
                .iter()
                .map(|count| hour_start(count.slice))
                .min(),
        });
    }

    fn into_report(self) -> PendingReport {
        let mut report = self.report;
        report.routes = self.routes.into_values().collect();
        for route in &mut report.routes {
            let has_far = self.routes_with_far.contains(&route.route);
            route.last_hour_ms = route.last_hour_ms.filter(|_| !has_far);
        }
        for (start_ms, amount) in self.hours {
            if report.hours.len() >= REPORT_HOURS_MAX {
                report.later.add(amount);
                continue;
            }
            report.hours.push(PendingHour {
                start_ms,
                start: Timestamp::from_millis(start_ms).to_rfc3339(),
                messages: amount.messages,
                bytes: amount.bytes,
            });
        }
        report
    }
}

/// Start of the hour of the slice in epoch ms. 0 for messages that were due when they were stored.
fn hour_start(slice: Slice) -> i64 {
    match slice.level {
        Level::Now => 0,
        Level::Far | Level::Day | Level::Hour | Level::Minute => {
            Slice::at(Level::Hour, slice.least_due())
                .least_due()
                .as_millis()
        }
    }
}

/// Start of the last hour of the slice, as `hour_start`. `None` if the slice has no end.
fn last_hour(slice: Slice) -> Option<i64> {
    match slice.level {
        Level::Now => Some(0),
        Level::Far => None,
        Level::Day | Level::Hour | Level::Minute => slice.end().map(|end| {
            let last = end.minus(Duration::from_millis(1));
            Slice::at(Level::Hour, last).least_due().as_millis()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encryption::IdCounts;
    use crate::model::{
        Cursor, LeaseToken, Offset, Partition, Pause, Progress, SourceIdentity, Watermark,
    };
    use crate::run::RunName;
    use crate::store::query::PlaceChange;
    use crate::store::{
        AuditPart, AuditPosition, AuditRow, Fetch, Ledger, List, Listed, Session, SliceCount,
    };
    use async_trait::async_trait;
    use bytes::Bytes;

    /// Shards with their states, and the place of the id `a` in each.
    struct Fake(Vec<(ShardId, StoredShard, Option<Cursor>)>);

    #[async_trait(?Send)]
    impl StoreQuery for Fake {
        async fn shards(&self) -> Result<Vec<ShardId>, Error> {
            Ok(self.0.iter().map(|(shard, ..)| shard.clone()).collect())
        }

        async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
            let of = |shard: &ShardId| {
                self.0
                    .iter()
                    .find(|(known, ..)| known == shard)
                    .map(|(_, state, _)| state.clone())
            };
            Ok(shards.iter().map(of).collect())
        }

        async fn holders(&self, shards: &[ShardId]) -> Result<Vec<Option<LeaseToken>>, Error> {
            Ok(vec![None; shards.len()])
        }

        async fn find_ids(
            &self,
            ids: &[(ShardId, StoredId)],
        ) -> Result<Vec<Option<Cursor>>, Error> {
            let of = |shard: &ShardId| {
                self.0
                    .iter()
                    .find(|(known, ..)| known == shard)
                    .and_then(|(.., place)| *place)
            };
            Ok(ids
                .iter()
                .map(|(shard, id)| of(shard).filter(|_| id.name() == b"a"))
                .collect())
        }

        async fn changes(
            &self,
            _: &[(ShardId, Cursor)],
        ) -> Result<Vec<Option<PlaceChange>>, Error> {
            Ok(Vec::new())
        }

        async fn moved_from(
            &self,
            shards: &[ShardId],
            _: Timestamp,
        ) -> Result<Vec<Option<Timestamp>>, Error> {
            Ok(vec![None; shards.len()])
        }

        async fn count_ids(&self, _: &ShardId) -> Result<IdCounts, Error> {
            Ok(IdCounts::default())
        }

        async fn quarantined_runs(&self, _: &ShardId) -> Result<Vec<RunName>, Error> {
            Ok(Vec::new())
        }

        async fn list_runs(&self, _: &[List]) -> Result<Vec<Listed>, Error> {
            Ok(Vec::new())
        }

        async fn fetch_runs(&self, _: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
            Ok(Vec::new())
        }

        async fn worker_sessions(&self) -> Result<Vec<Session>, Error> {
            Ok(Vec::new())
        }

        async fn audit_rows(
            &self,
            _: AuditPart,
            _: Option<&AuditPosition>,
            _: usize,
        ) -> Result<Vec<AuditRow>, Error> {
            Ok(Vec::new())
        }
    }

    const HOUR: i64 = 3_600_000;

    fn state(slices: Vec<SliceCount>, quarantined: u64) -> StoredShard {
        StoredShard {
            identity: SourceIdentity("id".into()),
            watermark: Watermark(0),
            claimed: Progress::START,
            delivered: Progress::START,
            hold: Watermark(0),
            possibly_delivered: Progress::START,
            pause: None,
            lowest_pending: Offset(0),
            slices,
            quarantined,
            keys: BTreeMap::new(),
            ledger: Ledger::default(),
        }
    }

    fn fake() -> Fake {
        let shard =
            |route: &str, topic: &str, index| ShardId::new(route, Partition::new(topic, index));
        let count = |level, start, messages| SliceCount {
            slice: Slice { level, start },
            messages,
            bytes: 10 * messages,
        };
        let place = |due, offset| Some(Cursor::new(due, Offset(offset)));
        Fake(vec![
            (
                shard("gone", "t", 0),
                state(vec![count(Level::Hour, 5, 7)], 2),
                place(Timestamp::AT_ONCE, 4),
            ),
            (
                shard("orders", "d", 0),
                state(vec![count(Level::Now, 1, 1), count(Level::Hour, 5, 3)], 0),
                None,
            ),
            (
                shard("orders", "old", 1),
                state(
                    vec![
                        count(Level::Far, 1, 5),
                        count(Level::Hour, 29, 1),
                        count(Level::Minute, 29 * 60 + 7, 1),
                    ],
                    0,
                ),
                place(Timestamp::from_millis(29 * HOUR), 8),
            ),
        ])
    }

    fn known() -> QueryContext {
        let topics = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let routes = [("orders", topics(&["d"])), ("mail", topics(&["m"]))]
            .map(|(name, topics)| (name.to_owned(), topics));
        QueryContext {
            shows_payloads: false,
            keys: KeyRing::plain(),
            deployment: "prod".into(),
            store: "redis x".into(),
            routes: routes.into(),
        }
    }

    #[tokio::test]
    async fn a_report_sums_by_route_shard_and_hour_and_marks_routes_without_configuration() {
        let report = pending_report(&fake(), &known(), None, Timestamp::from_millis(6 * HOUR))
            .await
            .unwrap();
        let amount = |messages, quarantined| Amount {
            messages,
            bytes: 10 * messages,
            quarantined,
        };
        assert_eq!(
            (report.total, report.due_when_stored),
            (amount(18, 2), amount(1, 0))
        );
        assert_eq!((report.far, report.later), (amount(5, 0), amount(0, 0)));
        let routes: Vec<_> = report
            .routes
            .iter()
            .map(|route| (&*route.route, route.configured, route.shards, route.amount))
            .collect();
        assert_eq!(
            routes,
            [
                ("gone", false, 1, amount(7, 2)),
                ("mail", true, 0, amount(0, 0)),
                ("orders", true, 2, amount(11, 0))
            ]
        );
        let hours: Vec<_> = report
            .routes
            .iter()
            .map(|route| (route.first_hour_ms, route.last_hour_ms))
            .collect();
        assert_eq!(
            hours,
            [
                (Some(5 * HOUR), Some(5 * HOUR)),
                (None, None),
                // Messages that are far ahead may be due after all others.
                (Some(0), None)
            ]
        );
        let shards: Vec<_> = report
            .shards
            .iter()
            .map(|shard| (&*shard.topic, shard.configured, shard.first_hour_ms))
            .collect();
        assert_eq!(
            shards,
            [
                ("t", false, Some(5 * HOUR)),
                ("d", true, Some(0)),
                ("old", false, Some(24 * HOUR))
            ]
        );
        let hours: Vec<_> = report
            .hours
            .iter()
            .map(|hour| (hour.start_ms, &*hour.start, hour.messages))
            .collect();
        assert_eq!(
            hours,
            [
                (5 * HOUR, "1970-01-01T05:00:00Z", 10),
                (29 * HOUR, "1970-01-02T05:00:00Z", 2)
            ]
        );
    }

    #[tokio::test]
    async fn a_paused_shard_of_a_removed_topic_does_not_count() {
        let mut fake = fake();
        for (_, state, _) in &mut fake.0 {
            state.pause = Pause::parse("0000000000000001p1:1:0:1:");
        }
        let (known, now) = (known(), Timestamp::from_millis(0));
        let report = pending_report(&fake, &known, Some("orders"), now).await;
        assert_eq!(report.unwrap().routes[0].paused, 1);
    }

    #[tokio::test]
    async fn a_report_of_one_route_leaves_out_the_others() {
        let now = Timestamp::from_millis(0);
        let gone = pending_report(&fake(), &known(), Some("gone"), now)
            .await
            .unwrap();
        assert_eq!(
            (gone.total.messages, gone.routes.len(), gone.shards.len()),
            (7, 1, 1)
        );
        assert_eq!(
            pending_report(&fake(), &known(), Some("never"), now)
                .await
                .unwrap()
                .routes,
            []
        );
        assert_eq!(
            pending_report(&fake(), &known(), Some("mail"), now)
                .await
                .unwrap()
                .routes
                .len(),
            1,
            "a configured route without messages is listed"
        );
    }

    #[tokio::test]
    async fn an_id_is_found_in_every_shard() {
        let search = find_id(&fake(), &known(), ("a", None), Timestamp::from_millis(0))
            .await
            .unwrap();
        let places: Vec<_> = search
            .found
            .iter()
            .map(|place| {
                (
                    &*place.topic,
                    place.offset,
                    place.configured,
                    place.due_ms,
                    &*place.due,
                )
            })
            .collect();
        assert_eq!(
            places,
            [
                ("t", 4, false, None, "at once"),
                ("old", 8, false, Some(29 * HOUR), "1970-01-02T05:00:00Z")
            ]
        );
        assert_eq!(
            find_id(
                &fake(),
                &known(),
                ("a", Some("orders")),
                Timestamp::from_millis(0)
            )
            .await
            .unwrap()
            .found
            .len(),
            1
        );
        assert_eq!(
            find_id(&fake(), &known(), ("b", None), Timestamp::from_millis(0))
                .await
                .unwrap()
                .found,
            []
        );
    }

    #[test]
    fn a_report_survives_a_round_trip_through_json() {
        let hour = PendingHour {
            start_ms: 1,
            start: "x".into(),
            messages: 2,
            bytes: 3,
        };
        let report = PendingReport {
            deployment: "prod".into(),
            hours: vec![hour],
            ..PendingReport::default()
        };
        assert_eq!(
            serde_json::from_str::<PendingReport>(&serde_json::to_string(&report).unwrap())
                .unwrap(),
            report
        );
    }
}
