//! The schedules of a shard whose route is recurring: their definitions, and the runs of their
//! occurrences.

use super::ShardState;
use super::load::ResidentRuns;
use crate::limit::DEFINITION_OVERHEAD_BYTES;
use crate::model::{Body, Disposition, ScheduleState, Timestamp};
use crate::run::{ComputedRun, record};
use crate::schedule::{
    CollectOccurrences, DueOccurrence, RecurringShard, ScheduleRecord, TakenBatch,
};
use crate::timer::load::{DefinitionMemory, MemoryAccount, ResidentRun};
use crate::timer::recurring::{DefinitionBatch, Template};
use std::rc::Rc;

/// A template, and the memory of its definition.
struct KeptTemplate {
    record: Template,
    _memory: DefinitionMemory,
}

pub(crate) struct ShardSchedules {
    recurring: RecurringShard<KeptTemplate>,
    memory: Rc<MemoryAccount>,
    /// A definition had no room. The later ones are not read, so nothing is delivered.
    is_over_budget: bool,
    /// The number of the reading that supplies the definitions. No other one has it.
    reading: u64,
    /// The generation of the loaded runs for which the reading began.
    generation: u64,
}

impl ShardSchedules {
    /// For a shard without messages in memory.
    pub(super) fn new(
        runs: &mut ResidentRuns,
        now: Timestamp,
        reading: u64,
        generation: u64,
    ) -> Self {
        Self {
            recurring: RecurringShard::new(&mut runs.schedule, now),
            memory: runs.memory.clone(),
            is_over_budget: false,
            reading,
            generation,
        }
    }

    pub(crate) fn reading(&self) -> u64 {
        self.reading
    }

    /// Returns whether everything in memory was dropped since the reading began.
    pub(super) fn is_outdated(&self, generation: u64) -> bool {
        self.generation != generation
    }

    /// Adds definitions that were read, and drops a batch of an earlier reading. Returns false if a
    /// definition has no room in memory, once.
    pub(crate) fn on_batch(&mut self, batch: DefinitionBatch) -> bool {
        if batch.reading != self.reading || self.is_over_budget {
            return true;
        }
        for record in batch.records {
            let Some(kept) = self.keep(record) else {
                self.is_over_budget = true;
                return false;
            };
            self.recurring.add(kept);
        }
        self.recurring.on_read_to(batch.read_to);
        true
    }

    fn keep(&self, record: ScheduleRecord<Template>) -> Option<ScheduleRecord<KeptTemplate>> {
        let definition = match record.definition {
            None => None,
            Some((definition, record)) => {
                let bytes = record.len() + DEFINITION_OVERHEAD_BYTES;
                let _memory = self.memory.reserve_definition(bytes)?;
                Some((definition, KeptTemplate { record, _memory }))
            }
        };
        Some(ScheduleRecord {
            offset: record.offset,
            timestamp: record.timestamp,
            schedule: record.schedule,
            definition,
        })
    }

    /// Returns whether every definition that the store knows was read.
    pub(super) fn has_read(&self, runs: &ResidentRuns) -> bool {
        self.recurring.has_read(runs.schedule.seen())
    }

    pub(crate) fn definitions(&self) -> usize {
        self.recurring.definitions()
    }

    pub(super) fn next_due(&self, runs: &ResidentRuns) -> Option<Timestamp> {
        self.recurring.next_due(&runs.schedule)
    }

    /// Like `Schedule::take`.
    pub(super) fn take(
        &mut self,
        runs: &mut ResidentRuns,
        until: Timestamp,
        wall: Timestamp,
        limit: usize,
    ) -> Option<TakenBatch<ResidentRun>> {
        let collector = Collector {
            run: ComputedRun::default(),
            memory: runs.memory.clone(),
        };
        self.recurring
            .take(&mut runs.schedule, until, wall, limit, collector)
    }
}

impl ShardState {
    /// Like `Schedule::take`, with occurrences on a recurring route.
    pub(super) fn take_messages(
        &mut self,
        until: Timestamp,
        wall: Timestamp,
        limit: usize,
    ) -> Option<TakenBatch<ResidentRun>> {
        let runs = &mut self.load.runs;
        if !self.context.route.rules.is_recurring {
            return runs.schedule.take(until, limit);
        }
        let schedules = self.schedules.as_mut();
        let schedules = schedules.filter(|it| !it.is_outdated(self.load.generation));
        schedules?.take(runs, until, wall, limit)
    }

    /// Begins to read the definitions of a recurring route, again after everything in memory was
    /// dropped. `next_reading` gives a number that no other reading has. Returns the current number.
    /// Also lets the definitions that were read serve: a shard without an open producer claims nothing,
    /// but its next due time opens the producer.
    pub(crate) fn read_definitions(
        &mut self,
        wall: Timestamp,
        next_reading: impl FnOnce() -> u64,
    ) -> Option<u64> {
        if !self.context.route.rules.is_recurring {
            return None;
        }
        let generation = self.load.generation;
        let known = self.schedules.take();
        let known = known.filter(|schedules| !schedules.is_outdated(generation));
        let runs = &mut self.load.runs;
        let mut schedules =
            known.unwrap_or_else(|| ShardSchedules::new(runs, wall, next_reading(), generation));
        schedules.recurring.pass_read(&mut runs.schedule);
        Some(self.schedules.insert(schedules).reading())
    }

    pub(crate) fn on_definitions(&mut self, batch: DefinitionBatch) {
        if let Some(schedules) = &mut self.schedules
            && !schedules.on_batch(batch)
        {
            tracing::error!(shard = %self.lease.shard,
                "the definitions of schedules take more than their part of the memory: the shard delivers \
                 nothing. Give the process more memory, then restart it");
        }
    }

    /// The number of definitions that serve, and whether all were read. `None` without recurring
    /// schedules.
    pub(crate) fn definitions(&self) -> Option<(usize, bool)> {
        if !self.context.route.rules.is_recurring {
            return None;
        }
        let read = self.schedules.as_ref();
        Some(read.map_or((0, false), |it| {
            (it.definitions(), it.has_read(&self.load.runs))
        }))
    }

    /// The due time of the next occurrence that is not in a run in memory.
    pub(crate) fn next_occurrence_due(&self) -> Option<Timestamp> {
        self.schedules.as_ref()?.next_due(&self.load.runs)
    }
}

struct Collector {
    run: ComputedRun,
    memory: Rc<MemoryAccount>,
}

impl CollectOccurrences<KeptTemplate> for Collector {
    type Run = ResidentRun;

    fn add(&mut self, occurrence: DueOccurrence<'_, KeptTemplate>) {
        let DueOccurrence {
            place,
            schedule,
            planned,
            next,
            template,
        } = occurrence;
        let template = record::decode(&template.record).expect("this process has encoded it");
        let state = ScheduleState {
            schedule,
            planned,
            next,
        };
        let body = Body {
            disposition: Disposition::Occurrence(state),
            ..template
        };
        self.run.add(place, &body);
    }

    fn is_full(&self) -> bool {
        self.run.bytes() >= self.memory.occurrence_bytes_max()
    }

    fn finish(self) -> Option<ResidentRun> {
        let run = self.run.finish()?;
        Some(ResidentRun::new(run, &self.memory))
    }
}
