//! Events, results and lease clocks between the lease keeper and the dispatcher.

use crate::clock::Clock;
use crate::model::{Lease, Progress, ShardId, Timestamp};
use crate::store::StoredShard;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) enum LeaseEvent {
    /// The number of shards of each route, whichever worker owns them.
    ShardsCounted(BTreeMap<Arc<str>, usize>),
    Granted(Box<Grant>),
    /// These shards are assigned to this worker, but another worker still holds them.
    Contested(Vec<ShardId>),
    /// The shard is assigned to another worker: finish the claimed messages.
    HandOver(ShardId),
    /// Another worker holds the lease, or the store lost it: stop the shard at once.
    Lost(ShardId),
}

/// A new lease, and the position at which delivery starts.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) lease: Lease,
    pub(crate) clock: LeaseClock,
    pub(crate) state: StoredShard,
    /// The greatest pair that is known to be delivered.
    pub(crate) start: Progress,
}

/// The dispatcher's report on a shard that it had to hand over or stop.
#[derive(Debug)]
pub(crate) enum ReleaseResult {
    /// The shard has stopped, with this pair delivered.
    Ended { shard: ShardId, delivered: Progress },
    /// In-flight messages were not acknowledged in time. The shard stays on this worker for now.
    Postponed(ShardId),
}

/// Until when a lease certainly holds, and what time it is at the store, both by this process's own
/// monotonic clock. The lease keeper records the answers of the store, the dispatcher reads them.
///
/// A process that was frozen, paused or cut off from the store stops delivering at the end of its
/// lease, because another worker may hold the shard.
#[derive(Clone, Debug)]
pub(crate) struct LeaseClock(Rc<LeaseTimes>);

#[derive(Debug)]
struct LeaseTimes {
    clock: Rc<dyn Clock>,
    length: Duration,
    /// When the last granted call was sent. The store starts the lease when it handles the call,
    /// which is never earlier.
    asked: Cell<Instant>,
    store: Cell<StoreTime>,
}

/// The time at the store in an answer, and when the answer arrived. It is at least as late there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreTime {
    pub(crate) time: Timestamp,
    pub(crate) answered: Instant,
}

impl StoreTime {
    pub(crate) fn just_answered(time: Timestamp) -> Self {
        let answered = Instant::now();
        Self { time, answered }
    }
}

impl LeaseClock {
    /// `asked` is the time at which the call was sent, `store` comes from its answer.
    pub(crate) fn new(
        clock: Rc<dyn Clock>,
        length: Duration,
        asked: Instant,
        store: StoreTime,
    ) -> Self {
        Self(Rc::new(LeaseTimes {
            clock,
            length,
            asked: Cell::new(asked),
            store: Cell::new(store),
        }))
    }

    /// The lease was renewed by a call that was sent at `asked`.
    pub(crate) fn renew(&self, asked: Instant, store: StoreTime) {
        self.0.asked.set(asked);
        self.0.store.set(store);
    }

    /// The lease may have ended. After a step of the machine's clock only a new renewal proves it:
    /// the machine may have been paused, and its monotonic clock with it.
    pub(crate) fn has_expired(&self, now: Instant) -> bool {
        let asked = self.0.asked.get();
        let step = self.0.clock.last_step();
        let pause = step.filter(|step| asked < *step && !fault!(IgnoreMachinePause));
        let has_ended = asked + self.0.length <= now && !fault!(IgnoreLeaseExpiry);
        has_ended || pause.is_some()
    }

    /// A claim was refused, so the estimate of the store's time was wrong.
    pub(crate) fn set_store_time(&self, store: StoreTime) {
        self.0.store.set(store);
    }

    /// The least time that it can be at the store now, unless the store's clock was set back.
    pub(crate) fn store_time(&self, now: Instant) -> Timestamp {
        let StoreTime { time, answered } = self.0.store.get();
        time.plus(now - answered)
    }
}

#[cfg(test)]
impl LeaseClock {
    /// A lease of one hour. The store accepts every claim.
    pub(crate) fn for_test(now: Instant) -> Self {
        let store = StoreTime {
            time: Timestamp::MAX,
            answered: now,
        };
        let clock = Rc::new(crate::clock::WallClock);
        Self::new(clock, Duration::from_secs(3_600), now, store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fault_injection::{self, InjectedFault};

    const LENGTH: Duration = Duration::from_secs(5);

    #[derive(Debug)]
    struct SteppedClock(Cell<Option<Instant>>);

    impl Clock for SteppedClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(0)
        }

        fn last_step(&self) -> Option<Instant> {
            self.0.get()
        }
    }

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    fn store(time: i64, answered: Instant) -> StoreTime {
        let time = Timestamp::from_millis(time);
        StoreTime { time, answered }
    }

    #[test]
    fn a_lease_may_have_ended_after_a_pause_of_the_machine_until_it_is_renewed() {
        let start = Instant::now();
        let clock = Rc::new(SteppedClock(Cell::new(None)));
        let lease = LeaseClock::new(clock.clone(), LENGTH, start, store(0, start));
        assert!(!lease.has_expired(after(start, 4_999)));
        assert!(lease.has_expired(after(start, 5_000)));
        clock.0.set(Some(after(start, 1_000)));
        assert!(lease.has_expired(after(start, 1_000)), "paused");
        let ignores = [InjectedFault::IgnoreMachinePause];
        let is_trusted = || !lease.has_expired(after(start, 1_000));
        assert!(fault_injection::with(ignores, is_trusted));
        lease.renew(after(start, 999), store(0, after(start, 1_001)));
        assert!(
            lease.has_expired(after(start, 1_001)),
            "asked before the pause"
        );
        lease.renew(after(start, 1_001), store(0, after(start, 1_002)));
        assert!(!lease.has_expired(after(start, 6_000)));
        assert!(lease.has_expired(after(start, 6_001)));
    }

    #[test]
    fn the_time_at_the_store_counts_from_its_last_answer() {
        let start = Instant::now();
        let clock = Rc::new(SteppedClock(Cell::new(None)));
        let lease = LeaseClock::new(clock, LENGTH, start, store(7_000, after(start, 10)));
        assert_eq!(lease.store_time(after(start, 510)).as_millis(), 7_500);
        lease.set_store_time(store(100, after(start, 600)));
        assert_eq!(lease.store_time(after(start, 700)).as_millis(), 200);
    }
}
