//! Tests `postdate store copy`: messages wait in one store, move to another, and arrive once.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::env::{PATIENCE, Postdate, Redis, RedisCluster, Sink, eventually, kafka};
use crate::verdict::{LIMIT, Scene, ledger, wait_until_ready};

/// Messages that wait during the copy.
const WAITING: usize = 3_000;

/// A service whose messages move to the store of another configuration file, `new.toml`.
struct Move {
    scene: Scene,
    sink: Sink,
    old: Postdate,
    new_config: String,
    /// The kill caused them, if the route delivers at least once.
    duplicates: usize,
}

impl Move {
    /// Delivers some messages, kills the service meanwhile, and leaves others waiting in the store.
    fn prepare(name: &str, old: &str, new: &str, more: &str) -> Move {
        let mut scene = Scene::new(kafka(), name, 8);
        let sink = scene.sink();
        let new_config = scene.config_stored(new, more);
        let mut old = Postdate::ready_with(&scene.config_stored(old, more));
        std::fs::write(old.folder().join("new.toml"), &new_config).unwrap();
        scene.send(600, 0..2_000);
        sink.wait_for(200, LIMIT);
        old.kill();
        old.restart();
        let duplicates = scene.all_arrive(&sink);
        scene.send(WAITING, 45_000..55_000);
        let accepted = scene.sent();
        ledger(name, &old, |total| total["accepted"] == accepted);
        Move {
            scene,
            sink,
            old,
            new_config,
            duplicates,
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postdate"));
        command
            .args([
                "store",
                "copy",
                "--config",
                "config.toml",
                "--to",
                "new.toml",
            ])
            .args(arguments)
            .current_dir(self.old.folder());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Kills the copy again and again, a little later each time, until it ends by itself.
    fn copy_with_kills(&self, arguments: &[&str]) {
        let mut kills = 0;
        for wait in (10..).step_by(10).map(Duration::from_millis) {
            let mut command = self.command(arguments);
            let mut child = command.stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(wait);
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{:?}", self.run(arguments));
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        eprintln!("{kills} copies were killed");
        let again = text(&self.run(&["--apply"]), 0);
        assert!(again.contains("copied before"), "{again}");
        assert!(again.contains("Copied 0 messages"), "{again}");
    }

    /// Starts the service with the new store. Each message arrives once.
    fn deliver(&self) {
        let mut new = Postdate::ready_with(&self.new_config);
        assert_eq!(self.scene.all_arrive(&self.sink), self.duplicates);
        wait_until_ready(&new);
        self.scene.ledger_says_all_once(&new);
        new.terminate();
        assert_eq!(self.scene.duplicates_at_the_end(), self.duplicates);
    }
}

fn text(output: &Output, code: i32) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

fn redis_to_cluster(name: &str, delivery: &str) {
    let (redis, cluster) = (Redis::start(), RedisCluster::start());
    let old = format!("[store.redis]\nurl = \"{}\"", redis.url());
    let delivery = format!("delivery = \"{delivery}\"");
    let mut it = Move::prepare(name, &old, &cluster.table(), &delivery);
    let refused = text(&it.run(&["--apply"]), 1);
    assert!(
        refused.contains("live workers use the old store"),
        "{refused}"
    );
    it.old.pause();
    eventually("the frozen worker has expired", PATIENCE, || {
        (!text(&it.run(&[]), 0).contains("live workers")).then_some(())
    });
    let refused = text(&it.run(&["--apply"]), 1);
    assert!(refused.contains("may be frozen or cut off"), "{refused}");
    it.old.kill();
    let plan = text(&it.run(&[]), 0);
    assert!(plan.contains("Nothing was changed"), "{plan}");
    it.copy_with_kills(&["--apply"]);
    it.deliver();
    // The old store is unchanged, and the new one is ahead of it.
    let again = text(&it.run(&["--apply", "--replace", "--route", "r"]), 0);
    assert!(again.contains("moved before"), "{again}");
    assert!(again.contains("Copied 0 messages"), "{again}");
    assert!(
        again.contains("Serve the route r with new.toml only"),
        "{again}"
    );
}

#[test]
fn messages_move_from_one_redis_to_a_cluster_with_kills() {
    redis_to_cluster("copy_cluster", "at-least-once");
}

#[test]
fn messages_of_an_exactly_once_route_move_from_one_redis_to_a_cluster() {
    redis_to_cluster("copy_exact", "exactly-once");
}

/// A table with a key that is in a file.
fn encryption() -> String {
    let (_, path): (_, PathBuf) = tempfile::NamedTempFile::new().unwrap().keep().unwrap();
    std::fs::write(&path, format!("a:{}\n", STANDARD.encode([1; 32]))).unwrap();
    format!("[store.encryption]\nkeys_file = \"{}\"", path.display())
}

#[test]
fn encrypted_messages_move_from_a_folder_to_redis_and_can_be_cancelled_there() {
    let (redis, keys) = (Redis::start(), encryption());
    let new = format!("[store.redis]\nurl = \"{}\"\n{keys}", redis.url());
    let mut it = Move::prepare("copy_folder", &keys, &new, "");
    let refused = text(&it.run(&["--apply"]), 1);
    assert!(refused.contains("is in use by process"), "{refused}");
    // A rehearsal, after which the service continues with the old store.
    it.old.terminate();
    text(&it.run(&["--apply"]), 0);
    it.old.restart();
    it.old.wait_until_ready();
    let send = [
        "send", "--route", "r", "--in", "90s", "--id", "moves", "text",
    ];
    assert!(it.old.command(&send).status.success());
    let waits = |at: &Postdate| at.command(&["pending", "--id", "moves"]).status.success();
    eventually("it waits", PATIENCE, || waits(&it.old).then_some(()));
    it.old.terminate();
    let refused = text(&it.run(&["--apply"]), 1);
    assert!(
        refused.contains("an older state of it: --replace"),
        "{refused}"
    );
    it.copy_with_kills(&["--apply", "--replace"]);

    let new = Postdate::ready_with(&it.new_config);
    assert!(waits(&new));
    let cancel = ["send", "--route", "r", "--cancel", "--id", "moves"];
    assert!(new.command(&cancel).status.success());
    eventually("it is cancelled", PATIENCE, || (!waits(&new)).then_some(()));
    assert_eq!(it.scene.all_arrive(&it.sink), it.duplicates);
    let total = it.scene.ledger(&new);
    assert_eq!(total["delivered"], it.scene.sent(), "{total}");
    assert_eq!(total["cancelled"], 1, "{total}");
}
