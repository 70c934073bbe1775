//! Tests that a running service takes a changed configuration: by itself, with other roles, or not at
//! all.

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

/// Waits until the service has said this so many times.
fn wait_for_log(postdate: &Postdate, said: &str, times: usize) {
    eventually(said, LIMIT, || {
        (postdate.logs().matches(said).count() >= times).then_some(())
    });
}

const RESTARTED: &str = "the roles are ready with it";

/// Lets the roles begin again and again while messages are read and delivered. Returns the duplicates.
fn reload_under_load(scene: &mut Scene, postdate: &mut Postdate) -> usize {
    let sink = scene.sink();
    let started = postdate.metrics().sum("postdate_start_time_seconds");
    for (round, days) in (31..34).enumerate() {
        let arrived = sink.records().len();
        scene.load(1_500, 0..3_000);
        sink.wait_until("the load arrives", LIMIT, |records| records.len() > arrived);
        reload(postdate, |text| {
            let kept = text.lines().filter(|line| !line.starts_with("max_delay"));
            let kept: Vec<_> = kept.collect();
            let longer = format!("max_delay = \"{days}d\"\nsource =");
            kept.join("\n").replace("source =", &longer)
        });
        wait_for_log(postdate, RESTARTED, round + 1);
    }
    scene.flush();
    let repeated = scene.all_arrive(&sink);
    let metrics = postdate.metrics();
    assert_eq!(metrics.sum("postdate_start_time_seconds"), started);
    assert_eq!(metrics.sum("postdate_reload_refused"), 0.0);
    repeated
}

#[test]
fn roles_that_begin_again_under_load_lose_nothing_and_count_what_they_repeat() {
    let mut scene = Scene::new(kafka(), "rolesagain", 4);
    let mut postdate = Postdate::ready_with(&scene.config(redis()));
    let repeated = reload_under_load(&mut scene, &mut postdate) as f64;
    let counted = postdate.metrics().sum("postdate_possible_duplicates_total");
    assert!(repeated <= counted, "{repeated} of {counted}");
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn exactly_once_roles_that_begin_again_under_load_lose_and_repeat_nothing() {
    let mut scene = Scene::new(kafka(), "exactroles", 4);
    let config = scene.config_with(redis(), "delivery = \"exactly-once\"");
    let mut postdate = Postdate::ready_with(&config);
    assert_eq!(reload_under_load(&mut scene, &mut postdate), 0);
}

#[test]
fn roles_with_the_embedded_store_begin_again_with_its_folder() {
    let mut scene = Scene::new(kafka(), "folderroles", 1);
    let folder = tempfile::tempdir().unwrap();
    let store = format!("[store.embedded]\npath = \"{}\"", folder.path().display());
    let mut postdate = Postdate::ready_with(&scene.config_stored(&store, ""));
    let repeated = reload_under_load(&mut scene, &mut postdate) as f64;
    let counted = postdate.metrics().sum("postdate_possible_duplicates_total");
    assert!(repeated <= counted, "{repeated} of {counted}");
}

#[test]
fn a_reload_adds_and_removes_routes_and_lists_what_waits_of_a_removed_one() {
    let (mut first, mut second) = (
        Scene::new(kafka(), "kept", 1),
        Scene::new(kafka(), "added", 1),
    );
    let sinks = (first.sink(), second.sink());
    let alone = first.config_with(redis(), "[worker]\nwatch_config = true");
    let postdate = Postdate::ready_with(&alone);
    let route = format!(
        "\n[route.added]\nsource = {{ kafka = \"main\", topics = [\"{}\"] }}\n\
         target = {{ kafka = \"main\", topic = \"{}\" }}\n\
         dead_letter = {{ kafka = \"main\", topic = \"{}.dead\" }}\n",
        second.source, second.target, second.deployment
    );
    let file = postdate.folder().join("config.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    // There is no signal: the service watches its file.
    std::fs::write(&file, before.clone() + &route).unwrap();
    wait_for_log(&postdate, RESTARTED, 1);
    second.send(50, 60_000..61_000);
    first.send(50, 0..9_000);
    second.wait_until_stored(&postdate, 100);

    std::fs::write(&file, &before).unwrap();
    postdate.hang_up();
    wait_for_log(&postdate, RESTARTED, 2);
    wait_for_log(
        &postdate,
        "messages wait for a route that the configuration does not have",
        1,
    );
    let listed = postdate.logs();
    assert!(listed.contains("\"messages\":50"), "{listed}");
    let of_added = "postdate_pending_messages{route=\"added\"";
    let page = postdate.get("/metrics").expect("it answers").1;
    for line in page.lines().filter(|line| line.starts_with(of_added)) {
        assert!(
            line.ends_with(" 0"),
            "nobody reads the removed route: {line}"
        );
    }
    first.all_arrive(&sinks.0);

    std::fs::write(&file, before + &route).unwrap();
    postdate.hang_up();
    second.all_arrive(&sinks.1);
}

#[test]
fn roles_that_fail_at_their_start_give_way_to_the_ones_before() {
    let mut scene = Scene::new(kafka(), "givesway", 1);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    reload(&postdate, |text| {
        let broken = "[kafka.main]\nproperties = { \"ssl.ca.location\" = \"/nowhere.pem\", \"security.protocol\" = \"SSL\" }";
        text.replace("[kafka.main]", broken)
    });
    wait_for_log(&postdate, "the roles have failed with it", 1);
    scene.send(20, 0..500);
    assert_eq!(scene.all_arrive(&sink), 0);
    assert_eq!(postdate.metrics().sum("postdate_reload_refused"), 1.0);
}

#[test]
fn a_reload_that_needs_a_restart_is_refused_by_name_and_changes_nothing() {
    let mut scene = Scene::new(kafka(), "unreloaded", 1);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    let refused = |postdate: &Postdate| postdate.metrics().sum("postdate_reload_refused");
    let exact = "delivery = \"exactly-once\"\nsource =";
    reload(&postdate, |text| text.replace("source =", exact));
    eventually("the reload is refused", LIMIT, || {
        (refused(&postdate) == 1.0).then_some(())
    });
    let said = "a change of these options needs a restart: route.r.delivery";
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
