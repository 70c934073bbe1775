//! The audit list in the folder: one row for each line. Requests with an idempotency key: a row for its state, and a row in the
//! order of their ends.

use super::Embedded;
use super::key;
use super::shards::Shards;
use super::tables::WriteBatch;
use crate::limit::{AUDIT_LINES_MAX, ENDED_REQUESTS_REMOVED_MAX};
use crate::model::Timestamp;
use crate::store::{AdminStore, AuditPart, AuditPosition, AuditRow, Error, RequestName};
use async_trait::async_trait;
use bytes::Bytes;
use fjall::Readable as _;
use std::time::Duration;

#[async_trait(?Send)]
impl AdminStore for Embedded {
    async fn add_audit_rows(&self, rows: &[AuditRow]) -> Result<(), Error> {
        self.check_space(rows)?;
        let rows = rows.to_vec();
        self.write(move |shards, batch| Ok(add(shards.deployment(), &rows, batch)?))
            .await
    }

    async fn begin_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        kept_for: Duration,
    ) -> Result<Option<Bytes>, Error> {
        self.check_space(&[name])?;
        let (name, state) = (name.clone(), state.clone());
        self.write(move |shards, batch| {
            let kept = shards.request(&name, batch)?;
            let kept = kept.filter(|(end, _)| *end > batch.now);
            if kept.is_none() {
                let until = batch.now.plus(kept_for);
                shards.put_request(&name, &state, until, batch)?;
            }
            Ok(kept.map(|(_, state)| state))
        })
        .await
    }

    async fn end_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        until: Timestamp,
        kept_max: usize,
    ) -> Result<(), Error> {
        self.check_space(&[name])?;
        let (name, state) = (name.clone(), state.clone());
        self.write(move |shards, batch| {
            shards.put_request(&name, &state, until, batch)?;
            Ok(shards.remove_old_requests(kept_max, batch)?)
        })
        .await
    }

    async fn forget_request(&self, name: &RequestName) -> Result<(), Error> {
        let name = name.clone();
        self.write(move |shards, batch| Ok(shards.remove_request(&name, batch)?))
            .await
    }
}

impl Shards {
    /// The end and the state of a request.
    fn request(
        &self,
        name: &RequestName,
        batch: &WriteBatch<'_>,
    ) -> fjall::Result<Option<(Timestamp, Bytes)>> {
        let row = batch.get(&key::request(self.deployment(), name.as_str()))?;
        Ok(row.and_then(|row| {
            let (end, _) = row.split_first_chunk::<8>()?;
            let end = Timestamp::from_ordered_bits(u64::from_be_bytes(*end));
            Some((end, row.slice(8..)))
        }))
    }

    fn put_request(
        &mut self,
        name: &RequestName,
        state: &Bytes,
        until: Timestamp,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<()> {
        self.remove_request(name, batch)?;
        let end = until.to_ordered_bits().to_be_bytes();
        let key = key::request(self.deployment(), name.as_str());
        batch.put(key, [&end, &**state].concat());
        let order = key::request_order(self.deployment(), until, name.as_str());
        batch.put(order, Bytes::new());
        self.requests = self.requests.map(|count| count + 1);
        Ok(())
    }

    fn remove_request(
        &mut self,
        name: &RequestName,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<()> {
        if let Some((end, _)) = self.request(name, batch)? {
            self.remove_rows(end, name.as_str(), batch);
        }
        Ok(())
    }

    fn remove_rows(&mut self, end: Timestamp, name: &str, batch: &mut WriteBatch<'_>) {
        batch.remove(key::request(self.deployment(), name));
        batch.remove(key::request_order(self.deployment(), end, name));
        self.requests = self.requests.map(|count| count.saturating_sub(1));
    }

    /// Removes some of the requests whose end has passed, and of those that end first if there are too many.
    fn remove_old_requests(
        &mut self,
        kept_max: usize,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<()> {
        let all = key::all_request_orders(self.deployment());
        let count = match self.requests {
            Some(count) => count,
            None => batch.index_keys(all.clone()).count(),
        };
        self.requests = Some(count);
        let surplus = count.saturating_sub(kept_max);
        let oldest = batch.index_keys(all).take(ENDED_REQUESTS_REMOVED_MAX);
        let oldest = oldest.collect::<fjall::Result<Vec<Bytes>>>()?;
        for (at, order) in oldest.iter().enumerate() {
            match key::to_request_order(order) {
                Some((end, name)) if at < surplus || end <= batch.now => {
                    self.remove_rows(end, name, batch);
                }
                _ => break,
            }
        }
        Ok(())
    }
}

fn add(deployment: &str, rows: &[AuditRow], batch: &mut WriteBatch<'_>) -> fjall::Result<()> {
    for row in rows {
        let key = key::audit(row.part, deployment, row.position.as_str());
        batch.put(key, row.bytes.clone());
    }
    for part in AuditPart::ALL {
        if rows.iter().all(|row| row.part != part) {
            continue;
        }
        let keys = batch.index_keys(key::all_audit(part, deployment));
        let keys = keys.collect::<fjall::Result<Vec<Bytes>>>()?;
        let removed = keys.len().saturating_sub(AUDIT_LINES_MAX);
        for key in &keys[..removed] {
            batch.remove(key.to_vec());
        }
    }
    Ok(())
}

impl Embedded {
    pub(super) fn read_audit_rows(
        &self,
        part: AuditPart,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        self.shared.with(|tables| {
            let all = key::all_audit(part, &self.deployment);
            let end = before.map(|before| key::audit(part, &self.deployment, before.as_str()));
            let end = end.unwrap_or_else(|| all.end().clone());
            let snapshot = tables.db.read_tx();
            let rows = snapshot.range(&tables.index, all.start().clone()..end);
            let mut found = Vec::new();
            for row in rows.rev().take(limit) {
                let (key, bytes) = row.into_inner()?;
                let position = key::position_of_audit(&key).and_then(AuditPosition::parse);
                let bytes = Bytes::from(bytes);
                found.extend(position.map(|position| AuditRow {
                    part,
                    position,
                    bytes,
                }));
            }
            Ok(found)
        })
    }
}
