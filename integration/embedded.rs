//! Tests the embedded store, which keeps waiting messages in a local folder across kills and
//! restarts.

use crate::env::{Postdate, kafka, redis};
use crate::verdict::{LIMIT, Scene};

#[test]
fn a_process_that_is_killed_repeatedly_loses_nothing_from_its_folder() {
    // As with Redis, the kills interrupt reading, storing and delivering.
    let mut scene = Scene::new(kafka(), "folder_killed", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config_stored("", ""));
    scene.survives_kills(&sink, &mut postdate);
}

#[test]
fn messages_in_a_folder_are_delivered_after_a_kill_without_reading_them_again() {
    let mut scene = Scene::new(kafka(), "folder_waits", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config_stored("", ""));
    scene.send(2_000, 4_000..6_000);
    scene.wait_until_stored(&postdate, 2_000);
    postdate.kill();
    postdate.restart();
    assert_eq!(
        scene.all_arrive(&sink),
        0,
        "nothing had been handed over before the kill"
    );
    assert!(
        postdate.metrics().sum("postdate_stored_total") < 1.0,
        "nothing was read a second time"
    );
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn a_process_that_stops_releases_its_folder_with_all_waiting_messages() {
    let mut scene = Scene::new(kafka(), "folder_ended", 2);
    let sink = scene.sink();
    let mut postdate =
        Postdate::ready_with(&scene.config_stored("[store.embedded]\npath = \"waiting/here\"", ""));
    for _ in 0..3 {
        let arrived = sink.records().len();
        scene.send(1_000, 0..2_000);
        sink.wait_for(arrived + 300, LIMIT);
        let (status, _) = postdate.terminate();
        assert_eq!(status.code(), Some(0), "{}", postdate.logs());
        assert!(postdate.folder().join("waiting/here/format").exists());
        postdate.restart();
        scene.all_arrive(&sink);
    }
    scene.ledger_says_all_once(&postdate);
    let (status, _) = postdate.terminate();
    assert_eq!(status.code(), Some(0));
    assert_eq!(scene.duplicates_at_the_end(), 0);
}

#[test]
fn a_second_process_on_the_same_folder_is_refused_and_names_the_first() {
    let scene = Scene::new(kafka(), "folder_shared", 1);
    let mut first = Postdate::ready_with(&scene.config_stored("", ""));
    let path = first.folder().join("postdate-data");
    let config = scene.config_stored(
        &format!("[store.embedded]\npath = \"{}\"", path.display()),
        "",
    );
    let mut second = Postdate::start(&config);
    assert_eq!(second.wait_until_ended().code(), Some(1));
    let said = second.logs();
    assert!(
        said.contains("postdate: store.embedded: the store cannot be used: ")
            && said.contains("is in use by process "),
        "{said}"
    );
    assert!(
        said.contains("only one process can have an embedded store at a time"),
        "{said}"
    );
    assert!(first.runs() && first.ready());
    // The lock is free again, although its owner was killed.
    first.kill();
    second.restart();
    second.wait_until_ready();
}

#[test]
fn a_folder_of_another_format_is_refused_with_a_fix() {
    let scene = Scene::new(kafka(), "folder_format", 1);
    let mut postdate = Postdate::ready_with(&scene.config_stored("", ""));
    postdate.terminate();
    std::fs::write(
        postdate.folder().join("postdate-data").join("format"),
        "postdate embedded store, format 7\n",
    )
    .unwrap();
    postdate.restart();
    assert_eq!(postdate.wait_until_ended().code(), Some(1));
    let said = postdate.logs();
    assert!(
        said.contains(
            "has format 7, which a newer version of Postdate wrote: run the newer version"
        ),
        "{said}"
    );
}

#[test]
fn waiting_messages_move_from_the_folder_to_redis_and_back_through_the_source_log() {
    let mut scene = Scene::new(kafka(), "folder_moved", 2);
    let sink = scene.sink();
    let mut in_folder = Postdate::ready_with(&scene.config_stored("", ""));
    scene.send(500, 0..1_000);
    scene.send(500, 20_000..21_000);
    scene.wait_until_stored(&in_folder, 1_000);
    sink.wait_for(500, LIMIT);
    in_folder.terminate();

    let mut in_redis = Postdate::ready_with(&scene.config(redis()));
    scene.wait_until_stored(&in_redis, 500);
    in_redis.terminate();

    // Start with an empty folder, because the old folder still holds the state from before the
    // move.
    std::fs::remove_dir_all(in_folder.folder().join("postdate-data")).unwrap();
    in_folder.restart();
    scene.all_arrive(&sink);
    scene.ledger_says_none_twice(&in_folder);
    in_folder.terminate();
    assert_eq!(
        scene.duplicates_at_the_end(),
        0,
        "each of them ended well, and had committed what was delivered"
    );
}
