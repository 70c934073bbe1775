//! Health: the readiness and liveness of each part of the process, for `/readyz` and `/healthz`.
//!
//! A part reports about itself: ready or not ready with a reason, and a heartbeat of its loop. A
//! part that is ready can also be degraded: something outside the process fails for some messages,
//! while all others are delivered. Each change of readiness is logged here once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A part that has sent a heartbeat and none since is not alive. Loops send many per second, and
/// the calls that they wait for have much shorter timeouts.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason of a part that has not reported yet.
const STARTING: &str = "starting";

/// Why a part is not ready, degraded or not alive.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct HealthProblem {
    pub(crate) part: String,
    pub(crate) reason: String,
}

/// The parts of a process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<Registry>);

#[derive(Debug)]
struct Registry {
    started: Instant,
    parts: Mutex<BTreeMap<String, Arc<State>>>,
}

#[derive(Debug)]
struct State {
    /// Milliseconds from the start of the registry to the last heartbeat, plus one. 0: none.
    last_heartbeat: AtomicU64,
    /// Why the part is not ready. `None`: it is ready.
    reason: Mutex<Option<String>>,
    degradation: Mutex<Option<Degradation>>,
}

/// Why a part is degraded, and how long this is valid.
#[derive(Debug)]
struct Degradation {
    reason: String,
    until: Instant,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Registry {
            started: Instant::now(),
            parts: Mutex::default(),
        }))
    }

    /// Registers a part, which is not ready at first. It replaces an earlier part of the same name.
    pub(crate) fn register(&self, name: impl Into<String>) -> HealthPart {
        let name = name.into();
        let state = Arc::new(State {
            last_heartbeat: AtomicU64::new(0),
            reason: Mutex::new(Some(STARTING.to_owned())),
            degradation: Mutex::default(),
        });
        lock(&self.0.parts).insert(name.clone(), state.clone());
        HealthPart {
            name,
            registry: self.0.clone(),
            state,
        }
    }

    /// Why the process is not ready. Empty: it is ready. A process without parts is not.
    pub(crate) fn not_ready(&self) -> Vec<HealthProblem> {
        if lock(&self.0.parts).is_empty() {
            return vec![HealthProblem {
                part: "process".to_owned(),
                reason: STARTING.to_owned(),
            }];
        }
        self.problems(|state| lock(&state.reason).clone())
    }

    /// The problems of degraded parts.
    pub(crate) fn degraded(&self) -> Vec<HealthProblem> {
        let now = Instant::now();
        self.problems(|state| {
            let degradation = lock(&state.degradation);
            let valid = degradation.as_ref().filter(|it| it.until > now)?;
            Some(valid.reason.clone())
        })
    }

    /// The parts that have sent no heartbeat for [`HEARTBEAT_TIMEOUT`].
    pub(crate) fn not_alive(&self) -> Vec<HealthProblem> {
        let now = self.0.millis();
        self.problems(|state| {
            let last = match state.last_heartbeat.load(Ordering::Relaxed) {
                0 => return None,
                last => last,
            };
            let silence = Duration::from_millis(now.saturating_sub(last));
            (silence > HEARTBEAT_TIMEOUT)
                .then(|| format!("has not moved for {}s", silence.as_secs()))
        })
    }

    fn problems(&self, reason: impl Fn(&State) -> Option<String>) -> Vec<HealthProblem> {
        lock(&self.0.parts)
            .iter()
            .filter_map(|(part, state)| {
                Some(HealthProblem {
                    part: part.clone(),
                    reason: reason(state)?,
                })
            })
            .collect()
    }
}

impl Registry {
    /// Milliseconds since the start, plus one. Never 0.
    fn millis(&self) -> u64 {
        1 + u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    fn remove(&self, state: &Arc<State>) {
        lock(&self.parts).retain(|_, part| !Arc::ptr_eq(part, state));
    }
}

/// One part of the process. After its drop the part is not ready and sends no heartbeats.
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

    /// `reason` tells the operator the cause and the fix.
    pub(crate) fn set_not_ready(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let mut current = lock(&self.state.reason);
        if current.as_ref().is_none_or(|before| before == STARTING) {
            tracing::warn!(part = self.name, "not ready: {reason}");
        }
        *current = Some(reason);
    }

    /// Marks a ready part as degraded, until the next call or until `until`. The caller logs it.
    pub(crate) fn set_degraded(&self, reason: impl Into<String>, until: Instant) {
        *lock(&self.state.degradation) = Some(Degradation {
            reason: reason.into(),
            until,
        });
    }

    pub(crate) fn clear_degraded(&self) {
        *lock(&self.state.degradation) = None;
    }

    /// Removes a part that has finished its work, so that it does not count as not ready.
    pub(crate) fn unregister(self) {
        self.registry.remove(&self.state);
    }

    /// Shows that the part's loop runs. After the first call it must be called regularly.
    pub(crate) fn heartbeat(&self) {
        self.state
            .last_heartbeat
            .store(self.registry.millis(), Ordering::Relaxed);
    }
}

impl Drop for HealthPart {
    fn drop(&mut self) {
        self.state.last_heartbeat.store(0, Ordering::Relaxed);
        *lock(&self.state.reason) = Some("ended".to_owned());
        self.clear_degraded();
    }
}

/// Ignores poisoning: each value is consistent after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(part: &str, reason: &str) -> HealthProblem {
        HealthProblem {
            part: part.to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn the_process_is_ready_if_every_part_is_ready() {
        let health = Health::new();
        assert_eq!(health.not_ready(), [problem("process", "starting")]);
        let store = health.register("store");
        let broker = health.register("broker");
        store.set_ready();
        assert_eq!(health.not_ready(), [problem("broker", "starting")]);
        broker.set_ready();
        assert_eq!(health.not_ready(), []);
        store.set_not_ready("does not answer");
        assert_eq!(health.not_ready(), [problem("store", "does not answer")]);
        drop(broker);
        assert_eq!(
            health.not_ready(),
            [
                problem("broker", "ended"),
                problem("store", "does not answer")
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_degraded_part_stays_ready_and_recovers_after_the_given_time() {
        let health = Health::new();
        let part = health.register("producers");
        part.set_ready();
        part.set_degraded(
            "a topic is missing",
            Instant::now() + Duration::from_secs(10),
        );
        assert_eq!(health.not_ready(), []);
        assert_eq!(
            health.degraded(),
            [problem("producers", "a topic is missing")]
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(health.degraded(), []);
        part.set_degraded("another one", Instant::now() + Duration::from_secs(10));
        part.clear_degraded();
        assert_eq!(health.degraded(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_without_further_heartbeats_is_not_alive() {
        let health = Health::new();
        let timer = health.register("timer");
        let idle = health.register("idle");
        tokio::time::advance(HEARTBEAT_TIMEOUT * 2).await;
        assert_eq!(
            health.not_alive(),
            [],
            "a part without a first heartbeat is not watched"
        );
        timer.heartbeat();
        tokio::time::advance(HEARTBEAT_TIMEOUT).await;
        assert_eq!(health.not_alive(), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(
            health.not_alive(),
            [problem("timer", "has not moved for 61s")]
        );
        timer.heartbeat();
        assert_eq!(health.not_alive(), []);
        drop(timer);
        drop(idle);
        tokio::time::advance(HEARTBEAT_TIMEOUT * 2).await;
        assert_eq!(health.not_alive(), [], "a dropped part is not watched");
    }
}
