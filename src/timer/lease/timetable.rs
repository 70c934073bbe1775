//! The times of the lease keeper's periodic duties.

use crate::limit::FIRST_DISCOVERY_TIMEOUT;
use tokio::time::Instant;

/// When each duty is due next.
pub(super) struct Timetable {
    pub(super) discover_at: Instant,
    pub(super) heartbeat_at: Instant,
    pub(super) renew_at: Instant,
    /// Until then, this worker waits for its sources before it sends the first heartbeat.
    pub(super) await_sources_until: Option<Instant>,
    /// Set during a shutdown: the time at which handovers end.
    pub(super) depart_until: Option<Instant>,
}

impl Timetable {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            discover_at: now,
            heartbeat_at: now,
            renew_at: now,
            await_sources_until: Some(now + FIRST_DISCOVERY_TIMEOUT),
            depart_until: None,
        }
    }

    pub(super) fn is_departing(&self) -> bool {
        self.depart_until.is_some()
    }

    pub(super) fn next(&self) -> Instant {
        // A departing worker neither discovers shards nor sends heartbeats.
        self.depart_until
            .unwrap_or_else(|| self.discover_at.min(self.heartbeat_at))
            .min(self.renew_at)
    }
}
