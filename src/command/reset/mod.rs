//! `postdate reset`: moves the position of a source topic, for example after the topic was deleted
//! and created again, and erases its stored state.
//!
//! New messages reuse the ids of old ones. If a target drops duplicates by id, as a stream of NATS
//! does, the command waits until its duplicate window has passed.

mod steps;

#[cfg(test)]
pub(crate) use steps::test_support;

use super::page::print;
use super::run;
use crate::broker::GroupAdmin;
use crate::cli::ResetArgs;
use crate::clock::{Clock as _, WallClock};
use crate::config::{Config, Route};
use crate::health::Health;
use crate::limit::STORE_RESPONSE_TIMEOUT;
use crate::model::{Partition, ShardId, StartPoint, Timestamp};
use crate::role::{StoreFactory, groups};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use steps::{Groups, apply, ensure_stopped, start_offsets};

/// Moves the position of a topic, so that the service reads it from there.
pub fn reset(config: &Config, reset: &ResetArgs) -> Result<()> {
    run(async {
        let store = StoreFactory::open(config, WallClock)?
            .connect(STORE_RESPONSE_TIMEOUT)
            .await;
        let store = store.context("store.redis")?;
        ensure_stopped(&*store).await?;
        let route = &config.routes[&reset.route];
        let (source_group, markers) = groups(config, &reset.route);
        let part = Health::new().register("reset");
        let cluster = config.cluster(&route.source.cluster);
        let mut source = cluster.admin(Some(&source_group), part)?;
        let (shards, gone) = shards(&mut *source, reset).await?;
        let starts = start_offsets(&mut *source, &shards, reset.from).await?;
        let all = [&shards[..], &gone].concat();
        let mut waiting = Vec::new();
        for (shard, state) in all.iter().zip(store.state(&all).await?) {
            let pending = state.map_or(0, |state| state.pending() + state.quarantined);
            waiting.extend((pending > 0).then(|| format!("{shard}: {pending}")));
        }
        ensure!(
            waiting.is_empty() || reset.discard,
            "messages still wait, so nothing was erased ({}): let a running service deliver them first, or give --discard to lose them",
            waiting.join(", ")
        );
        let windows = duplicate_windows(config, route).await;
        let windows = windows.context(
            "nothing was erased: cannot read the duplicate windows of the target streams",
        )?;
        let groups = Groups {
            source: source_group,
            markers,
        };
        let done = apply(&*store, &mut *source, &groups, (&shards, &starts), &gone).await;
        done.context("run the same command again")?;
        let topic = &reset.topic;
        print(&format!(
            "{topic}: erased the stored state of {} partitions.\n",
            all.len()
        ))?;
        wait_for_windows(&windows, reset.no_wait).await?;
        print("Start the service: it reads from\n")?;
        for (shard, (_, offset)) in shards.iter().zip(&starts) {
            print(&format!("  {} offset {offset}\n", shard.partition))?;
        }
        Ok(())
    })
}

/// The shards of the partitions to reset, and those of partitions that do not exist: a recreated
/// topic may have fewer.
async fn shards(
    source: &mut dyn GroupAdmin,
    reset: &ResetArgs,
) -> Result<(Vec<ShardId>, Vec<ShardId>)> {
    let found = source
        .partitions(std::slice::from_ref(&reset.topic))
        .await?;
    let found = found.into_iter().map(|(partition, _)| partition);
    let shard = |partition| ShardId::new(reset.route.as_str(), partition);
    let mut existing: Vec<_> = found.map(shard).collect();
    let mut gone = Vec::new();
    if let Some(index) = reset.partition {
        existing.retain(|shard| shard.partition.index == index);
        if existing.is_empty() {
            gone.push(shard(Partition::new(reset.topic.as_str(), index)));
        }
    }
    ensure!(
        !existing.is_empty() || !gone.is_empty(),
        "the topic {} does not exist: create it first",
        reset.topic
    );
    let is_offset = matches!(reset.from, StartPoint::Offset(_));
    ensure!(
        !is_offset || existing.len() == 1,
        "nothing was changed: an offset is for one partition, so give --partition too"
    );
    Ok((existing, gone))
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
    let allowed = route.allow.iter().chain(&route.allow_replies).flatten();
    let allowed = allowed.map(String::as_str);
    targets
        .entry(route.target_cluster())
        .or_default()
        .extend(allowed);
    let mut windows = Vec::new();
    for (cluster, targets) in targets {
        let part = Health::new().register("reset");
        let mut inspector = config.cluster(cluster).admin(None, part)?;
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
