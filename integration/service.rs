//! Runs one Postdate process for all tests of a file, because starting it and joining its groups
//! costs seconds.
//!
//! It knows none of the tests' expectations.

use std::ops::Deref;
use std::sync::OnceLock;

use crate::env::{
    Outgoing, PATIENCE, Postdate, Producer, eventually, kafka, now_ms, redis, unique,
};

/// A topic: name suffix, number of partitions, configuration.
pub(crate) type Topic = (&'static str, i32, &'static [(&'static str, &'static str)]);

/// Configuration of targets whose records must show when the broker received them.
pub(crate) const STAMPED: &[(&str, &str)] = &[("message.timestamp.type", "LogAppendTime")];

pub(crate) struct Service {
    pub(crate) postdate: Postdate,
    pub(crate) deployment: String,
}

/// A test's handle to a shared service. If the test fails, it prints the end of the service's log,
/// because the service outlives the test.
pub(crate) struct Attended(&'static Service);

impl Service {
    /// Returns the service of a test file. The first test that asks starts it. Each `@` in `routes`
    /// becomes the deployment.
    pub(crate) fn attend(
        shared: &'static OnceLock<Service>,
        area: &str,
        topics: &[Topic],
        routes: &str,
    ) -> Attended {
        Attended(shared.get_or_init(|| Service::start(area, topics, routes)))
    }

    fn start(area: &str, topics: &[Topic], routes: &str) -> Service {
        let deployment = unique(area);
        std::thread::scope(|scope| {
            for (name, partitions, config) in topics {
                let name = format!("{deployment}.{name}");
                scope.spawn(move || kafka().create_topic(&name, *partitions, config));
            }
        });
        let postdate =
            Postdate::ready_with(&config(&deployment, &routes.replace('@', &deployment)));
        Service {
            postdate,
            deployment,
        }
    }

    pub(crate) fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.deployment)
    }

    /// The expected `postdate-origin` of a record that was sent to `topic` and stored at this
    /// place.
    pub(crate) fn origin(
        &self,
        route: &str,
        topic: &str,
        (partition, offset): (i32, i64),
    ) -> String {
        format!("{}/{route}/{topic}/{partition}/{offset}", self.deployment)
    }

    /// Waits until at least `count` messages of a source topic are pending.
    pub(crate) fn wait_until_waiting(&self, topic: &str, count: u32) {
        eventually(
            &format!("{count} messages of {topic} wait"),
            PATIENCE,
            || (self.waiting(topic) >= count).then_some(()),
        );
    }

    /// Waits until no message of a source topic is pending.
    pub(crate) fn wait_until_none_waits(&self, topic: &str) {
        eventually(&format!("no message of {topic} waits"), PATIENCE, || {
            (self.waiting(topic) == 0).then_some(())
        });
    }

    /// Waits for `count` pending messages of a source topic. Returns false if `instant`, in epoch
    /// milliseconds, passes before.
    pub(crate) fn wait_before(&self, instant: i64, topic: &str, count: u32) -> bool {
        eventually(
            &format!("{count} messages of {topic} wait"),
            PATIENCE,
            || {
                let all = self.waiting(topic) >= count;
                let in_time = now_ms() < instant;
                (all || !in_time).then_some(in_time)
            },
        )
    }

    fn waiting(&self, topic: &str) -> u32 {
        self.postdate
            .metrics()
            .sum_where("postdate_pending_messages", &[("topic", topic)]) as u32
    }

    /// Waits until a counter of a route reaches `count`. Panics if it exceeds `count`.
    pub(crate) fn wait_for_metric(&self, name: &str, labels: &[(&str, &str)], count: u32) {
        let count = f64::from(count);
        eventually(&format!("{name}{labels:?} is {count}"), PATIENCE, || {
            let sum = self.postdate.metrics().sum_where(name, labels);
            assert!(sum <= count, "{name}{labels:?} is {sum}, more than {count}");
            (sum >= count).then_some(())
        });
    }
}

impl Deref for Attended {
    type Target = Service;

    fn deref(&self) -> &Service {
        self.0
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = self.postdate.logs();
            let lines: Vec<&str> = logs.lines().collect();
            eprintln!(
                "--- the last lines of {}\n{}",
                self.deployment,
                lines[lines.len().saturating_sub(40)..].join("\n")
            );
        }
    }
}

/// A configuration with these routes on the shared servers. A missing topic is reported after one
/// second instead of five.
pub(crate) fn config(deployment: &str, routes: &str) -> String {
    format!(
        "deployment = \"{deployment}\"\n\
         [store.redis]\nurl = \"{}\"\n\
         [kafka.main]\nbrokers = [\"{}\"]\nproperties = {{ \"topic.metadata.propagation.max.ms\" = 1000 }}\n\
         {routes}",
        redis().url(),
        kafka().addr()
    )
}

/// Sends records in order. Returns the partition and offset of each.
pub(crate) fn send_all<'o>(records: impl IntoIterator<Item = &'o Outgoing>) -> Vec<(i32, i64)> {
    let producer = Producer::start(kafka().addr());
    records.into_iter().for_each(|record| producer.send(record));
    producer.flush()
}

pub(crate) type Header = (String, Option<Vec<u8>>);

pub(crate) fn text(name: &str, value: &str) -> Header {
    (name.to_owned(), Some(value.as_bytes().to_vec()))
}

/// Appends headers to a record.
pub(crate) fn with(record: Outgoing, headers: &[Header]) -> Outgoing {
    headers
        .iter()
        .fold(record, |record, (name, value)| match value {
            Some(value) => record.header(name, value),
            None => record.null_header(name),
        })
}

/// Headers as readable text. Null values and bytes that are no text still differ from all others.
pub(crate) fn lines(headers: &[Header]) -> Vec<String> {
    let value = |value: &Option<Vec<u8>>| {
        value.as_ref().map_or("null".to_owned(), |value| {
            format!("\"{}\"", value.escape_ascii())
        })
    };
    headers
        .iter()
        .map(|(name, bytes)| format!("{name:?} = {}", value(bytes)))
        .collect()
}
