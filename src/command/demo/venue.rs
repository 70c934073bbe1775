//! Where the demo takes place: on a broker and in a folder of its own, which end with it, or where a configuration says.

use crate::broker::kafka::InProcess;
use crate::config::{Config, Error, Kind};
use anyhow::{Context, Result};
use tempfile::TempDir;

/// See the module's page.
pub(super) struct Venue {
    pub(super) config: Config,
    pub(super) route: String,
    pub(super) place: Place,
    /// Both are only kept: the service uses them by what the configuration says.
    _broker: Option<InProcess>,
    _folder: Option<TempDir>,
}

/// The names of it, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Of the brokers.
    pub(super) address: String,
    pub(super) source: String,
    pub(super) target: String,
    /// Nobody else's messages are there but guests'.
    pub(super) is_own: bool,
}

const ROUTE: &str = "shop";
const SOURCE: &str = "orders.delayed";
const TARGET: &str = "orders";
const DEAD_LETTER: &str = "orders.dead";
const PARTITIONS: i32 = 3;

impl Venue {
    pub(super) fn own() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("postdate-demo-").tempdir().context("no temporary folder can be made")?;
        let broker = InProcess::start(&[(SOURCE, PARTITIONS), (TARGET, PARTITIONS), (DEAD_LETTER, 1)])?;
        let address = broker.address();
        let store = folder.path().join("store");
        let config = Config::of(&own_config(&address, &store.to_string_lossy()))?;
        let place = Place { address, source: SOURCE.to_owned(), target: TARGET.to_owned(), is_own: true };
        Ok(Self { config, route: ROUTE.to_owned(), place, _broker: Some(broker), _folder: Some(folder) })
    }

    /// On the named route of a configuration, or its only one.
    pub(super) fn of(config: Config, route: Option<&str>) -> Result<Self, Error> {
        let name = config.choose_route(route)?.to_owned();
        let place = place(&config, &name)?;
        Ok(Self { config, route: name, place, _broker: None, _folder: None })
    }
}

fn place(config: &Config, name: &str) -> Result<Place, Error> {
    let route = &config.routes[name];
    let target = route.target.as_ref().map(|target| target.topic.clone());
    let target = target.ok_or_else(|| Error::of_option("--route", format!("route {name} has no default target"), "choose one that has"))?;
    if route.source.kind == Kind::Nats || route.target_kind() == Kind::Nats {
        let fix = "choose a route from Kafka to Kafka, or send to this one by postdate send";
        return Err(Error::of_option("--route", format!("the demo shows Kafka only, and route {name} has to do with NATS"), fix));
    }
    Ok(Place {
        address: config.kafka[&route.source.cluster].brokers.join(","),
        source: route.source.topics[0].clone(),
        target,
        is_own: false,
    })
}

/// What an operator would write, but for the clients' properties and the admin port, which may be any.
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
        properties = InProcess::PROPERTIES.iter().map(property).collect::<Vec<_>>().join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_own_configuration_is_one_that_an_operator_could_have_written() {
        let config = Config::of(&own_config("127.0.0.1:1", "/tmp/with \"quotes\" \\ and ümlauts/store")).unwrap();
        let place = place(&config, ROUTE).unwrap();
        assert_eq!((place.address.as_str(), place.source.as_str(), place.target.as_str()), ("127.0.0.1:1", SOURCE, TARGET));
        assert_eq!(config.admin.listen.port(), 0, "another process may have the usual one");
    }

    #[test]
    fn a_route_that_cannot_show_anything_is_refused_by_name() {
        let text = own_config("127.0.0.1:1", "/tmp/x").replace("target = { kafka = \"demo\", topic = \"orders\" }", "allow = [\"orders\"]");
        let config = Config::of(&text).unwrap();
        let error = Venue::of(config.clone(), None).err().unwrap().to_string();
        assert!(error.contains("route shop has no default target"), "{error}");
        let error = Venue::of(config, Some("sohp")).err().unwrap().to_string();
        assert!(error.contains("there is no route \"sohp\"") && error.contains("shop"), "{error}");
    }
}
