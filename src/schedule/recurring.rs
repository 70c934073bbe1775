//! Takes the messages of a shard whose source holds definitions of schedules: occurrences, and the
//! dead letters of rejected definitions, which are in runs. Pure.

use super::occurrences::{DueOccurrence, Occurrences, ScheduleRecord};
use super::{Places, Schedule, TakenBatch};
use crate::limit::{MISSED_AFTER, OCCURRENCES_EXPANDED_MAX};
use crate::model::{Cursor, Offset, Progress, Timestamp, Watermark};
use std::rc::Rc;

/// Makes a run of occurrences.
pub(crate) trait CollectOccurrences<T> {
    type Run;
    fn add(&mut self, occurrence: DueOccurrence<'_, T>);
    /// The run takes no more memory.
    fn is_full(&self) -> bool {
        false
    }
    /// `None`: no occurrence was added.
    fn finish(self) -> Option<Self::Run>;
}

pub(crate) struct RecurringShard<T> {
    occurrences: Occurrences<T>,
    /// All occurrences up to this place are in the schedule, or were taken or left out.
    expanded_to: Cursor,
    /// The place of the last occurrence that was added to the schedule.
    last_added: Cursor,
    /// The cursor at which a new shard begins is only in memory.
    must_claim_start: bool,
}

impl<T> RecurringShard<T> {
    /// For a schedule without messages. The log must be read from its first offset.
    ///
    /// The definitions of a new shard begin with their next occurrences. Its first claim keeps this
    /// start, so that a later owner does not begin later.
    pub(crate) fn new<R: Places>(schedule: &mut Schedule<R>, now: Timestamp) -> Self {
        let is_new = schedule.taken() == Progress::START;
        if is_new {
            schedule.move_cursor(Cursor::new(now.minus(MISSED_AFTER), Offset::MAX));
        }
        let taken = schedule.taken();
        Self {
            occurrences: Occurrences::new(taken),
            expanded_to: taken.cursor,
            last_added: taken.cursor,
            must_claim_start: is_new && !fault!(KeepStartInMemory),
        }
    }

    pub(crate) fn add(&mut self, record: ScheduleRecord<T>) {
        self.occurrences.add(record);
    }

    pub(crate) fn on_read_to(&mut self, watermark: Watermark) {
        self.occurrences.on_read_to(watermark);
    }

    /// The number of definitions that serve.
    pub(crate) fn definitions(&self) -> usize {
        self.occurrences.len()
    }

    /// The due time of the next occurrence that is not in the schedule, or the start that must be
    /// claimed. `None` while records of the log are missing.
    pub(crate) fn next_due<R: Places>(&self, schedule: &Schedule<R>) -> Option<Timestamp> {
        if self.must_claim_start {
            let start = schedule.taken().cursor.due;
            return schedule.may_claim_cursor().then_some(start);
        }
        let is_read = self.has_read(schedule.seen());
        self.occurrences.next_due().filter(|_| is_read)
    }

    /// No occurrence is taken before every record that the store knows was read: one of them may end a
    /// schedule.
    pub(crate) fn has_read(&self, stored: Watermark) -> bool {
        self.occurrences.read_to() >= stored.max(self.occurrences.passed())
            || fault!(TakeBeforeDefinitionsAreRead)
    }

    /// Like [`Schedule::take`]. Occurrences are due at `until` and delivered at `now`.
    pub(crate) fn take<R: Places>(
        &mut self,
        schedule: &mut Schedule<R>,
        until: Timestamp,
        now: Timestamp,
        limit: usize,
        mut collector: impl CollectOccurrences<T, Run = R>,
    ) -> Option<TakenBatch<R>> {
        if self.must_claim_start {
            let start = schedule.claim_cursor()?;
            self.must_claim_start = false;
            return Some(start);
        }
        if !self.has_read(schedule.seen()) {
            return None;
        }
        self.pass_read(schedule);
        let passed = self.occurrences.passed();
        let taken = schedule.taken().cursor;
        let mut has_late = schedule.has_late_below(passed);
        let next = self.occurrences.next_place();
        if next.is_some_and(|fire| fire <= taken) && !fault!(MoveOverLateFire) {
            has_late |= self.expand(taken.due, now, &mut collector);
        }
        if !has_late && self.is_taken(taken) {
            // An occurrence of the cursor's due time is left only if W could not pass records. Then the
            // later ones wait until it has.
            let is_inside = self.has_due_time_left(taken);
            let bound = if is_inside { taken.due } else { until };
            self.expand(bound, now, &mut collector);
        }
        if let Some(run) = collector.finish() {
            schedule.add_run(Rc::new(run));
        }
        // W moves over late messages. It has passed all definitions up to `passed` before the cursor moves.
        let bound = if has_late { taken } else { self.expanded_to };
        schedule.take_within(Progress::new(bound, passed), until, limit)
    }

    /// Collects the occurrences that are due at `until`. Returns whether there is one.
    fn expand(
        &mut self,
        until: Timestamp,
        now: Timestamp,
        collector: &mut impl CollectOccurrences<T>,
    ) -> bool {
        let mut is_any = false;
        let last_added = &mut self.last_added;
        let add = |occurrence: DueOccurrence<'_, T>| {
            is_any = true;
            *last_added = occurrence.place;
            collector.add(occurrence);
            !collector.is_full()
        };
        let most = OCCURRENCES_EXPANDED_MAX;
        self.expanded_to = self.occurrences.take(until, now, most, add);
        is_any
    }

    /// Returns whether every occurrence in the schedule was taken.
    pub(super) fn is_taken(&self, taken: Cursor) -> bool {
        self.last_added <= taken
    }

    /// Returns whether an occurrence of the cursor's due time, or a late fire, was not computed yet.
    fn has_due_time_left(&self, taken: Cursor) -> bool {
        self.occurrences
            .next_due()
            .is_some_and(|due| due <= taken.due)
    }

    /// Lets W pass the records that were read, if no occurrence of the cursor's due time is left.
    /// The cursor moves to the end of its due time: after a crash, an updated definition must not
    /// serve a due time that the definition before it has served.
    pub(crate) fn pass_read<R: Places>(&mut self, schedule: &mut Schedule<R>) {
        if self.must_claim_start || !self.has_read(schedule.seen()) {
            return;
        }
        let taken = schedule.taken().cursor;
        // A route that was not always recurring has messages, too.
        let next_message = schedule.next_fresh();
        let has_more = !self.is_taken(taken)
            || self.has_due_time_left(taken)
            || next_message.is_some_and(|place| place.due <= taken.due);
        let to = schedule.seen().min(self.occurrences.read_to());
        if to <= self.occurrences.passed()
            || schedule.has_late_below(self.occurrences.passed())
            || has_more && !fault!(PassInsideDueTime)
        {
            return;
        }
        let end = Cursor::new(taken.due, Offset::MAX);
        if !fault!(KeepCursorAtPass) {
            schedule.move_cursor(end);
        }
        self.occurrences.pass(end, to);
    }
}
