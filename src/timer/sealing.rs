//! Where a transaction of a shard may end, and the pair that says what it holds. It need not end with a claim: claims `1..=k` together are all
//! that lies between the pair before them and the last one's (C, W), whichever message came by which claim. Handed over by place, and all up
//! to some place handed over, they make (that place, W of the last) as true a pair as one that was claimed. Pure.
//!
//! What arrives late may lie before what is handed over already: then it must go along, or the claims that it came by are left out.

use super::flying::ClaimedBatch;
use crate::model::{Cursor, Progress};
use crate::schedule::InFlightClaims;

/// Nothing more goes along in a transaction but what lies within these, which must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommitPoint {
    /// Of so many flights, the first.
    pub(super) batches: usize,
    /// Up to this place.
    pub(super) until: Cursor,
}

/// A claim as far as this page cares.
#[derive(Clone, Copy, Debug)]
struct ClaimPart {
    claim: Progress,
    /// The place of its first message that is not handed over.
    next: Option<Cursor>,
    /// Some of it is in the transaction.
    is_in: bool,
}

/// How many of the flights the transaction under way is of, from the first, and the pair to commit it with. `until` is the greatest place that
/// is handed over or done. `None`: something must go along that was not handed over yet.
pub(super) fn commit_pair(
    flights: &InFlightClaims<ClaimedBatch>,
    until: Cursor,
) -> Option<(usize, Progress)> {
    let part = |(claim, aloft): (Progress, &ClaimedBatch)| ClaimPart {
        claim,
        next: aloft.next_unsent_place(),
        is_in: !aloft.uncommitted().is_empty(),
    };
    commit_pair_of(flights.claims().zip(flights.iter()).map(part), until)
}

fn commit_pair_of(
    parts: impl Iterator<Item = ClaimPart>,
    until: Cursor,
) -> Option<(usize, Progress)> {
    let (mut count, mut last, mut is_whole, mut is_cut) = (0, None, true, false);
    for part in parts {
        is_cut |= part.next.is_some_and(|next| next <= until) && !fault!(TreatLateAsDelivered);
        if !is_cut {
            (count, last, is_whole) =
                (count + 1, Some(part.claim), is_whole && part.next.is_none());
        } else if part.is_in {
            return None;
        }
    }
    let Progress { cursor, watermark } = last?;
    Some((
        count,
        Progress::new(if is_whole { cursor } else { until }, watermark),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, Timestamp, Watermark};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn place(due: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(due), Offset(offset))
    }

    /// A claim, and which of its messages, by place, are handed over and done.
    struct Flight {
        claim: Progress,
        places: Vec<Cursor>,
        next: usize,
        done: usize,
    }

    /// All messages that there are, offset by offset; a claim takes what its pair covers and those before it did not.
    struct Shard {
        dues: Vec<i64>,
        taken: Progress,
        flights: Vec<Flight>,
        marker: Progress,
        /// What was handed over since the last commit, and committed before it.
        sent: BTreeSet<Cursor>,
        seen: BTreeSet<Cursor>,
    }

    impl Shard {
        fn covered(&self, pair: Progress) -> BTreeSet<Cursor> {
            self.dues
                .iter()
                .zip(0..)
                .map(|(due, offset)| place(*due, offset))
                .filter(|place| pair.covers(*place))
                .collect()
        }

        /// Takes what is due by then and stored before W, which moves on; C moves to the last of it.
        fn claim(&mut self, due: i64, more: u64) {
            let reach = self.taken.cursor.max(place(due, u64::MAX));
            let watermark = Watermark((self.taken.watermark.0 + more).min(self.dues.len() as u64));
            let places = self
                .covered(Progress::new(reach, watermark))
                .difference(&self.covered(self.taken))
                .copied()
                .collect::<Vec<_>>();
            let Some(last) = places.last().copied() else {
                return;
            };
            let claim = Progress::new(last.max(self.taken.cursor), watermark);
            self.flights.push(Flight {
                claim,
                places,
                next: 0,
                done: 0,
            });
            self.taken = claim;
        }

        /// Hands the next over, by place, of the first so many flights and not past `until`.
        fn hand(&mut self, flights: usize, until: Option<Cursor>) -> bool {
            let open = self
                .flights
                .iter_mut()
                .take(flights)
                .filter(|flight| flight.next < flight.places.len());
            let Some(flight) = open.min_by_key(|flight| flight.places[flight.next]) else {
                return false;
            };
            let place = flight.places[flight.next];
            if until.is_some_and(|until| place > until) {
                return false;
            }
            flight.next += 1;
            assert!(self.sent.insert(place), "handed over once");
            true
        }

        fn until(&self) -> Cursor {
            self.sent
                .last()
                .copied()
                .map_or(self.marker.cursor, |last| last.max(self.marker.cursor))
        }

        fn pair(&self) -> Option<(usize, Progress)> {
            let part = |flight: &Flight| ClaimPart {
                claim: flight.claim,
                next: flight.places.get(flight.next).copied(),
                is_in: flight.done < flight.next,
            };
            commit_pair_of(self.flights.iter().map(part), self.until())
        }

        fn commit(&mut self) -> Result<(), TestCaseError> {
            let Some((flights, pair)) = self.pair().filter(|_| !self.sent.is_empty()) else {
                return Ok(());
            };
            prop_assert!(
                pair.includes(self.marker),
                "{pair:?} after {:?}",
                self.marker
            );
            self.seen.append(&mut self.sent);
            // What the pair says is what was seen: nothing lost, nothing to come twice.
            prop_assert_eq!(self.covered(pair), self.seen.clone());
            for flight in self.flights.iter_mut().take(flights) {
                flight.done = flight.next;
            }
            prop_assert!(
                self.flights
                    .iter()
                    .skip(flights)
                    .all(|flight| flight.next == 0)
            );
            let landed = self
                .flights
                .iter()
                .take_while(|flight| flight.done == flight.places.len())
                .count();
            prop_assert!(
                self.flights[..landed]
                    .iter()
                    .all(|flight| pair.includes(flight.claim)),
                "what has landed is inside it"
            );
            self.flights.drain(..landed);
            self.marker = pair;
            Ok(())
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Claim(i64, u64),
        Hand(usize),
        /// As when it is sealed: what must go along does, and claims may come meanwhile.
        Seal(i64, u64),
        Commit,
        Abort,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0i64..20, 0u64..12).prop_map(|(due, more)| Step::Claim(due, more)),
            (1usize..12).prop_map(Step::Hand),
            (0i64..20, 0u64..12).prop_map(|(due, more)| Step::Seal(due, more)),
            Just(Step::Commit),
            Just(Step::Abort),
        ]
    }

    proptest! {
        #[test]
        fn whatever_is_claimed_and_handed_over_a_pair_covers_what_was_seen_and_nothing_else(
            dues in prop::collection::vec(0i64..20, 1..80),
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let none = BTreeSet::new;
            let mut shard = Shard { dues, taken: Progress::START, flights: Vec::new(), marker: Progress::START, sent: none(), seen: none() };
            for step in steps {
                match step {
                    Step::Claim(due, more) => shard.claim(due, more),
                    Step::Hand(count) => (0..count).for_each(|_| _ = shard.hand(usize::MAX, None)),
                    Step::Seal(due, more) => {
                        let (flights, until) = (shard.flights.len(), shard.until());
                        shard.claim(due, more);
                        while shard.hand(flights, Some(until)) {}
                        prop_assert!(shard.sent.is_empty() || shard.pair().is_some(), "what is sealed can be committed");
                        shard.commit()?;
                    }
                    Step::Commit => shard.commit()?,
                    Step::Abort => {
                        shard.sent.clear();
                        shard.flights.iter_mut().for_each(|flight| flight.next = flight.done);
                    }
                }
            }
            let flights = shard.flights.len();
            while shard.hand(flights, None) {}
            shard.commit()?;
            prop_assert_eq!(&shard.seen, &shard.covered(shard.taken), "in the end all that was claimed is seen");
        }
    }
}
