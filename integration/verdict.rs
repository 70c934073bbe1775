//! Messages under numbers of their own, sent to a route of the test's own, and the judgement on what arrived: none lost, none early, and how
//! many twice. It knows nothing of the faults that happen meanwhile.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;

use crate::env::{
    Kafka, Outgoing, PATIENCE, Postdate, Producer, Record, Redis, Sink, eventually, now_ms, unique,
};

/// How long anything may take that does happen in the end. Generous: two cores, and other tests beside this one.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// A deployment with one route between topics of its own, and all that was sent to it.
pub(crate) struct Scene {
    addr: String,
    pub(crate) deployment: String,
    pub(crate) source: String,
    pub(crate) target: String,
    partitions: i32,
    producer: Producer,
    /// Due times by number.
    sent: BTreeMap<usize, i64>,
}

impl Scene {
    pub(crate) fn new(kafka: &Kafka, name: &str, partitions: i32) -> Scene {
        let deployment = unique(name);
        let (source, target) = (
            format!("{deployment}.delayed"),
            format!("{deployment}.target"),
        );
        kafka.create_topic(&source, partitions, &[]);
        // The broker's own clock tells when a message arrived; it is this machine's.
        kafka.create_topic(
            &target,
            partitions,
            &[("message.timestamp.type", "LogAppendTime")],
        );
        kafka.create_topic(&format!("{deployment}.dead"), 1, &[]);
        let producer = Producer::start(kafka.addr());
        Scene {
            addr: kafka.addr().to_owned(),
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

    /// `more` is put behind the rest: tables of its own.
    pub(crate) fn config_with(&self, redis: &Redis, more: &str) -> String {
        self.config_stored(&format!("[store.redis]\nurl = \"{}\"", redis.url()), more)
    }

    /// `store` is the table that says where messages wait; none at all is the embedded store.
    pub(crate) fn config_stored(&self, store: &str, more: &str) -> String {
        let Scene {
            addr,
            deployment,
            source,
            target,
            ..
        } = self;
        format!(
            r#"
deployment = "{deployment}"
{store}
[kafka.main]
brokers = ["{addr}"]
# Of a process that was killed: the sooner the group gives it up, the sooner the test ends.
properties = {{ "session.timeout.ms" = 6000 }}
[route.r]
source = {{ kafka = "main", topics = ["{source}"] }}
target = {{ kafka = "main", topic = "{target}" }}
dead_letter = {{ kafka = "main", topic = "{deployment}.dead" }}
{more}
"#
        )
    }

    /// The keys in Redis of one of its shards begin so.
    pub(crate) fn shard(&self, partition: i32) -> String {
        format!("pd:{{{}/r/{}/{partition}}}:", self.deployment, self.source)
    }

    /// Hands messages to the client whose dues are spread evenly over `dues`, in milliseconds from now; over all partitions in turn.
    pub(crate) fn load(&mut self, count: usize, dues: Range<i64>) {
        let start = now_ms();
        for index in 0..count {
            let number = self.sent.len();
            let share = i64::try_from(index).unwrap() * (dues.end - dues.start)
                / i64::try_from(count).unwrap();
            let due = start + dues.start + share;
            let partition = i32::try_from(number).unwrap() % self.partitions;
            self.producer
                .send(&message(&self.source, partition, number, due));
            self.sent.insert(number, due);
        }
    }

    /// As `load`, and waits until the broker has them.
    pub(crate) fn send(&mut self, count: usize, dues: Range<i64>) {
        self.load(count, dues);
        self.flush();
    }

    /// A message that names no due.
    pub(crate) fn send_without_delay(&mut self) {
        let number = self.sent.len();
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

    /// A client knows a topic that was made again by its old id; another one asks.
    pub(crate) fn renew_producer(&mut self, partitions: i32) {
        self.producer = Producer::start(&self.addr);
        self.partitions = partitions;
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent.len()
    }

    /// The due of the message with that number.
    pub(crate) fn due(&self, number: usize) -> i64 {
        self.sent[&number]
    }

    /// How many are due by now.
    pub(crate) fn overdue(&self) -> usize {
        let now = now_ms();
        self.sent.values().filter(|due| **due <= now).count()
    }

    /// What was lost on purpose is not waited for.
    pub(crate) fn forget(&mut self, numbers: Range<usize>) {
        numbers.for_each(|number| {
            self.sent.remove(&number);
        });
    }

    /// What the route's group has committed for a partition: offset and metadata. Nothing yet: -1.
    pub(crate) fn committed(&self, partition: i32) -> (i64, String) {
        self.committed_by(&format!("{}.r", self.deployment), partition)
    }

    /// Likewise what exactly-once has marked as delivered.
    pub(crate) fn marker(&self, partition: i32) -> (i64, String) {
        self.committed_by(&format!("{}.r.delivered", self.deployment), partition)
    }

    fn committed_by(&self, group: &str, partition: i32) -> (i64, String) {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.addr)
            .set("group.id", group)
            .create()
            .unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition(&self.source, partition);
        let committed = consumer.committed_offsets(asked, PATIENCE).unwrap();
        let element = &committed.elements()[0];
        (
            element.offset().to_raw().unwrap_or(-1),
            element.metadata().to_owned(),
        )
    }

    pub(crate) fn sink(&self) -> Sink {
        Sink::start(&self.addr, &[&self.target])
    }

    /// Waits until the store has at least so many messages, by the count of a process that did not die meanwhile.
    pub(crate) fn wait_until_stored(&self, postdate: &Postdate, count: usize) {
        eventually(&format!("{count} messages are stored"), LIMIT, || {
            (postdate.metrics().sum("postdate_stored_total") >= count as f64).then_some(())
        });
    }

    /// Waits until every message has arrived, and judges: none was early. Answers how many came more than once.
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

    /// For the end of a test, when all has arrived: nothing is pending, and what was accepted is accounted for, without a doubt. Answers the sums.
    pub(crate) fn ledger(&self, postdate: &Postdate) -> Value {
        ledger(&self.deployment, postdate, |total| {
            total["pending"] == 0 && total["unsure"] == false
        })
    }

    /// As `ledger`, where no message was diverted, and the store lost nothing: each was accepted and delivered once, however often it came.
    pub(crate) fn ledger_says_all_once(&self, postdate: &Postdate) {
        let (total, sent) = (self.ledger(postdate), self.sent.len() as u64);
        assert_eq!(
            (&total["accepted"], &total["delivered"]),
            (&sent.into(), &sent.into()),
            "{total}"
        );
    }

    /// As `ledger`, where no message was diverted, but the store, or a timer with its lease, lost what it had: of what came to an end before
    /// that some are in no count, and none is in it twice.
    pub(crate) fn ledger_says_none_twice(&self, postdate: &Postdate) {
        let (total, sent) = (self.ledger(postdate), self.sent.len() as u64);
        assert!(
            total["accepted"] == total["delivered"] && total["accepted"].as_u64() <= Some(sent),
            "{total}"
        );
    }

    /// Kills the process again and again, each time while it reads some messages and hands over others: nothing is lost.
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
        // Only what was in flight at a kill: some ten milliseconds' worth, or all of the round on a machine that falls behind, but nothing
        // of the rounds before it.
        assert!(duplicates <= KILLS * ROUND, "{duplicates} duplicates");
        self.ledger_says_all_once(postdate);
    }

    /// For the end, when nothing can come any more: what the topic holds, to its last record.
    pub(crate) fn duplicates_at_the_end(&self) -> usize {
        let records = Sink::read_to_end(&self.addr, &self.target);
        let mut missing = self.sent.clone();
        records.iter().for_each(|record| {
            missing.remove(&number(record));
        });
        assert!(missing.is_empty(), "lost: {missing:?}");
        self.judge(&records)
    }

    /// None early, none of which nothing is known; how many came again.
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

/// Milliseconds after their due, by the broker's stamp, ascending.
pub(crate) struct Lateness(Vec<i64>);

impl Lateness {
    /// Of those that are due within `dues`; printed under this name.
    pub(crate) fn of<'r>(
        name: &str,
        records: impl IntoIterator<Item = &'r Record>,
        dues: Range<i64>,
    ) -> Lateness {
        let late = Lateness::quietly(records, dues);
        let [p50, p99, greatest] = [500, 990, 1_000].map(|share| late.at(share));
        eprintln!(
            "{name}: {} messages, p50 {p50} ms, p99 {p99} ms, greatest {greatest} ms after the due",
            late.0.len()
        );
        late
    }

    /// Of those that are due within `dues`, which must be some.
    pub(crate) fn quietly<'r>(
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
        Lateness(late)
    }

    /// So many thousandths are no later.
    pub(crate) fn at(&self, share: usize) -> i64 {
        self.0[(self.0.len() - 1) * share / 1_000]
    }

    pub(crate) fn greatest(&self) -> i64 {
        self.at(1_000)
    }
}

/// Asks for the ledger until its sums are such, and answers them. At no moment may it be wrong, whatever is still to come.
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

/// The number that a message was sent under.
pub(crate) fn number(record: &Record) -> usize {
    record
        .header("uid")
        .and_then(|uid| uid.parse().ok())
        .unwrap_or_else(|| panic!("not a message of the test: {record:?}"))
}

/// Waits until `/readyz` answers "no", with all of these words in its reasons.
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
