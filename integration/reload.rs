//! Tests that SIGHUP takes changed options without a restart, and refuses others by name.

use std::time::Duration;

use crate::env::{Postdate, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene};

/// Rewrites the configuration of a running service, and tells it.
fn reload(postdate: &Postdate, change: impl FnOnce(&str) -> String) {
    let file = postdate.folder().join("config.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    let after = change(&before);
    assert_ne!(before, after);
    std::fs::write(&file, after).unwrap();
    postdate.hang_up();
}

#[test]
fn a_reload_under_load_changes_limits_and_the_log_level_and_repeats_nothing() {
    let mut scene = Scene::new(kafka(), "reload", 1);
    let sink = scene.sink();
    let quota = "max_waiting = { messages = 100 }\nsource =";
    let config = scene.config(redis()).replace("source =", quota);
    let postdate = Postdate::ready_with(&config);
    scene.send(100, 8_000..8_100);
    scene.wait_until_stored(&postdate, 100);
    eventually("the quota is used up", LIMIT, || {
        let used = postdate.metrics().sum("postdate_quota_used_ratio");
        (used >= 1.0).then_some(())
    });
    scene.send(100, 0..4_000);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(postdate.metrics().sum("postdate_accepted_total"), 100.0);
    reload(&postdate, |text| {
        let text = text.replace("messages = 100", "messages = 1000");
        let quiet = "[log]\nlevel = \"info,postdate::ingress=error\"\n[admin]";
        text.replace("[admin]", quiet)
    });
    scene.wait_until_stored(&postdate, 200);
    assert_eq!(scene.all_arrive(&sink), 0);
    assert!(postdate.logs().contains("configuration reloaded"));
    let info = "well below its quota";
    assert!(!postdate.logs().contains(info), "it is below the new level");
    assert_eq!(postdate.metrics().sum("postdate_reload_refused"), 0.0);
}

#[test]
fn a_reload_that_needs_a_restart_is_refused_by_name_and_changes_nothing() {
    let mut scene = Scene::new(kafka(), "unreloaded", 1);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    let refused = |postdate: &Postdate| postdate.metrics().sum("postdate_reload_refused");
    let longer = "max_delay = \"31d\"\nsource =";
    reload(&postdate, |text| text.replace("source =", longer));
    eventually("the reload is refused", LIMIT, || {
        (refused(&postdate) == 1.0).then_some(())
    });
    let said = "a change of these options needs a restart: route.r";
    assert!(postdate.logs().contains(said), "{}", postdate.logs());
    scene.send(20, 0..500);
    assert_eq!(
        scene.all_arrive(&sink),
        0,
        "it serves with its configuration"
    );

    reload(&postdate, |_| "nonsense".to_owned());
    eventually("a wrong file is refused", LIMIT, || {
        let lines = postdate.logs();
        (lines.matches("configuration not reloaded").count() == 2).then_some(())
    });
    let original = scene.config(redis());
    let admin = format!("[admin]\nlisten = \"127.0.0.1:{}\"\n", postdate.port());
    reload(&postdate, |_| format!("{original}\n{admin}"));
    eventually("the original is accepted", LIMIT, || {
        (refused(&postdate) == 0.0).then_some(())
    });
}
