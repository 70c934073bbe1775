//! Converts spans to OpenTelemetry's form, with the attribute names of its conventions for
//! messaging.

use crate::model::{ShardId, Timestamp};
use crate::trace::{Span, SpanOperation, TraceParent};
use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// The brokers of a route, as the attribute `messaging.system` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessagingSystems {
    pub(crate) source: &'static str,
    pub(crate) target: &'static str,
}

pub(crate) struct SpanConverter {
    pub(crate) deployment: String,
    /// By route.
    pub(crate) systems: BTreeMap<String, MessagingSystems>,
    pub(crate) random: StdRng,
}

impl SpanConverter {
    /// The attributes of the process. The instance id is random and new for each process.
    pub(super) fn resource(&mut self) -> Resource {
        let instance = format!("{:016x}", self.random.random::<u64>());
        let attributes = [
            KeyValue::new("service.name", "postdate"),
            KeyValue::new("service.namespace", self.deployment.clone()),
            KeyValue::new("service.instance.id", instance),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ];
        Resource::builder_empty()
            .with_attributes(attributes)
            .build()
    }

    /// Converts a span. It is the root of its own trace: a batch belongs to many traces, so it is
    /// linked to them and is a child of none.
    pub(super) fn convert(&mut self, span: &Span) -> SpanData {
        let own = TraceParent {
            trace_id: self.random.random_range(1..=u128::MAX),
            span_id: self.random.random_range(1..=u64::MAX),
        };
        let (span_kind, name, attributes) = self.describe(span);
        let mut links = SpanLinks::default();
        links.links = span
            .links
            .iter()
            .map(|link| Link::with_context(span_context(link, true)))
            .collect();
        SpanData {
            span_context: span_context(&own, false),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind,
            name: name.into(),
            start_time: system_time(span.start),
            end_time: system_time(span.end.max(span.start)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("postdate")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }

    fn describe(&self, span: &Span) -> (SpanKind, String, Vec<KeyValue>) {
        let ShardId { route, partition } = &span.shard;
        let systems = self.systems.get(&**route);
        let mut attributes = vec![
            int_attribute("messaging.batch.message_count", span.messages),
            KeyValue::new("postdate.route", route.to_string()),
        ];
        let (kind, verb, destination, system) = match &span.operation {
            SpanOperation::Stored => {
                let index = partition.index.to_string();
                attributes.extend([
                    KeyValue::new("messaging.operation.type", "process"),
                    KeyValue::new("messaging.destination.partition.id", index),
                ]);
                let system = systems.map(|systems| systems.source);
                (
                    SpanKind::Consumer,
                    "ingest",
                    Some(&*partition.topic),
                    system,
                )
            }
            // Not `Producer`: the messages carry the context of their own producers.
            SpanOperation::Delivered {
                target,
                dead_lettered,
                retried,
            } => {
                attributes.extend([
                    KeyValue::new("messaging.operation.type", "send"),
                    KeyValue::new("postdate.source", partition.to_string()),
                    int_attribute("postdate.dead_lettered", *dead_lettered),
                    int_attribute("postdate.sent_back", *retried),
                ]);
                let system = systems.map(|systems| systems.target);
                (SpanKind::Client, "deliver", target.as_deref(), system)
            }
        };
        attributes.push(KeyValue::new("messaging.operation.name", verb));
        let mut name = verb.to_owned();
        if let Some(destination) = destination {
            name = format!("{verb} {destination}");
            let destination = destination.to_owned();
            attributes.push(KeyValue::new("messaging.destination.name", destination));
        }
        attributes.extend(system.map(|system| KeyValue::new("messaging.system", system)));
        (kind, name, attributes)
    }
}

fn span_context(parent: &TraceParent, is_remote: bool) -> SpanContext {
    SpanContext::new(
        TraceId::from(parent.trace_id),
        SpanId::from(parent.span_id),
        TraceFlags::SAMPLED,
        is_remote,
        TraceState::NONE,
    )
}

fn int_attribute(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

fn system_time(timestamp: Timestamp) -> SystemTime {
    let millis = u64::try_from(timestamp.as_millis()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use rand::SeedableRng;

    fn converter() -> SpanConverter {
        let systems = MessagingSystems {
            source: "kafka",
            target: "nats",
        };
        SpanConverter {
            deployment: "prod".to_owned(),
            systems: BTreeMap::from([("orders".to_owned(), systems)]),
            random: StdRng::seed_from_u64(1),
        }
    }

    /// A span of 8 ms with one link.
    fn span(operation: SpanOperation) -> Span {
        Span {
            shard: ShardId::new("orders", Partition::new("orders.delayed", 3)),
            start: Timestamp::from_millis(1_795_198_063_162),
            end: Timestamp::from_millis(1_795_198_063_170),
            links: vec![TraceParent {
                trace_id: 0xabc,
                span_id: 0xd,
            }],
            messages: 2,
            operation,
        }
    }

    fn delivered() -> Span {
        span(SpanOperation::Delivered {
            target: Some("orders".into()),
            dead_lettered: 0,
            retried: 0,
        })
    }

    fn system(span: &SpanData) -> Option<String> {
        let is_system = |pair: &&KeyValue| pair.key.as_str() == "messaging.system";
        let attribute = span.attributes.iter().find(is_system)?;
        Some(attribute.value.to_string())
    }

    #[test]
    fn each_operation_has_its_name_kind_and_system() {
        let mut converter = converter();
        let stored = converter.convert(&span(SpanOperation::Stored));
        assert_eq!(&*stored.name, "ingest orders.delayed");
        assert_eq!(stored.span_kind, SpanKind::Consumer);
        assert_eq!(system(&stored).as_deref(), Some("kafka"));
        let delivered = converter.convert(&delivered());
        assert_eq!(&*delivered.name, "deliver orders");
        assert_eq!(delivered.span_kind, SpanKind::Client);
        assert_eq!(system(&delivered).as_deref(), Some("nats"));
    }

    #[test]
    fn a_span_is_the_root_of_a_new_trace_with_links_to_the_producers() {
        let mut converter = converter();
        let first = converter.convert(&span(SpanOperation::Stored));
        let second = converter.convert(&delivered());
        for span in [&first, &second] {
            assert_eq!(span.parent_span_id, SpanId::INVALID);
            let length = span.end_time.duration_since(span.start_time).unwrap();
            assert_eq!(length, Duration::from_millis(8));
            let link = &span.links.links[0].span_context;
            assert_eq!(link.trace_id(), TraceId::from(0xabc));
            assert_eq!(link.span_id(), SpanId::from(0xd));
            assert!(link.is_sampled() && link.is_remote());
        }
        assert_ne!(
            first.span_context.trace_id(),
            second.span_context.trace_id()
        );
    }
}
