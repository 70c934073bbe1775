//! Selects the brokers and the store of a demo.
//!
//! They are an in-process broker and a temporary folder, a new stream on a NATS server, or those of
//! a given configuration.

use crate::broker::kafka::InProcessKafka;
use crate::broker::nats::DemoStream;
use crate::config::{BrokerKind, Config, Error};
use crate::model::source_topic;
use crate::role::nats_cluster;
use anyhow::{Context, Result};
use tempfile::TempDir;

/// The brokers and the store of one demo.
pub(super) struct Venue {
    pub(super) config: Config,
    pub(super) route: String,
    pub(super) place: Place,
    /// Topics to watch: the target, and the dead-letter topic if it is on the same cluster.
    pub(super) watched: Vec<String>,
    pub(super) dead_letter: String,
    stage: Option<DemoStream>,
    /// Held only to keep them alive. The service reaches both through the configuration.
    _broker: Option<InProcessKafka>,
    _folder: Option<TempDir>,
}

/// Names to show to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) kind: BrokerKind,
    /// Address of the brokers.
    pub(super) address: String,
    pub(super) source: String,
    pub(super) target: String,
    /// The demo created the source and target, so other messages there come from its guests.
    pub(super) is_own: bool,
}

const ROUTE: &str = "shop";
const SOURCE: &str = "orders.delayed";
const TARGET: &str = "orders";
const DEAD_LETTER: &str = "orders.dead";
const PARTITIONS: i32 = 3;

impl Venue {
    pub(super) fn own() -> Result<Self> {
        let folder = folder()?;
        let broker =
            InProcessKafka::start(&[(SOURCE, PARTITIONS), (TARGET, PARTITIONS), (DEAD_LETTER, 1)])?;
        let address = broker.address();
        let store = folder.path().join("store");
        let config = Config::parse_builtin(&own_config(&address, &store.to_string_lossy()))?;
        let place = Place {
            kind: BrokerKind::Kafka,
            address,
            source: SOURCE.to_owned(),
            target: TARGET.to_owned(),
            is_own: true,
        };
        Ok(Self {
            config,
            route: ROUTE.to_owned(),
            place,
            watched: vec![TARGET.to_owned(), DEAD_LETTER.to_owned()],
            dead_letter: DEAD_LETTER.to_owned(),
            stage: None,
            _broker: Some(broker),
            _folder: Some(folder),
        })
    }

    /// Uses a NATS server. `run` makes the stream and its subjects unique among demos.
    pub(super) fn nats(url: &str, run: &str) -> Result<Self> {
        let folder = folder()?;
        let store = folder.path().join("store");
        let names = Names::of(run);
        let config = Config::parse_builtin(&nats_config(url, run, &store.to_string_lossy()))
            .context("--nats")?;
        let stage = DemoStream::create(
            nats_cluster(&config, CLUSTER),
            &names.stream,
            vec![names.subject(">")],
        )
        .context("--nats")?;
        let (source, target) = (names.subject(DELAYED), names.subject(DELIVERED));
        let dead_letter = source_topic(&names.stream, &names.subject(DEAD));
        Ok(Self {
            config,
            route: ROUTE.to_owned(),
            watched: vec![source_topic(&names.stream, &target), dead_letter.clone()],
            dead_letter,
            place: Place {
                kind: BrokerKind::Nats,
                address: without_login(url),
                source,
                target,
                is_own: true,
            },
            stage: Some(stage),
            _broker: None,
            _folder: Some(folder),
        })
    }

    /// Uses the named route of a configuration, or its only route.
    pub(super) fn of(config: Config, route: Option<&str>) -> Result<Self, Error> {
        let name = config.route_named_or_only(route)?.to_owned();
        let place = place(&config, &name)?;
        let (route, mut watched) = (&config.routes[&name], vec![place.target.clone()]);
        let dead_letter = route.dead_letter.name.clone();
        watched.extend(
            (route.dead_letter.cluster == route.target_cluster()).then(|| dead_letter.clone()),
        );
        Ok(Self {
            route: name,
            place,
            watched,
            dead_letter,
            stage: None,
            config,
            _broker: None,
            _folder: None,
        })
    }

    /// Deletes the stream that the demo created on the user's server.
    pub(super) fn end(self) -> Result<()> {
        self.stage.map_or(Ok(()), |stage| Ok(stage.delete()?))
    }
}

fn folder() -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("postdate-demo-")
        .tempdir()
        .context("no temporary folder can be made")
}

fn place(config: &Config, name: &str) -> Result<Place, Error> {
    let route = &config.routes[name];
    let target = route.target.as_ref().map(|target| target.name.clone());
    let target = target.ok_or_else(|| {
        Error::for_option(
            "--route",
            format!("route {name} has no default target"),
            "choose one that has",
        )
    })?;
    if route.source.kind == BrokerKind::Nats || route.target_kind() == BrokerKind::Nats {
        let problem = format!(
            "of a configuration the demo shows Kafka only, and route {name} has to do with NATS"
        );
        let fix = "choose a route from Kafka to Kafka, show NATS by --nats URL, or send to this one by postdate send";
        return Err(Error::for_option("--route", problem, fix));
    }
    Ok(Place {
        kind: BrokerKind::Kafka,
        address: config.kafka[&route.source.cluster].brokers.join(","),
        source: route.source.topics[0].clone(),
        target,
        is_own: false,
    })
}

/// Removes logins from the addresses, which are printed.
fn without_login(urls: &str) -> String {
    let bare = |url: &str| match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}{}", &url[..scheme + 3], &url[at + 1..])
        }
        (None, Some(at)) => url[at + 1..].to_owned(),
        _ => url.to_owned(),
    };
    urls.split(',')
        .map(|url| bare(url.trim()))
        .collect::<Vec<_>>()
        .join(",")
}

const CLUSTER: &str = "demo";
const DELAYED: &str = "delayed";
const DELIVERED: &str = "orders";
const DEAD: &str = "dead";

/// Names that distinguish one demo from others on the same server.
struct Names {
    stream: String,
    prefix: String,
}

impl Names {
    fn of(run: &str) -> Self {
        Self {
            stream: format!("DEMO_{run}"),
            prefix: format!("demo.{run}"),
        }
    }

    fn subject(&self, last: &str) -> String {
        format!("{}.{last}", self.prefix)
    }
}

/// As `own_config`, for a stream on a NATS server.
fn nats_config(url: &str, run: &str, store: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).expect("a text");
    let names = Names::of(run);
    format!(
        r#"
deployment = "demo_{run}"
[store.embedded]
path = {store}
[nats.{CLUSTER}]
url = {url}
[route.{ROUTE}]
source = {{ nats = "{CLUSTER}", stream = "{stream}", subjects = ["{source}"] }}
target = {{ nats = "{CLUSTER}", subject = "{target}" }}
dead_letter = {{ nats = "{CLUSTER}", subject = "{dead_letter}" }}
[admin]
listen = "127.0.0.1:0"
[log]
level = "warn"
"#,
        store = quoted(store),
        url = quoted(url),
        stream = names.stream,
        source = names.subject(DELAYED),
        target = names.subject(DELIVERED),
        dead_letter = names.subject(DEAD),
    )
}

/// An ordinary configuration, except for the client properties and a random admin port.
fn own_config(address: &str, store: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).expect("a text");
    let property = |(name, value): &(&str, &str)| format!("{} = {}", quoted(name), quoted(value));
    format!(
        r#"
deployment = "demo"
[store.embedded]
path = {store}
[kafka.demo]
brokers = [{address}]
properties = {{ {properties} }}
[route.{ROUTE}]
source = {{ kafka = "demo", topics = ["{SOURCE}"] }}
target = {{ kafka = "demo", topic = "{TARGET}" }}
dead_letter = {{ kafka = "demo", topic = "{DEAD_LETTER}" }}
[admin]
listen = "127.0.0.1:0"
[log]
level = "warn"
"#,
        store = quoted(store),
        address = quoted(address),
        properties = InProcessKafka::PROPERTIES
            .iter()
            .map(property)
            .collect::<Vec<_>>()
            .join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_own_configuration_is_one_that_an_operator_could_have_written() {
        let config = Config::parse_builtin(&own_config(
            "127.0.0.1:1",
            "/tmp/with \"quotes\" \\ and ümlauts/store",
        ))
        .unwrap();
        let place = place(&config, ROUTE).unwrap();
        assert_eq!(
            (
                place.address.as_str(),
                place.source.as_str(),
                place.target.as_str()
            ),
            ("127.0.0.1:1", SOURCE, TARGET)
        );
        assert_eq!(
            config.admin.listen.port(),
            0,
            "another process may have the usual one"
        );
        Config::parse_builtin(&nats_config(
            "nats://u:\"p@127.0.0.1:4222,tls://b",
            "1a2b",
            "/tmp/x",
        ))
        .unwrap();
    }

    #[test]
    fn an_address_is_shown_without_its_login() {
        for (url, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://user:p@ss@a:1, tls://token@b", "nats://a:1,tls://b"),
            ("user:pass@a:1", "a:1"),
        ] {
            assert_eq!(without_login(url), shown);
        }
    }

    #[test]
    fn a_route_that_cannot_show_anything_is_refused_by_name() {
        let text = own_config("127.0.0.1:1", "/tmp/x").replace(
            "target = { kafka = \"demo\", topic = \"orders\" }",
            "allow = [\"orders\"]",
        );
        let config = Config::parse_builtin(&text).unwrap();
        let error = Venue::of(config.clone(), None).err().unwrap().to_string();
        assert!(
            error.contains("route shop has no default target"),
            "{error}"
        );
        let error = Venue::of(config, Some("sohp")).err().unwrap().to_string();
        assert!(
            error.contains("there is no route \"sohp\"") && error.contains("shop"),
            "{error}"
        );
    }
}
