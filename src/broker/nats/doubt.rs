//! Records that no stream took. While a stream of a cluster elects its leader the server answers as if there were none. So it is asked: what some
//! stream takes is sent again until it does, in order, and only what none takes has failed. Pure.

use crate::limit::NATS_RETRY_DELAY;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// See the module's page. Of one connection: with another all is sent again.
#[derive(Default)]
pub(super) struct NoResponders {
    /// By subject.
    blocked: BTreeMap<String, BlockedSubject>,
    /// Questions that were asked.
    lookups: u64,
}

struct BlockedSubject {
    lookup: u64,
    /// Not taken, and what came behind them.
    records: BTreeSet<u64>,
    /// When they are to be sent again. `None`: the question is not answered yet.
    retry_at: Option<Instant>,
}

impl NoResponders {
    /// No stream took the record. Answers the number of the question that is to be asked, unless it is asked already.
    pub(super) fn block(&mut self, subject: &str, record: u64) -> Option<u64> {
        if self.queue_if_blocked(subject, record) {
            return None;
        }
        self.lookups += 1;
        let doubt = BlockedSubject {
            lookup: self.lookups,
            records: BTreeSet::from([record]),
            retry_at: None,
        };
        self.blocked.insert(subject.to_owned(), doubt);
        Some(self.lookups)
    }

    /// Whether the record waits for others of its subject, which it must not overtake.
    pub(super) fn queue_if_blocked(&mut self, subject: &str, record: u64) -> bool {
        let doubt = self.blocked.get_mut(subject);
        doubt.map(|doubt| doubt.records.insert(record)).is_some()
    }

    /// The answer to a question. Answers the records that failed.
    pub(super) fn on_lookup(&mut self, question: u64, is_taken: bool, now: Instant) -> Vec<u64> {
        if is_taken {
            let doubt = self
                .blocked
                .values_mut()
                .find(|doubt| doubt.lookup == question);
            doubt
                .into_iter()
                .for_each(|doubt| doubt.retry_at = Some(now + NATS_RETRY_DELAY));
            return Vec::new();
        }
        self.remove_where(|doubt| doubt.lookup == question)
    }

    /// Nobody may ask. Answers the records that failed, as far as anybody can tell.
    pub(super) fn on_lookup_denied(&mut self) -> Vec<u64> {
        self.remove_where(|doubt| doubt.retry_at.is_none())
    }

    /// When some are to be sent again.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.blocked
            .values()
            .filter_map(|doubt| doubt.retry_at)
            .min()
    }

    /// Those that are to be sent again now, in order.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<u64> {
        self.remove_where(|doubt| doubt.retry_at.is_some_and(|at| at <= now))
    }

    fn remove_where(&mut self, is_wanted: impl Fn(&BlockedSubject) -> bool) -> Vec<u64> {
        self.blocked
            .extract_if(.., |_, doubt| is_wanted(doubt))
            .flat_map(|(_, doubt)| doubt.records)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_takes_is_sent_again_and_what_none_takes_has_failed() {
        let (mut doubts, now) = (NoResponders::default(), Instant::now());
        let [first, second] = [("a", 2), ("b", 3)]
            .map(|(subject, record)| doubts.block(subject, record).expect("a question"));
        assert_eq!(
            (doubts.block("a", 1), doubts.next_retry()),
            (None, None),
            "it is asked once"
        );
        assert!(doubts.on_lookup(first, true, now).is_empty());
        assert_eq!(doubts.on_lookup(second, false, now), [3]);
        assert_eq!(
            (doubts.take_due(now), doubts.next_retry()),
            (vec![], Some(now + NATS_RETRY_DELAY))
        );
        assert_eq!(
            (doubts.take_due(now + NATS_RETRY_DELAY), doubts.next_retry()),
            (vec![1, 2], None)
        );
        assert!(
            doubts.on_lookup(first, false, now).is_empty(),
            "an answer counts once"
        );
        assert!(
            doubts.block("a", 1).is_some_and(|third| third > second),
            "it is asked again"
        );
    }

    #[test]
    fn what_comes_behind_those_in_doubt_overtakes_none() {
        let (mut doubts, now) = (NoResponders::default(), Instant::now());
        assert!(!doubts.queue_if_blocked("a", 1));
        let question = doubts.block("a", 1).expect("a question");
        assert!(doubts.queue_if_blocked("a", 2) && !doubts.queue_if_blocked("b", 3));
        doubts.on_lookup(question, true, now);
        assert!(doubts.queue_if_blocked("a", 4));
        assert_eq!(doubts.take_due(now + NATS_RETRY_DELAY), [1, 2, 4]);
        assert!(!doubts.queue_if_blocked("a", 5));
    }

    #[test]
    fn who_may_not_ask_takes_the_servers_word() {
        let mut doubts = NoResponders::default();
        let asked =
            [("a", 1), ("b", 2), ("a", 3)].map(|(subject, record)| doubts.block(subject, record));
        assert_eq!(asked, [Some(1), Some(2), None]);
        assert_eq!(
            (doubts.on_lookup_denied(), doubts.on_lookup_denied()),
            (vec![1, 3, 2], vec![])
        );
    }
}
