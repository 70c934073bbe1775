//! Tests messages that a NATS target refuses: temporary refusals are retried, and permanent ones
//! become dead letters.
//!
//! No message waits forever.

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use futures_util::StreamExt as _;

use crate::env::{
    Metrics, Nats, Outgoing, PATIENCE, Postdate, Producer, Sink, Stored, eventually, kafka, nats,
    now_ms, redis, unique,
};
use crate::nats::{ALONE, assert_each_once, config, create_streams};

/// More messages than may be in flight to a target, and more than the client library accepts by
/// itself.
#[test]
fn a_target_has_each_message_once_after_an_outage() {
    const LARGE: u64 = 6_000;
    let (mut own, name) = (Nats::start(), unique("stuck"));
    create_streams(&own, &name);
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &own.url(), ALONE));
    let at = (now_ms() + 20_000).to_string();
    let headers: &[(&str, &str)] = &[("postdate-at", &at)];
    // A plain client waits for acknowledgements when some thousand are outstanding.
    for from in (0..LARGE).step_by(1_000) {
        own.publish_all(
            &format!("{name}.in.a"),
            (from..from + 1_000).map(|number| (headers, format!("{number:020000}"))),
        );
    }
    assert!(now_ms() < at.parse().unwrap(), "all are to be due at once");
    let out = format!("{name}_OUT");
    eventually("some are delivered", PATIENCE, || {
        (own.count(&out) > 0).then_some(())
    });
    own.pause();
    let says = || {
        postdate
            .get("/readyz")
            .filter(|(status, body)| *status == 503 && body.contains("nats.edge does not answer"))
    };
    eventually("it says so", PATIENCE, says);
    own.kill();
    own.restart();
    own.wait_for(&out, LARGE, PATIENCE);
    eventually("it is ready again", PATIENCE, || {
        postdate.ready().then_some(())
    });
    assert_each_once(&own.stored(&out), LARGE);
}

/// The Kafka source accepts records that NATS refuses, and receives them again as retries.
const FROM_KAFKA: &str = r#"
[kafka.main]
brokers = ["KAFKA"]

[nats.edge]
url = "NATS"

[route.orders]
source = { kafka = "main", topics = ["@.delayed"] }
target = { nats = "edge", subject = "@.out.orders" }
allow = ["@.out.>"]
dead_letter = { nats = "edge", subject = "@.dead" }
retry = { max_attempts = 1000, backoff = "100ms", backoff_max = "200ms" }
"#;

/// Creates the topics and streams of such a route.
fn create(nats: &Nats, name: &str) {
    create_streams(nats, name);
    for topic in ["delayed", "dead"] {
        kafka().create_topic(&format!("{name}.{topic}"), 1, &[]);
    }
}

fn send(outgoing: &[Outgoing]) {
    let producer = Producer::start(kafka().addr());
    outgoing.iter().for_each(|outgoing| producer.send(outgoing));
    producer.flush();
}

/// A stream keeps at most 65,535 bytes of headers per message. This test and the next one exceed
/// them in different ways.
#[test]
fn a_message_with_too_many_headers_becomes_a_dead_letter_and_blocks_nothing() {
    let name = unique("headers");
    create_streams(nats(), &name);
    let _postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), ALONE));
    let (subject, large) = (format!("{name}.in.a"), "h".repeat(65_400));
    nats().publish(
        &subject,
        &[("postdate-after", "1s"), ("h", &large)],
        "its own headers fit, and no more",
    );
    nats().publish(&subject, &[("postdate-after", "1s")], "good");
    assert_eq!(
        nats().wait_for(&format!("{name}_OUT"), 1, PATIENCE)[0].payload,
        b"good"
    );
    let dead = nats().wait_for(&format!("{name}_DEAD"), 1, PATIENCE);
    assert_eq!(
        (
            dead[0].header("postdate-error"),
            dead[0].payload.len(),
            dead[0].header("h")
        ),
        (Some("too_large"), 0, None)
    );
}

#[test]
fn a_kafka_record_with_too_many_headers_is_a_dead_letter_even_without_room_for_its_key() {
    let name = unique("wide");
    create(nats(), &name);
    let _postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), FROM_KAFKA));
    let to = || Outgoing::to(&format!("{name}.delayed")).header("postdate-after", "1s");
    send(&[
        to().key("k")
            .payload("wide")
            .header("h", "h".repeat(100_000)),
        to().key("k".repeat(70_000)).payload("long"),
        to().key("k").payload("good"),
    ]);
    assert_eq!(
        nats().wait_for(&format!("{name}_OUT"), 1, PATIENCE)[0].payload,
        b"good"
    );
    let dead = nats().wait_for(&format!("{name}_DEAD"), 2, PATIENCE);
    let found: Vec<_> = dead
        .iter()
        .map(|dead| {
            (
                dead.header("postdate-error"),
                dead.header("postdate-key"),
                dead.payload.len(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            (Some("too_large"), Some("k"), 0),
            (Some("too_large"), None, 0)
        ]
    );
}

fn retried(metrics: &Metrics, reason: &str) -> f64 {
    metrics.sum_where("postdate_retried_total", &[("reason", reason)])
}

fn origin(stored: &Stored) -> &str {
    stored.header("postdate-origin").expect("an origin")
}

/// A stream that refuses messages above `max` until the limit is raised.
fn bounded(name: &str, max: i64) -> Config {
    let (name, subjects) = (format!("{name}_OUT"), vec![format!("{name}.out.>")]);
    Config {
        name,
        subjects,
        max_messages: max,
        discard: DiscardPolicy::New,
        ..Config::default()
    }
}

#[test]
fn a_message_refused_by_a_full_stream_arrives_once_when_there_is_room() {
    let name = unique("full");
    create(nats(), &name);
    nats().delete_stream(&format!("{name}_OUT"));
    nats().create_stream_with(bounded(&name, 1));
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), FROM_KAFKA));
    let to = || Outgoing::to(&format!("{name}.delayed"));
    send(&[
        to().payload("0").header("postdate-after", "1s"),
        to().payload("1").header("postdate-after", "1500ms"),
    ]);
    eventually("it is tried again, and again", PATIENCE, || {
        (retried(&postdate.metrics(), "target_full") > 1.0).then_some(())
    });
    assert_eq!(nats().count(&format!("{name}_OUT")), 1);
    nats().update_stream(bounded(&name, 10));
    let stored = nats().wait_for(&format!("{name}_OUT"), 2, PATIENCE);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_each_once(&nats().stored(&format!("{name}_OUT")), 2);
    assert_eq!(
        origin(&stored[1]),
        format!("{name}/orders/{name}.delayed/0/1"),
        "of the first record, through all attempts"
    );
    assert_eq!(nats().count(&format!("{name}_DEAD")), 0);
}

#[test]
fn a_message_refused_by_a_full_stream_at_all_attempts_becomes_a_dead_letter() {
    let name = unique("full");
    create(nats(), &name);
    nats().delete_stream(&format!("{name}_OUT"));
    nats().create_stream_with(bounded(&name, 1));
    let routes = FROM_KAFKA.replace("max_attempts = 1000", "max_attempts = 2");
    let _postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), &routes));
    let to = || Outgoing::to(&format!("{name}.delayed"));
    send(&[
        to().payload("0").header("postdate-after", "1s"),
        to().payload("1").header("postdate-after", "1500ms"),
    ]);
    let dead = nats().wait_for(&format!("{name}_DEAD"), 1, PATIENCE);
    assert_eq!(
        (dead[0].header("postdate-error"), dead[0].payload.as_slice()),
        (Some("target_full"), &b"1"[..])
    );
    assert_eq!(
        origin(&dead[0]),
        format!("{name}/orders/{name}.delayed/0/1")
    );
}

/// To a message, an account limit looks like a stream limit.
#[test]
fn a_message_refused_by_a_full_account_arrives_once_when_there_is_room() {
    let limited = |bytes: &str| {
        format!(
            "accounts {{ A {{ jetstream {{ max_file: {bytes}, max_mem: 0 }}, users: [{{ user: a, password: b }}] }} }}\nno_auth_user: a"
        )
    };
    let (mut own, name) = (Nats::start_with(&limited("1MB"), None), unique("account"));
    create(&own, &name);
    let routes = FROM_KAFKA.replace(
        "dead_letter = { nats = \"edge\", subject",
        "dead_letter = { kafka = \"main\", topic",
    );
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &own.url(), &routes));
    let dead = Sink::start(kafka().addr(), &[&format!("{name}.dead")]);
    let to = |number| {
        Outgoing::to(&format!("{name}.delayed"))
            .payload(format!("{}{number}", "0".repeat(400_000)))
            .header("postdate-after", "1s")
    };
    send(&[to(0), to(1), to(2)]);
    eventually("they are tried again", PATIENCE, || {
        (retried(&postdate.metrics(), "target_full") > 1.0).then_some(())
    });
    own.restart_with(&limited("100MB"));
    own.wait_for(&format!("{name}_OUT"), 3, PATIENCE);
    assert_each_once(&own.stored(&format!("{name}_OUT")), 3);
    assert!(dead.records().is_empty());
}

#[test]
fn a_message_to_a_forbidden_subject_becomes_a_dead_letter_with_the_reason() {
    let name = unique("denied");
    let users = format!(
        "{{ user: postdate, password: secret, permissions: {{ publish: {{ deny: [\"{name}.out.locked\"] }} }} }}, {{ user: test, password: test }}"
    );
    let own = Nats::start_with(
        &format!("authorization {{ users: [{users}] }}"),
        Some(("test", "test")),
    );
    create(&own, &name);
    let login = FROM_KAFKA.replace(
        "url = \"NATS\"",
        "url = \"NATS\"\nusername = \"postdate\"\npassword = \"secret\"",
    );
    let _postdate = Postdate::ready_with(&config(&name, &redis().url(), &own.url(), &login));
    let to = || Outgoing::to(&format!("{name}.delayed")).header("postdate-after", "1s");
    send(&[
        to().payload("locked")
            .header("postdate-to", format!("{name}.out.locked")),
        to().payload("open"),
    ]);
    assert_eq!(
        own.wait_for(&format!("{name}_OUT"), 1, PATIENCE)[0].payload,
        b"open"
    );
    let dead = own.wait_for(&format!("{name}_DEAD"), 1, PATIENCE);
    assert_eq!(
        (dead[0].header("postdate-error"), dead[0].payload.as_slice()),
        (Some("unauthorized"), &b"locked"[..])
    );
    let detail = dead[0].header("postdate-error-detail").unwrap();
    assert!(
        detail.contains("may not publish to") && detail.contains(&format!("{name}.out.locked")),
        "{detail}"
    );
}

/// A program that replies to all messages of a subject but is no stream.
struct Answerer(
    Option<(
        tokio::sync::oneshot::Sender<()>,
        std::thread::JoinHandle<()>,
    )>,
);

impl Answerer {
    fn start(nats: &Nats, subject: String) -> Answerer {
        let (url, (stop, mut stopped), (ready, is_ready)) = (
            nats.url(),
            tokio::sync::oneshot::channel(),
            std::sync::mpsc::channel(),
        );
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(async move {
                    let client = async_nats::connect(url).await.unwrap();
                    let mut asked = client.subscribe(subject).await.unwrap();
                    client.flush().await.unwrap();
                    ready.send(()).unwrap();
                    loop {
                        tokio::select! {
                            _ = &mut stopped => return,
                            Some(message) = asked.next() => {
                                let Some(reply) = message.reply else { continue };
                                client.publish(reply, "hello".into()).await.unwrap();
                                client.flush().await.unwrap();
                            }
                        }
                    }
                });
        });
        is_ready.recv().unwrap();
        Answerer(Some((stop, thread)))
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

#[test]
fn a_program_that_replies_in_place_of_a_stream_does_not_count_as_a_stream() {
    let name = unique("foreign");
    create(nats(), &name);
    let routes = FROM_KAFKA
        .replace("allow = [", "allow = [\"@.alone\", ")
        .replace("max_attempts = 1000", "max_attempts = 2");
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), &routes));
    let _answers = [format!("{name}.out.>"), format!("{name}.alone")]
        .map(|subject| Answerer::start(nats(), subject));
    let to = || Outgoing::to(&format!("{name}.delayed")).header("postdate-after", "1s");
    send(&[
        to().payload("stored"),
        to().payload("alone")
            .header("postdate-to", format!("{name}.alone")),
    ]);
    let dead = nats().wait_for(&format!("{name}_DEAD"), 1, PATIENCE);
    assert_eq!(
        (dead[0].header("postdate-error"), dead[0].payload.as_slice()),
        (Some("unknown_target"), &b"alone"[..])
    );
    assert_eq!(
        dead[0].header("postdate-error-detail"),
        Some("a program that is not a stream answers on the subject")
    );
    assert_eq!(
        (
            nats().count(&format!("{name}_OUT")),
            retried(&postdate.metrics(), "unknown_target") as u64
        ),
        (1, 1)
    );
}
