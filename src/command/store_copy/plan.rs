//! The plan of `postdate store copy`: what becomes of each shard.

use super::shard::{includes_all_of, is_same};
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
    /// The new store has a later state: the service has run with a copy.
    Moved,
    /// The text tells why.
    Refuse(String),
}

pub(super) struct PlannedShard {
    pub(super) shard: ShardId,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// The state of the shard in the new store.
    pub(super) there: CopyState,
    pub(super) step: Step,
}

impl PlannedShard {
    pub(super) fn needs_copy(&self) -> bool {
        matches!(self.step, Step::Copy | Step::CopyAgain | Step::Replace)
    }

    pub(super) fn is_moved(&self) -> bool {
        matches!(self.step, Step::Skip | Step::Moved)
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
            step: step(found, &there, args.replace),
            there,
            shard,
        });
    }
    Ok(planned)
}

/// `found` is in the old store, and `there` in the new one.
fn step(found: CopyState, there: &CopyState, may_replace: bool) -> Step {
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
        CopyState::Stored(other) if is_same(&state, other) => Step::Skip,
        CopyState::Stored(other) if includes_all_of(&state, other) => match may_replace {
            true => Step::Replace,
            false => Step::Refuse(
                "the new store has an older state of it: --replace erases that state first"
                    .to_owned(),
            ),
        },
        CopyState::Stored(other) if continues_copy(&state, other) => Step::Moved,
        CopyState::Stored(other) if state.identity != other.identity => {
            Step::Refuse("the new store has it from another source".to_owned())
        }
        CopyState::Stored(_) => Step::Refuse(
            "a service filled the new store without a copy of it, or the service has run with both stores".to_owned(),
        ),
        CopyState::Unreadable(why) => Step::Refuse(format!("in the new store {why}")),
    }
}

/// True if the new store went on from a copy of this state. If it was filled from the log instead, it has
/// accepted fewer messages: it counts only those that it read itself. An uncertain ledger cannot tell.
fn continues_copy(state: &StoredShard, new: &StoredShard) -> bool {
    let accepted_all = new.ledger.accepted >= state.ledger.accepted || state.ledger.is_uncertain;
    includes_all_of(new, state) && accepted_all
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
            Step::Moved => (Tone::Faint, "moved before: the service has run with it"),
            Step::Refuse(why) => (Tone::Bad, why.as_str()),
        };
        if it.needs_copy() {
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
            pause: None,
            lowest_pending: Offset(0),
            slices: Vec::new(),
            quarantined: 0,
            keys: Default::default(),
            ledger: Ledger::default(),
        }
    }

    fn stored(watermark: u64) -> CopyState {
        CopyState::Stored(Box::new(state(watermark)))
    }

    #[test]
    fn a_shard_is_copied_skipped_or_refused_by_what_the_new_store_has() {
        let plan = |there| step(stored(7), &there, false);
        assert_eq!(plan(CopyState::Absent), Step::Copy);
        assert_eq!(plan(CopyState::Begun), Step::CopyAgain);
        assert_eq!(plan(stored(7)), Step::Skip);
        assert_eq!(plan(stored(8)), Step::Moved);
        for refused in [stored(6), CopyState::Unreadable("x".to_owned())] {
            assert!(matches!(plan(refused), Step::Refuse(_)));
        }
    }

    #[test]
    fn a_state_that_went_on_without_the_copy_is_refused() {
        let accepted = |watermark, accepted, is_uncertain| {
            let mut it = state(watermark);
            it.ledger.accepted = accepted;
            it.ledger.is_uncertain = is_uncertain;
            CopyState::Stored(Box::new(it))
        };
        let old = || accepted(7, 5, false);
        assert_eq!(step(old(), &accepted(8, 5, false), false), Step::Moved);
        let filled = accepted(8, 4, false);
        assert!(matches!(step(old(), &filled, true), Step::Refuse(_)));
        assert_eq!(step(accepted(7, 5, true), &filled, true), Step::Moved);
        let mut both_went_on = state(8);
        both_went_on.claimed = state(6).claimed;
        let both_went_on = CopyState::Stored(Box::new(both_went_on));
        assert!(matches!(
            step(stored(7), &both_went_on, true),
            Step::Refuse(_)
        ));
    }

    #[test]
    fn only_an_older_state_of_the_same_source_is_replaced() {
        assert_eq!(step(stored(7), &stored(6), true), Step::Replace);
        assert_eq!(step(stored(7), &stored(8), true), Step::Moved);
        let other = StoredShard {
            identity: SourceIdentity("a:c".into()),
            ..state(6)
        };
        let other = CopyState::Stored(Box::new(other));
        assert!(matches!(step(stored(7), &other, true), Step::Refuse(_)));
    }

    #[test]
    fn a_shard_that_the_old_store_cannot_read_is_refused() {
        for found in [CopyState::Begun, CopyState::Unreadable("x".to_owned())] {
            assert!(matches!(
                step(found, &CopyState::Absent, true),
                Step::Refuse(_)
            ));
        }
    }
}
