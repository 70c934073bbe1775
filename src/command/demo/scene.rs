//! The brokers, the store and the route of a demo.

use crate::broker::kafka::InProcessKafka;
use crate::broker::nats::{create_demo_stream, delete_demo_stream};
use crate::cli::DemoArgs;
use crate::command::run;
use crate::config::{BrokerKind, Config, Error, Route};
use crate::model::{source_topic, split_source_topic};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

pub(super) struct Scene {
    pub(super) config: Config,
    pub(super) route: Route,
    pub(super) address: String,
    /// Topic or subject that the demo sends to, and that its messages arrive on.
    pub(super) source: String,
    pub(super) target: String,
    /// The demo created the source and target, so other messages there come from its user.
    pub(super) is_own: bool,
    /// Topics to watch: the target, then the dead-letter topic if it is on the same cluster.
    pub(super) watched: Vec<String>,
    /// Held only to keep them alive.
    _broker: Option<InProcessKafka>,
    folder: Option<TempDir>,
}

impl Scene {
    /// `id` makes the names on a NATS server unique among demos.
    pub(super) fn open(demo: &DemoArgs, id: &str) -> Result<Self> {
        if let Some(file) = &demo.config {
            return Ok(Self::of(Config::load(file)?, demo.route.as_deref(), false)?);
        }
        if let Some(url) = &demo.nats {
            let deployment = format!("demo_{id}");
            let scene = Self::own(&deployment, &nats_tables(url, id)).context("--nats")?;
            let cluster = scene.config.nats["demo"].nats_cluster("demo", &deployment);
            run(async { create_demo_stream(&cluster, id).await.context("--nats") })?;
            return Ok(scene);
        }
        let topics = [("orders.delayed", 3), ("orders", 3), ("orders.dead", 1)];
        let broker = InProcessKafka::start(&topics)?;
        let mut scene = Self::own("demo", &kafka_tables(&broker.address()))?;
        scene._broker = Some(broker);
        Ok(scene)
    }

    /// Uses a temporary folder, and a random admin port.
    fn own(deployment: &str, tables: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("postdate-demo-").tempdir();
        let folder = folder.context("cannot create a temporary folder")?;
        let store = Value::from(folder.path().join("store").to_string_lossy());
        // A string of JSON is one of TOML.
        let text = format!(
            r#"deployment = "{deployment}"
store.embedded.path = {store}
admin.listen = "127.0.0.1:0"
admin.payloads = "shown"
admin.environment = "demo"
admin.colour = "green"
log.level = "warn"
{tables}"#
        );
        let mut scene = Self::of(Config::parse_builtin(&text)?, None, true)?;
        scene.folder = Some(folder);
        Ok(scene)
    }

    /// Uses the named route of a configuration, or its only route.
    fn of(config: Config, route: Option<&str>, is_own: bool) -> Result<Self, Error> {
        let name = config.route_named_or_only(route)?;
        let refused =
            |why: &str, fix: &str| Error::for_option("--route", format!("route {name} {why}"), fix);
        let route = config.routes[name].clone();
        let Some(target) = &route.target else {
            return Err(refused("has no default target", "choose another route"));
        };
        if !is_own && [route.source.kind, target.kind] != [BrokerKind::Kafka; 2] {
            let fix = "choose a route from Kafka to Kafka, or use --nats URL";
            let why = "uses NATS, and with --config the demo supports Kafka only";
            return Err(refused(why, fix));
        }
        let mut watched = vec![target.name.clone()];
        if route.dead_letter.cluster == target.cluster {
            watched.push(route.dead_letter.name.clone());
        }
        let topic = &route.source.topics[0];
        let mut source = topic.as_str();
        if let Some((stream, subject)) = split_source_topic(topic) {
            let topics = watched.iter().map(|name| source_topic(stream, name));
            (watched, source) = (topics.collect(), subject);
        }
        let addresses = config.cluster_table(&route.source.cluster).1.addresses();
        Ok(Self {
            address: addresses.join(","),
            source: source.to_owned(),
            target: target.name.clone(),
            is_own,
            watched,
            route,
            config,
            _broker: None,
            folder: None,
        })
    }

    /// The folder for lock files, if the demo has a folder of its own.
    pub(super) fn lock_folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(TempDir::path)
    }

    pub(super) fn close(self) -> Result<()> {
        let Some((stream, _)) = split_source_topic(&self.route.source.topics[0]) else {
            return Ok(());
        };
        let deployment = &self.config.deployment;
        let cluster = self.config.nats["demo"].nats_cluster("demo", deployment);
        run(async { Ok(delete_demo_stream(&cluster, stream).await?) })
    }
}

fn nats_tables(url: &str, id: &str) -> String {
    let url = Value::from(url);
    format!(
        r#"[nats.demo]
url = {url}
[route.demo]
source = {{ nats = "demo", stream = "DEMO_{id}", subjects = ["demo.{id}.delayed"] }}
target = {{ nats = "demo", subject = "demo.{id}.orders" }}
dead_letter = {{ nats = "demo", subject = "demo.{id}.dead" }}"#
    )
}

/// The in-process broker answers a fetch only at the end of its wait, hence the property.
fn kafka_tables(address: &str) -> String {
    format!(
        r#"[kafka.demo]
brokers = ["{address}"]
properties = {{ "fetch.wait.max.ms" = "2" }}
[route.demo]
source = {{ kafka = "demo", topics = ["orders.delayed"] }}
target = {{ kafka = "demo", topic = "orders" }}
dead_letter = {{ kafka = "demo", topic = "orders.dead" }}"#
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn own() -> Scene {
        Scene::own("demo", &kafka_tables("127.0.0.1:41234")).unwrap()
    }

    pub(in super::super) fn on_nats() -> Scene {
        let urls = "nats://u:\"p@127.0.0.1:4222";
        Scene::own("demo_1a2b3c4d", &nats_tables(urls, "1a2b3c4d")).unwrap()
    }

    #[test]
    fn the_demos_own_scenes_are_valid() {
        let scene = own();
        assert_eq!(scene.address, "127.0.0.1:41234");
        assert_eq!(scene.watched, ["orders", "orders.dead"]);
        let port = scene.config.admin.listen.port();
        assert_eq!(port, 0, "another process may have the usual one");
        let scene = on_nats();
        assert_eq!(scene.address, "nats://127.0.0.1:4222", "without its login");
        assert_eq!(scene.source, "demo.1a2b3c4d.delayed");
        let watched = ["orders", "dead"].map(|name| format!("DEMO_1a2b3c4d:demo.1a2b3c4d.{name}"));
        assert_eq!(scene.watched, watched);
    }

    #[test]
    fn a_route_on_nats_is_refused_with_a_configuration() {
        let error = Scene::of(on_nats().config, None, false).err().unwrap();
        assert!(
            error.to_string().contains("route demo uses NATS"),
            "{error}"
        );
    }

    #[test]
    fn a_route_without_a_target_is_refused_by_name() {
        let tables = kafka_tables("127.0.0.1:1").replace(
            "target = { kafka = \"demo\", topic = \"orders\" }",
            "allow = [\"orders\"]",
        );
        let error = Scene::own("demo", &tables).err().unwrap().to_string();
        assert!(
            error.contains("route demo has no default target"),
            "{error}"
        );
        let error = Scene::of(own().config, Some("dmeo"), false)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("there is no route \"dmeo\"") && error.contains("choose from: demo"),
            "{error}"
        );
    }
}
