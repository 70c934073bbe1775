//! The catalog port on NATS: the partitions whose streams exist, and what the group committed.

use super::connection::Connection;
use super::kv::{self, KvBucket};
use super::{Cluster, StreamInfo, stream_info};
use crate::broker::{Catalog, Error};
use crate::health::HealthPart;
use crate::model::{Partition, split_source_topic};
use async_trait::async_trait;

/// The catalog port on one cluster.
pub(crate) struct NatsCatalog {
    connection: Connection,
    bucket: KvBucket,
}

impl NatsCatalog {
    /// `part` tells of its cluster.
    pub(crate) fn new(cluster: &Cluster, part: HealthPart) -> Self {
        let link = Connection::new(cluster, part);
        Self {
            bucket: KvBucket::new(link.clone()),
            connection: link,
        }
    }

    pub(crate) fn bucket_name(&self) -> String {
        kv::bucket_name(&self.connection.cluster().deployment)
    }

    /// Whether this client may read and write the deployment's bucket; nothing is written. `None`: there is none.
    pub(crate) async fn check_bucket_access(&self) -> Result<Option<()>, Error> {
        self.bucket.check_access().await
    }

    /// `None`: there is no such stream.
    pub(crate) async fn stream(&self, name: &str) -> Result<Option<StreamInfo>, Error> {
        stream_info::fetch(&self.connection, name).await
    }

    /// The stream behind a subject. `None`: there is none.
    pub(crate) async fn stream_for_subject(
        &self,
        subject: &str,
    ) -> Result<Option<StreamInfo>, Error> {
        Ok(self.streams_for_subject(subject).await?.into_iter().next())
    }

    /// The streams that take something of what a filter lets through.
    pub(crate) async fn streams_for_subject(&self, filter: &str) -> Result<Vec<StreamInfo>, Error> {
        let mut found = Vec::new();
        for name in stream_info::names_for_subject(&self.connection, filter).await? {
            found.extend(stream_info::fetch(&self.connection, &name).await?);
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
            if stream_info::fetch(&self.connection, name).await?.is_some() {
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
