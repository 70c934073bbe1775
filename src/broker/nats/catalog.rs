//! The catalog port on NATS: the partitions whose streams exist, and the committed metadata.

use super::connection::Connection;
use super::kv::KvBucket;
use super::{Cluster, StreamInfo, stream_info};
use crate::broker::{Catalog, Error};
use crate::health::HealthPart;
use crate::model::{Partition, split_source_topic};
use async_trait::async_trait;
use std::rc::Rc;

pub(crate) struct NatsCatalog {
    pub(super) connection: Rc<Connection>,
    pub(super) bucket: KvBucket,
}

impl NatsCatalog {
    /// `part` shows the health of the cluster.
    pub(crate) fn new(cluster: &Cluster, part: HealthPart) -> Self {
        let connection = Rc::new(Connection::new(cluster, part));
        Self {
            bucket: KvBucket::new(connection.clone()),
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
    async fn partitions(&mut self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        let mut found = Vec::new();
        for topic in topics {
            let Some((name, _)) = split_source_topic(topic) else {
                continue;
            };
            if self.stream(name).await?.is_some() {
                found.push(Partition::new(topic.as_str(), 0));
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
