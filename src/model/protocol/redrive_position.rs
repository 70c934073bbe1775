//! The dead letters of a partition that were redriven, as the metadata of an offset commit.

use super::{field_values, text_version};
use crate::model::shard::{Offset, SourceIdentity};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// The offsets of one partition that need no redrive. They were redriven, hold no dead letter of the route, or hold
/// nothing at all. One line of text: `v1 id=<identity> done=<length>,<gap>,<length>,...`, from offset 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedrivePosition {
    /// The incarnation of the partition.
    identity: SourceIdentity,
    /// Starts and exclusive ends of ranges, which neither overlap nor touch.
    done: BTreeMap<u64, u64>,
}

impl RedrivePosition {
    /// The position that a commit holds, with everything before the `first` retained offset. A commit of another incarnation
    /// counts as none. `None`: a newer version wrote the commit, or something else.
    pub(crate) fn read(
        committed: Option<&str>,
        identity: SourceIdentity,
        first: Offset,
    ) -> Option<Self> {
        let mut position = match committed.filter(|text| !text.is_empty()) {
            None => Self::new(identity),
            Some(text) => {
                let committed = Self::parse(text)?;
                if committed.identity.is_same_source(&identity) {
                    committed
                } else {
                    Self::new(identity)
                }
            }
        };
        position.insert(Offset(0), first);
        Some(position)
    }

    fn new(identity: SourceIdentity) -> Self {
        Self {
            identity,
            done: BTreeMap::new(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (1, fields) = text_version(text)? else {
            return None;
        };
        let [identity, done] = field_values(fields, ["id", "done"])?;
        let mut position = Self::new(SourceIdentity(identity.into()));
        let (mut at, mut is_done) = (0_u64, true);
        for length in done.split(',') {
            let end = at.checked_add(length.parse().ok()?)?;
            if is_done {
                position.insert(Offset(at), Offset(end));
            }
            (at, is_done) = (end, !is_done);
        }
        Some(position)
    }

    /// The first offset that may need a redrive.
    pub(crate) fn first_open(&self) -> Offset {
        Offset(self.done.get(&0).copied().unwrap_or(0))
    }

    pub(crate) fn is_done(&self, offset: Offset) -> bool {
        let before = self.done.range(..=offset.0).next_back();
        before.is_some_and(|(_, end)| offset.0 < *end)
    }

    /// Adds what another position of the same partition has.
    pub(crate) fn merge(&mut self, other: &Self) {
        let ranges = other.done.iter();
        ranges.for_each(|(from, end)| self.insert(Offset(*from), Offset(*end)));
    }

    /// Adds the offsets from `from` to before `end`.
    pub(crate) fn insert(&mut self, from: Offset, end: Offset) {
        let (mut from, mut end) = (from.0, end.0);
        if from >= end {
            return;
        }
        while let Some((&start, &known_end)) = self.done.range(..=end).next_back()
            && known_end >= from
        {
            self.done.remove(&start);
            from = from.min(start);
            end = end.max(known_end);
        }
        self.done.insert(from, end);
    }
}

impl fmt::Display for RedrivePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut done = self.first_open().to_string();
        let mut at = self.first_open().0;
        for (start, end) in self.done.range(1..) {
            write!(done, ",{},{}", start - at, end - start)?;
            at = *end;
        }
        write!(f, "v1 id={} done={done}", self.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};
    use std::collections::BTreeSet;

    fn identity(text: &str) -> SourceIdentity {
        SourceIdentity(text.into())
    }

    fn read(text: Option<&str>, first: u64) -> Option<RedrivePosition> {
        RedrivePosition::read(text, identity("c:t"), Offset(first))
    }

    #[test]
    fn a_position_survives_its_text() {
        let mut position = read(None, 10).unwrap();
        assert_eq!(position.to_string(), "v1 id=c:t done=10");
        position.insert(Offset(12), Offset(15));
        position.insert(Offset(20), Offset(21));
        assert_eq!(position.to_string(), "v1 id=c:t done=10,2,3,5,1");
        assert_eq!(read(Some(&position.to_string()), 0).unwrap(), position);
        let done: Vec<u64> = (0..25).filter(|it| position.is_done(Offset(*it))).collect();
        assert_eq!(done[10..], [12, 13, 14, 20]);
        position.insert(Offset(10), Offset(12));
        assert_eq!(position.first_open(), Offset(15));
        assert_eq!(position.to_string(), "v1 id=c:t done=15,5,1");
    }

    #[test]
    fn removed_records_and_another_incarnation_are_forgotten() {
        let text = "v1 id=c:t done=10,2,3,5,1";
        assert_eq!(
            read(Some(text), 17).unwrap().to_string(),
            "v1 id=c:t done=17,3,1"
        );
        let other = RedrivePosition::read(Some(text), identity("c:u"), Offset(0)).unwrap();
        assert_eq!(other.to_string(), "v1 id=c:u done=0");
    }

    #[test]
    fn an_unknown_text_is_no_position() {
        for text in [
            "v2 id=c:t done=1",
            "x",
            "v1 id=c:t",
            "v1 id=c:t done=a",
            "v1 id=c:t done=9,99999999999999999999",
        ] {
            assert_eq!(read(Some(text), 0), None, "{text}");
        }
        assert!(read(Some(""), 0).is_some());
    }

    #[test]
    fn ranges_agree_with_a_set() {
        let mut random = StdRng::seed_from_u64(7);
        for _ in 0..500 {
            let (mut position, mut set) = (read(None, 0).unwrap(), BTreeSet::new());
            for _ in 0..random.random_range(0..20) {
                let from = random.random_range(0..40);
                let end = from + random.random_range(0..8);
                position.insert(Offset(from), Offset(end));
                set.extend(from..end);
                let again = read(Some(&position.to_string()), 0).unwrap();
                assert_eq!(again, position);
                (0..50).for_each(|it| assert_eq!(position.is_done(Offset(it)), set.contains(&it)));
            }
        }
    }
}
