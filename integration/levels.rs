//! Tests the outer levels: sparse runs of many days are merged, and their messages still arrive on
//! time.

use std::time::Duration;

use redis::Commands as _;

use crate::env::{Postdate, eventually, redis};
use crate::verdict::{LIMIT, Scene};

const DAY: i64 = 24 * 3_600_000;
const BATCHES: usize = 60;
const BATCH: usize = 10;

/// Number of runs that the shard holds on a level.
fn runs(shard: &str, level: char) -> u64 {
    let mut client = redis().client();
    let pools: Vec<String> = client.keys(format!("{shard}pool:{level}*")).unwrap();
    pools
        .iter()
        .map(|pool| client.hlen::<_, u64>(pool).unwrap())
        .sum()
}

#[test]
fn sparse_messages_over_many_days_are_compacted_and_arrive_on_time() {
    let mut scene = Scene::new(crate::env::kafka(), "levels", 1);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    // Each send is a batch of its own. One message is due beyond the timer's horizon, and nine are
    // due days later.
    for _ in 0..BATCHES {
        scene.send(BATCH, 30_000..29 * DAY);
        std::thread::sleep(Duration::from_millis(150));
    }
    scene.wait_until_stored(&postdate, BATCHES * BATCH);
    eventually("few runs are left", LIMIT, || {
        (runs(&scene.shard(0), 'f') <= 20).then_some(())
    });
    assert!(postdate.metrics().sum("postdate_rewritten_runs_total") > 0.0);

    for batch in 0..BATCHES {
        scene.forget(batch * BATCH + 1..(batch + 1) * BATCH);
    }
    assert_eq!(scene.all_arrive(&sink), 0, "none twice");
    let pending = || postdate.metrics().sum("postdate_pending_messages");
    eventually("the rest waits", LIMIT, || {
        (pending() as usize == BATCHES * (BATCH - 1)).then_some(())
    });
}
