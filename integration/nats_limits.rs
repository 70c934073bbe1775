//! Limits of a NATS server and of a stream that bear on a reader's own consumer: it asks for no more than it may have, and what it cannot do
//! without is said.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, ConsumerLimits};

use crate::env::{Nats, PATIENCE, Postdate, eventually, nats, redis, unique};
use crate::nats::{ALONE, MANY, assert_each_once, config, create_streams, publish_many};

/// A stream to be read that is made with more than a name.
fn create_source(nats: &Nats, name: &str, more: Config) {
    nats.delete_stream(&format!("{name}_IN"));
    nats.create_stream_with(Config {
        name: format!("{name}_IN"),
        subjects: vec![format!("{name}.in.>")],
        ..more
    });
}

/// Each message of two subjects arrives once, and soon: not one at a time, after a failed attempt each.
fn assert_read(nats: &Nats, name: &str) {
    let _postdate = Postdate::ready_with(&config(name, &redis().url(), &nats.url(), ALONE));
    publish_many(nats, name, 0, "1s");
    let out = format!("{name}_OUT");
    nats.wait_for(&out, MANY, PATIENCE);
    assert_each_once(&nats.stored(&out), MANY);
}

#[test]
fn a_server_that_hands_out_few_messages_at_a_time_is_asked_for_so_many() {
    for limit in [7, 1] {
        let (own, name) = (
            Nats::start_limited(&format!("max_request_batch: {limit}")),
            unique("batch"),
        );
        create_streams(&own, &name);
        assert_read(&own, &name);
    }
}

#[test]
fn a_stream_that_limits_its_consumers_has_consumers_within_its_limits() {
    // A stream may allow more than its server.
    let (own, name) = (Nats::start_limited("max_ack_pending: 2"), unique("limits"));
    create_streams(&own, &name);
    let limits = ConsumerLimits {
        inactive_threshold: Duration::from_millis(1),
        max_ack_pending: 3,
    };
    create_source(
        &own,
        &name,
        Config {
            consumer_limits: Some(limits),
            ..Config::default()
        },
    );
    assert_read(&own, &name);
}

#[test]
fn a_stream_that_has_no_consumer_left_is_named_until_it_has_one() {
    let name = unique("consumers");
    create_streams(nats(), &name);
    create_source(
        nats(),
        &name,
        Config {
            max_consumers: 1,
            ..Config::default()
        },
    );
    let postdate = Postdate::start(&config(&name, &redis().url(), &nats().url(), ALONE));
    publish_many(nats(), &name, 0, "1s");
    let said = || {
        postdate
            .get("/readyz")
            .filter(|(status, body)| *status == 503 && body.contains("raise max_consumers"))
    };
    let (_, body) = eventually("the stream is named", PATIENCE, said);
    assert!(body.contains(&format!("{name}_IN")), "{body}");
    assert_eq!(
        postdate.logs().matches("raise max_consumers").count(),
        1,
        "{}",
        postdate.logs()
    );
    let check = postdate.command(&["check"]);
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(
        !check.status.success() && text.contains("raise max_consumers to 4 at least"),
        "{text}"
    );
    nats().allow_consumers(&format!("{name}_IN"), 4);
    nats().wait_for(&format!("{name}_OUT"), MANY, PATIENCE);
    eventually("it is ready", PATIENCE, || postdate.ready().then_some(()));
}

/// As after some trouble of the server's own: the consumer lives, and does not bring what is there.
#[test]
fn a_consumer_that_brings_nothing_is_made_anew() {
    let name = unique("stuck");
    create_streams(nats(), &name);
    let routes = ALONE.replace(", \"@.in.b\"", "");
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), &routes));
    let (source, subject, out) = (
        format!("{name}_IN"),
        format!("{name}.in.a"),
        format!("{name}_OUT"),
    );
    nats().publish(&subject, &[], "first");
    nats().wait_for(&out, 1, PATIENCE);
    nats().pause_consumer(&source);
    nats().publish_all(&subject, (0..3).map(|_| (&[][..], "behind it")));
    nats().wait_for(&out, 4, PATIENCE);
    assert_eq!(
        postdate.logs().matches("does not bring messages").count(),
        1,
        "{}",
        postdate.logs()
    );
    assert!(postdate.ready());
}
