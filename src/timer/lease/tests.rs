//! The lease loop with a store in memory.

use super::*;
use crate::clock::WallClock;
use crate::health::Health;
use crate::membership::Roster;
use crate::model::{Partition, SourceIdentity, WorkerEntry, WorkerId};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::store::memory::MemoryStore;
use tokio_util::sync::CancellationToken;

const LENGTH: Duration = Duration::from_secs(5);
const SHARDS: i32 = 4;

/// The lease loop of the only worker, with its store. No shard is stored.
struct Subject {
    lease_loop: LeaseLoop,
    store: MemoryStore,
    /// Keep the channels open.
    _other_ends: Box<dyn std::any::Any>,
}

impl Subject {
    fn new() -> Self {
        let now = Instant::now();
        let mut roster = Roster::new(WorkerId::of_name("a"), now);
        let shard = |index| {
            let shard = ShardId::new("r", Partition::new("in", index));
            (shard, SourceIdentity::new(None, None))
        };
        roster.add_shards((0..SHARDS).map(shard).collect(), true, now);
        roster.update_workers([WorkerEntry::for_test("a")], now);
        let session = LeaseToken::for_test(7).session;
        roster.set_sessions(Some(session), [session]);
        let (view_sender, view) = watch::channel(Arc::new(roster.view().clone()));
        let (events, event_receiver) = mpsc::channel(1_000);
        let (result_sender, release_results) = mpsc::channel(1);
        let store = MemoryStore::new(Rc::new(WallClock));
        let lease_keeper = LeaseKeeper {
            routes: Vec::new(),
            view,
            session_clock: SessionClock::default(),
            store: Rc::new(store.clone()),
            clock: Rc::new(WallClock),
            lease_health: Health::new().register("leases"),
            lease_length: LENGTH,
            metric: metric::TimerMetrics::new(),
            events,
            release_results,
        };
        let signals = ShutdownSignals {
            stop: CancellationToken::new(),
            give_up: CancellationToken::new(),
            timers_done: CancellationToken::new(),
            finish: CancellationToken::new(),
        };
        Self {
            lease_loop: LeaseLoop::new(lease_keeper, signals),
            store,
            _other_ends: Box::new((view_sender, event_receiver, result_sender)),
        }
    }

    /// Runs the loop for this time. Returns the number of its turns.
    async fn run_for(&mut self, duration: Duration) -> u128 {
        let (end, mut turns) = (Instant::now() + duration, 0);
        while Instant::now() < end {
            self.lease_loop.tick().await.unwrap();
            tokio::time::sleep_until(self.lease_loop.next_wakeup()).await;
            turns += 1;
        }
        turns
    }

    /// The leases that wait for their release.
    fn waiting(&mut self) -> usize {
        self.lease_loop.releases.take_waiting().len()
    }
}

fn block_on_paused<T>(body: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(body)
}

/// The turns of the loop and the leases that wait for their release, after an outage of the store.
fn after_outage(length: Duration) -> (u128, usize) {
    block_on_paused(async {
        let mut t = Subject::new();
        t.store.set_down(true);
        (t.run_for(length).await, t.waiting())
    })
}

#[test]
fn a_long_outage_of_the_store_adds_the_leases_of_one_attempt() {
    let outage = Duration::from_secs(600);
    let attempts = outage.as_millis() / (LENGTH / 20).as_millis();
    let (turns, waiting) = after_outage(outage);
    assert_eq!(waiting, SHARDS as usize);
    assert!(turns <= attempts + 1, "{turns} turns");
    let fault = [InjectedFault::AcquireWithUnknownLeases];
    let (_, waiting) = fault_injection::with(fault, || after_outage(outage));
    assert!(waiting > SHARDS as usize);
}

#[test]
fn leases_that_wait_are_released_when_the_store_answers() {
    block_on_paused(async {
        let mut t = Subject::new();
        t.store.set_down(true);
        t.run_for(LENGTH).await;
        t.store.set_down(false);
        t.run_for(LENGTH).await;
        assert_eq!(t.waiting(), 0);
    });
}
