//! Tests that a process stays within its memory budget, however large its messages are and however
//! many of them and of its shards wait. They read the peak of the resident memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::env::{Kafka, Outgoing, Postdate, Producer, eventually, kafka, now_ms, redis};
use crate::verdict::{LIMIT, Scene};

/// Memory in addition to the budget, as the docs state it.
const BESIDE_MIB: u64 = 64;

/// Memory that the embedded store may take on top while it writes large messages.
const EMBEDDED_MIB: u64 = 128;

const MIB: usize = 1 << 20;

fn store(is_embedded: bool, memory_mib: u64) -> String {
    let table = if is_embedded {
        String::new()
    } else {
        format!("[store.redis]\nurl = \"{}\"", redis().url())
    };
    format!("memory = \"{memory_mib}MiB\"\n{table}")
}

/// Bytes that compression does not shorten.
fn payload(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(size).collect()
}

fn wait_for(service: &Postdate, metric: &str, count: i64) {
    eventually(metric, 2 * LIMIT, || {
        (service.metrics().sum(metric) >= count as f64).then_some(())
    });
}

/// A broker that accepts large messages. One at a time: together they fill the disk cache and Redis
/// with gigabytes, which slows all other tests down.
struct LargeKafka {
    kafka: Kafka,
    _turn: MutexGuard<'static, ()>,
}

impl LargeKafka {
    fn start() -> LargeKafka {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        LargeKafka {
            kafka: Kafka::start_with(&[("message.max.bytes", "50000000")]),
            _turn: turn,
        }
    }
}

/// Sends messages of `size` bytes, all due at once, after the service has started. Returns the
/// peaks in MiB after all were stored, and after all were delivered.
fn burst(kafka: &Kafka, count: i64, size: usize, memory_mib: u64, is_embedded: bool) -> [u64; 2] {
    let scene = Scene::new(kafka, "burst", 4);
    let config = scene.config_stored(&store(is_embedded, memory_mib), "");
    let service = Postdate::ready_with(&config);
    let properties = [("queue.buffering.max.kbytes", "4000000")];
    let producer = Producer::start_with(kafka.addr(), &properties);
    let payload = payload(size);
    // Later than all are stored. A slow machine stores some late: then both bursts overlap.
    let due = now_ms() + 20_000 + (count * size as i64) / 20_000;
    for number in 0..count {
        let message = Outgoing::to(&scene.source)
            .partition((number % 4) as i32)
            .header("postdate-at", due.to_string())
            .payload(&payload);
        producer.send(&message);
        // The test itself keeps little in memory.
        if number % (1 + 64 * MIB as i64 / size as i64) == 0 {
            producer.flush();
        }
    }
    producer.flush();
    wait_for(&service, "postdate_stored_total", count);
    let stored = service.peak_memory() >> 20;
    wait_for(&service, "postdate_delivered_total", count);
    let delivered = service.peak_memory() >> 20;
    eprintln!(
        "{count} messages of {size} bytes, embedded store {is_embedded}: at most {stored} MiB \
         while they are stored, {delivered} MiB in all, of a budget of {memory_mib} MiB"
    );
    [&scene.source, &scene.target]
        .into_iter()
        .for_each(|topic| kafka.delete_topic(topic));
    [stored, delivered]
}

#[test]
fn bursts_of_large_messages_stay_within_the_budget_with_redis() {
    let large = LargeKafka::start();
    for (count, size) in [(700, 900_000), (150, 4_000_000)] {
        let [_, peak] = burst(&large.kafka, count, size, 256, false);
        assert!(peak <= 256 + BESIDE_MIB, "{peak} MiB");
    }
}

#[test]
fn a_burst_of_large_messages_stays_within_its_bound_with_the_embedded_store() {
    let [_, peak] = burst(&LargeKafka::start().kafka, 150, 4_000_000, 256, true);
    assert!(peak <= 256 + BESIDE_MIB + EMBEDDED_MIB, "{peak} MiB");
}

#[test]
fn messages_of_twenty_megabytes_stay_within_the_default_budget() {
    let [_, peak] = burst(&LargeKafka::start().kafka, 40, 20_000_000, 512, false);
    assert!(peak <= 512 + BESIDE_MIB, "{peak} MiB");
}

const PARTITIONS: i32 = 64;

/// Number of messages and bytes of each, for alternating partitions.
const SIZES: [(i64, usize); 2] = [(2_000, 300), (32, 256 << 10)];

/// A timer starts with sixty-four shards that are behind. Without a share of the budget for
/// messages in flight, each shard would load all its messages. That is ten times the budget.
#[test]
fn a_timer_keeps_to_its_budget_while_many_shards_with_messages_of_all_sizes_are_behind() {
    const BUDGET_MIB: u64 = 128;
    let scene = Scene::new(kafka(), "memory", PARTITIONS);
    let config = scene.config_stored(&store(false, BUDGET_MIB), "");
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
    wait_for(&ingress, "postdate_stored_total", count);
    ingress.terminate();
    eventually("all is due", LIMIT, || {
        (now_ms() > from + 1_000).then_some(())
    });

    let timer = Postdate::start_with(&config, &[("POSTDATE_ROLES", r#"["timer"]"#)]);
    wait_for(&timer, "postdate_delivered_total", count);
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
