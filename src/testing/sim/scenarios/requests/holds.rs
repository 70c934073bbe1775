//! Cancels and replacements hold when the store loses writes.

use super::super::block_on_paused;
use crate::limit::BATCH_BYTES_MAX;
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// An event of the store while messages wait.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// It loses everything, and the process is killed. The cancel is sent after that.
    Everything,
    /// It loses the cancels, and the process is killed.
    Cancels,
    /// It loses the cancels. The process lives.
    CancelsAlive,
    /// It loses everything, and is full before the cancels are read again.
    EverythingAndFull,
    /// It loses the cancels, and the process is killed. It is full until long after the due time.
    CancelsAndFull,
    /// The same, but the process lives. It knows pairs with a watermark that the store has lost.
    CancelsAndFullAlive,
}

/// Records between a message and its cancel, and the size of each. They need several batches.
pub(super) const RECORDS_BETWEEN: usize = 500;
pub(super) const RECORD_BYTES: usize = 2 * BATCH_BYTES_MAX / RECORDS_BETWEEN;

struct Trial {
    world: World,
    random: StdRng,
    partition: Partition,
}

impl Trial {
    fn new() -> Self {
        let partition = Partition::new(SOURCE, 0);
        let (world, random) = (World::new(), StdRng::seed_from_u64(1));
        Self {
            world,
            random,
            partition,
        }
    }

    /// Sends a message with an id that is due in so many seconds.
    fn send(&self, payload: &str, seconds: i64, id: &str) {
        let due = self.world.now().as_millis() + 1_000 * seconds;
        let headers = [
            ("postdate-at", due.to_string()),
            ("postdate-id", id.to_owned()),
        ];
        self.world.produce(&self.partition, payload, &headers);
    }

    /// Sends many messages that are due much later.
    fn send_others(&self) {
        let payload = "x".repeat(RECORD_BYTES);
        let due = self.world.now().as_millis() + 3_600_000;
        for _ in 0..RECORDS_BETWEEN {
            let headers = [("postdate-at", due.to_string())];
            self.world.produce(&self.partition, &payload, &headers);
        }
    }

    fn cancel(&self, id: &str) {
        let headers = [
            ("postdate-op", "cancel".to_owned()),
            ("postdate-id", id.to_owned()),
        ];
        self.world.produce(&self.partition, "cancel", &headers);
    }

    async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// The payloads that arrived.
fn payloads(world: &World) -> Vec<String> {
    let arrivals = world.arrivals().into_iter().map(|arrival| arrival.uid);
    let mut arrivals: Vec<String> = arrivals.filter(|uid| uid != "sent now").collect();
    arrivals.sort();
    arrivals.dedup();
    arrivals
}

fn arrivals(loss: Loss) -> Vec<String> {
    let [_, arrivals] = arrivals_before_and_after_room(loss);
    arrivals
}

/// The payloads that arrive before a full store has room again, and in the end. `cancelled` is due while the process is down or the store is behind,
/// and `kept` is due at the same time. `replaced` was replaced by `sent now`, which has arrived
/// before the loss of everything.
fn arrivals_before_and_after_room(loss: Loss) -> [Vec<String>; 2] {
    block_on_paused(async {
        let mut trial = Trial::new();
        let world = trial.world.clone();
        let mut process = Process::start(&world, &mut trial.random);
        trial.send("cancelled", 12, "a");
        trial.send("kept", 12, "b");
        trial.send("replaced", 30, "c");
        trial.sleep(2).await;
        world.take_snapshot();
        trial.send_others();
        if matches!(loss, Loss::Everything | Loss::EverythingAndFull) {
            // Later pairs cover this message, so they tell where the store was.
            trial.send("sent now", -1, "c");
        }
        if !matches!(loss, Loss::Everything) {
            trial.cancel("a");
        }
        if matches!(loss, Loss::CancelsAndFullAlive) {
            trial.send("sent now", -1, "d");
        }
        trial.sleep(4).await;
        match loss {
            Loss::Everything | Loss::EverythingAndFull => {
                process.kill(&world).await;
                for _ in 0..4 {
                    trial.send_others();
                }
                trial.cancel("a");
                trial.sleep(8).await;
                world.wipe();
            }
            Loss::Cancels | Loss::CancelsAndFull => {
                process.kill(&world).await;
                trial.sleep(8).await;
                world.roll_back(&mut trial.random);
            }
            Loss::CancelsAlive => {
                world.set_leaderless(std::slice::from_ref(&trial.partition));
                trial.sleep(5).await;
                world.roll_back(&mut trial.random);
            }
            Loss::CancelsAndFullAlive => {
                world.store_full(true);
                world.roll_back(&mut trial.random);
            }
        }
        process.ensure_running(&world, &mut trial.random);
        match loss {
            Loss::EverythingAndFull => {
                // By then the store has all offsets of the committed pair, but not the cancel.
                trial.wait_until_stored(RECORDS_BETWEEN + 10).await;
                world.store_full(true);
            }
            Loss::Everything => {
                // Killed again, when the store has more than the commit says, but not the cancel.
                trial.wait_until_stored(RECORDS_BETWEEN + 10).await;
                process.kill(&world).await;
                world.set_leaderless(std::slice::from_ref(&trial.partition));
                process.ensure_running(&world, &mut trial.random);
            }
            Loss::Cancels => world.set_leaderless(std::slice::from_ref(&trial.partition)),
            Loss::CancelsAndFull => world.store_full(true),
            _ => {}
        }
        trial.sleep(10).await;
        world.set_leaderless(&[]);
        let before = payloads(&world);
        // Only one case ends with a full store.
        world.store_full(matches!(loss, Loss::EverythingAndFull));
        trial.sleep(30).await;
        process.stop().await;
        [before, payloads(&world)]
    })
}

impl Trial {
    /// Waits until so many messages are stored again.
    async fn wait_until_stored(&self, count: usize) {
        let count = count as u64;
        while self.world.balances().iter().all(|it| it.accepted < count) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn expected(loss: Loss) -> &'static [&'static str] {
    match loss {
        Loss::Everything | Loss::EverythingAndFull => &["kept"],
        _ => &["kept", "replaced"],
    }
}

#[test]
fn cancels_and_replacements_hold_when_the_store_loses_writes() {
    for loss in [Loss::Everything, Loss::Cancels, Loss::CancelsAlive] {
        assert_eq!(arrivals(loss), expected(loss), "{loss:?}");
    }
}

#[test]
fn a_full_store_delivers_before_the_source_is_read_again() {
    let arrivals = arrivals(Loss::EverythingAndFull);
    assert!(arrivals.contains(&"kept".to_owned()), "{arrivals:?}");
}

/// The new owner starts from the pair that the store has, so it delivers at once, also a message whose
/// cancel was lost (G6 goes before G5).
#[test]
fn a_full_store_that_lost_writes_delivers_what_it_still_has() {
    let [before, after] = arrivals_before_and_after_room(Loss::CancelsAndFull);
    assert_eq!(before, ["cancelled", "kept"]);
    assert_eq!(after, ["cancelled", "kept", "replaced"]);
}

/// A later claim would cover the lost messages that are due by then, although they were not delivered.
/// So the shard waits for them.
#[test]
fn an_owner_that_knows_more_than_a_full_store_waits_for_room() {
    let [before, after] = arrivals_before_and_after_room(Loss::CancelsAndFullAlive);
    assert_eq!(before, [""; 0]);
    assert_eq!(after, expected(Loss::CancelsAndFullAlive));
}

#[test]
fn a_full_store_that_keeps_its_holds_is_caught() {
    let faults = [InjectedFault::FullStoreKeepsHolds];
    let arrivals = fault_injection::with(faults, || arrivals(Loss::EverythingAndFull));
    assert_eq!(arrivals, [""; 0]);
}

#[test]
fn every_fault_injected_into_holds_is_caught() {
    let planted = [
        (
            &[InjectedFault::ForgetDeliveredReplacements][..],
            Loss::Everything,
        ),
        (&[InjectedFault::CreateWithoutHold], Loss::Everything),
        (&[InjectedFault::IgnoreCommittedWatermark], Loss::Cancels),
        // The commit names the same watermark after some time.
        (
            &[
                InjectedFault::ForgetSeenWatermark,
                InjectedFault::IgnoreCommittedWatermark,
            ],
            Loss::CancelsAlive,
        ),
    ];
    let alone = [InjectedFault::IgnoreCommittedWatermark];
    let alive = Loss::CancelsAlive;
    let arrived = fault_injection::with(alone, || arrivals(alive));
    assert_eq!(
        arrived,
        expected(alive),
        "the process remembers what it has seen"
    );
    let is_missed = |(faults, loss): &(&[InjectedFault], Loss)| {
        let faults = faults.iter().copied();
        fault_injection::with(faults, || arrivals(*loss)) == expected(*loss)
    };
    let missed: Vec<_> = planted.into_iter().filter(is_missed).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
