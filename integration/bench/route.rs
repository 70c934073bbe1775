//! Gives each measurement its own route, starts the service for it, and reads the state of its
//! shards.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::ends::{Ends, Names};
use crate::env::{PATIENCE, Postdate, Redis, eventually, unique};
use crate::progress::Progress;
use crate::topics::Topics;

/// If the value does not change for this long, waiting is pointless.
const SILENCE: Duration = Duration::from_secs(30);

/// A key ring with one key of 32 bytes.
const KEYS: &str =
    "[store.encryption]\nkeys = \"bench:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"";

pub(crate) struct Route<'a, E = Topics<'a>> {
    ends: &'a E,
    /// The lines of the configuration that select the store.
    store: String,
    deployment: String,
    pub(crate) source: String,
    pub(crate) target: String,
    pub(crate) dead: String,
    pub(crate) delivery: &'static str,
    /// Further lines of the route's configuration.
    options: String,
}

impl<'a, E: Ends> Route<'a, E> {
    pub(crate) fn in_redis(ends: &'a E, redis: &Redis, is_encrypted: bool) -> Route<'a, E> {
        let keys = if is_encrypted { KEYS } else { "" };
        let url = redis.url();
        Route::new(ends, format!("[store.redis]\nurl = \"{url}\"\n{keys}"))
    }

    pub(crate) fn embedded(ends: &'a E, folder: &Path) -> Route<'a, E> {
        Route::new(
            ends,
            format!("[store.embedded]\npath = \"{}\"", folder.display()),
        )
    }

    fn new(ends: &'a E, store: String) -> Route<'a, E> {
        let [source, target, dead] = ["source", "target", "dead"].map(|name| ends.make(name));
        Route {
            ends,
            store,
            deployment: unique("bench"),
            source,
            target,
            dead,
            delivery: "at-least-once",
            options: String::new(),
        }
    }

    pub(crate) fn delivering(self, delivery: &'static str) -> Route<'a, E> {
        Route { delivery, ..self }
    }

    pub(crate) fn with_options(self, options: String) -> Route<'a, E> {
        Route { options, ..self }
    }

    /// Starts the program as shipped, with these roles. The configuration sets only addresses,
    /// names and the delivery guarantee.
    pub(crate) fn serve(&self, roles: &[&str]) -> Postdate {
        let Route {
            store,
            deployment,
            source,
            target,
            dead,
            delivery,
            options,
            ..
        } = self;
        let route = self.ends.route(&Names {
            source,
            target,
            dead,
            delivery,
        });
        Postdate::start(&format!(
            "deployment = \"{deployment}\"\nroles = {roles:?}\n{store}\n{route}\n{options}"
        ))
    }

    pub(crate) fn delivered(&self) -> usize {
        self.ends.held(&self.target)
    }

    pub(crate) fn dead(&self) -> usize {
        self.ends.held(&self.dead)
    }

    /// A reader of the route's state in Redis.
    pub(crate) fn stored(&self, redis: &Redis) -> Stored<'a, E> {
        let prefix = |shard: &String| format!("pd:{{{}/bench/{shard}}}:", self.deployment);
        Stored {
            ends: self.ends,
            connection: redis.client(),
            prefixes: self.ends.shards(&self.source).iter().map(prefix).collect(),
        }
    }
}

/// Reads the state of all shards in one round trip. The service's metrics are updated only once per
/// second.
pub(crate) struct Stored<'a, E> {
    ends: &'a E,
    connection: redis::Connection,
    /// The key prefix of each shard.
    prefixes: Vec<String>,
}

impl<E: Ends> Stored<'_, E> {
    /// Number of stored records over all shards, or `None` until every shard exists in the store.
    pub(crate) fn records(&mut self) -> Option<usize> {
        let watermarks = self.each("HGET", |key| format!("{key}meta"), Some("watermark"));
        let offset = |hex: &Option<String>| usize::from_str_radix(hex.as_deref()?, 16).ok();
        watermarks
            .iter()
            .enumerate()
            .map(|(shard, hex)| Some(self.ends.stored(shard, offset(hex)?)))
            .sum()
    }

    /// Returns true if every shard has a lease.
    pub(crate) fn is_leased(&mut self) -> bool {
        let tokens: Vec<Option<String>> =
            self.each("HGET", |key| format!("{key}meta"), Some("token"));
        tokens
            .iter()
            .all(|token| token.as_ref().is_some_and(|token| !token.is_empty()))
    }

    /// Number of pending messages. The count is the first number in the field of each slice. The fields
    /// of keys count the same messages again.
    pub(crate) fn pending(&mut self) -> usize {
        let counts: Vec<BTreeMap<String, String>> =
            self.each("HGETALL", |key| format!("{key}counts"), None);
        let slices = (counts.iter().flatten()).filter(|(field, _)| !field.starts_with("key:"));
        let messages = slices.map(|(_, value)| {
            value
                .split(' ')
                .next()
                .and_then(|count| count.parse::<usize>().ok())
        });
        messages
            .map(|count| count.expect("a count begins with messages"))
            .sum()
    }

    pub(crate) fn memory(&mut self) -> usize {
        memory(&mut self.connection)
    }

    fn each<T: redis::FromRedisValue>(
        &mut self,
        command: &str,
        key: impl Fn(&str) -> String,
        field: Option<&str>,
    ) -> Vec<T> {
        let mut pipeline = redis::pipe();
        for prefix in &self.prefixes {
            pipeline.cmd(command).arg(key(prefix)).arg(field);
        }
        pipeline.query(&mut self.connection).expect("Redis answers")
    }
}

/// Total memory that Redis reports, in bytes.
pub(crate) fn memory(connection: &mut redis::Connection) -> usize {
    let info: String = redis::cmd("INFO")
        .arg("memory")
        .query(connection)
        .expect("Redis answers");
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok())
        .expect("Redis tells what it uses")
}

/// Waits until `now` returns at least `goal`, or until its value has not changed for `SILENCE`.
/// Returns the last value.
pub(crate) fn wait_for(
    progress: &Progress,
    goal: usize,
    every: Duration,
    mut now: impl FnMut() -> usize,
) -> usize {
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

/// Waits until `has` returns true, which takes a moment after a start. Panics if the service exits.
pub(crate) fn begun(service: &mut Postdate, what: &str, mut has: impl FnMut(&Postdate) -> bool) {
    eventually(what, PATIENCE, || {
        assert!(service.runs(), "{}", service.logs());
        has(service).then_some(())
    });
}
