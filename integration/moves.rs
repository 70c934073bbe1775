//! Tests changes of due times: an operator moves, fires and cancels messages through the API, the command line
//! and the console, and a stock consumer checks what arrives.

use serde_json::Value;

use crate::changes::{OPERATOR, READER, Service};
use crate::env::{Outgoing, PATIENCE, Record, Sink, eventually, kafka, now_ms, redis};
use crate::service::send_all;
use crate::verdict::Scene;

const MESSAGES: &str = "/v1/routes/r/messages";

fn post(body: &str) -> [&str; 4] {
    ["--request", "POST", "--data", body]
}

/// Sends a message that is due in an hour to partition 0.
fn send(scene: &Scene, payload: &str, id: Option<&str>) {
    let due = (now_ms() + 3_600_000).to_string();
    let message = Outgoing::to(&scene.source).partition(0).payload(payload);
    let message = message.header("postdate-at", &due).header("kind", "mail");
    send_all(&[match id {
        Some(id) => message.header("postdate-id", id),
        None => message,
    }]);
}

/// The waiting messages, once there are `count`.
fn waiting(service: &Service, count: usize) -> Vec<Value> {
    eventually("so many messages wait", PATIENCE, || {
        let page = service.document(READER, MESSAGES, &[], 200);
        let items = page["items"].as_array().unwrap().clone();
        (items.len() == count).then_some(items)
    })
}

fn place(item: &Value) -> String {
    format!("{MESSAGES}/{}/{}", item["partition"], item["offset"])
}

fn payloads(records: &[Record]) -> Vec<String> {
    let text = |record: &Record| {
        String::from_utf8_lossy(record.payload.as_deref().unwrap_or_default()).into_owned()
    };
    let mut all: Vec<_> = records.iter().map(text).collect();
    all.sort();
    all
}

/// A copy that is due may be delivered before its outcome is read.
fn assert_fired(receipt: &Value) {
    let outcome = receipt["outcome"].as_str();
    assert!(
        matches!(outcome, Some("rescheduled" | "passed")),
        "{receipt}"
    );
}

/// One route, which lets messages without an id be changed.
fn fires_and_moves(config: &str, scene: &Scene) {
    let service = Service::start(config);
    let sink = Sink::start(kafka().addr(), &[&scene.target]);
    send(scene, "fired", Some("a"));
    send(scene, "moved", Some("b"));
    send(scene, "nameless", None);
    send(scene, "put off", Some("d"));
    let items = waiting(&service, 4);
    let of = |offset: i64| {
        let found = items.iter().find(|item| item["offset"] == offset);
        found.unwrap_or_else(|| panic!("{items:?}"))
    };
    let fire = format!("{}:fire", place(of(0)));
    assert_eq!(service.curl(READER, &fire, &post("")).0, 403);
    let receipt = service.document(OPERATOR, &fire, &post(""), 200);
    assert_fired(&receipt);
    let move_it = format!("{}:reschedule", place(of(1)));
    assert_eq!(
        service.curl(READER, &move_it, &post(r#"{"in":"3s"}"#)).0,
        403
    );
    assert_eq!(service.curl(OPERATOR, &move_it, &post("{}")).0, 400);
    let receipt = service.document(OPERATOR, &move_it, &post(r#"{"in":"3s"}"#), 200);
    assert_fired(&receipt);
    let fire = format!("{}:fire", place(of(2)));
    let receipt = service.document(OPERATOR, &fire, &post(""), 200);
    assert_fired(&receipt);
    let later = (now_ms() + 7_200_000).to_string();
    let move_it = format!("{}:reschedule", place(of(3)));
    let body = format!(r#"{{"at":"{later}"}}"#);
    let receipt = service.document(OPERATOR, &move_it, &post(&body), 200);
    assert_eq!(receipt["outcome"], "rescheduled");
    let records = sink.wait_for(3, PATIENCE);
    assert_eq!(payloads(&records), ["fired", "moved", "nameless"]);
    for record in &records {
        let due: i64 = record.header("postdate-due").unwrap().parse().unwrap();
        assert!(record.timestamp >= due && due < now_ms(), "{record:?}");
        assert_eq!(record.header("kind"), Some("mail"));
        let item = of(match payloads(std::slice::from_ref(record))[0].as_str() {
            "fired" => 0,
            "moved" => 1,
            _ => 2,
        });
        let origin = item["origin"].as_str();
        assert_eq!(record.header("postdate-origin"), origin, "the first origin");
    }
    let left = waiting(&service, 1);
    assert_eq!(left[0]["rescheduled_ms"].to_string(), later);
    // A cancel that was read before stops the copy, and nothing arrives twice.
    let (status, problem) = service.curl(OPERATOR, &fire, &post(""));
    assert_eq!(status, 404, "{problem}");
    let cancel = format!("{}:cancel", place(of(3)));
    let receipt = service.document(OPERATOR, &cancel, &post(""), 200);
    assert_eq!(receipt["outcome"], "cancelled");
    waiting(&service, 0);
    assert_eq!(sink.records().len(), 3);
    for action in ["fire", "reschedule", "cancel"] {
        let action = format!("\"action\":\"{action}\"");
        assert!(service.0.logs().contains(&action), "{action}");
    }
    let ledger = service.document(READER, "/v1/ledger", &[], 200);
    assert_eq!(ledger["balances"], true, "{ledger}");
}

#[test]
fn messages_are_fired_and_moved_by_an_operator_only() {
    let scene = Scene::new(kafka(), "moves", 1);
    fires_and_moves(
        &scene.config_with(redis(), "change_by_origin = true"),
        &scene,
    );
}

#[test]
fn messages_of_an_exactly_once_route_in_an_embedded_store_are_fired_and_moved() {
    let scene = Scene::new(kafka(), "moves-once", 1);
    let more = "change_by_origin = true\ndelivery = \"exactly-once\"";
    fires_and_moves(&scene.config_stored("", more), &scene);
}

#[test]
fn many_messages_are_changed_after_a_dry_run() {
    let scene = Scene::new(kafka(), "bulk", 1);
    let service = Service::start(&scene.config(redis()));
    let sink = Sink::start(kafka().addr(), &[&scene.target]);
    for number in 0..6 {
        send(&scene, &number.to_string(), Some(&format!("id-{number}")));
    }
    send(&scene, "nameless", None);
    waiting(&service, 7);
    let fire = format!("{MESSAGES}:fire");
    let filter = r#"{"header":"kind:mail"}"#;
    assert_eq!(service.curl(READER, &fire, &post(filter)).0, 403);
    assert_eq!(service.curl(OPERATOR, &fire, &post("")).0, 400);
    assert_eq!(
        service.curl(OPERATOR, "/v1/routes/none:purge", &post("")).0,
        404
    );
    let report = service.document(OPERATOR, &fire, &post(filter), 200);
    assert_eq!(
        (&report["found"], &report["changed"]),
        (&6.into(), &0.into())
    );
    assert_eq!(report["without_id"], 1);
    waiting(&service, 7);
    let body = r#"{"id":"id-0","dry_run":false}"#;
    let report = service.document(OPERATOR, &fire, &post(body), 200);
    assert_eq!(report["changed"], 1);
    assert_eq!(payloads(&sink.wait_for(1, PATIENCE)), ["0"]);

    let dry = service.run(&["messages", "fire", "--id", "id-1"], 0);
    assert!(dry.starts_with("1 message would be delivered now"), "{dry}");
    let fired = service.run(&["messages", "fire", "--id", "id-1", "--yes"], 0);
    assert_eq!(fired, "Records written: 1.\n");
    let moved = [
        "messages",
        "reschedule",
        "--id",
        "id-2",
        "--in",
        "2s",
        "--yes",
    ];
    assert_eq!(service.run(&moved, 0), "Records written: 1.\n");
    service.run(&["messages", "cancel"], 2);
    assert_eq!(payloads(&sink.wait_for(3, PATIENCE)), ["0", "1", "2"]);

    waiting(&service, 4);
    let target = r#"{"id":"id-3","in":"99999d","dry_run":false}"#;
    let path = format!("{MESSAGES}:reschedule");
    let report = service.document(OPERATOR, &path, &post(target), 200);
    assert_eq!(
        (&report["changed"], &report["refused"]),
        (&0.into(), &1.into()),
        "{report}"
    );
    let form = [
        "--data",
        "action=fire&id=id-3&limit=10&rate=10&dry_run=true",
    ];
    let path = "/routes/r/messages/change";
    assert_eq!(service.curl(READER, path, &form).0, 403);
    let foreign = [&form[..], &["--header", "Sec-Fetch-Site: cross-site"]].concat();
    assert_eq!(service.curl(OPERATOR, path, &foreign).0, 403);
    let (status, page) = service.curl(OPERATOR, path, &form);
    assert!(
        status == 200 && page.contains("1 message would be delivered now"),
        "{page}"
    );
    let form = [
        "--data",
        "action=fire&id=id-3&limit=10&rate=10&dry_run=false",
    ];
    let (status, page) = service.curl(OPERATOR, path, &form);
    assert!(
        status == 200 && page.contains("requested for 1 message."),
        "{page}"
    );
    assert_eq!(payloads(&sink.wait_for(4, PATIENCE)), ["0", "1", "2", "3"]);

    let form = ["--data", "action=cancel&limit=10&rate=10&dry_run=true"];
    let (status, page) = service.curl(OPERATOR, path, &form);
    assert!(
        status == 200 && page.contains("These are ALL waiting messages of the route"),
        "{page}"
    );
    service.run(&["purge", "--limit", "0", "--yes"], 2);
    let purge = service.run(&["purge", "--yes"], 0);
    assert!(purge.starts_with("Records written: 2.\n"), "{purge}");
    let left = waiting(&service, 1);
    assert_eq!(left[0]["id"], Value::Null);
    let report = service.document(OPERATOR, "/v1/routes/r:purge", &post(""), 200);
    assert_eq!(
        (&report["found"], &report["without_id"]),
        (&0.into(), &1.into())
    );
    assert_eq!(sink.records().len(), 4);
    let audit = service.0.logs();
    let line = |action: &str| format!("\"action\":\"{action}\",\"route\":\"r\",\"filter\"");
    assert!(audit.contains(&line("fire")), "{audit}");
}
