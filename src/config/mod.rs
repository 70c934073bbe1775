//! What the operator decided: the checked configuration, its defaults, and how it is loaded. Defaults lie under the file, the file under
//! the environment; nothing reads the environment later. Says nothing of how the parts use their options.

mod admin;
mod field;
mod file;
mod kafka;
mod key;
mod name;
mod nats;
mod problem;
mod read;
mod redis;
mod relation;
mod route;
mod secret;
mod shape;
mod store;
mod traces;
mod unit;
mod unsupported;

pub use problem::Error;
#[allow(
    unused_imports,
    reason = "the options' types, for those who read the configuration"
)]
pub(crate) use {
    admin::{Admin, TlsFiles},
    kafka::Kafka,
    nats::{Login, Nats},
    redis::Redis,
    route::{
        BrokerKind, Delivery, Destination, OnSourceGap, Overdue, Retry, Route, Source, WithoutDelay,
    },
    secret::Secret,
    store::{Embedded, Store},
    traces::Traces,
};

use crate::limit;
use file::Layers;
use problem::{Place, Problem};
use read::{Range, Reader, Table};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use unit::Size;

/// Everything an operator can decide, checked: each value is possible, and they go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Prefixes the store's keys and consumer groups.
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

/// What this process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) ingress: bool,
    pub(crate) timer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    /// Bytes that loaded messages may take.
    pub(crate) memory: u64,
    pub(crate) lease: Duration,
    pub(crate) max_clock_skew: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    /// Directives such as `info,rdkafka=warn`, each of them well formed.
    pub(crate) level: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

/// Below a few whole batches the loader could not go on.
const MEMORY: Range<Size> = Range {
    default: Size(256 << 20),
    least: Size(4 * limit::BATCH_BYTES_MAX as u64),
    greatest: Size(1 << 40),
};
/// Less than a second and a pause of the process loses its shards; more than some minutes and a lost process holds them up.
const LEASE: Range<Duration> = Range {
    default: Duration::from_secs(5),
    least: Duration::from_secs(1),
    greatest: Duration::from_secs(300),
};
const SKEW: Range<Duration> = Range {
    default: limit::CLOCK_SKEW_MAX,
    least: Duration::from_millis(50),
    greatest: Duration::from_secs(60),
};
const LEVEL: &str = "info";

impl Config {
    /// Loads the file and what the environment lays over it. The error names everything that is wrong.
    pub fn load(file: &Path) -> Result<Self, Error> {
        let text = file::read(file).map_err(|problem| Error::new(vec![problem]))?;
        Self::parse(file, &text, std::env::vars_os())
    }

    /// Reads what Postdate wrote itself; the environment lies over nothing of it.
    pub(crate) fn parse_builtin(text: &str) -> Result<Self, Error> {
        Self::parse(Path::new("built in"), text, [])
    }

    /// The route of that name, or the only one, as a command said.
    pub(crate) fn route_named_or_only(&self, name: Option<&str>) -> Result<&str, Error> {
        let known: Vec<&str> = self.routes.keys().map(String::as_str).collect();
        let found = match name {
            Some(name) => known.iter().find(|known| **known == name),
            None => known.first().filter(|_| known.len() == 1),
        };
        found.copied().ok_or_else(|| {
            let what = name.map_or_else(
                || "there are several routes".to_owned(),
                |name| format!("there is no route {name:?}"),
            );
            let fix = format!("choose from: {}", known.join(", "));
            Error::for_option("--route", what, fix)
        })
    }

    fn parse(
        file: &Path,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let reader = Reader::new(Layers::new(file, text, environment).map_err(Error::new)?);
        let root = reader.root();
        shape::check(&root);
        let config = Self::read(&root);
        relation::check(&config, &reader);
        let problems = reader.into_problems();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(Error::new(problems))
        }
    }

    /// Logs errors only: for commands that end by themselves, and whose answer says the rest.
    #[must_use]
    pub fn log_errors_only(mut self) -> Self {
        "error".clone_into(&mut self.log.level);
        self
    }

    /// Whether `topic` is read by `route`, as a command said.
    pub fn check_source(&self, route: &str, topic: &str) -> Result<(), Error> {
        let fault = |option, what, known: Vec<&str>| {
            let fix = format!("choose from: {}", known.join(", "));
            Err(Error::new(vec![Problem {
                place: Place::Option(option),
                key: None,
                what,
                fix,
            }]))
        };
        match self.routes.get(route).map(|route| &route.source.topics) {
            None => fault(
                "--route",
                format!("there is no route {route:?}"),
                self.routes.keys().map(String::as_str).collect(),
            ),
            Some(topics) if topics.iter().all(|read| read != topic) => fault(
                "--topic",
                format!("route {route} does not read a topic {topic:?}"),
                topics.iter().map(String::as_str).collect(),
            ),
            Some(_) => Ok(()),
        }
    }

    /// Reads all there is; where a value is missing or impossible, something stands in its place and the problem is on the list.
    fn read(root: &Table<'_>) -> Self {
        let (kafka, nats, routes) = (root.table("kafka"), root.table("nats"), root.table("route"));
        if routes.tables().is_empty() {
            root.missing(
                "route",
                "add a [route.<name>] with source, target and dead_letter: see config/kafka.toml",
            );
        }
        Self {
            deployment: deployment(root),
            roles: roles(root),
            store: store::read(&root.table("store")),
            kafka: kafka
                .tables()
                .into_iter()
                .map(|(name, table)| (name.to_owned(), kafka::read(&table)))
                .collect(),
            nats: nats
                .tables()
                .into_iter()
                .map(|(name, table)| (name.to_owned(), nats::read(&table)))
                .collect(),
            routes: routes
                .tables()
                .into_iter()
                .map(|(name, table)| (name.to_owned(), route::read(&table)))
                .collect(),
            timer: timer(&root.table("timer")),
            admin: admin::read(&root.table("admin")),
            log: log(&root.table("log")),
            traces: traces::read(&root.table("traces")),
        }
    }
}

fn deployment(root: &Table<'_>) -> String {
    let field = root.required("deployment", "add deployment = \"prod\": it sets this installation's Redis keys and consumer groups apart");
    let name = field.and_then(|field| {
        let name = field.text()?;
        if !name::is_deployment(name) {
            field.refuse(
                format!("{:?} is not a possible name", field.shown()),
                name::DEPLOYMENT,
            );
        }
        Some(name)
    });
    name.unwrap_or_default().to_owned()
}

fn roles(root: &Table<'_>) -> Roles {
    let Some(field) = root.field("roles") else {
        return Roles {
            ingress: true,
            timer: true,
        };
    };
    let mut roles = Roles {
        ingress: false,
        timer: false,
    };
    for (entry, _) in field.texts("[\"ingress\", \"timer\"]") {
        match entry.choice(&[("ingress", true), ("timer", false)]) {
            Some(true) => roles.ingress = true,
            Some(false) => roles.timer = true,
            None => {}
        }
    }
    roles
}

fn timer(table: &Table<'_>) -> Timer {
    Timer {
        memory: table.quantity("memory", &MEMORY).0,
        lease: table.quantity("lease", &LEASE),
        max_clock_skew: table.quantity("max_clock_skew", &SKEW),
    }
}

fn log(table: &Table<'_>) -> Log {
    let formats = [
        ("auto", LogFormat::Auto),
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
    ];
    let level = table
        .field("level")
        .and_then(|field| field.text().map(|text| (field.clone(), text)));
    if let Some((field, text)) = &level
        && !is_filter(text)
    {
        let fix = "write a level (off error warn info debug trace), or levels by module: \"info,postdate::timer=debug,rdkafka=warn\"";
        field.refuse(format!("{:?} is not a filter", field.shown()), fix);
    }
    Log {
        format: table.choice("format", &formats),
        level: level.map_or(LEVEL, |(_, text)| text).to_owned(),
    }
}

/// Stricter than what reads it later: there, a misspelt level is the name of a module, and all logs but that module's go silent.
fn is_filter(text: &str) -> bool {
    let is_level = |word: &str| ["off", "error", "warn", "info", "debug", "trace"].contains(&word);
    let is_module = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-'))
    };
    text.split(',')
        .all(|directive| match directive.split_once('=') {
            None => is_level(directive),
            Some((module, level)) => is_module(module) && is_level(level),
        })
}

#[cfg(test)]
mod broken;
#[cfg(test)]
mod tests;
