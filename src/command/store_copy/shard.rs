//! Copies one shard to another store, part by part.
//!
//! A copy that was interrupted begins anew. The source is only read, so it may have moved on meanwhile.

use crate::limit::{COPY_BYTES_PER_CALL, COPY_RUNS_PER_FETCH, COPY_RUNS_PER_LIST};
use crate::model::{ShardId, Timestamp};
use crate::run::RunName;
use crate::store::{
    CopyState, CopyStore, Fetch, List, Listed, RunEntry, ShardPart, StoredRun, StoredShard,
};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;

/// The copied part of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Copied {
    pub(crate) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// A copy of one shard. An error of `on_step` ends it.
pub(crate) struct ShardCopy<'a> {
    pub(crate) source: &'a dyn CopyStore,
    pub(crate) target: &'a dyn CopyStore,
    pub(crate) shard: &'a ShardId,
    pub(crate) on_step: &'a mut dyn FnMut(Copied) -> Result<()>,
    pub(crate) copied: Copied,
}

/// True if the two stores hold the same shard. Numbers of bytes and the lowest pending offset may
/// differ: a store may remember them less exactly.
pub(crate) fn is_same(a: &StoredShard, b: &StoredShard) -> bool {
    let positions = |it: &StoredShard| (it.watermark, it.claimed, it.delivered, it.hold);
    let rest = |it: &StoredShard| {
        (
            it.possibly_delivered,
            it.ledger,
            it.rate_wait_ms,
            it.quarantined,
            it.pending(),
        )
    };
    a.identity == b.identity && positions(a) == positions(b) && rest(a) == rest(b)
}

/// True if `newer` knows everything that `older` knows: it is a later state of the same shard.
pub(crate) fn has_followed(newer: &StoredShard, older: &StoredShard) -> bool {
    newer.identity == older.identity
        && newer.watermark >= older.watermark
        && newer.delivered.includes(older.delivered)
        && newer.claimed.includes(older.claimed)
}

impl ShardCopy<'_> {
    /// Copies the shard. The target must hold nothing under its name, except a copy that was
    /// interrupted.
    pub(crate) async fn run(mut self) -> Result<Copied> {
        let (source, target, shard) = (self.source, self.target, self.shard);
        let gone = || format!("the store no longer has {shard}");
        let meta = source.shard_meta(shard).await?.with_context(gone)?;
        if target.copy_state(shard).await? == CopyState::Begun {
            target.erase(std::slice::from_ref(shard)).await?;
        }
        ensure!(
            target.begin_copy(shard).await?,
            "the new store has got other data of {shard} meanwhile: stop the service"
        );
        (self.on_step)(self.copied)?;
        self.copy_runs().await?;
        self.copy_quarantine().await?;
        self.copy_entries().await?;
        let (left, right) = (
            source.count_parts(shard).await?,
            target.count_parts(shard).await?,
        );
        ensure!(
            left == right,
            "the parts of {shard} differ after its copy, so it was not ended: {left:?} became {right:?}"
        );
        (self.on_step)(self.copied)?;
        ensure!(
            source.shard_meta(shard).await?.as_ref() == Some(&meta),
            "{shard} changed while it was copied: stop the service, and run the command again"
        );
        self.expect(target.end_copy(shard, &meta).await?)?;
        let CopyState::Stored(state) = target.copy_state(shard).await? else {
            bail!("the new store cannot read {shard} after its copy");
        };
        let stored = state.pending() + state.quarantined;
        ensure!(
            stored == self.copied.messages,
            "{shard} has {} messages, and its copy counts {stored}",
            self.copied.messages
        );
        (self.on_step)(self.copied)?;
        Ok(self.copied)
    }

    /// Copies the runs of all slices, in the order of their least due times.
    async fn copy_runs(&mut self) -> Result<()> {
        let (mut from, mut limit) = (Timestamp::AT_ONCE, COPY_RUNS_PER_LIST);
        // The runs at `from` that were copied: the next list has them again.
        let mut known: BTreeSet<RunName> = BTreeSet::new();
        loop {
            let request = List {
                shard: self.shard.clone(),
                from,
                until: Timestamp::MAX,
                limit,
            };
            let listed = self.source.list_runs(&[request]).await?.pop();
            let Some(Listed::Runs { runs, has_more, .. }) = listed else {
                bail!("{} cannot be listed", self.shard);
            };
            let next = runs.last().map_or(from, |run| run.least_due);
            let is_new = |run: &RunEntry| run.least_due > from || !known.contains(&run.name);
            let new: Vec<RunEntry> = runs.into_iter().filter(is_new).collect();
            for runs in new.chunks(COPY_RUNS_PER_FETCH) {
                self.copy_listed(runs).await?;
            }
            if !has_more {
                return Ok(());
            }
            // More runs than the limit may have one least due time.
            if new.is_empty() {
                limit *= 2;
            }
            if next > from {
                known.clear();
                from = next;
            }
            let at_next = new.into_iter().filter(|run| run.least_due == next);
            known.extend(at_next.map(|run| run.name));
        }
    }

    async fn copy_listed(&mut self, runs: &[RunEntry]) -> Result<()> {
        let names = runs.iter().map(|run| (run.slice, run.name.clone()));
        let fetch = Fetch {
            shard: self.shard.clone(),
            runs: names.collect(),
        };
        let fetched = self.source.fetch_runs(&[fetch]).await?.pop();
        let mut part = ShardPart::default();
        let mut bytes_of_part = 0;
        for (run, bytes) in runs.iter().zip(fetched.unwrap_or_default()) {
            let bytes = bytes.with_context(|| {
                format!(
                    "the run {} of {} is gone: stop the service",
                    run.name, self.shard
                )
            })?;
            bytes_of_part += bytes.len();
            part.runs.push(StoredRun {
                slice: Some(run.slice),
                name: run.name.clone(),
                least_due: run.least_due,
                bytes,
            });
            if bytes_of_part >= COPY_BYTES_PER_CALL {
                self.add(std::mem::take(&mut part)).await?;
                bytes_of_part = 0;
            }
        }
        self.add(part).await
    }

    async fn copy_quarantine(&mut self) -> Result<()> {
        for name in self.source.quarantined_runs(self.shard).await? {
            let bytes = self.source.quarantined_bytes(self.shard, &name).await?;
            let run = StoredRun {
                slice: None,
                name,
                least_due: Timestamp::AT_ONCE,
                bytes: bytes.unwrap_or_default(),
            };
            let runs = vec![run];
            let part = ShardPart {
                runs,
                ..ShardPart::default()
            };
            self.add(part).await?;
        }
        Ok(())
    }

    /// Copies ids, changed places and effects.
    async fn copy_entries(&mut self) -> Result<()> {
        let mut from = None;
        loop {
            let (entries, next) = self.source.entries(self.shard, from.as_ref()).await?;
            let part = ShardPart {
                entries,
                ..ShardPart::default()
            };
            self.add(part).await?;
            if next.is_none() {
                return Ok(());
            }
            from = next;
        }
    }

    async fn add(&mut self, part: ShardPart) -> Result<()> {
        if part == ShardPart::default() {
            return Ok(());
        }
        for run in &part.runs {
            self.copied.add(Copied {
                messages: u64::from(run.name.count()),
                bytes: run.bytes.len() as u64,
            });
        }
        let added = self.target.add_to_copy(self.shard, part).await?;
        self.expect(added)?;
        (self.on_step)(self.copied)
    }

    fn expect(&self, is_there: bool) -> Result<()> {
        ensure!(
            is_there,
            "the new store has lost the copy of {}: run the command again",
            self.shard
        );
        Ok(())
    }
}
