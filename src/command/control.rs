//! Control records, which pause or resume a route: one for each partition of its sources.

use super::Refused;
use super::send::Draft;
use super::source_producer::{self, SourceProducer, SourceRecord};
use crate::config::Config;
use crate::health::Health;
use crate::limit::COMMAND_DELIVERY_TIMEOUT;
use crate::model::header::push_header;
use crate::model::header_name::ControlHeader;
use crate::model::{
    Control, Offset, OriginFormat, Partition, RetryKeys, ShardId, Timestamp, split_source_topic,
    subject_within,
};
use crate::role::routing_rules;
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use tokio::time::timeout;

/// Partitions that an error names.
const NAMED_MAX: usize = 5;

/// Writes the records, also if some partitions do not take theirs. Returns the partitions, or an error if one of
/// them may have no record.
pub(super) async fn write(
    config: &Config,
    route: &str,
    pauses: bool,
    at: Timestamp,
    note: &Arc<str>,
) -> Result<Vec<(String, i32)>> {
    config.route_named_or_only(Some(route))?;
    let rules = routing_rules(config, route);
    if rules.is_recurring {
        let text = "a recurring route is not paused: send `postdate-paused: true` in the definitions of its schedules";
        return Err(Refused(text.to_owned()).into());
    }
    let partitions = partitions(config, route).await?;
    let records = partitions.iter().map(|partition| {
        let shard = ShardId::new(route, partition.clone());
        let mut origin = String::new();
        OriginFormat::new(&config.deployment, &shard).append_origin(Offset(0), &mut origin);
        let control = Control {
            pauses,
            origin: &origin,
            at,
            note: note.clone(),
        };
        record(&control, partition, &rules.retry_keys)
    });
    let records = records.collect::<Result<Vec<_>, Refused>>()?;
    let mut producer = SourceProducer::open(config, route)?;
    let outcomes = producer.send_all(&records).await;
    source_producer::close(Some(producer)).await;
    let failures = partitions.iter().zip(outcomes);
    let failures = failures.filter_map(|(partition, outcome)| {
        let why = outcome.err()?.detail;
        Some(format!("{partition}: {why}"))
    });
    let failures: Vec<_> = failures.collect();
    if !failures.is_empty() {
        let (all, written) = (partitions.len(), partitions.len() - failures.len());
        let named = failures[..failures.len().min(NAMED_MAX)].join("; ");
        bail!(
            "{written} of {all} partitions have the record. Repeat the request for the others: {named}"
        );
    }
    let places = partitions.iter();
    let places = places.map(|partition| (partition.topic.to_string(), partition.index));
    Ok(places.collect())
}

/// All partitions of the sources, as the broker knows them.
async fn partitions(config: &Config, route: &str) -> Result<Vec<Partition>> {
    let source = &config.routes[route].source;
    let cluster = config.cluster(&source.cluster);
    let mut catalog = cluster.admin(None, Health::new().register("control"))?;
    let found = timeout(COMMAND_DELIVERY_TIMEOUT, catalog.partitions(&source.topics)).await;
    catalog.close().await;
    let name = || cluster.qualified_name();
    let found = found.map_err(|_| anyhow::anyhow!("{} does not answer", name()))?;
    let found = found.with_context(name)?;
    let found: Vec<_> = found.into_iter().map(|(partition, _)| partition).collect();
    for topic in &source.topics {
        if !found.iter().any(|partition| *partition.topic == **topic) {
            bail!("the source {topic} does not exist on {}", name());
        }
    }
    Ok(found)
}

/// The record, its topic or subject, and its partition.
fn record(
    control: &Control<'_>,
    partition: &Partition,
    keys: &RetryKeys,
) -> Result<SourceRecord, Refused> {
    let line = control.signed_line(keys).ok_or_else(|| {
        let text = "to pause a route, set `retry_key_file` for all processes: it proves that no producer has paused it";
        Refused(text.to_owned())
    })?;
    let mut headers = Vec::new();
    let name = ControlHeader::Retry.name().as_bytes();
    push_header(&mut headers, name, Some(line.as_bytes()));
    let draft = Draft {
        headers,
        payload: None,
        due: None,
    };
    let (topic, partition) = match split_source_topic(&partition.topic) {
        Some((_, filter)) => (subject_within(filter), None),
        None => (partition.topic.to_string(), Some(partition.index)),
    };
    Ok(SourceRecord {
        key: None,
        draft,
        topic,
        partition,
    })
}
