//! Calls of the scripts that read and change the sessions of workers.

use super::key::Keyspace;
use super::script::{Call, Script, millis};
use crate::store::{SessionEnd, SessionHeartbeat};

impl Call {
    pub(super) fn heartbeat(keyspace: &Keyspace, request: &SessionHeartbeat) -> Self {
        let mut call = Self::on_sessions(Script::Heartbeat, keyspace);
        let entry = serde_json::to_string(&request.entry);
        call.arg(request.session.to_string())
            .arg(request.heartbeats)
            .arg(millis(request.length))
            .arg(entry.expect("an entry has text keys only"))
            .arg(keyspace.worker_channel_prefix())
            .arg(request.answered);
        call
    }

    pub(super) fn end_sessions(keyspace: &Keyspace, ends: &[SessionEnd]) -> Self {
        let mut call = Self::on_sessions(Script::EndSessions, keyspace);
        for end in ends {
            let heartbeats = end.heartbeats.map(|seen| seen.to_string());
            call.arg(end.session.to_string())
                .arg(heartbeats.unwrap_or_default());
        }
        call
    }

    pub(super) fn sessions(keyspace: &Keyspace) -> Self {
        let mut call = Self::on_sessions(Script::Sessions, keyspace);
        call.arg(keyspace.worker_channel_prefix());
        call
    }
}
