//! The claims in flight. Several claims may be open at once; they count as delivered in order, so
//! that one pair describes everything that is delivered.

use crate::model::Progress;
use std::collections::VecDeque;

/// The claims of one shard that are not fully delivered, in order. `T` is the caller's batch for
/// each claim. Claims are numbered in sequence from 0; the numbers wrap around.
pub(crate) struct InFlightClaims<T> {
    queue: VecDeque<InFlightClaim<T>>,
    /// The number of the first claim in the queue.
    first: u32,
    open: usize,
    delivered: Progress,
}

struct InFlightClaim<T> {
    claim: Progress,
    /// The number of messages that are not complete.
    open: usize,
    batch: T,
}

impl<T> InFlightClaims<T> {
    /// No claims, after a pair that is delivered.
    pub(crate) fn new(delivered: Progress) -> Self {
        Self {
            queue: VecDeque::new(),
            first: 0,
            open: 0,
            delivered,
        }
    }

    /// The pair up to which everything is delivered (I4).
    pub(crate) fn delivered(&self) -> Progress {
        self.delivered
    }

    /// The pair that was claimed last.
    pub(crate) fn claimed(&self) -> Progress {
        self.queue
            .back()
            .map_or(self.delivered, |in_flight| in_flight.claim)
    }

    /// The first claim, if all its messages are complete. It is removed by
    /// [`InFlightClaims::pop_complete`].
    pub(crate) fn first_complete(&self) -> Option<Progress> {
        let first = self.queue.front().filter(|in_flight| in_flight.open == 0);
        first.map(|in_flight| in_flight.claim)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The number of messages that are not complete.
    pub(crate) fn open_messages(&self) -> usize {
        self.open
    }

    /// Adds a claim with `open` messages.
    pub(crate) fn push(&mut self, claim: Progress, open: usize, batch: T) {
        self.open += open;
        self.queue.push_back(InFlightClaim { claim, open, batch });
    }

    /// The numbers of the claims, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + use<T> {
        let first = self.first;
        (0..self.queue.len() as u32).map(move |at| first.wrapping_add(at))
    }

    /// The claimed pairs, in order.
    pub(crate) fn claims(&self) -> impl Iterator<Item = Progress> {
        self.queue.iter().map(|in_flight| in_flight.claim)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.queue.iter_mut().map(|in_flight| &mut in_flight.batch)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.queue.iter().map(|in_flight| &in_flight.batch)
    }

    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, &T)> {
        self.numbers().zip(self.iter())
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.claim_mut(number).map(|in_flight| &mut in_flight.batch)
    }

    fn claim_mut(&mut self, number: u32) -> Option<&mut InFlightClaim<T>> {
        self.queue.get_mut(number.wrapping_sub(self.first) as usize)
    }

    /// Records that `count` messages of a claim are complete: acknowledged, dead-lettered, sent
    /// back to the source, or cancelled (I4).
    pub(crate) fn complete(&mut self, number: u32, count: usize) {
        if let Some(in_flight) = self.claim_mut(number) {
            in_flight.open = in_flight
                .open
                .checked_sub(count)
                .expect("each message completes once");
            self.open -= count;
        }
    }

    /// Records that everything that `pair` covers is delivered. The pair may lie within a claim.
    pub(crate) fn advance_delivered(&mut self, pair: Progress) {
        self.delivered = self.delivered.greatest(pair);
    }

    /// Removes the first claim if all its messages are complete, and advances the delivered pair.
    pub(crate) fn pop_complete(&mut self) -> Option<T> {
        if self.queue.front()?.open > 0 {
            return None;
        }
        let in_flight = self.queue.pop_front()?;
        self.first = self.first.wrapping_add(1);
        self.advance_delivered(in_flight.claim);
        Some(in_flight.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Timestamp, Watermark};

    fn claim(at: u64) -> Progress {
        Progress::new(
            Cursor::new(Timestamp::from_millis(at as i64), Offset(at)),
            Watermark(at + 1),
        )
    }

    #[test]
    fn a_complete_claim_waits_for_the_claims_before_it() {
        let mut claims = InFlightClaims::new(Progress::START);
        (1..=3).for_each(|at| claims.push(claim(at), 2, at));
        claims.complete(1, 2);
        assert_eq!(claims.pop_complete(), None);
        assert_eq!(claims.delivered(), Progress::START);
        claims.complete(0, 2);
        assert_eq!(claims.pop_complete(), Some(1));
        assert_eq!(claims.pop_complete(), Some(2));
        assert_eq!(claims.pop_complete(), None);
        assert_eq!(claims.delivered(), claim(2));
        assert_eq!(claims.claimed(), claim(3));
        assert_eq!(claims.open_messages(), 2);
        assert_eq!(claims.numbers().collect::<Vec<_>>(), [2]);
        assert_eq!(claims.get_mut(2), Some(&mut 3));
    }

    #[test]
    fn a_delivered_pair_within_a_claim_does_not_move_back() {
        let mut claims = InFlightClaims::new(Progress::START);
        (1..=2).for_each(|at| claims.push(claim(at * 4), 2, at));
        claims.complete(0, 2);
        claims.complete(1, 1);
        claims.advance_delivered(claim(6));
        assert_eq!(claims.pop_complete(), Some(1));
        assert_eq!(claims.pop_complete(), None);
        assert_eq!(claims.delivered(), claim(6));
        claims.complete(1, 1);
        assert_eq!(claims.pop_complete(), Some(2));
        assert_eq!(claims.delivered(), claim(8));
    }
}
