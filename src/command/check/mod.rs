//! `postdate check`: reports whether the configuration works with its brokers and its store, and
//! plans repairs. It changes a cluster only with `--apply`.
//!
//! The broker adapters judge their clusters. Pure functions in `redis`, `sentinels`, `folder`,
//! `waiting`, `formats` and `keys` judge the store, and `text` formats the result.

mod cluster;
mod folder;
mod formats;
mod keys;
mod memory;
mod redis;
mod sentinels;
mod text;
mod waiting;

use super::page::print_document;
use super::pending::QueryClient;
use super::plan::{Plan, Step};
use super::{Outcome, run};
use crate::broker::inspection::{Finding, Verdict};
use crate::cli::CheckArgs;
use crate::clock::WallClock;
use crate::config::{self, Config};
use crate::limit::CHECK_TIMEOUT;
use crate::model::{Offset, PositionRules, RulesHistory, zone_data_version};
use crate::role::{redis_options, routing_rules};
use crate::store;
use crate::store::embedded::{FolderDescription, FolderUse};
use crate::store::query::{PendingReport, Query};
use crate::store::redis::Redis;
use anyhow::Result;
use futures_util::future::join;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Default folder of the embedded store.
const DEFAULT_FOLDER: &str = "./postdate-data";

/// The document of `--json`. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Document {
    deployment: String,
    ok: usize,
    warn: usize,
    fail: usize,
    items: Vec<Item>,
    /// Only with `--fix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Item {
    /// `kafka.<name>`, `nats.<name>`, `routes`, `process`, `store`, `waiting`, `workers` or `keys`.
    area: String,
    #[serde(flatten)]
    finding: Finding,
}

impl Document {
    fn new(deployment: &str, areas: Vec<(String, Vec<Finding>)>, plan: Option<Plan>) -> Self {
        let item = |area: &str, finding| Item {
            area: area.to_owned(),
            finding,
        };
        let items = areas.into_iter().flat_map(|(area, findings)| {
            findings
                .into_iter()
                .map(move |finding| item(&area, finding))
        });
        let items: Vec<Item> = items.collect();
        let count = |verdict| {
            let verdicts = items.iter().map(|item| item.finding.verdict);
            verdicts.filter(|found| *found == verdict).count()
        };
        Self {
            deployment: deployment.to_owned(),
            ok: count(Verdict::Ok),
            warn: count(Verdict::Warn),
            fail: count(Verdict::Fail),
            items,
            plan,
        }
    }

    /// An item that a planned change repairs does not count as a failure.
    fn outcome(&self) -> Outcome {
        let is_planned = |finding: &Finding| self.plan.is_some() && finding.change.is_some();
        let is_failure =
            |item: &Item| item.finding.verdict == Verdict::Fail && !is_planned(&item.finding);
        let mut steps = self.plan.iter().flat_map(|plan| &plan.steps);
        let has_failed =
            self.items.iter().any(is_failure) || steps.any(|step| step.error.is_some());
        Outcome::failing_if(has_failed)
    }
}

/// Checks everything that the configuration names and prints the result.
pub fn check(config: &Config, check: &CheckArgs) -> Result<Outcome> {
    let (clusters, store) = run(async {
        let clusters = cluster::inspect_all(config, check);
        Ok(join(clusters, check_store(config)).await)
    })?;
    let (mut areas, mut steps) = (Vec::new(), Vec::<Step>::new());
    let is_complete = clusters.iter().all(|cluster| cluster.was_inspected);
    for cluster in clusters {
        areas.push((cluster.area, cluster.findings));
        steps.extend(cluster.steps);
    }
    let mut routes = long_rules(config);
    routes.extend(unsigned_retries(config));
    routes.extend(zone_data(config));
    areas.push(("routes".to_owned(), routes));
    areas.push(("process".to_owned(), memory::check(config)));
    areas.extend(store);
    let plan = check.fix.then(|| Plan::new(config, is_complete, steps));
    let document = Document::new(&config.deployment, areas, plan);
    print_document(&document, check.output, text::document)?;
    Ok(document.outcome())
}

fn no_answer() -> String {
    format!("no answer within {} s", CHECK_TIMEOUT.as_secs())
}

/// The release of the time-zone data, if a route is recurring.
fn zone_data(config: &Config) -> Option<Finding> {
    let found = format!("release {}; all workers need the same", zone_data_version());
    let is_used = config.routes.values().any(|route| route.recurring);
    is_used.then(|| Finding::ok("time-zone data", found))
}

/// Warns of routes whose rules are too long to be committed with the offsets.
fn long_rules(config: &Config) -> Vec<Finding> {
    let is_long = |name: &&String| {
        let rules = PositionRules::of(&routing_rules(config, name));
        let history = RulesHistory::default().followed_by(&rules, Offset(0));
        !history.is_kept()
    };
    let names = config.routes.keys().filter(is_long);
    let finding = |name: &String| {
        let found = "its targets are too long to be committed with the offsets: if the store is lost after they change, dead letters may be repeated";
        let fix = format!("use patterns in route.{name}.allow instead of many names");
        Finding::warn(name, found, fix)
    };
    names.map(finding).collect()
}

/// Warns of a rollout of retry keys that was not finished.
fn unsigned_retries(config: &Config) -> Option<Finding> {
    let found = "a retry without a signature is accepted, so a producer can still forge one";
    let fix = "remove accept_unsigned_retries when all processes have the retry key";
    let is_open = config.retry_key.is_some() && config.accept_unsigned_retries;
    is_open.then(|| Finding::warn("retries", found, fix))
}

async fn check_store(config: &Config) -> Vec<(String, Vec<Finding>)> {
    let mut areas = Vec::new();
    let is_usable = match &config.store.kind {
        config::Store::Redis(redis) => {
            let options = redis_options(config, redis);
            let found = Redis::describe(&options, &WallClock);
            let found = tokio::time::timeout(CHECK_TIMEOUT, found).await;
            let found = found.unwrap_or_else(|_| Err(store::Error::Unavailable(no_answer())));
            let judged = redis::judge(&found, config.timer.max_clock_skew);
            let mut findings = judged.iter().flat_map(|(_, findings)| findings);
            let is_usable = findings.all(|finding| finding.verdict != Verdict::Fail);
            areas.extend(judged);
            areas.push(("waiting".to_owned(), left_behind(config).await));
            is_usable
        }
        config::Store::Embedded(embedded) => {
            let found = FolderDescription::of(&embedded.path);
            areas.push(("store".to_owned(), folder::judge(&found)));
            found.foreign_format.is_none()
        }
    };
    if is_usable {
        let query = Query::Pending { route: None };
        let found = ask(config, &query).await;
        let found = found.map_err(|error| format!("{error:#}"));
        areas.push(("waiting".to_owned(), waiting::judge(&found, &config.routes)));
        if found.is_ok() {
            let workers = ask(config, &Query::Workers).await;
            let workers = workers.map_err(|error| format!("{error:#}"));
            areas.push((
                "workers".to_owned(),
                formats::judge(&workers, &formats::options_of_new_formats(config)),
            ));
            let used = ask(config, &Query::Keys).await;
            let used = used.map_err(|error| format!("{error:#}"));
            areas.push(("keys".to_owned(), keys::judge(&used, &config.keys())));
        }
    }
    areas
}

async fn ask<T: DeserializeOwned>(config: &Config, query: &Query) -> Result<T> {
    let report = async { QueryClient::open(config).await?.ask(query).await };
    let report = tokio::time::timeout(CHECK_TIMEOUT, report).await;
    report.unwrap_or_else(|_| anyhow::bail!(no_answer()))
}

/// Reports messages in the default folder of an embedded store while the configuration uses Redis.
async fn left_behind(config: &Config) -> Vec<Finding> {
    let waits = match FolderDescription::of(DEFAULT_FOLDER.as_ref()).used {
        FolderUse::Absent | FolderUse::OwnedByOther(_) | FolderUse::Unreadable(_) => return vec![],
        FolderUse::InUse(_) => None,
        FolderUse::Free => {
            let path = DEFAULT_FOLDER.into();
            let mut config = config.clone();
            config.store.kind = config::Store::Embedded(config::Embedded { path });
            let query = Query::Pending { route: None };
            let Ok(report) = ask::<PendingReport>(&config, &query).await else {
                return vec![];
            };
            Some(report.total.messages + report.total.quarantined)
        }
    };
    Vec::from_iter(folder::left_behind(DEFAULT_FOLDER, waits))
}
