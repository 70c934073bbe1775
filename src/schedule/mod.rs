//! The protocol of one shard: which messages to take next, and which pair (C, W) describes them.
//! Pure.
//!
//! The schedule holds runs, not messages. The wheel, a heap, orders them by their next messages.
//!
//! Relative to the pair (C, W) that was taken last, a message has one of three states:
//!
//! | a message at (due, offset) | is | is taken |
//! |---|---|---|
//! | at or before C, offset below W | done | never |
//! | at or before C, offset W or above | *late*: stored behind C | by offset; W moves over it |
//! | after C | fresh | by (due, offset); C moves to it |
//!
//! The schedule does not read, decode, claim or deliver. It has no clock: `now` is an argument. If
//! `now` steps back, fewer messages are taken, and none is taken twice.

mod in_flight_claims;
mod occurrences;
mod recurring;
#[cfg(test)]
mod recurring_tests;
mod run_index;

pub(crate) use in_flight_claims::InFlightClaims;
pub(crate) use occurrences::{DueOccurrence, ScheduleRecord};
pub(crate) use recurring::{CollectOccurrences, RecurringShard};
pub(crate) use run_index::RunIndex;

use crate::model::{Cursor, Offset, Progress, Timestamp, Watermark};
use crate::wheel::Wheel;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The messages of a run as the schedule sees them: places (due, offset) in ascending order.
pub(crate) trait Places {
    fn len(&self) -> usize;
    fn place(&self, index: usize) -> Cursor;
}

/// The messages of one shard that are known and not taken yet.
pub(crate) struct Schedule<R> {
    /// The pair that was taken last.
    taken: Progress,
    /// The pair of the last batch, or the one at the beginning. `taken` may have a later cursor, which
    /// has passed no message.
    claimed: Progress,
    /// All messages stored before `seen` and placed before `loaded` are in the schedule, or were
    /// taken.
    seen: Watermark,
    loaded: Cursor,
    /// While `loaded` is not past the cursor: all late messages below this offset are in the
    /// schedule.
    late_loaded: Offset,
    /// Runs by the places of their next messages.
    wheel: Wheel<QueuedRun<R>>,
    /// Late messages that are not taken, so none is below W. A message and its answer have the same
    /// offset.
    late: BTreeMap<(Offset, Timestamp), LateMessage<R>>,
}

/// A run whose messages `next..end` were not taken yet. Trimming may have left fewer, or none.
struct QueuedRun<R> {
    run: Rc<R>,
    next: u32,
    end: u32,
}

impl<R: Places> QueuedRun<R> {
    fn next_place(&self) -> Option<Cursor> {
        let exists = self.next < self.end && (self.next as usize) < self.run.len();
        exists.then(|| self.run.place(self.next as usize))
    }
}

struct LateMessage<R> {
    run: Rc<R>,
    index: u32,
}

/// The messages that were taken in one step, each as a run and an index into it.
pub(crate) struct TakenBatch<R> {
    pub(crate) claim: Progress,
    /// The cursor before it was taken.
    pub(crate) start: Cursor,
    pub(crate) messages: Vec<(Rc<R>, u32)>,
    /// The number of late messages. They come first.
    pub(crate) late_count: usize,
}

impl<R: Places> Schedule<R> {
    /// An empty schedule that starts after `taken`, for a store with the watermark `seen`.
    pub(crate) fn new(taken: Progress, seen: Watermark) -> Self {
        Self {
            taken,
            claimed: taken,
            seen,
            loaded: Cursor::new(Timestamp::AT_ONCE, Offset(0)),
            late_loaded: Offset(0),
            wheel: Wheel::new(),
            late: BTreeMap::new(),
        }
    }

    pub(crate) fn taken(&self) -> Progress {
        self.taken
    }

    /// The pair of the last batch. A schedule that loads again begins with it.
    pub(crate) fn claimed(&self) -> Progress {
        self.claimed
    }

    pub(crate) fn seen(&self) -> Watermark {
        self.seen
    }

    /// The place before which all messages are loaded.
    pub(crate) fn loaded(&self) -> Cursor {
        self.loaded
    }

    /// Returns whether a store with this watermark was rolled back. If so, the caller must start a
    /// new schedule after the taken pair, and load everything again.
    pub(crate) fn is_rolled_back(&self, watermark: Watermark) -> bool {
        watermark < self.seen && !fault!(IgnoreRollback)
    }

    /// Records that all messages stored before `watermark` were added.
    pub(crate) fn advance_seen(&mut self, watermark: Watermark) {
        self.seen = self.seen.max(watermark);
    }

    /// Records that all messages placed before `loaded` were added.
    pub(crate) fn set_loaded(&mut self, loaded: Cursor) {
        self.loaded = loaded;
    }

    /// Records that all late messages below `bound` were added, although the schedule is not loaded
    /// up to the cursor. They can be taken already, so a backlog of late messages need not fit into
    /// memory.
    pub(crate) fn advance_late_loaded(&mut self, bound: Offset) {
        self.late_loaded = self.late_loaded.max(bound);
    }

    /// Records that messages at or after `bound` may be missing.
    pub(crate) fn lower_loaded(&mut self, bound: Cursor) {
        self.loaded = self.loaded.min(bound);
        if !self.is_cursor_loaded() {
            self.late_loaded = Offset(0);
        }
    }

    fn is_cursor_loaded(&self) -> bool {
        self.loaded > self.taken.cursor
    }

    /// Late messages before this watermark can be taken.
    fn late_end(&self) -> Watermark {
        if self.is_cursor_loaded() {
            self.seen
        } else {
            self.seen.min(Watermark(self.late_loaded.0))
        }
    }

    /// The due time of the next late message, if it is loaded.
    pub(crate) fn next_late_due(&self) -> Option<Timestamp> {
        let (offset, due, _) = self.first_late()?;
        self.late_end().covers(offset).then_some(due)
    }

    /// The offset of the first late messages, the time at which all of them are due, and their
    /// number. They are taken together, because W covers all messages at an offset or none.
    fn first_late(&self) -> Option<(Offset, Timestamp, usize)> {
        let &(offset, _) = self.late.first_key_value()?.0;
        let all = (self.late).range((offset, Timestamp::AT_ONCE)..=(offset, Timestamp::MAX));
        let dues = all.map(|(&(_, due), _)| due);
        let (due, count) = dues.fold((Timestamp::AT_ONCE, 0), |(_, count), due| (due, count + 1));
        Some((offset, due, count))
    }

    /// Returns whether a late message below a watermark was not taken.
    fn has_late_below(&self, watermark: Watermark) -> bool {
        let first = self.late.first_key_value();
        first.is_some_and(|((offset, _), _)| watermark.covers(*offset))
    }

    /// A claim without messages, which keeps the cursor. `None` while nothing can be taken.
    fn claim_cursor(&mut self) -> Option<TakenBatch<R>> {
        if !self.may_claim_cursor() {
            return None;
        }
        self.claimed = self.taken;
        Some(TakenBatch {
            claim: self.taken,
            start: self.taken.cursor,
            messages: Vec::new(),
            late_count: 0,
        })
    }

    fn may_claim_cursor(&self) -> bool {
        self.is_cursor_loaded() && self.late_end() >= self.taken.watermark
    }

    /// The place of the next message that is not late.
    fn next_fresh(&self) -> Option<Cursor> {
        self.wheel.next_place()
    }

    /// Moves C forward. The caller knows that no message before it is left below W.
    fn move_cursor(&mut self, cursor: Cursor) {
        self.taken.cursor = self.taken.cursor.max(cursor);
    }

    /// The number of late messages in memory.
    pub(crate) fn late_count(&self) -> usize {
        self.late.len()
    }

    /// Returns whether there are messages in memory that wait only for their due time.
    pub(crate) fn has_loaded_messages(&self) -> bool {
        let next = self.wheel.next_place();
        let has_fresh = next.is_some_and(|place| place < self.loaded);
        self.next_late_due().is_some() || self.is_cursor_loaded() && has_fresh
    }

    /// Adds a run. The same message may be added several times, also by runs of different names:
    /// equal places are one message.
    pub(crate) fn add_run(&mut self, run: Rc<R>) {
        let mut next = 0;
        while next < run.len() && run.place(next) <= self.taken.cursor {
            let place = run.place(next);
            if !self.taken.covers(place) {
                self.add_late(place, run.clone(), index(next));
            }
            next += 1;
        }
        let queued = QueuedRun {
            next: index(next),
            end: index(run.len()),
            run,
        };
        if let Some(place) = queued.next_place() {
            self.wheel.insert(place, queued);
        }
    }

    fn add_late(&mut self, place: Cursor, run: Rc<R>, index: u32) {
        let late = LateMessage { run, index };
        self.late.insert((place.offset, place.due), late);
    }

    /// Calls `trim` for each run that is not shared. `trim` may cut messages at or after `loaded`.
    pub(crate) fn trim(&mut self, loaded: Cursor, mut trim: impl FnMut(&mut R)) {
        self.lower_loaded(loaded);
        self.wheel.retain_mut(|queued| {
            if let Some(run) = Rc::get_mut(&mut queued.run) {
                trim(run);
            }
            queued.next_place().is_some()
        });
    }

    /// Takes at most `limit` messages that are due at `now`, and moves the pair over them. Late
    /// messages come first, and are at most half of the limit, or one more with its answer. Returns
    /// `None` if there is nothing to take.
    ///
    /// Takes nothing while the store is behind the watermark of the pair, and no fresh message
    /// before everything up to the cursor is loaded.
    pub(crate) fn take(&mut self, now: Timestamp, limit: usize) -> Option<TakenBatch<R>> {
        let all = Progress::new(Cursor::new(Timestamp::MAX, Offset::MAX), self.seen);
        self.take_within(all, now, limit)
    }

    /// Like [`Schedule::take`], without late messages at or after the watermark of `bound`, and
    /// without fresh messages after its cursor.
    pub(crate) fn take_within(
        &mut self,
        bound: Progress,
        now: Timestamp,
        limit: usize,
    ) -> Option<TakenBatch<R>> {
        let late_end = self.late_end().min(bound.watermark);
        if late_end < self.taken.watermark && !fault!(ClaimWhileStoreIsBehind) {
            return None;
        }
        let mut messages = Vec::new();
        let watermark = self.take_late(now, late_end, limit.div_ceil(2), &mut messages);
        let late_count = messages.len();
        let cursor = if self.is_cursor_loaded() {
            let bound = Progress::new(bound.cursor, watermark);
            self.take_fresh(now, limit, bound, &mut messages)
        } else {
            self.taken.cursor
        };
        if messages.is_empty() {
            // W alone need not move. It moves with the next message.
            return None;
        }
        let start = self.taken.cursor;
        self.taken = Progress::new(cursor, watermark);
        self.claimed = self.taken;
        Some(TakenBatch {
            claim: self.taken,
            start,
            messages,
            late_count,
        })
    }

    /// Takes late messages. Returns the new W: the first late message that stays, or their end.
    fn take_late(
        &mut self,
        now: Timestamp,
        end: Watermark,
        limit: usize,
        messages: &mut Vec<(Rc<R>, u32)>,
    ) -> Watermark {
        while let Some((offset, due, count)) = self.first_late() {
            if !end.covers(offset) {
                break;
            }
            if due > now || messages.len() >= limit {
                return Watermark(offset.0);
            }
            for _ in 0..count {
                let late = self
                    .late
                    .pop_first()
                    .map(|(_, late)| (late.run, late.index));
                messages.extend(late.filter(|_| !fault!(SkipLateMessages)));
            }
        }
        end
    }

    /// Takes fresh messages up to the cursor of `bound`. Returns the new C. A message at or after the
    /// new W, which is in `bound`, must wait until W has passed it. The cursor may pass it meanwhile;
    /// then it is late.
    fn take_fresh(
        &mut self,
        now: Timestamp,
        limit: usize,
        bound: Progress,
        messages: &mut Vec<(Rc<R>, u32)>,
    ) -> Cursor {
        let mut cursor = self.taken.cursor;
        let mut past_watermark = Vec::new();
        while messages.len() < limit
            && past_watermark.len() < limit
            && let Some((place, run, index)) = self.pop_due(now, bound.cursor)
        {
            if !bound.watermark.covers(place.offset) {
                past_watermark.push((place, run, index));
            } else if place > cursor {
                cursor = place;
                messages.push((run, index));
            }
        }
        for (place, run, next) in past_watermark {
            if place <= cursor {
                self.add_late(place, run, next);
            } else {
                let end = next + 1;
                self.wheel.insert(place, QueuedRun { run, next, end });
            }
        }
        cursor
    }

    /// Removes the next message that is due, loaded, and not after `last`.
    fn pop_due(&mut self, now: Timestamp, last: Cursor) -> Option<(Cursor, Rc<R>, u32)> {
        let place = self.wheel.next_place()?;
        if place.due > now || place >= self.loaded || place > last {
            return None;
        }
        self.wheel.turn(|queued| {
            let message = (place, queued.run.clone(), queued.next);
            queued.next += 1;
            (message, queued.next_place())
        })
    }

    /// The least due time of the messages that are due at `now`, except messages that are due at
    /// once. Only the first late message is considered.
    pub(crate) fn earliest_due(&self, now: Timestamp) -> Option<Timestamp> {
        self.first_dues()
            .into_iter()
            .flatten()
            .filter(|due| *due <= now && !due.is_at_once())
            .min()
    }

    /// Returns whether [`Schedule::take`] would take a message at `now`, as far as its offset allows.
    pub(crate) fn has_due(&self, now: Timestamp) -> bool {
        let is_fresh_due = |place: Cursor| place.due <= now && place < self.loaded;
        self.late_end() >= self.taken.watermark
            && (self.next_late_due().is_some_and(|due| due <= now)
                || self.is_cursor_loaded() && self.next_fresh().is_some_and(is_fresh_due))
    }

    /// When to call [`Schedule::take`] again, if it took nothing at `now` and no run is added.
    pub(crate) fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        self.first_dues()
            .into_iter()
            .flatten()
            .filter(|due| *due > now)
            .min()
    }

    /// The due time of the next message, if [`Schedule::take`] takes it when it is due. A message at or
    /// after the watermark that was seen cannot be taken, and one after `loaded` neither.
    pub(crate) fn next_ready_due(&self) -> Option<Timestamp> {
        let is_ready = |place: &Cursor| *place < self.loaded && self.seen.covers(place.offset);
        let fresh = self.next_fresh().filter(is_ready);
        let fresh = fresh.filter(|_| self.is_cursor_loaded());
        let dues = [fresh.map(|place| place.due), self.next_late_due()];
        dues.into_iter().flatten().min()
    }

    /// The due times of the next run in the wheel, and of the first late message.
    fn first_dues(&self) -> [Option<Timestamp>; 2] {
        [
            self.wheel.next_place().map(|place| place.due),
            // The end of the loaded late messages decides when those that are due at once are taken.
            (self.first_late()).map(|(_, due, _)| match due.is_at_once() {
                true => Timestamp::AT_ONCE,
                false => due,
            }),
        ]
    }
}

fn index(value: usize) -> u32 {
    u32::try_from(value).expect("memory holds fewer than 2^32 messages of a run")
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

    #[test]
    fn a_message_is_ready_if_it_is_loaded_and_its_offset_was_seen() {
        let mut schedule = Schedule::new(Progress::START, Watermark(4));
        schedule.add_run(Rc::new(vec![place(10, 4)]));
        assert_eq!(schedule.next_ready_due(), None);
        schedule.set_loaded(place(20, 0));
        assert_eq!(schedule.next_ready_due(), None, "it was not seen");
        schedule.advance_seen(Watermark(5));
        let due = Some(Timestamp::from_millis(10));
        assert_eq!(schedule.next_ready_due(), due);
        // The same for a message behind the cursor.
        let taken = Progress::new(place(15, 9), Watermark(0));
        let mut schedule = Schedule::new(taken, Watermark(4));
        schedule.set_loaded(place(20, 0));
        schedule.add_run(Rc::new(vec![place(10, 4)]));
        assert_eq!(schedule.next_ready_due(), None, "it was not seen");
        schedule.advance_seen(Watermark(5));
        assert_eq!(schedule.next_ready_due(), due);
    }

    /// A step of a random test.
    #[derive(Clone, Debug)]
    enum Step {
        /// Stores messages with these delays, each with an answer if the second value is true. The timer
        /// gets them as runs, cut after each third value that is true.
        Store(Vec<(Due, bool, bool)>),
        /// The timer has seen everything that is stored.
        See,
        /// The timer loads everything that is due within this time.
        Load(i64),
        /// The timer loads all late messages up to this many offsets after W.
        LoadLate(u64),
        /// Adds an earlier run again, under another name.
        AddAgain(prop::sample::Index),
        Take {
            limit: usize,
        },
        /// Moves the clock, forward or back.
        Time(i64),
        /// The store loses this many messages, and they are stored again.
        RollBack(u64),
        /// Memory is short: runs are cut at this time from now.
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
            4 => prop::collection::vec((due(), any::<bool>(), any::<bool>()), 1..8).prop_map(Step::Store),
            3 => Just(Step::See),
            3 => (-5i64..40).prop_map(Step::Load),
            2 => (0u64..10).prop_map(Step::LoadLate),
            1 => any::<prop::sample::Index>().prop_map(Step::AddAgain),
            6 => (1usize..6).prop_map(|limit| Step::Take { limit }),
            3 => (-6i64..12).prop_map(Step::Time),
            1 => (1u64..5).prop_map(Step::RollBack),
            1 => (-5i64..10).prop_map(Step::Trim),
        ]
    }

    /// A schedule beside its reference: the places of all messages, and the taken set.
    struct World {
        now: i64,
        /// The next offset.
        end: u64,
        places: Vec<Cursor>,
        runs: Vec<Vec<Cursor>>,
        schedule: Schedule<Vec<Cursor>>,
        taken: BTreeSet<Cursor>,
    }

    impl World {
        fn new() -> Self {
            let schedule = Schedule::new(Progress::START, Watermark(0));
            Self {
                now: 1_000,
                end: 0,
                places: Vec::new(),
                runs: Vec::new(),
                schedule,
                taken: BTreeSet::new(),
            }
        }

        fn at(&self, distance: i64) -> Timestamp {
            Timestamp::from_millis(self.now + distance)
        }

        fn add_run(&mut self, mut run: Vec<Cursor>) {
            run.sort_unstable();
            self.runs.push(run.clone());
            self.schedule.add_run(Rc::new(run));
        }

        /// Adds everything that is due before `until` again, as the loader does, and raises the
        /// bound.
        fn load(&mut self, until: Timestamp) {
            let bound = Cursor::new(until, Offset(0));
            if bound > self.schedule.loaded() {
                let all = self.places.iter().copied();
                let run: Vec<_> = all.filter(|place| *place < bound).collect();
                self.add_run(run);
                self.schedule.set_loaded(bound);
            }
        }

        fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
            match step {
                Step::Store(messages) => {
                    let mut run = Vec::new();
                    for (due, is_answered, cut) in messages {
                        let due = match due {
                            Due::AtOnce => Timestamp::AT_ONCE,
                            Due::In(distance) => self.at(distance),
                        };
                        let offset = Offset(self.end);
                        self.end += 1;
                        let answer = is_answered.then(|| Cursor::of_answer(offset));
                        // The cut may divide the two: a message and its answer are in different slices.
                        self.places.extend(answer);
                        run.extend(answer);
                        if cut {
                            self.add_run(std::mem::take(&mut run));
                        }
                        self.places.push(Cursor::new(due, offset));
                        run.push(Cursor::new(due, offset));
                        if cut {
                            self.add_run(std::mem::take(&mut run));
                        }
                    }
                    self.add_run(run);
                }
                Step::See => self.schedule.advance_seen(Watermark(self.end)),
                Step::Load(distance) => self.load(self.at(distance)),
                Step::LoadLate(ahead) => {
                    let taken = self.schedule.taken();
                    let end = Offset(taken.watermark.0 + ahead);
                    let all = self.places.iter().copied();
                    let run: Vec<_> = all
                        .filter(|place| *place <= taken.cursor && place.offset < end)
                        .collect();
                    self.add_run(run);
                    self.schedule.advance_late_loaded(end);
                }
                Step::AddAgain(index) if !self.runs.is_empty() => {
                    self.add_run(index.get(&self.runs).clone());
                }
                Step::AddAgain(_) => {}
                Step::Take { limit } => self.take(limit)?,
                Step::Time(distance) => self.now += distance,
                Step::RollBack(by) => {
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
                    "the pair moved without a message"
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
                // A late message and its answer are taken together.
                !places.is_empty()
                    && places.len() <= limit + 1
                    && late.len() <= limit.div_ceil(2) + 1
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
            prop_assert!(take.claim.includes(before), "the pair moved back");
            let all = self.places.iter().copied();
            let covered: BTreeSet<_> = all.filter(|place| take.claim.covers(*place)).collect();
            prop_assert_eq!(
                &covered,
                &self.taken,
                "the pair {:?} does not cover exactly the taken messages (loaded {:?})",
                take.claim,
                loaded
            );
            Ok(())
        }
    }

    #[test]
    fn a_run_that_is_trimmed_to_nothing_is_dropped() {
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
        assert_eq!(schedule.wheel.next_place(), None);
        schedule.set_loaded(place(9_000, 0));
        assert!(schedule.take(Timestamp::from_millis(3_000), 9).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn every_message_is_taken_once_in_order_and_the_pair_covers_exactly_the_taken_ones(
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let mut world = World::new();
            for step in steps {
                world.step(step)?;
            }
            world.now += 1_000;
            world.step(Step::See)?;
            world.step(Step::Load(10_000))?;
            for _ in 0..2 * world.places.len() + 2 {
                world.take(3)?;
            }
            prop_assert_eq!(world.taken.len(), world.places.len(), "a message was not taken");
            prop_assert!(world.schedule.next_due(Timestamp::from_millis(world.now)).is_none());
        }
    }

    #[test]
    fn loaded_late_messages_are_taken_before_everything_else_is_loaded() {
        let mut schedule = Schedule::new(Progress::new(place(50, 5), Watermark(6)), Watermark(90));
        schedule.add_run(Rc::new(vec![place(40, 7), place(45, 20), place(60, 8)]));
        schedule.advance_late_loaded(Offset(20));
        let take = schedule
            .take(Timestamp::from_millis(100), 10)
            .expect("the late message below the bound");
        assert_eq!(
            (take.messages.len(), take.late_count, take.claim),
            (1, 1, Progress::new(place(50, 5), Watermark(20)))
        );
        assert!(schedule.take(Timestamp::from_millis(100), 10).is_none());
    }

    #[test]
    fn no_message_is_taken_before_everything_up_to_the_cursor_is_loaded() {
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
    fn no_message_is_taken_while_the_store_is_behind_the_pair() {
        let mut schedule = Schedule::new(Progress::new(place(50, 5), Watermark(6)), Watermark(5));
        schedule.set_loaded(place(1_000, 0));
        schedule.add_run(Rc::new(vec![place(60, 4)]));
        assert!(schedule.take(Timestamp::from_millis(100), 10).is_none());
        schedule.advance_seen(Watermark(6));
        assert!(schedule.take(Timestamp::from_millis(100), 10).is_some());
    }

    #[test]
    fn a_late_message_and_its_answer_are_taken_together_when_both_are_due() {
        let mut schedule = Schedule::new(Progress::new(place(50, 0), Watermark(1)), Watermark(9));
        schedule.set_loaded(place(1_000, 0));
        let answer = Cursor::of_answer(Offset(5));
        schedule.add_run(Rc::new(vec![answer]));
        schedule.add_run(Rc::new(vec![place(40, 5)]));
        assert!(schedule.take(Timestamp::from_millis(39), 10).is_none());
        let take = schedule
            .take(Timestamp::from_millis(40), 1)
            .expect("both are due");
        assert_eq!((take.late_count, take.claim.watermark), (2, Watermark(9)));
    }

    #[test]
    fn an_answer_does_not_wait_for_the_message_of_its_request() {
        let mut schedule = Schedule::new(Progress::new(place(50, 0), Watermark(1)), Watermark(9));
        schedule.set_loaded(place(1_000, 0));
        let answer = Cursor::of_answer(Offset(5));
        schedule.add_run(Rc::new(vec![answer, place(60, 5)]));
        let take = schedule
            .take(Timestamp::from_millis(50), 10)
            .expect("the answer");
        assert!(take.claim.covers(answer) && !take.claim.covers(place(60, 5)));
        let take = schedule
            .take(Timestamp::from_millis(60), 10)
            .expect("the message");
        assert!(take.claim.covers(place(60, 5)));
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
