//! The ingress loop: handles source events, sends batches to the appender, and commits stored
//! offsets.

use super::admit_record::{Barrier, admit_record};
use super::appender::AppendResult;
use super::assumed_rules::CommitQuestion;
use super::partition::{AssignedPartition, NextStep};
use super::partitions::Partitions;
use super::quota::{QuotaLevel, Waiting};
use super::store_check::StoreCheck;
use super::{CallError, Error, Options, Ports, stopped_for_long, stopping};
use crate::broker::{self, Event, RecordBatch};
use crate::limit::{
    APPEND_LINGER_MAX, FINAL_STORE_CALL_TIMEOUT, MEMBERSHIP_INTERVAL, OFFSET_COMMIT_INTERVAL,
    OFFSET_COMMIT_REPEAT_INTERVAL,
};
use crate::membership::ReadAssignment;
use crate::model::{Partition, PositionRules, ShardId};
use crate::run::{FarTarget, RunBuilder};
use crate::store::{Appended, StorePart};
use crate::trace::{Span, SpanOperation};
use std::collections::BTreeMap;
use std::pin::pin;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub(crate) struct Ingress {
    pub(super) options: Options,
    /// The part of the options' rules that decides positions.
    pub(super) position_rules: PositionRules,
    pub(super) ports: Ports,
    pub(super) partitions: Partitions,
    pub(super) runs: RunBuilder,
    /// Bytes of the appends that the appender has not answered.
    appending_bytes: usize,
    /// The last value of `postdate_memory_used_bytes` of this route.
    reported_bytes: usize,
    /// Number of the last reading that was started, of any partition.
    pub(super) last_epoch: u64,
    pub(super) next_check_at: Instant,
    pub(super) commit_unchanged_at: Instant,
    pub(super) check: StoreCheck,
    pub(super) question: CommitQuestion,
    /// Partitions of the route, also those that other workers read.
    pub(super) route_partitions: usize,
    pub(super) quota_level: QuotaLevel,
    pub(super) stop: CancellationToken,
}

impl Ingress {
    /// `process` is a random number that no other process has. It is part of the names of the runs.
    pub(crate) fn new(options: Options, ports: Ports, process: u64) -> Self {
        let now = Instant::now();
        Self {
            position_rules: PositionRules::of(&options.rules),
            ports,
            partitions: Partitions::default(),
            runs: RunBuilder::new(process, options.keys.clone()),
            options,
            appending_bytes: 0,
            reported_bytes: 0,
            last_epoch: 0,
            next_check_at: now,
            commit_unchanged_at: now + OFFSET_COMMIT_REPEAT_INTERVAL,
            check: StoreCheck::None,
            question: CommitQuestion::None,
            route_partitions: 0,
            quota_level: QuotaLevel::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Runs until `stop` is cancelled. Then stores all records that were read, and commits. The
    /// appender must outlive it.
    pub(crate) async fn serve(mut self, stop: CancellationToken) -> Result<(), Error> {
        let budget = self.options.memory.unstored as f64;
        self.ports.memory_metric.budget.increment(budget);
        self.stop = stop.clone();
        self.ports.assignment.mark_changed();
        while !stop.is_cancelled() {
            self.ports.health.source.heartbeat();
            let wake_at = self.next_wake();
            let unanswered = self.appending_bytes;
            let room = self.options.memory.unstored.saturating_sub(unanswered);
            let has_room = self.partitions.has_buffer_room(room) && !self.waits_for_quota();
            self.report_memory();
            let mut has_read = false;
            // Each arm is safe to drop: all keep everything that they have not returned.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Ok(()) = self.ports.assignment.changed() => self.on_assignment(),
                result = self.ports.appender.results.recv() => match result {
                    Some(result) => self.on_append_result(result),
                    // The stop may have ended an appender that had no store connection yet.
                    None if stop.is_cancelled() => break,
                    None => return Err(Error::AppenderEnded(self.options.route)),
                },
                answer = self.check.answer() => {
                    let done = self.on_check_answer(answer);
                    done.map_err(|error| self.fatal(error))?;
                }
                answer = self.question.answer() => {
                    let done = self.on_commits(answer);
                    done.map_err(|error| self.fatal(error))?;
                }
                event = self.ports.source.next_event(), if has_room => {
                    self.on_source_event(event)?;
                    has_read = true;
                }
                () = sleep_until(wake_at) => {}
            }
            self.open_due_shards().await?;
            self.send_appends();
            if Instant::now() >= self.next_check_at && !self.check.is_running() {
                self.start_check(false);
            }
            if has_read {
                // A route with a backlog does not keep the other routes of the thread from running.
                tokio::task::yield_now().await;
            }
        }
        self.drain().await
    }

    /// The gauge is the sum of all routes.
    fn report_memory(&mut self) {
        let bytes = self.partitions.batch_bytes() + self.appending_bytes;
        let before = std::mem::replace(&mut self.reported_bytes, bytes);
        let gauge = &self.ports.memory_metric.used;
        gauge.increment(bytes as f64 - before as f64);
    }

    /// Waits for the answer of a broker, but only for a short time once the process is stopping. The
    /// loop shows meanwhile that it moves, and stores its batches. All calls of the source port are
    /// safe to drop.
    pub(super) async fn answer_of<T>(
        &mut self,
        answer: impl Future<Output = T>,
    ) -> Result<T, CallError> {
        let mut answer = pin!(answer);
        let mut stopped = pin!(stopped_for_long(self.stop.clone()));
        loop {
            self.ports.health.source.heartbeat();
            let wake_at = self.next_append_or_heartbeat();
            // Each arm is safe to drop: all keep everything that they have not returned.
            tokio::select! {
                biased;
                answer = &mut answer => return Ok(answer),
                () = &mut stopped => return Err(stopping().into()),
                Some(result) = self.ports.appender.results.recv() => self.on_append_result(result),
                () = sleep_until(wake_at) => {}
            }
            self.send_appends();
        }
    }

    fn next_wake(&self) -> Instant {
        let check_at = Some(self.next_check_at).filter(|_| !self.check.is_running());
        let times = [self.partitions.next_open_at(), check_at];
        let latest = self.next_append_or_heartbeat();
        times.into_iter().flatten().fold(latest, Instant::min)
    }

    fn next_append_or_heartbeat(&self) -> Instant {
        let appender_has_room = self.ports.appender.jobs.capacity() > 0;
        let flush_at = self.partitions.next_flush_at();
        let latest = Instant::now() + OFFSET_COMMIT_INTERVAL;
        flush_at
            .filter(|_| appender_has_room)
            .map_or(latest, |at| at.min(latest))
    }

    pub(super) fn on_source_event(
        &mut self,
        event: Result<Event, broker::Error>,
    ) -> Result<(), Error> {
        let now = Instant::now();
        match event {
            Ok(Event::Records(batch)) => self.on_records(&batch, now),
            Ok(Event::EndReached {
                partition,
                epoch,
                at,
            }) => {
                let partition = self.partitions.reading(&partition, epoch);
                let partition = partition.filter(|partition| !partition.waits_for_newer);
                let was_stopped = partition.is_some_and(|mut partition| {
                    partition.reached_end(at, now);
                    partition.stop_reason.take().is_some()
                });
                if was_stopped {
                    self.report_shards();
                }
            }
            Ok(Event::RecordsRemoved {
                partition,
                epoch,
                from,
                count,
            }) => {
                // A route that stops at gaps continues too: the records behind the gap were read
                // before the gap was known.
                if let Some(partition) = self.partitions.reading(&partition, epoch) {
                    tracing::error!(
                        shard = %partition.shard, %from, count,
                        "the stream removed messages by a purge or a limit before they were read: \
                         they are lost. Raise max_age, max_msgs or max_bytes of the stream"
                    );
                    self.ports.metric.source_gap_messages.increment(count);
                }
            }
            Ok(Event::OutOfRange { partition, epoch }) => {
                if let Some(mut partition) = self.partitions.reading(&partition, epoch) {
                    partition.stop_reading(now, None);
                }
            }
            Ok(Event::Unreadable {
                partition,
                epoch,
                reason,
            }) => {
                let partition = self.partitions.reading(&partition, epoch);
                let is_new = partition.is_some_and(|mut partition| {
                    let is_new = partition.stop_reason.as_ref() != Some(&reason);
                    if is_new {
                        tracing::warn!(shard = %partition.shard, "{reason}");
                        partition.stop_reason = Some(reason);
                    }
                    is_new
                });
                if is_new {
                    self.report_shards();
                }
            }
            Err(error) => return Err(self.fatal(error)),
        }
        Ok(())
    }

    /// Starts to read the partitions that were added to the assignment, and stops the others. Their
    /// records that are not stored yet are left to the next reader.
    pub(super) fn on_assignment(&mut self) {
        let now = Instant::now();
        let ReadAssignment {
            partitions,
            of_route,
            is_complete,
        } = self.ports.assignment.borrow_and_update().clone();
        self.route_partitions = of_route;
        let known = self.partitions.values();
        let known = known.map(|partition| partition.shard.partition.clone());
        let revoked: Vec<_> = known.filter(|id| !partitions.contains(id)).collect();
        // At the start the route is not ready anyway, so only a loss of partitions is worth a warning.
        let has_lost_some = !revoked.is_empty();
        for partition in revoked {
            tracing::info!(route = %self.options.route, %partition, "partition revoked");
            self.ports.source.stop(&partition);
            self.partitions.remove(&partition);
        }
        for partition in partitions {
            if self.partitions.get(&partition).is_none() {
                tracing::info!(route = %self.options.route, %partition, "partition assigned");
                let shard = ShardId::new(self.options.route.clone(), partition);
                let mut assigned = AssignedPartition::new(&self.options.deployment, shard, now);
                assigned.tells_outcomes = self.options.tells_outcomes;
                self.partitions.insert(assigned);
            }
        }
        self.report_shards();
        if is_complete || !self.partitions.is_empty() {
            self.ports.health.source.set_ready();
        } else if has_lost_some {
            let waits = "waiting until the membership assigns partitions";
            self.ports.health.source.set_not_ready(waits);
        }
    }

    /// Opens the shards whose time has come. Shards of a part of the store that does not answer keep no
    /// others from being opened.
    pub(super) async fn open_due_shards(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let mut due = self.partitions.due_to_open(now);
        due.retain(|id| !self.waits_for_membership(id, now));
        // Each part is asked for once: it may change at any moment.
        let mut parts: BTreeMap<StorePart, Vec<Partition>> = BTreeMap::new();
        for id in due {
            let shard = ShardId::new(self.options.route.clone(), id.clone());
            let part = self.ports.store.part_of(&shard);
            parts.entry(part).or_default().push(id);
        }
        for due in parts.values() {
            self.open_part(due).await?;
        }
        Ok(())
    }

    fn on_records(&mut self, batch: &RecordBatch, now: Instant) {
        let wall = self.ports.clock.now();
        let refuses = self.refuses_for_quota();
        let (rules, metric) = (&self.options.rules, &self.ports.metric);
        let (id, epoch) = (&batch.partition, batch.epoch);
        let Some(mut partition) = self.partitions.reading(id, epoch) else {
            return;
        };
        if partition.waits_for_newer {
            return;
        }
        partition.refuses = refuses;
        let (mut accepted, mut found) = (0, None);
        for record in batch.iter() {
            if !partition.is_unread(record.offset) {
                continue;
            }
            if let Err(barrier) = admit_record(rules, metric, &mut partition, &record, wall) {
                found = Some((record.offset, barrier));
                break;
            }
            accepted += 1;
            partition.record_read(record.offset, now);
            let links = &mut partition.trace_links;
            self.ports.tracer.link_message(links, record.headers, wall);
        }
        metric.accepted.increment(accepted);
        let was_stopped = partition.stop_reason.take().is_some();
        match found {
            Some((offset, Barrier::Newer(newer))) => partition.wait_for_newer(offset, newer),
            // The shard is opened again, which commits the new state. Records that are not stored
            // are read again.
            Some((offset, Barrier::Uncommitted)) => {
                let shard = &partition.shard;
                tracing::info!(%shard, %offset, "a control record pauses or resumes the shard: it is committed before the reading continues");
                partition.stop_reading(now, None);
            }
            None => {}
        }
        if found.is_some() {
            self.ports.source.stop(id);
        }
        let is_changed = was_stopped || partition.waits_for_newer;
        drop(partition);
        if is_changed {
            self.report_shards();
        }
    }

    /// Acts on an append result or a store check.
    pub(super) fn take_step(&mut self, id: &Partition, next: NextStep, seek_reason: &str) {
        let Some(mut partition) = self.partitions.get_mut(id) else {
            return;
        };
        let shard = &partition.shard;
        match next {
            NextStep::Continue => return,
            NextStep::Seek(to) => {
                let from = partition.append_from;
                tracing::warn!(%shard, %from, %to, "reading continues at another offset: {seek_reason}");
            }
            NextStep::Reopen => {
                tracing::warn!(%shard, "the store answers that it does not know the shard (lost, another source, or a missing key): opening it again");
            }
            NextStep::Displaced => {
                tracing::info!(%shard, "another worker reads the partition: reading pauses");
            }
        }
        // Another process may have read the partition by other rules: opening the shard tells.
        let reopen_at = partition.reopen_at(next, Instant::now());
        partition.stop_reading(reopen_at, None);
        self.ports.source.stop(id);
    }

    /// A reader that was displaced waits until a heartbeat has confirmed that it is assigned.
    pub(super) fn waits_for_membership(&mut self, id: &Partition, now: Instant) -> bool {
        let partition = self.partitions.get(id);
        let displaced_at = partition.and_then(|partition| partition.displaced_at);
        let session = &self.ports.session_clock;
        let waits = displaced_at.is_some_and(|at| !session.is_renewed_since(at));
        if waits && let Some(mut partition) = self.partitions.get_mut(id) {
            partition.stop_reading(now + MEMBERSHIP_INTERVAL, None);
        }
        waits
    }

    /// Sends the batches that are due to the appender, as far as its queue has room.
    fn send_appends(&mut self) {
        let now = Instant::now();
        if self.partitions.next_flush_at().is_none_or(|at| at > now) {
            return;
        }
        let far = self.far_target();
        // Batches that are due soon go along, because one store call takes all of them.
        let until = now + APPEND_LINGER_MAX / 2;
        while let Some(mut partition) = self.partitions.next_to_flush(until) {
            let Ok(room) = self.ports.appender.jobs.try_reserve() else {
                return;
            };
            let job = partition.build_append(&mut self.runs, far);
            self.appending_bytes += job.memory();
            room.send(job);
        }
    }

    fn far_target(&self) -> FarTarget {
        FarTarget::at(self.ports.clock.now(), self.options.thin)
    }

    pub(super) fn on_append_result(&mut self, result: AppendResult) {
        self.appending_bytes -= result.memory;
        let id = &result.shard.partition;
        let Some(mut partition) = self.partitions.reading(id, result.epoch) else {
            return;
        };
        partition.waiting.append_answered(Waiting {
            messages: result.messages,
            bytes: result.bytes as u64,
        });
        let next = partition.on_append_result(result.offsets, &result.outcome);
        drop(partition);
        let reason = "an append found another watermark in the store";
        self.take_step(&result.shard.partition, next, reason);
        if let Appended::Done {
            cancelled, missed, ..
        } = result.outcome
        {
            let metric = &self.ports.metric;
            metric.stored.increment(result.messages);
            metric.cancelled.increment(u64::from(cancelled));
            metric.cancel_missed.increment(u64::from(missed));
            let span = |start, links| Span {
                shard: result.shard,
                start,
                end: self.ports.clock.now(),
                links,
                messages: result.messages,
                operation: SpanOperation::Stored,
            };
            self.ports.tracer.finish_batch(result.links, span);
        }
    }

    /// Shutdown: stores everything that was read and commits everything that is stored, as far as
    /// the store and the broker answer.
    async fn drain(mut self) -> Result<(), Error> {
        let is_stored = self.store_batches().await;
        self.ports.timers_done.cancelled().await;
        let route = self.options.route.clone();
        if is_stored {
            match tokio::time::timeout(FINAL_STORE_CALL_TIMEOUT, self.final_check()).await {
                Ok(outcome) => {
                    outcome.map_err(|error| self.fatal(error))?;
                    tracing::info!(%route, "ingress drained");
                }
                Err(_) => {
                    tracing::warn!(%route, "stopped without a final offset commit: the store or the broker did not answer in time; the next process may deliver some messages twice");
                }
            }
        } else {
            tracing::warn!(%route, "stopped before all records were stored: the store did not accept them in time; the next process reads them again");
        }
        self.ports.source.close().await;
        Ok(())
    }

    async fn final_check(&mut self) -> Result<(), CallError> {
        self.finish_check().await?;
        self.start_check(true);
        self.finish_check().await
    }

    /// Stores all batches. Returns false if the appender ended before. Never waits for room in the
    /// appender's queue, because the appender itself waits until its results are received.
    async fn store_batches(&mut self) -> bool {
        let far = self.far_target();
        loop {
            for id in self.partitions.with_batch() {
                if let Some(mut partition) = self.partitions.get_mut(&id)
                    && let Ok(room) = self.ports.appender.jobs.try_reserve()
                {
                    let job = partition.build_append(&mut self.runs, far);
                    self.appending_bytes += job.memory();
                    room.send(job);
                }
            }
            if self.partitions.values().all(AssignedPartition::is_flushed) {
                return true;
            }
            match self.ports.appender.results.recv().await {
                Some(result) => self.on_append_result(result),
                None => return false,
            }
        }
    }

    pub(super) fn fatal(&self, error: impl Into<CallError>) -> Error {
        Error::Call {
            route: self.options.route.clone(),
            source: error.into(),
        }
    }
}
