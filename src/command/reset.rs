//! `postdate reset`: erases what the store keeps of a topic that was created again.

use super::page::print;
use crate::cli::Reset;
use crate::config::Config;
use crate::health::Health;
use crate::model::{Partition, ShardId};
use crate::role::{Storage, catalog};
use crate::store::State;
use anyhow::{Context, Result};

/// Erases what the store keeps of a topic's shards, so that the topic as it is now is read from its start.
pub(crate) fn reset(config: &Config, reset: &Reset) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = Storage::of(config)?.connect().await.context("store.redis")?;
        let source = &config.routes[&reset.route].source;
        let partitions = match reset.partition {
            // Whether or not the topic has it now: it may have been created again with fewer.
            Some(index) => vec![Partition::new(reset.topic.as_str(), index)],
            None => {
                let mut catalog = catalog(config, source, Health::new().part("reset"))?;
                catalog.partitions(std::slice::from_ref(&reset.topic)).await?
            }
        };
        anyhow::ensure!(!partitions.is_empty(), "the topic {} does not exist: create it first", reset.topic);
        let shards: Vec<_> = partitions.into_iter().map(|partition| ShardId::new(reset.route.as_str(), partition)).collect();
        let waiting = still_waiting(&shards, store.state(&shards).await?);
        anyhow::ensure!(
            waiting.is_empty() || reset.discard,
            "messages still wait, so nothing was erased ({}): let a running service deliver them first, or give --discard to lose them",
            waiting.join(", ")
        );
        store.erase(&shards).await?;
        let (of, count) = (&reset.topic, shards.len());
        print(&format!(
            "{of}: what was kept of {count} partitions is erased. Start the service: it reads them from their first retained records.\n"
        ))
    })
}

/// The shards of which an erasure would lose messages, with their number.
fn still_waiting(shards: &[ShardId], states: Vec<Option<State>>) -> Vec<String> {
    let pending = states.into_iter().map(|state| state.map_or(0, |state| state.pending + state.quarantined));
    shards.iter().zip(pending).filter(|(_, pending)| *pending > 0).map(|(shard, pending)| format!("{shard}: {pending}")).collect()
}
