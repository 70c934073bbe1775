//! The checked configuration, its defaults, and how it is loaded.
//!
//! The environment overrides the file and the files that it includes. `source` and `include` read
//! them, `decode` decodes the values with serde, each section checks its values, and `cross_checks`
//! compares sections. `reload` compares two configurations. No later code reads the environment.
//! `CONTRIBUTING.md` lists what a new kind of broker changes.

mod admin;
mod check;
mod cluster;
mod cross_checks;
mod decode;
mod error;
mod name;
mod reload;
mod route;
mod store;
mod traces;

pub use error::Error;
pub(crate) use {
    admin::{Admin, Colour, Payloads},
    cluster::{BrokerKind, Kafka, Nats, Source},
    decode::secret::Secret,
    reload::Change,
    route::{Delivery, Expired, OnDuplicate, OnSourceGap, OverQuota, Overdue, Route, WithoutDelay},
    store::{Embedded, Redis, Store, StoreOptions},
};

use crate::broker::Cluster;
use crate::encryption::KeyRing;
use crate::limit;
use crate::model::RetryKeys;
pub(crate) use crate::model::Role;
use check::At;
use decode::quantity::{optional_quantity, quantity};
use decode::source::Sources;
use decode::{choice, choices};
use serde::Deserialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use traces::Traces;

/// All options, checked: each value is possible, and the values fit together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Prefix of the store's keys and of consumer groups.
    pub(crate) deployment: String,
    /// The folder with files of routes and clusters.
    #[serde(default)]
    include: Option<PathBuf>,
    /// The roles of this process.
    #[serde(default = "all_roles", deserialize_with = "choices")]
    pub(crate) roles: BTreeSet<Role>,
    /// The keys that sign retries, one a line. The first one signs.
    pub(crate) retry_key: Option<Secret>,
    /// A retry without a signature is accepted although there is a key.
    #[serde(default)]
    pub(crate) accept_unsigned_retries: bool,
    /// Bytes of memory for the process. See [`Config::memory_budget`].
    #[serde(default = "default_memory", deserialize_with = "quantity")]
    pub(crate) memory: u64,
    #[serde(default)]
    pub(crate) store: StoreOptions,
    #[serde(default)]
    pub(crate) kafka: BTreeMap<String, Kafka>,
    #[serde(default)]
    pub(crate) nats: BTreeMap<String, Nats>,
    #[serde(default, rename = "route")]
    pub(crate) routes: BTreeMap<String, Route>,
    #[serde(default)]
    pub(crate) worker: Worker,
    #[serde(default)]
    pub(crate) timer: Timer,
    #[serde(default)]
    pub(crate) admin: Admin,
    #[serde(default)]
    pub(crate) log: Log,
    #[serde(default)]
    pub(crate) traces: Traces,
}

/// The table of a cluster, of any kind of broker.
pub(crate) trait ClusterTable {
    fn check(&self, at: &At<'_>);

    /// The addresses of its servers, without a login: host and port, after a scheme if there is one.
    fn addresses(&self) -> Vec<String>;

    /// The cluster as its adapter takes it.
    fn cluster(&self, name: &str, deployment: &str) -> Box<dyn Cluster>;
}

fn all_roles() -> BTreeSet<Role> {
    [Role::Ingress, Role::Timer].into()
}

fn default_memory() -> u64 {
    512 << 20
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct Worker {
    /// `None`: the name of the host and a number.
    pub(crate) name: Option<String>,
    /// Changes of the configuration are taken without SIGHUP.
    pub(crate) watch_config: bool,
}

impl Worker {
    fn check(&self, at: &At<'_>) {
        if let Some(name) = &self.name
            && !name::is_worker(name)
        {
            let what = format!("{name:?} is an invalid name");
            at.key("name").refuse(what, name::WORKER);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct Timer {
    /// Bytes of memory for loaded messages: the option of versions without [`Config::memory`].
    #[serde(deserialize_with = "optional_quantity")]
    memory: Option<u64>,
    #[serde(deserialize_with = "quantity")]
    pub(crate) lease: Duration,
    #[serde(deserialize_with = "quantity")]
    pub(crate) max_clock_skew: Duration,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            memory: None,
            lease: Duration::from_secs(5),
            max_clock_skew: limit::CLOCK_SKEW_MAX,
        }
    }
}

impl Timer {
    fn check(&self, at: &At<'_>) {
        if let Some(memory) = self.memory {
            at.key("memory").in_range(memory, "16MiB", "1TiB");
        }
        // Below a second, a pause of the process loses its shards. Above some minutes, a lost
        // process delays them.
        at.key("lease").in_range(self.lease, "1s", "5m");
        at.key("max_clock_skew")
            .in_range(self.max_clock_skew, "50ms", "1m");
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct Log {
    #[serde(deserialize_with = "choice")]
    pub(crate) format: LogFormat,
    /// Well-formed directives such as `info,rdkafka=warn`.
    pub(crate) level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Auto,
            level: "info".to_owned(),
        }
    }
}

impl Log {
    fn check(&self, at: &At<'_>) {
        if !is_log_filter(&self.level) {
            at.key("level").refuse(
                format!("{:?} is not a filter", self.level),
                "write a level (off error warn info debug trace), or levels by module: \"info,postdate::timer=debug,rdkafka=warn\"",
            );
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

impl Config {
    /// Loads the file and the environment.
    pub fn load(file: &Path) -> Result<Self, Error> {
        Self::load_with(file, std::env::vars_os())
    }

    fn load_with(
        file: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let text = decode::source::read_file(file)?;
        let mut sources = Sources::new(file, &text, environment)?;
        sources.include_files()?;
        if sources.is_set(&["store", "encryption"].map(str::to_owned)) {
            exclude_from_core_dumps(file)?;
        }
        Self::decode(&sources)
    }

    /// Parses a text that Postdate wrote itself. The environment does not override it.
    pub(crate) fn parse_builtin(text: &str) -> Result<Self, Error> {
        Self::parse(Path::new("built in"), text, [])
    }

    fn parse(
        file: &Path,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        Self::decode(&Sources::new(file, text, environment)?)
    }

    /// Reads the files of secrets, too.
    fn decode(sources: &Sources) -> Result<Self, Error> {
        let config: Self = sources.decode()?;
        let problems = RefCell::default();
        config.check(&At::root(sources, &problems));
        let problems = problems.into_inner();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(Error(problems))
        }
    }

    fn check(&self, at: &At<'_>) {
        if !name::is_deployment(&self.deployment) {
            let what = format!("{:?} is an invalid name", self.deployment);
            at.key("deployment").refuse(what, name::DEPLOYMENT);
        }
        if self.roles.is_empty() {
            let fix = "write [\"ingress\", \"timer\"], or one of the two";
            at.key("roles").refuse("the list is empty", fix);
        }
        if self
            .retry_key
            .as_ref()
            .is_some_and(|keys| !are_retry_keys(keys))
        {
            at.key("retry_key").refuse(
                "a key has less than 32 characters, or there are more than 8",
                "write one key a line: `openssl rand -hex 32`",
            );
        }
        if self.routes.is_empty() {
            at.key("route").refuse(
                "missing",
                "add a [route.<name>] with source, target and dead_letter: see config/kafka.toml",
            );
        }
        let memory = at.key("memory");
        memory.in_range(self.memory, "96MiB", "1TiB");
        if self.timer.memory.is_some() && memory.is_set() {
            let fix = "remove it: memory is for the whole process";
            at.key("timer")
                .key("memory")
                .refuse("memory is set, too", fix);
        }
        self.store.check(&self.deployment, &at.key("store"));
        for (kind, name, table) in self.clusters() {
            let at = at.key(kind.facts().key).key(name);
            check_name(&at, name);
            table.check(&at);
        }
        for (name, route) in &self.routes {
            let at = at.key("route").key(name);
            check_name(&at, name);
            route.check(&at);
        }
        self.worker.check(&at.key("worker"));
        self.timer.check(&at.key("timer"));
        self.admin.check(&at.key("admin"));
        self.log.check(&at.key("log"));
        self.traces.check(&at.key("traces"));
        cross_checks::check(self, at);
    }

    /// The kind, the name and the table of each cluster. No two clusters have the same name.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = (BrokerKind, &str, &dyn ClusterTable)> {
        fn tables<T: ClusterTable>(
            kind: BrokerKind,
            tables: &BTreeMap<String, T>,
        ) -> impl Iterator<Item = (BrokerKind, &str, &dyn ClusterTable)> {
            let tables = tables.iter();
            tables.map(move |(name, table)| (kind, name.as_str(), table as &dyn ClusterTable))
        }
        tables(BrokerKind::Kafka, &self.kafka).chain(tables(BrokerKind::Nats, &self.nats))
    }

    /// The kind and the table of the cluster with this name.
    pub(crate) fn cluster_table(&self, name: &str) -> (BrokerKind, &dyn ClusterTable) {
        let found = self.clusters().find(|(_, other, _)| *other == name);
        let (kind, _, table) = found.expect("loading has checked the names");
        (kind, table)
    }

    /// The cluster with this name.
    pub(crate) fn cluster(&self, name: &str) -> Box<dyn Cluster> {
        let (_, table) = self.cluster_table(name);
        table.cluster(name, &self.deployment)
    }

    /// Host and port of the brokers of a cluster.
    fn brokers(&self, cluster: &str) -> BTreeSet<String> {
        let tables = self.clusters().filter(|(_, name, _)| *name == cluster);
        let addresses = tables.flat_map(|(.., table)| table.addresses());
        let host_port = |address: String| match address.split_once("://") {
            Some((_, host_port)) => host_port.to_lowercase(),
            None => address.to_lowercase(),
        };
        addresses.map(host_port).collect()
    }

    /// Bytes that the process may use. `timer.memory` was for loaded messages only. The process was
    /// to take up to 150 MiB more, so the same limit of a container still suffices.
    pub(crate) fn memory_budget(&self) -> u64 {
        let former = |loaded| loaded + (150 << 20) - limit::MEMORY_BESIDE_BUDGET_BYTES;
        self.timer.memory.map_or(self.memory, former)
    }

    /// True if the budget comes from `timer.memory`.
    pub(crate) fn has_former_memory(&self) -> bool {
        self.timer.memory.is_some()
    }

    /// Logs only errors: for commands whose output says everything else.
    #[must_use]
    pub fn log_errors_only(mut self) -> Self {
        "error".clone_into(&mut self.log.level);
        self
    }

    /// The keys that encrypt what the store keeps. Derives them anew: keep the result.
    pub(crate) fn keys(&self) -> KeyRing {
        let options = self.store.encryption.as_ref();
        let keys = options.and_then(|options| options.keys.as_ref());
        keys.map_or_else(KeyRing::plain, |keys| {
            KeyRing::parse(&self.deployment, keys.expose()).expect("loading has checked the keys")
        })
    }

    pub(crate) fn retry_keys(&self) -> RetryKeys {
        let keys = self.retry_key.as_ref().map_or("", Secret::expose);
        RetryKeys::new(keys, self.accept_unsigned_retries)
    }

    /// The route that `--route` names, or the only route.
    pub(crate) fn route_named_or_only(&self, name: Option<&str>) -> Result<&str, Error> {
        let known: Vec<&str> = self.routes.keys().map(String::as_str).collect();
        let found = match name {
            Some(name) => known.iter().find(|known| **known == name),
            None => known.first().filter(|_| known.len() == 1),
        };
        let what = match name {
            Some(name) => format!("there is no route {name:?}"),
            None => "there are several routes".to_owned(),
        };
        let fix = format!("choose from: {}", known.join(", "));
        found
            .copied()
            .ok_or_else(|| Error::for_option("--route", what, fix))
    }

    /// Checks that the route that `--route` names reads the topic that `--topic` names.
    pub fn check_source(&self, route: &str, topic: &str) -> Result<(), Error> {
        let route = self.route_named_or_only(Some(route))?;
        let topics = &self.routes[route].source.topics;
        if topics.iter().any(|read| read == topic) {
            return Ok(());
        }
        Err(Error::for_option(
            "--topic",
            format!("route {route} does not read a topic {topic:?}"),
            format!("choose from: {}", topics.join(", ")),
        ))
    }
}

/// Checks the name of a table that the user chooses.
fn check_name(at: &At<'_>, name: &str) {
    if !name::is_name(name) {
        at.refuse("invalid name", name::NAME);
    }
}

/// Turns off core dumps of this process, because its memory contains keys. Other processes of the
/// user can then not read its memory either.
fn exclude_from_core_dumps(file: &Path) -> Result<(), Error> {
    use rustix::process::{DumpableBehavior, Resource, Rlimit};
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let excluded = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .and_then(|()| rustix::process::setrlimit(Resource::Core, none));
    excluded.map_err(|error| {
        let what = format!("core dumps cannot be turned off: {error}");
        let fix = "allow prctl and setrlimit, because a core dump would contain the keys";
        error::Problem::without_key(file.display().to_string(), what, fix).into()
    })
}

/// A key of 32 characters cannot be guessed. Each key costs one HMAC per retry, so few are allowed.
fn are_retry_keys(keys: &Secret) -> bool {
    let keys: Vec<&str> = keys.expose().lines().collect();
    (1..=8).contains(&keys.len()) && keys.iter().all(|key| key.len() >= 32)
}

/// Stricter than `tracing`, which reads a misspelt level as the name of a module and logs nothing
/// else.
fn is_log_filter(text: &str) -> bool {
    let is_level = |word: &str| ["off", "error", "warn", "info", "debug", "trace"].contains(&word);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
    let is_module = |word: &str| !word.is_empty() && word.chars().all(is_allowed);
    text.split(',')
        .all(|directive| match directive.split_once('=') {
            None => is_level(directive),
            Some((module, level)) => is_module(module) && is_level(level),
        })
}

#[cfg(test)]
mod error_texts_test;
#[cfg(test)]
mod tests;
