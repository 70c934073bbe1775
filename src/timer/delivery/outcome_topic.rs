//! How the outcome topic of a route behaves: how long messages wait for their records, and whether transactions
//! have records.

use crate::limit::{
    OUTCOME_RECORD_WAIT_MAX, OUTCOME_RECORDS_PAUSE_MAX, OUTCOME_RECORDS_PAUSE_MIN, RESEND_DELAY_MIN,
};
use crate::retry::backoff;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Shared by the shards of the route in this timer.
#[derive(Debug, Default)]
pub(crate) struct OutcomeTopic {
    /// At-least-once: a message has waited for its record in vain.
    is_silent: Cell<bool>,
    /// Exactly-once: before this time transactions have no records.
    paused_until: Cell<Option<Instant>>,
    /// Pauses since the last acknowledged record.
    pauses: Cell<u32>,
}

impl OutcomeTopic {
    /// How long a message waits for its records. While the topic is silent, each record is sent once, and no
    /// message waits. `is_ending`: the shard is being handed over, or the timer stops.
    pub(super) fn wait_max(&self, is_ending: bool) -> Duration {
        match (self.is_silent.get(), is_ending) {
            (true, _) => Duration::ZERO,
            (false, true) => RESEND_DELAY_MIN,
            (false, false) => OUTCOME_RECORD_WAIT_MAX,
        }
    }

    /// A message has waited in vain for the longest time. Returns true if the topic was not silent before.
    pub(super) fn set_silent(&self) -> bool {
        !self.is_silent.replace(true)
    }

    pub(super) fn on_acknowledged(&self) {
        self.is_silent.set(false);
        self.pauses.set(0);
    }

    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.get() > Some(now)
    }

    /// Pauses the records of transactions: longer each time, because each attempt may hold up messages. Returns
    /// the length, or `None` if another shard has begun the pause.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        if self.is_paused(now) {
            return None;
        }
        let pauses = self.pauses.get();
        let length = backoff(OUTCOME_RECORDS_PAUSE_MIN, OUTCOME_RECORDS_PAUSE_MAX, pauses);
        self.pauses.set(pauses.saturating_add(1));
        self.paused_until.set(Some(now + length));
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_waits_for_a_silent_topic_until_it_acknowledges_a_record() {
        let topic = OutcomeTopic::default();
        assert_eq!(topic.wait_max(false), OUTCOME_RECORD_WAIT_MAX);
        assert_eq!(topic.wait_max(true), RESEND_DELAY_MIN);
        assert!(topic.set_silent());
        assert!(!topic.set_silent(), "it is logged once");
        assert_eq!(topic.wait_max(false), Duration::ZERO);
        assert_eq!(topic.wait_max(true), Duration::ZERO);
        topic.on_acknowledged();
        assert_eq!(topic.wait_max(false), OUTCOME_RECORD_WAIT_MAX);
    }

    #[test]
    fn pauses_grow_until_a_record_is_acknowledged() {
        let topic = OutcomeTopic::default();
        let mut now = Instant::now();
        assert!(!topic.is_paused(now));
        let mut lengths = Vec::new();
        for _ in 0..9 {
            let length = topic.pause(now).expect("no pause before");
            assert_eq!(topic.pause(now), None, "another shard");
            assert!(topic.is_paused(now));
            now += length;
            assert!(!topic.is_paused(now));
            lengths.push(length);
        }
        assert_eq!(lengths[0], OUTCOME_RECORDS_PAUSE_MIN);
        assert_eq!(lengths[1], 2 * OUTCOME_RECORDS_PAUSE_MIN);
        assert_eq!(lengths[8], OUTCOME_RECORDS_PAUSE_MAX);
        topic.on_acknowledged();
        assert_eq!(topic.pause(now), Some(OUTCOME_RECORDS_PAUSE_MIN));
    }
}
