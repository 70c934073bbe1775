//! Detects that the store lost writes.
//!
//! A lower watermark shows a rollback directly. If other processes have appended since, the watermark
//! may look right. The lineage that comes with each reply to the loader then shows the rollback.

use crate::model::Watermark;
use crate::store::Lineage;

/// The lineage of the store as the loader last saw it. `None` while nothing is loaded: then there is
/// nothing that the store could contradict.
#[derive(Default)]
pub(super) struct RollbackDetector(Option<Lineage>);

impl RollbackDetector {
    /// True if the store was rolled back below `seen` and refilled. Remembers the new lineage.
    ///
    /// Checking only here is safe, because the load horizon advances only with a list reply, and each
    /// list reply is checked. Replies come in the order in which the store was asked.
    pub(super) fn is_refilled(&mut self, lineage: Lineage, seen: Watermark) -> bool {
        let Some(known) = &mut self.0 else {
            return false;
        };
        let continues = lineage.continues(known, seen) || fault!(IgnoreRefilledRollback);
        *known = lineage;
        !continues
    }

    /// Sets the lineage of the data that is being loaded.
    pub(super) fn set(&mut self, lineage: Lineage) {
        self.0 = Some(lineage);
    }

    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// The number of run replacements in the store.
    pub(super) fn replacements(&self) -> Option<u64> {
        self.0.map(|lineage| lineage.replacements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::store::AppendEpoch;
    use crate::timer::load::MemoryBudget;
    use crate::timer::load::{Load, LoadResult};
    use crate::timer::run_replacement::known_replacements;
    use crate::timer::shard::ShardState;
    use tokio::time::Instant;

    fn list(watermark: Watermark, lineage: Lineage) -> LoadResult {
        LoadResult::List {
            watermark,
            lineage,
            runs: Vec::new(),
            has_more: false,
        }
    }

    /// A shard that has received an empty list with this lineage.
    fn listed(lineage: Lineage) -> ShardState {
        let memory = MemoryBudget::new(1 << 20);
        let mut state = ShardState::for_test(1, &memory, Watermark(262));
        let now = Instant::now();
        assert!(matches!(
            state.next_request(Timestamp::from_millis(1_000_000), now, false),
            Some(Load::List { .. })
        ));
        state.on_load_reply(list(Watermark(262), lineage), now);
        state
    }

    /// True if a later reply makes the shard load again.
    fn reloads(state: &mut ShardState, watermark: u64, lineage: Lineage, is_list: bool) -> bool {
        let watermark = Watermark(watermark);
        let generation = state.load.generation();
        let reply = if is_list {
            list(watermark, lineage)
        } else {
            LoadResult::Tail {
                watermark,
                complete_to: watermark,
                lineage,
                runs: Vec::new(),
            }
        };
        assert!(state.on_load_reply(reply, Instant::now()));
        state.load.generation() != generation
    }

    #[test]
    fn a_rolled_back_shard_is_loaded_again_even_if_its_watermark_has_recovered() {
        let epoch = |number| AppendEpoch { process: 7, number };
        let mut known = Lineage {
            replacements: 3,
            ..Lineage::default()
        };
        known.appended(epoch(1), Watermark(0));
        let undone = Lineage {
            replacements: 2,
            ..known
        };
        let (mut refilled, mut taken_over) = (known, known);
        refilled.appended(epoch(2), Watermark(30));
        taken_over.appended(epoch(2), Watermark(262));
        for is_list in [false, true] {
            for (watermark, lineage, expected) in [
                (262, known, false),
                (262, undone, true),
                (262, refilled, true),
                (300, refilled, true),
                (300, taken_over, false),
                (261, known, true),
            ] {
                assert_eq!(
                    reloads(&mut listed(known), watermark, lineage, is_list),
                    expected,
                    "{watermark} {lineage:?}"
                );
            }
        }
        let mut state = listed(known);
        assert!(!reloads(&mut state, 300, taken_over, false));
        assert!(!reloads(&mut state, 300, taken_over, false));
        assert!(
            reloads(&mut state, 300, undone, false),
            "it is older than the lineage seen since"
        );
        assert!(
            !reloads(&mut state, 300, undone, false) && known_replacements(&state).is_none(),
            "nothing is loaded that it could contradict"
        );
        assert!(!reloads(&mut state, 300, undone, true));
        assert_eq!(known_replacements(&state), Some(2));
        assert!(reloads(&mut state, 300, Lineage::default(), false));
    }
}
