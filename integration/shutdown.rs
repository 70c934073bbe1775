//! Tests a process that is asked to stop, and one that refuses to start.

use std::net::TcpListener;
use std::time::Duration;

use redis::cmd;

use crate::env::{Postdate, Redis, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene};

/// Maximum time that a process may take to stop, as the docs state it.
const STOP: Duration = Duration::from_secs(10);

#[test]
fn a_process_that_is_asked_to_stop_finishes_its_work_and_releases_its_shards() {
    let mut scene = Scene::new(kafka(), "handed_over", 2);
    let sink = scene.sink();
    // With this lease, no process can take over a shard that was not released.
    let config = scene.config_with(redis(), "[timer]\nlease = \"5m\"");
    let mut postdate = Postdate::ready_with(&config);
    for _ in 0..3 {
        let arrived = sink.records().len();
        scene.send(1_000, 0..2_000);
        sink.wait_for(arrived + 300, LIMIT);
        scene.load(500, 0..1_000);
        let (status, took) = postdate.terminate();
        assert_eq!(status.code(), Some(0));
        assert!(took < STOP, "it took {took:?} to end");
        postdate.restart();
        scene.flush();
        scene.all_arrive(&sink);
    }
    scene.ledger_says_all_once(&postdate);
    let (status, _) = postdate.terminate();
    assert_eq!(status.code(), Some(0));
    assert_eq!(scene.duplicates_at_the_end(), 0);
}

#[test]
fn a_process_that_stops_has_committed_its_source_offset_and_its_deliveries() {
    let mut scene = Scene::new(kafka(), "committed", 1);
    let mut postdate = Postdate::ready_with(&scene.config(redis()));
    scene.send(100, 0..1_000);
    scene.send(20, 3_600_000..3_700_000);
    scene.wait_until_stored(&postdate, 120);
    scene.sink().wait_for(100, LIMIT);
    let (status, _) = postdate.terminate();
    assert_eq!(status.code(), Some(0));

    let (offset, metadata) = scene.committed(0);
    assert_eq!(offset, 120);
    // `low` is the offset after the delivered messages. If the store is lost, the waiting ones are
    // read again, and the pair `done` identifies the delivered ones.
    assert!(metadata.starts_with("v2 low=100 done="), "{metadata}");
    assert!(metadata.contains(" end=120 rules="), "{metadata}");
    let meta: Vec<String> = cmd("HKEYS")
        .arg(format!("{}meta", scene.shard(0)))
        .query(&mut redis().client())
        .unwrap();
    assert!(
        meta.iter().any(|field| field == "watermark") && meta.iter().all(|field| field != "token"),
        "the lease is not given back: {meta:?}"
    );
}

#[test]
fn a_process_reports_its_liveness_its_readiness_and_its_counters() {
    let mut scene = Scene::new(kafka(), "observed", 1);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    assert_eq!(
        postdate.get("/healthz"),
        Some((200, r#"{"alive":true,"reasons":[]}"#.to_owned()))
    );
    assert_eq!(
        postdate.get("/readyz"),
        Some((200, r#"{"ready":true,"reasons":[]}"#.to_owned()))
    );
    scene.send(50, 0..500);
    scene.all_arrive(&sink);
    for name in [
        "postdate_accepted_total",
        "postdate_stored_total",
        "postdate_delivered_total",
    ] {
        eventually(name, LIMIT, || {
            (postdate.metrics().sum_where(name, &[("route", "r")]) as usize == 50).then_some(())
        });
    }
    assert!(
        postdate
            .metrics()
            .contains("postdate_lateness_seconds_bucket")
    );
}

#[test]
fn a_redis_that_may_evict_messages_is_refused_with_a_fix() {
    let evicting = Redis::start();
    cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory-policy")
        .arg("allkeys-lru")
        .exec(&mut evicting.client())
        .unwrap();
    let scene = Scene::new(kafka(), "evicting", 1);
    let mut postdate = Postdate::start(&scene.config(&evicting));
    assert_eq!(postdate.wait_until_ended().code(), Some(1));
    let logs = postdate.logs();
    assert!(
        logs.contains("maxmemory-policy allkeys-lru")
            && logs.contains("CONFIG SET maxmemory-policy noeviction"),
        "{logs}"
    );
    // The error is logged once, although several loops use the store. It is also the program's last
    // line.
    let said: Vec<&str> = logs
        .lines()
        .filter(|line| line.contains("maxmemory-policy allkeys-lru"))
        .collect();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(
        said[0].contains("stopping: a task failed") && said[1].starts_with("postdate: "),
        "{said:#?}"
    );
}

#[test]
fn a_taken_admin_port_is_named_with_its_key() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let scene = Scene::new(kafka(), "taken", 1);
    let mut postdate = Postdate::start_with(
        &scene.config(redis()),
        &[("POSTDATE_ADMIN__LISTEN", &address)],
    );
    assert_eq!(postdate.wait_until_ended().code(), Some(1));
    let logs = postdate.logs();
    assert!(
        logs.contains(&format!("cannot listen on {address} (admin.listen)")),
        "{logs}"
    );
}

#[test]
fn a_process_stops_in_time_although_its_store_is_unreachable() {
    let mut away = Redis::start();
    let mut scene = Scene::new(kafka(), "away", 1);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(&away));
    scene.send(300, 0..2_000);
    sink.wait_for(50, LIMIT);
    away.kill();
    scene.send(50, 0..1_000);
    let (status, took) = postdate.terminate();
    assert_eq!(status.code(), Some(0), "{}", postdate.logs());
    assert!(took < STOP, "it took {took:?} to end");
    assert!(
        postdate.logs().contains("leases not released"),
        "{}",
        postdate.logs()
    );
    away.restart();
    postdate.restart();
    scene.all_arrive(&sink);
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn a_process_stops_in_time_although_its_store_is_silent() {
    let silent = Redis::start();
    let mut scene = Scene::new(kafka(), "silent", 1);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(&silent));
    scene.send(300, 0..2_000);
    sink.wait_for(50, LIMIT);
    silent.pause();
    scene.send(50, 0..1_000);
    let (status, took) = postdate.terminate();
    assert_eq!(status.code(), Some(0), "{}", postdate.logs());
    assert!(took < STOP, "it took {took:?} to end");
    silent.resume();
    postdate.restart();
    scene.all_arrive(&sink);
    scene.ledger_says_all_once(&postdate);
}
