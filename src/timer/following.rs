//! How a work learns that its store went back, be it that others have filled it again since: by the watermarks and the histories that come
//! along with its answers.

use super::work::Work;
use crate::model::Watermark;
use crate::mutant::{self, Mutant};
use crate::store::History;
use tokio::time::Instant;

impl Work {
    /// The store's watermark came with some reply. `true`: it had gone back, and everything is loaded again.
    pub(crate) fn observe(&mut self, watermark: Watermark, now: Instant) -> bool {
        let went_back = self.schedule.went_back(watermark);
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
    pub(super) fn follow(&mut self, watermark: Watermark, history: History, now: Instant) -> bool {
        if self.observe(watermark, now) {
            return true;
        }
        let Some(known) = &mut self.history else {
            return false;
        };
        let continues = history.continues(known, self.schedule.seen())
            || mutant::active(Mutant::IgnoresHistory);
        *known = history;
        if !continues {
            tracing::warn!(shard = %self.lease.shard, "the store went back, and was filled again: loading again");
            self.reload(self.schedule.taken(), watermark, now);
        }
        !continues
    }

    /// So many rewrites are known of.
    pub(super) fn rewrites(&self) -> Option<u64> {
        let seen = self.history?.rewrites;
        Some(
            self.rewriting
                .counted()
                .map_or(seen, |counted| counted.max(seen)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::loader::{Answer, What};
    use super::super::memory::Memory;
    use super::*;
    use crate::model::Timestamp;
    use crate::store::Reading;

    /// A shard whose list was empty when its store was so.
    fn listed(history: History) -> Work {
        let mut work = Work::begun(1, &Memory::new(1 << 20), Watermark(262));
        let now = Instant::now();
        assert!(matches!(
            work.next_request(Timestamp::from_millis(1_000_000), now, false),
            Some(What::List { .. })
        ));
        work.take_in(
            Answer::List {
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
    fn reloads(work: &mut Work, watermark: u64, history: History, is_list: bool) -> bool {
        let (watermark, tag) = (Watermark(watermark), work.tag());
        let answer = if is_list {
            Answer::List {
                watermark,
                history,
                runs: Vec::new(),
                more: false,
            }
        } else {
            Answer::Tail {
                watermark,
                seen: watermark,
                history,
                runs: Vec::new(),
            }
        };
        assert!(work.take_in(answer, Instant::now()));
        work.tag() != tag
    }

    #[test]
    fn a_store_that_went_back_is_loaded_again_although_its_watermark_is_what_it_was() {
        let reading = |number| Reading { writer: 7, number };
        let mut known = History {
            rewrites: 3,
            ..History::default()
        };
        known.appended(reading(1), Watermark(0));
        let undone = History {
            rewrites: 2,
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
            !reloads(&mut work, 300, undone, false) && work.rewrites().is_none(),
            "nothing is loaded that it could contradict"
        );
        assert!(!reloads(&mut work, 300, undone, true) && work.rewrites() == Some(2));
        assert!(reloads(&mut work, 300, History::default(), false));
    }
}
