//! Reads and restores quarantined runs.

use super::Embedded;
use super::reader::ReadView;
use super::shard::Shard;
use crate::model::ShardId;
use crate::run::RunName;
use crate::store::{Error, QuarantineStore, Restore, Restored};
use async_trait::async_trait;
use bytes::Bytes;

#[async_trait(?Send)]
impl QuarantineStore for Embedded {
    async fn quarantined_bytes(
        &self,
        shard: &ShardId,
        name: &RunName,
    ) -> Result<Option<Bytes>, Error> {
        let read = |view: &ReadView<'_>, shard: &&ShardId| view.quarantined_bytes(shard, name);
        Ok(self.read_each(&[shard], read)?.pop().flatten())
    }

    async fn restore(&self, request: &Restore) -> Result<Restored, Error> {
        let requests = std::slice::from_ref(request);
        self.check_space(requests)?;
        let gone = Restored::Gone;
        let restored = self.change(requests, |request| &request.shard, gone, Shard::restore);
        Ok(restored.await?.pop().unwrap_or(gone))
    }
}
