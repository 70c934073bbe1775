//! Records that got "no responders" because no stream answers on their subject at the moment.
//!
//! The server answers in the same way while a stream elects its leader. So the publisher first asks
//! which streams have the subject. If there is one, the records of the subject are published again
//! until it acknowledges them. If there is none, they fail. No I/O happens here.

use crate::broker::nats::limit::NATS_RETRY_DELAY;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// The blocked subjects of one connection. A new connection publishes all records again and starts
/// with an empty value.
#[derive(Default)]
pub(super) struct NoResponders {
    blocked: BTreeMap<String, BlockedSubject>,
    /// Number of lookups that were started.
    lookups: u64,
}

struct BlockedSubject {
    lookup: u64,
    /// The records without a stream, and the later records of the subject.
    records: BTreeSet<u64>,
    /// Time of the next publish. `None` until the lookup is answered.
    retry_at: Option<Instant>,
}

impl NoResponders {
    /// Blocks the subject of a record. Returns the number of the lookup to start, or `None` if the
    /// subject is blocked already.
    pub(super) fn block(&mut self, subject: &str, record: u64) -> Option<u64> {
        if self.queue_if_blocked(subject, record) {
            return None;
        }
        self.lookups += 1;
        let blocked = BlockedSubject {
            lookup: self.lookups,
            records: BTreeSet::from([record]),
            retry_at: None,
        };
        self.blocked.insert(subject.to_owned(), blocked);
        Some(self.lookups)
    }

    /// Queues a record behind the blocked records of its subject, to keep their order. Returns
    /// whether the subject is blocked.
    pub(super) fn queue_if_blocked(&mut self, subject: &str, record: u64) -> bool {
        let blocked = self.blocked.get_mut(subject);
        blocked
            .map(|blocked| blocked.records.insert(record))
            .is_some()
    }

    /// Handles the reply to a lookup. Returns the records that fail.
    pub(super) fn on_lookup(&mut self, lookup: u64, has_stream: bool, now: Instant) -> Vec<u64> {
        if !has_stream {
            return self.remove_where(|blocked| blocked.lookup == lookup);
        }
        let mut subjects = self.blocked.values_mut();
        if let Some(blocked) = subjects.find(|blocked| blocked.lookup == lookup) {
            blocked.retry_at = Some(now + NATS_RETRY_DELAY);
        }
        Vec::new()
    }

    /// The client may not look up streams, so the server's "no responders" is final. Returns the
    /// records that fail.
    pub(super) fn on_lookup_denied(&mut self) -> Vec<u64> {
        self.remove_where(|blocked| blocked.retry_at.is_none())
    }

    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.blocked
            .values()
            .filter_map(|blocked| blocked.retry_at)
            .min()
    }

    /// Unblocks the subjects whose retry is due. Returns their records, in order per subject.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<u64> {
        self.remove_where(|blocked| blocked.retry_at.is_some_and(|at| at <= now))
    }

    fn remove_where(&mut self, is_wanted: impl Fn(&BlockedSubject) -> bool) -> Vec<u64> {
        self.blocked
            .extract_if(.., |_, blocked| is_wanted(blocked))
            .flat_map(|(_, blocked)| blocked.records)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_retried_if_a_stream_has_their_subject_and_fail_otherwise() {
        let now = Instant::now();
        let mut no_responders = NoResponders::default();
        let first = no_responders.block("a", 2).expect("a lookup");
        let second = no_responders.block("b", 3).expect("a lookup");
        assert_eq!(
            no_responders.block("a", 1),
            None,
            "the lookup of the subject is running"
        );
        assert_eq!(no_responders.next_retry(), None);
        assert!(no_responders.on_lookup(first, true, now).is_empty());
        assert_eq!(no_responders.on_lookup(second, false, now), [3]);
        assert!(no_responders.take_due(now).is_empty());
        let retry_at = now + NATS_RETRY_DELAY;
        assert_eq!(no_responders.next_retry(), Some(retry_at));
        assert_eq!(no_responders.take_due(retry_at), [1, 2]);
        assert_eq!(no_responders.next_retry(), None);
        assert!(
            no_responders.on_lookup(first, false, now).is_empty(),
            "a second reply to a lookup has no effect"
        );
        let third = no_responders.block("a", 1).expect("a new lookup");
        assert!(third > second);
    }

    #[test]
    fn later_records_of_a_blocked_subject_keep_their_order() {
        let now = Instant::now();
        let mut no_responders = NoResponders::default();
        assert!(!no_responders.queue_if_blocked("a", 1));
        let lookup = no_responders.block("a", 1).expect("a lookup");
        assert!(no_responders.queue_if_blocked("a", 2));
        assert!(!no_responders.queue_if_blocked("b", 3));
        no_responders.on_lookup(lookup, true, now);
        assert!(no_responders.queue_if_blocked("a", 4));
        assert_eq!(no_responders.take_due(now + NATS_RETRY_DELAY), [1, 2, 4]);
        assert!(!no_responders.queue_if_blocked("a", 5));
    }

    #[test]
    fn records_fail_if_the_client_may_not_look_up_streams() {
        let mut no_responders = NoResponders::default();
        assert_eq!(no_responders.block("a", 1), Some(1));
        assert_eq!(no_responders.block("b", 2), Some(2));
        assert_eq!(no_responders.block("a", 3), None);
        assert_eq!(no_responders.on_lookup_denied(), [1, 3, 2]);
        assert!(no_responders.on_lookup_denied().is_empty());
    }
}
