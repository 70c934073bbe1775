//! The catalog port on NATS: the partitions whose streams exist, and the committed metadata.

mod change;
mod inspection;

pub(super) use change::stream_name;

use crate::broker::nats::connection::Connection;
use crate::broker::nats::kv::KvBucket;
use crate::broker::nats::{Cluster, StreamInfo, stream_info};
use crate::broker::{Catalog, Error, GroupAdmin, OffsetCommit, PartitionInfo};
use crate::health::HealthPart;
use crate::model::{Offset, Partition, SourceIdentity, Timestamp, split_source_topic};
use async_trait::async_trait;
use std::rc::Rc;

/// Clones share the connection. The first close closes it for all.
#[derive(Clone)]
pub(crate) struct NatsCatalog {
    pub(super) connection: Rc<Connection>,
    pub(super) bucket: Rc<KvBucket>,
}

impl NatsCatalog {
    pub(crate) fn new(cluster: &Cluster, part: HealthPart) -> Self {
        let connection = Rc::new(Connection::new(cluster, part));
        Self {
            bucket: Rc::new(KvBucket::new(connection.clone())),
            connection,
        }
    }

    /// `None`: the stream does not exist.
    pub(super) async fn stream(&self, name: &str) -> Result<Option<StreamInfo>, Error> {
        stream_info::fetch(&self.connection, name).await
    }

    /// The streams whose subjects overlap with a filter: at most one if it has no wildcards.
    pub(super) async fn streams_for_subject(&self, filter: &str) -> Result<Vec<StreamInfo>, Error> {
        let mut found = Vec::new();
        for name in stream_info::names_for_subject(&self.connection, filter).await? {
            found.extend(self.stream(&name).await?);
        }
        Ok(found)
    }
}

#[async_trait(?Send)]
impl Catalog for NatsCatalog {
    async fn partitions(
        &mut self,
        topics: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
        let installation = self.bucket.installation().await?;
        let mut found = Vec::new();
        for topic in topics {
            let Some((name, _)) = split_source_topic(topic) else {
                continue;
            };
            if let Some(stream) = self.stream(name).await? {
                let partition = Partition::new(topic.as_str(), 0);
                found.push((partition, stream.identity(&installation)));
            }
        }
        Ok(found)
    }

    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.bucket.committed(group, partitions).await
    }

    async fn close(&mut self) {
        self.connection.close();
    }
}

#[async_trait(?Send)]
impl GroupAdmin for NatsCatalog {
    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error> {
        let installation = self.bucket.installation().await?;
        let mut described = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let missing = || Error::Rejected(format!("the partition {partition} does not exist"));
            let (name, _) = split_source_topic(&partition.topic).ok_or_else(missing)?;
            let stream = self.stream(name).await?.ok_or_else(missing)?;
            described.push(stream.describe(&installation));
        }
        Ok(described)
    }

    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        stream_info::offsets_at(&self.connection, partitions, time).await
    }

    async fn commit_unused(&mut self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error> {
        self.bucket.commit(group, commits).await
    }
}
