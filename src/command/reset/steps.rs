//! The steps of a reset: the new position is written to the marker, to the commit, and then the
//! stored shards are erased.
//!
//! A service that starts after an interrupted reset finds the old shard and continues with it, or
//! stops as before. So the command may be repeated after an interruption at any point.

use crate::broker::{GroupAdmin, OffsetCommit, PartitionInfo};
use crate::model::{
    CommitMetadata, Cursor, DeliveredMarker, Offset, OutcomeCounts, Progress, RulesHistory,
    ShardId, SourceIdentity, StartPoint, Watermark,
};
use crate::store::Store;
use anyhow::{Context, Result, bail, ensure};

/// The groups in which a route commits.
pub(crate) struct Groups {
    pub(crate) source: String,
    /// `None`: the route delivers at least once.
    pub(crate) markers: Option<String>,
}

/// Fails if a worker of the deployment is alive.
pub(crate) async fn ensure_stopped(store: &dyn Store) -> Result<()> {
    let sessions = store.sessions().await?;
    let live = sessions.iter().filter(|it| !it.expires_in.is_zero());
    let expires_in = live.clone().map(|session| session.expires_in).max();
    if let Some(expires_in) = expires_in {
        bail!(
            "nothing was changed: the deployment still has live workers ({}): stop them. A killed worker counts as \
             live for {:.1} more seconds",
            live.count(),
            expires_in.as_secs_f64()
        );
    }
    Ok(())
}

/// The offsets from which the partitions will be read.
pub(crate) async fn start_offsets(
    source: &mut dyn GroupAdmin,
    shards: &[ShardId],
    from: StartPoint,
) -> Result<Vec<(PartitionInfo, Offset)>> {
    let partitions: Vec<_> = shards.iter().map(|shard| shard.partition.clone()).collect();
    let infos = source.describe(&partitions).await?;
    let offsets = match from {
        StartPoint::First => infos.iter().map(|info| info.first_offset).collect(),
        StartPoint::End => infos.iter().map(|info| info.end_offset).collect(),
        StartPoint::Offset(offset) => vec![offset; infos.len()],
        StartPoint::Time(time) => source.offsets_at(&partitions, time).await?,
    };
    for ((shard, info), offset) in shards.iter().zip(&infos).zip(&offsets) {
        ensure!(
            (info.first_offset..=info.end_offset).contains(offset),
            "nothing was changed: {} has the offsets {} to {}, and not {offset}",
            shard.partition,
            info.first_offset,
            info.end_offset
        );
    }
    Ok(infos.into_iter().zip(offsets).collect())
}

/// Moves the position of shards, and erases their stored state. `starts` is in the order of
/// `shards`. Shards of partitions that no longer exist are only erased: `gone`.
pub(crate) async fn apply(
    store: &dyn Store,
    source: &mut dyn GroupAdmin,
    groups: &Groups,
    (shards, starts): (&[ShardId], &[(PartitionInfo, Offset)]),
    gone: &[ShardId],
) -> Result<()> {
    let mut commits = Vec::new();
    let mut markers = Vec::new();
    for (shard, (info, offset)) in shards.iter().zip(starts) {
        let commit = |metadata| OffsetCommit {
            partition: shard.partition.clone(),
            offset: *offset,
            metadata,
        };
        commits.push(commit(committed(info, *offset).to_string()));
        markers.push(commit(marker(info, *offset).to_string()));
    }
    // The marker first: an old marker would take new records for delivered.
    if let Some(group) = groups
        .markers
        .as_ref()
        .filter(|_| !fault!(ResetKeepsMarker))
    {
        let written = source.commit_unused(group, &markers).await;
        written.context("cannot write the markers: nothing was erased")?;
    }
    if !fault!(ResetKeepsCommit) {
        let written = source.commit_unused(&groups.source, &commits).await;
        written.context("cannot commit the new position: nothing was erased")?;
    }
    store.erase(shards).await?;
    store.erase(gone).await?;
    Ok(())
}

/// Covers nothing from the offset on.
fn position(offset: Offset) -> Progress {
    Progress::new(Cursor::START, Watermark(offset.0))
}

fn committed(info: &PartitionInfo, offset: Offset) -> CommitMetadata {
    CommitMetadata {
        lowest_pending: offset,
        delivered: position(offset),
        stored: Watermark(offset.0),
        identity: info.identity.clone(),
        end: None,
        rules: RulesHistory::default(),
        pause: None,
    }
}

fn marker(info: &PartitionInfo, offset: Offset) -> DeliveredMarker {
    let unknown = || SourceIdentity::new(None, None);
    DeliveredMarker {
        delivered: position(offset),
        identity: info.identity.clone().unwrap_or_else(unknown),
        ledger_pair: position(offset),
        uncounted: OutcomeCounts::default(),
        uncounted_occurrences: 0,
    }
}

/// For the simulation.
#[cfg(test)]
pub(crate) mod test_support {
    use super::{Groups, ShardId, StartPoint, Store, apply, ensure_stopped, start_offsets};
    use crate::broker::GroupAdmin;
    use anyhow::Result;

    /// Resets shards of partitions that exist.
    pub(crate) async fn reset(
        store: &dyn Store,
        source: &mut dyn GroupAdmin,
        (group, markers): (&str, Option<&str>),
        shards: &[ShardId],
        from: StartPoint,
    ) -> Result<()> {
        ensure_stopped(store).await?;
        let groups = Groups {
            source: group.to_owned(),
            markers: markers.map(str::to_owned),
        };
        let starts = start_offsets(source, shards, from).await?;
        apply(store, source, &groups, (shards, &starts), &[]).await
    }
}
