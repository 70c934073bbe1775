//! The plan of `postdate store copy`: what becomes of each shard.

use super::shard::{has_followed, is_same};
use crate::cli::StoreCopyArgs;
use crate::command::page::{Page, Table, Tone};
use crate::model::ShardId;
use crate::model::readable::{count, size};
use crate::store::{CopyState, CopyStore, StoredShard};
use anyhow::Result;

/// The action on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Copy,
    /// An earlier copy was interrupted.
    CopyAgain,
    /// The new store has an older state, which is erased first.
    Replace,
    /// The new store has the same state.
    Skip,
    /// The text tells why.
    Refuse(String),
}

pub(super) struct PlannedShard {
    pub(super) shard: ShardId,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) step: Step,
}

impl PlannedShard {
    pub(super) fn is_copied(&self) -> bool {
        matches!(self.step, Step::Copy | Step::CopyAgain | Step::Replace)
    }
}

/// `target`: `None` if the new store does not exist yet.
pub(super) async fn plan(
    source: &dyn CopyStore,
    target: Option<&dyn CopyStore>,
    args: &StoreCopyArgs,
) -> Result<Vec<PlannedShard>> {
    let mut planned = Vec::new();
    for shard in source.shards().await? {
        if args
            .route
            .as_deref()
            .is_some_and(|route| *route != *shard.route)
        {
            continue;
        }
        let found = source.copy_state(&shard).await?;
        let there = match target {
            Some(target) => target.copy_state(&shard).await?,
            None => CopyState::Absent,
        };
        let state = match &found {
            CopyState::Stored(state) => Some(&**state),
            _ => None,
        };
        planned.push(PlannedShard {
            messages: state.map_or(0, |state| state.pending() + state.quarantined),
            bytes: state.map_or(0, StoredShard::stored_bytes),
            step: step(found, there, args.replace),
            shard,
        });
    }
    Ok(planned)
}

/// `found` is in the old store, and `there` in the new one.
fn step(found: CopyState, there: CopyState, may_replace: bool) -> Step {
    let state = match found {
        CopyState::Stored(state) => state,
        CopyState::Unreadable(why) => return Step::Refuse(why),
        CopyState::Begun => {
            return Step::Refuse("its own copy to the old store was interrupted".to_owned());
        }
        CopyState::Absent => return Step::Refuse("it was erased meanwhile".to_owned()),
    };
    match there {
        CopyState::Absent => Step::Copy,
        CopyState::Begun => Step::CopyAgain,
        CopyState::Stored(other) if is_same(&state, &other) => Step::Skip,
        CopyState::Stored(other) if !has_followed(&state, &other) => Step::Refuse(
            "the new store is ahead of the old one, or has another source: the service has run with it".to_owned(),
        ),
        CopyState::Stored(_) if may_replace => Step::Replace,
        CopyState::Stored(_) => Step::Refuse(
            "the new store has an older state of it: --replace erases that state first".to_owned(),
        ),
        CopyState::Unreadable(why) => Step::Refuse(format!("in the new store {why}")),
    }
}

/// One row per shard, and a total.
pub(super) fn text(planned: &[PlannedShard], page: &Page) -> String {
    let mut table = Table::new(&[0, 3], ["SHARD", "MESSAGES", "SIZE", "STEP"]);
    let mut total = (0, 0);
    for it in planned {
        let (tone, step) = match &it.step {
            Step::Copy => (Tone::Plain, "copy"),
            Step::CopyAgain => (Tone::Plain, "copy again: it was interrupted"),
            Step::Replace => (Tone::Warning, "replace an older state"),
            Step::Skip => (Tone::Faint, "copied before"),
            Step::Refuse(why) => (Tone::Bad, why.as_str()),
        };
        if it.is_copied() {
            total = (total.0 + it.messages, total.1 + it.bytes);
        }
        let (messages, bytes) = (count(it.messages), size(it.bytes));
        table.row(
            tone,
            [it.shard.to_string(), messages, bytes, step.to_owned()],
        );
    }
    let cells = [
        "to copy".to_owned(),
        count(total.0),
        size(total.1),
        String::new(),
    ];
    table.row(Tone::Strong, cells);
    table.print(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Progress, SourceIdentity, Timestamp, Watermark};
    use crate::store::Ledger;

    fn state(watermark: u64) -> StoredShard {
        let place = Cursor::new(Timestamp::from_millis(5), Offset(watermark));
        let pair = Progress::new(place, Watermark(watermark));
        StoredShard {
            identity: SourceIdentity("a:b".into()),
            watermark: Watermark(watermark),
            claimed: pair,
            delivered: pair,
            hold: Watermark(0),
            possibly_delivered: Progress::START,
            lowest_pending: Offset(0),
            slices: Vec::new(),
            quarantined: 0,
            keys: Default::default(),
            ledger: Ledger::default(),
            rate_wait_ms: 0,
        }
    }

    fn stored(watermark: u64) -> CopyState {
        CopyState::Stored(Box::new(state(watermark)))
    }

    #[test]
    fn a_shard_is_copied_skipped_or_refused_by_what_the_new_store_has() {
        let plan = |there| step(stored(7), there, false);
        assert_eq!(plan(CopyState::Absent), Step::Copy);
        assert_eq!(plan(CopyState::Begun), Step::CopyAgain);
        assert_eq!(plan(stored(7)), Step::Skip);
        for refused in [stored(6), stored(8), CopyState::Unreadable("x".to_owned())] {
            assert!(matches!(plan(refused), Step::Refuse(_)));
        }
    }

    #[test]
    fn only_an_older_state_of_the_same_source_is_replaced() {
        assert_eq!(step(stored(7), stored(6), true), Step::Replace);
        assert!(matches!(step(stored(7), stored(8), true), Step::Refuse(_)));
        let other = StoredShard {
            identity: SourceIdentity("a:c".into()),
            ..state(6)
        };
        let other = CopyState::Stored(Box::new(other));
        assert!(matches!(step(stored(7), other, true), Step::Refuse(_)));
    }

    #[test]
    fn a_shard_that_the_old_store_cannot_read_is_refused() {
        for found in [CopyState::Begun, CopyState::Unreadable("x".to_owned())] {
            assert!(matches!(
                step(found, CopyState::Absent, true),
                Step::Refuse(_)
            ));
        }
    }
}
