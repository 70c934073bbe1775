//! Repeats calls that failed for a transient reason, with exponential backoff.

use crate::health::HealthPart;
use crate::limit::{STORE_RETRY_DELAY_MAX, STORE_RETRY_DELAY_MIN};
use crate::store::{Error, StorePart};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The delay before the next attempt: `first`, doubled for each of the `failures` before the last
/// one, and at most `max`.
pub(crate) fn backoff(first: Duration, max: Duration, failures: u32) -> Duration {
    first.saturating_mul(1 << failures.min(30)).min(max)
}

/// Where the repeated calls report whether the store answers.
pub(crate) trait Readiness {
    fn set_ready(&self);
    fn set_not_ready(&self, reason: String);
}

impl Readiness for HealthPart {
    fn set_ready(&self) {
        self.set_ready();
    }

    fn set_not_ready(&self, reason: String) {
        self.set_not_ready(reason);
    }
}

/// The readiness of a loop that calls each part of the store on its own: it is ready if no part
/// fails.
#[derive(Clone)]
pub(crate) struct PartsReadiness {
    health: Rc<HealthPart>,
    failing: Rc<RefCell<BTreeSet<StorePart>>>,
}

impl PartsReadiness {
    pub(crate) fn new(health: impl Into<Rc<HealthPart>>) -> Self {
        Self {
            health: health.into(),
            failing: Rc::default(),
        }
    }

    pub(crate) fn of(&self, part: StorePart) -> PartReadiness {
        let all = self.clone();
        PartReadiness { all, part }
    }
}

/// Where the calls of one part report.
pub(crate) struct PartReadiness {
    all: PartsReadiness,
    part: StorePart,
}

impl Readiness for PartReadiness {
    fn set_ready(&self) {
        let mut failing = self.all.failing.borrow_mut();
        failing.remove(&self.part);
        if failing.is_empty() {
            self.all.health.set_ready();
        }
    }

    fn set_not_ready(&self, reason: String) {
        self.all.failing.borrow_mut().insert(self.part);
        self.all.health.set_not_ready(reason);
    }
}

/// Repeats a store call until the store answers. Returns `None` if `give_up` is cancelled first.
///
/// The call must be safe to repeat, and safe to drop: a dropped call may have taken effect or not.
/// Between attempts, `health` is not ready; the reason is `consequence` and the error.
pub(crate) async fn until_store_answers<T>(
    health: &impl Readiness,
    consequence: &str,
    give_up: &CancellationToken,
    call: impl AsyncFn() -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let mut failures = 0;
    loop {
        // Safe to drop: the caller promises that the call is.
        let outcome = tokio::select! {
            biased;
            () = give_up.cancelled() => return Ok(None),
            outcome = call() => outcome,
        };
        match outcome {
            Ok(answer) => {
                health.set_ready();
                return Ok(Some(answer));
            }
            Err(error) if error.is_transient() => {
                health.set_not_ready(format!("{consequence}: {error}"));
            }
            Err(error) => return Err(error),
        }
        let delay = backoff(STORE_RETRY_DELAY_MIN, STORE_RETRY_DELAY_MAX, failures);
        failures += 1;
        // Safe to drop: neither arm changes anything.
        tokio::select! {
            biased;
            () = give_up.cancelled() => return Ok(None),
            () = tokio::time::sleep(delay) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Health;
    use std::cell::Cell;
    use tokio::time::Instant;

    #[test]
    fn the_delay_doubles_from_the_first_to_the_last() {
        let delay = |failures| {
            backoff(Duration::from_millis(20), Duration::from_secs(1), failures).as_millis()
        };
        assert_eq!(
            [0, 1, 2, 5, 6, 99].map(delay),
            [20, 40, 80, 640, 1_000, 1_000]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_repeated_until_the_store_answers() {
        let (health, give_up) = (Health::new(), CancellationToken::new());
        let part = health.register("store");
        let calls = Cell::new(0);
        let begin = Instant::now();
        let answer = until_store_answers(&part, "no claims", &give_up, async || {
            calls.set(calls.get() + 1);
            if calls.get() < 3 {
                return Err(Error::Unavailable("gone".to_owned()));
            }
            Ok(calls.get())
        });
        assert_eq!(answer.await.unwrap(), Some(3));
        assert_eq!(begin.elapsed(), 3 * STORE_RETRY_DELAY_MIN);
        assert!(health.not_ready().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_error_is_returned_at_once() {
        let (part, give_up) = (Health::new().register("store"), CancellationToken::new());
        let answer = until_store_answers::<()>(&part, "no claims", &give_up, async || {
            Err(Error::Unusable("old version".to_owned()))
        });
        assert!(answer.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_caller_gives_up_and_the_reason_stays() {
        let (health, give_up) = (Health::new(), CancellationToken::new());
        let part = health.register("store");
        let answer = until_store_answers::<()>(&part, "no claims", &give_up, async || {
            give_up.cancel();
            Err(Error::Unavailable("gone".to_owned()))
        });
        assert_eq!(answer.await.unwrap(), None);
        assert!(health.not_ready()[0].reason.starts_with("no claims: "));
    }
}
