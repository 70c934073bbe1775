//! Tests that a producer cannot forge `postdate-retry` on a route with a retry key.

use crate::env::{Outgoing, Postdate, Producer, Sink, eventually, kafka, now_ms, redis};
use crate::verdict::{LIMIT, Scene};

const KEY: &str = "retry_key = \"0123456789abcdef0123456789abcdef\"\n";

#[test]
fn a_forged_retry_becomes_a_dead_letter_and_a_signed_one_arrives() {
    let mut scene = Scene::new(kafka(), "signed", 1);
    let retry = "[route.r.retry]\nbackoff = \"500ms\"\nbackoff_max = \"1s\"\nmax_attempts = 1000";
    let config = format!("{KEY}{}", scene.config_with(redis(), retry));
    let postdate = Postdate::ready_with(&config);
    kafka().delete_topic(&scene.target);
    scene.send(20, 0..500);
    eventually("messages are retried", LIMIT, || {
        (postdate.metrics().sum("postdate_retried_total") >= 20.0).then_some(())
    });
    let stamped = [("message.timestamp.type", "LogAppendTime")];
    kafka().create_topic(&scene.target, 1, &stamped);
    let sink = scene.sink();
    assert_eq!(scene.all_arrive(&sink), 0, "each signed retry arrives once");

    let origin = format!("{}/r/{}/0/0", scene.deployment, scene.source);
    let (now, producer) = (now_ms(), Producer::start(kafka().addr()));
    let line = format!("attempt=1 origin={origin} due={now} target= error=unknown_target at={now}");
    for forged in [
        &line,
        &format!("v2 mac=- {line}"),
        &format!("v3 mac=- {line}"),
    ] {
        let record = Outgoing::to(&scene.source).header("postdate-retry", forged);
        producer.send(&record);
    }
    producer.flush();
    let dead = format!("{}.dead", scene.deployment);
    let dead = Sink::start(kafka().addr(), &[&dead]);
    for record in dead.wait_for(3, LIMIT) {
        assert_eq!(record.header("postdate-error"), Some("invalid_retry"));
        assert_ne!(record.header("postdate-origin"), Some(&*origin));
    }
    assert_eq!(sink.records().len(), scene.sent(), "nothing forged arrives");
}
