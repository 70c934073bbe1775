//! `postdate check`: reports whether the configuration works with its brokers and its store.
//!
//! This file gathers facts. Pure functions in one file per area judge them, and `text` formats the
//! result.

mod folder;
mod item;
mod kafka;
mod nats;
mod redis;
mod text;
mod waiting;

use super::page::{Page, print};
use super::pending::{Source, json};
use super::{Outcome, run};
use crate::broker;
use crate::broker::kafka::KafkaCatalog;
use crate::cli::CheckArgs;
use crate::clock::WallClock;
use crate::config::{self, Config};
use crate::health::Health;
use crate::limit::CHECK_TIMEOUT;
use crate::role::{kafka_cluster, redis_options};
use crate::store::embedded::{FolderDescription, FolderUse};
use crate::store::redis::Redis;
use crate::store::{self, query::PendingReport};
use anyhow::Result;
use futures_util::future::{join, join_all};
use item::{Document, Item};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Default folder of the embedded store.
const DEFAULT_FOLDER: &str = "./postdate-data";

/// Checks everything that the configuration names and prints the result.
pub(crate) fn check(config: &Config, check: &CheckArgs) -> Result<Outcome> {
    let items = run(async { Ok(look(config).await) })?;
    let document = Document::new(&config.deployment, items);
    print(&if check.json {
        json(&document)?
    } else {
        text::document(&document, &Page::of_stdout())
    })?;
    Ok(if document.fail > 0 {
        Outcome::Failing
    } else {
        Outcome::Done
    })
}

async fn look(config: &Config) -> Vec<Item> {
    let clusters = join_all(
        used_clusters(config)
            .into_iter()
            .map(|name| look_at_cluster(config, name)),
    );
    let (clusters, store) = join(clusters, look_at_store(config)).await;
    clusters.into_iter().flatten().chain(store).collect()
}

fn used_clusters(config: &Config) -> BTreeSet<&str> {
    let names = config.routes.values().flat_map(|route| {
        [
            &*route.source.cluster,
            route.target_cluster(),
            &*route.dead_letter.cluster,
        ]
    });
    names.collect()
}

async fn look_at_cluster(config: &Config, name: &str) -> Vec<Item> {
    let duties = kafka::duties(config, name);
    if config.nats.contains_key(name) {
        return nats::look(config, name, &duties).await;
    }
    let topics: Vec<String> = duties
        .iter()
        .map(|duty| duty.topic.clone())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let found = match KafkaCatalog::new(
        &kafka_cluster(config, name),
        None,
        Health::new().register("check"),
    ) {
        Err(error) => Err(error),
        Ok(mut catalog) => {
            let found =
                tokio::time::timeout(CHECK_TIMEOUT, catalog.describe_cluster(&topics)).await;
            broker::Catalog::close(&mut catalog).await;
            found.unwrap_or_else(|_| {
                Err(broker::Error::Unavailable(format!(
                    "no answer within {} s",
                    CHECK_TIMEOUT.as_secs()
                )))
            })
        }
    };
    kafka::judge(name, &config.kafka[name].brokers, &duties, &found)
}

async fn look_at_store(config: &Config) -> Vec<Item> {
    match &config.store {
        config::Store::Redis(redis) => {
            let found = tokio::time::timeout(
                CHECK_TIMEOUT,
                Redis::describe(&redis_options(config, redis), &WallClock),
            )
            .await;
            let found = found.unwrap_or_else(|_| {
                Err(store::Error::Unavailable(format!(
                    "no answer within {} s",
                    CHECK_TIMEOUT.as_secs()
                )))
            });
            let mut items = redis::judge(&found, config.timer.max_clock_skew);
            let is_usable = items.iter().all(|item| item.verdict != item::Verdict::Fail);
            items.extend(look_at_left_behind(config).await);
            if is_usable {
                items.extend(look_at_waiting(config).await);
            }
            items
        }
        config::Store::Embedded(embedded) => {
            let found = FolderDescription::of(&embedded.path);
            let mut items = folder::judge(&found);
            if found.foreign_format.is_none() {
                items.extend(look_at_waiting(config).await);
            }
            items
        }
    }
}

async fn look_at_waiting(config: &Config) -> Vec<Item> {
    waiting::judge(&report(config).await.map_err(|error| format!("{error:#}")))
}

async fn report(config: &Config) -> Result<PendingReport> {
    let report = async { Source::open(config).await?.report(None).await };
    tokio::time::timeout(CHECK_TIMEOUT, report)
        .await
        .unwrap_or_else(|_| anyhow::bail!("no answer within {} s", CHECK_TIMEOUT.as_secs()))
}

/// Reports messages in the default folder of an embedded store while the configuration uses Redis.
async fn look_at_left_behind(config: &Config) -> Option<Item> {
    let folder = FolderDescription::of(DEFAULT_FOLDER.as_ref());
    let waits = match folder.used {
        FolderUse::Absent => return None,
        FolderUse::OwnedByOther(_) | FolderUse::Unreadable(_) => return None,
        FolderUse::InUse(_) => None,
        FolderUse::Free => {
            let store = config::Store::Embedded(config::Embedded {
                path: PathBuf::from(DEFAULT_FOLDER),
            });
            let report = report(&Config {
                store,
                ..config.clone()
            })
            .await
            .ok()?;
            Some(report.total.messages + report.total.quarantined)
        }
    };
    folder::left_behind(DEFAULT_FOLDER, waits)
}
