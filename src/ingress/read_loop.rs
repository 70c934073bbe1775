//! The ingress loop: handles source events, sends batches to the appender, and commits stored
//! offsets.

use super::admit_record::admit_record;
use super::appender::{AppendJob, AppendResult};
use super::open_shards::ShardOpener;
use super::partition::{AfterAppend, AfterCheck, AssignedPartition, Phase};
use super::partitions::Partitions;
use super::shard_init::StartDecision;
use super::store_check::StoreCheck;
use super::{CallError, Error, Options, Ports, unless_stopped};
use crate::broker::{self, Event, OffsetCommit, RecordBatch};
use crate::limit::{
    APPEND_LINGER_MAX, FINAL_STORE_CALL_TIMEOUT, SHARD_OPEN_RETRY_DELAY, STOPPED_SHARD_RETRY_DELAY,
};
use crate::model::{Offset, Partition, ShardId, Watermark};
use crate::run::{FarTarget, RunBuilder};
use crate::store::{AppendEpoch, Appended};
use crate::trace::{Span, SpanOperation};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The ingress of one route in this process.
pub(crate) struct Ingress {
    options: Options,
    ports: Ports,
    partitions: Partitions,
    runs: RunBuilder,
    /// Number of the last reading that was started, of any partition.
    last_epoch: u64,
    store_check: StoreCheck,
    /// The source rejected a call and has assigned no partition since.
    source_rejected: bool,
    stop: CancellationToken,
}

impl Ingress {
    /// `process` is a random number that no other process has. It is part of the names of the runs.
    pub(crate) fn new(options: Options, ports: Ports, process: u64) -> Self {
        Self {
            options,
            ports,
            partitions: Partitions::default(),
            runs: RunBuilder::new(process),
            last_epoch: 0,
            store_check: StoreCheck::new(Instant::now()),
            source_rejected: false,
            stop: CancellationToken::new(),
        }
    }

    /// Runs until `stop` is cancelled. Then stores all records that were read, commits, and leaves
    /// the consumer group. The appender must outlive it.
    pub(crate) async fn serve(mut self, stop: CancellationToken) -> Result<(), Error> {
        self.stop = stop.clone();
        while !stop.is_cancelled() {
            self.ports.health.source.heartbeat();
            let wake_at = self.next_wake();
            let has_room = self.partitions.has_buffer_room();
            // Each arm is safe to drop: `recv` and `next_event` keep everything that they have not
            // returned.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                result = self.ports.appender.results.recv() => match result {
                    Some(result) => self.on_append_result(result),
                    None => return Err(Error::AppenderEnded(self.options.route)),
                },
                event = self.ports.source.next_event(), if has_room => {
                    self.on_source_event(event).await?;
                }
                () = tokio::time::sleep_until(wake_at) => {}
            }
            self.open_due_shards().await?;
            self.send_appends();
            if Instant::now() >= self.store_check.next_at() {
                self.check_store().await?;
            }
        }
        self.drain().await
    }

    fn next_wake(&self) -> Instant {
        let appender_has_room = self.ports.appender.jobs.capacity() > 0;
        let next_check = self.store_check.next_at();
        let next_wake = self.partitions.next_wake(appender_has_room);
        next_wake.unwrap_or(next_check).min(next_check)
    }

    async fn on_source_event(&mut self, event: Result<Event, broker::Error>) -> Result<(), Error> {
        let now = Instant::now();
        match event {
            Ok(Event::Assigned(partitions)) => self.on_assigned(partitions, now),
            Ok(Event::Revoked(partitions)) => self.on_revoked(partitions),
            Ok(Event::Records(batch)) => self.on_records(&batch, now),
            Ok(Event::EndReached {
                partition,
                epoch,
                at,
            }) => {
                if let Some(partition) = self.partitions.reading(&partition, epoch) {
                    partition.reached_end(at, now);
                }
            }
            Ok(Event::RecordsRemoved {
                partition,
                epoch,
                from,
                count,
            }) => self.on_records_removed(&partition, epoch, from, count),
            Ok(Event::OutOfRange { partition, epoch }) => {
                if let Some(partition) = self.partitions.reading(&partition, epoch) {
                    partition.stop_reading(Phase::Opening { not_before: now });
                }
            }
            Err(error) if error.is_transient() => {
                self.source_rejected = true;
                self.ports.health.source.set_not_ready(error.to_string());
                tokio::time::sleep(SHARD_OPEN_RETRY_DELAY).await;
            }
            Err(error) => return Err(self.fatal(error)),
        }
        Ok(())
    }

    /// An empty assignment means that the group has no partition for this process, which is then
    /// ready. It does not clear an earlier rejection of a topic.
    fn on_assigned(&mut self, partitions: Vec<Partition>, now: Instant) {
        self.source_rejected &= partitions.is_empty();
        for partition in partitions {
            tracing::info!(route = %self.options.route, %partition, "partition assigned");
            let shard = ShardId::new(self.options.route.clone(), partition.clone());
            let assigned = AssignedPartition::new(&self.options.deployment, shard, now);
            self.partitions.assign(partition, assigned);
        }
        if !self.source_rejected {
            self.ports.health.source.set_ready();
        }
    }

    fn on_revoked(&mut self, partitions: Vec<Partition>) {
        for partition in partitions {
            tracing::info!(route = %self.options.route, %partition, "partition revoked");
            self.ports.source.stop(&partition);
            self.partitions.revoke(&partition);
        }
        if self.partitions.is_empty() && !self.source_rejected {
            self.ports.health.source.set_not_ready(
                "all partitions were revoked; waiting for the consumer group to assign them again",
            );
        }
    }

    fn on_records(&mut self, batch: &RecordBatch, now: Instant) {
        let wall = self.ports.clock.now();
        let Some(partition) = self.partitions.reading(&batch.partition, batch.epoch) else {
            return;
        };
        let mut accepted = 0;
        for record in batch.iter() {
            if partition.record_read(record.offset, now) {
                accepted += 1;
                partition.link_trace(&self.ports.tracer, record.headers, wall);
                admit_record(
                    &self.options.rules,
                    &self.ports.metric,
                    partition,
                    &record,
                    wall,
                );
            }
        }
        self.ports.metric.accepted.increment(accepted);
    }

    /// Reports records that the source removed before they were read. A route that stops at gaps
    /// continues too: the records behind the gap were read before the gap was known.
    fn on_records_removed(&mut self, partition: &Partition, epoch: u64, from: Offset, count: u64) {
        let Some(partition) = self.partitions.reading(partition, epoch) else {
            return;
        };
        tracing::error!(
            shard = %partition.shard(), %from, count,
            "the source removed records by a purge or a limit before they were read: they are lost; \
             raise the source's limits"
        );
        self.ports.metric.source_gap_messages.increment(count);
    }

    /// Opens the shards whose time has come, and starts or stops the reading of their partitions.
    async fn open_due_shards(&mut self) -> Result<(), Error> {
        let due = self.partitions.due_to_open(Instant::now());
        if due.is_empty() {
            return Ok(());
        }
        match self.open_shards(&due).await {
            Ok(decisions) => {
                for (partition, decision) in due.iter().zip(decisions) {
                    self.start_or_stop(partition, decision);
                }
                self.report_stopped();
            }
            Err(error) if error.is_transient() => {
                self.ports
                    .health
                    .shards
                    .set_not_ready(format!("cannot open shards: {error}"));
                for id in &due {
                    if let Some(partition) = self.partitions.get_mut(id) {
                        partition.stop_reading(Phase::Opening {
                            not_before: Instant::now() + SHARD_OPEN_RETRY_DELAY,
                        });
                    }
                }
            }
            Err(error) => return Err(self.fatal(error)),
        }
        Ok(())
    }

    async fn open_shards(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<StartDecision>, CallError> {
        let mut opener = ShardOpener {
            options: &self.options,
            source: &mut *self.ports.source,
            store: &*self.ports.store,
            clock: &*self.ports.clock,
            metric: &self.ports.metric,
            stop: &self.stop,
        };
        let opened = opener.open(partitions).await?;
        for shard in &opened {
            if let Some(partition) = self.partitions.get_mut(&shard.id.partition) {
                partition.on_opened(shard.identity.clone(), shard.rebuild);
            }
        }
        let process = self.runs.writer();
        let next_epoch = || {
            self.last_epoch += 1;
            AppendEpoch {
                process,
                number: self.last_epoch,
            }
        };
        opener.skip_gaps(opened, next_epoch).await
    }

    fn start_or_stop(&mut self, id: &Partition, decision: StartDecision) {
        let stop_reasons = self.partitions.stop_reasons();
        let is_known =
            matches!(&decision, StartDecision::Stop(reason) if stop_reasons.contains(&**reason));
        let Some(partition) = self.partitions.get_mut(id) else {
            return;
        };
        match decision {
            StartDecision::Read { from, delivered }
            | StartDecision::Gap {
                from, delivered, ..
            } => {
                tracing::info!(shard = %partition.shard(), %from, "reading started");
                partition.set_delivered(delivered);
                self.start_reading(id, from);
            }
            StartDecision::Stop(reason) => {
                // All partitions of a recreated topic have the same reason: log it once.
                if !is_known {
                    tracing::error!(shard = %partition.shard(), "shard stopped: {reason}");
                }
                partition.stop_reading(Phase::Stopped {
                    reason,
                    retry_at: Instant::now() + STOPPED_SHARD_RETRY_DELAY,
                });
                self.ports.source.stop(id);
            }
        }
    }

    fn report_stopped(&self) {
        let reasons: Vec<_> = self.partitions.stop_reasons().into_iter().collect();
        if reasons.is_empty() {
            self.ports.health.shards.set_ready();
        } else {
            self.ports.health.shards.set_not_ready(reasons.join("; "));
        }
    }

    /// Starts a new reading of the partition. Records of the old one are ignored from now on.
    fn start_reading(&mut self, id: &Partition, from: Watermark) {
        let Some(partition) = self.partitions.get_mut(id) else {
            return;
        };
        self.last_epoch += 1;
        partition.start_reading(from, self.last_epoch);
        self.ports.source.start(id, from.offset(), self.last_epoch);
    }

    fn seek(&mut self, id: &Partition, to: Watermark, reason: &str) {
        let Some(partition) = self.partitions.get(id) else {
            return;
        };
        let from = partition.append_from();
        tracing::warn!(shard = %partition.shard(), %from, %to, "reading continues at another offset: {reason}");
        self.start_reading(id, to);
    }

    fn reopen(&mut self, id: &Partition) {
        let Some(partition) = self.partitions.get_mut(id) else {
            return;
        };
        tracing::warn!(shard = %partition.shard(), "the store lost the shard: rebuilding it from the source");
        partition.stop_reading(Phase::Opening {
            not_before: Instant::now(),
        });
        self.ports.source.stop(id);
    }

    /// Sends the batches that are due to the appender, as far as its queue has room.
    fn send_appends(&mut self) {
        let now = Instant::now();
        if !self.partitions.any_flush_due(now) {
            return;
        }
        let far = self.far_target();
        // Batches that are due soon go along, because one store call takes all of them.
        for partition in self.partitions.values_mut() {
            while partition.is_flush_due(now + APPEND_LINGER_MAX / 2) {
                let Ok(room) = self.ports.appender.jobs.try_reserve() else {
                    return;
                };
                room.send(partition.build_append(&mut self.runs, far));
            }
        }
    }

    fn far_target(&self) -> FarTarget {
        FarTarget::at(self.ports.clock.now(), self.options.thin)
    }

    fn on_append_result(&mut self, result: AppendResult) {
        let Some(partition) = self.partitions.reading(&result.partition, result.epoch) else {
            return;
        };
        let next = partition.on_append_result(result.to, result.outcome);
        let shard = partition.shard().clone();
        if let Appended::Done { cancelled, missed } = result.outcome {
            let end = self.ports.clock.now();
            let messages = result.messages;
            self.ports
                .tracer
                .finish_batch(result.links, |start, links| Span {
                    shard,
                    start,
                    end,
                    links,
                    messages,
                    operation: SpanOperation::Stored,
                });
            self.ports.metric.stored.increment(messages);
            self.ports.metric.cancelled.increment(u64::from(cancelled));
            self.ports.metric.cancel_missed.increment(u64::from(missed));
        }
        match next {
            AfterAppend::Continue => {}
            AfterAppend::Seek(watermark) => self.seek(
                &result.partition,
                watermark,
                "an append found another watermark in the store",
            ),
            AfterAppend::Reopen => self.reopen(&result.partition),
        }
    }

    /// Compares all partitions with the store and commits the positions that it has (I1).
    async fn check_store(&mut self) -> Result<(), Error> {
        self.store_check.start(Instant::now());
        for (id, partition) in self.partitions.iter() {
            partition.report_lag(self.ports.source.known_end(id));
        }
        let states = self
            .store_check
            .read_states(&*self.ports.store, &self.partitions)
            .await;
        match states {
            Ok(states) => {
                self.ports.health.watermarks.set_ready();
                let mut commits = Vec::new();
                for (id, state) in states {
                    let Some(state) = state else {
                        self.reopen(&id);
                        continue;
                    };
                    let now = Instant::now();
                    let wall = self.ports.clock.now();
                    let commit_unchanged = self.store_check.commits_unchanged(now);
                    let Some(partition) = self.partitions.get_mut(&id) else {
                        continue;
                    };
                    match partition.on_state(&state, commit_unchanged, wall, now) {
                        AfterCheck::Nothing => {}
                        AfterCheck::Commit(commit) => commits.push(commit),
                        AfterCheck::Seek(watermark) => {
                            self.seek(&id, watermark, "the watermark in the store changed");
                        }
                    }
                }
                self.store_check.finish(Instant::now());
                self.commit(commits).await;
                Ok(())
            }
            Err(error) if error.is_transient() => {
                let watermarks = &self.ports.health.watermarks;
                watermarks.set_not_ready(error.to_string());
                Ok(())
            }
            Err(error) => Err(self.fatal(error)),
        }
    }

    async fn commit(&mut self, commits: Vec<OffsetCommit>) {
        if commits.is_empty() {
            return;
        }
        let Some(outcome) = unless_stopped(&self.stop, self.ports.source.commit(&commits)).await
        else {
            return;
        };
        match outcome {
            Ok(()) => {
                for commit in &commits {
                    if let Some(partition) = self.partitions.get_mut(&commit.partition) {
                        partition.on_committed(commit);
                    }
                }
                self.ports.health.commits.set_ready();
            }
            // After a store loss more records are read again. The next commit replaces this one.
            Err(error) => {
                let commits = &self.ports.health.commits;
                commits.set_not_ready(format!("cannot commit offsets: {error}"));
            }
        }
    }

    /// Shutdown: stores everything that was read and commits everything that is stored, as far as
    /// the store and the broker answer.
    async fn drain(mut self) -> Result<(), Error> {
        self.send_remaining_appends().await;
        let is_stored = self.await_append_results().await;
        self.ports.timers_done.cancelled().await;
        let route = self.options.route.clone();
        if is_stored {
            match tokio::time::timeout(FINAL_STORE_CALL_TIMEOUT, self.check_store()).await {
                Ok(outcome) => outcome?,
                Err(_) => {
                    tracing::warn!(%route, "stopped without a final commit: the store does not answer");
                }
            }
            tracing::info!(%route, "ingress drained");
        } else {
            // The next process reads the records again from the store's watermark.
            tracing::warn!(%route, "stopped before all records were stored: the store does not answer");
        }
        self.ports.source.close().await;
        Ok(())
    }

    async fn send_remaining_appends(&mut self) {
        let far = self.far_target();
        for partition in self.partitions.values_mut() {
            if partition.is_reading() && partition.has_batch() {
                let job: AppendJob = partition.build_append(&mut self.runs, far);
                if self.ports.appender.jobs.send(job).await.is_err() {
                    break;
                }
            }
        }
    }

    /// Returns whether all outstanding results arrived.
    async fn await_append_results(&mut self) -> bool {
        while self.partitions.await_appender() {
            match self.ports.appender.results.recv().await {
                Some(result) => self.on_append_result(result),
                None => return false,
            }
        }
        true
    }

    fn fatal(&self, error: impl Into<CallError>) -> Error {
        Error::Call {
            route: self.options.route.clone(),
            source: error.into(),
        }
    }
}
