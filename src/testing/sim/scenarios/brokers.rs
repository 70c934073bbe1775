//! Several brokers: one is away while the others work, and partitions change their leaders.

use super::block_on_paused;
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::single::Faults;
use crate::testing::sim::process::Process;
use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
use crate::testing::sim::workload::SOON;
use crate::testing::sim::world::{COORDINATOR, SOURCE, TARGET, World, leader};
use crate::testing::sim::{Delivery, Outcome, Plan, run};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

const PARTITIONS: i32 = 6;
/// The number of messages to each partition.
const COUNT: i64 = 20;
/// In milliseconds.
const ON_TIME: i64 = 1_000;

fn simulate(seed: u64, delivery: Delivery, faults: Faults) -> Outcome {
    run(Plan {
        seed,
        length: Duration::from_secs(20),
        faults,
        delays: SOON,
        delivery,
        changes_rules: false,
    })
}

#[test]
fn brokers_that_go_away_lose_nothing_and_repeat_nothing() {
    for (first, delivery) in [
        (97_000, Delivery::AtLeastOnce),
        (97_100, Delivery::ExactlyOnce),
    ] {
        assert_promises_kept(first..first + 30, |seed| {
            simulate(seed, delivery, Faults::BROKERS)
        });
        assert_promises_kept(first + 200..first + 230, |seed| {
            simulate(seed, delivery, Faults::BROKERS_AND_LOSSES)
        });
    }
}

#[test]
fn a_consumer_that_gets_records_which_are_lost_with_their_leader_is_caught() {
    let faults = [InjectedFault::ReadUnreplicatedRecords];
    assert!(breaks_promises(&faults, 97_000..97_100, |seed| {
        simulate(seed, Delivery::AtLeastOnce, Faults::BROKERS)
    }));
}

/// A broker is away for 20 seconds, and the process starts again in that time. Returns the greatest lateness
/// of the messages that need the other brokers only, and of the others.
fn lateness_while_a_broker_is_away(broker: i32) -> [i64; 2] {
    block_on_paused(async {
        let (world, mut random) = (World::with_partitions(PARTITIONS), StdRng::seed_from_u64(1));
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.set_broker_away(Some(broker));
        // A process that starts waits for the coordinator.
        if broker != COORDINATOR {
            process.kill(&world).await;
            process.ensure_running(&world, &mut random);
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let start = world.now().as_millis();
        for number in 0..COUNT {
            let due = start + 2_000 + 500 * number;
            for index in 0..PARTITIONS {
                let headers = [("postdate-at", due.to_string())];
                let payload = format!("{index} {number} {due}");
                world.produce(&Partition::new(SOURCE, index), &payload, &headers);
            }
        }
        tokio::time::sleep(Duration::from_secs(15)).await;
        world.set_broker_away(None);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(process.stop().await);
        let arrived = world.cluster().records(TARGET);
        assert_eq!(arrived.len() as i64, COUNT * i64::from(PARTITIONS));
        let mut late = [0, 0];
        for record in arrived {
            let payload = String::from_utf8(record.payload.unwrap_or_default()).unwrap();
            let mut numbers = payload.split(' ').map(|it| it.parse::<i64>().unwrap());
            let (index, due) = (numbers.next().unwrap() as i32, numbers.nth(1).unwrap());
            let needs = [(SOURCE, index), (TARGET, record.partition)];
            let waits = needs
                .iter()
                .any(|(topic, index)| leader(topic, *index) == broker);
            let most = &mut late[usize::from(waits)];
            *most = record.at.as_millis().saturating_sub(due).max(*most);
        }
        late
    })
}

#[test]
fn a_broker_that_is_away_delays_only_the_messages_that_need_it() {
    for broker in [1, COORDINATOR] {
        let [others, waiting] = lateness_while_a_broker_is_away(broker);
        assert!(others < ON_TIME, "{others} ms without broker {broker}");
        assert!(waiting > ON_TIME, "broker {broker} was away");
    }
}

#[test]
fn a_partition_without_a_leader_that_keeps_others_from_being_opened_is_caught() {
    let faults = [InjectedFault::WaitForAllLeaders];
    let [others, _] = fault_injection::with(faults, || lateness_while_a_broker_is_away(1));
    assert!(others > ON_TIME, "{others} ms");
}
