//! Questions of people about the embedded store. Counts come from the memory of the writer, ids
//! from rows.

use super::{Embedded, Shards};
use crate::model::{Cursor, ShardId};
use crate::store::{Balance, Error, ShardContents, ShardStore, StoreQuery};
use async_trait::async_trait;

#[async_trait(?Send)]
impl StoreQuery for Embedded {
    async fn shards(&self) -> Result<Vec<ShardId>, Error> {
        self.write(|shards| Ok(shards.names())).await
    }

    async fn contents(&self, shards: &[ShardId]) -> Result<Vec<ShardContents>, Error> {
        self.write_all(shards, Shards::contents).await
    }

    async fn balances(&self, shards: &[ShardId]) -> Result<Vec<Option<Balance>>, Error> {
        let states = self.state(shards).await?;
        let balances = states.iter().map(|state| state.as_ref().map(Balance::of));
        Ok(balances.collect())
    }

    async fn find_ids(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error> {
        let ids = ids.to_vec();
        self.read(move |view| view.find_ids(&ids)).await
    }
}
