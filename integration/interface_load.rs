//! Measures the HTTP API and the console with many routes, and with many waiting messages beside a load.
//!
//! The tests are ignored. They print figures, and assert no time. Run them alone:
//! `cargo test --release --features test-support --test integration -- --ignored --nocapture interface_load`

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::changes::{OPERATOR, Service};
use crate::env::{Outgoing, Postdate, Producer, eventually, kafka, now_ms, redis};
use crate::verdict::{LIMIT, Scene};

const ROUTES: usize = 200;
const WAITING: usize = 1_000_000;
const PARTITIONS: usize = 4;
/// Messages of the load in a second.
const RATE: usize = 20_000;
/// Seconds of each load.
const SECONDS: usize = 20;
const REQUESTS: usize = 100;
/// The upper bounds of the buckets of `postdate_lateness_seconds` that are printed.
const BOUNDS: [&str; 6] = ["0.002", "0.005", "0.01", "0.02", "0.05", "0.1"];

/// A service without a token to read.
fn start(config: &str) -> Service {
    let variables = [("POSTDATE_ADMIN__OPERATOR_TOKEN", OPERATOR)];
    let mut postdate = Postdate::start_with(config, &variables);
    postdate.wait_until_ready();
    Service(postdate)
}

/// The times of the same request, which may have another path each time. Returns the last answer.
fn ask(service: &Service, name: &str, path: impl Fn(usize) -> String) -> String {
    let mut last = String::new();
    let mut times: Vec<Duration> = (0..REQUESTS)
        .map(|number| {
            let (path, start) = (path(number), Instant::now());
            let (status, body) = service.0.get_with(&path, "accept: text/html").unwrap();
            assert_eq!(status, 200, "{path}: {body}");
            last = body;
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let (median, p99) = (times[REQUESTS / 2], times[REQUESTS * 99 / 100]);
    eprintln!(
        "{name}: {} bytes, median {median:.1?}, p99 {p99:.1?}",
        last.len()
    );
    last
}

#[test]
#[ignore = "prints figures"]
fn interface_load_of_pages_with_200_routes() {
    let scene = Scene::new(kafka(), "pages", 1);
    let Scene { source, target, .. } = &scene;
    let topics: Vec<_> = (1..ROUTES)
        .map(|number| format!("{source}.{number}"))
        .collect();
    let mut routes = String::new();
    for (number, topic) in topics.iter().enumerate() {
        kafka().create_topic(topic, 1, &[]);
        routes += &format!(
            "[route.r{number}]\nsource = {{ kafka = \"main\", topics = [\"{topic}\"] }}\n\
             target = {{ kafka = \"main\", topic = \"{target}\" }}\n\
             dead_letter = {{ kafka = \"main\", topic = \"{}.dead\" }}\n",
            scene.deployment
        );
    }
    let service = start(&scene.config_with(redis(), &routes));
    let producer = Producer::start(kafka().addr());
    for topic in topics.iter().chain([source]) {
        let message = Outgoing::to(topic).header("postdate-after", "1h");
        producer.send(&message.payload("x"));
    }
    producer.flush();
    eventually("all are stored", LIMIT, || {
        (service.0.metrics().sum("postdate_stored_total") >= ROUTES as f64).then_some(())
    });
    for path in [
        "/",
        "/routes/r",
        "/routes/r/messages",
        "/workers",
        "/ledgers",
        "/audit",
        "/v1/audit",
        "/v1/workers",
    ] {
        ask(&service, path, |_| path.to_owned());
    }
}

/// Stores messages that are due in one to eleven days.
fn store_many(scene: &Scene, service: &Service) {
    let producer = Producer::start(kafka().addr());
    for number in 0..WAITING {
        let delay = 86_400 + number * 10 * 86_400 / WAITING;
        let message = Outgoing::to(&scene.source)
            .partition((number % PARTITIONS) as i32)
            .header("postdate-after", format!("{delay}s"))
            .header("postdate-id", format!("order-{number}"))
            .header("campaign", "black-friday")
            .payload(format!("{number:0>100}"));
        producer.send(&message);
    }
    producer.flush();
    eventually("all are stored", 4 * LIMIT, || {
        (service.0.metrics().sum("postdate_stored_total") >= WAITING as f64).then_some(())
    });
}

/// Delivered messages by bound of their lateness, and all of them.
fn lateness(service: &Service) -> Vec<f64> {
    let metrics = service.0.metrics();
    let bucket =
        |bound: &str| metrics.sum_where("postdate_lateness_seconds_bucket", &[("le", bound)]);
    BOUNDS
        .iter()
        .map(|bound| bucket(bound))
        .chain([bucket("+Inf")])
        .collect()
}

/// Sends a load, and prints how late it is delivered.
fn load(scene: &mut Scene, service: &Service, name: &str) {
    let (before, start) = (lateness(service), Instant::now());
    for second in 1..=SECONDS {
        scene.load(RATE, 3_000..4_000);
        let end = start + Duration::from_secs(second as u64);
        thread::sleep(end.saturating_duration_since(Instant::now()));
    }
    scene.flush();
    let delivered = |now: &[f64]| now[BOUNDS.len()] - before[BOUNDS.len()];
    let after = eventually("the load is delivered", LIMIT, || {
        let now = lateness(service);
        (delivered(&now) >= (RATE * SECONDS) as f64).then_some(now)
    });
    let share = |index: usize| (after[index] - before[index]) / delivered(&after) * 100.0;
    let shares = BOUNDS.iter().enumerate();
    let shares = shares.map(|(index, bound)| format!("{:.2} % within {bound} s", share(index)));
    let shares: Vec<_> = shares.collect();
    eprintln!("{name}: {RATE}/s, {}", shares.join(", "));
}

/// Cancels until there is nothing left, or until the load is over. Returns the number of records.
fn cancel(service: &Service, is_over: &AtomicBool) -> u64 {
    let (mut changed, mut after) = (0, Value::Null);
    while !is_over.load(Ordering::Relaxed) {
        let body = json!({"header": "campaign:black-friday", "dry_run": false, "rate": 1_000_000, "limit": WAITING, "after": after});
        let path = "/v1/routes/r/messages:cancel";
        let answer = service.document(OPERATOR, path, &["--data", &body.to_string()], 200);
        changed += answer["changed"].as_u64().unwrap();
        after = answer["after"].clone();
        if answer["more"] == false {
            break;
        }
    }
    changed
}

#[test]
#[ignore = "prints figures, and takes minutes"]
fn interface_load_of_many_waiting_messages() {
    let mut scene = Scene::new(kafka(), "waiting", PARTITIONS as i32);
    let service = start(&scene.config(redis()));
    store_many(&scene, &service);
    let last = ask(&service, "a page of 100", |number| {
        let from = now_ms() + 90_000_000 + number as i64 * 8_000_000;
        format!("/v1/routes/r/messages?limit=100&due_from={from}")
    });
    let last: Value = serde_json::from_str(&last).unwrap();
    let (items, more) = (last["items"].as_array().unwrap().len(), &last["more"]);
    eprintln!("the last page has {items} messages, more: {more}");
    ask(&service, "a message by its id", |number| {
        format!("/v1/routes/r/messages?id=order-{}", number * 7_919)
    });
    load(&mut scene, &service, "without a bulk cancel");
    let (is_over, start) = (AtomicBool::new(false), Instant::now());
    let (changed, lasted) = thread::scope(|scope| {
        let cancels = scope.spawn(|| {
            let changed = cancel(&service, &is_over);
            (changed, start.elapsed())
        });
        load(&mut scene, &service, "beside a bulk cancel");
        is_over.store(true, Ordering::Relaxed);
        cancels.join().unwrap()
    });
    eprintln!("{changed} of {WAITING} messages cancelled in {lasted:.1?}");
}
