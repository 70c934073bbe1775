//! The report about the workers of the deployment: the JSON of `postdate workers --json` and
//! `GET /v1/workers`. Fields are never renamed or removed.

use super::{QueryContext, StoreQuery};
use crate::limit::QUERY_SHARDS_PER_CALL_MAX;
use crate::model::{COPY_LEVEL, FORMAT_LEVEL, Role, SessionId, Timestamp};
use crate::store::{Error, Session};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use utoipa::ToSchema;

/// The workers that have a session, expired ones included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WorkersReport {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    pub(crate) workers: Vec<WorkerReport>,
    /// Shards that no worker of the list delivers.
    #[serde(default)]
    pub(crate) without_worker: ShardLoad,
}

/// Shards, and the messages that wait in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ShardLoad {
    pub(crate) shards: u64,
    /// An upper bound, as in the report of waiting messages.
    pub(crate) messages: u64,
    /// Compressed size in the store.
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WorkerReport {
    pub(crate) name: String,
    pub(crate) session: String,
    /// Empty: the worker is leaving.
    #[schema(value_type = Vec<String>)]
    pub(crate) roles: BTreeSet<Role>,
    pub(crate) routes: BTreeSet<String>,
    /// The ids of the clusters that it reads from.
    pub(crate) clusters: BTreeSet<String>,
    /// The greatest format level that it reads.
    pub(crate) format: u32,
    /// Time until the session expires without a heartbeat. 0: it has expired.
    pub(crate) expires_in_ms: u64,
    /// False if the store had a connection of the worker at its last heartbeat, and has none now.
    pub(crate) connected: bool,
    /// The shards whose lease it holds.
    #[serde(default)]
    pub(crate) delivers: ShardLoad,
}

impl WorkersReport {
    /// The workers whose sessions have not expired.
    pub(crate) fn live(&self) -> impl Iterator<Item = &WorkerReport> {
        self.workers
            .iter()
            .filter(|worker| worker.expires_in_ms > 0)
    }

    /// The names of the live workers with such a format level.
    pub(crate) fn names_of_level(&self, is_such: impl Fn(u32) -> bool) -> String {
        let such = self.live().filter(|worker| is_such(worker.format));
        such.map(|worker| worker.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Why no route may be paused now. `None`: it may. A worker of an older version may deliver the messages of a
    /// paused route. A session that has expired may still be one of a living worker.
    pub(crate) fn refuses_pause(&self) -> Option<String> {
        let older = self.workers.iter().filter(|it| it.format < FORMAT_LEVEL);
        let older: Vec<_> = older.map(|worker| worker.name.as_str()).collect();
        (!older.is_empty()).then(|| {
            let names = older.join(", ");
            format!(
                "an older version runs, which may deliver the messages of a paused route: {names}. Finish the upgrade first"
            )
        })
    }

    /// Why no copy may take the place of a message now. `None`: it may. A worker of an older version would
    /// deliver both.
    pub(crate) fn refuses_copies(&self) -> Option<String> {
        let older = self.names_of_level(|level| level < COPY_LEVEL);
        (!older.is_empty()).then(|| {
            format!(
                "an older version runs, which would deliver the message twice: {older}. Finish the upgrade, then fire it, or \
                 give it an earlier due time"
            )
        })
    }
}

/// Reads the sessions, and which of them holds each shard.
pub(super) async fn workers_report(
    query: &dyn StoreQuery,
    context: &QueryContext,
    now: Timestamp,
) -> Result<WorkersReport, Error> {
    let mut loads = shard_loads(query).await?;
    let sessions = query.worker_sessions().await?.into_iter();
    let workers = sessions.map(|session| {
        let delivers = loads.remove(&Some(session.id)).unwrap_or_default();
        report(session, delivers)
    });
    let workers = workers.collect();
    let without_worker = loads
        .into_values()
        .fold(ShardLoad::default(), ShardLoad::plus);
    Ok(WorkersReport {
        deployment: context.deployment.clone(),
        store: context.store.clone(),
        at_ms: now.as_millis(),
        workers,
        without_worker,
    })
}

impl ShardLoad {
    fn plus(self, other: Self) -> Self {
        Self {
            shards: self.shards + other.shards,
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// The shards of each session; `None`: of no session.
async fn shard_loads(
    query: &dyn StoreQuery,
) -> Result<BTreeMap<Option<SessionId>, ShardLoad>, Error> {
    let mut loads = BTreeMap::<_, ShardLoad>::new();
    for shards in query.shards().await?.chunks(QUERY_SHARDS_PER_CALL_MAX) {
        let holders = query.holders(shards).await?.into_iter();
        for (holder, state) in holders.zip(query.states(shards).await?) {
            // A shard that was erased meanwhile has no state.
            let Some(state) = state else { continue };
            let load = loads.entry(holder.map(|token| token.session)).or_default();
            *load = load.plus(ShardLoad {
                shards: 1,
                messages: state.pending(),
                bytes: state.stored_bytes(),
            });
        }
    }
    Ok(loads)
}

fn report(session: Session, delivers: ShardLoad) -> WorkerReport {
    let entry = session.entry;
    let texts = |texts: BTreeSet<Box<str>>| texts.into_iter().map(String::from).collect();
    WorkerReport {
        name: entry.name,
        session: session.id.to_string(),
        roles: entry.roles,
        routes: texts(entry.routes),
        clusters: texts(entry.clusters),
        format: entry.format,
        expires_in_ms: u64::try_from(session.expires_in.as_millis()).unwrap_or(u64::MAX),
        connected: session.is_connected,
        delivers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_copy_is_written_while_a_worker_of_an_older_version_lives() {
        let refused = |workers: &[(u32, u64)]| {
            let worker = |(format, expires_in_ms): &(u32, u64)| WorkerReport {
                name: format!("w{format}"),
                format: *format,
                expires_in_ms: *expires_in_ms,
                ..WorkerReport::default()
            };
            let report = WorkersReport {
                workers: workers.iter().map(worker).collect(),
                ..WorkersReport::default()
            };
            report.refuses_copies()
        };
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&[(COPY_LEVEL, 5), (COPY_LEVEL - 1, 0)]), None);
        let why = refused(&[(COPY_LEVEL, 5), (COPY_LEVEL - 1, 5)]);
        assert!(why.is_some_and(|why| why.contains("twice: w0. ")));
    }

    #[test]
    fn no_route_is_paused_while_an_older_version_may_run() {
        let refused = |format| {
            let worker = WorkerReport {
                name: "w".to_owned(),
                format,
                ..WorkerReport::default()
            };
            let report = WorkersReport {
                workers: vec![worker],
                ..WorkersReport::default()
            };
            report.refuses_pause()
        };
        assert_eq!(refused(FORMAT_LEVEL), None);
        let why = refused(FORMAT_LEVEL - 1).expect("an expired session may be of a living worker");
        assert!(why.contains(": w. "), "{why}");
    }
}
