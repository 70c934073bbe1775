//! An injected fault as a view of the store: the tail is read by run count instead of by offset.
//!
//! A run that the reader has not seen counts as new, at any watermark.

use crate::model::{ShardId, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::{
    Error, Fetch, Hold, Lineage, List, Listed, RunEntry, ShardStore, Tail, TailRun, Tailed,
};
use crate::testing::store::memory::MemoryStore;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The run names that each shard's reader has seen. Like run numbers, they are never reused.
#[derive(Default)]
pub(crate) struct TailByRunCount(RefCell<BTreeMap<ShardId, BTreeSet<RunName>>>);

impl TailByRunCount {
    /// Called before a shard is acquired: its existing runs are listed and not part of the tail.
    pub(crate) async fn begin(&self, store: &MemoryStore, shard: &ShardId) -> Result<(), Error> {
        let read = all(store, shard)
            .await?
            .map(|(.., runs)| runs.into_iter().map(|run| run.name).collect());
        self.0
            .borrow_mut()
            .insert(shard.clone(), read.unwrap_or_default());
        Ok(())
    }

    pub(crate) async fn tail(&self, store: &MemoryStore, request: &Tail) -> Result<Tailed, Error> {
        let Some((watermark, history, mut listings)) = all(store, &request.shard).await? else {
            return Ok(Tailed::Unknown);
        };
        {
            let mut read = self.0.borrow_mut();
            let read = read.entry(request.shard.clone()).or_default();
            listings.retain(|run| read.insert(run.name.clone()));
        }
        let (near, far): (Vec<_>, Vec<_>) = listings
            .into_iter()
            .partition(|run| run.least_due <= request.until);
        let fetch = Fetch {
            shard: request.shard.clone(),
            runs: near
                .iter()
                .map(|run| (run.slice, run.name.clone()))
                .collect(),
        };
        let bytes = store.fetch(&[fetch]).await?.pop().unwrap_or_default();
        let near = near.into_iter().zip(bytes).map(|(listing, bytes)| TailRun {
            entry: listing,
            bytes,
        });
        let runs = near
            .chain(far.into_iter().map(|listing| TailRun {
                entry: listing,
                bytes: None,
            }))
            .collect();
        Ok(Tailed::Runs {
            watermark,
            complete_to: watermark,
            lineage: history,
            hold: Hold::Until(Watermark(0)),
            pause: None,
            runs,
        })
    }
}

async fn all(
    store: &MemoryStore,
    shard: &ShardId,
) -> Result<Option<(Watermark, Lineage, Vec<RunEntry>)>, Error> {
    let list = List {
        shard: shard.clone(),
        from: Timestamp::AT_ONCE,
        until: Timestamp::MAX,
        limit: usize::MAX,
    };
    Ok(match store.list(&[list]).await?.pop() {
        Some(Listed::Runs {
            watermark,
            lineage: history,
            runs,
            ..
        }) => Some((watermark, history, runs)),
        _ => None,
    })
}
