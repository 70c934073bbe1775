//! What a person asks of the embedded store: counts come from the writer's memory, ids from rows.

use super::Embedded;
use crate::model::{Cursor, ShardId};
use crate::store::{Balance, Error, ShardContents, ShardStore, StoreQuery};
use async_trait::async_trait;

#[async_trait(?Send)]
impl StoreQuery for Embedded {
    async fn shards(&self) -> Result<Vec<ShardId>, Error> {
        self.write(|registry| Ok(registry.names())).await
    }

    async fn contents(&self, shards: &[ShardId]) -> Result<Vec<ShardContents>, Error> {
        let shards = shards.to_vec();
        self.write(move |registry| Ok(registry.contents(&shards)))
            .await
    }

    async fn balances(&self, shards: &[ShardId]) -> Result<Vec<Option<Balance>>, Error> {
        Ok(self
            .state(shards)
            .await?
            .iter()
            .map(|state| state.as_ref().map(Balance::of))
            .collect())
    }

    async fn find_ids(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error> {
        let ids = ids.to_vec();
        self.read(move |view| view.places(&ids)).await
    }
}
