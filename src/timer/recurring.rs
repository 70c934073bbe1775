//! Reads the definitions topics of recurring routes for the timer. The ingress reads them too: it
//! stores W and the dead letters. Definitions are not stored, because the log has them.
//!
//! A partition is read from its first offset when the timer gets its shard, and whenever the shard is
//! loaded again. Then a definition whose end has vanished from the log is not there either.

use crate::broker::{self, Event, RecordBatch, Source};
use crate::health::HealthPart;
use crate::limit::{DEFINITION_READ_RETRY_INTERVAL, RECORD_BYTES_MAX};
use crate::model::{
    Body, Offset, ParsedDefinition, Partition, Record, ShardId, Timestamp, Watermark, as_id,
    parse_definition,
};
use crate::run::record;
use crate::schedule::ScheduleRecord;
use crate::timer::shard::ShardStates;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The record that a schedule delivers, as `run::record` encodes it.
pub(crate) type Template = Box<[u8]>;

/// The partitions to read, each with the number of its reading. Another number reads it again.
pub(crate) type DefinitionReadings = BTreeMap<Partition, u64>;

/// Tells the reader of each route what to read.
pub(crate) type ReadingsByRoute = BTreeMap<Arc<str>, watch::Sender<DefinitionReadings>>;

/// Records of one partition, in order.
#[derive(Debug)]
pub(crate) struct DefinitionBatch {
    pub(crate) shard: ShardId,
    pub(crate) reading: u64,
    pub(crate) records: Vec<ScheduleRecord<Template>>,
    /// All records before it were returned.
    pub(crate) read_to: Watermark,
}

pub(crate) struct DefinitionReader {
    pub(crate) route: Arc<str>,
    pub(crate) source: Box<dyn Source>,
    pub(crate) wanted: watch::Receiver<DefinitionReadings>,
    pub(crate) batches: mpsc::Sender<DefinitionBatch>,
    pub(crate) health: HealthPart,
}

impl DefinitionReader {
    pub(crate) async fn serve(mut self, stop: CancellationToken) -> Result<(), broker::Error> {
        let mut reads = DefinitionReadings::new();
        let mut follow_at = Instant::now();
        while !stop.is_cancelled() {
            self.health.heartbeat();
            if follow_at <= Instant::now() {
                let wanted = self.wanted.borrow_and_update().clone();
                self.follow(&wanted, &mut reads).await?;
                follow_at = Instant::now() + DEFINITION_READ_RETRY_INTERVAL;
            }
            // Each arm is safe to drop: the source keeps what it has not returned.
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        // The dispatcher has ended.
                        break;
                    }
                    follow_at = Instant::now();
                }
                event = self.source.next_event() => {
                    let event = event?;
                    if let Event::OutOfRange { partition, .. } = &event {
                        reads.remove(partition);
                    }
                    if !self.on_event(event).await {
                        break;
                    }
                }
                () = tokio::time::sleep_until(follow_at) => {}
            }
        }
        self.source.close().await;
        Ok(())
    }

    /// Starts and stops readings. A partition that cannot be described is tried again later.
    async fn follow(
        &mut self,
        wanted: &DefinitionReadings,
        reads: &mut DefinitionReadings,
    ) -> Result<(), broker::Error> {
        reads.retain(|partition, _| {
            let stays = wanted.contains_key(partition);
            if !stays {
                self.source.stop(partition);
            }
            stays
        });
        let new = wanted
            .iter()
            .filter(|(partition, reading)| reads.get(*partition) != Some(*reading));
        let new: Vec<_> = new.map(|(partition, _)| partition.clone()).collect();
        if new.is_empty() {
            return Ok(());
        }
        let described = match self.source.describe(&new).await {
            Ok(described) => described,
            Err(error) if error.is_transient() => {
                self.health.set_not_ready(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut failure = None;
        for (partition, described) in new.into_iter().zip(described) {
            match described {
                Ok(described) => {
                    let reading = wanted[&partition];
                    (self.source).start(&partition, described.first_offset, reading);
                    reads.insert(partition, reading);
                }
                Err(error) => failure = Some(format!("{partition}: {error}")),
            }
        }
        match failure {
            Some(failure) => self.health.set_not_ready(failure),
            None => self.health.set_ready(),
        }
        Ok(())
    }

    /// Returns false if the dispatcher has ended.
    async fn on_event(&mut self, event: Event) -> bool {
        let (partition, reading, records, read_to) = match event {
            Event::Records(batch) => {
                let last = batch.iter().last().map(|record| record.offset.next());
                let records = parse(&batch);
                let read_to = last.unwrap_or(Offset(0));
                (batch.partition, batch.epoch, records, read_to)
            }
            Event::EndReached {
                partition,
                epoch,
                at,
            } => (partition, epoch, Vec::new(), at),
            // The ingress reads the same partition, and reports its problems.
            _ => return true,
        };
        let batch = DefinitionBatch {
            shard: ShardId::new(self.route.clone(), partition),
            reading,
            records,
            read_to: Watermark(read_to.0),
        };
        self.batches.send(batch).await.is_ok()
    }
}

/// Tells the readers which partitions to read. `last_reading` is the number of the last reading.
pub(super) fn request(
    shards: &mut ShardStates,
    wanted: &ReadingsByRoute,
    last_reading: &mut u64,
    wall: Timestamp,
) {
    for (route, wanted) in wanted {
        let shards = shards.iter_mut().filter(|(shard, _)| shard.route == *route);
        let reads = shards.filter_map(|(shard, state)| {
            let next = || {
                *last_reading += 1;
                *last_reading
            };
            Some((shard.partition.clone(), state.read_definitions(wall, next)?))
        });
        let reads: DefinitionReadings = reads.collect();
        wanted.send_if_modified(|before| {
            let is_changed = *before != reads;
            *before = reads;
            is_changed
        });
    }
}

/// The records that name a schedule. The ingress makes dead letters of the others.
fn parse(batch: &RecordBatch) -> Vec<ScheduleRecord<Template>> {
    batch
        .iter()
        .filter_map(|record| parse_record(&record))
        .collect()
}

fn parse_record(record: &Record<'_>) -> Option<ScheduleRecord<Template>> {
    let schedule = as_id(record.key)?;
    let definition = match parse_definition(record, Some(schedule)) {
        ParsedDefinition::Defined(definition) if record.bytes() <= RECORD_BYTES_MAX => {
            let mut template = Vec::new();
            let body = Body {
                key: record.key,
                payload: record.payload,
                headers: record.headers,
                target: definition.target.as_deref(),
                ..Body::default()
            };
            record::encode(&body, &mut template);
            Some((definition, template.into_boxed_slice()))
        }
        _ => None,
    };
    Some(ScheduleRecord {
        offset: record.offset,
        // Without a time of its own, a record ends the schedule at once.
        timestamp: record.timestamp.unwrap_or(Timestamp::AT_ONCE),
        schedule: schedule.into(),
        definition,
    })
}
