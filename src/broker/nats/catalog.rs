//! The catalog port on NATS: the partitions whose streams exist, and what the group committed.

use super::bucket::{self, Bucket};
use super::link::Link;
use super::{Cluster, StreamFacts, stream};
use crate::broker::{Catalog, Error};
use crate::health::Part;
use crate::model::{Partition, split_topic};
use async_trait::async_trait;

/// The catalog port on one cluster.
pub(crate) struct NatsCatalog {
    link: Link,
    bucket: Bucket,
}

impl NatsCatalog {
    /// `part` tells of its cluster.
    pub(crate) fn new(cluster: &Cluster, part: Part) -> Self {
        let link = Link::new(cluster, part);
        Self {
            bucket: Bucket::new(link.clone()),
            link,
        }
    }

    pub(crate) fn bucket_name(&self) -> String {
        bucket::name(&self.link.cluster().deployment)
    }

    /// Whether this client may read and write the deployment's bucket; nothing is written. `None`: there is none.
    pub(crate) async fn bucket_rights(&self) -> Result<Option<()>, Error> {
        self.bucket.rights().await
    }

    /// `None`: there is no such stream.
    pub(crate) async fn stream(&self, name: &str) -> Result<Option<StreamFacts>, Error> {
        stream::facts(&self.link, name).await
    }

    /// The stream behind a subject. `None`: there is none.
    pub(crate) async fn behind(&self, subject: &str) -> Result<Option<StreamFacts>, Error> {
        Ok(self.all_behind(subject).await?.into_iter().next())
    }

    /// The streams that take something of what a filter lets through.
    pub(crate) async fn all_behind(&self, filter: &str) -> Result<Vec<StreamFacts>, Error> {
        let mut found = Vec::new();
        for name in stream::names_behind(&self.link, filter).await? {
            found.extend(stream::facts(&self.link, &name).await?);
        }
        Ok(found)
    }
}

#[async_trait(?Send)]
impl Catalog for NatsCatalog {
    async fn partitions(&mut self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        let mut found = Vec::new();
        for topic in topics {
            let Some((name, _)) = split_topic(topic) else {
                continue;
            };
            if stream::facts(&self.link, name).await?.is_some() {
                found.push(Partition::new(topic.as_str(), 0));
            }
        }
        Ok(found)
    }

    async fn committed(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.bucket.committed(group, partitions).await
    }

    async fn close(&mut self) {
        self.link.close();
    }
}
