//! Until when the session of this worker certainly lasts, by its own monotonic clock.

use super::silence_max;
use crate::clock::Clock;
use crate::model::{SessionId, Timestamp};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The time of the store in an answer, and when the answer arrived. The store's clock shows at least
/// this time since then.
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

/// The last heartbeat that the store has recorded. The membership loop writes it, and the timer and
/// the ingress read it. Clones share it.
///
/// A process that was frozen, paused or cut off from the store stops delivering at the end of its
/// session, because other workers may take its shards.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionClock(Arc<Mutex<Option<Beat>>>);

#[derive(Clone, Copy, Debug)]
struct Beat {
    session: SessionId,
    /// When the first heartbeat of the session was sent.
    began: Instant,
    /// When the heartbeat was sent. The session lasts from its arrival, which is never earlier.
    asked: Instant,
    length: Duration,
    store: StoreTime,
    /// A later heartbeat has failed.
    next_has_failed: bool,
}

impl SessionClock {
    /// The store has recorded a heartbeat.
    pub(crate) fn renew(
        &self,
        session: SessionId,
        asked: Instant,
        length: Duration,
        store: StoreTime,
    ) {
        let mut beat = self.lock();
        let earlier = beat.filter(|beat| beat.session == session);
        let began = earlier.map_or(asked, |beat| beat.began);
        *beat = Some(Beat {
            session,
            began,
            asked,
            length,
            store,
            next_has_failed: false,
        });
    }

    /// A heartbeat had no effect, or no answer. Its process may have lost its connections, and then
    /// others end the session early.
    pub(crate) fn on_failed_heartbeat(&self) {
        if let Some(beat) = &mut *self.lock() {
            beat.next_has_failed = true;
        }
    }

    /// The session has had no heartbeat for its length, or it is not the current one. After a step of
    /// the machine's clock only a new heartbeat proves it: the machine may have been paused, and its
    /// monotonic clock with it.
    pub(crate) fn is_over(&self, session: SessionId, now: Instant, clock: &dyn Clock) -> bool {
        self.is_over_after(|beat| beat.length, session, now, clock)
    }

    /// Another worker may have ended the session: it is over, or a heartbeat has failed and the next
    /// one is missing.
    pub(crate) fn may_be_over(&self, session: SessionId, now: Instant, clock: &dyn Clock) -> bool {
        let length = |beat: &Beat| match beat.next_has_failed && !fault!(IgnoreFailedHeartbeat) {
            true => silence_max(beat.length),
            false => beat.length,
        };
        self.is_over_after(length, session, now, clock)
    }

    fn is_over_after(
        &self,
        length: impl Fn(&Beat) -> Duration,
        session: SessionId,
        now: Instant,
        clock: &dyn Clock,
    ) -> bool {
        let Some(beat) = self.lock().filter(|beat| beat.session == session) else {
            return !fault!(IgnoreLeaseExpiry);
        };
        let step = clock.last_step();
        let pause = step.filter(|step| beat.asked < *step && !fault!(IgnoreMachinePause));
        let has_ended = beat.asked + length(&beat) <= now && !fault!(IgnoreLeaseExpiry);
        has_ended || pause.is_some()
    }

    /// The session is older than its length. The store refuses a session whose last heartbeat it has
    /// lost, so since then it has not gone back by more than an interval of heartbeats. A failed
    /// heartbeat leaves that open.
    pub(crate) fn is_settled(&self, now: Instant) -> bool {
        let settled = |beat: Beat| {
            let lasts = now < beat.asked + beat.length && !beat.next_has_failed;
            lasts && beat.began + beat.length <= now
        };
        self.lock().is_some_and(settled)
    }

    /// When the session is old enough to be settled. `None`: there is none.
    pub(crate) fn settles_at(&self) -> Option<Instant> {
        self.lock().map(|beat| beat.began + beat.length)
    }

    /// A heartbeat that was sent at `at` or later is answered, so the assignment is newer.
    pub(crate) fn is_renewed_since(&self, at: Instant) -> bool {
        self.lock().is_some_and(|beat| beat.asked >= at)
    }

    /// A claim was refused, so the estimate of the store's time was wrong.
    pub(crate) fn set_store_time(&self, store: StoreTime) {
        if let Some(beat) = &mut *self.lock() {
            beat.store = store;
        }
    }

    /// The least time that it can be at the store now, unless the store's clock was set back.
    pub(crate) fn store_time(&self, now: Instant) -> Timestamp {
        let store = self.lock().map(|beat| beat.store);
        store.map_or(Timestamp::AT_ONCE, |store| {
            store.time.plus(now - store.answered)
        })
    }

    /// Ignores poisoning: each value is consistent after every statement.
    fn lock(&self) -> MutexGuard<'_, Option<Beat>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WorkerId;
    use crate::testing::fault_injection::{self, InjectedFault};
    use std::cell::Cell;

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

    fn session(number: u64) -> SessionId {
        let worker = WorkerId(1);
        SessionId { worker, number }
    }

    #[test]
    fn a_session_may_be_over_after_a_pause_of_the_machine_until_it_is_renewed() {
        let start = Instant::now();
        let machine = SteppedClock(Cell::new(None));
        let clock = SessionClock::default();
        let is_over = |millis| clock.is_over(session(1), after(start, millis), &machine);
        assert!(is_over(0), "it has not begun");
        clock.renew(session(1), start, LENGTH, store(0, start));
        assert!(!is_over(4_999));
        assert!(is_over(5_000));
        machine.0.set(Some(after(start, 1_000)));
        assert!(is_over(1_000), "paused");
        let ignores = [InjectedFault::IgnoreMachinePause];
        assert!(fault_injection::with(ignores, || !is_over(1_000)));
        let renew = |asked| clock.renew(session(1), after(start, asked), LENGTH, store(0, start));
        renew(999);
        assert!(is_over(1_001), "asked before the pause");
        renew(1_001);
        assert!(!is_over(6_000));
        assert!(is_over(6_001));
        clock.renew(session(2), after(start, 1_001), LENGTH, store(0, start));
        assert!(is_over(1_002), "another session has begun");
    }

    #[test]
    fn after_a_failed_heartbeat_a_session_may_be_over_as_soon_as_the_next_one_is_missing() {
        let start = Instant::now();
        let machine = SteppedClock(Cell::new(None));
        let clock = SessionClock::default();
        clock.renew(session(1), start, LENGTH, store(0, start));
        let may_be_over = |millis| clock.may_be_over(session(1), after(start, millis), &machine);
        assert!(!may_be_over(4_999) && may_be_over(5_000));
        clock.on_failed_heartbeat();
        assert!(!may_be_over(749) && may_be_over(750));
        assert!(!clock.is_over(session(1), after(start, 750), &machine));
        let ignores = [InjectedFault::IgnoreFailedHeartbeat];
        assert!(fault_injection::with(ignores, || !may_be_over(750)));
        let answered = after(start, 1_000);
        clock.renew(session(1), answered, LENGTH, store(0, answered));
        assert!(!may_be_over(5_999), "it was answered");
    }

    #[test]
    fn a_session_is_settled_from_the_end_of_its_first_length_until_it_may_be_over() {
        let start = Instant::now();
        let clock = SessionClock::default();
        let is_settled = |millis| clock.is_settled(after(start, millis));
        let renew = |number, asked| {
            clock.renew(
                session(number),
                after(start, asked),
                LENGTH,
                store(0, start),
            );
        };
        assert!(!is_settled(10_000), "it has not begun");
        renew(1, 0);
        renew(1, 4_500);
        assert!(!is_settled(4_999));
        assert!(is_settled(5_000) && is_settled(9_499));
        assert!(!is_settled(9_500), "it may be over");
        clock.on_failed_heartbeat();
        assert!(!is_settled(5_000), "the store may have gone back");
        renew(1, 4_500);
        assert!(is_settled(5_000));
        assert!(clock.is_renewed_since(after(start, 4_500)));
        assert!(!clock.is_renewed_since(after(start, 4_501)));
        renew(2, 9_000);
        assert!(!is_settled(9_400), "another session has begun");
    }

    #[test]
    fn the_time_at_the_store_counts_from_its_last_answer() {
        let start = Instant::now();
        let clock = SessionClock::default();
        clock.renew(session(1), start, LENGTH, store(7_000, after(start, 10)));
        assert_eq!(clock.store_time(after(start, 510)).as_millis(), 7_500);
        clock.set_store_time(store(100, after(start, 600)));
        assert_eq!(clock.store_time(after(start, 700)).as_millis(), 200);
    }
}
