//! Claims in flight: several may be under way at once; what is delivered counts in the order of the claims, so that one pair says it all.

use crate::model::Progress;
use std::collections::VecDeque;

/// See the module's page. Flights are numbered from 0, by one each, and wrap.
pub(crate) struct InFlightClaims<T> {
    queue: VecDeque<InFlightClaim<T>>,
    /// The number of the first in the queue.
    first: u32,
    /// Messages whose fate is open, over all flights.
    open: usize,
    delivered: Progress,
}

/// One claim, and what the caller keeps with it.
struct InFlightClaim<T> {
    claim: Progress,
    open: usize,
    batch: T,
}

impl<T> InFlightClaims<T> {
    /// Begins behind a pair that is delivered.
    pub(crate) fn new(finished: Progress) -> Self {
        Self {
            queue: VecDeque::new(),
            first: 0,
            open: 0,
            delivered: finished,
        }
    }

    /// Everything inside it is finished with.
    pub(crate) fn delivered(&self) -> Progress {
        self.delivered
    }

    /// The pair that was claimed last.
    pub(crate) fn claimed(&self) -> Progress {
        self.queue
            .back()
            .map_or(self.delivered, |flight| flight.claim)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Messages whose fate is open.
    pub(crate) fn open_messages(&self) -> usize {
        self.open
    }

    /// A claim takes off with `left` messages whose fate is open.
    pub(crate) fn push(&mut self, claim: Progress, left: usize, load: T) {
        self.open += left;
        self.queue.push_back(InFlightClaim {
            claim,
            open: left,
            batch: load,
        });
    }

    /// The numbers of the flights, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + use<T> {
        let (first, count) = (
            self.first,
            u32::try_from(self.queue.len()).expect("flights are bounded by the messages in flight"),
        );
        (0..count).map(move |at| first.wrapping_add(at))
    }

    /// The claims of the flights, in order.
    pub(crate) fn claims(&self) -> impl Iterator<Item = Progress> {
        self.queue.iter().map(|flight| flight.claim)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.queue.iter_mut().map(|flight| &mut flight.batch)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.queue.iter().map(|flight| &flight.batch)
    }

    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, &T)> {
        self.numbers().zip(self.iter())
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.queue
            .get_mut(number.wrapping_sub(self.first) as usize)
            .map(|flight| &mut flight.batch)
    }

    /// The fate of `count` messages is settled: delivered, dead-lettered, sent back or cancelled (I4).
    pub(crate) fn complete(&mut self, number: u32, count: usize) {
        if let Some(flight) = self.queue.get_mut(number.wrapping_sub(self.first) as usize) {
            flight.open = flight
                .open
                .checked_sub(count)
                .expect("a message is settled once");
            self.open -= count;
        }
    }

    /// All that a pair covers is finished with, be it within a flight.
    pub(crate) fn advance_delivered(&mut self, pair: Progress) {
        self.delivered = self.delivered.greatest(pair);
    }

    /// Takes a flight off the front if it is complete; that moves `finished` on.
    pub(crate) fn pop_complete(&mut self) -> Option<T> {
        if self.queue.front()?.open > 0 {
            return None;
        }
        let flight = self.queue.pop_front()?;
        self.first = self.first.wrapping_add(1);
        self.advance_delivered(flight.claim);
        Some(flight.batch)
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
    fn what_finishes_first_waits_for_what_took_off_before_it() {
        let mut flights = InFlightClaims::new(Progress::START);
        (1..=3).for_each(|at| flights.push(claim(at), 2, at));
        flights.complete(1, 2);
        assert_eq!(
            (flights.pop_complete(), flights.delivered()),
            (None, Progress::START)
        );
        flights.complete(0, 2);
        assert_eq!(
            (
                flights.pop_complete(),
                flights.pop_complete(),
                flights.pop_complete()
            ),
            (Some(1), Some(2), None)
        );
        assert_eq!(
            (
                flights.delivered(),
                flights.open_messages(),
                flights.claimed()
            ),
            (claim(2), 2, claim(3))
        );
        assert_eq!(
            (flights.numbers().collect::<Vec<_>>(), flights.get_mut(2)),
            (vec![2], Some(&mut 3))
        );
    }

    #[test]
    fn a_pair_within_a_flight_stays_when_those_before_it_land() {
        let mut flights = InFlightClaims::new(Progress::START);
        (1..=2).for_each(|at| flights.push(claim(at * 4), 2, at));
        flights.complete(0, 2);
        flights.complete(1, 1);
        flights.advance_delivered(claim(6));
        assert_eq!(
            (
                flights.pop_complete(),
                flights.pop_complete(),
                flights.delivered()
            ),
            (Some(1), None, claim(6))
        );
        flights.complete(1, 1);
        assert_eq!(
            (flights.pop_complete(), flights.delivered()),
            (Some(2), claim(8))
        );
    }
}
