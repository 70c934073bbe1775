//! Tests rules of a route that change while messages wait.

use crate::env::{Postdate, Redis, Sink, kafka};
use crate::verdict::{LIMIT, Scene};

#[test]
fn a_rebuild_after_a_change_of_rules_loses_no_waiting_message() {
    let mut redis = Redis::start();
    let mut scene = Scene::new(kafka(), "rules", 2);
    let sink = scene.sink();
    let dead = Sink::start(kafka().addr(), &[&format!("{}.dead", scene.deployment)]);
    let mut postdate = Postdate::ready_with(&scene.config(&redis));
    scene.send(8, 25_000..25_008);
    scene.send(8, 0..8);
    scene.wait_until_stored(&postdate, 16);
    sink.wait_for(8, LIMIT);
    assert!(postdate.terminate().0.success());
    redis.flush_all();
    let shorter = "max_delay = \"10s\"\nsource =";
    let config = scene.config(&redis).replace("source =", shorter);
    let _postdate = Postdate::ready_with(&config);
    let duplicates = scene.all_arrive(&sink);
    assert_eq!(duplicates, 0, "an orderly stop commits the delivered pair");
    scene.send(1, 25_000..25_001);
    let refused = dead.wait_for(1, LIMIT);
    assert_eq!(
        refused[0].header("postdate-error"),
        Some("delay_above_max"),
        "{refused:?}"
    );
}
