//! Reads runs and ids beside the writer, so that a large fetch delays no commit. The calls run on
//! the threads of their callers.

use super::codec;
use super::error::empty_if_damaged;
use super::key::{self, ShardNumber};
use super::tables::Tables;
use crate::encryption::{IdCounts, StoredId};
use crate::limit::CHANGED_PLACES_READ_MAX;
use crate::model::{Cursor, Offset, ShardId, Slice, Timestamp};
use crate::run::RunName;
use crate::store::query::PlaceChange;
use crate::store::rules::ShardMeta;
use crate::store::{Fetch, Lineage, List, Listed, RunEntry};
use bytes::Bytes;
use fjall::{Readable as _, Snapshot};

/// One moment of the database: a watermark, and everything stored below it.
pub(super) struct ReadView<'a> {
    tables: &'a Tables,
    snapshot: Snapshot,
    deployment: &'a str,
}

impl<'a> ReadView<'a> {
    pub(super) fn new(tables: &'a Tables, deployment: &'a str) -> Self {
        Self {
            tables,
            snapshot: tables.db.read_tx(),
            deployment,
        }
    }

    pub(super) fn find_id(&self, shard: &ShardId, id: &StoredId) -> fjall::Result<Option<Cursor>> {
        let Some((number, meta)) = self.meta(shard)? else {
            return Ok(None);
        };
        let mut place = None;
        for name in id.names() {
            let found = self.get(&key::id(number, name))?;
            let found = found.and_then(|value| codec::to_place(&value));
            // The id of a delivered message is removed some time after the delivery.
            place = place.or(found.filter(|place| !meta.delivered.covers(*place)));
        }
        Ok(place)
    }

    pub(super) fn change(
        &self,
        shard: &ShardId,
        place: Cursor,
    ) -> fjall::Result<Option<PlaceChange>> {
        let Some((number, _)) = self.meta(shard)? else {
            return Ok(None);
        };
        let row = self.get(&key::cancelled(number, place))?;
        Ok(row.and_then(|row| codec::to_change(&row)).map(Into::into))
    }

    pub(super) fn moved_from(
        &self,
        shard: &ShardId,
        before: Timestamp,
    ) -> fjall::Result<Option<Timestamp>> {
        let Some((number, _)) = self.meta(shard)? else {
            return Ok(None);
        };
        let end = key::cancelled(number, Cursor::new(before, Offset(0)));
        let range = key::all_cancelled(number)..end;
        for (read, row) in self.snapshot.range(&self.tables.index, range).enumerate() {
            let (key, row) = row.into_inner()?;
            let is_moved = codec::to_change(&row).is_some_and(|change| change.moved.is_some());
            // Reading more of them would take too long.
            if is_moved || read >= CHANGED_PLACES_READ_MAX {
                return Ok(key::to_cancelled(&key).map(|place| place.due));
            }
        }
        Ok(None)
    }

    fn get(&self, key: &[u8]) -> fjall::Result<Option<Bytes>> {
        let found = self.snapshot.get(self.tables.of(key), key)?;
        Ok(found.map(Bytes::from))
    }

    /// `None`: no shard that this version can read.
    fn meta(&self, shard: &ShardId) -> fjall::Result<Option<(ShardNumber, ShardMeta)>> {
        let value = self.get(&key::meta(self.deployment, shard))?;
        Ok(value.and_then(|value| codec::to_meta(&value)))
    }

    pub(super) fn list(&self, request: &List, lineage: Lineage) -> fjall::Result<Listed> {
        let Some((number, meta)) = self.meta(&request.shard)? else {
            return Ok(Listed::Unknown);
        };
        let limit = request.limit();
        let range = key::order_range(number, request.from, request.until);
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
            watermark: meta.watermark,
            lineage,
            runs,
            has_more,
        })
    }

    pub(super) fn fetch(&self, request: &Fetch) -> fjall::Result<Vec<Option<Bytes>>> {
        let Some((number, _)) = self.meta(&request.shard)? else {
            return Ok(vec![None; request.runs.len()]);
        };
        let runs = request.runs.iter();
        runs.map(|(slice, name)| self.bytes(number, *slice, name))
            .collect()
    }

    pub(super) fn count_ids(&self, shard: &ShardId) -> fjall::Result<IdCounts> {
        let mut counts = IdCounts::default();
        if let Some((number, _)) = self.meta(shard)? {
            for row in (self.snapshot).range(&self.tables.index, key::all_ids(number)) {
                counts.add(key::name_of_id(&row.key()?));
            }
        }
        Ok(counts)
    }

    pub(super) fn quarantined_runs(&self, shard: &ShardId) -> fjall::Result<Vec<RunName>> {
        let Some((number, _)) = self.meta(shard)? else {
            return Ok(Vec::new());
        };
        let rows = (self.snapshot).prefix(&self.tables.pool, key::all_quarantined(number));
        rows.map(|row| Ok(key::to_quarantined(&row.key()?)))
            .filter_map(Result::transpose)
            .collect()
    }

    pub(super) fn quarantined_bytes(
        &self,
        shard: &ShardId,
        name: &RunName,
    ) -> fjall::Result<Option<Bytes>> {
        let Some((number, _)) = self.meta(shard)? else {
            return Ok(None);
        };
        empty_if_damaged(self.get(&key::quarantined(number, name)))
    }

    fn bytes(
        &self,
        number: ShardNumber,
        slice: Slice,
        name: &RunName,
    ) -> fjall::Result<Option<Bytes>> {
        let bytes = empty_if_damaged(self.get(&key::bytes(number, slice, name)))?;
        if bytes.is_some() {
            return Ok(bytes);
        }
        // A run that is listed without bytes is lost. Empty bytes make the timer quarantine it.
        let is_listed = self.get(&key::run(number, slice, name))?.is_some();
        Ok(is_listed.then(Bytes::new))
    }
}

/// `None`: an unreadable row, which is skipped.
fn run_entry(key: &[u8], value: &[u8]) -> Option<RunEntry> {
    let Some(((least_due, name), slice)) = key::to_ordered(key).zip(codec::to_slice(value)) else {
        let key = key.escape_ascii();
        tracing::error!(%key, "an index entry in the embedded store is unreadable: its messages are not delivered. See `postdate ledger` and docs/runbook.md");
        return None;
    };
    Some(RunEntry {
        slice,
        name,
        least_due,
    })
}
