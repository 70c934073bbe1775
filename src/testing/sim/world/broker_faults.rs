//! Faults of the brokers: one is away, partitions change their leaders, and commits expire.

use super::{ANSWERS, DEAD, GROUP, MARKERS, SOURCE, TARGET, World};
use crate::model::{Offset, Partition};
use crate::testing::sim::process::Process;
use crate::testing::sim::workload::Sent;
use rand::RngExt;
use rand::rngs::StdRng;
use std::time::Duration;

const BROKERS: i32 = 3;
/// It leads no partition of the source, and coordinates the groups.
pub(crate) const COORDINATOR: i32 = 2;

/// The broker that leads a partition. A source partition and the target partition of the same number
/// have different leaders.
pub(crate) fn leader(topic: &str, index: i32) -> i32 {
    let first = match topic {
        SOURCE => 0,
        TARGET => 1,
        _ => COORDINATOR,
    };
    (index + first) % BROKERS
}

impl World {
    /// The partitions that a broker leads.
    fn led_by(&self, broker: i32) -> Vec<Partition> {
        let topics = [SOURCE, TARGET, DEAD, ANSWERS].into_iter();
        let partitions = topics.flat_map(|topic| self.cluster().partitions(topic));
        let is_led = |it: &Partition| leader(&it.topic, it.index) == broker;
        partitions.filter(is_led).collect()
    }

    /// A broker that is away: its partitions have no leader. `None`: all brokers are there.
    pub(crate) fn set_broker_away(&self, broker: Option<i32>) {
        self.note(match broker {
            Some(broker) => format!("broker {broker} is away"),
            None => "all brokers are there".to_owned(),
        });
        let led = broker.map_or_else(Vec::new, |broker| self.led_by(broker));
        self.cluster().set_leaderless(&led);
        self.cluster()
            .silence_coordinator(broker == Some(COORDINATOR));
    }

    /// A broker loses its followers, goes away, and another one leads its partitions. Records of the
    /// source that no follower has copied may be lost. They were not acknowledged.
    pub(crate) async fn lose_broker(
        &self,
        process: &mut Process,
        is_killed: bool,
        random: &mut StdRng,
    ) {
        let broker = random.random_range(0..BROKERS);
        let led = self.led_by(broker);
        self.note(format!("broker {broker} has no followers"));
        self.cluster().set_unreplicated(&led);
        pause(random, 1_000).await;
        self.set_broker_away(Some(broker));
        pause(random, 2_000).await;
        if is_killed {
            self.note("kill, while a broker is away");
            process.kill(self).await;
            process.ensure_running(self, random);
            pause(random, 2_000).await;
        }
        let led = led.iter().filter(|it| &*it.topic == SOURCE);
        for partition in led {
            if random.random_bool(0.7) {
                self.lose_tail(partition);
            }
        }
        self.cluster().set_unreplicated(&[]);
        self.set_broker_away(None);
    }

    /// The partition gets another leader, without the records that were not acknowledged.
    fn lose_tail(&self, partition: &Partition) {
        let first = self.cluster().change_leader(partition);
        let place = |offset| (self.streams().generation(), partition.index, offset);
        let mut sent = self.0.sent.borrow_mut();
        let lost = sent.extract_if(place(first)..=place(Offset::MAX), |_, _| true);
        let lost: Vec<String> = lost.map(|(_, uid)| uid).collect();
        self.note(format!("{partition} loses {lost:?}, from offset {first}"));
        self.0.unacknowledged.borrow_mut().extend(lost);
    }

    /// The records without those that were lost before they were acknowledged.
    pub(crate) fn acknowledged(&self, mut sent: Vec<Sent>) -> Vec<Sent> {
        let unacknowledged = self.0.unacknowledged.borrow();
        sent.retain(|it| !unacknowledged.contains(&it.uid));
        sent
    }

    /// True if the record was lost before it was acknowledged.
    pub(crate) fn is_unacknowledged(&self, uid: &str) -> bool {
        self.0.unacknowledged.borrow().contains(uid)
    }

    /// The process is down for so long that offset commits expire, and the store may be lost, too.
    pub(crate) async fn expire_commits(&self, process: &mut Process, random: &mut StdRng) {
        let is_orderly = random.random_bool(0.5);
        if !is_orderly {
            process.kill(self).await;
        } else if !process.stop().await {
            self.report_violation("a process did not stop in time".to_owned());
        }
        let (commit, marker) = (random.random_bool(0.7), random.random_bool(0.5));
        self.note(format!(
            "commits expire: {commit}, markers expire: {marker}, after an orderly stop: {is_orderly}"
        ));
        for (group, expires) in [(GROUP, commit), (MARKERS, marker)] {
            if expires {
                self.cluster().expire_commits(group);
            }
        }
        let is_lost = random.random_bool(0.5);
        if is_lost {
            self.wipe();
        }
        let is_known = if self.is_exactly_once() {
            !marker || is_orderly && !(is_lost && commit)
        } else {
            !(is_lost && commit)
        };
        if !is_known {
            self.start_again();
        }
        process.ensure_running(self, random);
    }

    /// The deliveries are forgotten, so each record that the source retains may be delivered again.
    fn start_again(&self) {
        self.note("the deliveries are forgotten");
        self.note_unknown_deliveries(0);
        self.allow_duplicates();
        self.0.starts_again.set(true);
    }

    pub(crate) fn has_started_again(&self) -> bool {
        self.0.starts_again.get()
    }
}

async fn pause(random: &mut StdRng, most: u64) {
    tokio::time::sleep(Duration::from_millis(random.random_range(10..most))).await;
}
