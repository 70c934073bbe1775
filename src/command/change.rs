//! Changes that the HTTP API and the commands ask for: records that are written to the source of a route, as a producer
//! writes them. So they survive the loss of the store.

use super::schedules::replace_definition;
use super::send::{self, Draft, Receipt};
use super::source_producer::{self, RejectedByBroker, SourceProducer, SourceRecord};
use super::{Refused, control};
use crate::admin::changes::{Change, ChangeError, ChangeKind, WriteChanges};
use crate::cli::SendArgs;
use crate::clock::{Clock as _, WallClock};
use crate::config::Config;
use crate::config::Error as ConfigError;
use crate::limit::RECORD_BYTES_MAX;
use crate::model::header::push_header;
use crate::model::header_name::{ControlHeader, stays_on_retry};
use crate::model::retry::RetryHeader;
use crate::model::{
    DeadLetterReason, Dialect, Headers, Offset, OriginFormat, ParsedRecord, Partition, Record,
    RetryKeys, RetryState, RoutingRules, ShardId, Timestamp, parse_record,
};
use crate::role::routing_rules;
use crate::store::query::{MessageCopy, bytes_of_copy};
use anyhow::{Context as _, Error, Result, anyhow};
use serde::Serialize;
use std::collections::BTreeMap;

/// Writes changes with the logins of a configuration.
pub(crate) struct ChangeWriter<'a> {
    config: &'a Config,
    /// By route. A failed one is replaced.
    producers: BTreeMap<String, SourceProducer>,
}

impl<'a> ChangeWriter<'a> {
    pub(crate) fn new(config: &'a Config) -> Self {
        let producers = BTreeMap::new();
        Self { config, producers }
    }

    /// Sends records of this route. Returns their outcomes in this order.
    async fn send_all(&mut self, route: String, records: &[SourceRecord]) -> Vec<Result<()>> {
        let producer = match self.producers.remove(&route) {
            Some(producer) => Ok(producer),
            None => SourceProducer::open(self.config, &route),
        };
        let mut producer = match producer {
            Ok(producer) => producer,
            Err(error) => {
                let why = format!("{error:#}");
                return records.iter().map(|_| Err(anyhow!("{why}"))).collect();
            }
        };
        let sent = records.iter().zip(producer.send_all(records).await);
        let sent = sent.map(|(record, outcome)| match outcome {
            Ok(_) => Ok(()),
            Err(failure) => Err(producer.error(failure, record)),
        });
        let sent: Vec<_> = sent.collect();
        let is_failure = |error: &Error| !error.is::<RejectedByBroker>();
        let has_failed = sent.iter().any(|it| it.as_ref().is_err_and(is_failure));
        self.keep(route, Some(producer), has_failed).await;
        sent
    }

    async fn keep(&mut self, route: String, producer: Option<SourceProducer>, has_failed: bool) {
        match producer {
            _ if has_failed => source_producer::close(producer).await,
            Some(producer) => drop(self.producers.insert(route, producer)),
            None => {}
        }
    }

    pub(crate) async fn close(self) {
        for producer in self.producers.into_values() {
            source_producer::close(Some(producer)).await;
        }
    }
}

impl WriteChanges for ChangeWriter<'_> {
    async fn write(&mut self, change: Change) -> Result<String, ChangeError> {
        let config = self.config;
        let mut producer = self.producers.remove(&change.route);
        let route = change.route.clone();
        let written = match &change.kind {
            ChangeKind::Copy { due, of, copy } => {
                let copy = Copy::new(copy, *of, *due);
                let receipt = send_copy(config, &change, copy, &mut producer).await;
                receipt.map(|receipt| to_json(&receipt))
            }
            ChangeKind::Control { pauses, at, note } => {
                let written = control::write(config, &route, *pauses, *at, note).await;
                written.map(|places| to_json(&places))
            }
            ChangeKind::Definition { .. } => {
                let written = replace_definition(config, change, &mut producer).await;
                written.map(|written| to_json(&written))
            }
            _ => {
                let (args, payload) = arguments(config, change);
                let receipt = send::publish(config, &args, payload, &mut producer).await;
                receipt.map(|receipt| to_json(&receipt))
            }
        };
        let written = written.map_err(|error| change_error(&error));
        let has_failed = matches!(written, Err(ChangeError::Failed(_)));
        self.keep(route, producer, has_failed).await;
        written
    }

    async fn write_many(&mut self, changes: Vec<Change>) -> Vec<Result<(), ChangeError>> {
        let route = changes.first().map(|change| change.route.clone());
        let (mut records, mut prepared) = (Vec::new(), Vec::new());
        for change in changes {
            let record = record(self.config, change);
            prepared.push(record.map(|record| records.push(record)));
        }
        // Without a record, the route may not exist.
        let sent = match route.filter(|_| !records.is_empty()) {
            Some(route) => self.send_all(route, &records).await,
            None => Vec::new(),
        };
        let mut sent = sent.into_iter();
        let mut outcome = |()| sent.next().context("each record has an outcome")?;
        let outcomes = prepared.into_iter().map(|prepared| {
            let outcome = prepared.and_then(&mut outcome);
            outcome.map_err(|error| change_error(&error))
        });
        outcomes.collect()
    }
}

fn change_error(error: &Error) -> ChangeError {
    let is_refused =
        error.is::<Refused>() || error.is::<ConfigError>() || error.is::<RejectedByBroker>();
    let text = format!("{error:#}");
    match is_refused {
        true => ChangeError::Refused(text),
        false => ChangeError::Failed(text),
    }
}

/// The record of a change of one message.
fn record(config: &Config, change: Change) -> Result<SourceRecord> {
    if let ChangeKind::Copy { due, of, copy } = &change.kind {
        return copy_record(config, &change, Copy::new(copy, *of, *due));
    }
    let (args, payload) = arguments(config, change);
    let (record, _) = send::prepare(config, &args, payload, WallClock.now())?;
    Ok(record)
}

fn to_json(receipt: &impl Serialize) -> String {
    serde_json::to_string(receipt).expect("a receipt has numbers and texts")
}

/// A message to send again, in place of the one that waits at the offset `of`.
struct Copy<'a> {
    copy: &'a MessageCopy,
    of: Offset,
    due: Timestamp,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Vec<u8>,
}

impl<'a> Copy<'a> {
    fn new(copy: &'a MessageCopy, of: u64, due: Timestamp) -> Self {
        let bytes = |text: &Option<String>| bytes_of_copy(text.as_deref()?);
        Self {
            key: bytes(&copy.key),
            payload: bytes(&copy.payload),
            headers: bytes_of_copy(&copy.headers).unwrap_or_default(),
            copy,
            of: Offset(of),
            due,
        }
    }

    /// The record, if the service accepts it. A rejected copy would be a dead letter, and its message
    /// would still be delivered.
    fn draft(
        &self,
        origins: &OriginFormat,
        rules: &RoutingRules,
        now: Timestamp,
    ) -> Result<Draft, Refused> {
        let headers = self.headers(&rules.retry_keys);
        let record = Record {
            // Behind its message.
            offset: Offset::MAX,
            timestamp: Some(now),
            key: self.key.as_deref(),
            payload: self.payload.as_deref(),
            headers: Headers::from_block(&headers),
        };
        // The service would make a dead letter of it, without its payload.
        if record.bytes() > RECORD_BYTES_MAX {
            let bytes = record.bytes();
            return Err(Refused(format!(
                "not sent, because the copy has {bytes} bytes, and at most {RECORD_BYTES_MAX} can be stored"
            )));
        }
        if let ParsedRecord::Rejected(rejection) = parse_record(&record, origins, rules) {
            return Err(send::refused(&rejection));
        }
        Ok(Draft {
            headers,
            payload: self.payload.clone(),
            due: Some(self.due),
        })
    }

    /// Its headers, with the line that the timer writes when it sends a message back to its source.
    fn headers(&self, keys: &RetryKeys) -> Vec<u8> {
        let copy = self.copy;
        let header = RetryHeader {
            retry: RetryState {
                attempt: copy.attempt,
                origin: &copy.origin,
                due: self.due,
                error: (copy.error.as_deref()).and_then(DeadLetterReason::from_code),
            },
            target: copy.target.as_deref(),
            dialect: copy.dialect.as_deref().and_then(Dialect::from_name),
            at: self.due,
            is_answer: false,
            id: Some(&copy.id),
            replaces: Some(self.of),
        };
        let mut line = String::new();
        let (key, payload) = (self.key.as_deref(), self.payload.as_deref());
        header.append_line(keys, key, payload, &mut line);
        let mut block = Vec::new();
        for (name, value) in Headers::from_block(&self.headers).iter() {
            if stays_on_retry(name) {
                push_header(&mut block, name, value);
            }
        }
        let name = ControlHeader::Retry.name().as_bytes();
        push_header(&mut block, name, Some(line.as_bytes()));
        block
    }
}

/// Writes the copy to the partition of its message.
async fn send_copy(
    config: &Config,
    change: &Change,
    copy: Copy<'_>,
    producer: &mut Option<SourceProducer>,
) -> Result<Receipt> {
    let record = copy_record(config, change, copy)?;
    let producer = match producer {
        Some(producer) => producer,
        None => producer.insert(SourceProducer::open(config, &change.route)?),
    };
    let position = producer.send(&record).await?;
    let topic = change.topic.clone().unwrap_or_default();
    Ok(Receipt::new(&change.route, topic, position))
}

fn copy_record(config: &Config, change: &Change, copy: Copy<'_>) -> Result<SourceRecord> {
    let topic = change.topic.clone().unwrap_or_default();
    config.check_source(&change.route, &topic)?;
    let shard = Partition::new(topic.as_str(), change.partition.unwrap_or(0));
    let shard = ShardId::new(change.route.as_str(), shard);
    let origins = OriginFormat::new(&config.deployment, &shard);
    let rules = routing_rules(config, &change.route);
    let draft = copy.draft(&origins, &rules, WallClock.now())?;
    let (topic, partition) = match &change.subject {
        Some(subject) => (subject.clone(), None),
        None => (topic, change.partition),
    };
    Ok(SourceRecord {
        key: copy.key,
        draft,
        topic,
        partition,
    })
}

/// The same change on the command line.
fn arguments(config: &Config, mut change: Change) -> (SendArgs, Option<Vec<u8>>) {
    let route = config.routes.get(&change.route);
    // CloudEvents writes its attributes as `ce_` in Kafka and as `ce-` in HTTP and NATS.
    let kind = route.map(|route| route.source.kind).unwrap_or_default();
    let prefix = kind.facts().cloud_events_prefix;
    let headers = std::mem::take(&mut change.headers).into_iter();
    let headers = headers.map(|(name, value)| {
        let name = match name.strip_prefix("ce-") {
            Some(attribute) => format!("{prefix}{attribute}"),
            None => name,
        };
        format!("{name}={value}")
    });
    let (delay, at, payload) = match change.kind {
        ChangeKind::Publish {
            ref after,
            ref at,
            ref mut payload,
        } => (after.clone(), at.clone(), payload.take()),
        ChangeKind::Reschedule { due } => (None, Some(due.as_millis().to_string()), None),
        ChangeKind::Cancel
        | ChangeKind::Copy { .. }
        | ChangeKind::Control { .. }
        | ChangeKind::Definition { .. } => (None, None, None),
    };
    let args = SendArgs {
        route: change.route,
        topic: change.topic,
        subject: change.subject,
        key: change.key,
        partition: change.partition,
        headers: headers.collect(),
        delay,
        at,
        id: change.id,
        of: change.of,
        to: change.to,
        cancel: change.kind == ChangeKind::Cancel,
        reschedule: matches!(change.kind, ChangeKind::Reschedule { .. }),
        ..SendArgs::default()
    };
    (args, payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    const NOW: i64 = 1_795_302_005_000;

    fn drafted(copy: &MessageCopy, due: i64) -> Result<Draft, String> {
        let rules = RoutingRules::for_test();
        let shard = ShardId::new("orders", Partition::new("orders.delayed", 3));
        let origins = OriginFormat::new("prod", &shard);
        let copy = Copy::new(copy, 5, Timestamp::from_millis(due));
        let draft = copy.draft(&origins, &rules, Timestamp::from_millis(NOW));
        draft.map_err(|refused| refused.to_string())
    }

    #[test]
    fn a_copy_that_the_service_would_reject_is_refused() {
        let copy = MessageCopy {
            id: "a".to_owned(),
            origin: "prod/orders/orders.delayed/3/5".to_owned(),
            ..MessageCopy::default()
        };
        assert!(drafted(&copy, NOW).is_ok());
        // The route had another `max_delay`.
        let refused = drafted(&copy, NOW + 7_200_000).err().unwrap();
        assert!(refused.contains("(invalid_retry)"), "{refused}");
        // The headers of the copy are longer than those of its message.
        let large = MessageCopy {
            payload: Some(STANDARD.encode(vec![0; RECORD_BYTES_MAX - 10])),
            ..copy.clone()
        };
        let refused = drafted(&large, NOW).err().unwrap();
        assert!(refused.contains("bytes, and at most"), "{refused}");
        // The route allowed this target.
        let copy = MessageCopy {
            target: Some("billing".to_owned()),
            ..copy
        };
        let refused = drafted(&copy, NOW).err().unwrap();
        assert!(refused.contains("(target_not_allowed)"), "{refused}");
    }
}
