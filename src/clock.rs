//! The time of day as a port. Waiting uses tokio's time; only this port reads the time of day.

use crate::limit::{CLOCK_STEP_HOLD, CLOCK_STEP_MIN};
use crate::metric;
use crate::model::Timestamp;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Reads the time of day. It may jump back or forward between two calls.
pub(crate) trait Clock: Debug {
    fn now(&self) -> Timestamp;

    /// When a step forward of the machine's clock was noticed last. The machine may have been
    /// paused before this time, so earlier measurements by the monotonic clock are too short.
    fn last_step(&self) -> Option<Instant> {
        None
    }
}

/// The clock of the machine. Long-running processes use [`SteadyClock`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WallClock;

impl Clock for WallClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the machine's clock"
    )]
    fn now(&self) -> Timestamp {
        let now = SystemTime::now();
        let millis = match now.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        };
        Timestamp::from_millis(millis)
    }
}

/// The clock of a process: the machine's clock without short steps forward. Clones share its state.
///
/// A cursor never moves back. If the clock is far ahead for a moment, a claim moves the cursor ahead
/// too, and later messages that are due before it wait for each other. So a step forward is
/// followed only after it has lasted for [`CLOCK_STEP_HOLD`]. A step back is followed at once,
/// because no message may be early (G1).
#[derive(Clone, Debug)]
pub(crate) struct SteadyClock<C>(Arc<SteadyClockState<C>>);

#[derive(Debug)]
struct SteadyClockState<C> {
    machine: C,
    start: Instant,
    filter: Mutex<StepFilter>,
    /// Nanoseconds from `start` to the last step forward; 0: there was none.
    last_step: AtomicU64,
    steps: metric::Counter,
}

impl<C: Clock> SteadyClock<C> {
    pub(crate) fn new(machine: C) -> Self {
        let filter = StepFilter::new(machine.now().as_millis());
        Self(Arc::new(SteadyClockState {
            machine,
            start: Instant::now(),
            filter: Mutex::new(filter),
            last_step: AtomicU64::new(0),
            steps: metric::clock_steps(),
        }))
    }
}

impl<C: Clock> Clock for SteadyClock<C> {
    fn now(&self) -> Timestamp {
        let state = &*self.0;
        // In this order, a pause between the two reads looks like a step forward that ends at once.
        let elapsed = state.start.elapsed();
        let machine = state.machine.now().as_millis();
        let mut filter = state.filter.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, step) = filter.read(millis(elapsed), machine);
        drop(filter);
        if let Some(step) = step {
            let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(1);
            state.last_step.store(nanos, Ordering::Relaxed);
            state.steps.increment(1);
            tracing::warn!(
                step_ms = step,
                follow_after = ?CLOCK_STEP_HOLD,
                "the machine's clock jumped forward, or the machine was paused: Postdate follows \
                 the clock if the jump lasts; check the time synchronisation (`chronyc tracking`)"
            );
        }
        Timestamp::from_millis(now)
    }

    fn last_step(&self) -> Option<Instant> {
        let nanos = self.0.last_step.load(Ordering::Relaxed);
        (nanos > 0).then(|| self.0.start + Duration::from_nanos(nanos))
    }
}

/// Decides which steps of the machine's clock to follow. Pure; all times are in milliseconds.
#[derive(Clone, Copy, Debug)]
struct StepFilter {
    /// The time of day minus the monotonic time, as far as it is believed.
    believed: i64,
    /// The same at the last read, by the machine's clock.
    seen: i64,
    held: Option<HeldStep>,
}

/// A step forward that is not followed yet.
#[derive(Clone, Copy, Debug)]
struct HeldStep {
    since: i64,
    /// The least offset since then.
    least: i64,
}

impl StepFilter {
    /// Believes this first time of day, at the monotonic time 0.
    fn new(machine: i64) -> Self {
        Self {
            believed: machine,
            seen: machine,
            held: None,
        }
    }

    /// Returns the time to use, and the length of a step forward since the last read.
    fn read(&mut self, monotonic: i64, machine: i64) -> (i64, Option<i64>) {
        let offset = machine - monotonic;
        let step = offset - self.seen;
        self.seen = offset;
        if let Some(held) = &mut self.held {
            held.least = held.least.min(offset);
            if monotonic - held.since >= millis(CLOCK_STEP_HOLD) {
                self.believed = held.least;
                self.held = None;
            }
        }
        if offset - self.believed <= millis(CLOCK_STEP_MIN) || fault!(FollowClockStepsAtOnce) {
            self.believed = offset;
            self.held = None;
        } else {
            self.held.get_or_insert(HeldStep {
                since: monotonic,
                least: offset,
            });
        }
        let is_step = step > millis(CLOCK_STEP_MIN);
        (monotonic + self.believed, is_step.then_some(step))
    }
}

fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// The monotonic time plus an offset that the test changes.
    #[derive(Debug)]
    struct MachineClock {
        start: Instant,
        offset: Cell<i64>,
    }

    impl Clock for Rc<MachineClock> {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(millis(self.start.elapsed()) + self.offset.get())
        }
    }

    const START: i64 = 1_000_000;

    fn clocks() -> (Rc<MachineClock>, SteadyClock<Rc<MachineClock>>) {
        let machine = Rc::new(MachineClock {
            start: Instant::now(),
            offset: Cell::new(START),
        });
        (machine.clone(), SteadyClock::new(machine))
    }

    /// The time minus the time of a clock that was never stepped.
    fn ahead(clock: &impl Clock, machine: &MachineClock) -> i64 {
        clock.now().as_millis() - START - millis(machine.start.elapsed())
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_jumps_forward_and_back_is_not_followed() {
        let (machine, clock) = clocks();
        machine.offset.set(START + 60_000);
        for _ in 0..29 {
            assert_eq!(ahead(&clock, &machine), 0);
            pass(1).await;
        }
        machine.offset.set(START);
        assert_eq!(ahead(&clock, &machine), 0);
        machine.offset.set(START + 60_000);
        pass(2).await;
        assert_eq!(
            ahead(&clock, &machine),
            0,
            "the time counts from the last step"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_forward_that_lasts_is_followed() {
        let (machine, clock) = clocks();
        machine.offset.set(START + 3_600_000);
        assert_eq!(ahead(&clock, &machine), 0);
        pass(29).await;
        assert_eq!(ahead(&clock, &machine), 0);
        pass(1).await;
        assert_eq!(ahead(&clock, &machine), 3_600_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_back_and_a_small_step_are_followed_at_once() {
        let (machine, clock) = clocks();
        for offset in [1_000, -60_000, -59_500, -58_500, -3_600_000] {
            machine.offset.set(START + offset);
            assert_eq!(ahead(&clock, &machine), offset);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_forward_is_reported_with_its_time() {
        let (machine, clock) = clocks();
        pass(5).await;
        clock.now();
        assert_eq!(clock.last_step(), None);
        for offset in [2_000, 90_000] {
            pass(1).await;
            machine.offset.set(START + offset);
            clock.now();
            assert_eq!(clock.last_step(), Some(Instant::now()), "{offset}");
        }
        let last = clock.last_step();
        pass(40).await;
        clock.now();
        machine.offset.set(START);
        clock.now();
        assert_eq!(
            clock.last_step(),
            last,
            "neither following nor a step back counts"
        );
    }

    proptest! {
        /// The clock is read once a second, and stepped between some reads.
        #[test]
        fn a_step_is_followed_after_the_hold_and_within_twice_the_hold(
            steps in prop::collection::vec((1_usize..50, -50_i64..50), 1..12),
        ) {
            let hold = CLOCK_STEP_HOLD.as_secs() as usize;
            let mut offsets = Vec::new();
            let mut offset = START;
            for (seconds, step) in steps {
                offset += 2_000 * step;
                offsets.extend(vec![offset; seconds]);
            }
            let mut filter = StepFilter::new(offsets[0]);
            for (second, offset) in offsets.iter().enumerate() {
                let monotonic = 1_000 * second as i64;
                let (now, _) = filter.read(monotonic, monotonic + offset);
                let least = |seconds: usize| {
                    offsets[second.saturating_sub(seconds)..=second].iter().min().copied()
                };
                prop_assert!(Some(now - monotonic) >= least(2 * hold));
                prop_assert!(Some(now - monotonic) <= least(hold));
            }
        }
    }
}
