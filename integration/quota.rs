//! Tests the quota of a route: over it the route stops reading, or refuses new messages.

use std::time::Duration;

use crate::env::{Postdate, Sink, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene};

const QUOTA: usize = 100;

/// The scene's configuration with a quota on its route.
fn config(scene: &Scene, rule: &str) -> String {
    let quota =
        format!("max_waiting = {{ messages = {QUOTA} }}\nover_quota = \"{rule}\"\nsource =");
    scene.config(redis()).replace("source =", &quota)
}

fn wait_until_used(postdate: &Postdate) {
    eventually("the quota is used up", LIMIT, || {
        let used = postdate.metrics().sum("postdate_quota_used_ratio");
        (used >= 1.0).then_some(())
    });
}

#[test]
fn over_its_quota_a_route_waits_in_its_source_and_loses_nothing() {
    let mut scene = Scene::new(kafka(), "quota", 1);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&config(&scene, "wait"));
    scene.send(QUOTA, 8_000..8_100);
    scene.wait_until_stored(&postdate, QUOTA);
    wait_until_used(&postdate);
    scene.send(50, 500..600);
    std::thread::sleep(Duration::from_secs(3));
    let metrics = postdate.metrics();
    assert_eq!(metrics.sum("postdate_accepted_total"), QUOTA as f64);
    assert_eq!(metrics.sum("postdate_ready"), 1.0, "other routes work");
    let (_, body) = postdate.get("/readyz").expect("an answer");
    assert!(
        body.contains("max_waiting of the route is used up"),
        "{body}"
    );
    let said = "the quota max_waiting of the route is used up";
    assert_eq!(postdate.logs().matches(said).count(), 1);
    assert_eq!(scene.all_arrive(&sink), 0);
    eventually("the quota is free", LIMIT, || {
        let used = postdate.metrics().sum("postdate_quota_used_ratio");
        (used == 0.0).then_some(())
    });
}

#[test]
fn a_route_that_refuses_over_its_quota_makes_dead_letters_of_new_messages_only() {
    let mut scene = Scene::new(kafka(), "refusing", 1);
    let sink = scene.sink();
    let dead = Sink::start(kafka().addr(), &[&format!("{}.dead", scene.deployment)]);
    let postdate = Postdate::ready_with(&config(&scene, "dead-letter"));
    scene.send(QUOTA, 8_000..8_100);
    scene.wait_until_stored(&postdate, QUOTA);
    wait_until_used(&postdate);
    let accepted = scene.sent();
    scene.send(20, 2_000..2_100);
    let refused = dead.wait_for(20, LIMIT);
    let is_refused = |code: Option<&str>| code == Some("quota");
    assert!(
        refused
            .iter()
            .all(|record| is_refused(record.header("postdate-error"))),
        "{refused:?}"
    );
    scene.forget(accepted..accepted + 20);
    assert_eq!(scene.all_arrive(&sink), 0);
}
