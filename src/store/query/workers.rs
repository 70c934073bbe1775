//! The report about the workers of the deployment: the JSON of `GET /v1/workers`. Fields are never
//! renamed or removed.

use super::{QueryContext, StoreQuery};
use crate::model::{Role, Timestamp};
use crate::store::{Error, Session};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use utoipa::ToSchema;

/// The workers that have a session, expired ones included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WorkersReport {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    pub(crate) workers: Vec<WorkerReport>,
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
    /// False if the store sees no connection of the worker.
    pub(crate) connected: bool,
}

/// Reads the sessions.
pub(super) async fn workers_report(
    query: &dyn StoreQuery,
    context: &QueryContext,
    now: Timestamp,
) -> Result<WorkersReport, Error> {
    let sessions = query.worker_sessions().await?;
    Ok(WorkersReport {
        deployment: context.deployment.clone(),
        store: context.store.clone(),
        at_ms: now.as_millis(),
        workers: sessions.into_iter().map(report).collect(),
    })
}

fn report(session: Session) -> WorkerReport {
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
    }
}
