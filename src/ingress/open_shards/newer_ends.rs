//! Reads the end of a partition again if a position of the commit or of the store is behind it.
//!
//! The broker answers the end before the positions are read. Meanwhile another worker may append new
//! records and commit. Only an end that is read after a position can show that a partition was
//! truncated.

use super::{CallError, Found, Ingress, KnownPartition};
use crate::broker::PartitionInfo;
use crate::model::{Offset, Partition};

impl Ingress {
    pub(super) async fn ask_ends_behind_commits(
        &mut self,
        known: &mut [KnownPartition],
    ) -> Result<(), CallError> {
        let committed = known.iter_mut().filter_map(|(shard, info, committed)| {
            let committed = committed.as_ref()?;
            let greatest = committed.lowest_pending.max(committed.stored.offset());
            Some((&shard.partition, greatest, info))
        });
        self.ask_newer_ends(committed).await
    }

    pub(super) async fn ask_ends_behind_watermarks(
        &mut self,
        found: &mut [Found],
    ) -> Result<(), CallError> {
        let stored = found.iter_mut().filter_map(|found| {
            let watermark = found.opened.state()?.watermark;
            Some((&found.shard.partition, watermark.offset(), &mut found.info))
        });
        self.ask_newer_ends(stored).await
    }

    /// Describes those partitions again whose end is before the position.
    async fn ask_newer_ends<'p>(
        &mut self,
        positions: impl Iterator<Item = (&'p Partition, Offset, &'p mut PartitionInfo)>,
    ) -> Result<(), CallError> {
        let (ids, infos): (Vec<_>, Vec<_>) = positions
            .filter(|(_, known, info)| info.end_offset < *known && !fault!(JudgeByEarlierEnd))
            .map(|(id, _, info)| (id.clone(), info))
            .unzip();
        if ids.is_empty() {
            return Ok(());
        }
        let described = self.ports.source.describe(&ids);
        let described = self.answer_of(described).await??;
        for (info, described) in infos.into_iter().zip(described) {
            *info = described?;
        }
        Ok(())
    }
}
