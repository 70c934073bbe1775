//! Copies one shard to another store, part by part.
//!
//! A copy that was interrupted begins anew. The source is only read, so it may have moved on meanwhile.
//! The marks of all shards come before the data of the first one: a service that starts after an
//! interruption creates none of them.

use crate::limit::{COPY_BYTES_PER_CALL, COPY_RUNS_PER_FETCH, COPY_RUNS_PER_LIST};
use crate::model::{ShardId, Timestamp};
use crate::run::RunName;
use crate::store::{
    CopyNumber, CopyState, CopyStore, Fetch, List, Listed, PartCounts, RunEntry, ShardPart,
    StoredRun, StoredShard,
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

/// A copy of one shard that has begun. An error of `on_step` ends it.
pub(crate) struct ShardCopy<'a> {
    pub(crate) source: &'a dyn CopyStore,
    pub(crate) target: &'a dyn CopyStore,
    pub(crate) shard: &'a ShardId,
    pub(crate) number: CopyNumber,
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
            it.pause.clone(),
            it.ledger,
            it.quarantined,
            it.pending(),
        )
    };
    a.identity == b.identity && positions(a) == positions(b) && rest(a) == rest(b)
}

/// True if the positions of `newer` include those of `older`: it is a later state of the same shard.
pub(crate) fn includes_all_of(newer: &StoredShard, older: &StoredShard) -> bool {
    newer.identity == older.identity
        && newer.watermark >= older.watermark
        && newer.delivered.includes(older.delivered)
        && newer.claimed.includes(older.claimed)
}

/// Marks the shard in the new store, which has only `expected` under its name: the mark of a copy that
/// was interrupted, or an older state. Both are erased.
pub(crate) async fn begin_shard_copy(
    target: &dyn CopyStore,
    shard: &ShardId,
    number: CopyNumber,
    expected: &CopyState,
) -> Result<()> {
    let changed = || {
        format!(
            "the new store has got other data of {shard} meanwhile: stop the service and any other copy, and run the \
             command again"
        )
    };
    let found = target.copy_state(shard).await?;
    ensure!(found == *expected, changed());
    if found != CopyState::Absent {
        target.erase(std::slice::from_ref(shard)).await?;
    }
    ensure!(target.begin_copy(shard, number).await?, changed());
    Ok(())
}

impl ShardCopy<'_> {
    /// Fills the copy, and ends it.
    pub(crate) async fn run(mut self) -> Result<Copied> {
        let (source, target, shard) = (self.source, self.target, self.shard);
        let gone = || {
            format!(
                "the old store no longer has {shard}: stop the service, and run the command again"
            )
        };
        let meta = source.shard_meta(shard).await?.with_context(gone)?;
        (self.on_step)(self.copied)?;
        self.copy_runs().await?;
        self.copy_quarantine().await?;
        self.copy_entries().await?;
        let (left, right) = (
            source.count_parts(shard).await?,
            target.count_parts(shard).await?,
        );
        if let Some(difference) = difference(left, right, self.copied) {
            bail!(
                "the copy of {shard} is not equal, so it was not ended: {difference}. {}",
                repeat_or_give_up(shard)
            );
        }
        (self.on_step)(self.copied)?;
        ensure!(
            source.shard_meta(shard).await?.as_ref() == Some(&meta),
            "{shard} changed while it was copied: stop the service, and run the command again"
        );
        self.expect(target.end_copy(shard, self.number, &meta).await?)?;
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
                    "the run {} of {} is gone. {}",
                    run.name,
                    self.shard,
                    repeat_or_give_up(self.shard)
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
        let added = self
            .target
            .add_to_copy(self.shard, self.number, part)
            .await?;
        self.expect(added)?;
        (self.on_step)(self.copied)
    }

    fn expect(&self, is_there: bool) -> Result<()> {
        ensure!(
            is_there,
            "the new store no longer has this copy of {}: stop any other copy, and run the command again",
            self.shard
        );
        Ok(())
    }
}

/// The way out of an error that may come again: the other shards wait for this one.
fn repeat_or_give_up(shard: &ShardId) -> String {
    format!(
        "If the service was not stopped, stop it, and run the command again. If it was stopped, a repeat fails too, because \
         the old store is damaged there. Then start the service with the old store, wait until the messages of {shard} are \
         delivered, and copy again. Or give it up: `postdate reset` with its --partition and both configuration files, after \
         which it is read again from the position that you choose. --route copies the other routes before that"
    )
}

/// Names the first kind of parts whose numbers differ, with both numbers.
fn difference(old: PartCounts, new: PartCounts, copied: Copied) -> Option<String> {
    let kinds = [
        ("runs", old.runs, new.runs),
        (
            "quarantined runs",
            old.quarantined_runs,
            new.quarantined_runs,
        ),
        ("ids", old.ids, new.ids),
        ("changed places", old.changed, new.changed),
        ("requests with answers", old.effects, new.effects),
        ("messages", old.messages, new.messages),
        ("messages of runs", copied.messages, new.messages),
    ];
    let (kind, old, new) = kinds.into_iter().find(|(_, old, new)| old != new)?;
    Some(format!(
        "{kind}: {old} in the old store, {new} in the new one"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;

    #[test]
    fn an_error_that_comes_again_names_a_way_without_the_shard() {
        let text = repeat_or_give_up(&ShardId::new("r", Partition::new("t", 3)));
        for words in [
            "run the command again",
            "`postdate reset`",
            "--route",
            "r/t/3",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn the_parts_that_differ_are_named_with_both_numbers() {
        let counts = PartCounts {
            runs: 3,
            messages: 9,
            ..PartCounts::default()
        };
        let copied = |messages| Copied { messages, bytes: 5 };
        assert_eq!(difference(counts, counts, copied(9)), None);
        let fewer = PartCounts { ids: 2, ..counts };
        assert_eq!(
            difference(fewer, counts, copied(9)).as_deref(),
            Some("ids: 2 in the old store, 0 in the new one")
        );
        assert_eq!(
            difference(counts, counts, copied(8)).as_deref(),
            Some("messages of runs: 8 in the old store, 9 in the new one")
        );
    }
}
