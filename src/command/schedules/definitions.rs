//! Reads the records of a topic of definitions, without a group.

use crate::command::Refused;
use crate::config::Config;
use crate::health::Health;
use crate::model::{Partition, Record};
use crate::role::redrive_group;
use anyhow::Result;

/// Calls `on_record` for each record of the route's source, in the order of its partition.
pub(super) async fn read_definitions(
    config: &Config,
    route: &str,
    mut on_record: impl FnMut(&Partition, &Record<'_>),
) -> Result<()> {
    let source = &config.routes[route].source;
    if !config.routes[route].recurring {
        let what = format!("route {route} is not recurring, so it has no schedules");
        return Err(Refused(what).into());
    }
    let cluster = config.cluster(&source.cluster);
    let health = Health::new();
    // The clients need the name of a group that the user of the service may read. Neither commits.
    let group = redrive_group(config, route);
    let mut records = cluster.stored_records(&group, health.register("definitions"))?;
    let mut catalog = cluster.admin(Some(&group), health.register("partitions"))?;
    let found = catalog.partitions(&source.topics).await?;
    let partitions: Vec<Partition> = found.into_iter().map(|(it, _)| it).collect();
    let infos = catalog.describe(&partitions).await?;
    catalog.close().await;
    for (partition, info) in partitions.iter().zip(infos) {
        let mut next = info.first_offset;
        while next < info.end_offset {
            let (batch, behind) = records.read(partition, next, info.end_offset).await?;
            let read = batch.iter();
            read.take_while(|record| record.offset < info.end_offset)
                .for_each(|record| on_record(partition, &record));
            if batch.len() == 0 {
                break;
            }
            next = behind;
        }
    }
    Ok(())
}
