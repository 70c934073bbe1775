//! Spans as OpenTelemetry has them, with the names of its semantic conventions for messaging. Sends nothing.

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

/// The brokers of a route, by the names that the conventions have for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessagingSystems {
    pub(crate) source: &'static str,
    pub(crate) target: &'static str,
}

/// Writes the spans of one process.
pub(crate) struct SpanConverter {
    pub(crate) deployment: String,
    /// By route.
    pub(crate) systems: BTreeMap<String, MessagingSystems>,
    pub(crate) random: StdRng,
}

impl SpanConverter {
    /// Whose spans they are: of another process each time.
    pub(super) fn resource(&mut self) -> Resource {
        let about = [
            KeyValue::new("service.name", "postdate"),
            KeyValue::new("service.namespace", self.deployment.clone()),
            KeyValue::new(
                "service.instance.id",
                format!("{:016x}", self.random.random::<u64>()),
            ),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ];
        Resource::builder_empty().with_attributes(about).build()
    }

    /// Each span begins a trace of its own: one batch belongs to many traces, so it can be the child of none.
    pub(super) fn convert(&mut self, span: &Span) -> SpanData {
        let context = TraceParent {
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
            span_context: span_context(&context, false),
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
        let topic = partition.topic.to_string();
        let systems = self.systems.get(&**route).copied();
        let mut attributes = vec![
            int_attribute("messaging.batch.message_count", span.messages),
            KeyValue::new("postdate.route", route.to_string()),
        ];
        let (kind, name, system) =
            match &span.operation {
                SpanOperation::Stored => {
                    attributes.extend([
                        KeyValue::new("messaging.operation.name", "ingest"),
                        KeyValue::new("messaging.operation.type", "process"),
                        KeyValue::new("messaging.destination.name", topic.clone()),
                        KeyValue::new(
                            "messaging.destination.partition.id",
                            partition.index.to_string(),
                        ),
                    ]);
                    (
                        SpanKind::Consumer,
                        format!("ingest {topic}"),
                        systems.map(|systems| systems.source),
                    )
                }
                // A client's span, not a producer's: what a message carries is its own producer's context.
                SpanOperation::Delivered {
                    target,
                    dead_lettered,
                    sent_back,
                } => {
                    attributes.extend([
                        KeyValue::new("messaging.operation.name", "deliver"),
                        KeyValue::new("messaging.operation.type", "send"),
                        KeyValue::new("postdate.source", format!("{topic}/{}", partition.index)),
                        int_attribute("postdate.dead_lettered", *dead_lettered),
                        int_attribute("postdate.sent_back", *sent_back),
                    ]);
                    attributes.extend(target.iter().map(|target| {
                        KeyValue::new("messaging.destination.name", target.to_string())
                    }));
                    let name = target.as_ref().map_or_else(
                        || "deliver".to_owned(),
                        |target| format!("deliver {target}"),
                    );
                    (
                        SpanKind::Client,
                        name,
                        systems.map(|systems| systems.target),
                    )
                }
            };
        attributes.extend(system.map(|system| KeyValue::new("messaging.system", system)));
        (kind, name, attributes)
    }
}

fn span_context(
    TraceParent {
        trace_id: trace,
        span_id: span,
    }: &TraceParent,
    is_remote: bool,
) -> SpanContext {
    SpanContext::new(
        TraceId::from(*trace),
        SpanId::from(*span),
        TraceFlags::SAMPLED,
        is_remote,
        TraceState::NONE,
    )
}

fn int_attribute(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

fn system_time(timestamp: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH
        + Duration::from_millis(u64::try_from(timestamp.as_millis()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use rand::SeedableRng;

    #[test]
    fn a_batch_is_a_root_span_with_links_and_each_side_has_its_own_system() {
        let mut scribe = SpanConverter {
            deployment: "prod".to_owned(),
            systems: BTreeMap::from([(
                "orders".to_owned(),
                MessagingSystems {
                    source: "kafka",
                    target: "nats",
                },
            )]),
            random: StdRng::seed_from_u64(1),
        };
        let links = vec![TraceParent {
            trace_id: 0xabc,
            span_id: 0xd,
        }];
        let shard = ShardId::new("orders", Partition::new("orders.delayed", 3));
        let (start, end) = (
            Timestamp::from_millis(1_795_198_063_162),
            Timestamp::from_millis(1_795_198_063_170),
        );
        let stored = Span {
            shard,
            start,
            end,
            links,
            messages: 2,
            operation: SpanOperation::Stored,
        };
        let deed = SpanOperation::Delivered {
            target: Some("orders".into()),
            dead_lettered: 1,
            sent_back: 0,
        };
        let delivered = Span {
            operation: deed,
            ..stored.clone()
        };
        let (stored, delivered) = (scribe.convert(&stored), scribe.convert(&delivered));
        let system = |span: &SpanData| {
            span.attributes
                .iter()
                .find(|pair| pair.key.as_str() == "messaging.system")
                .map(|pair| pair.value.to_string())
        };
        assert_eq!(
            (&*stored.name, &stored.span_kind, system(&stored).as_deref()),
            ("ingest orders.delayed", &SpanKind::Consumer, Some("kafka"))
        );
        assert_eq!(
            (
                &*delivered.name,
                &delivered.span_kind,
                system(&delivered).as_deref()
            ),
            ("deliver orders", &SpanKind::Client, Some("nats"))
        );
        for span in [&stored, &delivered] {
            assert_eq!(
                (
                    span.parent_span_id,
                    span.end_time.duration_since(span.start_time).unwrap()
                ),
                (SpanId::INVALID, Duration::from_millis(8))
            );
            let linked = &span.links.links[0].span_context;
            assert_eq!(
                (
                    linked.trace_id(),
                    linked.span_id(),
                    linked.is_sampled(),
                    linked.is_remote()
                ),
                (TraceId::from(0xabc), SpanId::from(0xd), true, true)
            );
        }
        assert_ne!(
            stored.span_context.trace_id(),
            delivered.span_context.trace_id()
        );
    }
}
