//! `postdate reset`: erases the stored state of a topic that was deleted and created again.
//!
//! New messages reuse the ids of old ones. If a target drops duplicates by id, as a stream of NATS
//! does, the command waits until its duplicate window has passed.

use super::page::print;
use super::run;
use crate::cli::ResetArgs;
use crate::clock::{Clock as _, WallClock};
use crate::config::{Config, Route};
use crate::health::Health;
use crate::model::{Partition, ShardId, Timestamp};
use crate::role::{Cluster, StoreFactory, catalog};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// Erases the stored shards of a topic, so that the service reads the new topic from its start.
pub(crate) fn reset(config: &Config, reset: &ResetArgs) -> Result<()> {
    run(async {
        let store = StoreFactory::open(config, WallClock)?.connect().await;
        let store = store.context("store.redis")?;
        let topic = &reset.topic;
        let partitions = match reset.partition {
            // The recreated topic may have fewer partitions, so accept a partition that does not
            // exist.
            Some(index) => vec![Partition::new(topic.as_str(), index)],
            None => {
                let mut catalog = catalog(config, &reset.route, Health::new().register("reset"))?;
                catalog.partitions(std::slice::from_ref(topic)).await?
            }
        };
        ensure!(
            !partitions.is_empty(),
            "the topic {topic} does not exist: create it first"
        );
        let shard = |partition| ShardId::new(reset.route.as_str(), partition);
        let shards: Vec<_> = partitions.into_iter().map(shard).collect();
        let mut waiting = Vec::new();
        for (shard, state) in shards.iter().zip(store.state(&shards).await?) {
            let pending = state.map_or(0, |state| state.pending() + state.quarantined);
            waiting.extend((pending > 0).then(|| format!("{shard}: {pending}")));
        }
        ensure!(
            waiting.is_empty() || reset.discard,
            "messages still wait, so nothing was erased ({}): let a running service deliver them first, or give --discard to lose them",
            waiting.join(", ")
        );
        let windows = duplicate_windows(config, &config.routes[&reset.route]).await;
        let windows = windows.context(
            "nothing was erased: cannot read the duplicate windows of the target streams",
        )?;
        store.erase(&shards).await?;
        let count = shards.len();
        print(&format!(
            "{topic}: erased the stored state of {count} partitions.\n"
        ))?;
        wait_for_windows(&windows, reset.no_wait).await?;
        print("Start the service: it reads them from the first retained records.\n")
    })
}

/// The duplicate windows of all streams that take the route's messages or dead letters: names, and
/// when they have passed.
async fn duplicate_windows(config: &Config, route: &Route) -> Result<Vec<(String, Timestamp)>> {
    let mut targets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for target in route.target.iter().chain([&route.dead_letter]) {
        targets
            .entry(target.cluster.as_str())
            .or_default()
            .insert(target.name.as_str());
    }
    let allowed = route.allow.iter().flatten().map(String::as_str);
    targets
        .entry(route.target_cluster())
        .or_default()
        .extend(allowed);
    let mut windows = Vec::new();
    for (cluster, targets) in targets {
        let part = Health::new().register("reset");
        let mut inspector = Cluster::of(config, cluster).inspector(part)?;
        for target in targets {
            windows.extend(inspector.duplicate_windows(target).await?);
        }
    }
    Ok(windows)
}

/// Waits until every window has passed. With `no_wait`, only prints when that is.
async fn wait_for_windows(windows: &[(String, Timestamp)], no_wait: bool) -> Result<()> {
    let now = WallClock.now();
    let Some((stream, until)) = windows.iter().max_by_key(|(_, until)| *until) else {
        return Ok(());
    };
    let (left, until) = (until.since(now), until.to_rfc3339());
    let why =
        format!("until then the stream {stream} drops new messages that have the ids of old ones");
    if left.is_zero() {
        return Ok(());
    }
    if no_wait {
        return print(&format!(
            "Do not start the service before {until}: {why}.\n"
        ));
    }
    let hint = "--no-wait only prints this time";
    print(&format!("Waiting until {until}: {why} ({hint}).\n"))?;
    tokio::time::sleep(left).await;
    Ok(())
}
