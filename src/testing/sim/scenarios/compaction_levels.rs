//! The levels of slices that messages pass through.

use super::{ON_TIME, block_on_paused, lateness};
use crate::model::{Level, Partition};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Delivers messages that are due within three hours of the next day. They are too few per run
/// when they are stored, but together too many to load at once. All are on time. Returns the
/// paths that they took.
fn to_the_next_day(is_rewritten: bool) -> BTreeMap<Vec<Level>, usize> {
    block_on_paused(async {
        let world = World::with_partitions(1).with_real_levels();
        world.compaction_trace().start();
        let mut process = Process::start(&world, &mut StdRng::seed_from_u64(1));
        process.control.compactor.set(!is_rewritten);
        let (partition, start) = (Partition::new(SOURCE, 0), world.now().as_millis());
        // Relayed messages tell the ingress how large messages are.
        (0..20).for_each(|_| _ = world.produce(&partition, "relayed", &[]));
        for batch in 0..16 {
            for number in 0..60 {
                let due = ((start + 27 * HOUR) / HOUR + 1) * HOUR
                    + 3 * MINUTE * number
                    + 11 * SECOND * batch;
                world.produce(
                    &partition,
                    &format!("{number} {due}"),
                    &[("postdate-at", due.to_string())],
                );
            }
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        tokio::time::sleep(Duration::from_secs(30 * 3_600)).await;
        let late = lateness(&world);
        process.control.compactor.set(false);
        assert!(process.stop().await);
        assert_eq!(late.len(), 960);
        assert!(
            late.iter().all(|late| ON_TIME.contains(late)),
            "{:?} ms late",
            late.iter().max()
        );
        world.compaction_trace().paths_taken()
    })
}

#[test]
fn the_compactor_moves_messages_of_the_next_day_from_far_to_day_to_hour_to_minute() {
    let ways = to_the_next_day(true);
    let all = vec![Level::Far, Level::Day, Level::Hour, Level::Minute];
    assert_eq!(ways, BTreeMap::from([(vec![Level::Now], 20), (all, 960)]));
}

#[test]
fn without_the_compactor_messages_stay_far_and_are_still_on_time() {
    let ways = to_the_next_day(false);
    assert_eq!(
        ways,
        BTreeMap::from([(vec![Level::Now], 20), (vec![Level::Far], 960)])
    );
}
