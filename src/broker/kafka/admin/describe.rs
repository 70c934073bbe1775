//! Describes a cluster for `postdate check`. A failed detail is reported in its place.

use super::requests::topics;
use crate::broker::Error;
use crate::broker::describe::{ClusterInfo, TopicConfig, TopicInfo, TopicPermissions};
use crate::broker::kafka::error::{call_error, text_or_code};
use crate::broker::kafka::ffi::{self, CallContext, CallError, ConfigOwner, ConfigValues};
use crate::broker::kafka::topic_name::{invalid_topic_name, is_valid_topic_name};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn describe_cluster(
    context: &mut CallContext<'_>,
    names: &[String],
) -> Result<ClusterInfo, Error> {
    let brokers = ffi::brokers(context).map_err(|(code, text)| call_error(code, &text))?;
    let offsets_retention = brokers
        .first()
        .map(|broker| offsets_retention(context, &broker.to_string()));
    let valid: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| is_valid_topic_name(name))
        .collect();
    let mut counts = partition_counts(context, &valid);
    let existing: Vec<&str> = valid
        .into_iter()
        .filter(|name| matches!(counts.get(*name), Some(Ok(Some(_)))))
        .collect();
    let mut details = TopicDetails::read(context, &existing);
    let mut topics = BTreeMap::new();
    for name in names {
        let topic = match counts.remove(name.as_str()) {
            Some(Ok(Some(count))) => Ok(Some(details.take(name, count))),
            Some(Ok(None)) => Ok(None),
            Some(Err(text)) => Err(text),
            None if topics.contains_key(name) => continue,
            None => Err(invalid_topic_name(name)),
        };
        topics.insert(name.clone(), topic);
    }
    Ok(ClusterInfo {
        broker_count: brokers.len(),
        offsets_retention,
        topics,
    })
}

fn offsets_retention(context: &mut CallContext<'_>, broker: &str) -> Result<Duration, String> {
    let values = ffi::configs(context, ConfigOwner::Broker, &[broker])
        .map_err(error_text)?
        .remove(broker)
        .unwrap_or_else(|| Ok(ConfigValues::new()))
        .map_err(error_text)?;
    let minutes: Option<u64> = values
        .get("offsets.retention.minutes")
        .and_then(|minutes| minutes.parse().ok());
    minutes
        .map(|minutes| Duration::from_secs(minutes * 60))
        .ok_or_else(|| "the broker does not report it".to_owned())
}

/// The number of partitions of each topic; `None`: the topic does not exist.
fn partition_counts<'a>(
    context: &mut CallContext<'_>,
    names: &[&'a str],
) -> BTreeMap<&'a str, Result<Option<usize>, String>> {
    let together = topics(context, names.iter().copied()).ok();
    let mut count = |name: &str| {
        // The error of a common request does not name its topic, so ask for each topic alone.
        let found = match &together {
            Some(found) => found.iter().find(|topic| topic.name == name).cloned(),
            None => topics(context, std::iter::once(name))
                .map_err(|error| error.to_string())?
                .into_iter()
                .next(),
        };
        Ok(found.map(|topic| topic.partitions.len()))
    };
    names.iter().map(|name| (*name, count(name))).collect()
}

/// Permissions and configurations by topic.
struct TopicDetails {
    permissions: BTreeMap<String, (bool, bool)>,
    configs: Result<BTreeMap<String, Result<ConfigValues, CallError>>, String>,
}

impl TopicDetails {
    fn read(context: &mut CallContext<'_>, names: &[&str]) -> Self {
        if names.is_empty() {
            return Self {
                permissions: BTreeMap::new(),
                configs: Ok(BTreeMap::new()),
            };
        }
        Self {
            permissions: ffi::permissions(context, names).unwrap_or_default(),
            configs: ffi::configs(context, ConfigOwner::Topic, names).map_err(error_text),
        }
    }

    fn take(&mut self, name: &str, partitions: usize) -> TopicInfo {
        let config = match &mut self.configs {
            Ok(configs) => configs
                .remove(name)
                .unwrap_or_else(|| Ok(ConfigValues::new()))
                .map(|values| topic_config(&values))
                .map_err(error_text),
            Err(text) => Err(text.clone()),
        };
        let permissions = self
            .permissions
            .remove(name)
            .map(|(read, write)| TopicPermissions { read, write });
        TopicInfo {
            partitions,
            permissions,
            config,
        }
    }
}

fn error_text((code, text): CallError) -> String {
    text_or_code(code, &text)
}

/// Kafka writes a missing bound as -1.
fn topic_config(values: &ConfigValues) -> TopicConfig {
    let policy = values
        .get("cleanup.policy")
        .map_or("delete", String::as_str);
    let number = |name: &str| {
        let value: i64 = values.get(name)?.parse().ok()?;
        u64::try_from(value).ok()
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
    fn a_topic_config_is_read_as_kafka_writes_it() {
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
            topic_config(&values(&[
                ("retention.ms", "-1"),
                ("retention.bytes", "-1"),
                ("cleanup.policy", "delete")
            ])),
            unbounded
        );
        assert_eq!(topic_config(&ConfigValues::new()), unbounded);
        assert_eq!(
            topic_config(&values(&[
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
        assert!(!topic_config(&values(&[("cleanup.policy", "compact")])).has_retention);
    }
}
