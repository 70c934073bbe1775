//! Finds the sessions of workers that are dead. Pure.
//!
//! A session is over if it had no heartbeat for its whole length while this worker watched it. The
//! watch counts by the monotonic clock of this worker, so steps of a clock change nothing. It starts
//! again after the store was away, because then no worker could send a heartbeat.
//!
//! The store may also see that a process has no connection any more. Its session is then over as soon
//! as a heartbeat is missing. A process that has only lost that connection still sends heartbeats.

use super::heartbeat_interval;
use crate::model::SessionId;
use crate::store::{Session, SessionEnd};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct SessionWatch {
    /// A session of this process.
    me: SessionId,
    /// A longer time between two answers of the store counts as an outage: a session that is alive
    /// survives a shorter one.
    answer_gap_max: Duration,
    answered: Option<Instant>,
    seen: BTreeMap<SessionId, Seen>,
}

/// A session whose last heartbeat has this number since the given time.
#[derive(Clone, Copy)]
struct Seen {
    heartbeats: u64,
    since: Instant,
}

impl SessionWatch {
    pub(super) fn new(me: SessionId, length: Duration) -> Self {
        Self {
            me,
            answer_gap_max: length / 2,
            answered: None,
            seen: BTreeMap::new(),
        }
    }

    /// Records what the store answered. Returns the sessions of other processes that are over.
    pub(super) fn observe(&mut self, sessions: &[Session], now: Instant) -> Vec<SessionEnd> {
        let gap = self.answered.map(|answered| now - answered);
        let was_away = gap.is_some_and(|gap| gap > self.answer_gap_max);
        self.answered = Some(now);
        let mut seen = BTreeMap::new();
        let mut over = Vec::new();
        for session in sessions
            .iter()
            .filter(|it| !it.id.is_of_process_of(self.me))
        {
            let before = self.seen.get(&session.id);
            let before = before.filter(|_| !was_away || fault!(EndSessionsAfterOutage));
            let unchanged = before.filter(|before| before.heartbeats == session.heartbeats);
            let since = unchanged.map_or(now, |before| before.since);
            let heartbeats = session.heartbeats;
            seen.insert(session.id, Seen { heartbeats, since });
            if since + allowed_silence(session) <= now {
                over.push(SessionEnd {
                    session: session.id,
                    heartbeats: Some(heartbeats),
                });
            }
        }
        self.seen = seen;
        over
    }
}

/// The time after a heartbeat at which a session is over without another one.
fn allowed_silence(session: &Session) -> Duration {
    if session.is_connected {
        session.length
    } else {
        // Half an interval more than the time of the next heartbeat, for a slow answer.
        heartbeat_interval(session.length) * 3 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{WorkerEntry, WorkerId};

    const LENGTH: Duration = Duration::from_secs(5);

    fn session(heartbeats: u64) -> Session {
        let worker = WorkerId(2);
        Session {
            id: SessionId::first(worker, 1),
            entry: WorkerEntry::default(),
            heartbeats,
            length: LENGTH,
            expires_in: Duration::ZERO,
            is_connected: true,
        }
    }

    /// True if the session is over at the last of the times. Each has the number of its heartbeat.
    fn is_over(observed: &[(u64, u64)]) -> bool {
        let start = Instant::now();
        let mut watch = SessionWatch::new(SessionId::first(WorkerId(1), 1), LENGTH);
        let mut over = false;
        for (at, heartbeats) in observed {
            let now = start + Duration::from_secs(*at);
            over = !watch.observe(&[session(*heartbeats)], now).is_empty();
        }
        over
    }

    #[test]
    fn a_session_is_over_after_its_length_without_a_heartbeat() {
        assert!(!is_over(&[(0, 1)]), "just seen, however old it is");
        assert!(!is_over(&[(0, 1), (2, 1), (4, 1)]));
        assert!(is_over(&[(0, 1), (2, 1), (4, 1), (5, 1)]));
        assert!(!is_over(&[(0, 1), (2, 1), (4, 2), (5, 2)]));
        assert!(is_over(&[(0, 1), (2, 2), (4, 2), (6, 2), (7, 2)]));
    }

    #[test]
    fn after_an_outage_of_the_store_a_session_gets_its_whole_length() {
        let outage = [(0, 1), (2, 1), (6, 1), (8, 1), (10, 1)];
        assert!(!is_over(&outage));
        assert!(is_over(&[&outage[..], &[(11, 1)]].concat()));
    }

    #[test]
    fn a_session_without_a_connection_is_over_when_a_heartbeat_is_missing() {
        let observe = |beats: &[(u64, u64)]| {
            let start = Instant::now();
            let mut watch = SessionWatch::new(SessionId::first(WorkerId(1), 1), LENGTH);
            let over = beats.iter().map(|(millis, heartbeats)| {
                let lost = Session {
                    is_connected: false,
                    ..session(*heartbeats)
                };
                let now = start + Duration::from_millis(*millis);
                !watch.observe(&[lost], now).is_empty()
            });
            over.collect::<Vec<_>>()
        };
        assert_eq!(observe(&[(0, 1), (500, 1), (800, 1)]), [false, false, true]);
        assert_eq!(observe(&[(0, 1), (500, 2), (1_000, 3)]), [false; 3]);
    }

    #[test]
    fn a_worker_does_not_end_its_own_session() {
        let mut watch = SessionWatch::new(SessionId::first(WorkerId(2), 1), LENGTH);
        let start = Instant::now();
        for at in 0..9 {
            let now = start + Duration::from_secs(at);
            assert!(watch.observe(&[session(1)], now).is_empty());
        }
    }
}
