//! Schedules under crashes, takeovers, lost stores, lost pairs and compaction of the log. The code is
//! that of the service; the log, the reader and the store are a model.

use super::*;
use crate::limit::MISSED_AFTER;
use crate::model::header::push_header;
use crate::model::{Headers, ParsedDefinition, Record, parse_definition};
use crate::testing::fault_injection::{self, InjectedFault};
use proptest::bool::weighted;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// 2033-05-18T03:33:20Z. Times in the tests are seconds after it.
const EPOCH: i64 = 2_000_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(1_000 * (EPOCH + second))
}

fn second(time: Timestamp) -> i64 {
    time.as_millis() / 1_000 - EPOCH
}

/// A record of the log. Without an interval it ends the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogRecord {
    id: u8,
    timestamp: i64,
    interval: Option<i64>,
    is_paused: bool,
    /// It has one more occurrence, at its own timestamp.
    fires: bool,
}

impl LogRecord {
    fn parse(self, offset: u64) -> ScheduleRecord<()> {
        let schedule = self.id.to_string();
        let mut block = Vec::new();
        for (name, value) in [
            ("postdate-every", format!("{}s", self.interval.unwrap_or(1))),
            ("postdate-missed", "all".to_owned()),
            ("postdate-paused", self.is_paused.to_string()),
            ("postdate-fire", self.fires.to_string()),
        ] {
            push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
        }
        let record = Record {
            offset: Offset(offset),
            timestamp: Some(at(self.timestamp)),
            key: Some(schedule.as_bytes()),
            payload: self.interval.map(|_| &b"template"[..]),
            headers: Headers::from_block(&block),
        };
        let definition = match parse_definition(&record, Some(&schedule)) {
            ParsedDefinition::Defined(definition) => Some((definition, ())),
            ParsedDefinition::Ended => None,
            ParsedDefinition::Rejected(rejection) => panic!("{}", rejection.detail),
        };
        ScheduleRecord {
            offset: Offset(offset),
            timestamp: at(self.timestamp),
            schedule: Arc::from(schedule),
            definition,
        }
    }
}

#[derive(Default)]
struct Collected(Vec<Cursor>);

impl CollectOccurrences<()> for Collected {
    type Run = Vec<Cursor>;

    fn add(&mut self, occurrence: DueOccurrence<'_, ()>) {
        self.0.push(occurrence.place);
    }

    fn finish(self) -> Option<Vec<Cursor>> {
        Some(self.0).filter(|places| !places.is_empty())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Produce {
        id: u8,
        age: i64,
        interval: Option<i64>,
        is_paused: bool,
        fires: bool,
    },
    /// The ingress stores W after this many records more.
    Store(u64),
    /// The timer sees W of the store.
    See,
    /// The timer reads this many offsets of the log.
    Read(u64),
    /// The log forgets a record that another one of its key has followed, and those before it.
    Compact(prop::sample::Index),
    /// Old tombstones vanish. The reader was away, so it starts again.
    DropTombstones,
    Wait(i64),
    /// The timer claims and delivers in one transaction.
    Claim(usize),
    /// A transaction commits the first `sent` messages of a claim. Then the timer crashes.
    CommitPart {
        limit: usize,
        sent: usize,
    },
    Crash,
    /// The store loses its last writes.
    RollBack(u64),
    /// At-least-once: the timer crashes, and an earlier pair is the last one that survives.
    LosePairs(prop::sample::Index),
}

/// The timer of the shard.
struct Timer {
    schedule: Schedule<Vec<Cursor>>,
    recurring: RecurringShard<()>,
    /// The next offset that it reads.
    reads_at: u64,
    known: BTreeSet<u64>,
    /// W of the store when occurrences were computed last.
    seen_at_expansion: u64,
}

struct World {
    now: i64,
    log: BTreeMap<u64, LogRecord>,
    log_end: u64,
    /// W of the store.
    stored: u64,
    committed: Progress,
    earlier_pairs: Vec<Progress>,
    timer: Timer,
    /// All records that were ever in the log.
    history: BTreeMap<u64, LogRecord>,
    /// The due time of the cursor when the committed W passed a record.
    effective: BTreeMap<u64, i64>,
    /// Records that vanished before they had served.
    lost: BTreeSet<u64>,
    delivered: BTreeMap<(u8, i64), u32>,
    /// The deliveries of the fire of each record.
    fired: BTreeMap<u64, u32>,
}

impl World {
    fn new() -> Self {
        let committed = Progress::new(Cursor::new(at(0), Offset::MAX), Watermark(0));
        Self {
            now: 100,
            log: BTreeMap::new(),
            log_end: 0,
            stored: 0,
            committed,
            earlier_pairs: Vec::new(),
            timer: Self::timer(committed, 0),
            history: BTreeMap::new(),
            effective: BTreeMap::new(),
            lost: BTreeSet::new(),
            delivered: BTreeMap::new(),
            fired: BTreeMap::new(),
        }
    }

    fn timer(start: Progress, stored: u64) -> Timer {
        let mut schedule = Schedule::new(start, Watermark(stored));
        schedule.set_loaded(Cursor::new(Timestamp::MAX, Offset::MAX));
        Timer {
            recurring: RecurringShard::new(&mut schedule, start.cursor.due),
            schedule,
            reads_at: 0,
            known: BTreeSet::new(),
            seen_at_expansion: 0,
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Produce {
                id,
                age,
                interval,
                is_paused,
                fires,
            } => {
                let record = LogRecord {
                    id,
                    timestamp: self.now - age,
                    interval,
                    is_paused,
                    fires,
                };
                self.log.insert(self.log_end, record);
                self.history.insert(self.log_end, record);
                self.log_end += 1;
            }
            Step::Store(count) => self.stored = (self.stored + count).min(self.log_end),
            Step::See => self.see(),
            Step::Read(count) => self.read(count),
            Step::Compact(index) => self.compact(index),
            Step::DropTombstones => {
                let ends = self.log.iter().filter(|(_, end)| end.interval.is_none());
                let ends: Vec<_> = ends.map(|(offset, end)| (end.id, *offset)).collect();
                for (id, end) in ends {
                    self.log
                        .retain(|offset, record| record.id != id || *offset > end);
                }
                self.crash();
            }
            Step::Wait(time) => self.now += time,
            Step::Claim(limit) => {
                self.claim(limit, usize::MAX);
            }
            Step::CommitPart { limit, sent } => {
                self.claim(limit, sent);
                self.crash();
            }
            Step::Crash => self.crash(),
            Step::RollBack(records) => {
                self.stored = self.stored.saturating_sub(records);
                self.crash();
            }
            Step::LosePairs(index) => {
                if !self.earlier_pairs.is_empty() {
                    self.earlier_pairs
                        .truncate(index.index(self.earlier_pairs.len()) + 1);
                    self.committed = self.earlier_pairs.pop().expect("a pair");
                    // Later records are passed again.
                    let passed = self.committed.watermark;
                    self.effective
                        .retain(|offset, _| passed.covers(Offset(*offset)));
                    self.crash();
                }
            }
        }
    }

    fn see(&mut self) {
        if !self.timer.schedule.is_rolled_back(Watermark(self.stored)) {
            self.timer.schedule.advance_seen(Watermark(self.stored));
        }
    }

    fn read(&mut self, count: u64) {
        let end = (self.timer.reads_at + count).min(self.log_end);
        for (offset, record) in self.log.range(self.timer.reads_at..end) {
            self.timer.known.insert(*offset);
            self.timer.recurring.add(record.parse(*offset));
        }
        self.timer.reads_at = end;
        self.timer.recurring.on_read_to(Watermark(end));
    }

    fn compact(&mut self, index: prop::sample::Index) {
        let is_old = |(offset, record): &(&u64, &LogRecord)| {
            let mut later = self.log.range(*offset + 1..);
            later.any(|(_, later)| later.id == record.id)
        };
        let old: Vec<u64> = self.log.iter().filter(is_old).map(|(o, _)| *o).collect();
        if !old.is_empty() {
            let last = *index.get(&old);
            let id = self.log[&last].id;
            self.log
                .retain(|offset, record| record.id != id || *offset > last);
        }
    }

    fn crash(&mut self) {
        self.timer = Self::timer(self.committed, self.stored);
    }

    /// A record that neither the log nor the timer has cannot serve any more.
    fn note_lost(&mut self) {
        let offsets = self.history.keys();
        let is_gone =
            |offset: &&u64| !self.log.contains_key(offset) && !self.timer.known.contains(offset);
        self.lost.extend(offsets.filter(is_gone));
    }

    /// Delivers and commits at most the first `sent` messages of a claim. Returns whether there is one.
    fn claim(&mut self, limit: usize, sent: usize) -> bool {
        let now = at(self.now);
        let Timer {
            schedule,
            recurring,
            known,
            seen_at_expansion,
            ..
        } = &mut self.timer;
        let before = self.committed;
        if recurring.is_taken(schedule.taken().cursor) {
            *seen_at_expansion = schedule.seen().0;
        }
        let Some(taken) = recurring.take(schedule, now, now, limit, Collected::default()) else {
            return false;
        };
        assert!(taken.claim.includes(before) && taken.late_count <= 1);
        let mut sent_places = taken.messages.iter().take(sent);
        let Some((run, index)) = sent_places.next_back() else {
            return true;
        };
        let pair = match sent >= taken.messages.len() {
            true => taken.claim,
            false => Progress::new(run[*index as usize], taken.claim.watermark),
        };
        for offset in known.range(before.watermark.0..pair.watermark.0) {
            let from = second(before.cursor.due);
            self.effective.entry(*offset).or_insert(from);
        }
        self.earlier_pairs.push(before);
        self.committed = pair;
        for (run, index) in taken.messages.into_iter().take(sent) {
            let Cursor { due, offset } = run[index as usize];
            let record = self.history[&offset.0];
            if record.fires && record.timestamp == second(due) {
                *self.fired.entry(offset.0).or_default() += 1;
                if due <= before.cursor.due {
                    continue;
                }
            } else {
                assert!(!record.is_paused, "schedule {} is paused", record.id);
                *self.delivered.entry((record.id, second(due))).or_default() += 1;
            }
            // A record that was stored in the middle of a due time comes too late for it. The same is true
            // for occurrences that were computed before.
            let is_inside = due == before.cursor.due;
            let end = if is_inside {
                taken.claim.watermark.0
            } else {
                *seen_at_expansion
            };
            let mut later = self.history.range(offset.0 + 1..end.max(offset.0 + 1));
            let is_over = later.any(|(later, next)| {
                next.id == record.id && at(next.timestamp) < due && !self.lost.contains(later)
            });
            assert!(!is_over, "schedule {} was replaced before {due}", record.id);
        }
        true
    }

    /// Everything is stored, seen, read and delivered.
    fn settle(&mut self) {
        self.stored = self.log_end;
        self.see();
        self.read(u64::MAX / 2);
        while self.claim(3, usize::MAX) {}
        // W may pass the other records, because no occurrence is due any more.
        let cursor = second(self.committed.cursor.due);
        for offset in self.timer.known.range(self.committed.watermark.0..) {
            self.effective.entry(*offset).or_insert(cursor);
        }
    }

    fn expect_no_repeats(&self) {
        for ((id, due), times) in &self.delivered {
            assert_eq!(*times, 1, "schedule {id} at {due}");
        }
        for (offset, times) in &self.fired {
            assert_eq!(*times, 1, "fire of offset {offset}");
        }
    }

    fn expect_no_loss(&self) {
        for (offset, from) in &self.effective {
            let record = self.history[offset];
            let Some(interval) = record.interval.filter(|_| !self.lost.contains(offset)) else {
                continue;
            };
            let is_recent = record.timestamp > from - MISSED_AFTER.as_secs() as i64;
            if record.fires && is_recent {
                let is_over = self.is_over_before_its_fire(*offset, *from);
                assert!(
                    is_over || self.fired.contains_key(offset),
                    "the fire of offset {offset} is missing"
                );
            }
            if record.is_paused {
                continue;
            }
            let later = self.effective.range(offset + 1..);
            let later = later.filter(|(later, _)| self.history[later].id == record.id);
            let ends = later.map(|(later, from)| self.history[later].timestamp.max(*from));
            let end = ends.min().unwrap_or(self.now).min(self.now);
            let is_owed = |due: &i64| (EPOCH + due) % interval == 0;
            for due in (record.timestamp.max(*from) + 1..=end).filter(is_owed) {
                assert!(
                    self.delivered.contains_key(&(record.id, due)),
                    "schedule {} of offset {offset} at {due} is missing",
                    record.id
                );
            }
        }
    }

    /// Returns whether W passed a later record of the schedule before the fire was due.
    fn is_over_before_its_fire(&self, offset: u64, from: i64) -> bool {
        let record = self.history[&offset];
        let mut later = self.effective.range(offset + 1..);
        record.timestamp > from
            && later.any(|(later, passed_at)| {
                let next = self.history[later];
                next.id == record.id && next.timestamp.max(*passed_at) < record.timestamp
            })
    }
}

fn step() -> impl Strategy<Value = Step> {
    let interval = prop::option::weighted(0.8, 1i64..6);
    prop_oneof![
        4 => (0u8..3, 0i64..12, interval, weighted(0.1), weighted(0.3)).prop_map(
            |(id, age, interval, is_paused, fires)| Step::Produce { id, age, interval, is_paused, fires }
        ),
        4 => (1u64..4).prop_map(Step::Store),
        4 => Just(Step::See),
        4 => (1u64..6).prop_map(Step::Read),
        2 => any::<prop::sample::Index>().prop_map(Step::Compact),
        1 => Just(Step::DropTombstones),
        4 => (1i64..8).prop_map(Step::Wait),
        6 => (1usize..4).prop_map(Step::Claim),
        2 => (2usize..6, 0usize..4).prop_map(|(limit, sent)| Step::CommitPart { limit, sent }),
        1 => Just(Step::Crash),
        1 => (1u64..4).prop_map(Step::RollBack),
    ]
}

/// Steps of an at-least-once route.
fn lossy_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => step(),
        1 => any::<prop::sample::Index>().prop_map(Step::LosePairs),
    ];
    prop::collection::vec(step, 0..60)
}

fn run(steps: &[Step]) -> World {
    let mut world = World::new();
    for step in steps {
        world.apply(step);
        world.note_lost();
    }
    world.settle();
    world.note_lost();
    world.expect_no_loss();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn exactly_once_delivers_each_occurrence_once(steps in prop::collection::vec(step(), 0..60)) {
        run(&steps).expect_no_repeats();
    }

    #[test]
    fn at_least_once_loses_no_occurrence(steps in lossy_steps()) {
        run(&steps);
    }
}

/// The number of scenarios, of a thousand, in which a fault shows.
fn caught(fault: Option<InjectedFault>) -> usize {
    let mut runner = TestRunner::deterministic();
    let is_caught = |_: &usize| {
        let steps = lossy_steps()
            .new_tree(&mut runner)
            .expect("steps")
            .current();
        let is_exact = !steps.iter().any(|step| matches!(step, Step::LosePairs(_)));
        let run = || {
            let world = run(&steps);
            if is_exact {
                world.expect_no_repeats();
            }
        };
        fault_injection::with(fault, || std::panic::catch_unwind(run).is_err())
    };
    (0..1_000).filter(is_caught).count()
}

#[test]
fn every_broken_rule_is_caught() {
    let faults = [
        InjectedFault::PassInsideDueTime,
        InjectedFault::TakeBeforeDefinitionsAreRead,
        InjectedFault::EndWhenRead,
        InjectedFault::SkipLateFire,
    ];
    let counts = faults.map(|fault| (fault, caught(Some(fault))));
    assert!(counts.iter().all(|(_, count)| *count > 0), "{counts:?}");
    assert_eq!(caught(None), 0);
}

/// The cursor of a claim that takes only a dead letter, after W has passed an update of a definition
/// whose due time was delivered.
fn cursor_after_an_update() -> Cursor {
    let start = Progress::new(Cursor::new(at(0), Offset::MAX), Watermark(0));
    let mut timer = World::timer(start, 1);
    let take = |timer: &mut Timer| {
        let Timer {
            schedule,
            recurring,
            ..
        } = timer;
        let taken = recurring.take(schedule, at(100), at(100), 10, Collected::default());
        taken.expect("a message is due")
    };
    let first = LogRecord {
        id: 0,
        timestamp: 90,
        interval: Some(100),
        is_paused: false,
        fires: false,
    };
    let update = LogRecord {
        timestamp: 95,
        ..first
    };
    timer.recurring.add(first.parse(0));
    assert_eq!(
        take(&mut timer).claim.cursor,
        Cursor::new(at(100), Offset(0))
    );
    timer.recurring.add(update.parse(1));
    timer.recurring.on_read_to(Watermark(3));
    let dead_letter = Cursor::new(Timestamp::AT_ONCE, Offset(2));
    timer.schedule.add_run(Rc::new(vec![dead_letter]));
    timer.schedule.advance_seen(Watermark(3));
    take(&mut timer).claim.cursor
}

/// The number of deliveries of a fire that is behind the cursor, beside a dead letter. The owner commits the claim
/// of the dead letter, and a new one continues.
fn deliveries_of_a_late_fire() -> usize {
    let start = Progress::new(Cursor::new(at(100), Offset::MAX), Watermark(0));
    let fire = LogRecord {
        id: 0,
        timestamp: 90,
        interval: Some(1_000),
        is_paused: true,
        fires: true,
    };
    let take = |start| {
        let mut timer = World::timer(start, 2);
        timer.recurring.add(fire.parse(1));
        timer.recurring.on_read_to(Watermark(2));
        let dead_letter = Cursor::new(Timestamp::AT_ONCE, Offset(0));
        timer.schedule.add_run(Rc::new(vec![dead_letter]));
        let Timer {
            schedule,
            recurring,
            ..
        } = &mut timer;
        recurring.take(schedule, at(110), at(110), 10, Collected::default())
    };
    let is_fire = |(run, index): &(Rc<Vec<Cursor>>, u32)| run[*index as usize].due == at(90);
    let first = take(start).expect("the dead letter is due");
    let second = take(first.claim).into_iter().flat_map(|it| it.messages);
    let all = first.messages.iter().cloned().chain(second);
    all.filter(is_fire).count()
}

#[test]
fn w_never_moves_over_a_late_fire_that_was_not_taken() {
    assert_eq!(deliveries_of_a_late_fire(), 1);
    let faults = [InjectedFault::MoveOverLateFire];
    let deliveries = fault_injection::with(faults, deliveries_of_a_late_fire);
    assert_eq!(deliveries, 0, "the fault is caught");
}

#[test]
fn an_update_never_serves_a_due_time_that_was_delivered() {
    assert_eq!(cursor_after_an_update(), Cursor::new(at(100), Offset::MAX));
    let faults = [InjectedFault::KeepCursorAtPass];
    let cursor = fault_injection::with(faults, cursor_after_an_update);
    assert_eq!(
        cursor,
        Cursor::new(at(100), Offset(0)),
        "the fault is caught"
    );
}
