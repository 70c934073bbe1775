//! The lane that has the outer levels of a shard rewritten: when its runs are looked at, and whether what came of it may still be done.

use super::rewriter::{Chore, Found, Look, Swap};
use super::work::{Phase, Work};
use crate::limit::{REWRITE_FIRST, REWRITE_IDLE, REWRITE_INTERVAL, REWRITE_PAUSE};
use crate::model::{Timestamp, Watermark};
use crate::mutant::{self, Mutant};
use crate::store::Rewritten;
use tokio::time::Instant;

/// Where the looking stands.
pub(super) struct Rewriting {
    under_way: bool,
    /// Not before.
    at: Instant,
    /// Where in the list it goes on.
    from: Timestamp,
    /// What the shard held when the list was begun; and what it held, and when that was, when nothing was found to do.
    begun: Watermark,
    clean: Option<(Watermark, Instant)>,
    /// What was found, and is to be put in its place.
    found: Option<Swap>,
    /// As long as the store is told to swap: nothing that is due from then on may be asked for.
    before: Option<Timestamp>,
}

/// What became of a look or a swap, for the dispatcher.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// So many runs are replaced.
    Rewritten(usize),
    /// The shard is not ours any more.
    Lost,
}

impl Rewriting {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            under_way: false,
            at: now + REWRITE_FIRST,
            from: Timestamp::AT_ONCE,
            begun: Watermark(0),
            clean: None,
            found: None,
            before: None,
        }
    }

    /// Whether what is due up to `until` may be asked for: nothing of it is just being replaced.
    pub(super) fn may_load(&self, until: Timestamp) -> bool {
        self.before.is_none_or(|before| until < before)
    }
}

impl Work {
    /// What the rewriter is to do now, if anything.
    pub(crate) fn next_chore(&mut self, wall: Timestamp, now: Instant) -> Option<Chore> {
        if self.phase != Phase::Active {
            return None;
        }
        if let Some(swap) = self.rewriting.found.take() {
            if self.may_swap(&swap, wall) {
                self.rewriting.before = Some(swap.before);
                swap.inputs.iter().for_each(|(_, name)| self.inventory.replaced(name));
                return Some(Chore::Swap { lease: self.lease.clone(), tag: self.tag(), swap });
            }
            self.rewriting.under_way = false;
        }
        self.next_look(wall, now).map(Chore::Look)
    }

    fn next_look(&mut self, wall: Timestamp, now: Instant) -> Option<Look> {
        let (seen, lane) = (self.schedule.seen(), &mut self.rewriting);
        if lane.under_way || lane.at > now || self.horizon.is_at_once() {
            return None;
        }
        if lane.from.is_at_once() {
            if lane.clean.is_some_and(|(watermark, at)| watermark == seen && now < at + REWRITE_IDLE) {
                lane.at = now + REWRITE_INTERVAL;
                return None;
            }
            lane.begun = seen;
        }
        lane.under_way = true;
        let (from, hour_max) = (lane.from, self.memory.fits(4));
        let loaded = if mutant::active(Mutant::RewriteRaces) { Timestamp::AT_ONCE } else { self.horizon.max(wall) };
        Some(Look { shard: self.lease.shard.clone(), tag: self.tag(), loaded, from, hour_max })
    }

    /// The rewriter has looked, or swapped.
    pub(super) fn rewriter_did(&mut self, found: Found, now: Instant) -> News {
        let lane = &mut self.rewriting;
        (lane.under_way, lane.before) = (false, None);
        lane.at = now + REWRITE_INTERVAL;
        match found {
            Found::Swap(swap) => (lane.under_way, lane.found) = (true, Some(swap)),
            Found::Swapped { inputs, outcome: Rewritten::Done } => {
                lane.at = now + REWRITE_PAUSE;
                return News::Rewritten(inputs.len());
            }
            Found::Swapped { outcome: Rewritten::Fenced | Rewritten::Unknown, .. } => return News::Lost,
            Found::Swapped { outcome: Rewritten::Changed, .. } | Found::NoAnswer => {}
            Found::Nothing { more: None } => (lane.from, lane.clean) = (Timestamp::AT_ONCE, Some((lane.begun, now))),
            Found::Nothing { more: Some(from) } => (lane.from, lane.at) = (from, now + REWRITE_PAUSE),
            Found::Useless => lane.at = now + REWRITE_PAUSE,
        }
        News::None
    }

    /// Nothing of the new runs is loaded, or about to be.
    fn may_swap(&self, swap: &Swap, wall: Timestamp) -> bool {
        self.horizon.max(wall) < swap.before || mutant::active(Mutant::RewriteRaces)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;
    use std::time::Duration;

    const WALL: Timestamp = Timestamp::from_millis(1_000);

    /// A shard whose runs are being looked at.
    fn looking() -> Work {
        let mut work = Work::begun(1, &Memory::new(1 << 20), Watermark(9));
        work.horizon = Timestamp::from_millis(5_000);
        let look = work.next_look(WALL, Instant::now() + REWRITE_FIRST).unwrap();
        assert_eq!(look.loaded, work.horizon);
        work
    }

    fn swap(before: i64) -> Found {
        Found::Swap(Swap { inputs: Vec::new(), outputs: Vec::new(), before: Timestamp::from_millis(before) })
    }

    fn swapped(outcome: Rewritten) -> Found {
        Found::Swapped { inputs: Vec::new(), outcome }
    }

    #[test]
    fn runs_are_put_in_their_place_only_as_long_as_nothing_of_them_is_loaded() {
        let is_told = |before, horizon, wall| {
            let (mut work, now) = (looking(), Instant::now());
            assert_eq!(work.rewriter_did(swap(before), now), News::None);
            work.horizon = Timestamp::from_millis(horizon);
            matches!(work.next_chore(Timestamp::from_millis(wall), now), Some(Chore::Swap { .. }))
        };
        assert!(is_told(5_001, 5_000, 1_000));
        assert!(!is_told(5_000, 5_000, 1_000), "it is loaded");
        assert!(!is_told(5_001, 5_000, 5_001), "it is due");
        assert!(!is_told(5_001, 6_000, 1_000), "it was loaded meanwhile");
    }

    #[test]
    fn nothing_that_is_just_being_replaced_is_asked_for() {
        let (mut work, now) = (looking(), Instant::now());
        work.rewriter_did(swap(9_000), now);
        assert!(work.rewriting.may_load(Timestamp::MAX), "nobody was told to swap yet");
        work.next_chore(WALL, now).unwrap();
        let may = |work: &Work, until| work.rewriting.may_load(Timestamp::from_millis(until));
        assert_eq!((may(&work, 8_999), may(&work, 9_000)), (true, false));
        assert!(work.next_chore(WALL, now + REWRITE_IDLE).is_none(), "one at a time");
        assert_eq!(work.rewriter_did(swapped(Rewritten::Done), now), News::Rewritten(0));
        assert!(may(&work, 9_000));
        assert_eq!(looking().rewriter_did(swapped(Rewritten::Fenced), now), News::Lost);
    }

    #[test]
    fn a_shard_rests_only_after_its_list_was_seen_to_the_end() {
        let again = |found, after| {
            let (mut work, now) = (looking(), Instant::now());
            work.rewriter_did(found, now);
            assert!(work.next_look(WALL, now + REWRITE_PAUSE.min(after) - Duration::from_millis(1)).is_none(), "not before");
            work.next_look(WALL, now + after).map(|look| look.from)
        };
        let page = Timestamp::from_millis(7_000);
        assert_eq!(again(Found::Nothing { more: Some(page) }, REWRITE_PAUSE), Some(page));
        assert_eq!(again(Found::Useless, REWRITE_PAUSE), Some(Timestamp::AT_ONCE));
        assert_eq!(again(Found::NoAnswer, REWRITE_INTERVAL), Some(Timestamp::AT_ONCE));
        assert_eq!(again(swapped(Rewritten::Done), REWRITE_PAUSE), Some(Timestamp::AT_ONCE));
        assert_eq!(again(swapped(Rewritten::Changed), REWRITE_INTERVAL), Some(Timestamp::AT_ONCE));
        assert_eq!(again(Found::Nothing { more: None }, REWRITE_INTERVAL), None);
        assert_eq!(again(Found::Nothing { more: None }, REWRITE_IDLE), Some(Timestamp::AT_ONCE));
    }
}
