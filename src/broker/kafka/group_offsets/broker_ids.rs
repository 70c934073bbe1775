//! The brokers of a cluster, for requests that go from one to the next.

use crate::broker::kafka::ffi::{self, NativeClient};
use crate::broker::kafka::limit::{KAFKA_PROBE_INTERVAL, KAFKA_PROBE_TIMEOUT};
use crate::client_thread::ClientThread;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use tokio::time::Instant;

/// The ids of all brokers, as far as known.
#[derive(Default)]
pub(in crate::broker::kafka) struct BrokerIds {
    /// Brokers that have not answered are last.
    ids: Vec<i32>,
    question: Option<BrokerQuestion>,
    asked_at: Option<Instant>,
}

/// A request for the ids of all brokers. It blocks, so it has a thread of its own.
struct BrokerQuestion {
    answer: Receiver<Vec<i32>>,
    _thread: ClientThread,
}

impl BrokerIds {
    /// In the order in which to ask them.
    pub(in crate::broker::kafka) fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// Asks for the ids again, if that was long ago. The answer unparks this thread.
    pub(in crate::broker::kafka) fn refresh(
        &mut self,
        native: &Arc<NativeClient>,
        topic: &str,
        now: Instant,
    ) {
        let is_recent = |at: Instant| now < at + KAFKA_PROBE_INTERVAL;
        let is_known = !self.ids.is_empty() && self.asked_at.is_some_and(is_recent);
        if is_known || self.question.is_some() {
            return;
        }
        self.asked_at = Some(now);
        let (sender, answer) = sync_channel(1);
        let (native, topic) = (native.clone(), topic.to_owned());
        let asker = std::thread::current();
        let ask = move || {
            // Without an answer the ids of before stay.
            if let Ok(ids) = ffi::broker_ids(&native, &topic, KAFKA_PROBE_TIMEOUT) {
                drop(sender.send(ids));
            }
            drop((sender, native));
            asker.unpark();
        };
        let thread = ClientThread::start("kafka-brokers", ask).ok();
        self.question = thread.map(|thread| BrokerQuestion {
            answer,
            _thread: thread,
        });
    }

    /// Returns whether the ids have come.
    pub(in crate::broker::kafka) fn take_answer(&mut self) -> bool {
        let answer = match &self.question {
            Some(question) => question.answer.try_recv(),
            None => return false,
        };
        if matches!(answer, Err(TryRecvError::Empty)) {
            return false;
        }
        self.question = None;
        let has_come = answer.is_ok();
        answer.into_iter().for_each(|ids| self.learn(ids));
        has_come
    }

    fn learn(&mut self, ids: Vec<i32>) {
        self.ids.retain(|id| ids.contains(id));
        let known = std::mem::take(&mut self.ids);
        let new = ids.into_iter().filter(|id| !known.contains(id));
        self.ids = new.collect();
        self.ids.extend(&known);
    }

    pub(in crate::broker::kafka) fn ask_last(&mut self, broker: i32) {
        self.ids.retain(|id| *id != broker);
        self.ids.push(broker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_does_not_answer_is_asked_last() {
        let mut brokers = BrokerIds::default();
        brokers.learn(vec![1, 2, 3]);
        brokers.ask_last(1);
        assert_eq!(brokers.ids(), [2, 3, 1]);
        brokers.learn(vec![1, 3, 4]);
        assert_eq!(brokers.ids(), [4, 3, 1]);
        brokers.ask_last(7);
        assert_eq!(brokers.ids(), [4, 3, 1, 7]);
        brokers.learn(vec![1, 3, 4]);
        assert_eq!(brokers.ids(), [4, 3, 1], "it is no broker any more");
        let mut brokers = BrokerIds::default();
        brokers.ask_last(1);
        brokers.learn(vec![1, 2]);
        assert_eq!(brokers.ids(), [2, 1], "it was known before the others");
    }
}
