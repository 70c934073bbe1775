//! The topics' handles that a producer keeps: at most so many. Messages may name any number of topics; a handle that is gone is made again.

use super::is_valid_topic_name;
use super::raw::{NativeProducer, TopicHandle};
use crate::limit::KAFKA_TOPIC_HANDLES_MAX;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;

/// See the module's page. When there are as many as may be, one goes that was not sent to lately: each that was since the hand came by it last is
/// passed over once (the clock algorithm). Where topics come in rotation the next ones in line would be those that are wanted next: so the hand jumps
/// on after each, and of a few topics more than are kept only few are made again.
pub(super) struct Topics<T = TopicHandle> {
    places: BTreeMap<Box<str>, usize>,
    kept: Vec<Kept<T>>,
    /// Where the one lies that was sent to last, which mostly is the next one, too.
    last: usize,
    hand: usize,
    max: usize,
}

struct Kept<T> {
    name: Box<str>,
    handle: T,
    /// It was sent to since the hand came by.
    is_used: bool,
}

impl Topics {
    pub(super) fn new() -> Self {
        Self::of(KAFKA_TOPIC_HANDLES_MAX)
    }

    /// The handle of a topic of this sender, which must be the same each time.
    pub(super) fn of_sender(
        &mut self,
        sender: &NativeProducer,
        name: &str,
    ) -> Result<&TopicHandle, Code> {
        let make = || {
            if is_valid_topic_name(name) {
                sender.topic(name)
            } else {
                None
            }
        };
        self.get(name, make).ok_or(Code::InvalidTopic)
    }
}

impl<T> Topics<T> {
    fn of(max: usize) -> Self {
        Self {
            places: BTreeMap::new(),
            kept: Vec::new(),
            last: 0,
            hand: 0,
            max,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::of(self.max);
    }

    fn get(&mut self, name: &str, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        if self
            .kept
            .get(self.last)
            .is_none_or(|last| *last.name != *name)
        {
            self.last = match self.places.get(name) {
                Some(at) => *at,
                None => self.put(name, make()?),
            };
            self.kept[self.last].is_used = true;
        }
        Some(&self.kept[self.last].handle)
    }

    /// Answers where it lies.
    fn put(&mut self, name: &str, handle: T) -> usize {
        let kept = Kept {
            name: name.into(),
            handle,
            is_used: true,
        };
        let at = if self.kept.len() < self.max {
            self.kept.push(kept);
            self.kept.len() - 1
        } else {
            let at = self.next_to_go();
            self.places.remove(&self.kept[at].name);
            self.kept[at] = kept;
            at
        };
        self.places.insert(name.into(), at);
        at
    }

    /// Ends in the second round at the latest.
    fn next_to_go(&mut self) -> usize {
        let count = self.kept.len();
        loop {
            let at = self.hand;
            self.hand = (at + 1) % count;
            if !std::mem::take(&mut self.kept[at].is_used) {
                // The golden section: no place is come by much more often than another.
                self.hand = (self.hand + count * 618 / 1_000) % count;
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for topics by their numbers; answers how many handles were made.
    fn made(topics: &mut Topics<u32>, asked: impl Iterator<Item = u32>) -> usize {
        let mut made = 0;
        for number in asked {
            let make = || {
                made += 1;
                Some(number)
            };
            assert_eq!(topics.get(&number.to_string(), make), Some(&number));
        }
        assert!(topics.kept.len() <= topics.max && topics.places.len() == topics.kept.len());
        made
    }

    #[test]
    fn one_topic_more_than_are_kept_costs_one_handle_and_not_all() {
        let mut topics = Topics::of(100);
        assert_eq!(made(&mut topics, 0..100), 100);
        assert_eq!(made(&mut topics, (0..100).chain([100])), 1);
        let rotations = (0..10).flat_map(|_| 0..101);
        assert!(made(&mut topics, rotations) < 200, "of 1010");
    }

    #[test]
    fn what_is_sent_to_again_and_again_stays_while_others_come_and_go() {
        let mut topics = Topics::of(10);
        let often = |number| [number, 0, 1, 2].into_iter();
        assert!(made(&mut topics, (3..1_000).flat_map(often)) < 1_010);
    }

    #[test]
    fn a_topic_that_cannot_be_is_not_kept() {
        let mut topics = Topics::of(2);
        assert_eq!(topics.get("a", || None), None);
        assert_eq!(
            (
                made(&mut topics, [1, 1, 1, 2].into_iter()),
                topics.kept.len()
            ),
            (2, 2)
        );
        topics.clear();
        assert_eq!(made(&mut topics, 1..3), 2);
    }
}
