//! How a work learns that its store went back, be it that others have filled it again since: by the watermarks and the histories that come
//! along with its answers.

use super::work::ShardState;
use crate::model::Watermark;
use crate::store::Lineage;
use tokio::time::Instant;

impl ShardState {
    /// The store's watermark came with some reply. `true`: it had gone back, and everything is loaded again.
    pub(crate) fn detect_rollback(&mut self, watermark: Watermark, now: Instant) -> bool {
        let went_back = self.schedule.is_rolled_back(watermark);
        if went_back {
            tracing::warn!(shard = %self.lease.shard, seen = %self.schedule.seen(), %watermark, "the store went back: loading again");
            self.reload(self.schedule.taken(), watermark, now);
        }
        went_back
    }

    /// Watermark and history came with a reply to the loader. `true`: the store had gone back, though others may have filled it again since, and
    /// everything is loaded again.
    ///
    /// Nothing that is not known is passed by before this is asked: what is loaded reaches further only with a list, which is asked here. And
    /// what the loader is answered comes in the order in which the store was asked, so that a history is never followed by an earlier one.
    pub(super) fn detect_rollback_by_history(
        &mut self,
        watermark: Watermark,
        history: Lineage,
        now: Instant,
    ) -> bool {
        if self.detect_rollback(watermark, now) {
            return true;
        }
        let Some(known) = &mut self.history else {
            return false;
        };
        let continues =
            history.continues(known, self.schedule.seen()) || fault!(IgnoreRefilledRollback);
        *known = history;
        if !continues {
            tracing::warn!(shard = %self.lease.shard, "the store went back, and was filled again: loading again");
            self.reload(self.schedule.taken(), watermark, now);
        }
        !continues
    }

    /// So many rewrites are known of.
    pub(super) fn rewrite_count(&self) -> Option<u64> {
        let seen = self.history?.replacements;
        Some(
            self.compaction
                .rewrite_count()
                .map_or(seen, |counted| counted.max(seen)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::MemoryBudget;
    use super::super::load::{Load, LoadResult};
    use super::*;
    use crate::model::Timestamp;
    use crate::store::AppendEpoch;

    /// A shard whose list was empty when its store was so.
    fn listed(history: Lineage) -> ShardState {
        let mut work = ShardState::for_test(1, &MemoryBudget::new(1 << 20), Watermark(262));
        let now = Instant::now();
        assert!(matches!(
            work.next_request(Timestamp::from_millis(1_000_000), now, false),
            Some(Load::List { .. })
        ));
        work.on_load_reply(
            LoadResult::List {
                watermark: Watermark(262),
                history,
                runs: Vec::new(),
                more: false,
            },
            now,
        );
        work
    }

    /// Whether a later reply makes it load everything again.
    fn reloads(work: &mut ShardState, watermark: u64, history: Lineage, is_list: bool) -> bool {
        let (watermark, tag) = (Watermark(watermark), work.load_generation());
        let answer = if is_list {
            LoadResult::List {
                watermark,
                history,
                runs: Vec::new(),
                more: false,
            }
        } else {
            LoadResult::Tail {
                watermark,
                seen: watermark,
                history,
                runs: Vec::new(),
            }
        };
        assert!(work.on_load_reply(answer, Instant::now()));
        work.load_generation() != tag
    }

    #[test]
    fn a_store_that_went_back_is_loaded_again_although_its_watermark_is_what_it_was() {
        let reading = |number| AppendEpoch { process: 7, number };
        let mut known = Lineage {
            replacements: 3,
            ..Lineage::default()
        };
        known.appended(reading(1), Watermark(0));
        let undone = Lineage {
            replacements: 2,
            ..known
        };
        let (mut filled, mut taken_over) = (known, known);
        filled.appended(reading(2), Watermark(30));
        taken_over.appended(reading(2), Watermark(262));
        for is_list in [false, true] {
            for (watermark, history, wanted) in [
                (262, known, false),
                (262, undone, true),
                (262, filled, true),
                (300, filled, true),
                (300, taken_over, false),
                (261, known, true),
            ] {
                assert_eq!(
                    reloads(&mut listed(known), watermark, history, is_list),
                    wanted,
                    "{watermark} {history:?}"
                );
            }
        }
        let mut work = listed(known);
        assert!(
            !reloads(&mut work, 300, taken_over, false)
                && !reloads(&mut work, 300, taken_over, false)
        );
        assert!(
            reloads(&mut work, 300, undone, false),
            "it went back behind what was seen since"
        );
        assert!(
            !reloads(&mut work, 300, undone, false) && work.rewrite_count().is_none(),
            "nothing is loaded that it could contradict"
        );
        assert!(!reloads(&mut work, 300, undone, true) && work.rewrite_count() == Some(2));
        assert!(reloads(&mut work, 300, Lineage::default(), false));
    }
}
