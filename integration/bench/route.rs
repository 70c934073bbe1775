//! A route of its own for each measurement, so that none finds what another left; its service; and what Redis holds of it.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::env::{PATIENCE, Postdate, Redis, eventually, unique};
use crate::progress::Progress;
use crate::topics::Topics;

/// Nothing moves for so long: it never will.
const SILENCE: Duration = Duration::from_secs(30);

pub(crate) struct Route<'a> {
    topics: &'a Topics<'a>,
    /// The lines of the configuration that say where messages wait.
    store: String,
    deployment: String,
    pub(crate) source: String,
    pub(crate) target: String,
    dead: String,
    delivery: &'static str,
}

impl<'a> Route<'a> {
    pub(crate) fn in_redis(topics: &'a Topics<'a>, redis: &Redis) -> Route<'a> {
        Route::new(topics, format!("[store.redis]\nurl = \"{}\"", redis.url()))
    }

    pub(crate) fn embedded(topics: &'a Topics<'a>, folder: &Path) -> Route<'a> {
        Route::new(topics, format!("[store.embedded]\npath = \"{}\"", folder.display()))
    }

    fn new(topics: &'a Topics<'a>, store: String) -> Route<'a> {
        let [source, target, dead] = ["source", "target", "dead"].map(|name| topics.make(name));
        Route { topics, store, deployment: unique("bench"), source, target, dead, delivery: "at-least-once" }
    }

    pub(crate) fn delivering(self, delivery: &'static str) -> Route<'a> {
        Route { delivery, ..self }
    }

    /// The program as it is shipped, in these roles; all that is set is where things are.
    pub(crate) fn serve(&self, roles: &[&str]) -> Postdate {
        let Route { store, deployment, source, target, dead, delivery, .. } = self;
        let addr = self.topics.addr();
        Postdate::start(&format!(
            r#"
deployment = "{deployment}"
roles = {roles:?}
{store}
[kafka.main]
brokers = ["{addr}"]
[route.bench]
source = {{ kafka = "main", topics = ["{source}"] }}
target = {{ kafka = "main", topic = "{target}" }}
dead_letter = {{ kafka = "main", topic = "{dead}" }}
delivery = "{delivery}"
"#
        ))
    }

    pub(crate) fn delivered(&self) -> usize {
        self.topics.held(&self.target)
    }

    pub(crate) fn dead(&self) -> usize {
        self.topics.held(&self.dead)
    }

    /// What Redis holds of the route. Asked for on one connection, in one round trip.
    pub(crate) fn stored(&self, redis: &Redis) -> Stored {
        Stored {
            connection: redis.client(),
            partitions: self.topics.partitions,
            prefix: format!("pd:{{{}/bench/{}/", self.deployment, self.source),
        }
    }
}

/// Reads the shards' state in Redis, for the service's own metrics come once a second.
pub(crate) struct Stored {
    connection: redis::Connection,
    partitions: i32,
    prefix: String,
}

impl Stored {
    /// Source offsets that are stored, over all shards; `None`: not all shards are born.
    pub(crate) fn watermark(&mut self) -> Option<usize> {
        let watermarks = self.each("HGET", |key| format!("{key}meta"), Some("watermark"));
        let offset = |hex: &Option<String>| usize::from_str_radix(hex.as_deref()?, 16).ok();
        watermarks.iter().map(offset).sum()
    }

    /// Whether somebody holds the lease of each shard.
    pub(crate) fn is_leased(&mut self) -> bool {
        let tokens: Vec<Option<String>> = self.each("HGET", |key| format!("{key}meta"), Some("token"));
        tokens.iter().all(|token| token.as_ref().is_some_and(|token| !token.is_empty()))
    }

    /// Messages that wait, as the store counts them: in each slice's field the first number.
    pub(crate) fn pending(&mut self) -> usize {
        let slices: Vec<Vec<String>> = self.each("HVALS", |key| format!("{key}counts"), None);
        let messages = slices.iter().flatten().map(|field| field.split(' ').next().and_then(|count| count.parse::<usize>().ok()));
        messages.map(|count| count.expect("a count begins with messages")).sum()
    }

    pub(crate) fn memory(&mut self) -> usize {
        memory(&mut self.connection)
    }

    fn each<T: redis::FromRedisValue>(&mut self, command: &str, key: impl Fn(String) -> String, field: Option<&str>) -> Vec<T> {
        let mut pipeline = redis::pipe();
        for partition in 0..self.partitions {
            pipeline.cmd(command).arg(key(format!("{}{partition}}}:", self.prefix))).arg(field);
        }
        pipeline.query(&mut self.connection).expect("Redis answers")
    }
}

/// What Redis says it uses in all, in bytes.
pub(crate) fn memory(connection: &mut redis::Connection) -> usize {
    let info: String = redis::cmd("INFO").arg("memory").query(connection).expect("Redis answers");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok()).expect("Redis tells what it uses")
}

/// Waits until `now` answers `goal`, or nothing new for a long while; answers what it was at last.
pub(crate) fn wait_for(progress: &Progress, goal: usize, every: Duration, mut now: impl FnMut() -> usize) -> usize {
    let (mut last, mut moved) = (now(), Instant::now());
    while last < goal && moved.elapsed() < SILENCE {
        std::thread::sleep(every);
        let next = now();
        moved = if next == last { moved } else { Instant::now() };
        last = next;
        progress.at(last, goal);
    }
    last
}

/// Waits until the service has begun, which takes it a moment.
pub(crate) fn begun(service: &mut Postdate, what: &str, mut has: impl FnMut(&Postdate) -> bool) {
    eventually(what, PATIENCE, || {
        assert!(service.runs(), "{}", service.logs());
        has(service).then_some(())
    });
}
