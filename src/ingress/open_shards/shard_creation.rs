//! Creates shards that the store does not have, and records in it that it has lost writes of others.

use crate::broker::PartitionInfo;
use crate::ingress::shard_init::has_lost_writes;
use crate::metric::RouteMetrics;
use crate::model::{ShardId, Watermark};
use crate::store::{self, NewShard, Opened, Store};

/// Reads the state of existing shards, and creates the others if `creates` is set. Only creating needs
/// free memory: while the store is full, existing shards are still read. `None`: not created. Each shard
/// comes with the greatest watermark that is known of it.
pub(super) async fn find_or_create(
    store: &dyn Store,
    new_shards: Vec<(NewShard, Watermark)>,
    creates: bool,
) -> Result<Vec<Option<Opened>>, store::Error> {
    let shards = new_shards.iter().map(|(new, _)| new.shard.clone());
    let states = store.state(&shards.collect::<Vec<_>>()).await?;
    let (mut absent, mut behind) = (Vec::new(), Vec::new());
    for ((new, stored), state) in new_shards.into_iter().zip(&states) {
        match state {
            None if creates => absent.push(new),
            // The store may lose the shard before the next call. Without its commit it must not be created.
            Some(state) if has_lost_writes(state, &new, stored) => {
                behind.push(NewShard { creates, ..new });
            }
            _ => {}
        }
    }
    // Appends hide the loss, so the store must know before them what may have been delivered. A full
    // store takes no append.
    if !behind.is_empty() {
        match store.open(&behind).await {
            Err(store::Error::Full) => {}
            outcome => drop(outcome?),
        }
    }
    let mut created = store.open(&absent).await?.into_iter();
    let opened = states.into_iter().map(|state| match state {
        Some(state) => Some(Opened::Existing(state)),
        None => created.next(),
    });
    Ok(opened.collect())
}

/// Logs and counts how many retained records the start position skips and reads.
pub(super) fn report_start(
    metric: &RouteMetrics,
    shard: &ShardId,
    info: &PartitionInfo,
    from: Watermark,
) {
    let (first, end) = (info.first_offset, info.end_offset);
    metric
        .start_skipped
        .increment(from.0.saturating_sub(first.0));
    metric.start_read.increment(end.0.saturating_sub(from.0));
    tracing::info!(%shard, %first, %from, %end,
        "no usable offset commit: reading starts where the option `start` says");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallClock;
    use crate::model::{Cursor, Offset, Progress, Timestamp};
    use crate::store::ShardStore as _;
    use crate::testing::store::memory::MemoryStore;
    use crate::testing::store::requests::{new_shard, shard};
    use std::rc::Rc;

    fn due_by(millis: i64) -> Progress {
        let cursor = Cursor::new(Timestamp::from_millis(millis), Offset::MAX);
        Progress::new(cursor, Watermark(90))
    }

    /// Opens a shard with the watermark 10. Returns what the store then keeps.
    async fn kept_after_opening(store: &MemoryStore, due: i64, stored: u64) -> Progress {
        let new = NewShard {
            watermark: Watermark(10),
            possibly_delivered: due_by(due),
            ..new_shard("t")
        };
        let known = vec![(new, Watermark(stored))];
        let opened = find_or_create(store, known, true).await.unwrap();
        assert!(opened.iter().all(Option::is_some));
        let state = store.state(&[shard("t")]).await.unwrap().remove(0);
        state.expect("the shard exists").possibly_delivered
    }

    #[tokio::test]
    async fn a_store_that_lost_writes_learns_what_may_have_been_delivered() {
        let store = MemoryStore::new(Rc::new(WallClock));
        assert_eq!(
            kept_after_opening(&store, 1, 10).await,
            due_by(1),
            "created"
        );
        assert_eq!(kept_after_opening(&store, 2, 10).await, due_by(1), "intact");
        assert_eq!(kept_after_opening(&store, 3, 11).await, due_by(3));
        store.set_full(true);
        assert_eq!(kept_after_opening(&store, 4, 11).await, due_by(3), "full");
    }
}
