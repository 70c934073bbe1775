//! The lane that has the outer levels of a shard rewritten: when its runs are looked at, and whether what came of it may still be done.

use super::RouteOptions;
use super::rewriter::{Chore, Done, Found, Swap};
use super::work::{Phase, Work};
use crate::limit::{REWRITE_FIRST, REWRITE_FRONT, REWRITE_IDLE, REWRITE_INTERVAL, REWRITE_PAUSE};
use crate::model::{Lease, ShardId, Slice, Timestamp, Watermark};
use crate::mutant::{self, Mutant};
use crate::run::Name;
use crate::store::{Error, Rewrite, Rewritten, Store};
use futures_util::future::{LocalBoxFuture, pending};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

/// Where the looking stands.
pub(super) struct Rewriting {
    under_way: bool,
    /// Not before.
    at: Instant,
    /// Where in the list it goes on.
    from: Timestamp,
    /// When its beginning, where what comes soon is, had nothing to do last; and whether that is what is looked at, though it goes on elsewhere.
    front: Instant,
    is_front: bool,
    /// What the shard held when the list was begun; and what it held, and when that was, when nothing was found to do.
    begun: Watermark,
    clean: Option<(Watermark, Instant)>,
    /// So many the store has counted, by its answer to the last one.
    counted: Option<u64>,
    /// Runs are being put in the place of others, which may be done while the shard is loaded no further than that.
    before: Option<Timestamp>,
}

impl Rewriting {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            under_way: false,
            at: now + REWRITE_FIRST,
            from: Timestamp::AT_ONCE,
            front: now,
            is_front: false,
            begun: Watermark(0),
            clean: None,
            counted: None,
            before: None,
        }
    }

    /// The shard is loaded anew: it is looked at anew too, but what is being swapped still is.
    pub(super) fn again(&self, now: Instant) -> Self {
        Self {
            before: self.before,
            ..Self::new(now)
        }
    }

    /// How many rewrites there are, if that is known before it is seen.
    pub(super) fn counted(&self) -> Option<u64> {
        self.counted
    }

    /// Whether the shard must not be loaded so far now. At most as long as a call of the store takes, and it is not begun for what is due soon.
    pub(super) fn bars(&self, until: Timestamp) -> bool {
        let is_swapped = self.before.is_some_and(|before| before <= until);
        is_swapped && !mutant::active(Mutant::LoadsMeanwhile)
            || self.under_way && mutant::active(Mutant::AwaitsRewriter)
    }
}

impl Work {
    /// What the rewriter is to look at now, if anything.
    pub(crate) fn next_chore(&mut self, wall: Timestamp, now: Instant) -> Option<Chore> {
        let (seen, lane) = (self.schedule.seen(), &mut self.rewriting);
        if self.phase != Phase::Active
            || lane.under_way
            || lane.before.is_some()
            || lane.at > now
            || self.horizon.is_at_once()
        {
            return None;
        }
        if lane.from.is_at_once() {
            if lane
                .clean
                .is_some_and(|(watermark, at)| watermark == seen && now < at + REWRITE_IDLE)
            {
                lane.at = now + REWRITE_INTERVAL;
                return None;
            }
            lane.begun = seen;
        }
        lane.under_way = true;
        lane.is_front = !lane.from.is_at_once() && now >= lane.front + REWRITE_FRONT;
        let from = if lane.is_front {
            Timestamp::AT_ONCE
        } else {
            lane.from
        };
        let hour_max = self.memory.fits(4);
        let loaded = if mutant::active(Mutant::RewriteRaces) {
            Timestamp::AT_ONCE
        } else {
            self.horizon.max(wall)
        };
        Some(Chore {
            shard: self.lease.shard.clone(),
            tag: self.tag(),
            loaded,
            from,
            hour_max,
        })
    }

    /// The rewriter has looked. Answers what is to be done about it, if it may still be done.
    fn looked(&mut self, found: Found, wall: Timestamp, now: Instant) -> Option<Swap> {
        let lane = &mut self.rewriting;
        lane.under_way = false;
        lane.at = now + REWRITE_INTERVAL;
        match found {
            Found::Swap(swap) => return self.may_swap(&swap, wall).then_some(swap),
            Found::Nothing { .. } if lane.is_front => {
                (lane.front, lane.at) = (now, now + REWRITE_PAUSE)
            }
            Found::Nothing { more: None } => {
                (lane.from, lane.clean) = (Timestamp::AT_ONCE, Some((lane.begun, now)))
            }
            Found::Nothing { more: Some(from) } => {
                lane.front = if lane.from.is_at_once() {
                    now
                } else {
                    lane.front
                };
                (lane.from, lane.at) = (from, now + REWRITE_PAUSE);
            }
            Found::Useless => lane.at = now + REWRITE_PAUSE,
            Found::NoAnswer => {}
        }
        None
    }

    /// Nothing of the new runs is loaded, or about to be.
    fn may_swap(&self, swap: &Swap, wall: Timestamp) -> bool {
        self.phase == Phase::Active
            && (self.horizon.max(wall) < swap.before || mutant::active(Mutant::RewriteRaces))
    }

    /// The store has put others in the place of these runs.
    fn swapped(&mut self, inputs: &[(Slice, Name)], now: Instant) {
        self.rewriting.at = now + REWRITE_PAUSE;
        if !mutant::active(Mutant::ForgetsReplaced) {
            inputs
                .iter()
                .for_each(|(_, name)| self.inventory.replaced(name));
        }
    }
}

/// Puts runs in the place of others, one shard after the other, beside all else: what is due does not wait for it.
///
/// What comes of a call that fails, or is dropped, is not known, and need not be: whichever runs are there when they are needed are found by
/// listing, and a run that is found gone makes the shard load again.
#[derive(Default)]
pub(super) struct Swapping {
    found: Option<Done>,
    under_way: Option<LocalBoxFuture<'static, Swapped>>,
}

/// What came of a swap.
pub(super) struct Swapped {
    lease: Lease,
    after: u64,
    inputs: Vec<(Slice, Name)>,
    outcome: Result<Vec<Rewritten>, Error>,
}

impl Swapping {
    /// Whether it can take in what the rewriter has found: one at a time, so that what is held is bounded.
    pub(super) fn is_free(&self) -> bool {
        self.found.is_none() && self.under_way.is_none()
    }

    pub(super) fn add(&mut self, done: Done) {
        self.found = Some(done);
    }

    /// Begins what was found, if it may still be done.
    pub(super) fn begin(
        &mut self,
        store: &Rc<dyn Store>,
        works: &mut BTreeMap<ShardId, Work>,
        wall: Timestamp,
    ) {
        let Some(Done { shard, tag, found }) = self.found.take() else {
            return;
        };
        let Some(work) = works.get_mut(&shard).filter(|work| work.tag() == tag) else {
            return;
        };
        let Some(Swap {
            inputs,
            outputs,
            before,
        }) = work.looked(found, wall, Instant::now())
        else {
            return;
        };
        let Some(after) = work.rewrites() else { return };
        work.rewriting.before = Some(before);
        let (store, request) = (
            store.clone(),
            Rewrite {
                lease: work.lease.clone(),
                after,
                inputs,
                outputs,
            },
        );
        self.under_way = Some(Box::pin(async move {
            let outcome = store.rewrite(std::slice::from_ref(&request)).await;
            Swapped {
                lease: request.lease,
                after,
                inputs: request.inputs,
                outcome,
            }
        }));
    }

    /// Waits for the one under way; for ever, if there is none. Safe to drop: the call goes on with the next.
    pub(super) async fn ended(&mut self) -> Swapped {
        let Some(under_way) = &mut self.under_way else {
            return pending().await;
        };
        let swapped = under_way.await;
        self.under_way = None;
        swapped
    }
}

/// Takes in what came of a swap; answers the shard if it is not ours any more.
pub(super) fn swapped(
    works: &mut BTreeMap<ShardId, Work>,
    routes: &BTreeMap<Arc<str>, RouteOptions>,
    Swapped {
        lease,
        after,
        inputs,
        outcome,
    }: Swapped,
) -> Result<Option<ShardId>, Error> {
    // Of a lease that has ended it says nothing about the one that the shard is held by since.
    let Some(work) = works
        .get_mut(&lease.shard)
        .filter(|work| work.lease == lease)
    else {
        return Ok(None);
    };
    let shard = lease.shard;
    // If it is not known whether it was counted, the next look tells.
    (work.rewriting.before, work.rewriting.counted) = (None, None);
    match outcome.map(|outcomes| outcomes.first().copied()) {
        Ok(Some(Rewritten::Done)) => {
            work.rewriting.counted = Some(after + 1);
            work.swapped(&inputs, Instant::now());
            routes[&shard.route]
                .metric
                .rewritten_runs
                .increment(inputs.len() as u64);
        }
        Ok(Some(Rewritten::Fenced | Rewritten::Unknown)) => return Ok(Some(shard)),
        Ok(Some(Rewritten::Changed) | None) => {}
        Err(error) if error.is_transient() => {
            tracing::debug!(%shard, %error, "runs were not rewritten")
        }
        Err(error) => return Err(error),
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::loader::{Answer, Wanted, What, fetch_answer, read};
    use super::super::memory::Memory;
    use super::*;
    use crate::model::{Claim, Cursor, Level, Offset};
    use crate::run::{Decoder, Encoder};
    use crate::store::{History, Listing};
    use std::time::Duration;

    const WALL: Timestamp = Timestamp::from_millis(1_000);

    /// A shard whose runs are being looked at.
    fn looking() -> Work {
        let mut work = Work::begun(1, &Memory::new(1 << 20), Watermark(9));
        work.horizon = Timestamp::from_millis(5_000);
        let chore = work
            .next_chore(WALL, Instant::now() + REWRITE_FIRST)
            .unwrap();
        assert_eq!(chore.loaded, work.horizon);
        work
    }

    fn swap(before: i64) -> Found {
        Found::Swap(Swap {
            inputs: Vec::new(),
            outputs: Vec::new(),
            before: Timestamp::from_millis(before),
        })
    }

    #[test]
    fn runs_are_put_in_their_place_only_as_long_as_nothing_of_them_is_loaded() {
        let now = Instant::now();
        assert!(looking().looked(swap(5_001), WALL, now).is_some());
        assert!(
            looking().looked(swap(5_000), WALL, now).is_none(),
            "it is loaded"
        );
        assert!(
            looking()
                .looked(swap(5_001), Timestamp::from_millis(5_001), now)
                .is_none(),
            "it is due"
        );
        let mut risen = looking();
        risen.horizon = Timestamp::from_millis(6_000);
        assert!(
            risen.looked(swap(5_001), WALL, now).is_none(),
            "it was loaded meanwhile"
        );
    }

    #[test]
    fn a_rewriter_that_stands_still_keeps_nothing_from_being_loaded() {
        let mut work = looking();
        let soon = WALL.plus(Duration::from_secs(3_600));
        assert!(
            work.next_chore(soon, Instant::now() + REWRITE_IDLE)
                .is_none(),
            "it has not answered the first"
        );
        assert!(matches!(work.next_fill(soon), Some(What::List { until, .. }) if until > soon));
    }

    #[test]
    fn a_shard_is_not_loaded_past_what_is_being_swapped_however_long_that_takes() {
        let mut work = looking();
        work.rewriting.before = Some(Timestamp::from_millis(30_000));
        work.reload(Claim::START, Watermark(9), Instant::now());
        assert!(work.next_fill(Timestamp::from_millis(30_000)).is_none());
        assert!(work.next_fill(WALL).is_some(), "what lies before it is");
    }

    /// A run is loaded up to some message, and that one is in another run by then. Answers whether the shard was loaded again.
    fn is_loaded_again_to_read_on() -> bool {
        let mut work = looking();
        let (watermark, tag, slice, now) = (
            Watermark(9),
            work.tag(),
            Slice {
                level: Level::Hour,
                start: 0,
            },
            Instant::now(),
        );
        let place = |due, offset| Cursor::new(Timestamp::from_millis(due), Offset(offset));
        let (soon, later) = (place(4_000, 1), place(30_000, 2));
        let bytes = |places: Vec<Cursor>| {
            Encoder::new()
                .encode(places.into_iter().map(|place| (place, &b""[..])))
                .1
        };
        let (old, new) = (Name::new("1-1-2-1"), Name::new("1-2-1-2"));
        let cut = read(
            slice,
            &old,
            Some(&bytes(vec![soon, later])),
            (work.horizon, Claim::START),
            &mut Decoder::new(),
        );
        work.take_in(
            Answer::Tail {
                watermark,
                seen: watermark,
                history: History::default(),
                runs: vec![cut],
            },
            now,
        );
        work.swapped(&[(slice, old)], now);
        while let Some(what) = work.next_fill(later.due) {
            let answer = match what {
                What::List { .. } => {
                    let runs = vec![Listing {
                        slice,
                        name: new.clone(),
                        least_due: later.due,
                    }];
                    Answer::List {
                        watermark,
                        history: History::default(),
                        runs,
                        more: false,
                    }
                }
                What::Fetch {
                    runs,
                    bytes: held,
                    keep,
                    taken,
                } => {
                    let blobs = runs
                        .iter()
                        .map(|(_, name)| (*name == new).then(|| bytes(vec![later])))
                        .collect();
                    fetch_answer(
                        &runs,
                        blobs,
                        Wanted {
                            bytes: held,
                            keep,
                            taken,
                        },
                        &mut Decoder::new(),
                    )
                }
                What::Tail { .. } => unreachable!("a fill does not follow what is appended"),
            };
            work.take_in(answer, now);
        }
        let take = work.schedule.take(later.due, 9).expect("both are due");
        let taken: Vec<_> = take
            .messages
            .iter()
            .map(|(resident, index)| resident.run.place(*index as usize))
            .collect();
        assert!(taken.ends_with(&[later]));
        work.tag() != tag
    }

    #[test]
    fn a_run_that_is_gone_because_it_was_rewritten_does_not_make_the_shard_load_again() {
        assert!(!is_loaded_again_to_read_on());
        assert!(
            mutant::with([Mutant::ForgetsReplaced], is_loaded_again_to_read_on),
            "it seems that the store went back"
        );
    }

    #[test]
    fn the_beginning_of_the_list_is_looked_at_every_minute_however_long_the_rest_of_it_takes() {
        let (mut work, mut now) = (looking(), Instant::now());
        let page = Timestamp::from_millis(7_000);
        let mut look = |work: &mut Work, found, after| {
            work.looked(found, WALL, now);
            now += after;
            work.next_chore(WALL, now).map(|chore| chore.from)
        };
        let more = |from| Found::Nothing {
            more: Some(Timestamp::from_millis(from)),
        };
        assert_eq!(look(&mut work, more(7_000), REWRITE_INTERVAL), Some(page));
        assert_eq!(
            look(&mut work, Found::Useless, REWRITE_FRONT),
            Some(Timestamp::AT_ONCE)
        );
        assert_eq!(
            look(&mut work, Found::Useless, REWRITE_PAUSE),
            Some(Timestamp::AT_ONCE),
            "as long as there is something to do"
        );
        assert_eq!(
            look(&mut work, more(3_000), REWRITE_PAUSE),
            Some(page),
            "it goes on where it was"
        );
        assert_eq!(
            look(&mut work, more(9_000), REWRITE_PAUSE),
            Some(Timestamp::from_millis(9_000))
        );
        assert_eq!(
            look(&mut work, more(11_000), REWRITE_FRONT),
            Some(Timestamp::AT_ONCE)
        );
        assert_eq!(
            look(&mut work, Found::Nothing { more: None }, REWRITE_PAUSE),
            Some(Timestamp::from_millis(11_000))
        );
    }

    #[test]
    fn a_shard_rests_only_after_its_list_was_seen_to_the_end() {
        let again = |found, after| {
            let (mut work, now) = (looking(), Instant::now());
            work.looked(found, WALL, now);
            assert!(
                work.next_chore(
                    WALL,
                    now + REWRITE_PAUSE.min(after) - Duration::from_millis(1)
                )
                .is_none(),
                "not before"
            );
            work.next_chore(WALL, now + after).map(|chore| chore.from)
        };
        let page = Timestamp::from_millis(7_000);
        assert_eq!(
            again(Found::Nothing { more: Some(page) }, REWRITE_PAUSE),
            Some(page)
        );
        assert_eq!(
            again(Found::Useless, REWRITE_PAUSE),
            Some(Timestamp::AT_ONCE)
        );
        assert_eq!(
            again(Found::NoAnswer, REWRITE_INTERVAL),
            Some(Timestamp::AT_ONCE)
        );
        assert_eq!(
            again(swap(0), REWRITE_INTERVAL),
            Some(Timestamp::AT_ONCE),
            "one that came too late"
        );
        assert_eq!(again(Found::Nothing { more: None }, REWRITE_INTERVAL), None);
        assert_eq!(
            again(Found::Nothing { more: None }, REWRITE_IDLE),
            Some(Timestamp::AT_ONCE)
        );
    }
}
