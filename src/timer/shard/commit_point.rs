//! Where a transaction of a shard may end, and the pair (C, W) that it commits.
//!
//! A transaction need not end with a claim. Claims `1..=k` together contain all messages between
//! the pair before them and the pair of claim k, whichever claim has taken which message. If they
//! are sent in order of their places, up to some place, then (that place, W of claim k)
//! is as correct a pair as a claimed one.
//!
//! A late message may precede a place that was already sent. Then it must be part of the
//! transaction, or its claim is left out.
//!
//! A claim that has not begun adds nothing but a greater W. The pair does not have it, because the claim
//! of a recurring route passes definitions at a cursor that the transaction may not have reached.

use crate::model::{Cursor, Progress};
use crate::schedule::InFlightClaims;
use crate::timer::delivery::in_flight::ClaimedBatch;

/// The end of the current transaction, which must contain all messages within these limits and
/// accepts no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitPoint {
    /// Only messages of this many batches, counted from the first.
    pub(crate) batches: usize,
    /// No message after this place.
    pub(crate) until: Cursor,
}

/// The properties of a claim that decide about a commit.
#[derive(Clone, Copy, Debug)]
struct ClaimPart {
    claim: Progress,
    /// Position of the claim's first message that was not sent.
    next: Option<Cursor>,
    /// Some of its messages are in the transaction.
    is_in_transaction: bool,
    /// Some of its messages were sent, now or in an earlier transaction.
    has_begun: bool,
}

/// Returns the number of batches that the current transaction covers, and the pair to commit.
/// `until` is the greatest place that was sent or committed. `None` if the transaction lacks a
/// message that it must contain.
pub(crate) fn commit_pair(
    in_flight: &InFlightClaims<ClaimedBatch>,
    until: Cursor,
) -> Option<(usize, Progress)> {
    let part = |(claim, batch): (Progress, &ClaimedBatch)| ClaimPart {
        claim,
        next: batch.next_place(),
        is_in_transaction: !batch.in_transaction().is_empty(),
        has_begun: batch.next_unsent() > 0,
    };
    commit_pair_of(in_flight.claims().zip(in_flight.iter()).map(part), until)
}

fn commit_pair_of(
    parts: impl Iterator<Item = ClaimPart>,
    until: Cursor,
) -> Option<(usize, Progress)> {
    let mut covered = 0;
    let mut last = None;
    // All claims up to the current one are complete.
    let mut are_complete = true;
    let mut has_gap = false;
    for (number, part) in (1..).zip(parts) {
        has_gap |= part.next.is_some_and(|next| next <= until) && !fault!(TreatLateAsDelivered);
        if has_gap && part.is_in_transaction {
            return None;
        }
        are_complete &= part.next.is_none();
        let is_part = part.has_begun || part.next.is_none() || fault!(CommitClaimsNotBegun);
        if !has_gap && is_part {
            covered = number;
            let cursor = if are_complete {
                part.claim.cursor
            } else {
                until
            };
            last = Some(Progress::new(cursor, part.claim.watermark));
        }
    }
    Some((covered, last?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, Timestamp, Watermark};
    use crate::testing::fault_injection::{self, InjectedFault};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn place(due: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(due), Offset(offset))
    }

    /// A claim in flight. `next` of its messages are sent, `done` of them committed.
    struct ClaimInFlight {
        claim: Progress,
        places: Vec<Cursor>,
        next: usize,
        done: usize,
    }

    /// A shard with all its messages by offset. A claim takes the messages that its pair covers and
    /// no earlier claim has taken.
    struct Shard {
        dues: Vec<i64>,
        taken: Progress,
        claims: Vec<ClaimInFlight>,
        marker: Progress,
        /// Places sent since the last commit, and places committed.
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

        /// Claims messages that are due by `due`. Moves W by up to `more` offsets, and C to the last
        /// claimed place.
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
            self.claims.push(ClaimInFlight {
                claim,
                places,
                next: 0,
                done: 0,
            });
            self.taken = claim;
        }

        /// Sends the next message in order, of the first `claims` claims and up to `until`.
        fn send(&mut self, claims: usize, until: Option<Cursor>) -> bool {
            let open = self
                .claims
                .iter_mut()
                .take(claims)
                .filter(|in_flight| in_flight.next < in_flight.places.len());
            let Some(in_flight) = open.min_by_key(|in_flight| in_flight.places[in_flight.next])
            else {
                return false;
            };
            let place = in_flight.places[in_flight.next];
            if until.is_some_and(|until| place > until) {
                return false;
            }
            in_flight.next += 1;
            assert!(self.sent.insert(place), "sent once");
            true
        }

        fn until(&self) -> Cursor {
            self.sent
                .last()
                .copied()
                .map_or(self.marker.cursor, |last| last.max(self.marker.cursor))
        }

        fn pair(&self) -> Option<(usize, Progress)> {
            let part = |in_flight: &ClaimInFlight| ClaimPart {
                claim: in_flight.claim,
                next: in_flight.places.get(in_flight.next).copied(),
                is_in_transaction: in_flight.done < in_flight.next,
                has_begun: in_flight.next > 0,
            };
            commit_pair_of(self.claims.iter().map(part), self.until())
        }

        fn commit(&mut self) -> Result<(), TestCaseError> {
            let Some((claims, pair)) = self.pair().filter(|_| !self.sent.is_empty()) else {
                return Ok(());
            };
            prop_assert!(
                pair.includes(self.marker),
                "{pair:?} after {:?}",
                self.marker
            );
            self.seen.append(&mut self.sent);
            // The pair covers exactly the messages that consumers have seen.
            prop_assert_eq!(self.covered(pair), self.seen.clone());
            for in_flight in self.claims.iter_mut().take(claims) {
                in_flight.done = in_flight.next;
            }
            prop_assert!(
                self.claims
                    .iter()
                    .skip(claims)
                    .all(|in_flight| in_flight.next == 0)
            );
            let landed = self
                .claims
                .iter()
                .take_while(|in_flight| in_flight.done == in_flight.places.len())
                .count();
            prop_assert!(
                self.claims[..landed]
                    .iter()
                    .all(|in_flight| pair.includes(in_flight.claim)),
                "the pair includes complete claims"
            );
            self.claims.drain(..landed);
            self.marker = pair;
            Ok(())
        }
    }

    #[test]
    fn a_pair_has_no_watermark_of_a_claim_that_has_not_begun() {
        let claim =
            |due, offset, watermark| Progress::new(place(due, offset), Watermark(watermark));
        // The second claim has passed a definition behind the due time of the first.
        let first = ClaimPart {
            claim: claim(9, 2, 5),
            next: Some(place(9, 2)),
            is_in_transaction: true,
            has_begun: true,
        };
        let second = ClaimPart {
            claim: claim(10, 5, 6),
            next: Some(place(10, 5)),
            is_in_transaction: false,
            has_begun: false,
        };
        let pair = |parts: [ClaimPart; 2]| commit_pair_of(parts.into_iter(), place(9, 1));
        let caught = fault_injection::with([InjectedFault::CommitClaimsNotBegun], || {
            pair([first, second])
        });
        assert_eq!(caught, Some((2, claim(9, 1, 6))), "the fault is caught");
        assert_eq!(pair([first, second]), Some((1, claim(9, 1, 5))));
        // A complete claim without messages, as at the start of a shard.
        let complete = ClaimPart {
            next: None,
            is_in_transaction: false,
            has_begun: false,
            ..first
        };
        assert_eq!(pair([complete, second]), Some((1, claim(9, 2, 5))));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Claim(i64, u64),
        Send(usize),
        /// Fixes the commit point, sends all messages before it, and commits. A claim comes between.
        CommitPoint(i64, u64),
        Commit,
        Abort,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0i64..20, 0u64..12).prop_map(|(due, more)| Step::Claim(due, more)),
            (1usize..12).prop_map(Step::Send),
            (0i64..20, 0u64..12).prop_map(|(due, more)| Step::CommitPoint(due, more)),
            Just(Step::Commit),
            Just(Step::Abort),
        ]
    }

    proptest! {
        #[test]
        fn a_committed_pair_covers_exactly_the_messages_that_were_seen(
            dues in prop::collection::vec(0i64..20, 1..80),
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let none = BTreeSet::new;
            let mut shard = Shard { dues, taken: Progress::START, claims: Vec::new(), marker: Progress::START, sent: none(), seen: none() };
            for step in steps {
                match step {
                    Step::Claim(due, more) => shard.claim(due, more),
                    Step::Send(count) => (0..count).for_each(|_| _ = shard.send(usize::MAX, None)),
                    Step::CommitPoint(due, more) => {
                        let (claims, until) = (shard.claims.len(), shard.until());
                        shard.claim(due, more);
                        while shard.send(claims, Some(until)) {}
                        prop_assert!(shard.sent.is_empty() || shard.pair().is_some(), "the commit point can be committed");
                        shard.commit()?;
                    }
                    Step::Commit => shard.commit()?,
                    Step::Abort => {
                        shard.sent.clear();
                        shard.claims.iter_mut().for_each(|in_flight| in_flight.next = in_flight.done);
                    }
                }
            }
            let claims = shard.claims.len();
            while shard.send(claims, None) {}
            shard.commit()?;
            prop_assert_eq!(&shard.seen, &shard.covered(shard.taken), "all claimed messages are seen in the end");
        }
    }
}
