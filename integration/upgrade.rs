//! Tests that the state that version 0.1.0 left behind is read by the current version, and that a fleet
//! is upgraded and rolled back between two format levels under load.
//!
//! The earlier version of the fleet is the program under test, which reads only the formats of level 0. The
//! variable `OLD_POSTDATE` names the binary of a real one.
//!
//! `fixtures/v0.1.0.txt` holds the Redis keys and the offset commit of that version. This command
//! writes it again: `OLD_POSTDATE=BINARY cargo test --features test-support --test integration
//! the_fixture_is_written -- --ignored`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use redis::Commands as _;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::env::{Outgoing, Postdate, Producer, Redis, Sink, eventually, kafka, now_ms};
use crate::verdict::{LIMIT, Scene, wait_for_complaint};

const FIXTURE: &str = "integration/fixtures/v0.1.0.txt";

/// Stands for the topic id, which is another one in each test.
const ID: &str = "{id}";

/// The messages: without delay, due when the test runs, and due nine years later.
const RELAYED: usize = 5;
const DUE: usize = 40;
const FAR: usize = 10;

/// Longer than the fixture takes to write.
const DUE_IN_MS: i64 = 60_000;
const DAY_MS: i64 = 24 * 3_600_000;

fn scene(name: &str) -> (Scene, Redis, String) {
    let (scene, redis) = (Scene::new(kafka(), name, 1), Redis::start());
    let config = scene.config_with(&redis, "max_delay = \"3650d\"");
    (scene, redis, config)
}

/// The due time of each message, relative to `now`. `None`: it has no delay.
fn dues(now: i64) -> impl Iterator<Item = Option<i64>> {
    let due = (0..DUE as i64).map(move |n| Some(now + DUE_IN_MS + 10 * n));
    let far = (0..FAR as i64).map(move |n| Some(now + (3_600 + n) * DAY_MS));
    (0..RELAYED).map(|_| None).chain(due).chain(far)
}

fn send(scene: &Scene, now: i64) {
    let producer = Producer::start(kafka().addr());
    for (number, due) in dues(now).enumerate() {
        let record = Outgoing::to(&scene.source).key(number.to_string());
        let record = record.payload(number.to_string());
        producer.send(&match due {
            Some(due) => record.header("postdate-at", due.to_string()),
            None => record,
        });
    }
    producer.flush();
}

fn identity(scene: &Scene, redis: &Redis) -> String {
    let meta = format!("{}meta", scene.shard(0));
    let identity = eventually("the shard is created", LIMIT, || {
        let identity: Option<String> = redis.client().hget(&meta, "identity").unwrap();
        identity
    });
    identity.rsplit(':').next().unwrap().to_owned()
}

#[test]
#[ignore = "needs the binary of version 0.1.0"]
fn the_fixture_is_written() {
    let old = std::env::var("OLD_POSTDATE").expect("OLD_POSTDATE names the binary");
    let (scene, redis, config) = scene("fixture");
    let file = std::env::temp_dir().join(format!("{}.toml", scene.deployment));
    std::fs::write(
        &file,
        format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"),
    )
    .unwrap();
    let mut process = Command::new(old)
        .args(["run", "--config"])
        .arg(&file)
        .spawn()
        .unwrap();
    let now = now_ms();
    send(&scene, now);
    let sink = scene.sink();
    sink.wait_for(RELAYED, LIMIT);
    let stored = RELAYED + DUE + FAR;
    let (offset, metadata) = eventually("the state is committed", LIMIT, || {
        let (offset, metadata) = scene.committed(0);
        let is_done = metadata.contains(&format!("low={RELAYED} "));
        (offset as usize == stored && is_done).then_some((offset, metadata))
    });
    process.kill().unwrap();
    process.wait().unwrap();
    std::fs::remove_file(file).unwrap();
    let id = identity(&scene, &redis);
    let mut text = format!(
        "sent {now}\ncommit {offset} {}\n",
        metadata.replace(&id, ID)
    );
    let mut client = redis.client();
    let mut keys: Vec<String> = client.keys(format!("{}*", scene.shard(0))).unwrap();
    keys.sort();
    for key in keys {
        let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut client).unwrap();
        let hex: String = dump.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = key.strip_prefix(&scene.shard(0)).unwrap();
        text += &format!("key {name} {hex}\n");
    }
    std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXTURE), text).unwrap();
}

/// Writes the keys and the commit for the source of this scene.
fn restore(scene: &Scene, redis: &Redis, id: &str, fixture: &str) {
    let mut client = redis.client();
    for line in fixture.lines() {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match words[..] {
            ["key", name, hex] => {
                let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                let dump: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
                let key = format!("{}{name}", scene.shard(0));
                let mut restore = redis::cmd("RESTORE");
                restore
                    .arg(&key)
                    .arg(0)
                    .arg(dump)
                    .exec(&mut client)
                    .unwrap();
            }
            ["commit", offset, metadata] => commit(scene, offset, &metadata.replace(ID, id)),
            _ => assert!(line.starts_with("sent "), "{line}"),
        }
    }
    let meta = format!("{}meta", scene.shard(0));
    let _: () = client.hset(meta, "identity", id).unwrap();
}

fn commit(scene: &Scene, offset: &str, metadata: &str) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka().addr())
        .set("group.id", format!("{}.r", scene.deployment))
        .create()
        .unwrap();
    let mut offsets = TopicPartitionList::new();
    let mut element = offsets.add_partition(&scene.source, 0);
    element
        .set_offset(Offset::Offset(offset.parse().unwrap()))
        .unwrap();
    element.set_metadata(metadata);
    consumer.commit(&offsets, CommitMode::Sync).unwrap();
}

/// The state is read, or lost: then only the source and the commit are left.
fn deliver_what_version_0_1_0_left(name: &str, is_store_lost: bool) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXTURE);
    let fixture = std::fs::read_to_string(fixture).unwrap();
    let sent = fixture
        .lines()
        .next()
        .unwrap()
        .strip_prefix("sent ")
        .unwrap();
    let (scene, redis, config) = scene(name);
    // Only a running process knows the id of the topic.
    let mut postdate = Postdate::ready_with(&config);
    let id = identity(&scene, &redis);
    postdate.terminate();
    redis::cmd("FLUSHALL").exec(&mut redis.client()).unwrap();
    send(&scene, sent.parse().unwrap());
    restore(&scene, &redis, &id, &fixture);
    if is_store_lost {
        redis::cmd("FLUSHALL").exec(&mut redis.client()).unwrap();
    }

    let sink = scene.sink();
    postdate.restart();
    postdate.wait_until_ready();
    sink.wait_for(DUE, LIMIT);
    std::thread::sleep(Duration::from_secs(3));
    let mut arrived: Vec<usize> = sink.records().iter().map(number).collect();
    arrived.sort_unstable();
    assert_eq!(arrived, Vec::from_iter(RELAYED..RELAYED + DUE));
    let pending = postdate.metrics().sum("postdate_pending_messages");
    assert_eq!(pending as usize, FAR);
    assert!(scene.committed(0).1.starts_with("v2 "));
}

fn number(record: &crate::env::Record) -> usize {
    record
        .key
        .as_deref()
        .and_then(|key| str::from_utf8(key).ok())
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn messages_that_version_0_1_0_has_stored_are_delivered_once() {
    deliver_what_version_0_1_0_left("upgrade", false);
}

#[test]
fn messages_of_version_0_1_0_are_delivered_once_if_the_store_is_lost_too() {
    deliver_what_version_0_1_0_left("upgrade_lost", true);
}

/// The version of encrypted runs. Level 0 knows only the version before.
const ENCRYPTED: u8 = 2;

/// Two processes that share four partitions, and the load that they deliver.
struct Fleet {
    scene: Scene,
    redis: Redis,
    sink: Sink,
    /// Keys of the route.
    options: &'static str,
    /// The file of the key ring, which is the option that writes a new format.
    keys: NamedTempFile,
    processes: Vec<Postdate>,
}

impl Fleet {
    /// Starts two processes of the earlier version.
    fn start(name: &str, options: &'static str) -> Fleet {
        let scene = Scene::new(kafka(), name, 4);
        let mut fleet = Fleet {
            sink: scene.sink(),
            scene,
            redis: Redis::start(),
            options,
            keys: NamedTempFile::new().unwrap(),
            processes: Vec::new(),
        };
        for _ in 0..2 {
            let mut process = fleet.start_old();
            process.wait_until_ready();
            fleet.processes.push(process);
        }
        fleet
    }

    fn config(&self, more: &str) -> String {
        let store = format!("[store.redis]\nurl = \"{}\"\n{more}", self.redis.url());
        self.scene.config_stored(&store, self.options)
    }

    fn start_old(&self) -> Postdate {
        let config = self.config("");
        match std::env::var_os("OLD_POSTDATE") {
            Some(program) => Postdate::start_program(program.into(), &config, &[]),
            None => Postdate::start_with(&config, &[("TEST_FORMAT_LEVEL", "0")]),
        }
    }

    fn start_new(&self) -> Postdate {
        Postdate::start(&self.config(""))
    }

    fn start_with_keys(&self) -> Postdate {
        let file = self.keys.path().display();
        Postdate::start(&self.config(&format!("[store.encryption]\nkeys_file = \"{file}\"")))
    }

    /// Replaces one process while messages become due, and others wait for the next replacements.
    fn replace(&mut self, at: usize, stop: fn(&mut Postdate), start: fn(&Fleet) -> Postdate) {
        let arrived = self.sink.records().len();
        self.scene.load(300, 0..4_000);
        self.scene.load(300, 4_000..20_000);
        self.sink.wait_for(arrived + 50, LIMIT);
        stop(&mut self.processes[at]);
        let mut started = start(self);
        started.wait_until_ready();
        self.processes[at] = started;
    }

    fn replace_all(&mut self, stop: fn(&mut Postdate), start: fn(&Fleet) -> Postdate) {
        (0..self.processes.len()).for_each(|at| self.replace(at, stop, start));
    }

    /// What `check` says about the formats of the workers.
    fn formats(&self, at: usize) -> (String, String) {
        let check = self.processes[at].command(&["check", "--json"]);
        let check: Value = serde_json::from_slice(&check.stdout).unwrap();
        let items = check["items"].as_array().unwrap();
        let formats = items.iter().find(|item| item["subject"] == "formats");
        let text = |key: &str| formats.unwrap()[key].as_str().unwrap().to_owned();
        (text("verdict"), text("found"))
    }

    /// The versions of the runs that wait.
    fn stored_versions(&self) -> BTreeSet<u8> {
        const VERSION_AT: usize = 4;
        let mut client = self.redis.client();
        let pools: Vec<String> = client.keys("pd:*:pool:*").unwrap();
        let mut versions = BTreeSet::new();
        for pool in pools {
            let runs: Vec<Vec<u8>> = client.hvals(pool).unwrap();
            versions.extend(runs.iter().map(|run| run[VERSION_AT]));
        }
        versions
    }
}

fn has_old_binary() -> bool {
    std::env::var_os("OLD_POSTDATE").is_some()
}

fn terminate(process: &mut Postdate) {
    let (status, _) = process.terminate();
    assert!(status.success(), "{}", process.logs());
}

/// Upgrades a fleet, rolls it back, upgrades it again, and then writes the new format. Stops the processes
/// that are rolled back with `stop_new`.
fn upgrade_and_roll_back(name: &str, options: &'static str, stop_new: fn(&mut Postdate)) {
    let mut fleet = Fleet::start(name, options);
    fleet.replace(0, terminate, Fleet::start_new);
    let (verdict, found) = fleet.formats(0);
    // A real one may read the same level.
    assert!(
        found.contains("an older version runs") && verdict == "warn" || has_old_binary(),
        "{found}"
    );
    fleet.replace(1, terminate, Fleet::start_new);
    assert_eq!(fleet.formats(0).0, "ok");
    fleet.replace_all(stop_new, Fleet::start_old);
    fleet.replace_all(terminate, Fleet::start_new);
    assert_eq!(fleet.formats(1).0, "ok");

    // A ring that only reads the key writes no new format yet.
    let key = "a:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n";
    std::fs::write(fleet.keys.path(), format!("plain\n{key}")).unwrap();
    fleet.replace_all(terminate, Fleet::start_with_keys);
    assert!(!fleet.stored_versions().contains(&ENCRYPTED));
    std::fs::write(fleet.keys.path(), format!("{key}plain\n")).unwrap();
    fleet.replace_all(terminate, Fleet::start_with_keys);
    // A new process writes it when it knows that all workers read it.
    eventually("the new format is written", LIMIT, || {
        fleet.scene.send(4, 5_000..20_000);
        fleet.stored_versions().contains(&ENCRYPTED).then_some(())
    });

    // An older process waits in front of the new format.
    fleet.scene.send(300, 5_000..20_000);
    fleet.processes.iter_mut().for_each(terminate);
    let mut old = fleet.start_old();
    wait_for_complaint(&old, &["waits"]);
    old.kill();
    fleet.processes = vec![fleet.start_with_keys(), fleet.start_with_keys()];
    assert_eq!(fleet.scene.all_arrive(&fleet.sink), 0);
    assert_eq!(fleet.scene.duplicates_at_the_end(), 0);
    fleet.scene.ledger_says_all_once(&fleet.processes[0]);
}

#[test]
fn a_fleet_is_upgraded_and_rolled_back_between_two_formats_under_load() {
    upgrade_and_roll_back("rolling", "", terminate);
}

#[test]
fn exactly_once_a_fleet_is_upgraded_and_rolled_back_between_two_formats_by_kills() {
    let exactly_once = "delivery = \"exactly-once\"\n";
    upgrade_and_roll_back("rolling_exact", exactly_once, Postdate::kill);
}
