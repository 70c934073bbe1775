//! The [`Catalog`] and `Inspector` ports on Kafka. Their clients join no group.
//!
//! Every request blocks until brokers answer, so a thread of its own sends them (`worker`).

mod change;
mod describe;
mod inspection;
mod requests;
mod worker;

pub(super) use worker::{AdminHandle, AdminWorker, TopicWatch, WorkerThread};

use super::health::ClusterHealth;
use super::options::Cluster;
use crate::broker::{Catalog, Error, GroupAdmin, OffsetCommit, PartitionInfo};
use crate::health::HealthPart;
use crate::model::{Offset, Partition, SourceIdentity, Timestamp};
use async_trait::async_trait;

/// The catalog port on one cluster.
pub(crate) struct KafkaCatalog {
    cluster: Cluster,
    worker: AdminWorker,
}

impl KafkaCatalog {
    /// Committed offsets of `group` are read without waiting for a connection. Another group needs
    /// a new connection first.
    pub(crate) fn new(
        cluster: &Cluster,
        group: Option<&str>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let health = ClusterHealth::new(&cluster.name, part);
        Ok(Self {
            cluster: cluster.clone(),
            worker: AdminWorker::with_own_client(cluster, group, health)?,
        })
    }
}

#[async_trait(?Send)]
impl Catalog for KafkaCatalog {
    async fn partitions(
        &mut self,
        topics: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
        let topics = topics.to_vec();
        let request = move |worker: &mut WorkerThread| worker.partitions(&topics);
        self.worker.request(request).await
    }

    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.worker.committed_metadata(group, partitions).await
    }

    async fn close(&mut self) {
        self.worker.close().await;
    }
}

#[async_trait(?Send)]
impl GroupAdmin for KafkaCatalog {
    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error> {
        let partitions = partitions.to_vec();
        let request = move |worker: &mut WorkerThread| worker.describe_partitions(&partitions);
        self.worker.request(request).await?.into_iter().collect()
    }

    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        let partitions = partitions.to_vec();
        let request = move |worker: &mut WorkerThread| worker.offsets_at(&partitions, time);
        self.worker.request(request).await
    }

    async fn commit_unused(&mut self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error> {
        let (group, commits) = (group.to_owned(), commits.to_vec());
        let request = move |worker: &mut WorkerThread| worker.commit(&group, &commits);
        self.worker.request(request).await
    }
}
