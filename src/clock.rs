//! The wall clock as a port. Waiting is tokio's time; only this says what the time of day is.

use crate::model::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// Tells the time of day. May step back or forward between two calls, as wall clocks do.
pub(crate) trait Clock {
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WallClock;

impl Clock for WallClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that reads the machine's clock"
    )]
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => {
                Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
            }
            Err(before) => Timestamp::from_millis(
                -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
            ),
        }
    }
}
