//! Where a search continues: the last run that it read, and the place in it. The text form is opaque.

use crate::model::{Cursor, Offset, Partition, ShardId, Timestamp};
use crate::run::RunName;
use crate::store::RunEntry;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The order in which a search reads runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunKey {
    pub(super) least_due: Timestamp,
    pub(super) shard: ShardId,
    least_offset: Offset,
    name: RunName,
}

/// A run that was read, up to a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SearchPosition {
    pub(super) run: RunKey,
    pub(super) place: Cursor,
}

impl RunKey {
    pub(super) fn new(shard: &ShardId, entry: &RunEntry) -> Self {
        Self {
            least_due: entry.least_due,
            shard: shard.clone(),
            least_offset: entry.name.least_offset(),
            name: entry.name.clone(),
        }
    }
}

impl SearchPosition {
    /// Behind all messages of a run.
    pub(super) fn behind(run: RunKey) -> Self {
        let place = Cursor::new(Timestamp::MAX, Offset::MAX);
        Self { run, place }
    }

    /// True if every message of the run is before the position.
    pub(super) fn has_passed(&self, run: &RunKey) -> bool {
        *run < self.run || *run == self.run && self.place.offset == Offset::MAX
    }

    pub(crate) fn to_token(&self) -> String {
        let (run, place) = (&self.run, self.place);
        let partition = &run.shard.partition;
        let text = format!(
            "{} {} {} {} {} {} {}",
            run.least_due.as_millis(),
            run.least_offset.0,
            run.name,
            place.due.as_millis(),
            place.offset.0,
            partition.index,
            partition.topic
        );
        URL_SAFE_NO_PAD.encode(text)
    }

    /// `None`: no search of this version made the token.
    pub(crate) fn from_token(route: &str, token: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let mut parts = text.splitn(7, ' ');
        let mut part = || parts.next();
        let time = |text: &str| text.parse().ok().map(Timestamp::from_millis);
        let offset = |text: &str| text.parse().ok().map(Offset);
        let least_due = time(part()?)?;
        let least_offset = offset(part()?)?;
        let name = RunName::new(part()?);
        let place = Cursor::new(time(part()?)?, offset(part()?)?);
        let index = part()?.parse().ok()?;
        let partition = Partition::new(part()?, index);
        let run = RunKey {
            least_due,
            shard: ShardId::new(route, partition),
            least_offset,
            name,
        };
        Some(Self { run, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fuzz::fuzz;

    #[test]
    fn a_token_names_its_position_again() {
        let partition = Partition::new("orders delayed", 7);
        let run = RunKey {
            least_due: Timestamp::AT_ONCE,
            shard: ShardId::new("orders", partition),
            least_offset: Offset(3),
            name: RunName::new("1-2-3-4"),
        };
        let place = Cursor::new(Timestamp::from_millis(5), Offset(6));
        for position in [
            SearchPosition {
                run: run.clone(),
                place,
            },
            SearchPosition::behind(run),
        ] {
            let token = position.to_token();
            assert_eq!(SearchPosition::from_token("orders", &token), Some(position));
        }
    }

    #[test]
    fn fuzz_tokens() {
        fuzz(&["MSAyIDMgNCA1IDYgdA", "", "*"], |bytes| {
            let _ = SearchPosition::from_token("r", &String::from_utf8_lossy(bytes));
        });
    }
}
