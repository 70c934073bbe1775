//! Tests the pause of a route: by the API, the command line and the console, on Kafka and NATS. No message arrives
//! during the pause, also after the loss of the store. All of them arrive after it.

use std::time::Duration;

use serde_json::Value;

use crate::changes::{OPERATOR, READER, Service};
use crate::env::{
    Outgoing, PATIENCE, Producer, Redis, Sink, eventually, kafka, nats, now_ms, redis, unique,
};
use crate::nats::{config, create_streams};
use crate::service::send_all;
use crate::verdict::Scene;

const KEY: &str = "retry_key = \"0123456789abcdef0123456789abcdef\"\n";
const POST: [&str; 4] = [
    "--request",
    "POST",
    "--data",
    r#"{"note": "incident 4711"}"#,
];

/// Sends a message to each of two partitions.
fn send(scene: &Scene, payload: &str, delay_ms: i64) {
    let due = (now_ms() + delay_ms).to_string();
    let message = |partition| {
        let message = Outgoing::to(&scene.source).partition(partition);
        message.payload(payload).header("postdate-at", &due)
    };
    send_all(&[message(0), message(1)]);
}

/// The sum of a metric over its labels.
fn metric(service: &Service, name: &str) -> f64 {
    let (_, text) = service.curl(READER, "/metrics", &[]);
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum()
}

fn wait_until_stored(service: &Service, count: f64) {
    eventually("the messages are stored", PATIENCE, || {
        (metric(service, "postdate_stored_total") >= count).then_some(())
    });
}

fn pause(service: &Service) -> Value {
    service.document(READER, "/v1/routes/r/pause", &[], 200)
}

/// Waits until so many shards are paused, as the store says.
fn wait_for_pause(service: &Service, paused: u64) -> Value {
    eventually("so many shards are paused", PATIENCE, || {
        let found = pause(service);
        let is_reached = found["paused"] == paused && found["shards"] == 2;
        is_reached.then_some(found)
    })
}

fn survives_the_loss_of_the_store(name: &str, options: &str) {
    let mut own = Redis::start();
    let scene = Scene::new(kafka(), name, 2);
    let text = format!("{KEY}{}", scene.config_with(&own, options));
    let service = Service::start(&text);
    let sink = Sink::start(kafka().addr(), &[&scene.target]);
    send(&scene, "before", 0);
    sink.wait_for(2, PATIENCE);
    // Needs the records before the pause after a loss.
    send(&scene, "much later", 3_600_000);
    wait_until_stored(&service, 4.0);

    assert_eq!(service.curl(READER, "/v1/routes/r:pause", &POST).0, 403);
    let (status, _) = service.curl(OPERATOR, "/v1/routes/none:pause", &POST);
    assert_eq!(status, 404);
    let (status, body) = service.curl(OPERATOR, "/v1/routes/r:pause", &POST);
    assert!(matches!(status, 200 | 202), "{status} {body}");
    let paused = wait_for_pause(&service, 2);
    let note = paused["note"].as_str().unwrap();
    assert!(note.starts_with("incident 4711 (operator"), "{note}");
    let again = service.curl(OPERATOR, "/v1/routes/r:pause", &POST);
    assert!(matches!(again.0, 200 | 202), "a repeat: {again:?}");
    let since = paused["since_ms"].clone();
    assert_eq!(wait_for_pause(&service, 2)["since_ms"], since);
    eventually("the timers know it", PATIENCE, || {
        (metric(&service, "postdate_route_paused") == 2.0).then_some(())
    });

    send(&scene, "in the pause", 500);
    let due = now_ms() + 500;
    wait_until_stored(&service, 6.0);
    own.flush_all();
    eventually("the store is filled again", PATIENCE, || {
        let page = service.curl(READER, "/v1/routes/r/messages", &[]);
        let page: Value = serde_json::from_str(&page.1).ok()?;
        (page["items"].as_array()?.len() == 4).then_some(())
    });
    assert_eq!(wait_for_pause(&service, 2)["since_ms"], since);
    // Long after the due time.
    let wait = (due + 4_000 - now_ms()).max(0).unsigned_abs();
    std::thread::sleep(Duration::from_millis(wait));
    assert_eq!(sink.records().len(), 2, "nothing arrives in the pause");
    assert_eq!(metric(&service, "postdate_stalled_seconds"), 0.0);

    let said = service.run(&["resume", "--yes"], 0);
    assert!(said.contains("0 of 2 shards paused"), "{said}");
    let records = sink.wait_for(4, PATIENCE);
    assert_eq!(records[3].payload.as_deref(), Some(&b"in the pause"[..]));
    let audit = service.0.logs();
    assert!(audit.contains("\"action\":\"pause\""), "{audit}");
}

#[test]
fn a_paused_route_delivers_nothing_after_the_loss_of_redis() {
    survives_the_loss_of_the_store("pause", "");
}

#[test]
fn a_paused_exactly_once_route_delivers_nothing_after_the_loss_of_redis() {
    survives_the_loss_of_the_store("pause_exact", "delivery = \"exactly-once\"");
}

#[test]
fn a_producer_cannot_pause_a_route() {
    let scene = Scene::new(kafka(), "pause_forged", 2);
    let text = format!(
        "{KEY}accept_unsigned_retries = true\n{}",
        scene.config(redis())
    );
    let service = Service::start(&text);
    let dead = Sink::start(kafka().addr(), &[&format!("{}.dead", scene.deployment)]);
    let producer = Producer::start(kafka().addr());
    let line = format!(
        "v3 mac=- op=pause origin={}/r/{}/0/0 at={} note=",
        scene.deployment,
        scene.source,
        now_ms()
    );
    producer.send(
        &Outgoing::to(&scene.source)
            .partition(0)
            .header("postdate-retry", &line),
    );
    producer.flush();
    let record = dead.wait_for(1, PATIENCE).remove(0);
    assert_eq!(record.header("postdate-error"), Some("invalid_retry"));
    assert_eq!(wait_for_pause(&service, 0)["changed_ms"], Value::Null);
}

#[test]
fn a_route_without_a_key_is_not_paused() {
    let scene = Scene::new(kafka(), "pause_unsigned", 2);
    let service = Service::start(&scene.config(redis()));
    let (status, body) = service.curl(OPERATOR, "/v1/routes/r:pause", &POST);
    assert!(
        status == 422 && body.contains("retry_key"),
        "{status} {body}"
    );
    let said = service.run(&["pause", "--yes"], 2);
    assert!(said.contains("retry_key"), "{said}");
}

#[test]
fn the_console_and_the_command_line_pause_a_route() {
    let scene = Scene::new(kafka(), "pause_console", 2);
    let service = Service::start(&format!("{KEY}{}", scene.config(redis())));
    let form = ["--data", "note=why"];
    let (status, page) = service.curl(OPERATOR, "/routes/r/pause", &form);
    assert!(status == 200 && page.contains("shards paused"), "{page}");
    wait_for_pause(&service, 2);
    let (_, page) = service.curl(READER, "/routes/r", &[]);
    assert!(page.contains("Delivery is paused: 2 of 2 shards"), "{page}");
    assert!(page.contains("why (operator"), "{page}");
    assert!(!page.contains("Resume the delivery"), "{page}");
    assert_eq!(service.curl(READER, "/routes/r/resume", &form).0, 403);
    let (status, _) = service.curl(OPERATOR, "/routes/r/resume", &form);
    assert_eq!(status, 200);
    wait_for_pause(&service, 0);
    let said = service.run(&["pause", "--note", "why"], 2);
    assert!(said.contains("--yes"), "{said}");
    let said = service.run(&["pause", "--note", "why", "--yes"], 0);
    assert!(said.contains("2 of 2 shards paused, since"), "{said}");
    wait_for_pause(&service, 2);
}

#[test]
fn a_route_whose_shards_the_store_has_lost_is_paused_on_all_partitions() {
    let mut own = Redis::start();
    let scene = Scene::new(kafka(), "pause_early", 2);
    let mut service = Service::start(&format!("{KEY}{}", scene.config(&own)));
    service.0.terminate();
    own.flush_all();
    let said = service.run(&["pause", "--yes"], 1);
    assert!(said.contains("0 of 2 shards paused"), "{said}");
    send(&scene, "in the pause", 0);
    service.0.restart();
    service.0.wait_until_ready();
    wait_for_pause(&service, 2);
    let sink = Sink::start(kafka().addr(), &[&scene.target]);
    service.run(&["resume", "--yes"], 0);
    sink.wait_for(2, PATIENCE);
}

#[test]
fn a_route_is_paused_while_another_call_changes_many_messages() {
    let scene = Scene::new(kafka(), "pause_bulk", 2);
    let service = Service::start(&format!("{KEY}{}", scene.config(redis())));
    for number in 0..10 {
        service.publish(&format!("id-{number}"), "1h", "later");
    }
    service.waiting(10);
    std::thread::scope(|scope| {
        let purge = scope.spawn(|| {
            let body = ["--data", r#"{"dry_run": false, "rate": 1}"#];
            service.document(OPERATOR, "/v1/routes/r:purge", &body, 200)
        });
        eventually("the first message is cancelled", PATIENCE, || {
            (metric(&service, "postdate_cancelled_total") >= 1.0).then_some(())
        });
        let (status, body) = service.curl(OPERATOR, "/v1/routes/r:pause", &POST);
        assert!(matches!(status, 200 | 202), "{status} {body}");
        wait_for_pause(&service, 2);
        assert!(purge.join().unwrap()["changed"].as_u64() >= Some(1));
    });
}

const ON_NATS: &str = r#"
[nats.edge]
url = "NATS"

[route.r]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.orders.*", "@.in.other"] }
target = { nats = "edge", subject = "@.out.all" }
dead_letter = { nats = "edge", subject = "@.dead" }
"#;

#[test]
fn a_route_on_nats_is_paused_on_each_of_its_subjects() {
    let (mut own, name) = (Redis::start(), unique("pause_nats"));
    create_streams(nats(), &name);
    let text = config(&name, &own.url(), &nats().url(), ON_NATS);
    let service = Service::start(&format!("{KEY}{text}"));
    let publish = |subject: &str, payload: &str, after: &str| {
        let subject = format!("{name}.in.{subject}");
        nats().publish(&subject, &[("postdate-after", after)], payload);
    };
    publish("orders.eu", "later", "1h");
    publish("other", "later", "1h");
    wait_until_stored(&service, 2.0);
    let (status, body) = service.curl(OPERATOR, "/v1/routes/r:pause", &POST);
    assert!(matches!(status, 200 | 202), "{status} {body}");
    wait_for_pause(&service, 2);
    publish("orders.eu", "in the pause", "500ms");
    publish("other", "in the pause", "500ms");
    wait_until_stored(&service, 4.0);
    own.flush_all();
    wait_for_pause(&service, 2);
    std::thread::sleep(Duration::from_secs(4));
    let out = format!("{name}_OUT");
    assert_eq!(nats().count(&out), 0, "nothing arrives in the pause");
    service.run(&["resume", "--yes"], 0);
    nats().wait_for(&out, 2, PATIENCE);
}
