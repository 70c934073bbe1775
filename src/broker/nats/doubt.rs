//! Records that no stream took. While a stream of a cluster elects its leader the server answers as if there were none. So it is asked: what some
//! stream takes is sent again until it does, in order, and only what none takes has failed. Pure.

use crate::limit::NATS_RETRY;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// See the module's page. Of one connection: with another all is sent again.
#[derive(Default)]
pub(super) struct Doubts {
    /// By subject.
    doubts: BTreeMap<String, Doubt>,
    /// Questions that were asked.
    asked: u64,
}

struct Doubt {
    question: u64,
    /// Not taken, and what came behind them.
    records: BTreeSet<u64>,
    /// When they are to be sent again. `None`: the question is not answered yet.
    again: Option<Instant>,
}

impl Doubts {
    /// No stream took the record. Answers the number of the question that is to be asked, unless it is asked already.
    pub(super) fn doubt(&mut self, subject: &str, record: u64) -> Option<u64> {
        if self.holds(subject, record) {
            return None;
        }
        self.asked += 1;
        let doubt = Doubt {
            question: self.asked,
            records: BTreeSet::from([record]),
            again: None,
        };
        self.doubts.insert(subject.to_owned(), doubt);
        Some(self.asked)
    }

    /// Whether the record waits for others of its subject, which it must not overtake.
    pub(super) fn holds(&mut self, subject: &str, record: u64) -> bool {
        let doubt = self.doubts.get_mut(subject);
        doubt.map(|doubt| doubt.records.insert(record)).is_some()
    }

    /// The answer to a question. Answers the records that failed.
    pub(super) fn told(&mut self, question: u64, is_taken: bool, now: Instant) -> Vec<u64> {
        if is_taken {
            let doubt = self
                .doubts
                .values_mut()
                .find(|doubt| doubt.question == question);
            doubt
                .into_iter()
                .for_each(|doubt| doubt.again = Some(now + NATS_RETRY));
            return Vec::new();
        }
        self.take(|doubt| doubt.question == question)
    }

    /// Nobody may ask. Answers the records that failed, as far as anybody can tell.
    pub(super) fn untold(&mut self) -> Vec<u64> {
        self.take(|doubt| doubt.again.is_none())
    }

    /// When some are to be sent again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.doubts.values().filter_map(|doubt| doubt.again).min()
    }

    /// Those that are to be sent again now, in order.
    pub(super) fn due(&mut self, now: Instant) -> Vec<u64> {
        self.take(|doubt| doubt.again.is_some_and(|at| at <= now))
    }

    fn take(&mut self, is_wanted: impl Fn(&Doubt) -> bool) -> Vec<u64> {
        self.doubts
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
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        let [first, second] = [("a", 2), ("b", 3)]
            .map(|(subject, record)| doubts.doubt(subject, record).expect("a question"));
        assert_eq!(
            (doubts.doubt("a", 1), doubts.next()),
            (None, None),
            "it is asked once"
        );
        assert!(doubts.told(first, true, now).is_empty());
        assert_eq!(doubts.told(second, false, now), [3]);
        assert_eq!(
            (doubts.due(now), doubts.next()),
            (vec![], Some(now + NATS_RETRY))
        );
        assert_eq!(
            (doubts.due(now + NATS_RETRY), doubts.next()),
            (vec![1, 2], None)
        );
        assert!(
            doubts.told(first, false, now).is_empty(),
            "an answer counts once"
        );
        assert!(
            doubts.doubt("a", 1).is_some_and(|third| third > second),
            "it is asked again"
        );
    }

    #[test]
    fn what_comes_behind_those_in_doubt_overtakes_none() {
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        assert!(!doubts.holds("a", 1));
        let question = doubts.doubt("a", 1).expect("a question");
        assert!(doubts.holds("a", 2) && !doubts.holds("b", 3));
        doubts.told(question, true, now);
        assert!(doubts.holds("a", 4));
        assert_eq!(doubts.due(now + NATS_RETRY), [1, 2, 4]);
        assert!(!doubts.holds("a", 5));
    }

    #[test]
    fn who_may_not_ask_takes_the_servers_word() {
        let mut doubts = Doubts::default();
        let asked =
            [("a", 1), ("b", 2), ("a", 3)].map(|(subject, record)| doubts.doubt(subject, record));
        assert_eq!(asked, [Some(1), Some(2), None]);
        assert_eq!((doubts.untold(), doubts.untold()), (vec![1, 3, 2], vec![]));
    }
}
