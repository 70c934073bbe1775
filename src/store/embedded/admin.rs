//! The audit list in the folder: one row for each line.

use super::Embedded;
use super::key;
use super::tables::WriteBatch;
use crate::limit::AUDIT_LINES_MAX;
use crate::store::{AdminStore, AuditPosition, AuditRow, Error};
use async_trait::async_trait;
use bytes::Bytes;
use fjall::Readable as _;

#[async_trait(?Send)]
impl AdminStore for Embedded {
    async fn add_audit_rows(&self, rows: &[AuditRow]) -> Result<(), Error> {
        self.check_space(rows)?;
        let rows = rows.to_vec();
        self.write(move |shards, batch| Ok(add(shards.deployment(), &rows, batch)?))
            .await
    }
}

fn add(deployment: &str, rows: &[AuditRow], batch: &mut WriteBatch<'_>) -> fjall::Result<()> {
    for row in rows {
        let key = key::audit(deployment, row.position.as_str());
        batch.put(key, row.bytes.clone());
    }
    let keys = batch.index_keys(key::all_audit(deployment));
    let keys = keys.collect::<fjall::Result<Vec<Bytes>>>()?;
    let removed = keys.len().saturating_sub(AUDIT_LINES_MAX);
    for key in &keys[..removed] {
        batch.remove(key.to_vec());
    }
    Ok(())
}

impl Embedded {
    pub(super) fn read_audit_rows(
        &self,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        self.shared.with(|tables| {
            let all = key::all_audit(&self.deployment);
            let end = before.map(|before| key::audit(&self.deployment, before.as_str()));
            let end = end.unwrap_or_else(|| all.end().clone());
            let snapshot = tables.db.read_tx();
            let rows = snapshot.range(&tables.index, all.start().clone()..end);
            let mut found = Vec::new();
            for row in rows.rev().take(limit) {
                let (key, bytes) = row.into_inner()?;
                let position = key::position_of_audit(&key).and_then(AuditPosition::parse);
                let bytes = Bytes::from(bytes);
                found.extend(position.map(|position| AuditRow { position, bytes }));
            }
            Ok(found)
        })
    }
}
