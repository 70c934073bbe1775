//! A part of the store does not answer or loses writes, and the shards of the other parts are served as
//! before. Also a store that is full from time to time.

use super::super::block_on_paused;
use super::{assert_kept, is_caught};
use crate::model::Partition;
use crate::store::StorePart;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::single::Faults;
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

const PARTITIONS: i32 = 6;
const PARTS: i32 = 3;
const DOWN: StorePart = StorePart(1);
/// The part is away for this time.
const OUTAGE: Duration = Duration::from_secs(20);
const STORED: u64 = 40;

fn is_away(partition: i32) -> bool {
    partition % PARTS == i32::from(DOWN.0)
}

fn send(world: &World, partition: i32, delay: Duration) {
    let due = world.now().plus(delay).as_millis();
    let headers = [("postdate-at", due.to_string())];
    let payload = format!("{partition} {due}");
    world.produce(&Partition::new(SOURCE, partition), &payload, &headers);
}

/// Messages wait in all parts, and new ones come for all of them. Returns the greatest lateness in
/// milliseconds in the parts that answer, and in the other one.
async fn lateness_while_a_part_is_away() -> [i64; 2] {
    let (world, mut random) = (World::with_partitions(PARTITIONS), StdRng::seed_from_u64(1));
    world.store().set_parts(PARTS as u16);
    let mut process = Process::start(&world, &mut random);
    tokio::time::sleep(Duration::from_secs(5)).await;
    for number in 0..STORED {
        for partition in 0..PARTITIONS {
            send(&world, partition, Duration::from_secs(3 + number));
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.store().set_down_part(Some(DOWN));
    let new = OUTAGE.as_secs();
    for _ in 0..new {
        for partition in 0..PARTITIONS {
            send(&world, partition, Duration::from_secs(2));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.store().set_down_part(None);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut late = [0, 0];
    for arrival in world.arrivals() {
        let (partition, due) = arrival.uid.split_once(' ').unwrap();
        let group = usize::from(is_away(partition.parse().unwrap()));
        late[group] = late[group].max(arrival.at - due.parse::<i64>().unwrap());
    }
    let sent = (STORED + new) * PARTITIONS as u64;
    assert_eq!(world.arrivals().len() as u64, sent, "each arrives once");
    assert!(process.stop().await);
    late
}

#[test]
fn a_part_of_the_store_that_does_not_answer_delays_only_its_shards() {
    let late = |fault: Option<InjectedFault>| {
        fault_injection::with(fault, || block_on_paused(lateness_while_a_part_is_away()))
    };
    let [others, away] = late(None);
    assert!(others < 1_000, "{others} ms");
    assert!(away > 10_000, "the part was away");
    for fault in [
        InjectedFault::AppendInOnePartAtATime,
        InjectedFault::ClaimInOnePartAtATime,
        InjectedFault::LoadFromOnePartAtATime,
    ] {
        let [others, _] = late(Some(fault));
        assert!(others > 1_000, "{fault:?}: {others} ms");
    }
}

#[test]
fn shards_that_go_back_one_by_one_lose_nothing() {
    assert_kept(95_000, Faults::SHARDS_GO_BACK, |world| world);
}

#[test]
fn a_store_that_is_full_while_processes_die_loses_nothing() {
    assert_kept(95_400, Faults::STORE_FILLS, |world| world);
}

#[test]
fn every_fault_injected_into_shards_that_go_back_or_a_full_store_is_caught() {
    let planted: [(&[InjectedFault], u64, Faults); 4] = [
        (
            &[InjectedFault::ForgetLostDeliveries],
            95_000,
            Faults::SHARDS_GO_BACK,
        ),
        (
            &[InjectedFault::DeleteRunsAtClaim],
            95_000,
            Faults::SHARDS_GO_BACK,
        ),
        (
            &[InjectedFault::ReuseRunNames],
            95_000,
            Faults::SHARDS_GO_BACK,
        ),
        (
            &[InjectedFault::DeleteRunsAtClaim],
            95_400,
            Faults::STORE_FILLS,
        ),
    ];
    let missed: Vec<_> = planted
        .into_iter()
        .filter(|(injected, first, faults)| !is_caught(injected, *first, *faults))
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
}
