//! The audit list of the memory store, and its requests with an idempotency key.

use super::MemoryStore;
use crate::limit::AUDIT_LINES_MAX;
use crate::model::Timestamp;
use crate::store::{AdminStore, AuditPosition, AuditRow, Error, RequestName};
use async_trait::async_trait;
use bytes::Bytes;

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

    async fn begin_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        until: Timestamp,
    ) -> Result<Option<Bytes>, Error> {
        self.yield_as_network().await?;
        self.check_space()?;
        let mut requests = self.inner.requests.borrow_mut();
        let kept = requests
            .get(name)
            .filter(|(end, _)| *end > self.inner.clock.now());
        let kept = kept.map(|(_, state)| state.clone());
        if kept.is_none() {
            requests.insert(name.clone(), (until, state.clone()));
        }
        Ok(kept)
    }

    async fn end_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        until: Timestamp,
        kept_max: usize,
    ) -> Result<(), Error> {
        self.yield_as_network().await?;
        self.check_space()?;
        let mut requests = self.inner.requests.borrow_mut();
        requests.insert(name.clone(), (until, state.clone()));
        while requests.len() > kept_max {
            let ends = requests.iter().map(|(name, (end, _))| (*end, name.clone()));
            let (_, oldest) = ends.min().expect("there are some");
            requests.remove(&oldest);
        }
        Ok(())
    }

    async fn forget_request(&self, name: &RequestName) -> Result<(), Error> {
        self.yield_as_network().await?;
        self.inner.requests.borrow_mut().remove(name);
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
