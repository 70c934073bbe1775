//! Spans as OTLP writes them in JSON (`ExportTraceServiceRequest`), with the names of the semantic conventions for messaging. Sends nothing.

use crate::model::ShardId;
use crate::trace::{Context, Deed, Span};
use rand::{Rng, RngExt};
use serde_json::{Value, json};
use std::fmt::Display;

/// Of OTLP's closed lists of numbers. A delivery is a client's span, not a producer's: what a message carries is its own producer's context.
const CLIENT: u8 = 3;
const CONSUMER: u8 = 5;

const NANOS: i64 = 1_000_000;

/// Whose spans they are.
pub(super) struct Resource {
    pub(super) deployment: String,
    /// Of this process.
    pub(super) instance: String,
}

/// One request's body. Each span begins a trace of its own: one batch belongs to many traces, so it can be the child of none.
pub(super) fn document(spans: &[Span], resource: &Resource, random: &mut impl Rng) -> String {
    let spans: Vec<Value> =
        spans.iter().map(|span| record(span, random.random_range(1..=u128::MAX), random.random_range(1..=u64::MAX))).collect();
    let scope = json!({ "name": "postdate", "version": env!("CARGO_PKG_VERSION") });
    let about = [
        text("service.name", "postdate"),
        text("service.namespace", &resource.deployment),
        text("service.instance.id", &resource.instance),
        text("service.version", env!("CARGO_PKG_VERSION")),
    ];
    json!({ "resourceSpans": [{ "resource": { "attributes": about }, "scopeSpans": [{ "scope": scope, "spans": spans }] }] }).to_string()
}

fn record(span: &Span, trace: u128, id: u64) -> Value {
    let ShardId { route, partition } = &span.shard;
    let mut attributes =
        vec![text("messaging.system", "kafka"), number("messaging.batch.message_count", span.messages), text("postdate.route", route)];
    let source = text("postdate.source", format!("{}/{}", partition.topic, partition.index));
    let (kind, name) = match &span.deed {
        Deed::Stored => {
            attributes.extend([text("messaging.operation.name", "ingest"), text("messaging.operation.type", "process")]);
            attributes.extend([
                text("messaging.destination.name", &partition.topic),
                text("messaging.destination.partition.id", partition.index),
            ]);
            (CONSUMER, format!("ingest {}", partition.topic))
        }
        Deed::Delivered { target, dead_lettered, sent_back } => {
            attributes.extend([text("messaging.operation.name", "deliver"), text("messaging.operation.type", "send"), source]);
            attributes.extend([number("postdate.dead_lettered", *dead_lettered), number("postdate.sent_back", *sent_back)]);
            attributes.extend(target.iter().map(|target| text("messaging.destination.name", target)));
            (CLIENT, target.as_ref().map_or_else(|| "deliver".to_owned(), |target| format!("deliver {target}")))
        }
    };
    json!({
        "traceId": format!("{trace:032x}"),
        "spanId": format!("{id:016x}"),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": nanos(span.start.as_millis()),
        "endTimeUnixNano": nanos(span.end.as_millis().max(span.start.as_millis())),
        "attributes": attributes,
        "links": span.links.iter().map(link).collect::<Vec<_>>(),
    })
}

/// Bit 0: sampled; bit 8 says that bit 9, of a remote parent, is known, and set.
fn link(Context { trace, span }: &Context) -> Value {
    json!({ "traceId": format!("{trace:032x}"), "spanId": format!("{span:016x}"), "flags": 0x301 })
}

/// Integers of 64 bits are text in OTLP's JSON.
fn nanos(millis: i64) -> String {
    millis.saturating_mul(NANOS).to_string()
}

fn text(key: &str, value: impl Display) -> Value {
    json!({ "key": key, "value": { "stringValue": value.to_string() } })
}

fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Partition, Timestamp};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn a_batch_is_a_root_span_with_links() {
        let links = vec![Context { trace: 0xabc, span: 0xd }];
        let shard = ShardId::new("orders", Partition::new("orders.delayed", 3));
        let (start, end) = (Timestamp::from_millis(1_795_198_063_162), Timestamp::from_millis(1_795_198_063_170));
        let stored = Span { shard, start, end, links, messages: 2, deed: Deed::Stored };
        let deed = Deed::Delivered { target: Some("orders".into()), dead_lettered: 1, sent_back: 0 };
        let delivered = Span { deed, ..stored.clone() };
        let resource = Resource { deployment: "prod".to_owned(), instance: "1".to_owned() };
        let document: Value = serde_json::from_str(&document(&[stored, delivered], &resource, &mut StdRng::seed_from_u64(1))).unwrap();
        let spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        let said = |span: &Value| format!("{} {} {}", span["name"], span["kind"], span["startTimeUnixNano"]);
        assert_eq!(said(&spans[0]), r#""ingest orders.delayed" 5 "1795198063162000000""#);
        assert_eq!(said(&spans[1]), r#""deliver orders" 3 "1795198063162000000""#);
        for span in spans {
            assert!(span.get("parentSpanId").is_none());
            assert_eq!((span["traceId"].as_str().unwrap().len(), span["spanId"].as_str().unwrap().len()), (32, 16));
            assert_eq!(
                span["links"],
                json!([{ "traceId": "00000000000000000000000000000abc", "spanId": "000000000000000d", "flags": 0x301 }])
            );
            assert_eq!(span["endTimeUnixNano"], "1795198063170000000");
        }
        assert_ne!(spans[0]["traceId"], spans[1]["traceId"]);
    }
}
