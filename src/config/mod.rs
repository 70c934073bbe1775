//! The checked configuration, its defaults, and how it is loaded.
//!
//! The environment overrides the file. `decode` reads both with serde, each section checks its
//! values, and `cross_checks` compares sections. No later code reads the environment.

mod admin;
mod cross_checks;
mod decode;
mod error;
mod kafka;
mod name;
mod nats;
mod route;
mod secret;
mod store;
mod traces;

pub use error::Error;
pub(crate) use {
    admin::Admin,
    kafka::Kafka,
    nats::{Login, Nats},
    route::{BrokerKind, Delivery, OnSourceGap, Overdue, Route, Source, WithoutDelay},
    secret::Secret,
    store::{Embedded, Redis, Store},
};

use crate::limit;
use decode::{At, Range, Report, Size, Sources, Span, Table, choice};
use figment::value::Value;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use traces::Traces;

/// All options, checked: each value is possible, and the values fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Prefix of the store's keys and of consumer groups.
    pub(crate) deployment: String,
    pub(crate) roles: Roles,
    pub(crate) store: Store,
    pub(crate) kafka: BTreeMap<String, Kafka>,
    pub(crate) nats: BTreeMap<String, Nats>,
    pub(crate) routes: BTreeMap<String, Route>,
    pub(crate) timer: Timer,
    pub(crate) admin: Admin,
    pub(crate) log: Log,
    pub(crate) traces: Traces,
}

/// The roles of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) ingress: bool,
    pub(crate) timer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    /// Bytes of memory for loaded messages.
    pub(crate) memory: u64,
    pub(crate) lease: Duration,
    pub(crate) max_clock_skew: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    /// Well-formed directives such as `info,rdkafka=warn`.
    pub(crate) level: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    Text,
    Json,
}

/// With less than a few whole batches the loader could not continue.
const MEMORY: Range<Size> = Range::new(
    Size(256 << 20),
    Size(4 * limit::BATCH_BYTES_MAX as u64),
    Size(1 << 40),
);
/// Below a second, a pause of the process loses its shards. Above some minutes, a lost process
/// delays them.
const LEASE: Range<Span> = Range::new(Span::from_secs(5), Span::from_secs(1), Span::from_secs(300));
const MAX_CLOCK_SKEW: Range<Span> = Range::new(
    Span(limit::CLOCK_SKEW_MAX),
    Span::from_millis(50),
    Span::from_secs(60),
);
const DEFAULT_LEVEL: &str = "info";

/// The configuration as it is written. All keys are optional here; the checks report missing ones.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RootTable {
    deployment: Option<String>,
    roles: Option<Vec<String>>,
    store: Table<store::StoreTable>,
    kafka: BTreeMap<String, Table<kafka::KafkaTable>>,
    nats: BTreeMap<String, Table<nats::NatsTable>>,
    route: BTreeMap<String, Table<route::RouteTable>>,
    timer: Table<TimerTable>,
    admin: Table<admin::AdminTable>,
    log: Table<LogTable>,
    traces: Table<traces::TracesTable>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TimerTable {
    memory: Option<Size>,
    lease: Option<Span>,
    max_clock_skew: Option<Span>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogTable {
    #[serde(deserialize_with = "choice")]
    format: LogFormat,
    level: Option<String>,
}

impl Config {
    /// Loads the file and the environment. The error lists all problems.
    pub fn load(file: &Path) -> Result<Self, Error> {
        let text = decode::read_file(file).map_err(|problem| Error::new(vec![problem]))?;
        Self::parse(file, &text, std::env::vars_os())
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
        let report = Report::new(Sources::new(file, text, environment).map_err(Error::new)?);
        let config = Self::check(&report.root(), report.decode());
        cross_checks::check(&config, &report);
        let problems = report.into_problems();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(Error::new(problems))
        }
    }

    /// Checks the sections. A missing or invalid value is replaced by some other, and reported.
    fn check(at: &At<'_>, root: RootTable) -> Self {
        let routes = at.key("route");
        let is_empty = |value: &Value| value.as_dict().is_some_and(BTreeMap::is_empty);
        if routes.value().is_none_or(is_empty) {
            routes.refuse(
                "missing",
                "add a [route.<name>] with source, target and dead_letter: see config/kafka.toml",
            );
        }
        Self {
            deployment: check_deployment(&at.key("deployment"), root.deployment),
            roles: check_roles(&at.key("roles"), root.roles),
            store: store::check(&at.key("store"), root.store.0),
            kafka: check_named(&at.key("kafka"), root.kafka, kafka::check),
            nats: check_named(&at.key("nats"), root.nats, nats::check),
            routes: check_named(&routes, root.route, route::check),
            timer: check_timer(&at.key("timer"), &root.timer.0),
            admin: admin::check(&at.key("admin"), root.admin.0),
            log: check_log(&at.key("log"), root.log.0),
            traces: traces::check(&at.key("traces"), root.traces.0),
        }
    }

    /// Logs only errors: for commands whose output says everything else.
    #[must_use]
    pub fn log_errors_only(mut self) -> Self {
        "error".clone_into(&mut self.log.level);
        self
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

/// Checks tables whose names the user chooses.
fn check_named<'a, T, C>(
    at: &At<'a>,
    tables: BTreeMap<String, Table<T>>,
    check: impl Fn(&At<'a>, T) -> C,
) -> BTreeMap<String, C> {
    let check_one = |(name, Table(table)): (String, Table<T>)| {
        let at = at.key(&name);
        if !name::is_name(&name) {
            at.refuse("invalid name", name::NAME);
        }
        let checked = check(&at, table);
        (name, checked)
    };
    tables.into_iter().map(check_one).collect()
}

fn check_deployment(at: &At<'_>, deployment: Option<String>) -> String {
    at.missing("add deployment = \"prod\": the prefix of this installation's Redis keys and consumer groups");
    if deployment
        .as_deref()
        .is_some_and(|name| !name::is_deployment(name))
    {
        at.refuse(
            format!("{:?} is an invalid name", at.shown()),
            name::DEPLOYMENT,
        );
    }
    deployment.unwrap_or_default()
}

fn check_roles(at: &At<'_>, roles: Option<Vec<String>>) -> Roles {
    if roles.is_none() {
        return Roles::BOTH;
    }
    let mut checked = Roles::default();
    for (at, word) in at.entries(roles) {
        match at.choose(&word, &[("ingress", true), ("timer", false)]) {
            Some(true) => checked.ingress = true,
            Some(false) => checked.timer = true,
            None => {}
        }
    }
    checked
}

impl Roles {
    const BOTH: Self = Self {
        ingress: true,
        timer: true,
    };
}

fn check_timer(at: &At<'_>, timer: &TimerTable) -> Timer {
    let max_clock_skew = at.key("max_clock_skew");
    Timer {
        memory: at.key("memory").in_range(timer.memory, &MEMORY).0,
        lease: at.key("lease").in_range(timer.lease, &LEASE).0,
        max_clock_skew: max_clock_skew
            .in_range(timer.max_clock_skew, &MAX_CLOCK_SKEW)
            .0,
    }
}

fn check_log(at: &At<'_>, log: LogTable) -> Log {
    let level = log.level.unwrap_or_else(|| DEFAULT_LEVEL.to_owned());
    if !is_log_filter(&level) {
        let at = at.key("level");
        at.refuse(
            format!("{:?} is not a filter", at.shown()),
            "write a level (off error warn info debug trace), or levels by module: \"info,postdate::timer=debug,rdkafka=warn\"",
        );
    }
    Log {
        format: log.format,
        level,
    }
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
