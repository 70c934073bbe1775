//! What a cluster is set to, put together from several questions. What is refused of it is told in its place.

use super::catalog::topics;
use super::raw::{self, Asking, Failed, Values, Whose};
use super::{failure, is_topic_name, no_topic_name};
use crate::broker::Error;
use crate::broker::inspection::{Facts, Rights, Settings, Topic};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn inspect(asking: &mut Asking<'_>, names: &[String]) -> Result<Facts, Error> {
    let brokers = raw::brokers(asking).map_err(|(code, words)| failure::of_call(code, &words))?;
    let offsets_retention = brokers.first().map(|broker| offsets_retention(asking, &broker.to_string()));
    let mut facts = Facts { brokers: brokers.len(), offsets_retention, topics: BTreeMap::new() };
    for name in names {
        let found = if is_topic_name(name) { topic(asking, name) } else { Err(no_topic_name(name)) };
        facts.topics.insert(name.clone(), found);
    }
    Ok(facts)
}

fn offsets_retention(asking: &mut Asking<'_>, broker: &str) -> Result<Duration, String> {
    let values = settings(asking, Whose::Broker, broker)?;
    let minutes = values.get("offsets.retention.minutes").and_then(|minutes| minutes.parse().ok());
    minutes.map(|minutes: u64| Duration::from_secs(minutes * 60)).ok_or_else(|| "the broker does not say".to_owned())
}

/// One at a time: what is refused of one says nothing of the others.
fn topic(asking: &mut Asking<'_>, name: &str) -> Result<Option<Topic>, String> {
    let Some(found) = topics(asking, std::iter::once(name)).map_err(|error| error.to_string())?.pop() else { return Ok(None) };
    let rights = raw::rights(asking, &[name]).ok().and_then(|mut rights| rights.remove(name));
    let settings = settings(asking, Whose::Topic, name).map(|values| read(&values));
    let rights = rights.map(|(read, write)| Rights { read, write });
    Ok(Some(Topic { partitions: found.partitions.len(), rights, settings }))
}

fn settings(asking: &mut Asking<'_>, whose: Whose, name: &str) -> Result<Values, String> {
    let words = |(code, words): Failed| if words.is_empty() { code.to_string() } else { words };
    let found = raw::settings(asking, whose, &[name]).map_err(words)?.remove(name);
    found.unwrap_or_else(|| Ok(Values::new())).map_err(words)
}

/// Kafka's own: -1 is no bound.
fn read(values: &Values) -> Settings {
    let policy = values.get("cleanup.policy").map_or("delete", String::as_str);
    let number = |name: &str| values.get(name).and_then(|value| value.parse::<i64>().ok()).and_then(|value| u64::try_from(value).ok());
    Settings {
        is_compacted: policy.split(',').any(|word| word.trim() == "compact"),
        is_deleted: policy.split(',').any(|word| word.trim() == "delete"),
        retention: number("retention.ms").map(Duration::from_millis),
        retention_bytes: number("retention.bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_kafka_writes_them() {
        let values = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let unbounded = Settings { is_compacted: false, is_deleted: true, retention: None, retention_bytes: None };
        assert_eq!(read(&values(&[("retention.ms", "-1"), ("retention.bytes", "-1"), ("cleanup.policy", "delete")])), unbounded);
        assert_eq!(read(&Values::new()), unbounded);
        assert_eq!(
            read(&values(&[("retention.ms", "5000"), ("retention.bytes", "7"), ("cleanup.policy", "compact, delete")])),
            Settings { is_compacted: true, is_deleted: true, retention: Some(Duration::from_secs(5)), retention_bytes: Some(7) }
        );
        assert!(!read(&values(&[("cleanup.policy", "compact")])).is_deleted);
    }
}
