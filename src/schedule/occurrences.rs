//! The schedules of one shard and their occurrences. Pure.
//!
//! An occurrence has the place (due, offset of its definition), so the pair (C, W) tells which ones are
//! done. A definition serves after its own timestamp and after the cursor at which W passes it, until the
//! timestamp of the next record of its schedule below W. So the occurrences that are left follow
//! from the log below W and from the pair alone.
//!
//! Records are passed only between two due times: otherwise an update could deliver one
//! due time by the old definition and by the new one, and the pair could not tell it.
//!
//! A fire is the exception. No other record has it, so it may be due before the cursor at which W passes its
//! record. Then it is late: W moves over the record with it, and later records wait until it was taken.

use crate::limit::MISSED_AFTER;
use crate::model::{Cursor, Definition, Occurrence, Offset, Progress, Timestamp, Watermark};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);

/// A record of a definitions topic that names a schedule. `T` is the template of its deliveries.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleRecord<T> {
    pub(crate) offset: Offset,
    pub(crate) timestamp: Timestamp,
    pub(crate) schedule: Arc<str>,
    /// `None`: the record ends the schedule.
    pub(crate) definition: Option<(Definition, T)>,
}

/// An occurrence that is due.
pub(crate) struct DueOccurrence<'a, T> {
    pub(crate) place: Cursor,
    pub(crate) schedule: &'a str,
    pub(crate) planned: Timestamp,
    /// The planned time of the next one.
    pub(crate) next: Option<Timestamp>,
    pub(crate) template: &'a T,
}

/// The definitions that serve, and the records that W has not passed yet.
pub(crate) struct Occurrences<T> {
    /// The pair that was taken when the reading of the log began.
    start: Progress,
    read_to: Watermark,
    passed: Watermark,
    waiting: VecDeque<ScheduleRecord<T>>,
    /// By the offset of the definition.
    serving: HashMap<Offset, Serving<T>>,
    /// The definitions of each schedule that serve, in order of their offsets.
    by_schedule: HashMap<Arc<str>, Vec<Offset>>,
    /// The place of the next occurrence of each definition that serves.
    next: BTreeSet<Cursor>,
}

struct Serving<T> {
    schedule: Arc<str>,
    definition: Definition,
    template: T,
    next: Occurrence,
    /// The greatest due time that it serves.
    last: Timestamp,
}

impl<T> Occurrences<T> {
    /// Without records. The log must be read from its first offset.
    pub(crate) fn new(start: Progress) -> Self {
        Self {
            start,
            read_to: Watermark(0),
            passed: start.watermark,
            waiting: VecDeque::new(),
            serving: HashMap::new(),
            by_schedule: HashMap::new(),
            next: BTreeSet::new(),
        }
    }

    /// Adds the next record of the log. A record that was read before is ignored.
    pub(crate) fn add(&mut self, record: ScheduleRecord<T>) {
        if self.read_to.covers(record.offset) {
            return;
        }
        self.on_read_to(Watermark(record.offset.next().0));
        if self.start.watermark.covers(record.offset) {
            self.apply(record, self.start.cursor);
        } else {
            if fault!(EndWhenRead) {
                self.end_all(&record.schedule, record.timestamp);
            }
            self.waiting.push_back(record);
        }
    }

    /// Records that every record below `watermark` was added, or does not exist.
    pub(crate) fn on_read_to(&mut self, watermark: Watermark) {
        self.read_to = self.read_to.max(watermark);
    }

    pub(crate) fn read_to(&self) -> Watermark {
        self.read_to
    }

    /// Records below it decide about the occurrences that are taken.
    pub(crate) fn passed(&self) -> Watermark {
        self.passed
    }

    /// The number of definitions that serve.
    pub(crate) fn len(&self) -> usize {
        self.serving.len()
    }

    /// The least due time of an occurrence that was not taken.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.next_place().map(|place| place.due)
    }

    pub(crate) fn next_place(&self) -> Option<Cursor> {
        self.next.first().copied()
    }

    /// W passes the records below `to`, at most up to the first one with a late fire. All occurrences up to the due time
    /// of the cursor were taken, and the cursor is at the end of that due time.
    pub(crate) fn pass(&mut self, cursor: Cursor, to: Watermark) {
        while let Some(record) = self.waiting.pop_front_if(|record| to.covers(record.offset)) {
            let next = Watermark(record.offset.next().0);
            self.apply(record, cursor);
            if self.next_place().is_some_and(|place| place <= cursor) {
                self.passed = self.passed.max(next);
                return;
            }
        }
        self.passed = self.passed.max(to);
    }

    fn apply(&mut self, record: ScheduleRecord<T>, after: Cursor) {
        let ScheduleRecord {
            offset,
            timestamp,
            schedule,
            definition,
        } = record;
        self.end_all(&schedule, timestamp);
        let Some((mut definition, template)) = definition else {
            return;
        };
        if definition.is_paused {
            definition.recurrence.keep_fire_only();
        }
        let was_passed = self.start.watermark.covers(offset);
        let first = match was_passed {
            true => first_after(&definition, after, offset),
            false => first_when_passed(&mut definition, after),
        };
        if let Some(next) = first {
            self.next.insert(Cursor::new(next.due, offset));
            let serving = Serving {
                schedule: schedule.clone(),
                definition,
                template,
                next,
                last: Timestamp::MAX,
            };
            self.serving.insert(offset, serving);
            self.by_schedule.entry(schedule).or_default().push(offset);
        }
    }

    /// The definitions of a schedule serve no due time after `last`.
    fn end_all(&mut self, schedule: &str, last: Timestamp) {
        let offsets = self.by_schedule.get(schedule).cloned().unwrap_or_default();
        for offset in offsets {
            let Some(serving) = self.serving.get_mut(&offset) else {
                continue;
            };
            serving.last = serving.last.min(last);
            if serving.next.due > serving.last {
                self.next.remove(&Cursor::new(serving.next.due, offset));
                self.follow(offset, None);
            }
        }
    }

    /// Takes occurrences that are due at `until`, and calls `add` for each that is delivered at
    /// `now`. Stops after `limit` occurrences, or when `add` returns false. Returns the place up to which all are taken.
    pub(crate) fn take(
        &mut self,
        until: Timestamp,
        now: Timestamp,
        limit: usize,
        mut add: impl FnMut(DueOccurrence<'_, T>) -> bool,
    ) -> Cursor {
        let mut taken_to = Cursor::new(until, Offset::MAX);
        for _ in 0..limit {
            let Some(place) = self.next.first().copied().filter(|at| at.due <= until) else {
                return Cursor::new(until, Offset::MAX);
            };
            self.next.pop_first();
            taken_to = place;
            let Some(serving) = self.serving.get_mut(&place.offset) else {
                continue;
            };
            let Definition {
                recurrence, missed, ..
            } = &serving.definition;
            let chosen = if now.since(place.due) <= MISSED_AFTER {
                Some(serving.next)
            } else {
                let before = place.due.minus(MILLISECOND);
                missed.next_to_deliver(recurrence, before, now, MISSED_AFTER)
            };
            let is_delivered = chosen == Some(serving.next);
            let following = if is_delivered {
                recurrence.next_after(place.due)
            } else {
                chosen
            };
            let following = following.filter(|next| next.due <= serving.last);
            let has_room = !is_delivered
                || add(DueOccurrence {
                    place,
                    schedule: &serving.schedule,
                    planned: serving.next.planned,
                    next: following.map(|next| next.planned),
                    template: &serving.template,
                });
            self.follow(place.offset, following);
            if !has_room {
                break;
            }
        }
        taken_to
    }

    /// Sets the next occurrence of a definition. Without one it serves no more.
    fn follow(&mut self, offset: Offset, next: Option<Occurrence>) {
        if let Some(next) = next {
            if let Some(serving) = self.serving.get_mut(&offset) {
                serving.next = next;
                self.next.insert(Cursor::new(next.due, offset));
            }
        } else if let Some(ended) = self.serving.remove(&offset)
            && let Some(offsets) = self.by_schedule.get_mut(&ended.schedule)
        {
            offsets.retain(|other| *other != offset);
            if offsets.is_empty() {
                self.by_schedule.remove(&ended.schedule);
            }
        }
    }
}

/// The first occurrence of a definition that W passes at the end of a due time. Only its fire may be due before.
fn first_when_passed(definition: &mut Definition, after: Cursor) -> Option<Occurrence> {
    let recurrence = &mut definition.recurrence;
    recurrence.begin_after(after.due);
    // A new shard must not deliver the fires of all times.
    let tolerance = match fault!(SkipLateFire) {
        true => Duration::ZERO,
        false => MISSED_AFTER,
    };
    recurrence.next_after(after.due.minus(tolerance))
}

/// The first occurrence of a definition whose place is after the cursor.
fn first_after(definition: &Definition, after: Cursor, offset: Offset) -> Option<Occurrence> {
    let recurrence = &definition.recurrence;
    let next = recurrence.next_after(after.due.minus(MILLISECOND))?;
    if Cursor::new(next.due, offset) > after {
        return Some(next);
    }
    recurrence.next_after(after.due)
}
