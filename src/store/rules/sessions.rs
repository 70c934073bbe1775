//! The sessions of the workers. Pure: the caller passes the time.

use crate::model::{SessionId, Timestamp, WorkerEntry};
use crate::store::{Heartbeat, Session, SessionEnd, SessionHeartbeat};
use std::collections::BTreeMap;
use std::time::Duration;

/// The sessions that have not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions(BTreeMap<SessionId, StoredSession>);

#[derive(Clone, Debug)]
struct StoredSession {
    entry: WorkerEntry,
    heartbeats: u64,
    end: Timestamp,
    length: Duration,
}

impl StoredSession {
    /// Time until the session expires. A session that ends after twice its length was renewed
    /// before the clock of the store was set back.
    fn expires_in(&self, now: Timestamp) -> Duration {
        let is_of_later_time = self.end > now.plus(2 * self.length);
        if is_of_later_time || self.end <= now {
            Duration::ZERO
        } else {
            self.end.since(now)
        }
    }
}

impl Sessions {
    /// Begins or extends a session, unless another one forbids it. A session that has lost an
    /// answered heartbeat ends: the store was rolled back, and may have forgotten which leases it had.
    pub(crate) fn heartbeat(&mut self, request: &SessionHeartbeat, now: Timestamp) -> Heartbeat {
        let (id, entry) = (request.session, &request.entry);
        let stored = self.0.get(&id).map(|stored| stored.heartbeats);
        let is_known = request.heartbeats == 1 || stored.is_some() || fault!(ReviveEndedSession);
        let went_back = stored.is_some_and(|stored| stored < request.answered);
        if !is_known || (went_back && !fault!(ContinueRolledBackSession)) {
            self.0.remove(&id);
            return Heartbeat::Ended(self.list(now));
        }
        let is_overtaken = stored.is_some_and(|stored| stored >= request.heartbeats);
        if is_overtaken && !fault!(RecordOvertakenHeartbeat) {
            let sessions = self.list(now);
            return Heartbeat::Renewed { now, sessions };
        }
        let others = self.0.iter().filter(|(other, _)| **other != id);
        let others = others.map(|(_, stored)| &stored.entry);
        let (same_name, others): (Vec<_>, Vec<_>) = others.partition(|it| it.name == entry.name);
        if same_name.iter().any(|it| it.lock_id != entry.lock_id) {
            return Heartbeat::NameTaken(self.list(now));
        }
        let mut clusters = others.iter().flat_map(|it| &it.clusters).peekable();
        let is_named = clusters.peek().is_some() && !entry.clusters.is_empty();
        let is_shared = clusters.any(|cluster| entry.clusters.contains(cluster));
        if is_named && !is_shared && !fault!(AdmitOtherClusters) {
            return Heartbeat::OtherClusters(self.list(now));
        }
        self.0
            .retain(|other, stored| *other == id || stored.entry.name != entry.name);
        let stored = StoredSession {
            entry: entry.clone(),
            heartbeats: request.heartbeats,
            end: now.plus(request.length),
            length: request.length,
        };
        self.0.insert(id, stored);
        let sessions = self.list(now);
        Heartbeat::Renewed { now, sessions }
    }

    /// Ends sessions that were not renewed since the caller saw them.
    pub(crate) fn end(&mut self, ends: &[SessionEnd]) {
        for end in ends {
            let is_unchanged = |stored: &StoredSession| {
                end.heartbeats.is_none_or(|seen| seen == stored.heartbeats)
            };
            if self.0.get(&end.session).is_some_and(is_unchanged) {
                self.0.remove(&end.session);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.0.contains_key(&session)
    }

    pub(crate) fn list(&self, now: Timestamp) -> Vec<Session> {
        let sessions = self.0.iter().map(|(id, stored)| Session {
            id: *id,
            entry: stored.entry.clone(),
            heartbeats: stored.heartbeats,
            length: stored.length,
            expires_in: stored.expires_in(now),
            is_connected: true,
        });
        sessions.collect()
    }
}
