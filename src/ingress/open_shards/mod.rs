//! Opens the shards of assigned partitions: asks the broker and the store about them, creates the
//! shards that the store does not have, and moves over gaps of the source.

mod newer_ends;
mod shard_creation;

use super::assumed_rules::AssumedRules;
use super::partition::AssignedPartition;
use super::read_loop::Ingress;
use super::read_rules::ReadRules;
use super::shard_init::{
    StartDecision, decide_start, new_shard, rules_history, stored_before, usable_commit,
};
use super::{CallError, Error};
use crate::broker::{self, OffsetCommit, PartitionInfo};
use crate::encryption::waits_for_key;
use crate::limit::{SHARD_OPEN_RETRY_DELAY, STOPPED_SHARD_RETRY_DELAY};
use crate::model::{
    CommitMetadata, Offset, Partition, Progress, RulesHistory, ShardId, SourceIdentity, StartPoint,
    Watermark,
};
use crate::store::rules::NO_HOLD;
use crate::store::{Append, AppendEpoch, Appended, NewShard, Opened, StoredShard};
use shard_creation::{find_or_create, report_start};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use tokio::time::Instant;

/// A partition as the broker and the store know it.
struct Found {
    shard: ShardId,
    info: PartitionInfo,
    committed: Option<CommitMetadata>,
    /// The group coordinator has told the last commit.
    is_commit_known: bool,
    opened: Opened,
}

impl Found {
    fn is_created(&self) -> bool {
        matches!(self.opened, Opened::Created(_))
    }
}

/// A partition as the broker knows it.
type KnownPartition = (ShardId, PartitionInfo, Option<CommitMetadata>);

/// The start of a reading.
struct Start {
    shard: ShardId,
    epoch: u64,
    from: Watermark,
    /// The pair that a rebuild skips. `None`: the same as before.
    delivered: Option<Progress>,
    /// The greatest watermark that the store is known to have had.
    stored: Watermark,
    rules: RulesHistory,
    assumed: Option<AssumedRules>,
    /// The commit to make first, because the last one has other rules or is not known.
    commit: Option<OffsetCommit>,
}

impl Ingress {
    /// Opens shards of one part of the store, and starts or stops the reading of their partitions.
    pub(super) async fn open_part(&mut self, due: &[Partition]) -> Result<(), Error> {
        let now = Instant::now();
        match self.open_shards(due).await {
            Ok(()) => {
                self.report_shards();
                Ok(())
            }
            Err(error) if error.is_transient() => {
                let reason = format!("cannot open shards: {error}");
                self.ports.health.shards.set_not_ready(reason);
                // All partitions wait for a slow answer, so it is not asked for again soon.
                let retry_at = Instant::now() + SHARD_OPEN_RETRY_DELAY + 2 * now.elapsed();
                for id in due {
                    if let Some(mut partition) = self.partitions.get_mut(id)
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
        } else if self.partitions.all_are_reading() {
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

    /// Shards that the store knows do not wait for the commits of the others.
    async fn open_shards(&mut self, due: &[Partition]) -> Result<(), CallError> {
        let route = &self.options.route;
        let shards = due.iter().cloned();
        let shards: Vec<_> = shards.map(|id| ShardId::new(route.clone(), id)).collect();
        let found = self.ports.store.positions(&shards).await?;
        let (mut known, mut new) = (Vec::new(), Vec::new());
        for (id, found) in due.iter().cloned().zip(found) {
            match found {
                Some(_) => known.push(id),
                None => new.push(id),
            }
        }
        for (due, are_known) in [(known, true), (new, false)] {
            let mut starts = Vec::new();
            for found in self.find_shards(&due, are_known).await? {
                starts.extend(self.prepare_start(found).await?);
            }
            self.write_rules(&mut starts).await?;
            starts.into_iter().for_each(|start| self.start(start));
        }
        Ok(())
    }

    async fn find_shards(
        &mut self,
        due: &[Partition],
        are_known: bool,
    ) -> Result<Vec<Found>, CallError> {
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let asked_at = Instant::now();
        let described = self.ports.source.describe(due);
        let described = self.answer_of(described).await??;
        // A slow answer is not asked for again soon, because all partitions wait for it.
        let retry_at = Instant::now() + SHARD_OPEN_RETRY_DELAY + 2 * asked_at.elapsed();
        let (due, infos) = self.postpone_undescribed(due, described, retry_at)?;
        let due = due.as_slice();
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let commits = self.read_commits(due, are_known).await?;
        let is_commit_known = commits.is_some();
        let commits = commits.unwrap_or_else(|| vec![None; due.len()]);
        let described = due.iter().cloned().zip(infos).zip(commits);
        let mut known = Vec::with_capacity(due.len());
        for ((id, info), text) in described {
            let shard = ShardId::new(self.options.route.clone(), id);
            match CommitMetadata::parse(text.as_deref().unwrap_or_default()) {
                Ok(committed) => known.push((shard, info, committed)),
                Err(error) => self.stop(&shard.partition, format!("shard {shard} waits: {error}")),
            }
        }
        self.ask_ends_behind_commits(&mut known).await?;
        let starts = self.start_offsets(&known).await?;
        let store_time = self.ports.session_clock.store_time(Instant::now());
        let now = self.ports.clock.now().max(store_time);
        let new_shards = known.iter().map(|(shard, info, committed)| {
            let start = starts.get(&shard.partition).copied();
            let start = start.unwrap_or(info.first_offset);
            let new = new_shard(shard.clone(), info, committed.as_ref(), start, now);
            let stored = self.greatest_stored(&new, info, committed.as_ref());
            (new, stored)
        });
        let store = &*self.ports.store;
        let opened = find_or_create(store, new_shards.collect(), is_commit_known).await?;
        let answers = known.into_iter().zip(opened);
        let found = answers.filter_map(|((shard, info, committed), opened)| {
            Some(Found {
                shard,
                info,
                committed,
                is_commit_known,
                opened: opened?,
            })
        });
        let mut found: Vec<Found> = found.collect();
        self.record_opened(&found);
        self.ask_ends_behind_watermarks(&mut found).await?;
        Ok(found)
    }

    /// The greatest watermark of the shard that the commit or this process knows.
    fn greatest_stored(
        &self,
        new: &NewShard,
        info: &PartitionInfo,
        committed: Option<&CommitMetadata>,
    ) -> Watermark {
        let assigned = self.partitions.get(&new.shard.partition);
        let own = assigned.filter(|assigned| assigned.identity == new.identity);
        let own = own.map_or(NO_HOLD, |own| own.greatest_stored);
        let committed = usable_commit(committed, info);
        let committed = committed.map_or(NO_HOLD, |committed| committed.stored);
        own.max(committed).min(Watermark(info.end_offset.0))
    }

    /// Runs before any step that can fail: a repeated call answers `Existing` instead of `Created`.
    fn record_opened(&mut self, all: &[Found]) {
        for found in all {
            let Found { shard, info, .. } = found;
            let Some(mut partition) = self.partitions.get_mut(&shard.partition) else {
                continue;
            };
            if let Opened::Created(state) | Opened::Existing(state) = &found.opened {
                if partition.identity != state.identity {
                    partition.identity = state.identity.clone();
                    // Offsets of another incarnation mean nothing in this one.
                    partition.greatest_stored = NO_HOLD;
                    partition.greatest_delivered = Progress::START;
                    partition.pause = None;
                }
                let known = partition.greatest_delivered;
                let committed = usable_commit(found.committed.as_ref(), info);
                partition.greatest_delivered =
                    committed.map_or(known, |committed| known.greatest(committed.delivered));
                partition.learn_pause(committed.and_then(|it| it.pause.clone()));
                partition.learn_pause(state.pause.clone());
                partition.report_keys(state.other_keys(&self.options.keys));
                partition.opened(state);
            }
            if let Opened::Created(state) = &found.opened {
                tracing::info!(%shard, watermark = %state.watermark, "shard created");
                if usable_commit(found.committed.as_ref(), info).is_none() {
                    report_start(&self.ports.metric, shard, info, state.watermark);
                }
            }
        }
    }

    /// Where the reading of partitions without a usable commit starts, if not at the first record.
    async fn start_offsets(
        &mut self,
        known: &[KnownPartition],
    ) -> Result<HashMap<Partition, Offset>, CallError> {
        let StartPoint::Time(time) = self.options.start else {
            return Ok(HashMap::new());
        };
        let new = known.iter();
        let new =
            new.filter(|(_, info, committed)| usable_commit(committed.as_ref(), info).is_none());
        let new: Vec<Partition> = new.map(|(shard, ..)| shard.partition.clone()).collect();
        if new.is_empty() {
            return Ok(HashMap::new());
        }
        let offsets = self.ports.source.offsets_at(&new, time);
        let offsets = self.answer_of(offsets).await??;
        Ok(new.into_iter().zip(offsets).collect())
    }

    /// `None`: the partition must not be read.
    async fn prepare_start(&mut self, found: Found) -> Result<Option<Start>, CallError> {
        let shard = found.shard.clone();
        let decision = decide_start(&shard, &found.info, &found.opened);
        let (from, delivered) = match decision {
            StartDecision::Read { from, delivered } => (from, delivered),
            StartDecision::Gap { missing, delivered } => {
                if !self.skip_gap(&shard, &missing).await? {
                    return Ok(None);
                }
                (missing.end, delivered)
            }
            StartDecision::Stop(reason) => {
                self.stop(&shard.partition, reason);
                return Ok(None);
            }
        };
        let Some(state) = found.opened.state() else {
            return Ok(None);
        };
        // A cancel would not find a message whose id another key has hashed.
        let missing = state.missing_keys(&self.options.keys).next();
        if let Some(reason) = missing.map(|key| waits_for_key(&shard, key)) {
            if !self.stop_reasons().contains(&*reason) {
                tracing::error!(%shard, "reading and delivery of the shard stopped: {reason}");
            }
            self.stop_reading(&shard.partition, reason);
            return Ok(None);
        }
        let assigned = self.partitions.get(&shard.partition);
        let is_first_reading = assigned.is_some_and(AssignedPartition::is_first_reading);
        // Another process has created a lost shard, whose delivered messages are read again.
        let is_rebuilt = delivered.watermark > from;
        let (rules, assumed) = self.start_rules(&found, state);
        let committed = found.committed.as_ref();
        let pause = assigned.and_then(|it| it.needed_pause(state.lowest_pending));
        let has_changed =
            committed.is_none_or(|it| it.rules != rules || pause.is_some() && it.pause != pause);
        let stored = stored_before(&found.info, committed, state);
        let known = assigned.map_or(Progress::START, |assigned| assigned.greatest_delivered);
        let metadata = CommitMetadata {
            lowest_pending: state.lowest_pending,
            delivered: known.greatest(delivered),
            stored,
            identity: Some(state.identity.clone()),
            end: None,
            rules,
            pause,
        };
        let commit = has_changed.then(|| OffsetCommit {
            partition: shard.partition.clone(),
            offset: from.offset(),
            metadata: metadata.to_string(),
        });
        self.last_epoch += 1;
        Ok(Some(Start {
            shard,
            epoch: self.last_epoch,
            from,
            delivered: (found.is_created() || is_first_reading || is_rebuilt).then_some(delivered),
            stored,
            rules: metadata.rules,
            assumed,
            commit,
        }))
    }

    /// The rules of all offsets, and whether the reading only assumes them. Rules that the last
    /// reading assumed belong to the history, although they were never committed.
    fn start_rules(
        &self,
        found: &Found,
        state: &StoredShard,
    ) -> (RulesHistory, Option<AssumedRules>) {
        let (own, info) = (&self.position_rules, &found.info);
        let partition = self.partitions.get(&found.shard.partition);
        let earlier = partition.and_then(|partition| partition.assumed.as_ref());
        if !found.is_commit_known {
            let assumed = AssumedRules::new(earlier, info, state);
            return (assumed.history(own, None), Some(assumed));
        }
        let committed = found.committed.clone().map(|committed| CommitMetadata {
            rules: match earlier {
                Some(assumed) => assumed.history(own, Some(&committed)),
                None => committed.rules.clone(),
            },
            ..committed
        });
        let is_created = found.is_created();
        let rules = rules_history(own, info, committed.as_ref(), state, is_created);
        (rules, None)
    }

    /// Commits the rules of the partitions whose rules have changed, before a record is read by
    /// them. The empty appends before that make the store refuse records that another process has
    /// read by other rules. A partition that another process has appended to meanwhile is opened
    /// again.
    async fn write_rules(&mut self, starts: &mut Vec<Start>) -> Result<(), CallError> {
        let changed = starts.iter().filter(|start| start.commit.is_some());
        let fences: Vec<_> = changed
            .map(|start| self.empty_append(&start.shard, start.epoch, start.from..start.from))
            .collect();
        if fences.is_empty() {
            return Ok(());
        }
        let mut outcomes = self.ports.store.append(&fences).await?.into_iter();
        starts.retain(|start| {
            start.commit.is_none() || matches!(outcomes.next(), Some(Appended::Done { .. }))
        });
        // Rules that are only assumed are committed later.
        let assumed = starts.iter_mut().filter(|start| start.assumed.is_some());
        assumed.for_each(|start| start.commit = None);
        let commits = starts.iter().filter_map(|start| start.commit.clone());
        let commits: Vec<_> = commits.collect();
        if !commits.is_empty() {
            // The commit of a check may have the rules of before.
            self.finish_check().await?;
            let commit = self.ports.source.commit(commits);
            self.answer_of(commit).await??;
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
                    if let Some(mut partition) = self.partitions.get_mut(id) {
                        partition.stop_reading(retry_at, Some(reason));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    /// An append that only moves the watermark, or starts an epoch.
    fn empty_append(&self, shard: &ShardId, epoch: u64, offsets: Range<Watermark>) -> Append {
        let assigned = self.partitions.get(&shard.partition);
        let unknown = || SourceIdentity::new(None, None);
        Append {
            identity: assigned.map_or_else(unknown, |assigned| assigned.identity.clone()),
            shard: shard.clone(),
            epoch: AppendEpoch {
                process: self.runs.writer(),
                number: epoch,
            },
            from: offsets.start,
            to: offsets.end,
            runs: Vec::new(),
            changes: Vec::new(),
            pause: assigned.and_then(|assigned| assigned.pause_to_append(offsets.end)),
        }
    }

    /// Starts a new reading of the partition. Records of the old one are ignored from now on.
    fn start(&mut self, start: Start) {
        let Start { shard, from, .. } = start;
        let Some(mut partition) = self.partitions.get_mut(&shard.partition) else {
            return;
        };
        tracing::info!(%shard, %from, "reading started");
        if let Some(last) = start.rules.epochs().last()
            && last.from > from.0
        {
            tracing::info!(%shard, from = last.from,
                "the route's rules have changed: records before offset `from` keep the rules by which they were first read");
        }
        // After a rollback the pair may be newer, as a timer knows it. The ledger is only certain
        // again if the timer finds the messages in the store.
        partition.delivered = start.delivered.unwrap_or(partition.delivered);
        partition.greatest_stored = partition.greatest_stored.max(start.stored);
        partition.last_commit = start.commit.or(partition.last_commit.take());
        partition.rules = ReadRules::new(start.rules, &self.options.rules);
        partition.assumed = start.assumed;
        partition.start_reading(from, start.epoch);
        let source = &mut self.ports.source;
        source.start(&shard.partition, from.offset(), start.epoch);
    }

    pub(super) fn stop(&mut self, id: &Partition, reason: String) {
        // All partitions of a recreated topic have the same reason: log it once.
        if !self.stop_reasons().contains(&*reason) {
            let shard = ShardId::new(self.options.route.clone(), id.clone());
            tracing::error!(%shard, "reading of the shard stopped, delivery continues: {reason}");
        }
        self.stop_reading(id, reason);
    }

    fn stop_reading(&mut self, id: &Partition, reason: String) {
        let Some(mut partition) = self.partitions.get_mut(id) else {
            return;
        };
        let retry_at = Instant::now() + STOPPED_SHARD_RETRY_DELAY;
        partition.stop_reading(retry_at, Some(reason));
        self.ports.source.stop(id);
    }

    /// Reports a gap of the source, and moves the stored watermark over it. Returns false if the
    /// route stops at gaps.
    async fn skip_gap(
        &mut self,
        shard: &ShardId,
        gap: &Range<Watermark>,
    ) -> Result<bool, CallError> {
        let (from, to) = (gap.start, gap.end);
        let missing = to.0 - from.0;
        let reason = format!(
            "the source no longer retains {missing} offsets of {shard} ({from} to {to}) that were never stored"
        );
        if self.options.stops_at_gap {
            let reason = format!(
                "{reason}: the shard is stopped. To continue without these records, set \
                 route.{}.on_source_gap = \"continue\" and restart",
                shard.route
            );
            self.stop(&shard.partition, reason);
            return Ok(false);
        }
        self.last_epoch += 1;
        let append = self.empty_append(shard, self.last_epoch, gap.clone());
        self.ports.store.append(&[append]).await?;
        tracing::error!(%shard, missing, "{reason}: they are lost; raise the source's retention above the longest delay");
        self.ports.metric.source_gap_messages.increment(missing);
        Ok(true)
    }
}
