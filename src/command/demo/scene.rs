//! The brokers, the store and the route of a demo: an in-process broker and a temporary folder, a
//! new stream on a NATS server, or those of a given configuration.

use crate::broker::kafka::InProcessKafka;
use crate::broker::nats::DemoStream;
use crate::cli::DemoArgs;
use crate::command::run;
use crate::config::{BrokerKind, Config, Error, Route};
use crate::model::source_topic;
use crate::role::nats_cluster;
use anyhow::{Context, Result};
use tempfile::TempDir;

/// The scene of one demo.
pub(super) struct Scene {
    pub(super) config: Config,
    route: String,
    /// Address of the brokers, to show.
    pub(super) address: String,
    /// Topic or subject that the demo sends to, and the one that its messages arrive on.
    pub(super) source: String,
    pub(super) target: String,
    /// The demo created the source and target, so other messages there come from its user.
    pub(super) is_own: bool,
    /// Topics to watch: the target, and the dead-letter topic if it is on the same cluster.
    pub(super) watched: Vec<String>,
    pub(super) dead_letter: String,
    stream: Option<DemoStream>,
    /// Held only to keep them alive. The service reaches both through the configuration.
    _temporary: (Option<TempDir>, Option<InProcessKafka>),
}

impl Scene {
    /// `run` makes the names on a NATS server unique among demos.
    pub(super) fn open(demo: &DemoArgs, run: &str) -> Result<Self> {
        match (&demo.config, &demo.nats) {
            (Some(file), _) => Ok(Self::configured(
                Config::load(file)?,
                demo.route.as_deref(),
            )?),
            (None, Some(url)) => Self::nats(url, run).context("--nats"),
            (None, None) => Self::own(),
        }
    }

    fn own() -> Result<Self> {
        let topics = [("orders.delayed", 3), ("orders", 3), ("orders.dead", 1)];
        let (folder, broker) = (folder()?, InProcessKafka::start(&topics)?);
        let config = Config::parse_builtin(&own_config(&broker.address(), &folder))?;
        let mut scene = Self::of(config, None)?;
        (scene.is_own, scene._temporary) = (true, (Some(folder), Some(broker)));
        Ok(scene)
    }

    fn nats(url: &str, id: &str) -> Result<Self> {
        let folder = folder()?;
        let config = Config::parse_builtin(&nats_config(url, id, &folder))?;
        let (stream, cluster) = (format!("DEMO_{id}"), nats_cluster(&config, "demo"));
        let created = DemoStream::create(cluster, &stream, format!("demo.{id}.>"));
        let created = run(async { Ok(created.await?) })?;
        let watched = ["orders", "dead"];
        let watched = watched.map(|name| source_topic(&stream, &format!("demo.{id}.{name}")));
        Ok(Self {
            address: without_login(url),
            source: format!("demo.{id}.delayed"),
            is_own: true,
            dead_letter: watched[1].clone(),
            watched: watched.into(),
            stream: Some(created),
            _temporary: (Some(folder), None),
            ..Self::of(config, None)?
        })
    }

    fn configured(config: Config, route: Option<&str>) -> Result<Self, Error> {
        let scene = Self::of(config, route)?;
        let (name, route) = (&scene.route, scene.route());
        if [route.source.kind, route.target_kind()].contains(&BrokerKind::Nats) {
            let problem =
                format!("route {name} uses NATS, and with --config the demo supports Kafka only");
            let fix = "choose a route from Kafka to Kafka, use --nats URL, or send to this route with `postdate send`";
            return Err(Error::for_option("--route", problem, fix));
        }
        Ok(scene)
    }

    /// Uses the named route of a configuration, or its only route.
    fn of(config: Config, route: Option<&str>) -> Result<Self, Error> {
        let name = config.route_named_or_only(route)?.to_owned();
        let route = &config.routes[&name];
        let Some(target) = &route.target else {
            let problem = format!("route {name} has no default target");
            return Err(Error::for_option(
                "--route",
                problem,
                "choose a route that has one",
            ));
        };
        let kafka = config.kafka.get(&route.source.cluster);
        let mut watched = vec![target.name.clone()];
        if route.dead_letter.cluster == target.cluster {
            watched.push(route.dead_letter.name.clone());
        }
        Ok(Self {
            address: kafka.map_or(String::new(), |kafka| kafka.brokers.join(",")),
            source: route.source.topics[0].clone(),
            target: target.name.clone(),
            is_own: false,
            watched,
            dead_letter: route.dead_letter.name.clone(),
            route: name,
            config,
            stream: None,
            _temporary: (None, None),
        })
    }

    pub(super) fn route(&self) -> &Route {
        &self.config.routes[&self.route]
    }

    /// Deletes the stream that the demo created on the user's server.
    pub(super) fn close(self) -> Result<()> {
        let Some(stream) = self.stream else {
            return Ok(());
        };
        run(async { Ok(stream.delete().await?) })
    }
}

fn folder() -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("postdate-demo-").tempdir();
    folder.context("cannot create a temporary folder")
}

/// Removes logins from the addresses, which are printed.
fn without_login(urls: &str) -> String {
    let bare = |url: &str| {
        let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
        format!("{scheme}{}", rest.rsplit('@').next().unwrap_or(rest))
    };
    let bare: Vec<_> = urls.split(',').map(|url| bare(url.trim())).collect();
    bare.join(",")
}

/// The text as a string of TOML.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text")
}

fn nats_config(url: &str, id: &str, folder: &TempDir) -> String {
    let url = quoted(url);
    let tables = format!(
        r#"
[nats.demo]
url = {url}
[route.demo]
source = {{ nats = "demo", stream = "DEMO_{id}", subjects = ["demo.{id}.delayed"] }}
target = {{ nats = "demo", subject = "demo.{id}.orders" }}
dead_letter = {{ nats = "demo", subject = "demo.{id}.dead" }}"#
    );
    builtin_config(&format!("demo_{id}"), folder, &tables)
}

/// The in-process broker answers a fetch only at the end of its wait, hence the property.
fn own_config(address: &str, folder: &TempDir) -> String {
    let tables = format!(
        r#"
[kafka.demo]
brokers = ["{address}"]
properties = {{ "fetch.wait.max.ms" = "2" }}
[route.demo]
source = {{ kafka = "demo", topics = ["orders.delayed"] }}
target = {{ kafka = "demo", topic = "orders" }}
dead_letter = {{ kafka = "demo", topic = "orders.dead" }}"#
    );
    builtin_config("demo", folder, &tables)
}

/// An ordinary configuration, except for the random admin port.
fn builtin_config(deployment: &str, folder: &TempDir, tables: &str) -> String {
    let store = quoted(&folder.path().join("store").to_string_lossy());
    format!(
        r#"deployment = "{deployment}"
store.embedded.path = {store}
admin.listen = "127.0.0.1:0"
log.level = "warn"
{tables}"#
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn own() -> Scene {
        let config = own_config("127.0.0.1:41234", &folder().unwrap());
        let scene = Scene::of(Config::parse_builtin(&config).unwrap(), None).unwrap();
        Scene {
            is_own: true,
            ..scene
        }
    }

    #[test]
    fn the_demos_own_configurations_are_valid() {
        let scene = own();
        assert_eq!(scene.address, "127.0.0.1:41234");
        assert_eq!(scene.watched, ["orders", "orders.dead"]);
        let port = scene.config.admin.listen.port();
        assert_eq!(port, 0, "another process may have the usual one");
        let prefix = "with \"quotes\" \\ and ümlauts";
        let folder = tempfile::Builder::new().prefix(prefix).tempdir().unwrap();
        let urls = "nats://u:\"p@127.0.0.1:4222,tls://b";
        Config::parse_builtin(&nats_config(urls, "1a2b", &folder)).unwrap();
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
    fn a_route_without_a_target_is_refused_by_name() {
        let text = own_config("127.0.0.1:1", &folder().unwrap()).replace(
            "target = { kafka = \"demo\", topic = \"orders\" }",
            "allow = [\"orders\"]",
        );
        let config = Config::parse_builtin(&text).unwrap();
        let error = Scene::of(config.clone(), None).err().unwrap().to_string();
        assert!(
            error.contains("route demo has no default target"),
            "{error}"
        );
        let error = Scene::of(config, Some("dmeo")).err().unwrap().to_string();
        assert!(
            error.contains("there is no route \"dmeo\"") && error.contains("choose from: demo"),
            "{error}"
        );
    }
}
