//! Opens the shards of assigned partitions: asks the broker and the store about them, creates the
//! shards that the store does not have, and moves over gaps of the source.

use super::partition::Rebuild;
use super::shard_init::{StartDecision, decide_start, new_shard};
use super::{CallError, Options, unless_stopped};
use crate::broker::{self, Source};
use crate::clock::Clock;
use crate::metric;
use crate::model::{CommitMetadata, Partition, Progress, ShardId, SourceIdentity, Watermark};
use crate::store::{self, Append, AppendEpoch, NewShard, Opened, Store};
use std::ops::Range;
use tokio_util::sync::CancellationToken;

/// The parts of an ingress that open shards.
pub(super) struct ShardOpener<'a> {
    pub(super) options: &'a Options,
    pub(super) source: &'a mut dyn Source,
    pub(super) store: &'a dyn Store,
    pub(super) clock: &'a dyn Clock,
    pub(super) metric: &'a metric::RouteMetrics,
    pub(super) stop: &'a CancellationToken,
}

/// A shard that the store has now, and how its reading starts.
pub(super) struct OpenedShard {
    pub(super) id: ShardId,
    pub(super) identity: Option<SourceIdentity>,
    /// The shard was created by this call, and some of its messages may be delivered.
    pub(super) rebuild: Option<Rebuild>,
    pub(super) decision: StartDecision,
}

impl ShardOpener<'_> {
    /// Opens the shards of these partitions. Returns them in the order of the partitions. Safe to
    /// repeat.
    pub(super) async fn open(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<OpenedShard>, CallError> {
        let stopping = || broker::Error::Unavailable("the process is stopping".to_owned());
        let infos = unless_stopped(self.stop, self.source.describe(partitions))
            .await
            .ok_or_else(stopping)??;
        let commits = unless_stopped(self.stop, self.source.committed_metadata(partitions))
            .await
            .ok_or_else(stopping)??;
        let shards: Vec<_> = partitions
            .iter()
            .map(|partition| ShardId::new(self.options.route.clone(), partition.clone()))
            .collect();
        let new_shards = (shards.iter().zip(&infos).zip(&commits))
            .map(|((shard, info), metadata)| {
                let committed = metadata.as_deref().and_then(CommitMetadata::parse);
                new_shard(shard, info, committed.as_ref())
            })
            .collect();
        let opened = self.find_or_create(&shards, new_shards).await?;
        let shards = shards.into_iter().zip(infos).zip(opened);
        Ok(shards
            .map(|((shard, info), opened)| {
                let rebuild = match &opened {
                    Opened::Created(state) => {
                        tracing::info!(%shard, watermark = %state.watermark, "shard created");
                        Rebuild::new(state, info.end_offset, self.clock.now())
                    }
                    Opened::Existing(_) | Opened::Incompatible(_) => None,
                };
                OpenedShard {
                    decision: decide_start(&shard, &info, &opened),
                    identity: info.identity,
                    id: shard,
                    rebuild,
                }
            })
            .collect())
    }

    /// Reads the state of existing shards, and creates the others. Only creating needs free memory:
    /// while the store is full, existing shards are still read.
    async fn find_or_create(
        &self,
        shards: &[ShardId],
        new_shards: Vec<NewShard>,
    ) -> Result<Vec<Opened>, store::Error> {
        let states = self.store.state(shards).await?;
        let absent: Vec<_> = new_shards
            .into_iter()
            .zip(&states)
            .filter(|(_, state)| state.is_none())
            .map(|(new_shard, _)| new_shard)
            .collect();
        let mut created = self.store.open(&absent).await?.into_iter();
        let opened = states.into_iter().map(|state| match state {
            Some(state) => Opened::Existing(state),
            None => created.next().expect("the store answers every request"),
        });
        Ok(opened.collect())
    }

    /// Moves over the gaps of opened shards. Returns how the readings start, in the order of the
    /// shards.
    pub(super) async fn skip_gaps(
        &mut self,
        opened: Vec<OpenedShard>,
        mut next_epoch: impl FnMut() -> AppendEpoch,
    ) -> Result<Vec<StartDecision>, CallError> {
        let mut decisions = Vec::new();
        for shard in opened {
            decisions.push(match shard.decision {
                StartDecision::Gap {
                    from,
                    to,
                    delivered,
                } => {
                    let epoch = next_epoch();
                    self.skip_gap(&shard.id, from..to, epoch, delivered).await?
                }
                decision => decision,
            });
        }
        Ok(decisions)
    }

    /// Reports a gap of the source. Moves the stored watermark over it, unless the route stops at
    /// gaps.
    async fn skip_gap(
        &mut self,
        shard: &ShardId,
        gap: Range<Watermark>,
        epoch: AppendEpoch,
        delivered: Progress,
    ) -> Result<StartDecision, CallError> {
        let (from, to) = (gap.start, gap.end);
        let missing = to.0 - from.0;
        let reason = format!(
            "the source no longer retains {missing} offsets of {shard} ({from} to {to}) that were never stored"
        );
        if self.options.stops_at_gap {
            return Ok(StartDecision::Stop(format!(
                "{reason}: set on_source_gap = \"continue\" for the route to continue without them"
            )));
        }
        let append = Append {
            shard: shard.clone(),
            epoch,
            from,
            to,
            runs: Vec::new(),
            changes: Vec::new(),
        };
        self.store.append(&[append]).await?;
        tracing::error!(%shard, missing, "{reason}: they are lost; raise the source's retention above the longest delay");
        self.metric.source_gap_messages.increment(missing);
        Ok(StartDecision::Read {
            from: to,
            delivered,
        })
    }
}
