//! `postdate reset`: erases the stored state of a topic that was deleted and created again.
//!
//! New messages reuse the ids of old ones. If a target is on NATS, the command waits until the
//! deduplication windows of its streams have passed.

use super::page::print;
use crate::broker::Error;
use crate::broker::nats::NatsCatalog;
use crate::cli::ResetArgs;
use crate::clock::{Clock as _, WallClock};
use crate::config::{BrokerKind, Config, Route};
use crate::health::Health;
use crate::limit::CLOCK_SKEW_MAX;
use crate::model::{Partition, ShardId, Timestamp};
use crate::role::{StoreFactory, catalog, nats_cluster};
use crate::store::StoredShard;
use anyhow::{Context, Result};
use std::collections::BTreeSet;

/// Erases the stored shards of a topic, so that the service reads the new topic from its start.
pub(crate) fn reset(config: &Config, reset: &ResetArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = StoreFactory::open(config)?.connect().await.context("store.redis")?;
        let partitions = match reset.partition {
            // The recreated topic may have fewer partitions, so accept a partition that does not
            // exist.
            Some(index) => vec![Partition::new(reset.topic.as_str(), index)],
            None => {
                let mut catalog = catalog(config, &reset.route, Health::new().register("reset"))?;
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
        let memories = memories(config, &config.routes[&reset.route]).await;
        let memories =
            memories.context("nothing was erased, for it is not known how long the streams of the targets know what they have")?;
        store.erase(&shards).await?;
        let (of, count) = (&reset.topic, shards.len());
        print(&format!("{of}: what was kept of {count} partitions is erased.\n"))?;
        outlast(&memories, reset.no_wait).await?;
        print("Start the service: it reads them from their first retained records.\n")
    })
}

/// The shards that still hold messages, each with its number of messages.
fn still_waiting(shards: &[ShardId], states: Vec<Option<StoredShard>>) -> Vec<String> {
    let pending = states
        .into_iter()
        .map(|state| state.map_or(0, |state| state.pending() + state.quarantined));
    shards
        .iter()
        .zip(pending)
        .filter(|(_, pending)| *pending > 0)
        .map(|(shard, pending)| format!("{shard}: {pending}"))
        .collect()
}

/// A target stream, and the time until which it drops a message with a known id as a duplicate.
struct Memory {
    stream: String,
    until: Timestamp,
}

/// Finds the deduplication times of all streams that take the route's messages or dead letters.
async fn memories(config: &Config, route: &Route) -> Result<Vec<Memory>, Error> {
    let mut memories = Vec::new();
    for (cluster, filter) in arrivals(route) {
        let catalog = NatsCatalog::new(
            &nats_cluster(config, cluster),
            Health::new().register("reset"),
        );
        for facts in catalog.streams_for_subject(&filter).await? {
            // Subjects that start with `$` belong to the server, so such a stream cannot be a
            // target.
            let is_theirs = facts
                .config
                .subjects
                .iter()
                .all(|subject| subject.starts_with('$'));
            let until = facts
                .last_message_at
                .plus(facts.config.duplicate_window + CLOCK_SKEW_MAX);
            memories.extend((!is_theirs).then_some(Memory {
                stream: facts.config.name,
                until,
            }));
        }
    }
    Ok(memories)
}

/// Cluster and subject filter of each NATS target to which the route can deliver.
fn arrivals(route: &Route) -> BTreeSet<(&str, String)> {
    let named = route
        .target
        .iter()
        .chain([&route.dead_letter])
        .filter(|topic| topic.kind == BrokerKind::Nats);
    let mut arrivals: BTreeSet<_> = named
        .map(|topic| (topic.cluster.as_str(), whatever(&topic.name)))
        .collect();
    if route.target_kind() == BrokerKind::Nats {
        arrivals.extend(
            route
                .allow
                .iter()
                .flatten()
                .map(|allowed| (route.target_cluster(), allowed.clone())),
        );
    }
    arrivals
}

/// The filter that covers every subject a target template can expand to.
fn whatever(target: &str) -> String {
    let fixed: Vec<_> = target
        .split('.')
        .take_while(|token| !token.starts_with('$'))
        .collect();
    if fixed.len() == target.split('.').count() {
        target.to_owned()
    } else {
        [fixed, vec![">"]].concat().join(".")
    }
}

/// Waits until every window has passed. With `ends_at_once`, only prints the time until which to
/// wait.
async fn outlast(memories: &[Memory], ends_at_once: bool) -> Result<()> {
    let now = WallClock.now();
    let Some(last) = memories
        .iter()
        .filter(|memory| memory.until > now)
        .max_by_key(|memory| memory.until)
    else {
        return Ok(());
    };
    let until = last.until.to_rfc3339();
    let why = format!(
        "until then the stream {} drops what bears the id of a message that it has, as new ones of the topic do",
        last.stream
    );
    if ends_at_once {
        return print(&format!(
            "Do not start the service before {until}: {why}.\n"
        ));
    }
    print(&format!(
        "Waiting until {until}: {why} (--no-wait leaves the waiting to you).\n"
    ))?;
    tokio::time::sleep(last.until.since(now)).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_made_of_a_messages_subject_is_looked_for_wherever_it_may_lead() {
        for (target, filter) in [
            ("orders", "orders"),
            ("orders.$1", "orders.>"),
            ("a.$2.b.$1", "a.>"),
            ("$1", ">"),
            ("a.b$1", "a.b$1"),
        ] {
            assert_eq!(whatever(target), filter);
        }
    }
}
