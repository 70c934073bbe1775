//! An ingress reads only the position of an idle shard. It still detects a rollback before a
//! message is late.

use super::{block_on_paused, lateness};
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::time::Duration;

/// Time from the rollback to the due time. It is longer than the ingress needs to detect the loss
/// and store the records again. It is shorter than the interval of the full check.
const LOSS_TO_DUE: Duration = Duration::from_secs(5);

/// In milliseconds. Some simulated store calls are slow. A rollback that is not detected costs five
/// seconds.
const ON_TIME: Range<i64> = 0..250;

/// The lateness of two messages. The store forgets the second one after `quiet` idle seconds.
fn simulate(quiet: u64) -> Vec<i64> {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let mut process = Process::start(&world, &mut random);
        let due =
            world.now().as_millis() + 4_000 + 1_000 * quiet as i64 + LOSS_TO_DUE.as_millis() as i64;
        for (number, due) in [due, due + 1].into_iter().enumerate() {
            world.produce(
                &Partition::new(SOURCE, 0),
                &format!("{number} {due}"),
                &[("postdate-at", due.to_string())],
            );
            tokio::time::sleep(Duration::from_secs(2)).await;
            if number == 0 {
                world.take_snapshot();
            }
        }
        tokio::time::sleep(Duration::from_secs(quiet)).await;
        world.roll_back(&mut random);
        tokio::time::sleep(LOSS_TO_DUE + Duration::from_secs(20)).await;
        assert!(process.stop().await);
        lateness(&world)
    })
}

/// Tries each second between two full checks, which are ten seconds apart.
fn are_on_time() -> bool {
    (0..10)
        .map(simulate)
        .all(|late| late.len() == 2 && late.iter().all(|late| ON_TIME.contains(late)))
}

#[test]
fn a_rollback_of_an_idle_shard_makes_no_message_late() {
    assert!(are_on_time());
}

#[test]
fn an_ingress_that_ignores_a_changed_position_makes_messages_late() {
    assert!(!fault_injection::with(
        [InjectedFault::IngressAssumesIdleShard],
        are_on_time
    ));
}
