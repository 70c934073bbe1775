//! What a cluster is set to, put together from several questions. What is refused of it is told in its place.

use super::catalog::topics;
use super::raw::{self, CallContext, CallError, ConfigOwner, ConfigValues};
use super::{failure, invalid_topic_name, is_valid_topic_name};
use crate::broker::Error;
use crate::broker::describe::{ClusterInfo, TopicConfig, TopicInfo, TopicPermissions};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn inspect(
    asking: &mut CallContext<'_>,
    names: &[String],
) -> Result<ClusterInfo, Error> {
    let brokers =
        raw::brokers(asking).map_err(|(code, words)| failure::call_error(code, &words))?;
    let offsets_retention = brokers
        .first()
        .map(|broker| offsets_retention(asking, &broker.to_string()));
    let possible: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| is_valid_topic_name(name))
        .collect();
    let mut topics = partitions(asking, &possible);
    let existing: Vec<&str> = possible
        .into_iter()
        .filter(|name| matches!(topics.get(*name), Some(Ok(Some(_)))))
        .collect();
    let mut details = Details::of(asking, &existing);
    let mut fact = |name: &String| match topics.remove(name) {
        Some(found) => {
            found.map(|partitions| partitions.map(|partitions| details.topic(name, partitions)))
        }
        None => Err(invalid_topic_name(name)),
    };
    Ok(ClusterInfo {
        broker_count: brokers.len(),
        offsets_retention,
        topics: names
            .iter()
            .map(|name| (name.clone(), fact(name)))
            .collect(),
    })
}

fn offsets_retention(asking: &mut CallContext<'_>, broker: &str) -> Result<Duration, String> {
    let values = raw::configs(asking, ConfigOwner::Broker, &[broker])
        .map_err(words)?
        .remove(broker);
    let values = values
        .unwrap_or_else(|| Ok(ConfigValues::new()))
        .map_err(words)?;
    let minutes = values
        .get("offsets.retention.minutes")
        .and_then(|minutes| minutes.parse().ok());
    minutes
        .map(|minutes: u64| Duration::from_secs(minutes * 60))
        .ok_or_else(|| "the broker does not say".to_owned())
}

/// How many partitions each topic has; nothing: it does not exist.
fn partitions(
    asking: &mut CallContext<'_>,
    names: &[&str],
) -> BTreeMap<String, Result<Option<usize>, String>> {
    let together = topics(asking, names.iter().copied()).ok();
    let mut one = |name: &str| {
        // An error does not say whose it is: then each is asked after alone.
        let alone = match &together {
            Some(all) => {
                return Ok(all
                    .iter()
                    .find(|topic| topic.name == name)
                    .map(|topic| topic.partitions.len()));
            }
            None => topics(asking, std::iter::once(name)).map_err(|error| error.to_string())?,
        };
        Ok(alone.first().map(|topic| topic.partitions.len()))
    };
    names
        .iter()
        .map(|name| ((*name).to_owned(), one(name)))
        .collect()
}

/// What is known of topics besides, by their names.
struct Details {
    rights: BTreeMap<String, (bool, bool)>,
    settings: Result<BTreeMap<String, Result<ConfigValues, CallError>>, String>,
}

impl Details {
    fn of(asking: &mut CallContext<'_>, names: &[&str]) -> Self {
        if names.is_empty() {
            return Self {
                rights: BTreeMap::new(),
                settings: Ok(BTreeMap::new()),
            };
        }
        let rights = raw::permissions(asking, names).unwrap_or_default();
        Self {
            rights,
            settings: raw::configs(asking, ConfigOwner::Topic, names).map_err(words),
        }
    }

    fn topic(&mut self, name: &str, partitions: usize) -> TopicInfo {
        let settings = match &mut self.settings {
            Ok(settings) => settings
                .remove(name)
                .unwrap_or_else(|| Ok(ConfigValues::new()))
                .map(|values| read(&values))
                .map_err(words),
            Err(words) => Err(words.clone()),
        };
        let rights = self
            .rights
            .remove(name)
            .map(|(read, write)| TopicPermissions { read, write });
        TopicInfo {
            partitions,
            permissions: rights,
            config: settings,
        }
    }
}

fn words((code, words): CallError) -> String {
    if words.is_empty() {
        code.to_string()
    } else {
        words
    }
}

/// Kafka's own: -1 is no bound.
fn read(values: &ConfigValues) -> TopicConfig {
    let policy = values
        .get("cleanup.policy")
        .map_or("delete", String::as_str);
    let number = |name: &str| {
        values
            .get(name)
            .and_then(|value| value.parse::<i64>().ok())
            .and_then(|value| u64::try_from(value).ok())
    };
    TopicConfig {
        is_compacted: policy.split(',').any(|word| word.trim() == "compact"),
        has_retention: policy.split(',').any(|word| word.trim() == "delete"),
        retention: number("retention.ms").map(Duration::from_millis),
        retention_bytes: number("retention.bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_kafka_writes_them() {
        let values = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let unbounded = TopicConfig {
            is_compacted: false,
            has_retention: true,
            retention: None,
            retention_bytes: None,
        };
        assert_eq!(
            read(&values(&[
                ("retention.ms", "-1"),
                ("retention.bytes", "-1"),
                ("cleanup.policy", "delete")
            ])),
            unbounded
        );
        assert_eq!(read(&ConfigValues::new()), unbounded);
        assert_eq!(
            read(&values(&[
                ("retention.ms", "5000"),
                ("retention.bytes", "7"),
                ("cleanup.policy", "compact, delete")
            ])),
            TopicConfig {
                is_compacted: true,
                has_retention: true,
                retention: Some(Duration::from_secs(5)),
                retention_bytes: Some(7)
            }
        );
        assert!(!read(&values(&[("cleanup.policy", "compact")])).has_retention);
    }
}
