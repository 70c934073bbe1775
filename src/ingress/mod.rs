//! The ingress role: reads one route's source, turns every record into an entry of its shard, stores batches by compare-and-append, and
//! only then commits (I1, I2). It never sends anything to a broker: refused records are entries too.
//!
//! Two loops: [`Ingress`] owns the source, the batches and the encoder; `Writer` owns a store connection. Bounded channels between them, so
//! that a slow store slows the reading, down to the client's own queues.

mod batch;
mod birth;
mod entry;
mod intake;
mod opening;
mod writer;

use crate::broker::{self, Commit, Event, Source};
use crate::clock::Clock;
use crate::health::{Health, Part};
use crate::limit::{
    COMMIT_INTERVAL, COMMIT_REFRESH, FAREWELL_MAX, LAST_CALL_MAX, LINGER_MAX, OPEN_RETRY,
    STATE_INTERVAL,
};
use crate::metric;
use crate::model::{Claim, Committed, Partition, Rules, Watermark};
use crate::mutant::{self, Mutant};
use crate::run::{Far, Sealer, Thin};
use crate::store::{self, Appended, Glance, State, Store};
use crate::trace::{Deed, Span, Tracer};
use entry::enter;
use intake::{Intake, Next, Phase, Quiet, has_room};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
pub(crate) use writer::{Job, Settled, Writer, channels};

/// What an ingress is told of its route.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) deployment: Arc<str>,
    pub(crate) route: Arc<str>,
    pub(crate) rules: Rules,
    /// Whether a partition goes on when records are gone that were never stored.
    pub(crate) stops_at_gap: bool,
    pub(crate) thin: Thin,
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
pub(crate) struct Parts {
    source: Part,
    shards: Part,
    watermarks: Part,
    commits: Part,
}

impl Parts {
    pub(crate) fn new(health: &Health, route: &str) -> Self {
        let part = |what| health.part(format!("route {route} {what}"));
        let parts = Self {
            source: part("source"),
            shards: part("shards"),
            watermarks: part("watermarks"),
            commits: part("commits"),
        };
        // A process to which the group gives no partition does its duty too.
        for part in [&parts.shards, &parts.watermarks, &parts.commits] {
            part.ready();
        }
        parts
    }
}

/// What an ingress works with.
pub(crate) struct Ports {
    pub(crate) source: Box<dyn Source>,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) health: Parts,
    pub(crate) metric: metric::Route,
    pub(crate) tracer: Tracer,
    pub(crate) jobs: mpsc::Sender<Job>,
    pub(crate) settled: mpsc::Receiver<Settled>,
    /// Cancelled when the timers of this process have told the store all that they delivered, or have no time left for it: the last commit
    /// waits for it, so that a store that begins anew from that commit repeats nothing.
    pub(crate) timers_done: CancellationToken,
}

/// See the module's page.
pub(crate) struct Ingress {
    options: Options,
    ports: Ports,
    intakes: BTreeMap<Partition, Intake>,
    committed: BTreeMap<Partition, String>,
    sealer: Sealer,
    last_epoch: u64,
    next_look: Instant,
    next_refresh: Instant,
    /// The source has refused something, and given no partition since.
    is_refused: bool,
    stop: CancellationToken,
}

impl Ingress {
    /// `writer` is the random id under which this process names its runs.
    pub(crate) fn new(options: Options, ports: Ports, writer: u64) -> Self {
        let now = Instant::now();
        Self {
            options,
            ports,
            intakes: BTreeMap::new(),
            committed: BTreeMap::new(),
            sealer: Sealer::new(writer),
            last_epoch: 0,
            next_look: now,
            next_refresh: now + COMMIT_REFRESH,
            is_refused: false,
            stop: CancellationToken::new(),
        }
    }

    /// Serves until `stop` is cancelled; then stores what was read, commits and leaves the group. The writer must outlive it.
    pub(crate) async fn serve(mut self, stop: CancellationToken) -> Result<(), Error> {
        self.stop = stop.clone();
        while !stop.is_cancelled() {
            self.ports.health.source.beat();
            let wake = self.next_wake();
            let has_room = has_room(&mut self.intakes);
            // Each arm is safe to drop: receiving and `Source::next` keep what they did not hand out.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                settled = self.ports.settled.recv() => match settled {
                    Some(settled) => self.settle(settled),
                    None => return Err(Error::WriterGone(self.options.route)),
                },
                event = self.ports.source.next(), if has_room => self.observe(event).await?,
                () = tokio::time::sleep_until(wake) => {}
            }
            self.open().await?;
            self.seal();
            if Instant::now() >= self.next_look {
                self.look().await?;
            }
        }
        self.drain().await
    }

    fn next_wake(&self) -> Instant {
        let writer_has_room = self.ports.jobs.capacity() > 0;
        let each = self
            .intakes
            .values()
            .filter_map(|intake| match &intake.phase {
                Phase::Opening { not_before } => Some(*not_before),
                Phase::Stopped { again, .. } => Some(*again),
                Phase::Reading => intake.seal_at().filter(|_| writer_has_room),
            });
        each.chain([self.next_look]).min().unwrap_or(self.next_look)
    }

    async fn observe(&mut self, event: Result<Event, broker::Error>) -> Result<(), Error> {
        let now = Instant::now();
        match event {
            Ok(Event::Gained(partitions)) => self.gain(partitions, now),
            Ok(Event::Lost(partitions)) => self.lose(partitions),
            Ok(Event::Records(batch)) => self.take_in(&batch, now),
            Ok(Event::End {
                partition,
                epoch,
                at,
            }) => {
                if let Some(intake) = self.reading(&partition, epoch) {
                    intake.reaches(at, now);
                }
            }
            Ok(Event::Removed {
                partition,
                epoch,
                from,
                count,
            }) => self.miss(&partition, epoch, (from, count)),
            Ok(Event::OutOfRange { partition, epoch }) => {
                if let Some(intake) = self.reading(&partition, epoch) {
                    intake.pause(Phase::Opening { not_before: now });
                }
            }
            Err(error) if error.is_transient() => {
                self.is_refused = true;
                self.ports.health.source.not_ready(error.to_string());
                tokio::time::sleep(OPEN_RETRY).await;
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

    fn reading(&mut self, partition: &Partition, epoch: u64) -> Option<&mut Intake> {
        self.intakes
            .get_mut(partition)
            .filter(|intake| intake.is_reading(epoch))
    }

    fn take_in(&mut self, batch: &broker::Batch, now: Instant) {
        let wall = self.ports.clock.now();
        let Some(intake) = self
            .intakes
            .get_mut(&batch.partition)
            .filter(|intake| intake.is_reading(batch.epoch))
        else {
            return;
        };
        let mut accepted = 0;
        for record in batch.iter() {
            if intake.reads(record.offset, now) {
                accepted += 1;
                self.ports
                    .tracer
                    .note(&mut intake.links, record.headers, wall);
                enter(
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
    fn seal(&mut self) {
        let (now, far) = (Instant::now(), self.far());
        if !self
            .intakes
            .values()
            .any(|intake| intake.seal_at().is_some_and(|at| at <= now))
        {
            return;
        }
        // When one goes, those go along that soon would: the store is called once for all of them.
        for (partition, intake) in &mut self.intakes {
            while intake
                .seal_at()
                .is_some_and(|at| at <= now + LINGER_MAX / 2)
            {
                let Ok(room) = self.ports.jobs.try_reserve() else {
                    return;
                };
                let (append, links) = (
                    intake.seal(&mut self.sealer, far),
                    std::mem::take(&mut intake.links),
                );
                room.send(Job {
                    partition: partition.clone(),
                    epoch: intake.epoch,
                    append,
                    links,
                });
            }
        }
    }

    fn far(&self) -> Far {
        Far::at(self.ports.clock.now(), self.options.thin)
    }

    fn settle(&mut self, settled: Settled) {
        let Settled {
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
        let (next, shard) = (intake.settle(to, outcome), intake.shard.clone());
        if let Appended::Done { cancelled, missed } = outcome {
            let end = self.ports.clock.now();
            self.ports.tracer.tell(links, |start, links| Span {
                shard,
                start,
                end,
                links,
                messages,
                deed: Deed::Stored,
            });
            self.ports.metric.stored.increment(messages);
            self.ports.metric.cancelled.increment(u64::from(cancelled));
            self.ports.metric.cancel_missed.increment(u64::from(missed));
        }
        match next {
            Next::GoOn => {}
            Next::Seek(watermark) => self.seek(
                &partition,
                watermark,
                "an append found the store's watermark elsewhere",
            ),
            Next::Reopen => self.reopen(&partition),
        }
    }

    fn seek(&mut self, partition: &Partition, watermark: Watermark, why: &str) {
        let Some(intake) = self.intakes.get_mut(partition) else {
            return;
        };
        tracing::warn!(shard = %intake.shard, from = %intake.from, to = %watermark, "reads on from another offset: {why}");
        self.last_epoch += 1;
        intake.begin(watermark, self.last_epoch);
        self.ports
            .source
            .start(partition, watermark.offset(), self.last_epoch);
    }

    fn reopen(&mut self, partition: &Partition) {
        let Some(intake) = self.intakes.get_mut(partition) else {
            return;
        };
        tracing::warn!(shard = %intake.shard, "the store knows nothing of the shard any more: it is filled again from the log");
        intake.pause(Phase::Opening {
            not_before: Instant::now(),
        });
        self.ports.source.stop(partition);
    }

    /// Looks at what the store knows of each shard: notices one that went back or was lost though nothing is appended, and commits.
    async fn look(&mut self) -> Result<(), Error> {
        self.next_look = Instant::now() + COMMIT_INTERVAL;
        self.intakes
            .iter()
            .for_each(|(partition, intake)| intake.ends(self.ports.source.end(partition)));
        match self.states().await {
            Ok(states) => {
                self.ports.health.watermarks.ready();
                let mut commits = Vec::new();
                for (partition, state) in states {
                    match state {
                        None => self.reopen(&partition),
                        Some(state) => commits.extend(self.compare(partition, &state)),
                    }
                }
                self.commit(commits).await;
                Ok(())
            }
            Err(error) if error.is_transient() => {
                self.ports.health.watermarks.not_ready(error.to_string());
                Ok(())
            }
            Err(source) => Err(Error::Store {
                route: self.options.route.clone(),
                source,
            }),
        }
    }

    /// What the store knows of the shards that are read, but for those that were quiet and still stand where they stood.
    async fn states(&self) -> Result<Vec<(Partition, Option<State>)>, store::Error> {
        let now = Instant::now();
        let reading = || {
            self.intakes
                .iter()
                .filter(|(_, intake)| intake.phase == Phase::Reading)
        };
        let quiet = reading().filter_map(|(partition, intake)| {
            Some((partition, &intake.shard, self.quiet(intake, now)?))
        });
        let (mut still, quiet) = (BTreeSet::new(), quiet.collect::<Vec<_>>());
        if !quiet.is_empty() {
            let glances = self
                .ports
                .store
                .glance(
                    &quiet
                        .iter()
                        .map(|(_, shard, _)| (*shard).clone())
                        .collect::<Vec<_>>(),
                )
                .await?;
            let looked = quiet.into_iter().zip(glances);
            let is_still = |glance: Glance, before| {
                before == (glance.watermark, glance.delivered)
                    || mutant::active(Mutant::TakesForStill)
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
    fn quiet(&self, intake: &Intake, now: Instant) -> Option<(Watermark, Claim)> {
        let quiet = intake
            .quiet
            .filter(|quiet| now < quiet.since + STATE_INTERVAL && now < self.next_refresh)?;
        (intake.is_settled() && intake.from == quiet.watermark)
            .then_some((quiet.watermark, quiet.delivered))
    }

    /// What to commit of a shard, if anything changed; an idle one whose watermark is elsewhere is read on from there.
    fn compare(&mut self, partition: Partition, state: &State) -> Option<Commit> {
        let intake = self.intakes.get_mut(&partition)?;
        intake.knows(state, self.ports.clock.now());
        if intake.is_settled() && intake.from != state.watermark {
            self.seek(
                &partition,
                state.watermark,
                "the store's watermark moved by itself",
            );
            return None;
        }
        let lowest = if mutant::active(Mutant::RewindsToCommit) {
            state.watermark.offset()
        } else {
            state.lowest_pending
        };
        let committed = Committed {
            lowest_pending: lowest,
            delivered: state.delivered,
            identity: intake.identity.clone(),
        };
        let commit = Commit {
            offset: state.watermark.offset(),
            metadata: committed.to_string(),
            partition,
        };
        let text = format!("{} {}", commit.offset, commit.metadata);
        let refresh = Instant::now() >= self.next_refresh;
        let is_new = self.committed.get(&commit.partition) != Some(&text);
        let quiet = Quiet {
            watermark: state.watermark,
            delivered: state.delivered,
            since: Instant::now(),
        };
        intake.quiet = (!is_new).then_some(quiet);
        (is_new || refresh).then_some(commit)
    }

    async fn commit(&mut self, commits: Vec<Commit>) {
        if Instant::now() >= self.next_refresh {
            self.next_refresh = Instant::now() + COMMIT_REFRESH;
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
                for Commit {
                    partition,
                    offset,
                    metadata,
                } in commits
                {
                    self.committed
                        .insert(partition, format!("{offset} {metadata}"));
                }
                self.ports.health.commits.ready();
            }
            // A commit that fails costs nothing but reading more after a loss of the store; the next one says it all again.
            Err(error) => self
                .ports
                .health
                .commits
                .not_ready(format!("offsets cannot be committed: {error}")),
        }
    }

    /// The way out: everything read is stored, everything stored is committed, as far as store and broker answer.
    async fn drain(mut self) -> Result<(), Error> {
        let far = self.far();
        for (partition, intake) in &mut self.intakes {
            if intake.phase == Phase::Reading && intake.has_batch() {
                let (append, links) = (
                    intake.seal(&mut self.sealer, far),
                    std::mem::take(&mut intake.links),
                );
                let job = Job {
                    partition: partition.clone(),
                    epoch: intake.epoch,
                    append,
                    links,
                };
                if self.ports.jobs.send(job).await.is_err() {
                    break;
                }
            }
        }
        let mut is_stored = true;
        while is_stored && self.intakes.values().any(|intake| intake.is_awaited()) {
            match self.ports.settled.recv().await {
                Some(settled) => self.settle(settled),
                None => is_stored = false,
            }
        }
        self.ports.timers_done.cancelled().await;
        if is_stored {
            match tokio::time::timeout(LAST_CALL_MAX, self.look()).await {
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
        tokio::time::sleep(FAREWELL_MAX).await;
    };
    tokio::select! {
        biased;
        answer = answer => Some(answer),
        () = farewell => None,
    }
}
