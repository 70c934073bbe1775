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
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What a part says of itself before it has said anything.
const STARTING: &str = "starting";

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
    note: Mutex<Option<Note>>,
}

/// What is amiss, though the part is ready.
#[derive(Debug)]
struct Note {
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
    pub(crate) fn part(&self, name: impl Into<String>) -> Part {
        let state = State {
            beat: AtomicU64::new(0),
            reason: Mutex::new(Some(STARTING.to_owned())),
            note: Mutex::default(),
        };
        let (name, state) = (name.into(), Arc::new(state));
        locked(&self.0.parts).insert(name.clone(), state.clone());
        Part {
            name,
            registry: self.0.clone(),
            state,
        }
    }

    /// Why the process is not ready; empty if it is. A process without parts is still starting.
    pub(crate) fn not_ready(&self) -> Vec<Complaint> {
        let parts = locked(&self.0.parts);
        if parts.is_empty() {
            return vec![Complaint {
                part: "process".to_owned(),
                reason: "starting".to_owned(),
            }];
        }
        let complaint = |(part, state): (&String, &Arc<State>)| {
            locked(&state.reason).as_ref().map(|reason| Complaint {
                part: part.clone(),
                reason: reason.clone(),
            })
        };
        parts.iter().filter_map(complaint).collect()
    }

    /// What is amiss though the process is ready.
    pub(crate) fn degraded(&self) -> Vec<Complaint> {
        let now = Instant::now();
        let complaint = |(part, state): (&String, &Arc<State>)| {
            let note = locked(&state.note);
            let note = note.as_ref().filter(|note| note.until > now)?;
            Some(Complaint {
                part: part.clone(),
                reason: note.text.clone(),
            })
        };
        locked(&self.0.parts).iter().filter_map(complaint).collect()
    }

    /// The parts that hang.
    pub(crate) fn not_alive(&self) -> Vec<Complaint> {
        let now = self.0.millis();
        let silent = |state: &State| match state.beat.load(Ordering::Relaxed) {
            0 => None,
            beat => Some(Duration::from_millis(now.saturating_sub(beat)))
                .filter(|silence| *silence > SILENCE_MAX),
        };
        let parts = locked(&self.0.parts);
        let complaint = |(part, state): (&String, &Arc<State>)| {
            let reason = format!("has not moved for {}s", silent(state)?.as_secs());
            Some(Complaint {
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
pub(crate) struct Part {
    name: String,
    registry: Arc<Registry>,
    state: Arc<State>,
}

impl Part {
    pub(crate) fn ready(&self) {
        let before = locked(&self.state.reason).take();
        if let Some(reason) = before.filter(|reason| reason != STARTING) {
            tracing::info!(part = self.name, "ready again, after: {reason}");
        }
    }

    /// `reason` is for a person: what is not there, and what to do.
    pub(crate) fn not_ready(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let mut standing = locked(&self.state.reason);
        if standing.as_ref().is_none_or(|before| before == STARTING) {
            tracing::warn!(part = self.name, "not ready: {reason}");
        }
        *standing = Some(reason);
    }

    /// Notes what is amiss beyond the part, until it is noted anew or the instant has come. Who notes it logs it.
    pub(crate) fn note(&self, text: impl Into<String>, until: Instant) {
        *locked(&self.state.note) = Some(Note {
            text: text.into(),
            until,
        });
    }

    /// Nothing is amiss any more.
    pub(crate) fn clear_note(&self) {
        *locked(&self.state.note) = None;
    }

    /// The part has done all it had to do: nothing more is expected of it.
    pub(crate) fn retire(self) {
        self.registry.forget(&self.state);
    }

    /// Shows that the part's loop goes round. From the first beat on it must go on beating.
    pub(crate) fn beat(&self) {
        self.state
            .beat
            .store(self.registry.millis(), Ordering::Relaxed);
    }
}

impl Registry {
    fn forget(&self, state: &Arc<State>) {
        locked(&self.parts).retain(|_, part| !Arc::ptr_eq(part, state));
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.state.beat.store(0, Ordering::Relaxed);
        *locked(&self.state.reason) = Some("ended".to_owned());
        self.clear_note();
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
        Complaint {
            part: part.to_owned(),
            reason: reason.to_owned(),
        }
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
        let part = health.part("outlets");
        part.ready();
        part.note(
            "a topic is missing",
            Instant::now() + Duration::from_secs(10),
        );
        assert_eq!(
            (health.not_ready(), health.degraded()),
            (Vec::new(), vec![complaint("outlets", "a topic is missing")])
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(health.degraded(), []);
        part.note("another one", Instant::now() + Duration::from_secs(10));
        part.clear_note();
        assert_eq!(health.degraded(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_ceases_to_beat_hangs() {
        let health = Health::new();
        let (beats, never) = (health.part("timer"), health.part("idle"));
        tokio::time::advance(SILENCE_MAX * 2).await;
        assert_eq!(
            health.not_alive(),
            [],
            "who has not begun to beat is not waited for"
        );
        beats.beat();
        tokio::time::advance(SILENCE_MAX).await;
        assert_eq!(health.not_alive(), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(
            health.not_alive(),
            [complaint("timer", "has not moved for 61s")]
        );
        beats.beat();
        assert_eq!(health.not_alive(), []);
        drop((beats, never));
        tokio::time::advance(SILENCE_MAX * 2).await;
        assert_eq!(health.not_alive(), [], "who has ended is not waited for");
    }
}
