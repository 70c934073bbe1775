//! The lineage of a shard: which ingress epochs appended to it, and how often its runs were
//! replaced. A timer uses it to detect that the store lost writes. Pure.
//!
//! After a failover the watermark shows lost writes only until an ingress has appended the lost
//! messages again, in other runs. It never shows a lost replacement of runs. A timer that kept its
//! loaded runs would miss the new ones. Therefore the store keeps:
//!
//! - the *epochs* of the last appends, each with the watermark at which it started. An ingress starts a
//!   new epoch whenever it starts to read at the watermark of the store. Only such an epoch can append
//!   lost messages again, and it starts before the messages that a timer has seen;
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

/// The epochs of a shard that the store remembers. A partition that goes back and forth between
/// workers starts one or two within the second in which each timer looks.
pub(crate) const EPOCHS_MAX: usize = 5;

/// An epoch, and the watermark at which its first batch started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EpochStart {
    pub(crate) epoch: AppendEpoch,
    pub(crate) start: Watermark,
}

/// The lineage of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// The last epochs, the latest one first. The rest has the default value.
    pub(crate) epochs: [EpochStart; EPOCHS_MAX],
    pub(crate) replacements: u64,
}

impl Lineage {
    /// Records an append of this epoch at the watermark `from`.
    pub(crate) fn appended(&mut self, epoch: AppendEpoch, from: Watermark) {
        if self.epochs[0].epoch != epoch {
            self.epochs.rotate_right(1);
            self.epochs[0] = EpochStart { epoch, start: from };
        }
    }

    /// True if other epochs have followed this one.
    pub(crate) fn has_followed(&self, epoch: AppendEpoch) -> bool {
        let [latest, earlier @ ..] = &self.epochs;
        let is_earlier = earlier.iter().any(|it| it.epoch == epoch);
        is_earlier && epoch != latest.epoch && !fault!(AcceptFollowedEpoch)
    }

    /// True if the store has certainly not rolled back behind `seen` since it had the lineage
    /// `earlier`, when everything before `seen` had been read.
    pub(crate) fn continues(&self, earlier: &Self, seen: Watermark) -> bool {
        let known = earlier.epochs[0];
        let at = self.epochs.iter().position(|it| *it == known);
        let since = at.map(|at| &self.epochs[..at]);
        let starts_behind = since.is_some_and(|since| since.iter().all(|it| it.start >= seen));
        self.replacements >= earlier.replacements && starts_behind
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
    fn the_epochs_before_the_present_one_are_refused() {
        let mut lineage = Lineage::default();
        lineage.appended(reading(1), Watermark(0));
        assert!(!lineage.has_followed(reading(1)));
        lineage.appended(reading(2), Watermark(5));
        lineage.appended(reading(3), Watermark(5));
        let refused = || [1, 2, 3, 4].map(|number| lineage.has_followed(reading(number)));
        assert_eq!(refused(), [true, true, false, false]);
        let faults = [InjectedFault::AcceptFollowedEpoch];
        assert_eq!(fault_injection::with(faults, refused), [false; 4]);
    }

    #[test]
    fn a_store_that_went_on_continues_its_history_and_one_that_went_back_does_not() {
        let mut known = Lineage::default();
        known.appended(reading(1), Watermark(0));
        let first = EpochStart {
            epoch: reading(1),
            start: Watermark(0),
        };
        assert_eq!(known.epochs[..2], [first, EpochStart::default()]);
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
        assert!(
            with(&[(2, 262), (3, 262), (4, 262), (5, 270)], 5),
            "several readings began behind what was seen"
        );
        assert!(
            !with(&[(2, 262), (3, 262), (4, 262), (5, 262), (6, 262)], 5),
            "more readings than the store remembers"
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
