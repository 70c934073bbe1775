//! NATS streams in place of Kafka topics, and the faults of a stream.
//!
//! Sequences have gaps, and a consumer may read records again. Two readers may hold the same
//! lease for a while. A stream may be purged or recreated. A target drops duplicates, so no message
//! may arrive twice within its window.

use crate::model::{Offset, Partition, ShardId};
use crate::store::{ShardStore, StoreAdmin};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{DEAD, ROUTE, SOURCE, TARGET, World};
use rand::RngExt;
use rand::rngs::StdRng;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Longer than a simulation.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Time limits: to detect that a stream was recreated, and to deliver the messages of the old
/// stream.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(20);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// State of the streams of a world.
#[derive(Default)]
pub(crate) struct Streams {
    /// The duplicate window of the targets. Zero: none.
    window: Cell<Duration>,
    /// The current generation of the source, and the generation that the shards in the store belong
    /// to.
    generation: Cell<u32>,
    stored_generation: Cell<u32>,
    /// Messages that were deleted with the source before they were stored.
    purged: RefCell<BTreeSet<String>>,
    /// The payloads of all deleted records, by generation, partition and offset.
    deleted: RefCell<BTreeMap<(u32, i32, Offset), String>>,
}

impl Streams {
    pub(crate) fn generation(&self) -> u32 {
        self.generation.get()
    }

    pub(crate) fn stored_generation(&self) -> u32 {
        self.stored_generation.get()
    }

    pub(crate) fn was_purged(&self, uid: &str) -> bool {
        self.purged.borrow().contains(uid)
    }

    /// The payload of a record that was deleted.
    pub(crate) fn deleted_payload(&self, place: (u32, i32, Offset)) -> Option<String> {
        self.deleted.borrow().get(&place).cloned()
    }

    /// Returns whether no message may arrive twice.
    pub(crate) fn forbid_duplicates(&self) -> bool {
        self.window.get() >= LONG
    }
}

/// Faults of the source stream. Readers are always recreated as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// The source is no stream.
    None,
    ReadersOnly,
    Purges,
    /// The stream is recreated, and the store is reset.
    Recreation,
}

impl StreamFault {
    /// The number of fault kinds in total.
    pub(crate) fn kinds(self) -> u32 {
        match self {
            Self::None => 10,
            Self::ReadersOnly => 11,
            Self::Purges | Self::Recreation => 13,
        }
    }

    pub(crate) async fn inject(self, world: &World, process: &mut Process, random: &mut StdRng) {
        match self {
            Self::Purges if random.random_bool(0.5) => world.purge(random).await,
            Self::Recreation if random.random_bool(0.3) => {
                recreate_source(world, process, random).await;
            }
            _ => world.remake_consumers(),
        }
    }
}

impl World {
    /// Turns the brokers into NATS.
    pub(crate) fn on_streams(self, window: Duration) -> Self {
        self.cluster().turn_into_stream(SOURCE);
        [TARGET, DEAD]
            .iter()
            .for_each(|topic| self.cluster().set_dedup_window(topic, window));
        self.streams().window.set(window);
        self
    }

    pub(crate) fn remake_consumers(&self) {
        self.note("the consumers are recreated");
        self.cluster().recreate_consumers();
    }

    async fn purge(&self, random: &mut StdRng) {
        self.allow_lost_cancels();
        let records = self.cluster().records(SOURCE);
        let Some(last) = records.iter().map(|record| record.offset.0).max() else {
            return;
        };
        let first = random.random_range(last.saturating_sub(40)..=last + 1);
        self.note(format!("the source is purged up to {first}"));
        self.allow_duplicates();
        self.mark_purged(|offset| offset < Offset(first)).await;
        self.cluster()
            .trim_to(&Partition::new(SOURCE, 0), Offset(first));
    }

    /// Notes the records that will be deleted. Those that are not stored need not arrive. After the
    /// only wait it lists them and returns at once, so that no record is sent meanwhile.
    async fn mark_purged(&self, goes: impl Fn(Offset) -> bool) {
        let records = self.cluster().records(SOURCE).into_iter();
        let indexes: BTreeSet<_> = records.map(|record| record.partition).collect();
        let shard = |index| ShardId::new(ROUTE, Partition::new(SOURCE, index));
        let shards: Vec<_> = indexes.into_iter().map(shard).collect();
        let states = self.store().state(&shards).await;
        let states = states.expect("the memory store answers");
        for record in self.cluster().records(SOURCE) {
            let at = shards
                .iter()
                .position(|shard| shard.partition.index == record.partition);
            let state = at.and_then(|at| states[at].as_ref());
            let is_stored = state.is_some_and(|state| state.watermark.covers(record.offset));
            if !goes(record.offset) {
                continue;
            }
            let payload = record.payload.unwrap_or_default();
            let payload = String::from_utf8_lossy(&payload).into_owned();
            let streams = self.streams();
            if !is_stored {
                streams.purged.borrow_mut().insert(payload.clone());
            }
            let place = (streams.generation(), record.partition, record.offset);
            streams.deleted.borrow_mut().insert(place, payload);
        }
    }
}

/// Recreates the source as an operator would. A worker reports the new source. The operator waits
/// until the old messages are delivered, resets the store, and restarts after the duplicate window
/// has passed.
async fn recreate_source(world: &World, process: &mut Process, random: &mut StdRng) {
    world.note("the source is recreated");
    world.allow_duplicates();
    world.mark_purged(|_| true).await;
    world.cluster().recreate_topic(SOURCE);
    world
        .streams()
        .generation
        .set(world.streams().generation() + 1);
    if !within(DETECTION_TIMEOUT, || {
        process.reports_not_ready("was recreated")
    })
    .await
    {
        return world
            .report_violation("no process reported that the source was recreated".to_owned());
    }
    if !within(DRAIN_TIMEOUT, || {
        world.balances().iter().all(|balance| balance.pending == 0)
    })
    .await
    {
        world.report_violation("the messages of the old source were not delivered".to_owned());
    }
    if !process.stop().await {
        world.report_violation("a process did not stop in time".to_owned());
    }
    world.note("the store is reset");
    let shards: Vec<_> = (0..2)
        .map(|index| ShardId::new(ROUTE, Partition::new(SOURCE, index)))
        .collect();
    world
        .store()
        .erase(&shards)
        .await
        .expect("the memory store answers");
    world
        .streams()
        .stored_generation
        .set(world.streams().generation());
    tokio::time::sleep(world.streams().window.get()).await;
    process.ensure_running(world, random);
}

async fn within(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !is_so() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_so()
}
