//! Records that no stream took. While a stream of a cluster elects its leader the server answers as if there were none. So it is asked: what some
//! stream takes is sent again until it does, and only what none takes has failed. Pure.

use crate::limit::NATS_RETRY;
use std::collections::{BTreeMap, VecDeque};
use tokio::time::Instant;

/// See the module's page. Of one connection: with another all is sent again.
#[derive(Default)]
pub(super) struct Doubts {
    /// What is asked, by subject.
    asked: BTreeMap<String, Question>,
    /// To be sent again, and when.
    again: VecDeque<(Instant, Vec<u64>)>,
    last: u64,
}

struct Question {
    number: u64,
    records: Vec<u64>,
}

impl Doubts {
    /// No stream took the record. Answers the number of the question that is to be asked, unless it is asked already.
    pub(super) fn doubt(&mut self, subject: &str, record: u64) -> Option<u64> {
        if let Some(question) = self.asked.get_mut(subject) {
            question.records.push(record);
            return None;
        }
        self.last += 1;
        self.asked.insert(subject.to_owned(), Question { number: self.last, records: vec![record] });
        Some(self.last)
    }

    /// The answer to a question. Answers the records that failed.
    pub(super) fn told(&mut self, number: u64, is_taken: bool, now: Instant) -> Vec<u64> {
        let found = self.asked.iter().find(|(_, question)| question.number == number).map(|(subject, _)| subject.clone());
        let Some(question) = found.and_then(|subject| self.asked.remove(&subject)) else { return Vec::new() };
        if !is_taken {
            return question.records;
        }
        self.again.push_back((now + NATS_RETRY, question.records));
        Vec::new()
    }

    /// Nobody may ask. Answers the records that failed, as far as anybody can tell.
    pub(super) fn untold(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.asked).into_values().flat_map(|question| question.records).collect()
    }

    /// When some are to be sent again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.again.front().map(|(at, _)| *at)
    }

    /// Those that are to be sent again now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<u64> {
        let mut due = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            due.extend(self.again.pop_front().into_iter().flat_map(|(_, records)| records));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_takes_is_sent_again_and_what_none_takes_has_failed() {
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        let [first, second] = ["a", "b"].map(|subject| doubts.doubt(subject, 1).expect("a question"));
        assert_eq!((doubts.doubt("a", 2), doubts.next()), (None, None), "it is asked once");
        assert!(doubts.told(first, true, now).is_empty());
        assert_eq!(doubts.told(second, false, now), [1]);
        assert_eq!((doubts.due(now), doubts.next()), (vec![], Some(now + NATS_RETRY)));
        assert_eq!((doubts.due(now + NATS_RETRY), doubts.next()), (vec![1, 2], None));
        assert!(doubts.told(first, false, now).is_empty(), "an answer counts once");
        assert!(doubts.doubt("a", 1).is_some_and(|third| third > second), "it is asked again");
    }

    #[test]
    fn who_may_not_ask_takes_the_servers_word() {
        let mut doubts = Doubts::default();
        let asked = [("a", 1), ("b", 2), ("a", 3)].map(|(subject, record)| doubts.doubt(subject, record));
        assert_eq!(asked, [Some(1), Some(2), None]);
        assert_eq!((doubts.untold(), doubts.untold()), (vec![1, 3, 2], vec![]));
    }
}
