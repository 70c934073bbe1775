//! The report about what still uses each key: the JSON of `GET /v1/keys`. Fields are never renamed or
//! removed.

use super::StoreQuery;
use super::pending::QueryContext;
use crate::limit::QUERY_SHARDS_PER_CALL_MAX;
use crate::store::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The keys of all shards, and the keys of the ring that nothing uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeysReport {
    pub(crate) deployment: String,
    pub(crate) keys: Vec<KeyAmount>,
}

/// The messages and ids that use one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyAmount {
    /// `<fingerprint>-<key id>`; `None`: data that is not encrypted.
    pub(crate) key: Option<String>,
    /// Waiting messages.
    pub(crate) messages: u64,
    /// Messages in quarantine.
    pub(crate) quarantined: u64,
    /// Stored ids. Without the key, a cancel does not find them. 0 if the ring has only `plain`.
    pub(crate) ids: u64,
}

pub(super) async fn keys_report(
    query: &dyn StoreQuery,
    context: &QueryContext,
) -> Result<KeysReport, Error> {
    let ring = context.keys.names().map(|name| name.map(str::to_owned));
    let mut keys: BTreeMap<_, _> = ring.map(|name| (name, KeyAmount::default())).collect();
    let counts_ids = context.keys.names().any(|name| name.is_some());
    let mut ids = Vec::new();
    for shards in query.shards().await?.chunks(QUERY_SHARDS_PER_CALL_MAX) {
        for (shard, state) in shards.iter().zip(query.states(shards).await?) {
            // A shard that was erased meanwhile has no state.
            let Some(state) = state else { continue };
            for (name, messages) in state.key_uses() {
                keys.entry(name.map(str::to_owned)).or_default().messages += messages;
            }
            if state.quarantined > 0 {
                for run in query.quarantined_runs(shard).await? {
                    let used = keys.entry(run.key().map(str::to_owned)).or_default();
                    used.quarantined += u64::from(run.count());
                }
            }
            if counts_ids {
                ids.push(query.count_ids(shard).await?);
            }
        }
    }
    let amount = |(key, used): (Option<String>, KeyAmount)| KeyAmount {
        ids: ids.iter().map(|ids| ids.under(key.as_deref())).sum(),
        key,
        ..used
    };
    Ok(KeysReport {
        deployment: context.deployment.clone(),
        keys: keys.into_iter().map(amount).collect(),
    })
}
