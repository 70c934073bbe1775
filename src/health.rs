//! Health: the readiness and liveness of each part of the process, for `/readyz` and `/healthz`.
//!
//! A part reports about itself: ready or not ready with a reason, and a heartbeat of its loop. A
//! part that is ready can also be degraded: something outside the process fails for some messages,
//! while all others are delivered. Each change of readiness is logged here once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A part that has sent a heartbeat and none since is not alive. An idle loop sends about
/// one per second, and the calls that it waits for have much shorter timeouts.
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
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<Mutex<BTreeMap<String, SharedState>>>);

type SharedState = Arc<Mutex<State>>;

#[derive(Debug)]
struct State {
    last_heartbeat: Option<Instant>,
    /// Why the part is not ready. `None`: it is ready.
    reason: Option<String>,
    /// Why the part is degraded, and how long this is valid.
    degradation: Option<(String, Instant)>,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Registers a part, which is not ready at first. It replaces an earlier part of the same name.
    pub(crate) fn register(&self, name: impl Into<String>) -> HealthPart {
        let name = name.into();
        let state = Arc::new(Mutex::new(State {
            last_heartbeat: None,
            reason: Some(STARTING.to_owned()),
            degradation: None,
        }));
        lock(&self.0).insert(name.clone(), state.clone());
        HealthPart {
            name,
            registry: self.clone(),
            state,
        }
    }

    /// Why the process is not ready. Empty: it is ready. A process without parts is not.
    pub(crate) fn not_ready(&self) -> Vec<HealthProblem> {
        if lock(&self.0).is_empty() {
            return vec![HealthProblem {
                part: "process".to_owned(),
                reason: STARTING.to_owned(),
            }];
        }
        self.problems(|state| state.reason.clone())
    }

    pub(crate) fn degraded(&self) -> Vec<HealthProblem> {
        let now = Instant::now();
        self.problems(|state| {
            let (reason, until) = state.degradation.as_ref()?;
            (*until > now).then(|| reason.clone())
        })
    }

    /// The parts that have sent no heartbeat for [`HEARTBEAT_TIMEOUT`].
    pub(crate) fn not_alive(&self) -> Vec<HealthProblem> {
        self.not_moving(HEARTBEAT_TIMEOUT)
    }

    /// The parts that have sent a heartbeat, and none for longer than `limit`.
    pub(crate) fn not_moving(&self, limit: Duration) -> Vec<HealthProblem> {
        self.problems(|state| {
            let silence = state.last_heartbeat?.elapsed();
            (silence > limit).then(|| format!("its loop has not run for {}s", silence.as_secs()))
        })
    }

    fn problems(&self, reason: impl Fn(&State) -> Option<String>) -> Vec<HealthProblem> {
        let problem = |(part, state): (&String, &SharedState)| {
            Some(HealthProblem {
                part: part.clone(),
                reason: reason(&lock(state))?,
            })
        };
        lock(&self.0).iter().filter_map(problem).collect()
    }
}

/// One part of the process. After its drop the part is not ready and sends no heartbeats.
#[derive(Debug)]
pub(crate) struct HealthPart {
    name: String,
    registry: Health,
    state: SharedState,
}

impl HealthPart {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn set_ready(&self) {
        let before = lock(&self.state).reason.take();
        if let Some(reason) = before.filter(|reason| reason != STARTING) {
            tracing::info!(part = self.name, "ready again, after: {reason}");
        }
    }

    /// `reason` tells the operator the cause and the fix.
    pub(crate) fn set_not_ready(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let before = lock(&self.state).reason.replace(reason.clone());
        if before.is_none_or(|before| before == STARTING) {
            tracing::warn!(part = self.name, "not ready: {reason}");
        }
    }

    /// Marks a ready part as degraded, until the next call or until `until`. The caller logs it.
    pub(crate) fn set_degraded(&self, reason: impl Into<String>, until: Instant) {
        lock(&self.state).degradation = Some((reason.into(), until));
    }

    pub(crate) fn clear_degraded(&self) {
        lock(&self.state).degradation = None;
    }

    /// Removes a part that has finished its work, so that it does not count as not ready.
    pub(crate) fn unregister(self) {
        lock(&self.registry.0).retain(|_, part| !Arc::ptr_eq(part, &self.state));
    }

    /// Shows that the part's loop runs. After the first call it must be called regularly.
    pub(crate) fn heartbeat(&self) {
        lock(&self.state).last_heartbeat = Some(Instant::now());
    }
}

impl Drop for HealthPart {
    fn drop(&mut self) {
        *lock(&self.state) = State {
            last_heartbeat: None,
            reason: Some("ended".to_owned()),
            degradation: None,
        };
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
            [problem("timer", "its loop has not run for 61s")]
        );
        timer.heartbeat();
        assert_eq!(health.not_alive(), []);
        drop(timer);
        drop(idle);
        tokio::time::advance(HEARTBEAT_TIMEOUT * 2).await;
        assert_eq!(health.not_alive(), [], "a dropped part is not watched");
    }
}
