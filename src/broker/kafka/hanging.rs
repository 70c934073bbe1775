//! Which partitions have a transaction that does not end, from looks at where the first open one begins. Pure: who looks says when.

use crate::limit::KAFKA_HANGING_AFTER;
use crate::model::Partition;
use std::collections::BTreeMap;
use tokio::time::Instant;

/// What was seen of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Where the first open transaction begins; the end, if there is none.
    pub(super) stable: i64,
    pub(super) end: i64,
}

/// What a look tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hanging {
    /// The same transaction has been open there for as long as hardly any is.
    pub(super) partitions: Vec<Partition>,
    /// Others have one too, and it is not known yet for how long: look again.
    pub(super) is_unsure: bool,
}

/// The open transactions of earlier looks: where the first begins, and since when that has been known.
#[derive(Default)]
pub(super) struct Looks(BTreeMap<Partition, (i64, Instant)>);

impl Looks {
    /// Where the first open transaction begins is the same place only for as long as it is the same one.
    pub(super) fn look(&mut self, seen: impl IntoIterator<Item = (Partition, Seen)>, now: Instant) -> Hanging {
        let mut hanging = Hanging::default();
        for (partition, Seen { stable, end }) in seen {
            let known = self.0.remove(&partition);
            if stable >= end {
                continue;
            }
            let since = known.filter(|(known, _)| *known == stable).map_or(now, |(_, since)| since);
            self.0.insert(partition.clone(), (stable, since));
            if now.duration_since(since) >= KAFKA_HANGING_AFTER {
                hanging.partitions.push(partition);
            } else {
                hanging.is_unsure = true;
            }
        }
        hanging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(index: i32, stable: i64, end: i64) -> (Partition, Seen) {
        (Partition::new("t", index), Seen { stable, end })
    }

    #[test]
    fn a_transaction_hangs_that_is_the_first_open_one_for_a_while() {
        let (mut looks, now) = (Looks::default(), Instant::now());
        assert_eq!(looks.look([seen(0, 5, 5), seen(1, 7, 7)], now), Hanging::default());
        let unsure = Hanging { partitions: vec![], is_unsure: true };
        assert_eq!(looks.look([seen(0, 5, 9), seen(1, 7, 7)], now), unsure);
        let later = now + KAFKA_HANGING_AFTER;
        let hangs = Hanging { partitions: vec![seen(0, 0, 0).0], is_unsure: false };
        assert_eq!(looks.look([seen(0, 5, 12), seen(1, 7, 7)], later), hangs);
        assert_eq!(looks.look([seen(0, 6, 12)], later), unsure, "another is the first");
        assert_eq!(looks.look([seen(0, 12, 12)], later + KAFKA_HANGING_AFTER), Hanging::default());
        assert_eq!(looks.look([seen(0, 12, 13)], later + KAFKA_HANGING_AFTER), unsure, "it was over in between");
    }
}
