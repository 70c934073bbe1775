//! Runs Postdate with the sample configuration of the packages. `make dist-check` names the
//! installed program and its configuration.

use std::path::PathBuf;

use super::root;
use crate::env::{Kafka, Outgoing, PATIENCE, Postdate, Producer, Redis, Sink};

#[test]
fn the_sample_configuration_delivers_a_message() {
    let path = std::env::var_os("TEST_CONFIG")
        .map_or_else(|| root().join("config/kafka.toml"), PathBuf::from);
    let sample = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (kafka, store) = (Kafka::start(), Redis::start());
    for topic in ["orders.delayed", "orders", "orders.dead"] {
        kafka.create_topic(topic, 1, &[]);
    }
    let sink = Sink::start(kafka.addr(), &["orders"]);
    let config = sample
        .replace("redis://127.0.0.1:6379", &store.url())
        .replace("127.0.0.1:9092", kafka.addr());
    assert_ne!(config, sample, "the sample names local servers");
    let mut postdate = Postdate::ready_with(&config);
    let producer = Producer::start(kafka.addr());
    producer.send(
        &Outgoing::to("orders.delayed")
            .payload("still unpaid?")
            .header("postdate-after", "1s"),
    );
    producer.flush();
    let records = sink.wait_for(1, PATIENCE);
    assert_eq!(records[0].payload.as_deref(), Some(&b"still unpaid?"[..]));
    assert!(records[0].header("postdate-origin").is_some());
    assert_eq!(postdate.terminate().0.code(), Some(0));
}
