//! What a person asks of the embedded store: counts come from the writer's memory, ids from rows.

use super::Embedded;
use crate::model::{Cursor, ShardId};
use crate::store::{Contents, Error, Survey};
use async_trait::async_trait;

#[async_trait(?Send)]
impl Survey for Embedded {
    async fn shards(&self) -> Result<Vec<ShardId>, Error> {
        self.write(|ledger| Ok(ledger.names())).await
    }

    async fn contents(&self, shards: &[ShardId]) -> Result<Vec<Contents>, Error> {
        let shards = shards.to_vec();
        self.write(move |ledger| Ok(ledger.contents(&shards))).await
    }

    async fn places(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error> {
        let ids = ids.to_vec();
        self.read(move |view| view.places(&ids)).await
    }
}
