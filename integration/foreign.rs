//! Tests damaged and foreign values in Redis: they affect only the run or shard that they belong
//! to.

use redis::cmd;

use crate::env::{Postdate, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene, number, wait_for_complaint, wait_until_ready};

/// All keys with this prefix, of some thousands.
fn keys(prefix: &str) -> Vec<String> {
    let keys: Vec<String> = cmd("KEYS").arg("*").query(&mut redis().client()).unwrap();
    keys.into_iter()
        .filter(|key| key.starts_with(prefix))
        .collect()
}

#[test]
fn a_damaged_run_is_quarantined_and_counted_and_the_rest_is_delivered() {
    let mut scene = Scene::new(kafka(), "damaged", 1);
    let sink = scene.sink();
    // Each send makes a run of its own. The process is stopped while one run is damaged, so
    // that run is not in memory.
    let mut postdate = Postdate::ready_with(&scene.config(redis()));
    for round in 1..=4 {
        scene.send(50, 15_000..16_000);
        scene.wait_until_stored(&postdate, round * 50);
    }
    let (status, _) = postdate.terminate();
    assert!(status.success(), "{status}");
    let pools = keys(&format!("{}pool:", scene.shard(0)));
    let mut client = redis().client();
    let runs: Vec<String> = cmd("HKEYS").arg(&pools[0]).query(&mut client).unwrap();
    cmd("HSET")
        .arg(&pools[0])
        .arg(&runs[0])
        .arg("not a run")
        .exec(&mut client)
        .unwrap();

    postdate.restart();
    eventually("the damaged run is counted", LIMIT, || {
        let (status, _) = postdate.get("/metrics")?;
        (status == 200 && postdate.metrics().sum("postdate_quarantined_runs_total") > 0.0)
            .then_some(())
    });
    let kept: usize = cmd("HLEN")
        .arg(format!("{}quarantine", scene.shard(0)))
        .query(&mut client)
        .unwrap();
    assert_eq!(kept, 1);
    assert!(postdate.logs().contains("a stored run is unreadable"));
    let (records, aside) = eventually(
        "the rest is delivered, and what is set aside is counted",
        LIMIT,
        || {
            let (metrics, records) = (postdate.metrics(), sink.records());
            let aside = metrics.sum("postdate_quarantined_messages") as usize;
            let pending = metrics.sum("postdate_pending_messages");
            (pending == 0.0 && aside > 0 && records.len() + aside == scene.sent())
                .then_some((records, aside))
        },
    );
    assert!(
        aside <= 50,
        "{aside} of at most one round's messages in one run"
    );
    scene.judge(&records);
    assert_eq!(
        records
            .iter()
            .map(number)
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        records.len()
    );
}

#[test]
fn a_value_of_another_type_stops_only_its_shard_and_is_reported() {
    let mut scene = Scene::new(kafka(), "foreign", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    scene.send(100, 0..1_000);
    scene.all_arrive(&sink);
    let meta = format!("{}meta", scene.shard(0));
    let mut client = redis().client();
    cmd("SET")
        .arg(&meta)
        .arg("somebody else's")
        .exec(&mut client)
        .unwrap();
    wait_for_complaint(
        &postdate,
        &["is not usable", &format!("{}/0", scene.source)],
    );

    // Every second message goes to the other shard.
    scene.send(100, 0..1_000);
    let others = sink.wait_until("what the other shard holds", LIMIT, |records| {
        records
            .iter()
            .filter(|record| number(record) >= 100 && number(record) % 2 == 1)
            .count()
            == 50
    });
    assert_eq!(others.len(), 150);

    // Without the foreign value, the shard is rebuilt from the source log.
    cmd("DEL").arg(&meta).exec(&mut client).unwrap();
    let duplicates = scene.all_arrive(&sink);
    assert_eq!(duplicates, 0);
    wait_until_ready(&postdate);
}
