//! Reads the dead letters of a route from its dead-letter topic, oldest first, and redrives those that meet a filter.
//!
//! The position of the route says which dead letters were redriven. It moves in one step with the copies, so a redrive that is
//! interrupted and repeated loses none. `sender` tells when it doubles none.

use super::report;
use super::sender::{Redriven, Sender};
use crate::admin::dead_letters::{DeadLettersReport, DeadLettersRequest};
use crate::broker::{Error, GroupAdmin, PartitionInfo, StoredRecords};
use crate::clock::Clock;
use crate::limit::{
    REDRIVE_BATCH_MAX, REDRIVE_IN_FLIGHT_BYTES_MAX, REDRIVE_POSITION_BYTES_MAX,
    REDRIVE_TRANSACTION_TIMEOUT, STORE_RETRY_DELAY_MAX,
};
use crate::model::{
    DeadLetter, Offset, Partition, Record, RedrivePosition, RoutingRules, SourceIdentity,
};
use anyhow::{Context as _, Result, bail, ensure};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The route whose dead letters are read.
pub(crate) struct ScannedRoute<'r> {
    pub(crate) deployment: &'r str,
    pub(crate) name: &'r str,
    pub(crate) rules: &'r RoutingRules,
    pub(crate) source_topics: &'r [String],
    /// The group that holds the positions.
    pub(crate) group: &'r str,
}

/// Bounds of one call. A command has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) records: u64,
    pub(crate) until: Option<Instant>,
}

pub(crate) struct Scan<'s> {
    pub(crate) route: ScannedRoute<'s>,
    pub(crate) request: &'s DeadLettersRequest,
    pub(crate) bounds: Bounds,
    pub(crate) clock: &'s dyn Clock,
    pub(crate) records: &'s mut dyn StoredRecords,
    pub(crate) positions: &'s mut dyn GroupAdmin,
    /// `None`: nothing is sent.
    pub(crate) sender: Option<&'s mut Sender>,
    pub(crate) report: &'s mut DeadLettersReport,
    /// Called after each batch.
    pub(crate) on_progress: &'s mut dyn FnMut(&DeadLettersReport),
}

/// A partition of the dead-letter topic.
struct ScannedPartition {
    partition: Partition,
    info: PartitionInfo,
    position: RedrivePosition,
    /// The sender has opened it.
    is_open: bool,
    batch: Vec<(Offset, Redriven)>,
    batch_bytes: usize,
}

impl ScannedPartition {
    fn read_position(&self, committed: Option<&str>) -> Result<RedrivePosition> {
        read_position(&self.partition, &self.info, committed)
    }
}

fn read_position(
    partition: &Partition,
    info: &PartitionInfo,
    committed: Option<&str>,
) -> Result<RedrivePosition> {
    let unknown = || SourceIdentity::new(None, None);
    let identity = info.identity.clone().unwrap_or_else(unknown);
    let position = RedrivePosition::read(committed, identity, info.first_offset);
    position.with_context(|| {
        format!(
            "a newer version of Postdate has redriven dead letters of {partition}: use that version"
        )
    })
}

impl Scan<'_> {
    /// Scans the partitions of the topic one after the other.
    pub(crate) async fn run(mut self, topic: &str) -> Result<()> {
        let topics = [topic.to_owned()];
        let found = self.positions.partitions(&topics).await?;
        let partitions: Vec<Partition> = found.into_iter().map(|(it, _)| it).collect();
        ensure!(!partitions.is_empty(), "the topic {topic} does not exist");
        let infos = self.positions.describe(&partitions).await?;
        let committed = self.committed_positions(&partitions).await?;
        let starts = match self.request.filter.from {
            Some(from) => self.positions.offsets_at(&partitions, from).await?,
            None => vec![Offset(0); partitions.len()],
        };
        let rows = partitions.into_iter().zip(infos).zip(committed).zip(starts);
        for (((partition, info), committed), start) in rows {
            let after = self.request.after.unwrap_or((0, 0));
            if partition.index < after.0 {
                continue;
            }
            let scanned = ScannedPartition {
                position: read_position(&partition, &info, committed.as_deref())?,
                partition,
                info,
                is_open: false,
                batch: Vec::new(),
                batch_bytes: 0,
            };
            let mut from = start.max(scanned.position.first_open());
            if scanned.partition.index == after.0 {
                from = from.max(Offset(after.1));
            }
            let index = scanned.partition.index;
            if let Some(after) = self.scan(scanned, from).await? {
                self.report.more = true;
                self.report.after = Some(format!("{index}-{after}"));
                break;
            }
        }
        Ok(())
    }

    /// Reads the committed positions. A broker that has just started does not know the coordinator of
    /// the group yet.
    async fn committed_positions(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>> {
        let group = self.route.group;
        let latest = Instant::now() + REDRIVE_TRANSACTION_TIMEOUT;
        let give_up_at = self.bounds.until.unwrap_or(latest);
        loop {
            match self.positions.committed_metadata(group, partitions).await {
                Err(Error::Unavailable(_)) if Instant::now() < give_up_at => {
                    sleep(STORE_RETRY_DELAY_MAX).await;
                }
                read => {
                    return read.with_context(|| {
                        format!("cannot read the positions in the consumer group {group}, which needs the right READ")
                    });
                }
            }
        }
    }

    /// Returns the offset at which the scan ended before the end.
    async fn scan(
        &mut self,
        mut scanned: ScannedPartition,
        from: Offset,
    ) -> Result<Option<Offset>> {
        let (partition, end) = (scanned.partition.clone(), scanned.info.end_offset);
        let mut next = from;
        let mut ended_at = None;
        while next < end && ended_at.is_none() {
            let (batch, behind) = self.records.read(&partition, next, end).await?;
            for record in batch.iter().take_while(|record| record.offset < end) {
                // Offsets without a record were compacted, or are not of this topic.
                scanned.position.insert(next, record.offset);
                next = record.offset;
                if self.is_over() {
                    ended_at = Some(next);
                    break;
                }
                self.visit(&mut scanned, &record).await?;
                next = Offset(record.offset.0 + 1);
            }
            if ended_at.is_none() {
                next = behind.max(next);
            }
            if batch.len() == 0 {
                break;
            }
        }
        self.send(&mut scanned).await?;
        Ok(ended_at)
    }

    fn is_over(&self) -> bool {
        let limit = self.request.redrive.map(|redrive| redrive.limit);
        limit.is_some_and(|limit| report::redrivable(self.report) >= limit)
            || self.report.scanned >= self.bounds.records
            || self
                .bounds
                .until
                .is_some_and(|until| Instant::now() >= until)
    }

    async fn visit(&mut self, scanned: &mut ScannedPartition, record: &Record<'_>) -> Result<()> {
        self.report.scanned += 1;
        let (offset, behind) = (record.offset, Offset(record.offset.0 + 1));
        if scanned.position.is_done(offset) {
            return Ok(());
        }
        let ScannedRoute {
            deployment,
            name,
            rules,
            source_topics,
            ..
        } = self.route;
        let Some(found) = DeadLetter::parse(*record, deployment, name) else {
            scanned.position.insert(offset, behind);
            return Ok(());
        };
        if !report::meets(&self.request.filter, &found) {
            return Ok(());
        }
        let topic = &found.source.topic;
        let redriven = if found.is_by_reference() {
            Err(report::Obstacle::ByReference)
        } else if source_topics.iter().any(|source| **source == **topic) {
            found
                .redriven(deployment, name, rules, self.clock.now())
                .map_err(report::Obstacle::Refused)
        } else {
            Err(report::Obstacle::NoSource)
        };
        report::count(
            self.report,
            scanned.partition.index,
            &found,
            redriven.as_ref().err(),
        );
        let Ok(redriven) = redriven else {
            return Ok(());
        };
        if self.sender.is_none() {
            return Ok(());
        }
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        let redriven = Redriven {
            source: found.source.clone(),
            origin: found.origin.to_owned(),
            key: owned(redriven.key),
            payload: owned(redriven.payload),
            headers: redriven.headers,
        };
        self.add(scanned, offset, redriven).await
    }

    /// Adds a message to the batch, and sends a full batch.
    async fn add(
        &mut self,
        scanned: &mut ScannedPartition,
        offset: Offset,
        redriven: Redriven,
    ) -> Result<()> {
        let mut position = scanned.position.clone();
        position.insert(offset, Offset(offset.0 + 1));
        if position.to_string().len() > REDRIVE_POSITION_BYTES_MAX {
            self.send(scanned).await?;
            bail!(
                "the position of {} has no room for more gaps: redrive or remove the older dead letters first",
                scanned.partition
            );
        }
        scanned.position = position;
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        scanned.batch_bytes +=
            length(&redriven.key) + length(&redriven.payload) + redriven.headers.len();
        scanned.batch.push((offset, redriven));
        let batch_max = REDRIVE_BATCH_MAX.min(self.rate() as usize);
        if scanned.batch.len() >= batch_max || scanned.batch_bytes >= REDRIVE_IN_FLIGHT_BYTES_MAX {
            self.send(scanned).await?;
        }
        Ok(())
    }

    async fn send(&mut self, scanned: &mut ScannedPartition) -> Result<()> {
        let mut batch = std::mem::take(&mut scanned.batch);
        scanned.batch_bytes = 0;
        let Some(sender) = self.sender.as_mut().filter(|_| !batch.is_empty()) else {
            return Ok(());
        };
        if !scanned.is_open {
            let committed = sender.open(&scanned.partition, self.positions).await?;
            // Another redrive may have ended since the position was read.
            let committed = scanned.read_position(committed.as_deref())?;
            if !fault!(RedriveByOldPosition) {
                batch.retain(|(offset, _)| !committed.is_done(*offset));
            }
            scanned.position.merge(&committed);
            scanned.is_open = true;
        }
        let count = batch.len();
        let batch: Vec<Redriven> = batch.into_iter().map(|(_, redriven)| redriven).collect();
        if count > 0 {
            let place = (&scanned.partition, &scanned.position);
            sender.send(&batch, place, self.positions).await?;
        }
        if let Some(redrive) = &mut self.report.redrive {
            redrive.redriven += count as u64;
        }
        (self.on_progress)(self.report);
        sleep(Duration::from_secs(count as u64) / self.rate()).await;
        Ok(())
    }

    /// Messages per second.
    fn rate(&self) -> u32 {
        let redrive = self.request.redrive.as_ref();
        redrive.map_or(1, |redrive| redrive.rate.max(1))
    }
}
