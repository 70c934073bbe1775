//! The audit list of the memory store, and its requests with an idempotency key.

use super::MemoryStore;
use crate::limit::AUDIT_LINES_MAX;
use crate::model::Timestamp;
use crate::store::{AdminStore, AuditPart, AuditPosition, AuditRow, Error, RequestName};
use async_trait::async_trait;
use bytes::Bytes;
use std::time::Duration;

/// How calls about requests with an idempotency key fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RequestFault {
    #[default]
    None,
    /// The next call has its effect, and its reply is lost.
    LostReply,
    /// The calls have neither an effect nor a reply.
    NoReply,
}

#[async_trait(?Send)]
impl AdminStore for MemoryStore {
    async fn add_audit_rows(&self, rows: &[AuditRow]) -> Result<(), Error> {
        self.yield_as_network().await?;
        self.check_space()?;
        let mut audit = self.inner.audit.borrow_mut();
        audit.extend(rows.iter().map(|row| (row.position.clone(), row.clone())));
        for part in AuditPart::ALL {
            let rows = audit.values().filter(|row| row.part == part);
            let positions: Vec<_> = rows.map(|row| row.position.clone()).collect();
            let removed = positions.len().saturating_sub(AUDIT_LINES_MAX);
            for position in &positions[..removed] {
                audit.remove(position);
            }
        }
        Ok(())
    }

    async fn begin_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        kept_for: Duration,
    ) -> Result<Option<Bytes>, Error> {
        self.reach_requests().await?;
        self.check_space()?;
        let mut requests = self.inner.requests.borrow_mut();
        let kept = requests
            .get(name)
            .filter(|(end, _)| *end > self.inner.clock.now());
        let kept = kept.map(|(_, state)| state.clone());
        if kept.is_none() {
            let until = self.inner.clock.now().plus(kept_for);
            requests.insert(name.clone(), (until, state.clone()));
        }
        self.reply(kept)
    }

    async fn end_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        until: Timestamp,
        kept_max: usize,
    ) -> Result<(), Error> {
        self.reach_requests().await?;
        self.check_space()?;
        let mut requests = self.inner.requests.borrow_mut();
        requests.insert(name.clone(), (until, state.clone()));
        while requests.len() > kept_max {
            let ends = requests.iter().map(|(name, (end, _))| (*end, name.clone()));
            let (_, oldest) = ends.min().expect("there are some");
            requests.remove(&oldest);
        }
        self.reply(())
    }

    async fn forget_request(&self, name: &RequestName) -> Result<(), Error> {
        self.reach_requests().await?;
        self.inner.requests.borrow_mut().remove(name);
        self.reply(())
    }
}

impl MemoryStore {
    pub(crate) fn set_request_fault(&self, fault: RequestFault) {
        self.inner.request_fault.set(fault);
    }

    async fn reach_requests(&self) -> Result<(), Error> {
        if self.inner.request_fault.get() == RequestFault::NoReply {
            std::future::pending::<()>().await;
        }
        self.yield_as_network().await
    }

    fn reply<T>(&self, reply: T) -> Result<T, Error> {
        match self.inner.request_fault.get() {
            RequestFault::LostReply => {
                self.set_request_fault(RequestFault::None);
                Err(Error::Unavailable("the reply was lost".to_owned()))
            }
            RequestFault::None | RequestFault::NoReply => Ok(reply),
        }
    }

    pub(super) async fn read_audit_rows(
        &self,
        part: AuditPart,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        self.yield_as_network().await?;
        let audit = self.inner.audit.borrow();
        let rows = audit.values().rev().filter(|row| row.part == part);
        let rows = rows.filter(|row| before.is_none_or(|before| row.position < *before));
        Ok(rows.take(limit).cloned().collect())
    }
}
