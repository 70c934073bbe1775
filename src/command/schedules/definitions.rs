//! Reads the records of a topic of definitions, without a group, and writes a definition again.

use crate::admin::changes::{Change, ChangeKind};
use crate::admin::schedules::change::WrittenDefinition;
use crate::broker::{GroupAdmin, StoredRecords};
use crate::command::Refused;
use crate::command::send::Draft;
use crate::command::source_producer::{SourceProducer, SourceRecord};
use crate::config::Config;
use crate::health::Health;
use crate::limit::DEFINITION_LOOK_TIMEOUT;
use crate::model::{Offset, Partition, Record, Watermark};
use crate::role::redrive_group;
use anyhow::{Context as _, Result, bail};
use tokio::time::timeout;

/// Reads the source of a recurring route.
struct DefinitionReader {
    records: Box<dyn StoredRecords>,
    catalog: Box<dyn GroupAdmin>,
}

impl DefinitionReader {
    fn open(config: &Config, route: &str) -> Result<Self> {
        if !config.routes[route].recurring {
            let what = format!("route {route} is not recurring, so it has no schedules");
            return Err(Refused(what).into());
        }
        let cluster = config.cluster(&config.routes[route].source.cluster);
        let health = Health::new();
        // The clients need the name of a group that the user of the service may read. Neither commits.
        let group = redrive_group(config, route);
        Ok(Self {
            records: cluster.stored_records(&group, health.register("definitions"))?,
            catalog: cluster.admin(Some(&group), health.register("partitions"))?,
        })
    }

    /// Calls `on_record` for each record of the partitions from `from` on, in the order of its partition. Returns where the
    /// reading of each one ended.
    async fn read(
        &mut self,
        partitions: &[Partition],
        from: Watermark,
        mut on_record: impl FnMut(&Partition, &Record<'_>),
    ) -> Result<Vec<Watermark>> {
        let infos = self.catalog.describe(partitions).await?;
        let mut ends = Vec::with_capacity(partitions.len());
        for (partition, info) in partitions.iter().zip(infos) {
            let mut next = info.first_offset.max(Offset(from.0));
            while next < info.end_offset {
                let batch = self.records.read(partition, next, info.end_offset);
                let (batch, behind) = batch.await?;
                let read = batch.iter();
                read.take_while(|record| record.offset < info.end_offset)
                    .filter(|record| record.offset >= next)
                    .for_each(|record| on_record(partition, &record));
                if batch.len() == 0 {
                    break;
                }
                next = behind;
            }
            ends.push(Watermark(info.end_offset.0.max(from.0)));
        }
        Ok(ends)
    }

    /// A record of a schedule from `from` on, except for the one at `own`. Also returns the end of its partition.
    async fn other_record(
        &mut self,
        partition: &Partition,
        id: &str,
        from: Watermark,
        own: Option<Offset>,
    ) -> Result<(Option<u64>, Watermark)> {
        let mut other = None;
        let partitions = std::slice::from_ref(partition);
        let ends = self.read(partitions, from, |_, record| {
            if record.key == Some(id.as_bytes()) && Some(record.offset) != own {
                other = Some(record.offset.0);
            }
        });
        let ends = timeout(DEFINITION_LOOK_TIMEOUT, ends).await;
        let ends = ends.context("the broker does not answer")??;
        Ok((other, ends.first().copied().unwrap_or(from)))
    }
}

/// Calls `on_record` for each record of the route's source, in the order of its partition. Returns where the reading of each
/// partition ended.
pub(super) async fn read_definitions(
    config: &Config,
    route: &str,
    on_record: impl FnMut(&Partition, &Record<'_>),
) -> Result<Vec<(Partition, Watermark)>> {
    let mut reader = DefinitionReader::open(config, route)?;
    let found = reader
        .catalog
        .partitions(&config.routes[route].source.topics);
    let partitions: Vec<_> = found.await?.into_iter().map(|(it, _)| it).collect();
    let ends = reader.read(&partitions, Watermark(0), on_record).await;
    reader.catalog.close().await;
    Ok(partitions.into_iter().zip(ends?).collect())
}

/// Writes a definition in place of another one of its schedule, and looks for records of the schedule that were written at the
/// same time. It is a read and then a write, so the last record counts.
pub(in crate::command) async fn replace_definition(
    config: &Config,
    change: Change,
    producer: &mut Option<SourceProducer>,
) -> Result<WrittenDefinition> {
    let route = config.route_named_or_only(Some(&change.route))?;
    let topic = change.topic.unwrap_or_default();
    config.check_source(route, &topic)?;
    let id = change.id.unwrap_or_default();
    let partition = Partition::new(topic, change.partition.unwrap_or_default());
    let ChangeKind::Definition {
        payload,
        headers,
        read_to,
    } = change.kind
    else {
        unreachable!("the caller has a definition");
    };
    let record = SourceRecord {
        key: Some(id.clone().into_bytes()),
        draft: Draft {
            headers,
            payload: Some(payload),
            due: None,
        },
        topic: partition.topic.to_string(),
        partition: Some(partition.index),
    };
    let send = async || {
        let producer = match producer {
            Some(producer) => producer,
            None => producer.insert(SourceProducer::open(config, route)?),
        };
        let (_, offset) = producer
            .send(&record)
            .await?
            .context("the broker has reported no offset")?;
        Ok(offset)
    };
    let mut reader = DefinitionReader::open(config, route)?;
    let written = replace(&mut reader, &partition, &id, read_to, send).await;
    reader.catalog.close().await;
    written
}

/// `send` writes the record, and returns its offset.
async fn replace(
    reader: &mut DefinitionReader,
    partition: &Partition,
    id: &str,
    read_to: Watermark,
    send: impl AsyncFnOnce() -> Result<Offset>,
) -> Result<WrittenDefinition> {
    let (newer, end) = reader.other_record(partition, id, read_to, None).await?;
    if let Some(offset) = newer {
        let text = format!(
            "nothing was written, because the record at offset {offset} has changed the schedule meanwhile: repeat the request"
        );
        return Err(Refused(text).into());
    }
    let offset = send().await?;
    let other = reader.other_record(partition, id, end, Some(offset)).await;
    let (other, end) = other.with_context(|| {
        format!("the record is written at offset {offset}, and the topic cannot be read again")
    })?;
    // The records behind the first open transaction cannot be read.
    if other.is_none() && !end.covers(offset) {
        bail!(
            "the record is written at offset {offset}, and a transaction is open before it: look at the schedule when that has ended, because the transaction may have had another definition"
        );
    }
    Ok(WrittenDefinition {
        offset: offset.0,
        other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Error, RecordBatch};
    use crate::clock::WallClock;
    use crate::testing::broker::memory::MemoryCluster;
    use async_trait::async_trait;
    use std::rc::Rc;

    struct Records(MemoryCluster);

    #[async_trait(?Send)]
    impl StoredRecords for Records {
        async fn topic_of(&mut self, destination: &str) -> Result<Option<String>, Error> {
            Ok(Some(destination.to_owned()))
        }

        async fn read(
            &mut self,
            partition: &Partition,
            from: Offset,
            end: Offset,
        ) -> Result<(RecordBatch, Offset), Error> {
            let mut batch = RecordBatch::new(partition.clone(), 0);
            for record in self.0.records(&partition.topic) {
                if record.partition == partition.index && (from..end).contains(&record.offset) {
                    let (key, payload) = (record.key.as_deref(), record.payload.as_deref());
                    batch.push(record.offset, Some(record.at), key, payload, []);
                }
            }
            Ok((batch, end))
        }
    }

    /// The outcome of a change that has read up to offset 1. These keys are written before its record, and those behind it.
    async fn replaced(
        newer: &[&str],
        before: &[&str],
        behind: &[&str],
    ) -> Result<WrittenDefinition, String> {
        let cluster = MemoryCluster::new(Rc::new(WallClock));
        cluster.create_topic("schedules", 2);
        let partition = Partition::new("schedules", 1);
        let produce = |key: &str| {
            let record = (Some(key.as_bytes()), Some(&b"template"[..]));
            cluster.produce(&partition, None, record, [])
        };
        produce("a");
        newer.iter().for_each(|key| _ = produce(key));
        let mut reader = DefinitionReader {
            records: Box::new(Records(cluster.clone())),
            catalog: Box::new(cluster.catalog()),
        };
        let send = async || {
            before.iter().for_each(|key| _ = produce(key));
            let own = produce("a");
            behind.iter().for_each(|key| _ = produce(key));
            Ok(own)
        };
        let written = replace(&mut reader, &partition, "a", Watermark(1), send).await;
        written.map_err(|error| {
            assert!(error.is::<Refused>());
            error.to_string()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_is_written_at_the_same_time_is_found() {
        let written = |offset, other| Ok(WrittenDefinition { offset, other });
        assert_eq!(replaced(&["b"], &["c"], &["b"]).await, written(3, None));
        let refused = replaced(&["b", "a"], &[], &[]).await.unwrap_err();
        assert!(refused.contains("the record at offset 2"), "{refused}");
        assert_eq!(replaced(&[], &["a", "b"], &[]).await, written(3, Some(1)));
        assert_eq!(replaced(&[], &[], &["b", "a"]).await, written(1, Some(3)));
    }
}
