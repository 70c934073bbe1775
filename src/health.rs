//! Health: what the parts of the process say of themselves. A part sets itself ready or not, with a reason, and shows that it lives by
//! beating; nothing here judges from outside. `admin` answers with it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A loop that has beaten once and then not for so long hangs. Loops beat many times a second; the longest calls they wait for have
/// timeouts well below this.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Complaint {
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
    beat: AtomicU64,
    /// `None`: ready.
    reason: Mutex<Option<String>>,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Registry { started: Instant::now(), parts: Mutex::default() }))
    }

    /// Registers a part that is not ready yet. A name used again takes the earlier part's place.
    pub(crate) fn part(&self, name: impl Into<String>) -> Part {
        let state = Arc::new(State { beat: AtomicU64::new(0), reason: Mutex::new(Some("starting".to_owned())) });
        locked(&self.0.parts).insert(name.into(), state.clone());
        Part { registry: self.0.clone(), state }
    }

    /// Why the process is not ready; empty if it is. A process without parts is still starting.
    pub(crate) fn not_ready(&self) -> Vec<Complaint> {
        let parts = locked(&self.0.parts);
        if parts.is_empty() {
            return vec![Complaint { part: "process".to_owned(), reason: "starting".to_owned() }];
        }
        let complaint = |(part, state): (&String, &Arc<State>)| {
            locked(&state.reason).as_ref().map(|reason| Complaint { part: part.clone(), reason: reason.clone() })
        };
        parts.iter().filter_map(complaint).collect()
    }

    /// The parts that hang.
    pub(crate) fn not_alive(&self) -> Vec<Complaint> {
        let now = self.0.millis();
        let silent = |state: &State| match state.beat.load(Ordering::Relaxed) {
            0 => None,
            beat => Some(Duration::from_millis(now.saturating_sub(beat))).filter(|silence| *silence > SILENCE_MAX),
        };
        let parts = locked(&self.0.parts);
        let complaint = |(part, state): (&String, &Arc<State>)| {
            let reason = format!("has not moved for {}s", silent(state)?.as_secs());
            Some(Complaint { part: part.clone(), reason })
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
pub(crate) struct Part {
    registry: Arc<Registry>,
    state: Arc<State>,
}

impl Part {
    pub(crate) fn ready(&self) {
        *locked(&self.state.reason) = None;
    }

    /// `reason` is for a person: what is not there, and what to do.
    pub(crate) fn not_ready(&self, reason: impl Into<String>) {
        *locked(&self.state.reason) = Some(reason.into());
    }

    /// Shows that the part's loop goes round. From the first beat on it must go on beating.
    pub(crate) fn beat(&self) {
        self.state.beat.store(self.registry.millis(), Ordering::Relaxed);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.state.beat.store(0, Ordering::Relaxed);
        self.not_ready("ended");
    }
}

/// The state is whole after each step, so a panic elsewhere does not spoil it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(part: &str, reason: &str) -> Complaint {
        Complaint { part: part.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn ready_means_that_every_part_is() {
        let health = Health::new();
        assert_eq!(health.not_ready(), [complaint("process", "starting")]);
        let (store, broker) = (health.part("store"), health.part("broker"));
        store.ready();
        assert_eq!(health.not_ready(), [complaint("broker", "starting")]);
        broker.ready();
        assert_eq!(health.not_ready(), []);
        store.not_ready("does not answer");
        assert_eq!(health.not_ready(), [complaint("store", "does not answer")]);
        drop(broker);
        assert_eq!(health.not_ready(), [complaint("broker", "ended"), complaint("store", "does not answer")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_ceases_to_beat_hangs() {
        let health = Health::new();
        let (beats, never) = (health.part("timer"), health.part("idle"));
        tokio::time::advance(SILENCE_MAX * 2).await;
        assert_eq!(health.not_alive(), [], "who has not begun to beat is not waited for");
        beats.beat();
        tokio::time::advance(SILENCE_MAX).await;
        assert_eq!(health.not_alive(), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.not_alive(), [complaint("timer", "has not moved for 61s")]);
        beats.beat();
        assert_eq!(health.not_alive(), []);
        drop((beats, never));
        tokio::time::advance(SILENCE_MAX * 2).await;
        assert_eq!(health.not_alive(), [], "who has ended is not waited for");
    }
}
