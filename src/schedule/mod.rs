//! One shard's protocol, pure: which messages a timer may take next, and what pair (C, W) says that they are taken. It holds runs, not
//! messages: a run *stands* at its next message's due, in the wheel if that lies ahead, else in the heap of those that are ready.
//!
//! Three kinds of messages of a run, seen from the pair (C, W) that was taken last:
//!
//! | a message at (due, offset) | is | and goes |
//! |---|---|---|
//! | not past C, offset before W | done with | nowhere: it is passed over |
//! | not past C, offset from W on | *late*: stored behind the cursor | in offset order, W moving over it |
//! | past C | fresh | in (due, offset) order, C moving to it |
//!
//! What it does not do: read, decode, claim, deliver. It has no clock: `now` is an argument, and a `now` that steps back takes less, never
//! something twice.

mod in_flight_claims;
mod run_index;

pub(crate) use in_flight_claims::InFlightClaims;
pub(crate) use run_index::RunIndex;

use crate::model::{Cursor, Offset, Progress, Timestamp, Watermark};
use crate::wheel::Wheel;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::rc::Rc;

/// A run as far as the schedule cares: places in ascending order.
pub(crate) trait Places {
    fn len(&self) -> usize;
    fn place(&self, index: usize) -> Cursor;
}

/// See the module's page.
pub(crate) struct Schedule<R> {
    taken: Progress,
    /// Everything that was stored before it, with a place before `loaded`, is in here (or was taken).
    seen: Watermark,
    loaded: Cursor,
    /// As long as `loaded` is not past the cursor: every late message below it is in here.
    late_loaded: Offset,
    wheel: Wheel,
    ready: BinaryHeap<Reverse<ReadyEntry>>,
    late: BinaryHeap<LateMessage<R>>,
    runs: Vec<Option<QueuedRun<R>>>,
    free: Vec<u32>,
    /// Reused by every advance of the wheel.
    promoted: Vec<(Timestamp, u32)>,
}

/// A standing run in the heap, by the place of its next message.
type ReadyEntry = (Cursor, u32);

/// A run of which the messages `next..end` are still to come. The run may since have been trimmed to fewer. If that left none it is gone, but
/// its handle may be used again only when the wheel or the heap has come by it.
struct QueuedRun<R> {
    run: Rc<R>,
    next: u32,
    end: u32,
}

impl<R: Places> QueuedRun<R> {
    fn next_place(&self) -> Option<Cursor> {
        let there = self.next < self.end && (self.next as usize) < self.run.len();
        there.then(|| self.run.place(self.next as usize))
    }
}

struct LateMessage<R> {
    place: Cursor,
    run: Rc<R>,
    index: u32,
}

/// By offset, the least first out of the heap.
impl<R> Ord for LateMessage<R> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other
            .place
            .offset
            .cmp(&self.place.offset)
            .then(other.place.due.cmp(&self.place.due))
    }
}

impl<R> PartialOrd for LateMessage<R> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<R> PartialEq for LateMessage<R> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<R> Eq for LateMessage<R> {}

/// What was taken in one step: the pair to claim, and the messages, each a run and an index into it.
pub(crate) struct TakenBatch<R> {
    pub(crate) claim: Progress,
    pub(crate) messages: Vec<(Rc<R>, u32)>,
    /// How many of them were late; they come first.
    pub(crate) late_count: usize,
}

impl<R: Places> Schedule<R> {
    /// Begins behind `taken`, having seen nothing yet of what is stored before `seen`.
    pub(crate) fn new(taken: Progress, seen: Watermark) -> Self {
        Self {
            taken,
            seen,
            loaded: Cursor::new(Timestamp::AT_ONCE, Offset(0)),
            late_loaded: Offset(0),
            wheel: Wheel::new(Timestamp::AT_ONCE),
            ready: BinaryHeap::new(),
            late: BinaryHeap::new(),
            runs: Vec::new(),
            free: Vec::new(),
            promoted: Vec::new(),
        }
    }

    pub(crate) fn taken(&self) -> Progress {
        self.taken
    }

    pub(crate) fn seen(&self) -> Watermark {
        self.seen
    }

    /// Everything before this place is in memory.
    pub(crate) fn loaded(&self) -> Cursor {
        self.loaded
    }

    /// Whether a store whose watermark is `watermark` has gone back behind what was seen: then begin a new schedule behind what was taken, and load again.
    pub(crate) fn is_rolled_back(&self, watermark: Watermark) -> bool {
        watermark < self.seen && !fault!(IgnoreRollback)
    }

    /// All that was stored before `watermark` was merged.
    pub(crate) fn advance_seen(&mut self, watermark: Watermark) {
        self.seen = self.seen.max(watermark);
    }

    /// All places before `loaded` were merged.
    pub(crate) fn set_loaded(&mut self, loaded: Cursor) {
        self.loaded = loaded;
    }

    /// All late messages below `bound` were merged, though not everything up to the cursor yet: these may go, so that a backlog of late
    /// messages need not be in memory as a whole.
    pub(crate) fn advance_late_loaded(&mut self, bound: Offset) {
        self.late_loaded = self.late_loaded.max(bound);
    }

    /// Some message at or past `bound` is not in memory after all.
    pub(crate) fn lower_loaded(&mut self, bound: Cursor) {
        self.loaded = self.loaded.min(bound);
        if !self.is_cursor_loaded() {
            self.late_loaded = Offset(0);
        }
    }

    /// Whether everything up to the cursor is in memory.
    fn is_cursor_loaded(&self) -> bool {
        self.loaded > self.taken.cursor
    }

    /// The end of the late messages that may be taken.
    fn late_end(&self) -> Watermark {
        if self.is_cursor_loaded() {
            self.seen
        } else {
            self.seen.min(Watermark(self.late_loaded.0))
        }
    }

    /// The due of the late message that would be taken next.
    pub(crate) fn next_late_due(&self) -> Option<Timestamp> {
        self.late
            .peek()
            .filter(|late| self.late_end().covers(late.place.offset))
            .map(|late| late.place.due)
    }

    /// Late messages that are held.
    pub(crate) fn late_count(&self) -> usize {
        self.late.len()
    }

    /// Whether there are (or, ahead of now, may be) messages in memory that nothing but time keeps from being taken.
    pub(crate) fn has_loaded_messages(&self) -> bool {
        let late = self
            .late
            .peek()
            .is_some_and(|late| self.late_end().covers(late.place.offset));
        let ready = self
            .ready
            .peek()
            .is_some_and(|Reverse((place, _))| *place < self.loaded);
        late || self.is_cursor_loaded()
            && (ready
                || self
                    .wheel
                    .next_wakeup()
                    .is_some_and(|due| due < self.loaded.due))
    }

    /// Takes a run in. Merging the same messages twice, under one name or another, is harmless: equal places are one message.
    pub(crate) fn add_run(&mut self, run: Rc<R>) {
        let mut next = 0;
        while next < run.len() && run.place(next) <= self.taken.cursor {
            let place = run.place(next);
            if !self.taken.covers(place) {
                self.late.push(LateMessage {
                    place,
                    run: run.clone(),
                    index: index(next),
                });
            }
            next += 1;
        }
        if next < run.len() {
            let end = index(run.len());
            let handle = self.allocate(QueuedRun {
                run,
                next: index(next),
                end,
            });
            self.requeue(handle);
        }
    }

    fn allocate(&mut self, standing: QueuedRun<R>) -> u32 {
        if let Some(handle) = self.free.pop() {
            self.runs[handle as usize] = Some(standing);
            return handle;
        }
        self.runs.push(Some(standing));
        index(self.runs.len() - 1)
    }

    /// Puts a run into the wheel at its next message, or lets it go after its last.
    fn requeue(&mut self, handle: u32) {
        match self.runs[handle as usize]
            .as_ref()
            .and_then(QueuedRun::next_place)
        {
            Some(place) => self.wheel.insert(place.due, handle),
            None => {
                self.runs[handle as usize] = None;
                self.free.push(handle);
            }
        }
    }

    /// Lets `trim` shorten each run that nobody else holds; what it cuts must lie at or past `loaded`, which becomes the bound.
    pub(crate) fn trim(&mut self, loaded: Cursor, mut trim: impl FnMut(&mut R)) {
        self.lower_loaded(loaded);
        for slot in &mut self.runs {
            slot.as_mut()
                .and_then(|standing| Rc::get_mut(&mut standing.run))
                .into_iter()
                .for_each(&mut trim);
            // One of which nothing is left goes at once: a shard may have more runs than fit into its memory even when they are empty.
            slot.take_if(|standing| standing.next_place().is_none());
        }
    }

    /// Takes at most `limit` messages that are due at `now`, late ones first (at most half of the limit), and moves the pair over them.
    /// `None`: nothing to take, and the pair stays.
    ///
    /// Nothing is taken while the store is behind the pair's own watermark, and nothing fresh before everything up to the cursor is in memory.
    pub(crate) fn take(&mut self, now: Timestamp, limit: usize) -> Option<TakenBatch<R>> {
        if self.late_end() < self.taken.watermark && !fault!(ClaimWhileStoreIsBehind) {
            return None;
        }
        let mut messages = Vec::new();
        let watermark = self.take_late(now, limit.div_ceil(2), &mut messages);
        let late = messages.len();
        let cursor = if self.is_cursor_loaded() {
            self.take_fresh(now, limit, watermark, &mut messages)
        } else {
            self.taken.cursor
        };
        if messages.is_empty() {
            // W could move alone, but nothing needs it to: it moves with the next message.
            return None;
        }
        let claim = Progress::new(cursor, watermark);
        self.taken = claim;
        Some(TakenBatch {
            claim,
            messages,
            late_count: late,
        })
    }

    /// Answers how far W may move: up to the first late message that stays.
    fn take_late(
        &mut self,
        now: Timestamp,
        limit: usize,
        messages: &mut Vec<(Rc<R>, u32)>,
    ) -> Watermark {
        let (mut last, end) = (None, self.late_end());
        while let Some(late) = self.late.peek() {
            let place = late.place;
            let again = last == Some(place.offset) || self.taken.watermark.covers(place.offset);
            if !again {
                if !end.covers(place.offset) {
                    break;
                }
                if place.due > now || messages.len() == limit {
                    return Watermark(place.offset.0);
                }
            }
            let Some(late) = self.late.pop() else { break };
            if !again && !fault!(SkipLateMessages) {
                messages.push((late.run, late.index));
            }
            last = Some(place.offset);
        }
        end
    }

    /// Answers how far C moved. A message past the new W must wait until W has reached it; the cursor may pass it meanwhile, and then it
    /// is late.
    fn take_fresh(
        &mut self,
        now: Timestamp,
        limit: usize,
        watermark: Watermark,
        messages: &mut Vec<(Rc<R>, u32)>,
    ) -> Cursor {
        let mut cursor = self.taken.cursor;
        let mut ahead: Vec<LateMessage<R>> = Vec::new();
        while messages.len() < limit && ahead.len() < limit {
            let Some((place, run, index)) = self.pop_due(now) else {
                break;
            };
            if place <= cursor {
                if !watermark.covers(place.offset) {
                    self.late.push(LateMessage { place, run, index });
                }
            } else if watermark.covers(place.offset) {
                cursor = place;
                messages.push((run, index));
            } else {
                ahead.push(LateMessage { place, run, index });
            }
        }
        for LateMessage { place, run, index } in ahead {
            if place <= cursor {
                self.late.push(LateMessage { place, run, index });
            } else {
                let handle = self.allocate(QueuedRun {
                    run,
                    next: index,
                    end: index + 1,
                });
                self.ready.push(Reverse((place, handle)));
            }
        }
        cursor
    }

    /// The least due of what waits to be taken at `now`, but for what is due at once; of late messages only the first is looked at.
    pub(crate) fn earliest_due(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.promote_due(now);
        let ready = self.ready.peek().map(|Reverse((place, _))| place.due);
        let late = self
            .late
            .peek()
            .map(|late| late.place.due)
            .filter(|due| !due.is_at_once());
        [ready, late]
            .into_iter()
            .flatten()
            .filter(|due| *due <= now)
            .min()
    }

    /// Runs whose next message is due leave the wheel.
    fn promote_due(&mut self, now: Timestamp) {
        self.wheel.advance(now, &mut self.promoted);
        for (_, handle) in self.promoted.drain(..) {
            match self.runs[handle as usize]
                .as_ref()
                .and_then(QueuedRun::next_place)
            {
                Some(place) => self.ready.push(Reverse((place, handle))),
                None => {
                    self.runs[handle as usize] = None;
                    self.free.push(handle);
                }
            }
        }
    }

    /// The next message in order that is due and loaded; its run stands again at the message after it.
    fn pop_due(&mut self, now: Timestamp) -> Option<(Cursor, Rc<R>, u32)> {
        self.promote_due(now);
        loop {
            let mut head = self.ready.peek_mut()?;
            let Reverse((place, handle)) = *head;
            if place.due > now || place >= self.loaded {
                return None;
            }
            let standing = self.runs[handle as usize].as_mut();
            let Some(standing) = standing.filter(|standing| standing.next_place() == Some(place))
            else {
                // Trimmed away beneath its head.
                PeekMut::pop(head);
                self.requeue(handle);
                continue;
            };
            let (run, index) = (standing.run.clone(), standing.next);
            standing.next += 1;
            match standing.next_place() {
                Some(after) if after.due <= now => *head = Reverse((after, handle)),
                _ => {
                    PeekMut::pop(head);
                    self.requeue(handle);
                }
            }
            return Some((place, run, index));
        }
    }

    /// When to look again if nothing was to be taken at `now`, and nothing is merged meanwhile. Never too late; may be too early.
    pub(crate) fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let ready = self.ready.peek().map(|Reverse((place, _))| place.due);
        let late = self.late.peek().map(|late| late.place.due);
        [ready, late, self.wheel.next_wakeup()]
            .into_iter()
            .flatten()
            .filter(|due| *due > now)
            .min()
    }
}

fn index(value: usize) -> u32 {
    u32::try_from(value).expect("fewer than 2^32 runs, and messages in one, are in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    impl Places for Vec<Cursor> {
        fn len(&self) -> usize {
            Vec::len(self)
        }

        fn place(&self, index: usize) -> Cursor {
            self[index]
        }
    }

    fn place(due: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(due), Offset(offset))
    }

    /// One step of a shard's life.
    #[derive(Clone, Debug)]
    enum Step {
        /// So many messages are stored, due so far from now; the timer gets them as runs cut after each `true`.
        Store(Vec<(Due, bool)>),
        /// The timer has seen everything stored so far.
        See,
        /// The timer loads everything up to so far from now.
        Load(i64),
        /// The timer loads all late messages below so many offsets past W.
        LoadLate(u64),
        /// A run that was merged before is merged again under another name.
        Again(prop::sample::Index),
        Take {
            limit: usize,
        },
        /// Time passes, or steps back.
        Time(i64),
        /// The store went back by so many messages, and they are stored again.
        WentBack(u64),
        /// Memory runs short: runs are cut at so far from now.
        Trim(i64),
    }

    #[derive(Clone, Copy, Debug)]
    enum Due {
        AtOnce,
        In(i64),
    }

    fn due() -> impl Strategy<Value = Due> {
        prop_oneof![1 => Just(Due::AtOnce), 4 => (-20i64..60).prop_map(Due::In)]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => prop::collection::vec((due(), any::<bool>()), 1..8).prop_map(Step::Store),
            3 => Just(Step::See),
            3 => (-5i64..40).prop_map(Step::Load),
            2 => (0u64..10).prop_map(Step::LoadLate),
            1 => any::<prop::sample::Index>().prop_map(Step::Again),
            6 => (1usize..6).prop_map(|limit| Step::Take { limit }),
            3 => (-6i64..12).prop_map(Step::Time),
            1 => (1u64..5).prop_map(Step::WentBack),
            1 => (-5i64..10).prop_map(Step::Trim),
        ]
    }

    /// The reference: all messages in one list by offset, and what was taken as a set.
    struct World {
        now: i64,
        dues: Vec<Timestamp>,
        runs: Vec<Vec<Cursor>>,
        schedule: Schedule<Vec<Cursor>>,
        taken: BTreeSet<Cursor>,
    }

    impl World {
        fn new() -> Self {
            let schedule = Schedule::new(Progress::START, Watermark(0));
            Self {
                now: 1_000,
                dues: Vec::new(),
                runs: Vec::new(),
                schedule,
                taken: BTreeSet::new(),
            }
        }

        fn at(&self, distance: i64) -> Timestamp {
            Timestamp::from_millis(self.now + distance)
        }

        fn merge(&mut self, mut run: Vec<Cursor>) {
            run.sort_unstable();
            self.runs.push(run.clone());
            self.schedule.add_run(Rc::new(run));
        }

        /// As the loader does it: what is stored but was dropped or cut comes again before the bound rises.
        fn load(&mut self, until: Timestamp) {
            let bound = Cursor::new(until, Offset(0));
            if bound > self.schedule.loaded() {
                let all = (0u64..)
                    .zip(&self.dues)
                    .map(|(offset, due)| Cursor::new(*due, Offset(offset)));
                let run: Vec<_> = all.filter(|place| *place < bound).collect();
                self.merge(run);
                self.schedule.set_loaded(bound);
            }
        }

        fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
            match step {
                Step::Store(messages) => {
                    let mut run = Vec::new();
                    for (due, cut) in messages {
                        let due = match due {
                            Due::AtOnce => Timestamp::AT_ONCE,
                            Due::In(distance) => self.at(distance),
                        };
                        run.push(Cursor::new(due, Offset(self.dues.len() as u64)));
                        self.dues.push(due);
                        if cut {
                            self.merge(std::mem::take(&mut run));
                        }
                    }
                    self.merge(run);
                }
                Step::See => self
                    .schedule
                    .advance_seen(Watermark(self.dues.len() as u64)),
                Step::Load(distance) => self.load(self.at(distance)),
                Step::LoadLate(ahead) => {
                    let taken = self.schedule.taken();
                    let end = Offset(taken.watermark.0 + ahead);
                    let all = (0u64..)
                        .zip(&self.dues)
                        .map(|(offset, due)| Cursor::new(*due, Offset(offset)));
                    let run: Vec<_> = all
                        .filter(|place| *place <= taken.cursor && place.offset < end)
                        .collect();
                    self.merge(run);
                    self.schedule.advance_late_loaded(end);
                }
                Step::Again(index) if !self.runs.is_empty() => {
                    self.merge(index.get(&self.runs).clone())
                }
                Step::Again(_) => {}
                Step::Take { limit } => self.take(limit)?,
                Step::Time(distance) => self.now += distance,
                Step::WentBack(by) => {
                    let watermark = Watermark(self.schedule.seen().0.saturating_sub(by));
                    if self.schedule.is_rolled_back(watermark) {
                        self.schedule = Schedule::new(self.schedule.taken(), watermark);
                    }
                }
                Step::Trim(distance) => {
                    let horizon = self.at(distance);
                    let keep = |run: &mut Vec<Cursor>| run.retain(|place| place.due < horizon);
                    self.schedule.trim(Cursor::new(horizon, Offset(0)), keep);
                }
            }
            Ok(())
        }

        fn take(&mut self, limit: usize) -> Result<(), TestCaseError> {
            let (before, loaded) = (self.schedule.taken(), self.schedule.loaded());
            let Some(take) = self.schedule.take(Timestamp::from_millis(self.now), limit) else {
                prop_assert_eq!(
                    self.schedule.taken(),
                    before,
                    "a take of nothing moves nothing"
                );
                return Ok(());
            };
            let places: Vec<_> = take
                .messages
                .iter()
                .map(|(run, index)| run.place(*index as usize))
                .collect();
            let (late, fresh) = places.split_at(take.late_count);
            prop_assert!(
                !places.is_empty() && places.len() <= limit && late.len() <= limit.div_ceil(2)
            );
            prop_assert!(
                late.is_sorted_by_key(|place| place.offset) && fresh.is_sorted(),
                "out of order: {late:?} {fresh:?}"
            );
            prop_assert!(
                late.iter().all(|place| *place <= before.cursor)
                    && fresh.iter().all(|place| *place > before.cursor)
            );
            for place in &places {
                prop_assert!(
                    place.due.as_millis() <= self.now,
                    "early: {place:?} at {}",
                    self.now
                );
                prop_assert!(self.taken.insert(*place), "twice: {place:?}");
            }
            prop_assert!(take.claim.includes(before), "the pair went back");
            let all = (0u64..)
                .zip(&self.dues)
                .map(|(offset, due)| Cursor::new(*due, Offset(offset)));
            let covered: BTreeSet<_> = all.filter(|place| take.claim.covers(*place)).collect();
            prop_assert_eq!(
                &covered,
                &self.taken,
                "the pair {:?} says something else than was taken (loaded {:?})",
                take.claim,
                loaded
            );
            Ok(())
        }
    }

    #[test]
    fn a_run_of_which_a_trim_leaves_nothing_is_gone_and_its_handle_is_used_again_when_the_wheel_came_by()
     {
        let mut schedule = Schedule::new(Progress::START, Watermark(9));
        let (now, run) = (Timestamp::from_millis(1_000), |due, offset| {
            Rc::new(vec![place(due, offset)])
        });
        schedule.add_run(run(2_000, 1));
        schedule.add_run(run(500, 2));
        schedule.set_loaded(place(9_000, 0));
        assert_eq!(
            schedule.earliest_due(now),
            Some(Timestamp::from_millis(500))
        );
        schedule.trim(place(400, 0), |run| run.retain(|at| *at < place(400, 0)));
        assert_eq!(schedule.runs.iter().flatten().count(), 0);
        schedule.set_loaded(place(9_000, 0));
        assert!(schedule.take(Timestamp::from_millis(3_000), 9).is_none());
        assert_eq!(schedule.free.len(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn the_pair_covers_exactly_what_was_taken_and_all_is_taken_once_in_order(steps in prop::collection::vec(step(), 1..60)) {
            let mut world = World::new();
            for step in steps {
                world.step(step)?;
            }
            world.now += 1_000;
            world.step(Step::See)?;
            world.step(Step::Load(10_000))?;
            for _ in 0..2 * world.dues.len() + 2 {
                world.take(3)?;
            }
            prop_assert_eq!(world.taken.len(), world.dues.len(), "not all was taken");
            prop_assert!(world.schedule.next_due(Timestamp::from_millis(world.now)).is_none());
        }
    }

    #[test]
    fn late_messages_that_are_loaded_go_before_the_rest_is() {
        let mut schedule = Schedule::new(Progress::new(place(50, 5), Watermark(6)), Watermark(90));
        schedule.add_run(Rc::new(vec![place(40, 7), place(45, 20), place(60, 8)]));
        schedule.advance_late_loaded(Offset(20));
        let take = schedule
            .take(Timestamp::from_millis(100), 10)
            .expect("the late one below the bound");
        assert_eq!(
            (take.messages.len(), take.late_count, take.claim),
            (1, 1, Progress::new(place(50, 5), Watermark(20)))
        );
        assert!(schedule.take(Timestamp::from_millis(100), 10).is_none());
    }

    #[test]
    fn nothing_is_taken_before_everything_up_to_the_cursor_is_loaded() {
        let mut schedule = Schedule::new(Progress::new(place(50, 5), Watermark(6)), Watermark(9));
        schedule.add_run(Rc::new(vec![place(40, 7), place(60, 8)]));
        schedule.set_loaded(place(50, 5));
        assert!(schedule.take(Timestamp::from_millis(100), 10).is_none());
        schedule.set_loaded(place(101, 0));
        let take = schedule
            .take(Timestamp::from_millis(100), 10)
            .expect("two messages");
        assert_eq!(
            (take.messages.len(), take.late_count, take.claim),
            (2, 1, Progress::new(place(60, 8), Watermark(9)))
        );
    }

    #[test]
    fn nothing_is_taken_while_the_store_is_behind_the_pair() {
        let mut schedule = Schedule::new(Progress::new(place(50, 5), Watermark(6)), Watermark(5));
        schedule.set_loaded(place(1_000, 0));
        schedule.add_run(Rc::new(vec![place(60, 4)]));
        assert!(schedule.take(Timestamp::from_millis(100), 10).is_none());
        schedule.advance_seen(Watermark(6));
        assert!(schedule.take(Timestamp::from_millis(100), 10).is_some());
    }

    #[test]
    fn a_backlog_of_late_messages_leaves_room_for_fresh_ones() {
        let mut schedule = Schedule::new(Progress::new(place(50, 0), Watermark(1)), Watermark(100));
        schedule.set_loaded(place(1_000, 0));
        schedule.add_run(Rc::new(
            (10..100)
                .map(|offset| place(40, offset))
                .collect::<Vec<_>>(),
        ));
        schedule.add_run(Rc::new(
            (1..10).map(|offset| place(60, offset)).collect::<Vec<_>>(),
        ));
        let take = schedule
            .take(Timestamp::from_millis(100), 8)
            .expect("messages");
        assert_eq!((take.late_count, take.messages.len()), (4, 8));
    }
}
