//! The thread that reads runs and lists them, apart from the writes: a big fetch holds no commit up. Each call sees one moment of the
//! database, and in it the watermark and all that was stored below.

use super::codec::{self, MetaRow};
use super::data_dir::Tables;
use super::error::{empty_if_damaged, explain, unavailable};
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

/// Reads, and tells the caller.
pub(super) type ReadCall = Box<dyn FnOnce(Result<&Tables, Error>) + Send>;

/// Serves until nobody can call any more.
pub(super) fn serve(mut calls: Receiver<ReadCall>, shared: &Arc<SharedTables>) {
    while let Some(call) = calls.blocking_recv() {
        shared.with_rows(|rows| {
            call(rows.ok_or_else(|| {
                Error::Unavailable("the embedded store's folder is being opened anew".to_owned())
            }));
        });
    }
}

/// One moment of the database.
pub(super) struct ReadView<'a> {
    rows: &'a Tables,
    snapshot: Snapshot,
    deployment: &'a str,
}

impl<'a> ReadView<'a> {
    pub(super) fn new(rows: &'a Tables, deployment: &'a str) -> Self {
        Self {
            rows,
            snapshot: rows.db.snapshot(),
            deployment,
        }
    }

    pub(super) fn list(
        &self,
        requests: &[List],
        histories: &[Lineage],
    ) -> Result<Vec<Listed>, Error> {
        let list = |(request, history): (_, &Lineage)| {
            self.list_one(request, *history)
                .map_err(|error| unavailable(&error))
        };
        requests.iter().zip(histories).map(list).collect()
    }

    pub(super) fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        requests
            .iter()
            .map(|request| self.fetch_one(request).map_err(|error| unavailable(&error)))
            .collect()
    }

    pub(super) fn places(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error> {
        ids.iter()
            .map(|(shard, id)| self.place(shard, id).map_err(|error| unavailable(&error)))
            .collect()
    }

    fn place(&self, shard: &ShardId, id: &str) -> fjall::Result<Option<Cursor>> {
        let Some(meta) = self.meta(shard)? else {
            return Ok(None);
        };
        let found = self
            .snapshot
            .get(&self.rows.index, Key::Id(meta.number, id).to_bytes())?;
        let place = found.and_then(|value| codec::to_place(&value));
        // The id of a delivered message goes a little after it.
        Ok(place.filter(|place| !meta.meta.delivered.covers(*place)))
    }

    /// `None`: unborn, or not what this version writes.
    fn meta(&self, shard: &ShardId) -> fjall::Result<Option<MetaRow>> {
        let key = Key::Meta {
            deployment: self.deployment,
            shard,
        };
        Ok(self
            .snapshot
            .get(&self.rows.index, key.to_bytes())?
            .and_then(|value| codec::to_meta(&value)))
    }

    fn list_one(&self, request: &List, history: Lineage) -> fjall::Result<Listed> {
        let Some(meta) = self.meta(&request.shard)? else {
            return Ok(Listed::Unknown);
        };
        let limit = request.limit.min(limit::REQUESTED_RUNS_MAX);
        let range = key::order_range(meta.number, request.from, request.until);
        let mut runs = Vec::new();
        if !range.is_empty() {
            for row in self.snapshot.range(&self.rows.index, range) {
                let (key, value) = row.into_inner()?;
                runs.extend(listing(&key, &value));
                // One more tells that there are more; rows that cannot be named do not count.
                if runs.len() > limit {
                    break;
                }
            }
        }
        let more = runs.len() > limit;
        runs.truncate(limit);
        Ok(Listed::Runs {
            watermark: meta.meta.watermark,
            lineage: history,
            runs,
            has_more: more,
        })
    }

    fn fetch_one(&self, request: &Fetch) -> fjall::Result<Vec<Option<Bytes>>> {
        let Some(meta) = self.meta(&request.shard)? else {
            return Ok(vec![None; request.runs.len()]);
        };
        request
            .runs
            .iter()
            .map(|(slice, name)| self.bytes(&meta, *slice, name))
            .collect()
    }

    fn bytes(&self, meta: &MetaRow, slice: Slice, name: &RunName) -> fjall::Result<Option<Bytes>> {
        let key = Key::Bytes(meta.number, slice, name).to_bytes();
        let read = empty_if_damaged(
            self.snapshot
                .get(&self.rows.pool, key)
                .map(|found| found.map(Bytes::from)),
        )?;
        if read.is_some() {
            return Ok(read);
        }
        // Told from one that is gone: it is handed out empty, so that it is found unreadable and set aside.
        let is_there = self.snapshot.contains_key(
            &self.rows.index,
            Key::Run(meta.number, slice, name).to_bytes(),
        )?;
        Ok(is_there.then(Bytes::new))
    }
}

fn listing(key: &[u8], value: &[u8]) -> Option<RunEntry> {
    let listing =
        key::ordered(key)
            .zip(codec::to_slice(value))
            .map(|((least_due, name), slice)| RunEntry {
                slice,
                name,
                least_due,
            });
    if listing.is_none() {
        tracing::error!(
            error = explain(&fjall::Error::Unrecoverable),
            "the embedded store lists a run that cannot be named"
        );
    }
    listing
}
