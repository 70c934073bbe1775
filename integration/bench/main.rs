//! `make bench`: what the service does, beside its floor (a plain copy), in one run - the speed of a machine drifts by half between hours, so that
//! figures of different runs say nothing about each other. Kafka and Redis share the machine with the service.
//!
//! A first argument that is a number sets how many messages the rates are measured over.
#![allow(
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it measures real time, prints a table, and stops at what it cannot measure"
)]

#[path = "../env/mod.rs"]
mod env;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use env::{Kafka, Outgoing, Postdate, Producer, Record, Redis, Sink, eventually, now_ms};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

const PARTITIONS: i32 = 4;
/// Longer than any stage takes at a tenth of the speed seen.
const LIMIT: Duration = Duration::from_secs(600);
/// Of the steady load whose lateness is measured.
const RATE: usize = 10_000;
const STEADY: Duration = Duration::from_secs(30);

fn main() {
    let count = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(1_000_000);
    let bench = Bench { kafka: Kafka::start_fast(), redis: Redis::start(), count };
    println!("{count} messages of {} bytes, {PARTITIONS} partitions, one service beside Kafka and Redis\n", payload(0).len());
    println!("| stage | messages/s | CPU us a message: service, Redis | |\n|---|---|---|---|");
    bench.copy();
    bench.ingress();
    bench.drain("at-least-once");
    println!(
        "\n| {RATE}/s for {STEADY:?}, delays of 2-10 s | late by p50 | p99 | p99.9 | max | lost | doubled |\n|---|---|---|---|---|---|---|"
    );
    bench.punctual("at-least-once");
}

struct Bench {
    kafka: Kafka,
    redis: Redis,
    count: usize,
}

impl Bench {
    /// The floor: a consumer that hands each record to a producer, all acknowledged.
    fn copy(&self) {
        let (from, to) = (self.topic("copy_in"), self.topic("copy_out"));
        self.fill(&from, |_| Outgoing::to(&from).header("postdate-after", "1h"));
        let consumer: BaseConsumer = self.client(&[("group.id", "copy"), ("fetch.queue.backoff.ms", "10")]).create().unwrap();
        let mut assignment = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            assignment.add_partition_offset(&from, partition, Offset::Beginning).unwrap();
        }
        let properties = [("enable.idempotence", "true"), ("queue.buffering.max.messages", "1000000"), ("linger.ms", "5")];
        let producer: ThreadedProducer<DefaultProducerContext> = self.client(&properties).create().unwrap();
        let start = Instant::now();
        consumer.assign(&assignment).unwrap();
        for _ in 0..self.count {
            let message = eventually("a record to copy", LIMIT, || consumer.poll(Duration::from_millis(100))).unwrap();
            let mut record = BaseRecord::<[u8], [u8]>::to(&to).headers(message.headers().unwrap().detach());
            record.key = message.key();
            record.payload = message.payload();
            while let Err((_, back)) = producer.send(record) {
                record = back;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        producer.flush(LIMIT).unwrap();
        self.rate("copy: consume, produce, nothing else (the floor)", start.elapsed(), None, "");
    }

    /// From the source into the store, delays spread over a day.
    fn ingress(&self) {
        let route = Route::new(self, "at-least-once");
        self.fill(&route.source, |index| Outgoing::to(&route.source).header("postdate-after", format!("{}s", 3_600 + index % 82_800)));
        let (memory, cpu) = (self.memory(), self.redis.cpu());
        let mut service = Postdate::start(&format!("roles = [\"ingress\"]\n{}", route.config));
        let (mut first, mut last, mut input) = (None, Instant::now(), self.input());
        let took = eventually("the store has everything", LIMIT, || {
            assert!(service.runs(), "{}", service.logs());
            // An idle service asks for little: what comes in beyond that is messages.
            let now = self.input();
            if now > input + 50_000 {
                (last, input) = (Instant::now(), now);
                first.get_or_insert(last);
            }
            first.filter(|_| last.elapsed() > Duration::from_secs(3)).map(|first| last - first)
        });
        let each = (self.memory() - memory) as f64 / self.count as f64;
        self.rate(
            "ingress: source to store",
            took,
            Some((service.cpu(), self.redis.cpu() - cpu)),
            &format!("{each:.0} B of Redis a message"),
        );
    }

    /// From the store to the target, everything due at one moment.
    fn drain(&self, delivery: &str) {
        let route = Route::new(self, delivery);
        let due = now_ms() + 20_000 + i64::try_from(self.count).unwrap() / 20;
        self.fill(&route.source, |_| Outgoing::to(&route.source).header("postdate-at", due.to_string()));
        let service = Postdate::ready_with(&route.config);
        eventually("the messages are due", LIMIT, || (now_ms() >= due).then_some(()));
        let (cpu, start) = ((service.cpu(), self.redis.cpu()), Instant::now());
        eventually("everything is delivered", LIMIT, || (self.held(&route.target) >= self.count).then_some(()));
        let cpu = (service.cpu() - cpu.0, self.redis.cpu() - cpu.1);
        self.rate(&format!("timer: store to target, all due at once, {delivery}"), start.elapsed(), Some(cpu), "");
    }

    /// A steady load, and how late it comes by the broker's clock.
    fn punctual(&self, delivery: &str) {
        let route = Route::new(self, delivery);
        let _service = Postdate::ready_with(&route.config);
        let producer = Producer::start(self.kafka.addr());
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < STEADY {
            while sent < usize::try_from(start.elapsed().as_millis()).unwrap() * RATE / 1_000 {
                let due = now_ms() + 2_000 + i64::try_from(sent * 7_919 % 8_000).unwrap();
                producer.send(&message(Outgoing::to(&route.source).header("postdate-at", due.to_string()), sent));
                sent += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        producer.flush();
        std::thread::sleep(Duration::from_secs(12));
        let records = Sink::read_to_end(self.kafka.addr(), &route.target);
        let mut late: Vec<i64> = records.iter().map(lateness).collect();
        late.sort_unstable();
        let distinct: HashSet<_> = records.iter().map(|record| record.header("postdate-origin")).collect();
        let share = |per_mille: usize| late.get((late.len() * per_mille / 1_000).min(late.len().saturating_sub(1))).copied().unwrap_or(-1);
        let (lost, doubled) = (sent - distinct.len(), records.len() - distinct.len());
        println!("| {delivery} | {} ms | {} ms | {} ms | {} ms | {lost} | {doubled} |", share(500), share(990), share(999), share(1_000));
    }

    fn topic(&self, name: &str) -> String {
        let topic = env::unique(name);
        self.kafka.create_topic(&topic, PARTITIONS, &[("message.timestamp.type", "LogAppendTime")]);
        topic
    }

    fn fill(&self, topic: &str, outgoing: impl Fn(usize) -> Outgoing) {
        let producer = Producer::start_with(self.kafka.addr(), &[("linger.ms", "5"), ("queue.buffering.max.messages", "1000000")]);
        (0..self.count).for_each(|index| producer.send(&message(outgoing(index), index)));
        producer.flush();
        assert_eq!(self.held(topic), self.count);
    }

    /// By offsets, so that it costs nothing: the markers of transactions count, too, some hundreds beside a million.
    fn held(&self, topic: &str) -> usize {
        (0..PARTITIONS).map(|partition| usize::try_from(self.kafka.offsets(topic, partition).1).unwrap()).sum()
    }

    fn client(&self, properties: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.kafka.addr());
        config.extend(properties.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())));
        config
    }

    fn memory(&self) -> usize {
        self.info("used_memory_dataset:")
    }

    fn input(&self) -> usize {
        self.info("total_net_input_bytes:")
    }

    fn info(&self, field: &str) -> usize {
        let info: String = redis::cmd("INFO").query(&mut self.redis.client()).unwrap();
        info.lines().find_map(|line| line.strip_prefix(field)).unwrap().parse().unwrap()
    }

    fn rate(&self, stage: &str, took: Duration, cpu: Option<(Duration, Duration)>, note: &str) {
        let each = |cpu: Duration| format!("{:.2}", cpu.as_secs_f64() * 1e6 / self.count as f64);
        let cpu = cpu.map_or_else(String::new, |(service, redis)| format!("{}, {}", each(service), each(redis)));
        println!("| {stage} | {:.0} | {cpu} | {note} |", self.count as f64 / took.as_secs_f64());
    }
}

/// A route of its own for each measurement, so that none finds what another left.
struct Route {
    source: String,
    target: String,
    config: String,
}

impl Route {
    fn new(bench: &Bench, delivery: &str) -> Route {
        let (source, target, dead) = (bench.topic("source"), bench.topic("target"), bench.topic("dead"));
        let config = format!(
            r#"deployment = "{}"
[store.redis]
url = "{}"
[kafka.main]
brokers = ["{}"]
[route.bench]
source = {{ kafka = "main", topics = ["{source}"] }}
target = {{ kafka = "main", topic = "{target}" }}
dead_letter = {{ kafka = "main", topic = "{dead}" }}
delivery = "{delivery}"
max_delay = "30d"
"#,
            env::unique("bench"),
            bench.redis.url(),
            bench.kafka.addr()
        );
        Route { source, target, config }
    }
}

/// What a shop would send: small, and not very compressible.
fn payload(index: usize) -> String {
    let noise = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!(
        r#"{{"order_id":"{noise:016x}-{:016x}","customer":{},"amount_cents":{},"currency":"EUR","status":"pending_payment","sku":"SKU-{:05}","note":"close unless paid","n":{index:07}}}"#,
        noise.rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9),
        noise % 1_000_000,
        (noise >> 20) % 1_000_000,
        (noise >> 40) % 100_000
    )
}

fn message(outgoing: Outgoing, index: usize) -> Outgoing {
    outgoing.key(format!("key-{index:08}")).payload(payload(index))
}

fn lateness(record: &Record) -> i64 {
    record.timestamp - record.header("postdate-due").and_then(|due| due.parse::<i64>().ok()).unwrap_or(record.timestamp)
}
