//! Tests that a process stays within its memory limit, however many messages and shards wait.

use crate::env::{Outgoing, Postdate, Producer, eventually, kafka, now_ms, redis};
use crate::verdict::{LIMIT, Scene};

const PARTITIONS: i32 = 64;
const BUDGET_MIB: u64 = 32;

/// Memory in addition to the budget, as the docs state it.
const BESIDE_MIB: u64 = 150;

/// Number of messages and bytes of each, for alternating partitions.
const SIZES: [(i64, usize); 2] = [(2_000, 300), (32, 256 << 10)];

/// A timer starts with sixty-four shards that are behind. Without a share of the budget for
/// messages in flight, each shard would load all its messages. That is ten times the budget.
#[test]
fn a_timer_keeps_to_its_budget_while_many_shards_with_messages_of_all_sizes_are_behind() {
    let scene = Scene::new(kafka(), "memory", PARTITIONS);
    let config = scene.config_with(redis(), &format!("[timer]\nmemory = \"{BUDGET_MIB}MiB\""));
    let mut ingress = Postdate::start_with(&config, &[("POSTDATE_ROLES", r#"["ingress"]"#)]);
    let producer = Producer::start_with(kafka().addr(), &[("compression.type", "zstd")]);
    let (from, mut count) = (now_ms() + 5_000, 0_i64);
    for partition in 0..PARTITIONS {
        let (messages, size) = SIZES[partition as usize % SIZES.len()];
        let payload = vec![b'x'; size];
        for number in 0..messages {
            let due = from + number * 1_000 / messages;
            producer.send(
                &Outgoing::to(&scene.source)
                    .partition(partition)
                    .header("postdate-at", due.to_string())
                    .payload(&payload),
            );
        }
        count += messages;
    }
    producer.flush();
    eventually("all is stored", LIMIT, || {
        (ingress.metrics().sum("postdate_stored_total") >= count as f64).then_some(())
    });
    ingress.terminate();
    eventually("all is due", LIMIT, || {
        (now_ms() > from + 1_000).then_some(())
    });

    let timer = Postdate::start_with(&config, &[("POSTDATE_ROLES", r#"["timer"]"#)]);
    eventually("all is delivered", LIMIT, || {
        (timer.metrics().sum("postdate_delivered_total") >= count as f64).then_some(())
    });
    let peak = timer.peak_memory() >> 20;
    eprintln!(
        "at most {peak} MiB, with a budget of {BUDGET_MIB} MiB and {} MiB that waited",
        waiting() >> 20
    );
    assert!(peak <= BUDGET_MIB + BESIDE_MIB, "{peak} MiB");
    [&scene.source, &scene.target]
        .into_iter()
        .for_each(|topic| kafka().delete_topic(topic));
}

fn waiting() -> usize {
    SIZES
        .iter()
        .map(|(messages, size)| *messages as usize * size * PARTITIONS as usize / SIZES.len())
        .sum()
}
