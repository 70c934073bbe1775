//! Changes that the HTTP API and the commands ask for: records that are written to the source of a route, as a producer
//! writes them. So they survive the loss of the store.

use super::schedules::replace_definition;
use super::send::{self, Draft, Receipt};
use super::source_producer::{self, RejectedByBroker, SourceProducer};
use super::{Refused, control};
use crate::admin::changes::{Change, ChangeError, ChangeKind};
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
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;

/// Producers by route. A failed one is replaced.
#[derive(Default)]
pub(crate) struct ChangeWriter(BTreeMap<String, SourceProducer>);

impl ChangeWriter {
    /// Writes one record, or the control records of a route. Answers with the JSON of the receipt, of the
    /// written partitions, or of the definition.
    pub(crate) async fn write(
        &mut self,
        config: &Config,
        change: Change,
    ) -> Result<String, ChangeError> {
        let mut producer = self.0.remove(&change.route);
        let route = change.route.clone();
        let written = match &change.kind {
            ChangeKind::Copy { due, of, copy } => {
                let copy = Copy::new(copy, *of, *due);
                let receipt = send_copy(config, &change, &copy, &mut producer).await;
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
        let written = written.map_err(|error| {
            let is_refused = error.is::<Refused>()
                || error.is::<ConfigError>()
                || error.is::<RejectedByBroker>();
            let text = format!("{error:#}");
            match is_refused {
                true => ChangeError::Refused(text),
                false => ChangeError::Failed(text),
            }
        });
        match (&written, producer) {
            (Err(ChangeError::Failed(_)), producer) => source_producer::close(producer).await,
            (_, Some(producer)) => drop(self.0.insert(route, producer)),
            (_, None) => {}
        }
        written
    }

    pub(crate) async fn close(self) {
        for producer in self.0.into_values() {
            source_producer::close(Some(producer)).await;
        }
    }
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
    copy: &Copy<'_>,
    producer: &mut Option<SourceProducer>,
) -> Result<Receipt> {
    let topic = change.topic.clone().unwrap_or_default();
    config.check_source(&change.route, &topic)?;
    let shard = Partition::new(topic.as_str(), change.partition.unwrap_or(0));
    let shard = ShardId::new(change.route.as_str(), shard);
    let origins = OriginFormat::new(&config.deployment, &shard);
    let rules = routing_rules(config, &change.route);
    let draft = copy.draft(&origins, &rules, WallClock.now())?;
    let producer = match producer {
        Some(producer) => producer,
        None => producer.insert(SourceProducer::open(config, &change.route)?),
    };
    let (place, partition) = match &change.subject {
        Some(subject) => (subject.as_str(), None),
        None => (topic.as_str(), change.partition),
    };
    let position = producer.send(copy.key.as_deref(), &draft, place, partition);
    let position = position.await?;
    Ok(Receipt::new(&change.route, topic, position))
}

/// The same change on the command line.
fn arguments(config: &Config, mut change: Change) -> (SendArgs, Option<Vec<u8>>) {
    let route = config.routes.get(&change.route);
    // CloudEvents writes its attributes as `ce_` in Kafka and as `ce-` in HTTP and NATS.
    let kind = route.map(|route| route.source.kind).unwrap_or_default();
    let prefix = kind.cloud_events_prefix();
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
