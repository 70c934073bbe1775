//! The lineage of a shard: which ingress epochs appended to it, and how often its runs were
//! replaced. A timer uses it to detect that the store lost writes. Pure.
//!
//! After a failover the watermark shows lost writes only until an ingress has appended the lost
//! messages again, in other runs. It never shows a lost replacement of runs. A timer that kept its
//! loaded runs would miss the new ones. Therefore the store keeps:
//!
//! - the *epoch* of the last append, and the one before it. An ingress starts a new epoch whenever
//!   it starts to read at the watermark of the store. Only such an epoch can append lost messages
//!   again, and it starts before the messages that a timer has seen;
//! - the number of replacements. A replacement requires that its author knows the number, so a
//!   rolled back number is never counted up unnoticed.
//!
//! The scheme is that of Kafka's leader epochs. A missing lineage counts as the default one.

use crate::model::Watermark;

/// Identifies one ingress from the point where it started to read a source partition. Never reused:
/// the random id of the process, and a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppendEpoch {
    pub(crate) process: u64,
    pub(crate) number: u64,
}

/// The lineage of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) epoch: AppendEpoch,
    pub(crate) previous_epoch: AppendEpoch,
    /// The watermark at which the first batch of the epoch started.
    pub(crate) epoch_start: Watermark,
    pub(crate) replacements: u64,
}

impl Lineage {
    /// Records an append of this epoch at the watermark `from`.
    pub(crate) fn appended(&mut self, epoch: AppendEpoch, from: Watermark) {
        if self.epoch != epoch {
            *self = Self {
                epoch,
                previous_epoch: self.epoch,
                epoch_start: from,
                replacements: self.replacements,
            };
        }
    }

    /// True if the epoch was followed by the one of the last append.
    pub(crate) fn has_followed(&self, epoch: AppendEpoch) -> bool {
        epoch == self.previous_epoch && epoch != self.epoch && !fault!(AcceptFollowedEpoch)
    }

    /// True if the store has certainly not rolled back behind `seen` since it had the lineage
    /// `earlier`, when everything before `seen` had been read.
    pub(crate) fn continues(&self, earlier: &Self, seen: Watermark) -> bool {
        let is_same = Self {
            replacements: earlier.replacements,
            ..*self
        } == *earlier;
        let is_next = self.previous_epoch == earlier.epoch && self.epoch_start >= seen;
        self.replacements >= earlier.replacements && (is_same || is_next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fault_injection::{self, InjectedFault};

    fn reading(number: u64) -> AppendEpoch {
        AppendEpoch { process: 7, number }
    }

    #[test]
    fn only_the_epoch_before_the_present_one_is_refused() {
        let mut lineage = Lineage::default();
        lineage.appended(reading(1), Watermark(0));
        assert!(!lineage.has_followed(reading(1)));
        lineage.appended(reading(2), Watermark(5));
        let refused = || [1, 2, 3].map(|number| lineage.has_followed(reading(number)));
        assert_eq!(refused(), [true, false, false]);
        let faults = [InjectedFault::AcceptFollowedEpoch];
        assert_eq!(fault_injection::with(faults, refused), [false; 3]);
    }

    #[test]
    fn a_store_that_went_on_continues_its_history_and_one_that_went_back_does_not() {
        let mut known = Lineage::default();
        known.appended(reading(1), Watermark(0));
        assert_eq!(
            known,
            Lineage {
                epoch: reading(1),
                previous_epoch: AppendEpoch::default(),
                epoch_start: Watermark(0),
                replacements: 0
            }
        );
        known.replacements = 5;
        let seen = Watermark(262);
        let with = |readings: &[(u64, u64)], rewrites| {
            let mut history = Lineage {
                replacements: rewrites,
                ..known
            };
            readings
                .iter()
                .for_each(|(number, from)| history.appended(reading(*number), Watermark(*from)));
            history.continues(&known, seen)
        };
        assert!(
            with(&[], 5) && with(&[(1, 262)], 9),
            "the same reading goes on, and runs are rewritten"
        );
        assert!(!with(&[], 4), "a rewrite was undone");
        assert!(
            with(&[(2, 262)], 5) && with(&[(2, 300)], 6),
            "another reading began behind what was seen"
        );
        assert!(!with(&[(2, 261)], 5), "what was seen was stored again");
        assert!(
            !with(&[(2, 30), (3, 262)], 5),
            "and another reading has begun since"
        );
        assert!(
            !with(&[(2, 30), (1, 262)], 5),
            "or the first one goes on after it"
        );
    }
}
