//! Simulations on streams of NATS in place of topics: sequences with gaps, readers that bring again what was read, leases of which two hold the
//! same for a while, purges, streams that are made again; and targets that pass over what they have, so that within their window nothing may
//! arrive twice, whatever happens.

use crate::model::{Offset, Partition, ShardId};
use crate::store::{ShardStore, StoreAdmin};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{DEAD, GROUP, ROUTE, SOURCE, TARGET, World};
use rand::RngExt;
use rand::rngs::StdRng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Outlasts a simulation.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// How long a stream that was made again may go unnoticed, and what waits of the old one.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(20);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// What is known of a world's streams.
#[derive(Default)]
pub(crate) struct Streams {
    /// For how long targets know what they have; zero: not at all.
    window: Cell<Duration>,
    /// How often the source was made again, and of which make the store's shards are.
    generation: Cell<u32>,
    stored_generation: Cell<u32>,
    /// What went with the source before it was stored.
    purged: RefCell<BTreeSet<String>>,
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

    /// Whether nothing may arrive twice.
    pub(crate) fn forbid_duplicates(&self) -> bool {
        self.window.get() >= LONG
    }
}

/// What happens to the source, besides readers that are made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// There is no stream.
    None,
    ReadersOnly,
    Purges,
    /// It is made again, and the store is reset.
    Recreation,
}

impl StreamFault {
    /// Kinds of faults in all.
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
                recreate_source(world, process, random).await
            }
            _ => world.remake_consumers(),
        }
    }
}

impl World {
    /// Its brokers are NATS from here on.
    pub(crate) fn on_streams(self, window: Duration) -> Self {
        self.cluster().turn_into_stream(SOURCE);
        [TARGET, DEAD]
            .iter()
            .for_each(|topic| self.cluster().set_dedup_window(topic, window));
        self.streams().window.set(window);
        self
    }

    pub(crate) fn remake_consumers(&self) {
        self.note("the consumers are made anew");
        self.cluster().recreate_consumers();
    }

    /// A process loses what it reads to others, and learns it later.
    pub(crate) fn expire_source_lease(&self, random: &mut StdRng) {
        self.note("a lease of the source runs out");
        self.cluster()
            .expire_silently(GROUP, random.random_range(0..8));
    }

    pub(crate) fn notify_expired_lease(&self) {
        self.note("its holder learns it");
        self.cluster().notify_expired();
    }

    async fn purge(&self, random: &mut StdRng) {
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

    /// What is about to go before it was stored need not arrive.
    async fn mark_purged(&self, goes: impl Fn(Offset) -> bool) {
        for record in self.cluster().records(SOURCE) {
            let shard = ShardId::new(ROUTE, Partition::new(SOURCE, record.partition));
            let state = self
                .store()
                .state(&[shard])
                .await
                .expect("the memory store answers")
                .pop()
                .flatten();
            let is_stored = state.is_some_and(|state| state.watermark.covers(record.offset));
            if goes(record.offset) && !is_stored {
                self.streams().purged.borrow_mut().insert(
                    String::from_utf8_lossy(&record.payload.unwrap_or_default()).into_owned(),
                );
            }
        }
    }
}

/// The source is made again. Whoever runs the service hears of it by what that says of itself, lets what waits be delivered, resets the store,
/// and begins anew when the targets have forgotten what they had.
async fn recreate_source(world: &World, process: &mut Process, random: &mut StdRng) {
    world.note("the source is made again");
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
        return world.report_violation("nobody noticed that the source was made again".to_owned());
    }
    if !within(DRAIN_TIMEOUT, || {
        world.balances().iter().all(|balance| balance.pending == 0)
    })
    .await
    {
        world.report_violation("what waited of the old source was not delivered".to_owned());
    }
    if !process.stop().await {
        world.report_violation("a stopping process did not end".to_owned());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fault_injection::InjectedFault;
    use crate::testing::sim::faults::single::Faults;
    use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
    use crate::testing::sim::workload::SOON;
    use crate::testing::sim::{Delivery, Outcome, Plan};

    const READ_AGAIN: Faults = Faults {
        streams: StreamFault::ReadersOnly,
        ..Faults::NONE
    };
    const ALL: Faults = Faults {
        streams: StreamFault::ReadersOnly,
        ..Faults::ALL
    };
    const PURGED: Faults = Faults {
        streams: StreamFault::Purges,
        ..Faults::STORE_KEEPS
    };
    const RENEWED: Faults = Faults {
        kills: true,
        clock_steps: true,
        streams: StreamFault::Recreation,
        ..Faults::NONE
    };

    const LENGTH: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_secs(6);

    fn run(seed: u64, faults: Faults, length: Duration) -> Outcome {
        // As short as a reset has the patience for.
        let window = if faults.streams == StreamFault::Recreation {
            Duration::from_secs(2)
        } else {
            LONG
        };
        crate::testing::sim::run(Plan {
            seed,
            length,
            faults,
            delays: SOON,
            delivery: Delivery::Streams(window),
        })
    }

    #[test]
    fn on_streams_a_seed_repeats_a_run_to_the_letter() {
        for faults in [ALL, RENEWED] {
            let (first, second) = (run(7, faults, LENGTH), run(7, faults, LENGTH));
            assert!(first.trace.len() > 50);
            assert_eq!(first, second);
        }
    }

    #[test]
    fn what_a_consumer_of_a_stream_brings_again_is_passed_over() {
        assert_promises_kept(0..10, |seed| run(seed, READ_AGAIN, LENGTH));
    }

    #[test]
    fn on_streams_nothing_is_lost_or_early_and_nothing_comes_twice_within_the_window_whatever_happens()
     {
        assert_promises_kept(1_000..1_030, |seed| run(seed, ALL, LENGTH));
        assert_promises_kept(10_000..10_250, |seed| run(seed, ALL, SHORT));
    }

    #[test]
    fn what_was_stored_of_a_stream_outlives_its_purge() {
        assert_promises_kept(2_000..2_020, |seed| run(seed, PURGED, LENGTH));
        assert_promises_kept(20_000..20_100, |seed| run(seed, PURGED, SHORT));
    }

    #[test]
    fn a_stream_that_was_made_again_is_noticed_and_read_from_its_start_after_a_reset() {
        let seeds = 3_000..3_030;
        assert!(seeds.clone().any(|seed| {
            run(seed, RENEWED, LENGTH)
                .trace
                .iter()
                .any(|line| line.what == "the store is reset")
        }));
        assert_promises_kept(seeds, |seed| run(seed, RENEWED, LENGTH));
    }

    #[test]
    fn every_fault_planted_in_the_ways_of_streams_is_caught() {
        let planted = [
            (InjectedFault::StoreRereadRecords, READ_AGAIN),
            (InjectedFault::SendWithoutMessageId, ALL),
            (InjectedFault::IgnoreSourceRecreation, RENEWED),
            (InjectedFault::UseOldCommitAfterRecreation, RENEWED),
        ];
        let is_caught = |mutant, faults| {
            breaks_promises(&[mutant], 4_000..4_100, |seed| run(seed, faults, LENGTH))
        };
        let missed: Vec<_> = planted
            .into_iter()
            .filter(|(mutant, faults)| !is_caught(*mutant, *faults))
            .collect();
        assert_eq!(missed, []);
    }
}
