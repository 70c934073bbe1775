//! Sends numbered messages to a test's own route and checks the arrivals: none lost, none early,
//! duplicates counted.
//!
//! It does not know which faults a test causes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;

use crate::env::{
    Kafka, KafkaCluster, Outgoing, PATIENCE, Postdate, Producer, Record, Redis, Sink, eventually,
    now_ms, unique,
};

/// Maximum wait for an event that must happen. It is generous, because two cores run several tests
/// at once.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// A deployment with one route between its own topics, and all messages sent to it.
pub(crate) struct Scene {
    addr: String,
    pub(crate) deployment: String,
    pub(crate) source: String,
    pub(crate) target: String,
    partitions: i32,
    producer: Producer,
    /// Due times by message number.
    sent: BTreeMap<usize, i64>,
}

impl Scene {
    pub(crate) fn new(kafka: &Kafka, name: &str, partitions: i32) -> Scene {
        Self::with(
            kafka.addr().to_owned(),
            name,
            partitions,
            |topic, count, config| {
                kafka.create_topic(topic, count, config);
            },
        )
    }

    /// With topics that are replicated across all brokers.
    pub(crate) fn on_cluster(kafka: &KafkaCluster, name: &str, partitions: i32) -> Scene {
        Self::with(kafka.addr(), name, partitions, |topic, count, config| {
            kafka.create_topic(topic, count, config);
        })
    }

    /// With topics of which this node has no replica.
    pub(crate) fn without_node(
        kafka: &KafkaCluster,
        node: usize,
        name: &str,
        partitions: i32,
    ) -> Scene {
        Self::with(kafka.addr(), name, partitions, |topic, count, config| {
            kafka.create_topic_without(node, topic, count, config);
        })
    }

    fn with(
        addr: String,
        name: &str,
        partitions: i32,
        create_topic: impl Fn(&str, i32, &[(&str, &str)]),
    ) -> Scene {
        let deployment = unique(name);
        let (source, target) = (
            format!("{deployment}.delayed"),
            format!("{deployment}.target"),
        );
        create_topic(&source, partitions, &[]);
        // The broker stamps each arrival with its own clock, which is this machine's clock.
        let config = [("message.timestamp.type", "LogAppendTime")];
        create_topic(&target, partitions, &config);
        create_topic(&format!("{deployment}.dead"), 1, &[]);
        let producer = Producer::start(&addr);
        Scene {
            addr,
            deployment,
            source,
            target,
            partitions,
            producer,
            sent: BTreeMap::new(),
        }
    }

    pub(crate) fn config(&self, redis: &Redis) -> String {
        self.config_with(redis, "")
    }

    /// Appends `more` to the configuration: keys of `route.r`, or further tables.
    pub(crate) fn config_with(&self, redis: &Redis, more: &str) -> String {
        self.config_stored(&format!("[store.redis]\nurl = \"{}\"", redis.url()), more)
    }

    /// `store` is the table that selects the store. An empty text selects the embedded store.
    pub(crate) fn config_stored(&self, store: &str, more: &str) -> String {
        let Scene {
            addr,
            deployment,
            source,
            target,
            ..
        } = self;
        let brokers = addr.replace(',', r#"", ""#);
        format!(
            r#"
deployment = "{deployment}"
{store}
[kafka.main]
brokers = ["{brokers}"]
[route.r]
source = {{ kafka = "main", topics = ["{source}"] }}
target = {{ kafka = "main", topic = "{target}" }}
dead_letter = {{ kafka = "main", topic = "{deployment}.dead" }}
{more}
"#
        )
    }

    /// Prefix of the Redis keys of one shard.
    pub(crate) fn shard(&self, partition: i32) -> String {
        format!("pd:{{{}/r/{}/{partition}}}:", self.deployment, self.source)
    }

    /// The Redis key of the list of workers.
    pub(crate) fn sessions(&self) -> String {
        format!("pd:{{{}}}:sessions", self.deployment)
    }

    /// Passes messages to the client without waiting, in turn over all partitions. Their due times
    /// spread evenly over `dues`, in milliseconds from now.
    pub(crate) fn load(&mut self, count: usize, dues: Range<i64>) {
        let start = now_ms();
        for index in 0..count {
            let number = self.next_number();
            let share = i64::try_from(index).unwrap() * (dues.end - dues.start)
                / i64::try_from(count).unwrap();
            let due = start + dues.start + share;
            let partition = i32::try_from(number).unwrap() % self.partitions;
            self.producer
                .send(&message(&self.source, partition, number, due));
            self.sent.insert(number, due);
        }
    }

    /// Forgotten messages keep their numbers, unless they are the last ones.
    fn next_number(&self) -> usize {
        self.sent.last_key_value().map_or(0, |(last, _)| last + 1)
    }

    /// Like `load`, and waits until the broker has acknowledged the messages.
    pub(crate) fn send(&mut self, count: usize, dues: Range<i64>) {
        self.load(count, dues);
        self.flush();
    }

    /// Sends a message without a due time.
    pub(crate) fn send_without_delay(&mut self) {
        let number = self.next_number();
        self.producer.send(
            &Outgoing::to(&self.source)
                .partition(0)
                .header("uid", number.to_string())
                .key("k"),
        );
        self.sent.insert(number, 0);
        self.flush();
    }

    pub(crate) fn flush(&self) {
        self.producer.flush();
    }

    /// Starts a new producer, because a running client keeps the old id of a recreated topic.
    pub(crate) fn renew_producer(&mut self, partitions: i32) {
        self.producer = Producer::start(&self.addr);
        self.partitions = partitions;
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent.len()
    }

    /// The due time of a message, in epoch milliseconds.
    pub(crate) fn due(&self, number: usize) -> i64 {
        self.sent[&number]
    }

    /// Number of messages whose due time has passed.
    pub(crate) fn overdue(&self) -> usize {
        let now = now_ms();
        self.sent.values().filter(|due| **due <= now).count()
    }

    /// Excludes messages that the test lost on purpose, so that no check waits for them.
    pub(crate) fn forget(&mut self, numbers: Range<usize>) {
        numbers.for_each(|number| {
            self.sent.remove(&number);
        });
    }

    /// Committed offset and metadata of the route's consumer group. The offset is -1 before the
    /// first commit.
    pub(crate) fn committed(&self, partition: i32) -> (i64, String) {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.addr)
            .set("group.id", format!("{}.r", self.deployment))
            .create()
            .unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition(&self.source, partition);
        // A coordinator that was silent may have to be asked for again.
        let committed = eventually("the group coordinator answers", PATIENCE, || {
            consumer.committed_offsets(asked.clone(), PATIENCE).ok()
        });
        let element = &committed.elements()[0];
        (
            element.offset().to_raw().unwrap_or(-1),
            element.metadata().to_owned(),
        )
    }

    pub(crate) fn sink(&self) -> Sink {
        Sink::start(&self.addr, &[&self.target])
    }

    /// Waits until this process has stored at least `count` messages. A restart resets its counter.
    pub(crate) fn wait_until_stored(&self, postdate: &Postdate, count: usize) {
        eventually(&format!("{count} messages are stored"), LIMIT, || {
            (postdate.metrics().sum("postdate_stored_total") >= count as f64).then_some(())
        });
    }

    /// Waits until every message has arrived, and checks that none was early. Returns the number of
    /// duplicates.
    pub(crate) fn all_arrive(&self, sink: &Sink) -> usize {
        let mut missing = self.sent.clone();
        let mut read = 0;
        let records = sink.wait_until(
            &format!("all {} messages", self.sent.len()),
            LIMIT,
            |records| {
                for record in &records[read..] {
                    missing.remove(&number(record));
                }
                read = records.len();
                missing.is_empty()
            },
        );
        self.judge(&records)
    }

    /// Returns the ledger's sums once nothing is pending and no count is unsure. Call it at the end
    /// of a test, after all arrivals.
    pub(crate) fn ledger(&self, postdate: &Postdate) -> Value {
        ledger(&self.deployment, postdate, |total| {
            total["pending"] == 0 && total["unsure"] == false
        })
    }

    /// Like `ledger`, and checks that each message counts once as accepted and delivered, even if
    /// it arrived twice. The store must have lost nothing, and no message may be retried or
    /// refused.
    pub(crate) fn ledger_says_all_once(&self, postdate: &Postdate) {
        let (total, sent) = (self.ledger(postdate), self.sent.len() as u64);
        assert_eq!(
            (&total["accepted"], &total["delivered"]),
            (&sent.into(), &sent.into()),
            "{total}"
        );
    }

    /// Like `ledger`, after the store or a timer that lost its lease has lost counts. Some finished
    /// messages may be missing from the counts, but none counts twice. No message may be retried or
    /// refused.
    pub(crate) fn ledger_says_none_twice(&self, postdate: &Postdate) {
        let (total, sent) = (self.ledger(postdate), self.sent.len() as u64);
        assert!(
            total["accepted"] == total["delivered"] && total["accepted"].as_u64() <= Some(sent),
            "{total}"
        );
    }

    /// Kills the process repeatedly while it reads some messages and delivers others. No message
    /// may be lost.
    pub(crate) fn survives_kills(&mut self, sink: &Sink, postdate: &mut Postdate) {
        const KILLS: usize = 6;
        const ROUND: usize = 300;
        let mut duplicates = 0;
        for _ in 0..KILLS {
            let arrived = sink.records().len();
            self.load(ROUND, 0..1_000);
            sink.wait_for(arrived + ROUND / 3, LIMIT);
            self.load(ROUND, 0..1_000);
            postdate.kill();
            postdate.restart();
            duplicates = self.all_arrive(sink);
        }
        self.flush();
        // Only messages in flight at a kill may be duplicates. That is some ten milliseconds'
        // worth, or the whole round on a slow machine, but nothing from earlier rounds.
        assert!(duplicates <= KILLS * ROUND, "{duplicates} duplicates");
        self.ledger_says_all_once(postdate);
    }

    /// Kills and restarts one worker after the other, under a steady load. Prints the lateness.
    /// Returns the number of duplicates.
    pub(crate) fn survives_crash_loop(&mut self, sink: &Sink, workers: &mut [Postdate]) -> usize {
        const KILLS: usize = 12;
        const STEP: Duration = Duration::from_millis(100);
        const MESSAGES_PER_STEP: usize = 30;
        let start = now_ms();
        for kill in 0..KILLS {
            // Between 1 and 2.5 seconds pass between two kills.
            for _ in 0..10 + kill * 7 % 16 {
                self.load(MESSAGES_PER_STEP, 500..5_000);
                std::thread::sleep(STEP);
            }
            workers[kill % workers.len()].restart();
        }
        self.flush();
        let duplicates = self.all_arrive(sink);
        let dues = start..i64::MAX;
        Lateness::of("workers killed in turn", &sink.records(), dues);
        self.ledger_says_all_once(&workers[0]);
        duplicates
    }

    /// Reads the target topic to its last record, when no more records can arrive. Checks that no
    /// message is lost, and returns the number of duplicates.
    pub(crate) fn duplicates_at_the_end(&self) -> usize {
        let records = Sink::read_to_end(&self.addr, &self.target);
        let mut missing = self.sent.clone();
        records.iter().for_each(|record| {
            missing.remove(&number(record));
        });
        assert!(missing.is_empty(), "lost: {missing:?}");
        self.judge(&records)
    }

    /// Checks that no record is early or unknown. Returns the number of duplicates.
    pub(crate) fn judge(&self, records: &[Record]) -> usize {
        let mut times: BTreeMap<usize, usize> = BTreeMap::new();
        for record in records {
            let due = self
                .sent
                .get(&number(record))
                .unwrap_or_else(|| panic!("never sent, or lost on purpose: {record:?}"));
            assert!(
                record.timestamp >= *due,
                "{} ms early: {record:?}",
                due - record.timestamp
            );
            *times.entry(number(record)).or_default() += 1;
        }
        let duplicates = times.values().map(|times| times - 1).sum();
        eprintln!(
            "{}: {} sent, {} arrived, {duplicates} of them again",
            self.deployment,
            self.sent.len(),
            records.len()
        );
        duplicates
    }
}

/// Lateness of messages in milliseconds, by the broker's timestamp, in ascending order.
pub(crate) struct Lateness(Vec<i64>);

impl Lateness {
    /// Lateness of the records due within `dues`. Prints a summary under this name. Panics if there
    /// are none.
    pub(crate) fn of<'r>(
        name: &str,
        records: impl IntoIterator<Item = &'r Record>,
        dues: Range<i64>,
    ) -> Lateness {
        let due = |record: &Record| {
            record
                .header("postdate-due")
                .and_then(|due| due.parse::<i64>().ok())
                .expect("a due")
        };
        let of = records
            .into_iter()
            .map(|record| (due(record), record.timestamp))
            .filter(|(due, _)| dues.contains(due));
        let mut late: Vec<_> = of.map(|(due, arrived)| arrived - due).collect();
        late.sort_unstable();
        assert!(!late.is_empty(), "nothing was due within {dues:?}");
        let late = Lateness(late);
        let [p50, p99, greatest] = [500, 990, 1_000].map(|share| late.at(share));
        eprintln!(
            "{name}: {} messages, p50 {p50} ms, p99 {p99} ms, greatest {greatest} ms after the due",
            late.0.len()
        );
        late
    }

    /// Lateness that `share` thousandths of the messages do not exceed.
    pub(crate) fn at(&self, share: usize) -> i64 {
        self.0[(self.0.len() - 1) * share / 1_000]
    }

    pub(crate) fn greatest(&self) -> i64 {
        self.at(1_000)
    }
}

/// Reads the ledger until `is_such` accepts its sums, and returns them. The ledger must balance
/// every time, even while messages are pending.
pub(crate) fn ledger(name: &str, postdate: &Postdate, is_such: impl Fn(&Value) -> bool) -> Value {
    let mut last = String::new();
    eventually(
        &format!("the ledger of {name} is as it should be"),
        LIMIT,
        || {
            let output = postdate.command(&["ledger", "--json"]);
            let sheet: Value = serde_json::from_slice(&output.stdout).ok()?;
            assert!(
                output.status.success() && sheet["balances"] == true,
                "the ledger is wrong: {sheet}"
            );
            let total = &sheet["total"];
            let shown = total.to_string();
            if shown != last {
                eprintln!("{name}: ledger {shown}");
                last = shown;
            }
            is_such(total).then(|| total.clone())
        },
    )
}

fn message(topic: &str, partition: i32, number: usize, due: i64) -> Outgoing {
    let number = number.to_string();
    Outgoing::to(topic)
        .partition(partition)
        .key(&number)
        .header("uid", &number)
        .header("postdate-at", due.to_string())
}

/// The number under which a message was sent.
pub(crate) fn number(record: &Record) -> usize {
    record
        .header("uid")
        .and_then(|uid| uid.parse().ok())
        .unwrap_or_else(|| panic!("not a message of the test: {record:?}"))
}

/// Waits until `/readyz` answers 503 with all of these words, and returns the body.
pub(crate) fn wait_for_complaint(postdate: &Postdate, words: &[&str]) -> String {
    let mut last = None;
    let start = std::time::Instant::now();
    loop {
        if let Some((status, body)) = postdate.get("/readyz") {
            if status == 503 && words.iter().all(|word| body.contains(word)) {
                return body;
            }
            last = Some(body);
        }
        assert!(
            start.elapsed() < LIMIT,
            "waited in vain for a complaint with {words:?}; the last answer: {last:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn wait_until_ready(postdate: &Postdate) {
    let mut last = None;
    eventually("the service is ready again", LIMIT, || {
        let (status, body) = postdate.get("/readyz")?;
        if last.as_ref() != Some(&body) {
            eprintln!("/readyz: {body}");
            last = Some(body);
        }
        (status == 200).then_some(())
    });
}
