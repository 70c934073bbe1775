//! The reader thread: lists and fetches runs beside the writer, so that a large fetch delays no
//! commit. Each call sees one moment of the database: a watermark, and everything stored below it.

use super::codec::{self, MetaRow};
use super::data_dir::Tables;
use super::error::{empty_if_damaged, unavailable};
use super::key::{self, Key};
use super::shared_tables::SharedTables;
use crate::limit;
use crate::model::{Cursor, ShardId, Slice};
use crate::run::RunName;
use crate::store::{Error, Fetch, Lineage, List, Listed, RunEntry};
use bytes::Bytes;
use fjall::{Readable as _, Snapshot};
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;

/// Reads, and answers the caller.
pub(super) type ReadCall = Box<dyn FnOnce(Result<&Tables, Error>) + Send>;

/// Runs until all handles on the store are gone.
pub(super) fn serve(mut calls: Receiver<ReadCall>, shared: &Arc<SharedTables>) {
    let opening = || Error::Unavailable("the embedded store's folder is being opened".to_owned());
    while let Some(call) = calls.blocking_recv() {
        shared.with(|tables| call(tables.ok_or_else(opening)));
    }
}

/// One moment of the database.
pub(super) struct ReadView<'a> {
    tables: &'a Tables,
    snapshot: Snapshot,
    deployment: &'a str,
}

impl<'a> ReadView<'a> {
    pub(super) fn new(tables: &'a Tables, deployment: &'a str) -> Self {
        Self {
            tables,
            snapshot: tables.db.snapshot(),
            deployment,
        }
    }

    pub(super) fn list(
        &self,
        requests: &[List],
        lineages: &[Lineage],
    ) -> Result<Vec<Listed>, Error> {
        let listed = requests
            .iter()
            .zip(lineages)
            .map(|(request, lineage)| self.list_shard(request, *lineage));
        answered(listed)
    }

    pub(super) fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        answered(requests.iter().map(|request| self.fetch_shard(request)))
    }

    pub(super) fn find_ids(
        &self,
        ids: &[(ShardId, Box<str>)],
    ) -> Result<Vec<Option<Cursor>>, Error> {
        answered(ids.iter().map(|(shard, id)| self.find_id(shard, id)))
    }

    fn find_id(&self, shard: &ShardId, id: &str) -> fjall::Result<Option<Cursor>> {
        let Some(row) = self.meta(shard)? else {
            return Ok(None);
        };
        let key = Key::Id(row.number, id).to_bytes();
        let found = self.snapshot.get(&self.tables.index, key)?;
        let place = found.and_then(|value| codec::to_place(&value));
        // The id of a delivered message is removed some time after the delivery.
        Ok(place.filter(|place| !row.meta.delivered.covers(*place)))
    }

    /// `None`: no shard that this version can read.
    fn meta(&self, shard: &ShardId) -> fjall::Result<Option<MetaRow>> {
        let key = Key::Meta {
            deployment: self.deployment,
            shard,
        };
        let value = self.snapshot.get(&self.tables.index, key.to_bytes())?;
        Ok(value.and_then(|value| codec::to_meta(&value)))
    }

    fn list_shard(&self, request: &List, lineage: Lineage) -> fjall::Result<Listed> {
        let Some(row) = self.meta(&request.shard)? else {
            return Ok(Listed::Unknown);
        };
        let limit = request.limit.min(limit::REQUESTED_RUNS_MAX);
        let range = key::order_range(row.number, request.from, request.until);
        let mut runs = Vec::new();
        if !range.is_empty() {
            for row in self.snapshot.range(&self.tables.index, range) {
                let (key, value) = row.into_inner()?;
                runs.extend(run_entry(&key, &value));
                // One run more than the limit shows that there are more.
                if runs.len() > limit {
                    break;
                }
            }
        }
        let has_more = runs.len() > limit;
        runs.truncate(limit);
        Ok(Listed::Runs {
            watermark: row.meta.watermark,
            lineage,
            runs,
            has_more,
        })
    }

    fn fetch_shard(&self, request: &Fetch) -> fjall::Result<Vec<Option<Bytes>>> {
        let Some(row) = self.meta(&request.shard)? else {
            return Ok(vec![None; request.runs.len()]);
        };
        let runs = request.runs.iter();
        runs.map(|(slice, name)| self.bytes(&row, *slice, name))
            .collect()
    }

    fn bytes(&self, row: &MetaRow, slice: Slice, name: &RunName) -> fjall::Result<Option<Bytes>> {
        let key = Key::Bytes(row.number, slice, name).to_bytes();
        let read = self.snapshot.get(&self.tables.pool, key);
        let bytes = empty_if_damaged(read.map(|found| found.map(Bytes::from)))?;
        if bytes.is_some() {
            return Ok(bytes);
        }
        // A run that is listed without bytes is lost. Empty bytes make the timer quarantine it.
        let key = Key::Run(row.number, slice, name).to_bytes();
        let is_listed = self.snapshot.contains_key(&self.tables.index, key)?;
        Ok(is_listed.then(Bytes::new))
    }
}

fn answered<T>(results: impl Iterator<Item = fjall::Result<T>>) -> Result<Vec<T>, Error> {
    results
        .map(|result| result.map_err(|error| unavailable(&error)))
        .collect()
}

/// `None`: an unreadable row, which is skipped.
fn run_entry(key: &[u8], value: &[u8]) -> Option<RunEntry> {
    let Some(((least_due, name), slice)) = key::ordered(key).zip(codec::to_slice(value)) else {
        tracing::error!("the embedded store lists a run with an unreadable name: skipping it");
        return None;
    };
    Some(RunEntry {
        slice,
        name,
        least_due,
    })
}
