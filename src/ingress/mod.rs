//! The ingress role: reads one route's source, turns every record into an entry of its shard, stores batches by compare-and-append, and
//! only then commits (I1, I2). It never sends anything to a broker: refused records are entries too.
//!
//! Two loops: [`Ingress`] owns the source, the batches and the encoder; `Writer` owns a store connection. Bounded channels between them, so
//! that a slow store slows the reading, down to the client's own queues.

mod admit_record;
mod appender;
mod batch;
mod open_shards;
mod partition;
mod shard_init;

use crate::broker::{self, Event, OffsetCommit, Source};
use crate::clock::Clock;
use crate::health::{Health, HealthPart};
use crate::limit::{
    APPEND_LINGER_MAX, FINAL_COMMIT_TIMEOUT, FINAL_STORE_CALL_TIMEOUT, FULL_STATE_INTERVAL,
    IDLE_OFFSET_COMMIT_INTERVAL, OFFSET_COMMIT_INTERVAL, SHARD_OPEN_RETRY_DELAY,
};
use crate::metric;
use crate::model::{CommitMetadata, Partition, Progress, RoutingRules, Watermark};
use crate::run::{FarTarget, RunBuilder, ThinHours};
use crate::store::{self, Appended, ShardPosition, Store, StoredShard};
use crate::trace::{Span, SpanOperation, Tracer};
use admit_record::admit_record;
pub(crate) use appender::{AppendJob, AppendResult, Appender, appender_channels};
use partition::{AfterAppend, AssignedPartition, IdlePosition, Phase, has_room};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What an ingress is told of its route.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) deployment: Arc<str>,
    pub(crate) route: Arc<str>,
    pub(crate) rules: RoutingRules,
    /// Whether a partition goes on when records are gone that were never stored.
    pub(crate) stops_at_gap: bool,
    pub(crate) thin: ThinHours,
}

/// Why an ingress ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("ingress of route {route}")]
    Broker {
        route: Arc<str>,
        source: broker::Error,
    },
    #[error("ingress of route {route}")]
    Store {
        route: Arc<str>,
        source: store::Error,
    },
    #[error("ingress of route {0}: its writer ended")]
    WriterGone(Arc<str>),
}

/// What an ingress says of itself.
pub(crate) struct HealthParts {
    source: HealthPart,
    shards: HealthPart,
    watermarks: HealthPart,
    commits: HealthPart,
}

impl HealthParts {
    pub(crate) fn new(health: &Health, route: &str) -> Self {
        let part = |what| health.register(format!("route {route} {what}"));
        let parts = Self {
            source: part("source"),
            shards: part("shards"),
            watermarks: part("watermarks"),
            commits: part("commits"),
        };
        // A process to which the group gives no partition does its duty too.
        for part in [&parts.shards, &parts.watermarks, &parts.commits] {
            part.set_ready();
        }
        parts
    }
}

/// What an ingress works with.
pub(crate) struct Ports {
    pub(crate) source: Box<dyn Source>,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) health: HealthParts,
    pub(crate) metric: metric::RouteMetrics,
    pub(crate) tracer: Tracer,
    pub(crate) append_jobs: mpsc::Sender<AppendJob>,
    pub(crate) append_results: mpsc::Receiver<AppendResult>,
    /// Cancelled when the timers of this process have told the store all that they delivered, or have no time left for it: the last commit
    /// waits for it, so that a store that begins anew from that commit repeats nothing.
    pub(crate) timers_done: CancellationToken,
}

/// See the module's page.
pub(crate) struct Ingress {
    options: Options,
    ports: Ports,
    partitions: BTreeMap<Partition, AssignedPartition>,
    last_commits: BTreeMap<Partition, String>,
    sealer: RunBuilder,
    last_epoch: u64,
    next_store_check: Instant,
    next_refresh: Instant,
    /// The source has refused something, and given no partition since.
    source_rejected: bool,
    stop: CancellationToken,
}

impl Ingress {
    /// `writer` is the random id under which this process names its runs.
    pub(crate) fn new(options: Options, ports: Ports, writer: u64) -> Self {
        let now = Instant::now();
        Self {
            options,
            ports,
            partitions: BTreeMap::new(),
            last_commits: BTreeMap::new(),
            sealer: RunBuilder::new(writer),
            last_epoch: 0,
            next_store_check: now,
            next_refresh: now + IDLE_OFFSET_COMMIT_INTERVAL,
            source_rejected: false,
            stop: CancellationToken::new(),
        }
    }

    /// Serves until `stop` is cancelled; then stores what was read, commits and leaves the group. The writer must outlive it.
    pub(crate) async fn serve(mut self, stop: CancellationToken) -> Result<(), Error> {
        self.stop = stop.clone();
        while !stop.is_cancelled() {
            self.ports.health.source.heartbeat();
            let wake = self.next_wake();
            let has_room = has_room(&mut self.partitions);
            // Each arm is safe to drop: receiving and `Source::next` keep what they did not hand out.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                settled = self.ports.append_results.recv() => match settled {
                    Some(settled) => self.on_append_result(settled),
                    None => return Err(Error::WriterGone(self.options.route)),
                },
                event = self.ports.source.next_event(), if has_room => self.on_source_event(event).await?,
                () = tokio::time::sleep_until(wake) => {}
            }
            self.open_due_shards().await?;
            self.send_appends();
            if Instant::now() >= self.next_store_check {
                self.check_store().await?;
            }
        }
        self.drain().await
    }

    fn next_wake(&self) -> Instant {
        let writer_has_room = self.ports.append_jobs.capacity() > 0;
        let each = self
            .partitions
            .values()
            .filter_map(|intake| match &intake.phase {
                Phase::Opening { not_before } => Some(*not_before),
                Phase::Stopped { again, .. } => Some(*again),
                Phase::Reading => intake.flush_at().filter(|_| writer_has_room),
            });
        each.chain([self.next_store_check])
            .min()
            .unwrap_or(self.next_store_check)
    }

    async fn on_source_event(&mut self, event: Result<Event, broker::Error>) -> Result<(), Error> {
        let now = Instant::now();
        match event {
            Ok(Event::Assigned(partitions)) => self.on_gained(partitions, now),
            Ok(Event::Revoked(partitions)) => self.on_lost(partitions),
            Ok(Event::Records(batch)) => self.on_records(&batch, now),
            Ok(Event::EndReached {
                partition,
                epoch,
                at,
            }) => {
                if let Some(intake) = self.reading(&partition, epoch) {
                    intake.reached_end(at, now);
                }
            }
            Ok(Event::RecordsRemoved {
                partition,
                epoch,
                from,
                count,
            }) => self.on_removed(&partition, epoch, (from, count)),
            Ok(Event::OutOfRange { partition, epoch }) => {
                if let Some(intake) = self.reading(&partition, epoch) {
                    intake.stop_reading(Phase::Opening { not_before: now });
                }
            }
            Err(error) if error.is_transient() => {
                self.source_rejected = true;
                self.ports.health.source.set_not_ready(error.to_string());
                tokio::time::sleep(SHARD_OPEN_RETRY_DELAY).await;
            }
            Err(source) => {
                return Err(Error::Broker {
                    route: self.options.route.clone(),
                    source,
                });
            }
        }
        Ok(())
    }

    fn reading(&mut self, partition: &Partition, epoch: u64) -> Option<&mut AssignedPartition> {
        self.partitions
            .get_mut(partition)
            .filter(|intake| intake.is_reading(epoch))
    }

    fn on_records(&mut self, batch: &broker::RecordBatch, now: Instant) {
        let wall = self.ports.clock.now();
        let Some(intake) = self
            .partitions
            .get_mut(&batch.partition)
            .filter(|intake| intake.is_reading(batch.epoch))
        else {
            return;
        };
        let mut accepted = 0;
        for record in batch.iter() {
            if intake.record_read(record.offset, now) {
                accepted += 1;
                self.ports
                    .tracer
                    .link_message(&mut intake.trace_links, record.headers, wall);
                admit_record(
                    &self.options.rules,
                    &self.ports.metric,
                    intake,
                    &record,
                    wall,
                );
            }
        }
        self.ports.metric.accepted.increment(accepted);
    }

    /// Hands to the writer what is due to go, as far as it has room.
    fn send_appends(&mut self) {
        let (now, far) = (Instant::now(), self.far());
        if !self
            .partitions
            .values()
            .any(|intake| intake.flush_at().is_some_and(|at| at <= now))
        {
            return;
        }
        // When one goes, those go along that soon would: the store is called once for all of them.
        for (partition, intake) in &mut self.partitions {
            while intake
                .flush_at()
                .is_some_and(|at| at <= now + APPEND_LINGER_MAX / 2)
            {
                let Ok(room) = self.ports.append_jobs.try_reserve() else {
                    return;
                };
                let (append, links) = (
                    intake.build_append(&mut self.sealer, far),
                    std::mem::take(&mut intake.trace_links),
                );
                room.send(AppendJob {
                    partition: partition.clone(),
                    epoch: intake.epoch,
                    append,
                    links,
                });
            }
        }
    }

    fn far(&self) -> FarTarget {
        FarTarget::at(self.ports.clock.now(), self.options.thin)
    }

    fn on_append_result(&mut self, settled: AppendResult) {
        let AppendResult {
            partition,
            epoch,
            to,
            messages,
            outcome,
            links,
        } = settled;
        let Some(intake) = self.reading(&partition, epoch) else {
            return;
        };
        let (next, shard) = (intake.on_append_result(to, outcome), intake.shard.clone());
        if let Appended::Done { cancelled, missed } = outcome {
            let end = self.ports.clock.now();
            self.ports.tracer.finish_batch(links, |start, links| Span {
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
                &partition,
                watermark,
                "an append found the store's watermark elsewhere",
            ),
            AfterAppend::Reopen => self.reopen(&partition),
        }
    }

    fn seek(&mut self, partition: &Partition, watermark: Watermark, why: &str) {
        let Some(intake) = self.partitions.get_mut(partition) else {
            return;
        };
        tracing::warn!(shard = %intake.shard, from = %intake.append_from, to = %watermark, "reads on from another offset: {why}");
        self.last_epoch += 1;
        intake.start_reading(watermark, self.last_epoch);
        self.ports
            .source
            .start(partition, watermark.offset(), self.last_epoch);
    }

    fn reopen(&mut self, partition: &Partition) {
        let Some(intake) = self.partitions.get_mut(partition) else {
            return;
        };
        tracing::warn!(shard = %intake.shard, "the store knows nothing of the shard any more: it is filled again from the log");
        intake.stop_reading(Phase::Opening {
            not_before: Instant::now(),
        });
        self.ports.source.stop(partition);
    }

    /// Looks at what the store knows of each shard: notices one that went back or was lost though nothing is appended, and commits.
    async fn check_store(&mut self) -> Result<(), Error> {
        self.next_store_check = Instant::now() + OFFSET_COMMIT_INTERVAL;
        self.partitions.iter().for_each(|(partition, intake)| {
            intake.report_lag(self.ports.source.known_end(partition))
        });
        match self.read_states().await {
            Ok(states) => {
                self.ports.health.watermarks.set_ready();
                let mut commits = Vec::new();
                for (partition, state) in states {
                    match state {
                        None => self.reopen(&partition),
                        Some(state) => commits.extend(self.next_commit(partition, &state)),
                    }
                }
                self.commit(commits).await;
                Ok(())
            }
            Err(error) if error.is_transient() => {
                self.ports
                    .health
                    .watermarks
                    .set_not_ready(error.to_string());
                Ok(())
            }
            Err(source) => Err(Error::Store {
                route: self.options.route.clone(),
                source,
            }),
        }
    }

    /// What the store knows of the shards that are read, but for those that were quiet and still stand where they stood.
    async fn read_states(&self) -> Result<Vec<(Partition, Option<StoredShard>)>, store::Error> {
        let now = Instant::now();
        let reading = || {
            self.partitions
                .iter()
                .filter(|(_, intake)| intake.phase == Phase::Reading)
        };
        let quiet = reading().filter_map(|(partition, intake)| {
            Some((partition, &intake.shard, self.idle_position(intake, now)?))
        });
        let (mut still, quiet) = (BTreeSet::new(), quiet.collect::<Vec<_>>());
        if !quiet.is_empty() {
            let glances = self
                .ports
                .store
                .positions(
                    &quiet
                        .iter()
                        .map(|(_, shard, _)| (*shard).clone())
                        .collect::<Vec<_>>(),
                )
                .await?;
            let looked = quiet.into_iter().zip(glances);
            let is_still = |glance: ShardPosition, before| {
                before == (glance.watermark, glance.delivered) || fault!(IngressAssumesIdleShard)
            };
            still.extend(looked.filter_map(|((partition, _, before), glance)| {
                glance
                    .is_some_and(|glance| is_still(glance, before))
                    .then_some(partition)
            }));
        }
        let others = reading().filter(|(partition, _)| !still.contains(partition));
        let (partitions, shards): (Vec<_>, Vec<_>) = others
            .map(|(partition, intake)| (partition.clone(), intake.shard.clone()))
            .unzip();
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        Ok(partitions
            .into_iter()
            .zip(self.ports.store.state(&shards).await?)
            .collect())
    }

    /// Where a shard stood, if a glance is enough to know that nothing is to be done about it.
    fn idle_position(
        &self,
        intake: &AssignedPartition,
        now: Instant,
    ) -> Option<(Watermark, Progress)> {
        let quiet = intake
            .idle_at
            .filter(|quiet| now < quiet.since + FULL_STATE_INTERVAL && now < self.next_refresh)?;
        (intake.is_fully_stored() && intake.append_from == quiet.watermark)
            .then_some((quiet.watermark, quiet.delivered))
    }

    /// What to commit of a shard, if anything changed; an idle one whose watermark is elsewhere is read on from there.
    fn next_commit(&mut self, partition: Partition, state: &StoredShard) -> Option<OffsetCommit> {
        let intake = self.partitions.get_mut(&partition)?;
        intake.report_state(state, self.ports.clock.now());
        if intake.is_fully_stored() && intake.append_from != state.watermark {
            self.seek(
                &partition,
                state.watermark,
                "the store's watermark moved by itself",
            );
            return None;
        }
        let lowest = if fault!(RestartAtCommittedOffset) {
            state.watermark.offset()
        } else {
            state.lowest_pending
        };
        let committed = CommitMetadata {
            lowest_pending: lowest,
            delivered: state.delivered,
            identity: intake.identity.clone(),
        };
        let commit = OffsetCommit {
            offset: state.watermark.offset(),
            metadata: committed.to_string(),
            partition,
        };
        let text = format!("{} {}", commit.offset, commit.metadata);
        let refresh = Instant::now() >= self.next_refresh;
        let is_new = self.last_commits.get(&commit.partition) != Some(&text);
        let quiet = IdlePosition {
            watermark: state.watermark,
            delivered: state.delivered,
            since: Instant::now(),
        };
        intake.idle_at = (!is_new).then_some(quiet);
        (is_new || refresh).then_some(commit)
    }

    async fn commit(&mut self, commits: Vec<OffsetCommit>) {
        if Instant::now() >= self.next_refresh {
            self.next_refresh = Instant::now() + IDLE_OFFSET_COMMIT_INTERVAL;
        }
        if commits.is_empty() {
            return;
        }
        let Some(outcome) = unless_stopped(&self.stop, self.ports.source.commit(&commits)).await
        else {
            return;
        };
        match outcome {
            Ok(()) => {
                for OffsetCommit {
                    partition,
                    offset,
                    metadata,
                } in commits
                {
                    self.last_commits
                        .insert(partition, format!("{offset} {metadata}"));
                }
                self.ports.health.commits.set_ready();
            }
            // A commit that fails costs nothing but reading more after a loss of the store; the next one says it all again.
            Err(error) => self
                .ports
                .health
                .commits
                .set_not_ready(format!("offsets cannot be committed: {error}")),
        }
    }

    /// The way out: everything read is stored, everything stored is committed, as far as store and broker answer.
    async fn drain(mut self) -> Result<(), Error> {
        let far = self.far();
        for (partition, intake) in &mut self.partitions {
            if intake.phase == Phase::Reading && intake.has_unsent() {
                let (append, links) = (
                    intake.build_append(&mut self.sealer, far),
                    std::mem::take(&mut intake.trace_links),
                );
                let job = AppendJob {
                    partition: partition.clone(),
                    epoch: intake.epoch,
                    append,
                    links,
                };
                if self.ports.append_jobs.send(job).await.is_err() {
                    break;
                }
            }
        }
        let mut is_stored = true;
        while is_stored
            && self
                .partitions
                .values()
                .any(|intake| intake.awaits_appender())
        {
            match self.ports.append_results.recv().await {
                Some(settled) => self.on_append_result(settled),
                None => is_stored = false,
            }
        }
        self.ports.timers_done.cancelled().await;
        if is_stored {
            match tokio::time::timeout(FINAL_STORE_CALL_TIMEOUT, self.check_store()).await {
                Ok(outcome) => outcome?,
                Err(_) => {
                    tracing::warn!(route = %self.options.route, "stopped without a last commit: the store does not answer")
                }
            }
            tracing::info!(route = %self.options.route, "ingress drained");
        } else {
            // Nothing is lost: the next process reads it again from the store's watermark.
            tracing::warn!(route = %self.options.route, "stopped before all that was read was stored: the store does not answer");
        }
        self.ports.source.close().await;
        Ok(())
    }
}

/// What a broker answers; a process that is to stop does not wait long for it. Every call of the port is safe to drop.
async fn unless_stopped<T>(stop: &CancellationToken, answer: impl Future<Output = T>) -> Option<T> {
    let farewell = async {
        stop.cancelled().await;
        tokio::time::sleep(FINAL_COMMIT_TIMEOUT).await;
    };
    tokio::select! {
        biased;
        answer = answer => Some(answer),
        () = farewell => None,
    }
}
