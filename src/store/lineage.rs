//! How a shard came to be what it is, as far as a timer must know it: which reading of the source its batches come from, and how often runs
//! were put in the place of others. Pure.
//!
//! A store that goes back in time, as after a failover, loses its last changes. Its watermark shows that only until an ingress has stored again
//! what was lost, and a lost rewrite it never shows. Then the store has the same messages in runs that begin elsewhere, and who goes on
//! from what it has loaded would never list some of them. So the store keeps:
//!
//! - the *reading* that appended last. An ingress reads on under a new name whenever it begins at a watermark that it was told instead of one
//!   that it has moved itself. What was lost is stored again by none but such a reading, and that begins before what was seen;
//! - the reading before that one: so a timer knows whether it has missed one between two looks;
//! - the number of rewrites. A rewrite is done only if its author knows the number, so nobody counts up again unawares.
//!
//! A field that is not there is the history of a shard that nobody has appended to or rewritten: versions without histories leave it as it is.

use crate::model::Watermark;

/// A reading of a source partition by one ingress, from one beginning on. Its name is never used twice: the random id of a process and a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppendEpoch {
    pub(crate) process: u64,
    pub(crate) number: u64,
}

/// See the module's page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) epoch: AppendEpoch,
    pub(crate) previous_epoch: AppendEpoch,
    /// The watermark that the reading's first batch began at.
    pub(crate) epoch_start: Watermark,
    pub(crate) replacements: u64,
}

impl Lineage {
    /// A batch of that reading was appended at `from`.
    pub(crate) fn appended(&mut self, reading: AppendEpoch, from: Watermark) {
        if self.epoch != reading {
            *self = Self {
                epoch: reading,
                previous_epoch: self.epoch,
                epoch_start: from,
                replacements: self.replacements,
            };
        }
    }

    /// Whether a store that was as `earlier` when all before `seen` had been read has surely not gone back behind that since.
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

    fn reading(number: u64) -> AppendEpoch {
        AppendEpoch { process: 7, number }
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
