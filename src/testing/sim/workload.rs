//! The records that a simulation sends: messages with many delays, some with ids, cancels and
//! replacements, relays, and invalid records.

use crate::model::{Offset, Partition};
use crate::testing::sim::world::{SOURCE, World};
use rand::RngExt;
use rand::rngs::StdRng;
use std::time::Duration;

/// One record that the source accepted.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// The generation of the source, which counts how often it was recreated.
    pub(crate) generation: u32,
    pub(crate) partition: i32,
    pub(crate) offset: Offset,
    /// Unique id, as payload and header.
    pub(crate) uid: String,
    pub(crate) kind: SentKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SentKind {
    /// To be delivered at its due time, not before.
    Delayed {
        due: i64,
        id: Option<String>,
    },
    /// Like `Delayed`, but too large for its target.
    Large {
        due: i64,
    },
    Relay,
    Refused,
    Cancel {
        id: String,
    },
}

/// Delays in milliseconds. `SOON` is short. Most of `FAR` lies beyond the load horizon, so that the
/// outer levels have work.
pub(crate) const SOON: &[i64] = &[-500, 0, 3, 40, 300, 1_500, 6_000, 12_000];
pub(crate) const FAR: &[i64] = &[0, 300, 6_000, 25_000, 27_000, 30_000, 40_000];

/// Sends records at random times.
pub(crate) struct Sender {
    world: World,
    random: StdRng,
    delays: &'static [i64],
    partitions: i32,
    count: u32,
    /// Ids in use, each with its partition.
    ids: Vec<(String, i32)>,
}

impl Sender {
    pub(crate) fn new(world: &World, random: StdRng, delays: &'static [i64]) -> Self {
        Self {
            world: world.clone(),
            random,
            delays,
            partitions: 2,
            count: 0,
            ids: Vec::new(),
        }
    }

    /// Sets the number of partitions to send to.
    pub(crate) fn over(mut self, partitions: i32) -> Self {
        self.partitions = partitions;
        self
    }

    pub(crate) async fn send_for(mut self, length: Duration) -> Vec<Sent> {
        let end = tokio::time::Instant::now() + length;
        let mut sent = Vec::new();
        while tokio::time::Instant::now() < end {
            for _ in 0..self.random.random_range(1..12) {
                sent.push(self.send());
            }
            tokio::time::sleep(Duration::from_millis(self.random.random_range(1..150))).await;
        }
        sent
    }

    fn send(&mut self) -> Sent {
        self.count += 1;
        let uid = format!("u{}", self.count);
        let now = self.world.now().as_millis();
        let mut headers: Vec<(&str, String)> = vec![("uid", uid.clone())];
        let mut partition = self.random.random_range(0..self.partitions);
        if self.world.is_exactly_once() && self.random.random_bool(0.05) {
            self.world
                .produce_aborted(&Partition::new(SOURCE, partition));
        }
        let kind = match self.random.random_range(0..20) {
            0 => {
                headers.push(("postdate-after", "soon".into()));
                SentKind::Refused
            }
            1 | 2 => {
                if self.world.changes_rules() {
                    // A delay in a dialect that only some processes understand.
                    headers.push(("x-delay", "6000".into()));
                }
                SentKind::Relay
            }
            5 if self.world.is_exactly_once() && self.random.random_bool(0.1) => {
                let due = now + self.delays[self.random.random_range(0..self.delays.len())];
                headers.extend([
                    ("postdate-at", due.to_string()),
                    ("padding", "x".repeat(160)),
                ]);
                SentKind::Large { due }
            }
            3 | 4 if !self.ids.is_empty() => {
                let (id, of) = self.ids[self
                    .random
                    .random_range(self.ids.len().saturating_sub(6)..self.ids.len())]
                .clone();
                partition = of;
                headers.extend([
                    ("postdate-op", "cancel".into()),
                    ("postdate-id", id.clone()),
                ]);
                SentKind::Cancel { id }
            }
            _ => {
                let due = now
                    + self.delays[self.random.random_range(0..self.delays.len())]
                    + self.random.random_range(0..30);
                headers.push(("postdate-at", due.to_string()));
                let has_id = self.random.random_bool(0.4) && self.world.has_ids();
                let id = has_id
                    .then(|| format!("id{}-{partition}", self.random.random_range(0..self.count)));
                if let Some(id) = &id {
                    headers.push(("postdate-id", id.clone()));
                    self.ids.push((id.clone(), partition));
                }
                SentKind::Delayed { due, id }
            }
        };
        let offset = self
            .world
            .produce(&Partition::new(SOURCE, partition), &uid, &headers);
        let sent = Sent {
            generation: self.world.streams().generation(),
            partition,
            offset,
            uid,
            kind,
        };
        self.world.note_sent(&sent);
        sent
    }
}
