//! Finds the sessions of workers that are dead. Pure.
//!
//! A session is over if it had no heartbeat for its whole length while this worker watched it. The
//! watch counts by the monotonic clock of this worker, so steps of a clock change nothing. It starts
//! again after the store was away, because then no worker could send a heartbeat.
//!
//! The store may also see that a process has lost its connection. Its session is then over as soon as
//! a heartbeat is missing. This counts only if the watch has seen the connection before, and the
//! store has answered in time since: a process that lost its network for a moment connects again.
//! The store itself ignores connections from before its last start or failover.

use super::silence_max;
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
    /// Its process was connected after the store was away last.
    was_connected: bool,
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
        let gap = self.answered.map_or(Duration::MAX, |at| now - at);
        let was_away = gap > self.answer_gap_max && !fault!(EndSessionsAfterOutage);
        self.answered = Some(now);
        let mut seen = BTreeMap::new();
        let mut ends = Vec::new();
        for session in sessions
            .iter()
            .filter(|it| !it.id.is_of_process_of(self.me))
        {
            let before = self.seen.get(&session.id).filter(|_| !was_away);
            let unchanged = before.filter(|before| before.heartbeats == session.heartbeats);
            let since = unchanged.map_or(now, |before| before.since);
            let heartbeats = session.heartbeats;
            let silence = silence_max(session.length);
            let was_connected = before.is_some_and(|it| it.was_connected && gap <= silence);
            let has_gone = was_connected && !session.is_connected;
            let observed = Seen {
                heartbeats,
                since,
                was_connected: was_connected || session.is_connected,
            };
            seen.insert(session.id, observed);
            let allowed = if has_gone { silence } else { session.length };
            if since + allowed <= now {
                ends.push(SessionEnd {
                    session: session.id,
                    heartbeats: Some(heartbeats),
                });
            }
        }
        self.seen = seen;
        ends
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

    /// For each answer, true if it shows that the session is over. An answer has a time, the number
    /// of the heartbeat, and whether the process is connected.
    fn ends(answers: &[(u64, u64, bool)]) -> Vec<bool> {
        let start = Instant::now();
        let mut watch = SessionWatch::new(SessionId::first(WorkerId(1), 1), LENGTH);
        let mut is_over = |(millis, heartbeats, is_connected): &(u64, u64, bool)| {
            let session = Session {
                is_connected: *is_connected,
                ..session(*heartbeats)
            };
            let now = start + Duration::from_millis(*millis);
            !watch.observe(&[session], now).is_empty()
        };
        answers.iter().map(&mut is_over).collect()
    }

    #[test]
    fn a_session_that_lost_its_connection_is_over_when_a_heartbeat_is_missing() {
        let dead = [(0, 1, true), (500, 1, false), (1_000, 1, false)];
        assert_eq!(ends(&dead), [false, false, true]);
        let beats = [(0, 1, true), (500, 2, false), (1_000, 3, false)];
        assert_eq!(ends(&beats), [false; 3]);
    }

    #[test]
    fn a_lost_connection_shows_nothing_after_a_restart_of_the_store() {
        let restart = [(0, 1, true), (900, 1, false), (1_400, 1, false)];
        let outage = [(0, 1, true), (4_000, 1, false), (4_500, 1, false)];
        let unseen = [(0, 1, false), (500, 1, false), (1_000, 1, false)];
        for answers in [restart, outage, unseen] {
            assert_eq!(ends(&answers), [false; 3]);
        }
        let connected_again = [(1_900, 2, true), (2_400, 2, false), (2_900, 2, false)];
        let answers = [restart, connected_again].concat();
        assert_eq!(ends(&answers), [false, false, false, false, false, true]);
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
