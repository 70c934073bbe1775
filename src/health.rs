//! Health: what the parts of the process say of themselves. A part sets itself ready or not, with a reason, and shows that it lives by
//! beating; nothing here judges from outside. `admin` answers with it. A change is logged here, once, so that no part logs the same trouble
//! in a loop. A part that is ready may still note that something beyond it is amiss: others' work goes on, so the process is ready.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A loop that has beaten once and then not for so long hangs. Loops beat many times a second; the longest calls they wait for have
/// timeouts well below this.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);

/// What a part says of itself before it has said anything.
const STARTING: &str = "starting";

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct HealthProblem {
    pub(crate) part: String,
    pub(crate) reason: String,
}

/// The registry of a process' parts. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<Registry>);

#[derive(Debug)]
struct Registry {
    started: Instant,
    parts: Mutex<BTreeMap<String, Arc<State>>>,
}

#[derive(Debug)]
struct State {
    /// Milliseconds from the registry's start to the last beat, plus one; 0: never.
    last_heartbeat: AtomicU64,
    /// `None`: ready.
    reason: Mutex<Option<String>>,
    degradation: Mutex<Option<Degradation>>,
}

/// What is amiss, though the part is ready.
#[derive(Debug)]
struct Degradation {
    text: String,
    until: Instant,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Registry {
            started: Instant::now(),
            parts: Mutex::default(),
        }))
    }

    /// Registers a part that is not ready yet. A name used again takes the earlier part's place.
    pub(crate) fn register(&self, name: impl Into<String>) -> HealthPart {
        let state = State {
            last_heartbeat: AtomicU64::new(0),
            reason: Mutex::new(Some(STARTING.to_owned())),
            degradation: Mutex::default(),
        };
        let (name, state) = (name.into(), Arc::new(state));
        lock(&self.0.parts).insert(name.clone(), state.clone());
        HealthPart {
            name,
            registry: self.0.clone(),
            state,
        }
    }

    /// Why the process is not ready; empty if it is. A process without parts is still starting.
    pub(crate) fn not_ready(&self) -> Vec<HealthProblem> {
        let parts = lock(&self.0.parts);
        if parts.is_empty() {
            return vec![HealthProblem {
                part: "process".to_owned(),
                reason: "starting".to_owned(),
            }];
        }
        let complaint = |(part, state): (&String, &Arc<State>)| {
            lock(&state.reason).as_ref().map(|reason| HealthProblem {
                part: part.clone(),
                reason: reason.clone(),
            })
        };
        parts.iter().filter_map(complaint).collect()
    }

    /// What is amiss though the process is ready.
    pub(crate) fn degraded(&self) -> Vec<HealthProblem> {
        let now = Instant::now();
        let complaint = |(part, state): (&String, &Arc<State>)| {
            let note = lock(&state.degradation);
            let note = note.as_ref().filter(|note| note.until > now)?;
            Some(HealthProblem {
                part: part.clone(),
                reason: note.text.clone(),
            })
        };
        lock(&self.0.parts).iter().filter_map(complaint).collect()
    }

    /// The parts that hang.
    pub(crate) fn not_alive(&self) -> Vec<HealthProblem> {
        let now = self.0.millis();
        let silent = |state: &State| match state.last_heartbeat.load(Ordering::Relaxed) {
            0 => None,
            beat => Some(Duration::from_millis(now.saturating_sub(beat)))
                .filter(|silence| *silence > HEARTBEAT_TIMEOUT),
        };
        let parts = lock(&self.0.parts);
        let complaint = |(part, state): (&String, &Arc<State>)| {
            let reason = format!("has not moved for {}s", silent(state)?.as_secs());
            Some(HealthProblem {
                part: part.clone(),
                reason,
            })
        };
        parts.iter().filter_map(complaint).collect()
    }
}

impl Registry {
    /// Never 0.
    fn millis(&self) -> u64 {
        1 + u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

/// What one part says of itself. When it is dropped the part is no longer waited for to beat, and is not ready.
#[derive(Debug)]
pub(crate) struct HealthPart {
    name: String,
    registry: Arc<Registry>,
    state: Arc<State>,
}

impl HealthPart {
    pub(crate) fn set_ready(&self) {
        let before = lock(&self.state.reason).take();
        if let Some(reason) = before.filter(|reason| reason != STARTING) {
            tracing::info!(part = self.name, "ready again, after: {reason}");
        }
    }

    /// `reason` is for a person: what is not there, and what to do.
    pub(crate) fn set_not_ready(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let mut standing = lock(&self.state.reason);
        if standing.as_ref().is_none_or(|before| before == STARTING) {
            tracing::warn!(part = self.name, "not ready: {reason}");
        }
        *standing = Some(reason);
    }

    /// Notes what is amiss beyond the part, until it is noted anew or the instant has come. Who notes it logs it.
    pub(crate) fn set_degraded(&self, text: impl Into<String>, until: Instant) {
        *lock(&self.state.degradation) = Some(Degradation {
            text: text.into(),
            until,
        });
    }

    /// Nothing is amiss any more.
    pub(crate) fn clear_degraded(&self) {
        *lock(&self.state.degradation) = None;
    }

    /// The part has done all it had to do: nothing more is expected of it.
    pub(crate) fn unregister(self) {
        self.registry.forget(&self.state);
    }

    /// Shows that the part's loop goes round. From the first beat on it must go on beating.
    pub(crate) fn heartbeat(&self) {
        self.state
            .last_heartbeat
            .store(self.registry.millis(), Ordering::Relaxed);
    }
}

impl Registry {
    fn forget(&self, state: &Arc<State>) {
        lock(&self.parts).retain(|_, part| !Arc::ptr_eq(part, state));
    }
}

impl Drop for HealthPart {
    fn drop(&mut self) {
        self.state.last_heartbeat.store(0, Ordering::Relaxed);
        *lock(&self.state.reason) = Some("ended".to_owned());
        self.clear_degraded();
    }
}

/// The state is whole after each step, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(part: &str, reason: &str) -> HealthProblem {
        HealthProblem {
            part: part.to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn ready_means_that_every_part_is() {
        let health = Health::new();
        assert_eq!(health.not_ready(), [complaint("process", "starting")]);
        let (store, broker) = (health.register("store"), health.register("broker"));
        store.set_ready();
        assert_eq!(health.not_ready(), [complaint("broker", "starting")]);
        broker.set_ready();
        assert_eq!(health.not_ready(), []);
        store.set_not_ready("does not answer");
        assert_eq!(health.not_ready(), [complaint("store", "does not answer")]);
        drop(broker);
        assert_eq!(
            health.not_ready(),
            [
                complaint("broker", "ended"),
                complaint("store", "does not answer")
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_note_leaves_the_part_ready_and_goes_with_its_time() {
        let health = Health::new();
        let part = health.register("outlets");
        part.set_ready();
        part.set_degraded(
            "a topic is missing",
            Instant::now() + Duration::from_secs(10),
        );
        assert_eq!(
            (health.not_ready(), health.degraded()),
            (Vec::new(), vec![complaint("outlets", "a topic is missing")])
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(health.degraded(), []);
        part.set_degraded("another one", Instant::now() + Duration::from_secs(10));
        part.clear_degraded();
        assert_eq!(health.degraded(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_ceases_to_beat_hangs() {
        let health = Health::new();
        let (beats, never) = (health.register("timer"), health.register("idle"));
        tokio::time::advance(HEARTBEAT_TIMEOUT * 2).await;
        assert_eq!(
            health.not_alive(),
            [],
            "who has not begun to beat is not waited for"
        );
        beats.heartbeat();
        tokio::time::advance(HEARTBEAT_TIMEOUT).await;
        assert_eq!(health.not_alive(), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(
            health.not_alive(),
            [complaint("timer", "has not moved for 61s")]
        );
        beats.heartbeat();
        assert_eq!(health.not_alive(), []);
        drop((beats, never));
        tokio::time::advance(HEARTBEAT_TIMEOUT * 2).await;
        assert_eq!(health.not_alive(), [], "who has ended is not waited for");
    }
}
