//! The [`Catalog`] and `Inspector` ports on Kafka. Their clients join no group.
//!
//! Most requests block until brokers answer, so a thread of its own sends them (`worker`). Requests
//! about groups have another client and thread, see `group_offsets`.

mod change;
mod describe;
mod inspection;
mod partition_requests;
mod requests;
mod worker;

pub(super) use partition_requests::{Description, OffsetsAt};
pub(super) use worker::{AdminHandle, AdminWorker, TopicWatch, WorkerThread};

use super::group_offsets::GroupOffsets;
use super::health::ClusterHealth;
use super::options::Cluster;
use crate::broker::kafka::limit::KAFKA_REQUEST_TIMEOUT;
use crate::broker::{Catalog, Error, GroupAdmin, OffsetCommit, PartitionInfo};
use crate::health::HealthPart;
use crate::model::{Offset, Partition, SourceIdentity, Timestamp};
use async_trait::async_trait;
use std::cell::OnceCell;
use std::rc::Rc;

/// The catalog port on one cluster. Clones share its clients.
#[derive(Clone)]
pub(crate) struct KafkaCatalog {
    cluster: Cluster,
    /// `None` once closed.
    clients: Option<Rc<Clients>>,
}

/// Each client is started when it is used first.
struct Clients {
    health: ClusterHealth,
    worker: OnceCell<AdminWorker>,
    groups: OnceCell<GroupOffsets>,
}

impl Clients {
    fn worker(&self, cluster: &Cluster) -> Result<&AdminWorker, Error> {
        if let Some(worker) = self.worker.get() {
            return Ok(worker);
        }
        let worker = AdminWorker::with_own_client(cluster, None, self.health.clone())?;
        Ok(self.worker.get_or_init(|| worker))
    }

    /// `group`: any group whose commits may be read.
    fn groups(&self, cluster: &Cluster, group: &str) -> Result<&GroupOffsets, Error> {
        if let Some(groups) = self.groups.get() {
            return Ok(groups);
        }
        let health = self.health.clone();
        let groups = GroupOffsets::with_own_client(cluster, group, health)?;
        Ok(self.groups.get_or_init(|| groups))
    }
}

impl KafkaCatalog {
    /// With a `group`, the client that reads commits is connected at once. Otherwise, the client for
    /// all other requests is.
    pub(crate) fn new(
        cluster: &Cluster,
        group: Option<&str>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let clients = Clients {
            health: ClusterHealth::new(&cluster.name, part),
            worker: OnceCell::new(),
            groups: OnceCell::new(),
        };
        match group {
            Some(group) => clients.groups(cluster, group).map(|_| ())?,
            None => clients.worker(cluster).map(|_| ())?,
        }
        let cluster = cluster.clone();
        let clients = Some(Rc::new(clients));
        Ok(Self { cluster, clients })
    }

    fn clients(&self) -> Result<&Clients, Error> {
        let closed = || Error::Fatal("the Kafka adapter is closed".to_owned());
        self.clients.as_deref().ok_or_else(closed)
    }

    /// Runs a request on the thread of the admin client.
    async fn request<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut WorkerThread) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.clients()?.worker(&self.cluster)?.request(call).await
    }
}

#[async_trait(?Send)]
impl Catalog for KafkaCatalog {
    async fn partitions(
        &mut self,
        topics: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
        let topics = topics.to_vec();
        self.request(move |worker: &mut WorkerThread| worker.partitions(&topics))
            .await
    }

    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        let groups = self.clients()?.groups(&self.cluster, group)?;
        groups.committed_metadata(group, partitions).await
    }

    /// The last clone closes the clients.
    async fn close(&mut self) {
        let Some(clients) = self.clients.take().and_then(Rc::into_inner) else {
            return;
        };
        let (mut worker, mut groups) = (clients.worker, clients.groups);
        let close_worker = async {
            if let Some(worker) = worker.get_mut() {
                worker.close().await;
            }
        };
        let close_groups = async {
            if let Some(groups) = groups.get_mut() {
                groups.close().await;
            }
        };
        tokio::join!(close_worker, close_groups);
    }
}

#[async_trait(?Send)]
impl GroupAdmin for KafkaCatalog {
    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error> {
        let partitions = partitions.to_vec();
        let worker = self.clients()?.worker(&self.cluster)?;
        let described = worker.polled_request(move |worker| {
            Description::start(worker, partitions, KAFKA_REQUEST_TIMEOUT)
        });
        described.await?.into_iter().collect()
    }

    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        let partitions = partitions.to_vec();
        let worker = self.clients()?.worker(&self.cluster)?;
        let offsets = worker.polled_request(move |worker| {
            OffsetsAt::start(worker, partitions, time, KAFKA_REQUEST_TIMEOUT)
        });
        offsets.await?.into_iter().collect()
    }

    async fn commit_unused(&mut self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error> {
        let groups = self.clients()?.groups(&self.cluster, group)?;
        groups.commit(group, commits.to_vec()).await
    }
}
