//! What people build by hand in Redis, as well as it can be built: a message is a member of a sorted set, scored by its due, and a field of a
//! hash. Written in pipelines, looked for by ZRANGEBYSCORE, removed by a script. It has no Kafka on either side and does not say what happens
//! if it is killed: it is cheaper than any such scheduler that is used.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::{Connection, Script};

use crate::env::{Redis, now_ms};
use crate::ledger::Verdict;
use crate::workload::Message;

/// Messages of one pipeline, and of one look.
const BATCH: usize = 500;
/// Nothing was due: how long until the next look. Postdate looks as often.
const LOOK: Duration = Duration::from_millis(5);
/// How long a message waits at most to be sent with others, as a producer of Kafka's lets it.
const LINGER: Duration = Duration::from_millis(5);
/// Nothing comes for so long: it never will.
const SILENCE: Duration = Duration::from_secs(30);

const REMOVE: &str =
    "redis.call('ZREM', KEYS[1], unpack(ARGV)) return redis.call('HDEL', KEYS[2], unpack(ARGV))";

/// The names of a queue's sorted set and its hash; there are as many queues as partitions.
fn names(queue: usize) -> (String, String) {
    (
        format!("delayed:{{{queue}}}:due"),
        format!("delayed:{{{queue}}}:messages"),
    )
}

/// Puts messages into Redis.
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

    /// Called now and then while little is sent.
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

/// Takes out of Redis what is due, and writes down when each came.
pub(crate) struct Taker<'a> {
    connection: Connection,
    message: &'a Message,
    queues: Vec<(String, String)>,
    remove: Script,
    /// In epoch milliseconds, by number; none yet: zero.
    arrived: Vec<i64>,
    verdict: Verdict,
}

impl<'a> Taker<'a> {
    /// At most so many messages will come.
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

    /// Until all of them came. How many they are may become known meanwhile.
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

    /// Three round trips for all queues: what is due, what it is, and that it is done.
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

    /// The verdict, and the lateness of each message in ascending order.
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

/// Key, headers and payload, each but the last with its length before it.
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
