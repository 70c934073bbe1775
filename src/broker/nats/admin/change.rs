//! Makes the changes that a check proposes, and names the `nats` commands for them.

use super::NatsCatalog;
use crate::broker::Error;
use crate::broker::inspection::{Change, NewTopic};
use crate::broker::nats::stream_info;
use serde_json::{Value, json};
use std::time::Duration;

impl NatsCatalog {
    /// Edits the configuration of a stream as the server sends it. So settings that the client
    /// library does not know stay as they are.
    pub(super) async fn change(&self, change: &Change) -> Result<(), Error> {
        match change {
            Change::Create(stream) => {
                let config = json!({
                    "name": stream.name,
                    "subjects": stream.subjects,
                    "retention": "limits",
                    "storage": "file",
                    "num_replicas": stream.replicas,
                    "max_age": nanos(stream.retention.unwrap_or_default()),
                });
                self.request_stream("CREATE", &stream.name, &config).await?;
            }
            Change::SetRetention { name, retention } => {
                let mut info = self.request_stream("INFO", name, &Value::Null).await?;
                let mut config = info["config"].take();
                config["max_age"] = nanos(*retention);
                self.request_stream("UPDATE", name, &config).await?;
            }
        }
        Ok(())
    }

    async fn request_stream(&self, call: &str, name: &str, body: &Value) -> Result<Value, Error> {
        let (object, call) = (
            format!("the stream {name}"),
            format!("STREAM.{call}.{name}"),
        );
        let reply = stream_info::request(&self.connection, &object, &call, body).await?;
        reply.ok_or_else(|| Error::Rejected(format!("{object} does not exist")))
    }

    /// Replicas of a new stream. A server without a cluster supports one.
    pub(super) async fn default_replicas(&self) -> Result<u8, Error> {
        let server = self.connection.context().await?.client().server_info();
        Ok(if server.cluster.is_some() { 3 } else { 1 })
    }
}

fn nanos(time: Duration) -> Value {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into()
}

/// A name for the stream of a target: `ORDERS` for `orders.>`.
pub(crate) fn stream_name(filter: &str) -> String {
    let tokens = filter
        .split('.')
        .filter(|token| !["*", ">"].contains(token));
    let name = tokens.collect::<Vec<_>>().join("_").to_uppercase();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    name.replace(|c| !is_allowed(c), "_")
}

pub(super) fn command(urls: &str, change: &Change) -> String {
    match change {
        Change::Create(NewTopic {
            name,
            subjects,
            replicas,
            retention,
            ..
        }) => {
            let age = retention.map(|age| format!(" --max-age {}s", age.as_secs()));
            format!(
                "nats --server {urls} stream add {name} --subjects '{}' --retention limits --storage file --replicas {replicas}{} --defaults",
                subjects.join(","),
                age.unwrap_or_default()
            )
        }
        Change::SetRetention { name, retention } => format!(
            "nats --server {urls} stream edit {name} --max-age {}s --force",
            retention.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_a_command_of_nats() {
        let day = Duration::from_secs(24 * 3_600);
        let source = NewTopic {
            name: "DELAYED".into(),
            subjects: vec!["delayed.a".into(), "delayed.b.*".into()],
            partitions: 6,
            replicas: 3,
            retention: Some(31 * day),
            is_compacted: false,
        };
        let target = NewTopic {
            name: "ORDERS".into(),
            subjects: vec!["orders.>".into()],
            retention: None,
            ..source
        };
        let longer = Change::SetRetention {
            name: "DELAYED".into(),
            retention: day,
        };
        let commands = [Change::Create(source), Change::Create(target), longer];
        let commands = commands.map(|change| command("nats://a:1", &change));
        insta::assert_snapshot!(commands.join("\n"), @r"
        nats --server nats://a:1 stream add DELAYED --subjects 'delayed.a,delayed.b.*' --retention limits --storage file --replicas 3 --max-age 2678400s --defaults
        nats --server nats://a:1 stream add ORDERS --subjects 'orders.>' --retention limits --storage file --replicas 3 --defaults
        nats --server nats://a:1 stream edit DELAYED --max-age 86400s --force
        ");
    }

    #[test]
    fn a_stream_is_named_after_its_subject() {
        for (filter, name) in [
            ("orders", "ORDERS"),
            ("orders.>", "ORDERS"),
            ("dead.orders-eu", "DEAD_ORDERS-EU"),
            ("a.*.b$c", "A_B_C"),
        ] {
            assert_eq!(stream_name(filter), name);
        }
    }
}
