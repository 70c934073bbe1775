//! How an ingress takes the partitions that the group gives it, and opens their shards: asks broker and store, judges by `birth`, and starts
//! or stops the reading.

use super::birth::{self, Verdict};
use super::intake::{Intake, Phase, Rebuilt};
use super::{Error, Ingress, unless_stopped};
use crate::broker;
use crate::limit::{OPEN_RETRY, STOPPED_RETRY};
use crate::model::{Committed, Offset, Partition, ShardId};
use crate::store::{self, Append, Birth, Opened, Reading};
use std::collections::BTreeSet;
use tokio::time::Instant;

impl Ingress {
    /// None: the group's answer is that there is none for this process, which so does all its duty. It says nothing about a topic that was
    /// refused before.
    pub(super) fn gain(&mut self, partitions: Vec<Partition>, now: Instant) {
        self.is_refused &= partitions.is_empty();
        for partition in partitions {
            tracing::info!(route = %self.options.route, %partition, "partition gained");
            let shard = ShardId::new(self.options.route.clone(), partition.clone());
            self.intakes
                .insert(partition, Intake::new(&self.options.deployment, shard, now));
        }
        if !self.is_refused {
            self.ports.health.source.ready();
        }
    }

    pub(super) fn lose(&mut self, partitions: Vec<Partition>) {
        for partition in partitions {
            tracing::info!(route = %self.options.route, %partition, "partition lost");
            self.ports.source.stop(&partition);
            self.intakes.remove(&partition);
            self.committed.remove(&partition);
        }
        if self.intakes.is_empty() && !self.is_refused {
            self.ports.health.source.not_ready(
                "all partitions were taken back, and the group has not shared them out again yet",
            );
        }
    }

    /// Opens the shards whose time it is: learns where their reading begins, or why it must not.
    pub(super) async fn open(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let is_due = |intake: &Intake| match &intake.phase {
            Phase::Opening { not_before: at } | Phase::Stopped { again: at, .. } => *at <= now,
            Phase::Reading => false,
        };
        let due: Vec<_> = self
            .intakes
            .iter()
            .filter(|(_, intake)| is_due(intake))
            .map(|(partition, _)| partition.clone())
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        match self.verdicts(&due).await {
            Ok(verdicts) => {
                for (partition, verdict) in due.iter().zip(verdicts) {
                    self.apply(partition, verdict);
                }
                self.report_stopped();
            }
            Err(failure) if failure.is_transient() => {
                self.ports
                    .health
                    .shards
                    .not_ready(format!("shards cannot be opened: {failure}"));
                for partition in &due {
                    if let Some(intake) = self.intakes.get_mut(partition) {
                        intake.pause(Phase::Opening {
                            not_before: Instant::now() + OPEN_RETRY,
                        });
                    }
                }
            }
            Err(Failure::Broker(source)) => {
                return Err(Error::Broker {
                    route: self.options.route.clone(),
                    source,
                });
            }
            Err(Failure::Store(source)) => {
                return Err(Error::Store {
                    route: self.options.route.clone(),
                    source,
                });
            }
        }
        Ok(())
    }

    async fn verdicts(&mut self, partitions: &[Partition]) -> Result<Vec<Verdict>, Failure> {
        let stopped = || broker::Error::Unavailable("the process is to stop".to_owned());
        let described = unless_stopped(&self.stop, self.ports.source.describe(partitions))
            .await
            .ok_or_else(stopped)??;
        let committed = unless_stopped(&self.stop, self.ports.source.committed(partitions))
            .await
            .ok_or_else(stopped)??;
        let shards: Vec<_> = partitions
            .iter()
            .map(|partition| ShardId::new(self.options.route.clone(), partition.clone()))
            .collect();
        let births: Vec<_> = (shards.iter().zip(&described).zip(&committed))
            .map(|((shard, described), metadata)| {
                birth::birth(
                    shard,
                    described,
                    metadata.as_deref().and_then(Committed::parse).as_ref(),
                )
            })
            .collect();
        let opened = self.opened(&shards, births).await?;
        let mut verdicts = Vec::new();
        for ((shard, described), opened) in shards.iter().zip(&described).zip(&opened) {
            let verdict = birth::verdict(shard, described, opened);
            verdicts.push(self.bridge(shard, verdict).await?);
            let Some(intake) = self.intakes.get_mut(&shard.partition) else {
                continue;
            };
            intake.identity.clone_from(&described.identity);
            if let Opened::Born(state) = opened {
                tracing::info!(%shard, watermark = %state.watermark, "shard born");
                intake.rebuilt = Rebuilt::new(state, described.end, self.ports.clock.now());
            }
        }
        Ok(verdicts)
    }

    /// Finds the shards that are there, and bears the others: only that needs free memory, and a full store is no reason to wait with the
    /// reading of what it holds.
    async fn opened(
        &self,
        shards: &[ShardId],
        births: Vec<Birth>,
    ) -> Result<Vec<Opened>, store::Error> {
        let mut opened: Vec<_> = self
            .ports
            .store
            .state(shards)
            .await?
            .into_iter()
            .map(|state| state.map(Opened::Found))
            .collect();
        let absent = births
            .into_iter()
            .zip(&opened)
            .filter(|(_, found)| found.is_none())
            .map(|(birth, _)| birth);
        let mut born = self
            .ports
            .store
            .open(&absent.collect::<Vec<_>>())
            .await?
            .into_iter();
        opened
            .iter_mut()
            .filter(|found| found.is_none())
            .for_each(|found| *found = born.next());
        Ok(opened
            .into_iter()
            .map(|opened| opened.expect("a birth is answered"))
            .collect())
    }

    /// A gap is said, counted and, unless the route stops at it, moved over.
    async fn bridge(&mut self, shard: &ShardId, verdict: Verdict) -> Result<Verdict, Failure> {
        let Verdict::Gap {
            from,
            to,
            delivered,
        } = verdict
        else {
            return Ok(verdict);
        };
        let gone = to.0 - from.0;
        let reason = format!(
            "{gone} offsets of {shard} ({from} to {to}) are no longer retained by the source and were never stored"
        );
        if self.options.stops_at_gap {
            let fix = "set on_source_gap = \"continue\" for the route to go on without them";
            return Ok(Verdict::Stop(format!("{reason}: {fix}")));
        }
        self.last_epoch += 1;
        let reading = Reading {
            writer: self.sealer.writer(),
            number: self.last_epoch,
        };
        let append = Append {
            shard: shard.clone(),
            reading,
            from,
            to,
            runs: Vec::new(),
            changes: Vec::new(),
        };
        self.ports.store.append(&[append]).await?;
        tracing::error!(%shard, gone, "{reason}: they are lost; raise the source's retention above the longest delay");
        self.ports.metric.source_gap_messages.increment(gone);
        Ok(Verdict::Read {
            from: to,
            delivered,
        })
    }

    /// The route goes on, also one that stops at a gap: what lay behind was read before anybody knew.
    pub(super) fn miss(&mut self, partition: &Partition, epoch: u64, (from, count): (Offset, u64)) {
        let Some(shard) = self
            .reading(partition, epoch)
            .map(|intake| intake.shard.clone())
        else {
            return;
        };
        tracing::error!(
            %shard,
            "the source removed up to {count} messages of {shard} from offset {from} on, by a purge or a limit, while they were being read: \
             they are lost; raise the source's limits"
        );
        self.ports.metric.source_gap_messages.increment(count);
    }

    fn apply(&mut self, partition: &Partition, verdict: Verdict) {
        let is_known =
            matches!(&verdict, Verdict::Stop(reason) if self.stopped().contains(reason.as_str()));
        let Some(intake) = self.intakes.get_mut(partition) else {
            return;
        };
        match verdict {
            Verdict::Read { from, delivered }
            | Verdict::Gap {
                from, delivered, ..
            } => {
                tracing::info!(shard = %intake.shard, %from, "reading");
                self.last_epoch += 1;
                intake.begin(from, self.last_epoch);
                intake.delivered = delivered;
                self.ports
                    .source
                    .start(partition, from.offset(), self.last_epoch);
            }
            Verdict::Stop(reason) => {
                // What concerns the whole topic is the same for each of its partitions.
                if !is_known {
                    tracing::error!(shard = %intake.shard, "shard stopped: {reason}");
                }
                self.ports.source.stop(partition);
                intake.pause(Phase::Stopped {
                    reason,
                    again: Instant::now() + STOPPED_RETRY,
                });
            }
        }
    }

    /// Why shards are stopped, each reason once.
    fn stopped(&self) -> BTreeSet<&str> {
        let reasons = self
            .intakes
            .values()
            .filter_map(|intake| match &intake.phase {
                Phase::Stopped { reason, .. } => Some(reason.as_str()),
                _ => None,
            });
        reasons.collect()
    }

    fn report_stopped(&self) {
        let reasons: Vec<_> = self.stopped().into_iter().collect();
        if reasons.is_empty() {
            self.ports.health.shards.ready();
        } else {
            self.ports.health.shards.not_ready(reasons.join("; "));
        }
    }
}

/// Why shards could not be opened.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Broker(#[from] broker::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Failure {
    fn is_transient(&self) -> bool {
        match self {
            Self::Broker(error) => error.is_transient(),
            Self::Store(error) => error.is_transient(),
        }
    }
}
