//! Tests traces: a producer's context arrives unchanged, and a real collector receives spans that
//! link to it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::env::{
    Collector, Outgoing, Postdate, Producer, Sink, eventually, kafka, nats, now_ms, redis, unique,
};
use crate::verdict::{LIMIT, Scene};

const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// A context that its producer does not sample.
const UNSAMPLED: &str = "00-5bf92f3577b34da6a3ce929d0e0e4736-10f067aa0ba902b7-00";

fn traced(scene: &Scene, traceparent: &str) -> Outgoing {
    let delayed = Outgoing::to(&scene.source)
        .key("k")
        .header("postdate-after", "1s");
    delayed
        .header("traceparent", traceparent)
        .header("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
}

/// The attributes of a span or a resource. Numbers stay text.
fn attributes(list: &Value) -> BTreeMap<String, String> {
    let value = |value: &Value| {
        value
            .as_object()
            .and_then(|value| value.values().next()?.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    list.as_array()
        .into_iter()
        .flatten()
        .map(|pair| {
            (
                pair["key"].as_str().unwrap_or_default().to_owned(),
                value(&pair["value"]),
            )
        })
        .collect()
}

fn is_linked(span: &Value) -> bool {
    let links = span["links"]
        .as_array()
        .expect("a span without links is not told");
    links.iter().any(|link| {
        link["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"
            && link["spanId"] == "00f067aa0ba902b7"
    })
}

#[test]
fn a_message_has_spans_for_storing_and_delivering_and_its_context_arrives_unchanged() {
    for delivery in ["at-least-once", "exactly-once"] {
        let (collector, scene) = (Collector::start(), Scene::new(kafka(), "traced", 1));
        let sink = scene.sink();
        let more = format!(
            "delivery = \"{delivery}\"\n[traces]\nendpoint = \"{}\"",
            collector.url()
        );
        let mut postdate = Postdate::ready_with(&scene.config_with(redis(), &more));
        let sent = now_ms();
        let producer = Producer::start(kafka().addr());
        producer.send(&traced(&scene, SAMPLED));
        producer.send(&traced(&scene, UNSAMPLED));
        producer.flush();
        let arrived = sink.wait_for(2, LIMIT);
        for (record, traceparent) in arrived.iter().zip([SAMPLED, UNSAMPLED]) {
            let context: Vec<_> = record
                .headers
                .iter()
                .take(2)
                .map(|(name, value)| (name.as_str(), value.as_deref().unwrap()))
                .collect();
            let state: &[u8] = b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";
            assert_eq!(
                context,
                [
                    ("traceparent", traceparent.as_bytes()),
                    ("tracestate", state)
                ]
            );
        }
        let spans = eventually("both spans are told", LIMIT, || {
            Some(collector.spans()).filter(|spans| spans.len() >= 2)
        });
        assert_eq!(spans.len(), 2, "{spans:#?}");
        let of = |deed: &str| {
            spans
                .iter()
                .find(|span| {
                    span["name"]
                        .as_str()
                        .is_some_and(|name| name.starts_with(deed))
                })
                .expect(deed)
        };
        let (stored, delivered) = (of("ingest"), of("deliver"));
        for (span, kind, name) in [
            (stored, 5, format!("ingest {}", scene.source)),
            (delivered, 3, format!("deliver {}", scene.target)),
        ] {
            assert_eq!(
                (span["kind"].as_u64(), span["name"].as_str()),
                (Some(kind), Some(name.as_str()))
            );
            assert!(
                is_linked(span) && span["links"].as_array().unwrap().len() == 1,
                "the unsampled one is left alone: {span:#?}"
            );
            let (own, about) = (
                attributes(&span["attributes"]),
                attributes(&span["resource"]),
            );
            assert_eq!(
                (
                    own["messaging.system"].as_str(),
                    own["messaging.batch.message_count"].as_str()
                ),
                ("kafka", "2"),
                "{own:?}"
            );
            assert_eq!(
                (about["service.name"].as_str(), &about["service.namespace"]),
                ("postdate", &scene.deployment)
            );
        }
        let millis = |span: &Value, key: &str| {
            span[key].as_str().unwrap().parse::<i64>().unwrap() / 1_000_000
        };
        assert!(
            millis(delivered, "startTimeUnixNano") >= sent + 1_000,
            "a second after it was sent"
        );
        assert!(millis(stored, "endTimeUnixNano") < millis(delivered, "startTimeUnixNano"));
        assert_ne!(stored["traceId"], delivered["traceId"]);
        assert_eq!(
            postdate.terminate().0.code(),
            Some(0),
            "{}",
            postdate.logs()
        );
    }
}

#[test]
fn each_span_of_a_bridge_names_the_broker_of_its_side() {
    let (collector, name) = (Collector::start(), unique("bridged"));
    nats().create_stream(&format!("{name}_IN"), &[&format!("{name}.in")]);
    for topic in ["target", "dead"] {
        kafka().create_topic(&format!("{name}.{topic}"), 1, &[]);
    }
    let (kafka, nats_url, redis, traces) =
        (kafka().addr(), nats().url(), redis().url(), collector.url());
    let _postdate = Postdate::ready_with(&format!(
        r#"
deployment = "{name}"
store.redis.url = "{redis}"
kafka.main.brokers = ["{kafka}"]
nats.edge.url = "{nats_url}"
traces.endpoint = "{traces}"
[route.r]
source = {{ nats = "edge", stream = "{name}_IN", subjects = ["{name}.in"] }}
target = {{ kafka = "main", topic = "{name}.target" }}
dead_letter = {{ kafka = "main", topic = "{name}.dead" }}
"#
    ));
    nats().publish(
        &format!("{name}.in"),
        &[("postdate-after", "500ms"), ("traceparent", SAMPLED)],
        "x",
    );
    let spans = eventually("both spans are told", LIMIT, || {
        Some(collector.spans()).filter(|spans| spans.len() >= 2)
    });
    for (deed, system) in [("ingest", "nats"), ("deliver", "kafka")] {
        let span = spans
            .iter()
            .find(|span| {
                span["name"]
                    .as_str()
                    .is_some_and(|name| name.starts_with(deed))
            })
            .expect(deed);
        assert_eq!(
            attributes(&span["attributes"])["messaging.system"],
            system,
            "{span:#?}"
        );
    }
}

/// Sends `count` traced messages and waits until all have arrived. With one span per message, they
/// would overflow the span queue many times.
fn deliver(scene: &Scene, sink: &Sink, count: usize) {
    let before = sink.records().len();
    let producer = Producer::start(kafka().addr());
    (0..count).for_each(|_| producer.send(&traced(scene, SAMPLED)));
    producer.flush();
    sink.wait_for(before + count, LIMIT);
}

#[test]
fn an_unreachable_or_silent_collector_blocks_nothing_and_is_logged_once() {
    let silent = Collector::start();
    silent.pause();
    let nobody = "http://127.0.0.1:1".to_owned();
    for (url, reason) in [
        (nobody, "Connection refused"),
        (silent.url(), "no answer within 5 s"),
    ] {
        let scene = Scene::new(kafka(), "untraced", 1);
        let sink = scene.sink();
        let mut postdate = Postdate::ready_with(
            &scene.config_with(redis(), &format!("[traces]\nendpoint = \"{url}\"")),
        );
        deliver(&scene, &sink, 2_000);
        eventually("spans are given up", LIMIT, || {
            (postdate.metrics().sum("postdate_spans_dropped_total") >= 1.0).then_some(())
        });
        deliver(&scene, &sink, 2_000);
        assert!(postdate.ready(), "a collector is no reason not to be ready");
        let (status, took) = postdate.terminate();
        assert!(
            status.code() == Some(0) && took < Duration::from_secs(5),
            "{took:?}, {}",
            postdate.logs()
        );
        let logs = postdate.logs();
        let said: Vec<_> = logs
            .lines()
            .filter(|line| line.contains("dropping traces"))
            .collect();
        assert!(said.len() == 1 && said[0].contains(reason), "{said:#?}");
    }
    silent.resume();
}
