//! How an ingress takes the partitions that the group gives it, and opens their shards: asks broker and store, judges by `birth`, and starts
//! or stops the reading.

use super::partition::{AssignedPartition, Phase, Rebuild};
use super::shard_init::{self, StartDecision};
use super::{Error, Ingress, unless_stopped};
use crate::broker;
use crate::limit::{SHARD_OPEN_RETRY_DELAY, STOPPED_SHARD_RETRY_DELAY};
use crate::model::{CommitMetadata, Offset, Partition, ShardId};
use crate::store::{self, Append, AppendEpoch, NewShard, Opened};
use std::collections::BTreeSet;
use tokio::time::Instant;

impl Ingress {
    /// None: the group's answer is that there is none for this process, which so does all its duty. It says nothing about a topic that was
    /// refused before.
    pub(super) fn on_gained(&mut self, partitions: Vec<Partition>, now: Instant) {
        self.source_rejected &= partitions.is_empty();
        for partition in partitions {
            tracing::info!(route = %self.options.route, %partition, "partition gained");
            let shard = ShardId::new(self.options.route.clone(), partition.clone());
            self.partitions.insert(
                partition,
                AssignedPartition::new(&self.options.deployment, shard, now),
            );
        }
        if !self.source_rejected {
            self.ports.health.source.set_ready();
        }
    }

    pub(super) fn on_lost(&mut self, partitions: Vec<Partition>) {
        for partition in partitions {
            tracing::info!(route = %self.options.route, %partition, "partition lost");
            self.ports.source.stop(&partition);
            self.partitions.remove(&partition);
            self.last_commits.remove(&partition);
        }
        if self.partitions.is_empty() && !self.source_rejected {
            self.ports.health.source.set_not_ready(
                "all partitions were taken back, and the group has not shared them out again yet",
            );
        }
    }

    /// Opens the shards whose time it is: learns where their reading begins, or why it must not.
    pub(super) async fn open_due_shards(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let is_due = |intake: &AssignedPartition| match &intake.phase {
            Phase::Opening { not_before: at } | Phase::Stopped { again: at, .. } => *at <= now,
            Phase::Reading => false,
        };
        let due: Vec<_> = self
            .partitions
            .iter()
            .filter(|(_, intake)| is_due(intake))
            .map(|(partition, _)| partition.clone())
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        match self.decide_starts(&due).await {
            Ok(verdicts) => {
                for (partition, verdict) in due.iter().zip(verdicts) {
                    self.apply_start(partition, verdict);
                }
                self.report_stopped();
            }
            Err(failure) if failure.is_transient() => {
                self.ports
                    .health
                    .shards
                    .set_not_ready(format!("shards cannot be opened: {failure}"));
                for partition in &due {
                    if let Some(intake) = self.partitions.get_mut(partition) {
                        intake.stop_reading(Phase::Opening {
                            not_before: Instant::now() + SHARD_OPEN_RETRY_DELAY,
                        });
                    }
                }
            }
            Err(OpenError::Broker(source)) => {
                return Err(Error::Broker {
                    route: self.options.route.clone(),
                    source,
                });
            }
            Err(OpenError::Store(source)) => {
                return Err(Error::Store {
                    route: self.options.route.clone(),
                    source,
                });
            }
        }
        Ok(())
    }

    async fn decide_starts(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<StartDecision>, OpenError> {
        let stopped = || broker::Error::Unavailable("the process is to stop".to_owned());
        let described = unless_stopped(&self.stop, self.ports.source.describe(partitions))
            .await
            .ok_or_else(stopped)??;
        let committed =
            unless_stopped(&self.stop, self.ports.source.committed_metadata(partitions))
                .await
                .ok_or_else(stopped)??;
        let shards: Vec<_> = partitions
            .iter()
            .map(|partition| ShardId::new(self.options.route.clone(), partition.clone()))
            .collect();
        let births: Vec<_> = (shards.iter().zip(&described).zip(&committed))
            .map(|((shard, described), metadata)| {
                shard_init::new_shard(
                    shard,
                    described,
                    metadata.as_deref().and_then(CommitMetadata::parse).as_ref(),
                )
            })
            .collect();
        let opened = self.open_in_store(&shards, births).await?;
        let mut verdicts = Vec::new();
        for ((shard, described), opened) in shards.iter().zip(&described).zip(&opened) {
            let verdict = shard_init::decide_start(shard, described, opened);
            verdicts.push(self.skip_gap(shard, verdict).await?);
            let Some(intake) = self.partitions.get_mut(&shard.partition) else {
                continue;
            };
            intake.identity.clone_from(&described.identity);
            if let Opened::Created(state) = opened {
                tracing::info!(%shard, watermark = %state.watermark, "shard born");
                intake.rebuild = Rebuild::new(state, described.end_offset, self.ports.clock.now());
            }
        }
        Ok(verdicts)
    }

    /// Finds the shards that are there, and bears the others: only that needs free memory, and a full store is no reason to wait with the
    /// reading of what it holds.
    async fn open_in_store(
        &self,
        shards: &[ShardId],
        births: Vec<NewShard>,
    ) -> Result<Vec<Opened>, store::Error> {
        let mut opened: Vec<_> = self
            .ports
            .store
            .state(shards)
            .await?
            .into_iter()
            .map(|state| state.map(Opened::Existing))
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
    async fn skip_gap(
        &mut self,
        shard: &ShardId,
        verdict: StartDecision,
    ) -> Result<StartDecision, OpenError> {
        let StartDecision::Gap {
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
            return Ok(StartDecision::Stop(format!("{reason}: {fix}")));
        }
        self.last_epoch += 1;
        let reading = AppendEpoch {
            process: self.sealer.writer(),
            number: self.last_epoch,
        };
        let append = Append {
            shard: shard.clone(),
            epoch: reading,
            from,
            to,
            runs: Vec::new(),
            changes: Vec::new(),
        };
        self.ports.store.append(&[append]).await?;
        tracing::error!(%shard, gone, "{reason}: they are lost; raise the source's retention above the longest delay");
        self.ports.metric.source_gap_messages.increment(gone);
        Ok(StartDecision::Read {
            from: to,
            delivered,
        })
    }

    /// The route goes on, also one that stops at a gap: what lay behind was read before anybody knew.
    pub(super) fn on_removed(
        &mut self,
        partition: &Partition,
        epoch: u64,
        (from, count): (Offset, u64),
    ) {
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

    fn apply_start(&mut self, partition: &Partition, verdict: StartDecision) {
        let is_known = matches!(&verdict, StartDecision::Stop(reason) if self.stop_reasons().contains(reason.as_str()));
        let Some(intake) = self.partitions.get_mut(partition) else {
            return;
        };
        match verdict {
            StartDecision::Read { from, delivered }
            | StartDecision::Gap {
                from, delivered, ..
            } => {
                tracing::info!(shard = %intake.shard, %from, "reading");
                self.last_epoch += 1;
                intake.start_reading(from, self.last_epoch);
                intake.delivered = delivered;
                self.ports
                    .source
                    .start(partition, from.offset(), self.last_epoch);
            }
            StartDecision::Stop(reason) => {
                // What concerns the whole topic is the same for each of its partitions.
                if !is_known {
                    tracing::error!(shard = %intake.shard, "shard stopped: {reason}");
                }
                self.ports.source.stop(partition);
                intake.stop_reading(Phase::Stopped {
                    reason,
                    again: Instant::now() + STOPPED_SHARD_RETRY_DELAY,
                });
            }
        }
    }

    /// Why shards are stopped, each reason once.
    fn stop_reasons(&self) -> BTreeSet<&str> {
        let reasons = self
            .partitions
            .values()
            .filter_map(|intake| match &intake.phase {
                Phase::Stopped { reason, .. } => Some(reason.as_str()),
                _ => None,
            });
        reasons.collect()
    }

    fn report_stopped(&self) {
        let reasons: Vec<_> = self.stop_reasons().into_iter().collect();
        if reasons.is_empty() {
            self.ports.health.shards.set_ready();
        } else {
            self.ports.health.shards.set_not_ready(reasons.join("; "));
        }
    }
}

/// Why shards could not be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Broker(#[from] broker::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl OpenError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Broker(error) => error.is_transient(),
            Self::Store(error) => error.is_transient(),
        }
    }
}
