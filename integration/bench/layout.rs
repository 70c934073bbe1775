//! Implements the per-message layout that people build by hand in Redis, as a rival of Postdate.
//!
//! A message is a member of a sorted set, scored by its due time, and a field of a hash. The code
//! writes in pipelines, polls with ZRANGEBYSCORE and removes with a script.
//! It has no Kafka on either side and no crash recovery. It is therefore cheaper than any real
//! scheduler of this kind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::{Connection, Script};

use crate::env::{Redis, now_ms};
use crate::ledger::Verdict;
use crate::workload::Message;

/// Messages per pipeline and per poll.
const BATCH: usize = 500;
/// Pause after a poll that found no due message. Postdate polls as often.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time that a message waits for its batch, like `linger.ms` of a Kafka producer.
const LINGER: Duration = Duration::from_millis(5);
/// If no message arrives for this long, the missing ones count as lost.
const SILENCE: Duration = Duration::from_secs(30);

const REMOVE: &str =
    "redis.call('ZREM', KEYS[1], unpack(ARGV)) return redis.call('HDEL', KEYS[2], unpack(ARGV))";

/// The names of a queue's sorted set and hash. There are as many queues as partitions.
fn names(queue: usize) -> (String, String) {
    (
        format!("delayed:{{{queue}}}:due"),
        format!("delayed:{{{queue}}}:messages"),
    )
}

/// Writes messages into Redis.
pub(crate) struct Writer<'a> {
    connection: Connection,
    message: &'a Message,
    queues: Vec<(String, String)>,
    pipeline: redis::Pipeline,
    held: usize,
    flushed: Instant,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(redis: &Redis, queues: i32, message: &'a Message) -> Writer<'a> {
        let queues = (0..queues as usize).map(names).collect();
        Writer {
            connection: redis.client(),
            message,
            queues,
            pipeline: redis::pipe(),
            held: 0,
            flushed: Instant::now(),
        }
    }

    pub(crate) fn send(&mut self, number: usize, due: i64) {
        let ((set, hash), id) = (&self.queues[number % self.queues.len()], number.to_string());
        self.pipeline
            .hset(hash, &id, encoded(self.message, number))
            .ignore();
        self.pipeline.zadd(set, &id, due).ignore();
        self.held += 1;
        if self.held == BATCH {
            self.flush();
        }
    }

    /// Flushes the pipeline if `LINGER` has passed. Call this regularly while the rate is low.
    pub(crate) fn serve(&mut self) {
        if self.flushed.elapsed() >= LINGER {
            self.flush();
        }
    }

    pub(crate) fn flush(&mut self) {
        if self.held > 0 {
            self.pipeline
                .exec(&mut self.connection)
                .expect("Redis takes the load");
            self.pipeline.clear();
        }
        (self.held, self.flushed) = (0, Instant::now());
    }
}

/// Takes due messages out of Redis and records when each arrived.
pub(crate) struct Taker<'a> {
    connection: Connection,
    message: &'a Message,
    queues: Vec<(String, String)>,
    remove: Script,
    /// Arrival times by number, in epoch milliseconds. Zero means not arrived.
    arrived: Vec<i64>,
    verdict: Verdict,
}

impl<'a> Taker<'a> {
    /// `count` is the largest number of messages that may arrive.
    pub(crate) fn new(redis: &Redis, queues: i32, message: &'a Message, count: usize) -> Taker<'a> {
        let (mut connection, remove) = (redis.client(), Script::new(REMOVE));
        remove
            .prepare_invoke()
            .load(&mut connection)
            .expect("Redis takes the script");
        let queues = (0..queues as usize).map(names).collect();
        Taker {
            connection,
            message,
            queues,
            remove,
            arrived: vec![0; count],
            verdict: Verdict::default(),
        }
    }

    /// Takes messages until `goal` of them arrived. The goal may change during the run.
    pub(crate) fn run(&mut self, goal: &AtomicUsize, mut heard_of: impl FnMut(usize)) {
        let (mut taken, mut heard) = (0, Instant::now());
        while taken < goal.load(Ordering::Relaxed) && heard.elapsed() < SILENCE {
            let came = self.look();
            taken += came;
            heard_of(taken);
            if came > 0 {
                heard = Instant::now();
            } else {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Takes the due messages of all queues in three round trips: find the ids, read the messages,
    /// remove both.
    fn look(&mut self) -> usize {
        let now = now_ms();
        let mut pipeline = redis::pipe();
        for (set, _) in &self.queues {
            pipeline.zrangebyscore_limit(set, "-inf", now, 0, BATCH as isize);
        }
        let due: Vec<Vec<String>> = pipeline.query(&mut self.connection).expect("Redis answers");
        let due: Vec<_> = self
            .queues
            .iter()
            .zip(due)
            .filter(|(_, ids)| !ids.is_empty())
            .collect();
        if due.is_empty() {
            return 0;
        }
        let mut pipeline = redis::pipe();
        for ((_, hash), ids) in &due {
            pipeline.cmd("HMGET").arg(hash).arg(ids);
        }
        let values: Vec<Vec<Vec<u8>>> =
            pipeline.query(&mut self.connection).expect("Redis answers");
        let now = now_ms();
        values.iter().flatten().for_each(|value| {
            note(
                value,
                self.message,
                now,
                &mut self.arrived,
                &mut self.verdict,
            );
        });
        let mut pipeline = redis::pipe();
        for ((set, hash), ids) in &due {
            pipeline
                .cmd("EVALSHA")
                .arg(self.remove.get_hash())
                .arg(2)
                .arg(set)
                .arg(hash)
                .arg(ids)
                .ignore();
        }
        pipeline.exec(&mut self.connection).expect("Redis answers");
        values.iter().map(Vec::len).sum()
    }

    /// The verdict, and the lateness of each message in milliseconds, ascending.
    pub(crate) fn judge(self, count: usize, due: impl Fn(usize) -> i64) -> (Verdict, Vec<i64>) {
        let came = || {
            self.arrived
                .iter()
                .enumerate()
                .take(count)
                .filter(|(_, arrived)| **arrived != 0)
        };
        let mut lateness: Vec<i64> = came()
            .map(|(number, arrived)| arrived - due(number))
            .collect();
        lateness.sort_unstable();
        let early = lateness.iter().filter(|late| **late < 0).count();
        (
            Verdict {
                count,
                lost: count - lateness.len(),
                early,
                ..self.verdict
            },
            lateness,
        )
    }
}

fn note(value: &[u8], message: &Message, now: i64, arrived: &mut [i64], verdict: &mut Verdict) {
    match Message::number(value).and_then(|number| Some((number, arrived.get_mut(number)?))) {
        Some((number, arrived)) => {
            verdict.changed += usize::from(value != encoded(message, number));
            verdict.doubled += usize::from(std::mem::replace(arrived, now) != 0);
        }
        None => verdict.changed += 1,
    }
}

/// Encodes key, headers and payload. A length precedes each field except the payload.
fn encoded(message: &Message, number: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(message.bytes() + 16);
    let mut field = |field: &str| {
        value.extend(
            u16::try_from(field.len())
                .expect("short keys and headers")
                .to_le_bytes(),
        );
        value.extend(field.as_bytes());
    };
    field(&message.key(number));
    for (name, text) in &message.headers {
        field(name);
        field(text);
    }
    value.extend(message.payload(number).as_bytes());
    value
}
