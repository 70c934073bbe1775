//! Tests encryption of waiting messages: the files of both stores are searched for content, keys are taken
//! away and given back under load, and keys are rotated under load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base64::Engine as _;

use crate::env::{Outgoing, Postdate, Producer, Redis, Sink, eventually, kafka, now_ms};
use crate::verdict::{LIMIT, Scene};

/// Part of every payload, key, header and id of these tests.
const SECRET: &str = "hush";

fn key(id: &str, byte: u8) -> String {
    let secret = base64::engine::general_purpose::STANDARD.encode([byte; 32]);
    format!("{id}:{secret}\n")
}

/// A message on partition 0. Its payload names it.
fn message(scene: &Scene, name: &str, due: i64) -> Outgoing {
    Outgoing::to(&scene.source)
        .partition(0)
        .key(format!("{SECRET}-key-{name}"))
        .payload(name)
        .header("x-note", format!("{SECRET}-header-{name}"))
        .header("postdate-at", due.to_string())
}

fn with_id(scene: &Scene, id: &str, due: i64) -> Outgoing {
    message(scene, id, due).header("postdate-id", id)
}

fn cancel(scene: &Scene, id: &str) -> Outgoing {
    Outgoing::to(&scene.source)
        .partition(0)
        .header("postdate-op", "cancel")
        .header("postdate-id", id)
}

fn arrived(sink: &Sink) -> BTreeSet<String> {
    let records = sink.records().into_iter();
    let payloads = records.filter_map(|record| record.payload);
    payloads
        .map(|payload| String::from_utf8(payload).unwrap())
        .collect()
}

/// A configuration whose keys are in a file beside it, and the path of that file.
fn config(scene: &Scene, store: &str) -> (String, PathBuf) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (_, path) = file.keep().unwrap();
    let keys = format!("[store.encryption]\nkeys_file = \"{}\"", path.display());
    (scene.config_stored(&format!("{store}\n{keys}"), ""), path)
}

/// The files below a folder in which a text occurs.
fn files_with(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            let mut parts = bytes.windows(text.len());
            found.extend(parts.any(|part| part == text.as_bytes()).then_some(path));
        }
    }
    found
}

/// Stores messages of every kind, and cancels one. Returns the service.
fn store_messages(scene: &Scene, config: &str) -> Postdate {
    let postdate = Postdate::ready_with(config);
    let producer = Producer::start(kafka().addr());
    let due = now_ms() + 3_600_000;
    for number in 0..40 {
        let name = format!("{SECRET}-{number}");
        producer.send(&with_id(scene, &name, due + 1_000 * number));
        producer.send(&message(scene, &format!("{SECRET}-plain-{number}"), due));
    }
    producer.send(&cancel(scene, &format!("{SECRET}-0")));
    producer.flush();
    eventually("all are stored", LIMIT, || {
        let metrics = postdate.metrics();
        let stored = metrics.sum("postdate_stored_total") >= 80.0;
        (stored && metrics.sum("postdate_cancelled_total") >= 1.0).then_some(())
    });
    postdate
}

/// Writes the dump of a server, and returns the folder with the dump and the append-only file.
fn saved(redis: &Redis) -> PathBuf {
    redis.command(&["CONFIG", "SET", "rdbcompression", "no"]);
    redis.command(&["SAVE"]);
    redis.folder().join("data")
}

#[test]
fn no_content_is_in_the_files_of_a_store() {
    let redis = Redis::start();
    let in_redis = format!("[store.redis]\nurl = \"{}\"", redis.url());
    // Without encryption the search finds it.
    let scene = Scene::new(kafka(), "plain", 1);
    let plain = store_messages(&scene, &scene.config_stored(&in_redis, ""));
    let files = files_with(&saved(&redis), SECRET);
    assert!(files.len() >= 2, "dump and append-only file: {files:?}");
    drop(plain);

    let redis = Redis::start();
    let in_redis = format!("[store.redis]\nurl = \"{}\"", redis.url());
    for store in [&in_redis, "[store.embedded]"] {
        let scene = Scene::new(kafka(), "sealed", 1);
        let (config, path) = config(&scene, store);
        std::fs::write(&path, key("k1", 1)).unwrap();
        let mut postdate = store_messages(&scene, &config);
        let (_, metrics) = postdate.get("/metrics").unwrap();
        let secret = key("k1", 1).trim_start_matches("k1:").trim().to_owned();
        assert!(!metrics.contains(&secret) && !postdate.logs().contains(&secret));
        let found = postdate.command(&["pending", "--id", "hush-7"]);
        assert!(
            String::from_utf8_lossy(&found.stdout).contains("offset"),
            "{found:?}"
        );
        let folder = if store == in_redis {
            saved(&redis)
        } else {
            postdate.terminate();
            postdate.folder().join("postdate-data")
        };
        assert_eq!(
            files_with(&folder, SECRET),
            Vec::<PathBuf>::new(),
            "{store}"
        );
        assert_eq!(
            files_with(&folder, &secret),
            Vec::<PathBuf>::new(),
            "{store}"
        );
    }
}

#[test]
fn a_key_that_is_taken_away_under_load_loses_nothing() {
    let mut scene = Scene::new(kafka(), "key_away", 2);
    let sink = scene.sink();
    let (config, path) = config(&scene, "");
    std::fs::write(&path, key("a", 1)).unwrap();
    let mut postdate = Postdate::ready_with(&config);
    scene.send(1_000, 3_000..15_000);
    scene.wait_until_stored(&postdate, 1_000);
    postdate.terminate();
    std::fs::write(&path, key("b", 2)).unwrap();
    postdate.restart();
    scene.send(500, 0..10_000);
    eventually("it says what is missing", LIMIT, || {
        let (status, said) = postdate.get("/readyz")?;
        (status == 503 && said.contains("waits for key `a` with fingerprint")).then_some(())
    });
    let checked = postdate.command(&["check"]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        said.contains("wait for it, and keys_file does not have it"),
        "{said}"
    );
    let logs = postdate.logs();
    for shard in 0..2 {
        let error = format!("/{shard} waits for key");
        let is_error = |line: &&str| line.contains("ERROR") && line.contains(&error);
        let count = logs.lines().filter(is_error).count();
        assert_eq!(count, 1, "one error per shard: {logs}");
    }
    std::fs::write(&path, key("b", 2) + &key("a", 1)).unwrap();
    postdate.terminate();
    postdate.restart();
    scene.all_arrive(&sink);
    scene.ledger_says_all_once(&postdate);
    let quarantined = postdate.metrics().sum("postdate_quarantined_messages");
    assert!(quarantined < 1.0);
}

/// Restarts a service with these rings, one after the other, while it delivers. Before and after each
/// restart, an id is cancelled.
fn rotate(store: &str, name: &str, rings: &[String]) {
    let scene = Scene::new(kafka(), name, 1);
    let sink = scene.sink();
    let (config, path) = config(&scene, store);
    std::fs::write(&path, &rings[0]).unwrap();
    let mut postdate = Postdate::ready_with(&config);
    let producer = Producer::start(kafka().addr());
    let due = now_ms() + 60_000;
    let steps = 2 * rings.len();
    for step in 0..steps {
        producer.send(&with_id(&scene, &format!("cancelled-{step}"), due));
    }
    producer.send(&with_id(&scene, "kept", due));
    let mut expected = BTreeSet::from(["kept".to_owned()]);
    for (at, ring) in rings.iter().enumerate() {
        for number in 0..200 {
            let load = format!("load-{at}-{number}");
            producer.send(&message(&scene, &load, now_ms() + 40 * number));
            expected.insert(load);
        }
        producer.flush();
        let stored = |count: usize| {
            move |postdate: &Postdate| {
                postdate.metrics().sum("postdate_stored_total") >= count as f64
            }
        };
        let is_stored = stored(100);
        eventually("some are stored", LIMIT, || {
            is_stored(&postdate).then_some(())
        });
        producer.send(&cancel(&scene, &format!("cancelled-{}", 2 * at)));
        producer.flush();
        std::fs::write(&path, ring).unwrap();
        postdate.terminate();
        postdate.restart();
        producer.send(&cancel(&scene, &format!("cancelled-{}", 2 * at + 1)));
        producer.flush();
        postdate.wait_until_ready();
    }
    assert!(now_ms() < due, "the machine is too slow for this test");
    eventually("all arrive", LIMIT, || {
        (arrived(&sink).len() >= expected.len()).then_some(())
    });
    assert_eq!(arrived(&sink), expected);
}

#[test]
fn keys_are_rotated_under_load_and_cancels_hold() {
    let redis = Redis::start();
    let in_redis = format!("[store.redis]\nurl = \"{}\"", redis.url());
    let (a, b) = (key("a", 1), key("b", 2));
    rotate(&in_redis, "rotated", &[a.clone(), a.clone() + &b, b + &a]);
}

#[test]
fn encryption_is_turned_on_under_load_and_cancels_hold() {
    let plain = "plain\n".to_owned();
    let a = key("a", 1);
    rotate(
        "",
        "turned_on",
        &[plain.clone(), plain.clone() + &a, a + &plain],
    );
}
