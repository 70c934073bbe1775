//! Tests hints: messages that another process appends are on time, even if they are due soon.

use crate::env::{Postdate, kafka, redis};
use crate::verdict::{LIMIT, Scene, number};
use std::time::Duration;

/// Longer than the longest tail poll interval of a timer that finds nothing.
const QUIET: Duration = Duration::from_millis(400);

#[test]
fn messages_due_soon_are_on_time_although_another_process_stored_them() {
    const MESSAGES: usize = 15;
    let mut scene = Scene::new(kafka(), "hints", 1);
    let sink = scene.sink();
    let config = scene.config(redis());
    let mut timer = Postdate::start_with(&config, &[("POSTDATE_ROLES", r#"["timer"]"#)]);
    timer.wait_until_ready();
    let ingress = Postdate::start_with(&config, &[("POSTDATE_ROLES", r#"["ingress"]"#)]);
    scene.send(1, 0..1);
    sink.wait_for(1, LIMIT);
    for sent in 1..=MESSAGES {
        std::thread::sleep(QUIET);
        scene.send(1, 150..151);
        sink.wait_for(sent + 1, LIMIT);
    }
    let mut late: Vec<i64> = sink.records()[1..]
        .iter()
        .map(|record| record.timestamp - scene.due(number(record)))
        .collect();
    late.sort_unstable();
    // Without hints, polls would find these messages some hundred milliseconds late.
    assert!(
        late[MESSAGES / 2] < 60,
        "{late:?}\n{}\n{}",
        timer.logs(),
        ingress.logs()
    );
    assert_eq!(scene.all_arrive(&sink), 0);
    scene.ledger_says_all_once(&timer);
}
