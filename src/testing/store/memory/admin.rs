//! The audit list of the memory store.

use super::MemoryStore;
use crate::limit::AUDIT_LINES_MAX;
use crate::store::{AdminStore, AuditPosition, AuditRow, Error};
use async_trait::async_trait;

#[async_trait(?Send)]
impl AdminStore for MemoryStore {
    async fn add_audit_rows(&self, rows: &[AuditRow]) -> Result<(), Error> {
        self.yield_as_network().await?;
        self.check_space()?;
        let mut audit = self.inner.audit.borrow_mut();
        audit.extend(
            rows.iter()
                .map(|row| (row.position.clone(), row.bytes.clone())),
        );
        while audit.len() > AUDIT_LINES_MAX {
            audit.pop_first();
        }
        Ok(())
    }
}

impl MemoryStore {
    pub(super) async fn read_audit_rows(
        &self,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        self.yield_as_network().await?;
        let audit = self.inner.audit.borrow();
        let rows = audit.iter().rev();
        let rows = rows.filter(|(position, _)| before.is_none_or(|before| *position < before));
        let rows = rows.map(|(position, bytes)| AuditRow {
            position: position.clone(),
            bytes: bytes.clone(),
        });
        Ok(rows.take(limit).collect())
    }
}
