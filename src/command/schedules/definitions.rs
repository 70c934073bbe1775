//! Reads the records of a topic of definitions, without a group, and writes a definition again.

use crate::admin::changes::{Change, ChangeKind};
use crate::admin::schedules::change::WrittenDefinition;
use crate::broker::{GroupAdmin, StoredRecords};
use crate::command::Refused;
use crate::command::send::Draft;
use crate::command::source_producer::SourceProducer;
use crate::config::Config;
use crate::health::Health;
use crate::limit::COMMAND_DELIVERY_TIMEOUT;
use crate::model::{Offset, Partition, Record, Watermark};
use crate::role::{Cluster, redrive_group};
use anyhow::{Context as _, Result, ensure};
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
        let cluster = Cluster::of(config, &config.routes[route].source.cluster);
        let health = Health::new();
        // The clients need the name of a group that the user of the service may read. Neither commits.
        let group = redrive_group(config, route);
        Ok(Self {
            records: cluster.stored_records(&group, health.register("definitions"))?,
            catalog: cluster.group_admin(&group, health.register("partitions"))?,
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
        // Other changes of the service wait meanwhile.
        let ends = timeout(COMMAND_DELIVERY_TIMEOUT, ends).await;
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
    let mut reader = DefinitionReader::open(config, route)?;
    let written = replace(config, &mut reader, change, producer).await;
    reader.catalog.close().await;
    written
}

async fn replace(
    config: &Config,
    reader: &mut DefinitionReader,
    change: Change,
    producer: &mut Option<SourceProducer>,
) -> Result<WrittenDefinition> {
    let topic = change.topic.unwrap_or_default();
    config.check_source(&change.route, &topic)?;
    let id = change.id.unwrap_or_default();
    let partition = Partition::new(topic.as_str(), change.partition.unwrap_or_default());
    let ChangeKind::Definition {
        payload,
        headers,
        read_to,
    } = change.kind
    else {
        unreachable!("the caller has a definition");
    };
    let (newer, end) = reader.other_record(&partition, &id, read_to, None).await?;
    if let Some(offset) = newer {
        let text = format!(
            "nothing was written, because the record at offset {offset} has changed the schedule meanwhile: repeat the request"
        );
        return Err(Refused(text).into());
    }
    let producer = match producer {
        Some(producer) => producer,
        None => producer.insert(SourceProducer::open(config, &change.route)?),
    };
    let draft = Draft {
        headers,
        payload: Some(payload),
        due: None,
    };
    let sent = producer.send(Some(id.as_bytes()), &draft, &topic, Some(partition.index));
    let position = sent.await?.context("the broker has reported no offset")?;
    let (sent_to, offset) = position;
    ensure!(
        sent_to == partition.index,
        "the record is on partition {sent_to}"
    );
    let other = reader
        .other_record(&partition, &id, end, Some(offset))
        .await;
    let (other, _) = other.with_context(|| {
        format!("the record is written at offset {offset}, and the topic cannot be read again")
    })?;
    Ok(WrittenDefinition {
        offset: offset.0,
        other,
    })
}
