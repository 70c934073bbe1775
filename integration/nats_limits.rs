//! Tests the consumer limits of NATS servers and streams: readers stay within them and report those
//! that they cannot meet.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, ConsumerLimits};

use crate::env::{Nats, PATIENCE, Postdate, eventually, nats, redis, unique};
use crate::nats::{ALONE, MANY, assert_each_once, config, create_streams, publish_many};

/// Recreates the source stream with further settings.
fn create_source(nats: &Nats, name: &str, more: Config) {
    nats.delete_stream(&format!("{name}_IN"));
    nats.create_stream_with(Config {
        name: format!("{name}_IN"),
        subjects: vec![format!("{name}.in.>")],
        ..more
    });
}

/// Checks that each message of two subjects arrives once and soon, without a failed fetch per
/// message.
fn assert_read(nats: &Nats, name: &str) {
    let _postdate = Postdate::ready_with(&config(name, &redis().url(), &nats.url(), ALONE));
    publish_many(nats, name, 0, "1s");
    let out = format!("{name}_OUT");
    nats.wait_for(&out, MANY, PATIENCE);
    assert_each_once(&nats.stored(&out), MANY);
}

#[test]
fn fetches_stay_within_the_batch_limit_of_the_server() {
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
fn consumers_stay_within_the_limits_of_their_stream() {
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
fn a_stream_without_a_free_consumer_is_named_until_it_has_one() {
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
        !check.status.success() && text.contains("raise max_consumers to 4 or more"),
        "{text}"
    );
    nats().allow_consumers(&format!("{name}_IN"), 4);
    nats().wait_for(&format!("{name}_OUT"), MANY, PATIENCE);
    eventually("it is ready", PATIENCE, || postdate.ready().then_some(()));
}

/// Simulates a server fault: the consumer exists but delivers no messages.
#[test]
fn a_consumer_that_delivers_nothing_is_recreated() {
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
        postdate.logs().matches("withholds messages").count(),
        1,
        "{}",
        postdate.logs()
    );
    assert!(postdate.ready());
}
