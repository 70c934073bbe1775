//! Opens the shards of assigned partitions: asks the broker and the store about them, creates the
//! shards that the store does not have, and moves over gaps of the source.

use super::partition::{AssignedPartition, Rebuild};
use super::read_loop::Ingress;
use super::shard_init::{StartDecision, decide_start, new_shard};
use super::{CallError, Error, unless_stopped};
use crate::broker::{self, PartitionInfo};
use crate::limit::{SHARD_OPEN_RETRY_DELAY, STOPPED_SHARD_RETRY_DELAY};
use crate::model::{CommitMetadata, Partition, Progress, ShardId, Watermark};
use crate::store::{self, Append, AppendEpoch, NewShard, Opened, Store};
use std::collections::BTreeSet;
use std::ops::Range;
use tokio::time::Instant;

impl Ingress {
    /// Opens the shards whose time has come, and starts or stops the reading of their partitions.
    pub(super) async fn open_due_shards(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let partitions = self.partitions.iter();
        let due: Vec<Partition> = partitions
            .filter(|(_, partition)| partition.open_at.is_some_and(|at| at <= now))
            .map(|(id, _)| id.clone())
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        match self.open_shards(&due).await {
            Ok(()) => {
                self.report_shards();
                Ok(())
            }
            Err(error) if error.is_transient() => {
                let reason = format!("cannot open shards: {error}");
                self.ports.health.shards.set_not_ready(reason);
                let retry_at = Instant::now() + SHARD_OPEN_RETRY_DELAY;
                for id in &due {
                    if let Some(partition) = self.partitions.get_mut(id)
                        && !partition.is_reading()
                    {
                        partition.stop_reading(retry_at, None);
                    }
                }
                Ok(())
            }
            Err(error) => Err(self.fatal(error)),
        }
    }

    /// Sets the readiness of the shards. Shards that could not be opened are opened again soon.
    pub(super) fn report_shards(&self) {
        let health = &self.ports.health.shards;
        let reasons = Vec::from_iter(self.stop_reasons());
        if !reasons.is_empty() {
            health.set_not_ready(reasons.join("; "));
        } else if self.partitions.values().all(AssignedPartition::is_reading) {
            health.set_ready();
        }
    }

    /// Why partitions are stopped, each reason once.
    fn stop_reasons(&self) -> BTreeSet<&str> {
        let partitions = self.partitions.values();
        partitions
            .filter_map(|partition| partition.stop_reason.as_deref())
            .collect()
    }

    async fn open_shards(&mut self, due: &[Partition]) -> Result<(), CallError> {
        let stopping = || broker::Error::Unavailable("the process is stopping".to_owned());
        let asked_at = Instant::now();
        let source = &mut self.ports.source;
        let described = unless_stopped(&self.stop, source.describe(due))
            .await
            .ok_or_else(stopping)??;
        // A slow answer is not asked for again soon, because all partitions wait for it.
        let retry_at = Instant::now() + SHARD_OPEN_RETRY_DELAY + 2 * asked_at.elapsed();
        let (due, infos) = self.postpone_undescribed(due, described, retry_at)?;
        let due = due.as_slice();
        if due.is_empty() {
            return Ok(());
        }
        let source = &mut self.ports.source;
        let commits = unless_stopped(&self.stop, source.committed_metadata(due))
            .await
            .ok_or_else(stopping)??;
        let requests = due.iter().zip(&infos).zip(&commits);
        let new_shards = requests.map(|((partition, info), metadata)| {
            let shard = ShardId::new(self.options.route.clone(), partition.clone());
            let committed = metadata.as_deref().and_then(CommitMetadata::parse);
            new_shard(shard, info, committed.as_ref())
        });
        let opened = find_or_create(&*self.ports.store, new_shards.collect()).await?;
        // Before any step that can fail: a repeated call answers `Existing` instead of `Created`.
        for ((id, info), opened) in due.iter().zip(&infos).zip(&opened) {
            let Some(partition) = self.partitions.get_mut(id) else {
                continue;
            };
            if let Opened::Created(state) | Opened::Existing(state) = opened {
                partition.identity = state.identity.clone();
            }
            if let Opened::Created(state) = opened {
                tracing::info!(shard = %partition.shard, watermark = %state.watermark, "shard created");
                let rebuild = Rebuild::new(state, info.end_offset, self.ports.clock.now());
                partition.rebuild = rebuild.or(partition.rebuild);
            }
        }
        for ((id, info), opened) in due.iter().zip(&infos).zip(&opened) {
            let shard = ShardId::new(self.options.route.clone(), id.clone());
            match decide_start(&shard, info, opened) {
                StartDecision::Read { from, delivered } => self.start(id, from, delivered),
                StartDecision::Gap { missing, delivered } => {
                    self.skip_gap(&shard, missing, delivered).await?;
                }
                StartDecision::Stop(reason) => self.stop(id, reason),
            }
        }
        Ok(())
    }

    /// Sets partitions that could not be described aside until `retry_at`. Returns the others.
    fn postpone_undescribed(
        &mut self,
        due: &[Partition],
        described: Vec<Result<PartitionInfo, broker::Error>>,
        retry_at: Instant,
    ) -> Result<(Vec<Partition>, Vec<PartitionInfo>), CallError> {
        let mut found = (Vec::new(), Vec::new());
        for (id, described) in due.iter().zip(described) {
            match described {
                Ok(info) => {
                    found.0.push(id.clone());
                    found.1.push(info);
                }
                Err(error) if error.is_transient() => {
                    let reason = format!("partitions of {} cannot be opened: {error}", id.topic);
                    if let Some(partition) = self.partitions.get_mut(id) {
                        partition.stop_reading(retry_at, Some(reason));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    fn start(&mut self, id: &Partition, from: Watermark, delivered: Progress) {
        if let Some(partition) = self.partitions.get_mut(id) {
            tracing::info!(shard = %partition.shard, %from, "reading started");
            partition.delivered = delivered;
            self.start_reading(id, from);
        }
    }

    fn stop(&mut self, id: &Partition, reason: String) {
        // All partitions of a recreated topic have the same reason: log it once.
        let is_known = self.stop_reasons().contains(&*reason);
        let Some(partition) = self.partitions.get_mut(id) else {
            return;
        };
        if !is_known {
            tracing::error!(shard = %partition.shard, "shard stopped: {reason}");
        }
        let retry_at = Instant::now() + STOPPED_SHARD_RETRY_DELAY;
        partition.stop_reading(retry_at, Some(reason));
        self.ports.source.stop(id);
    }

    /// Reports a gap of the source. Moves the stored watermark over it and starts to read, unless
    /// the route stops at gaps.
    async fn skip_gap(
        &mut self,
        shard: &ShardId,
        gap: Range<Watermark>,
        delivered: Progress,
    ) -> Result<(), CallError> {
        let (from, to) = (gap.start, gap.end);
        let missing = to.0 - from.0;
        let reason = format!(
            "the source no longer retains {missing} offsets of {shard} ({from} to {to}) that were never stored"
        );
        if self.options.stops_at_gap {
            let reason = format!(
                "{reason}: set on_source_gap = \"continue\" for the route to continue without them"
            );
            self.stop(&shard.partition, reason);
            return Ok(());
        }
        let Some(partition) = self.partitions.get(&shard.partition) else {
            return Ok(());
        };
        self.last_epoch += 1;
        let append = Append {
            identity: partition.identity.clone(),
            shard: shard.clone(),
            epoch: AppendEpoch {
                process: self.runs.writer(),
                number: self.last_epoch,
            },
            from,
            to,
            runs: Vec::new(),
            changes: Vec::new(),
        };
        self.ports.store.append(&[append]).await?;
        tracing::error!(%shard, missing, "{reason}: they are lost; raise the source's retention above the longest delay");
        self.ports.metric.source_gap_messages.increment(missing);
        self.start(&shard.partition, to, delivered);
        Ok(())
    }
}

/// Reads the state of existing shards, and creates the others. Only creating needs free memory:
/// while the store is full, existing shards are still read.
async fn find_or_create(
    store: &dyn Store,
    new_shards: Vec<NewShard>,
) -> Result<Vec<Opened>, store::Error> {
    let shards: Vec<_> = new_shards.iter().map(|new| new.shard.clone()).collect();
    let states = store.state(&shards).await?;
    let absent = new_shards.into_iter().zip(&states);
    let absent = absent.filter_map(|(new, state)| state.is_none().then_some(new));
    let mut created = store.open(&absent.collect::<Vec<_>>()).await?.into_iter();
    let opened = states.into_iter().map(|state| match state {
        Some(state) => Opened::Existing(state),
        None => created.next().expect("the store answers every request"),
    });
    Ok(opened.collect())
}
