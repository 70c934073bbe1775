//! The KV bucket of a deployment. It holds what Kafka keeps for a consumer group.
//!
//! | key | value |
//! |---|---|
//! | `commit.<group>.<partition>` | metadata of the last commit |
//! | `group.<group>` | members and owners, see `source::consumer_group` |
//!
//! A key cannot contain every byte. In the names of groups and partitions, such a byte is written
//! as `=` and two hex digits.

use super::connection::Connection;
use super::stream_info;
use crate::broker::{Error, OffsetCommit};
use crate::model::Partition;
use async_nats::jetstream::kv::{Config, Store, UpdateErrorKind};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;

/// The bucket on one connection.
pub(crate) struct KvBucket {
    connection: Rc<Connection>,
    pub(crate) name: String,
    /// The commits of this process by key. They are restored in a recreated bucket, because the
    /// caller commits only changes.
    commits: RefCell<BTreeMap<String, String>>,
}

impl KvBucket {
    pub(super) fn new(connection: Rc<Connection>) -> Self {
        Self {
            name: bucket_name(&connection.cluster.deployment),
            connection,
            commits: RefCell::default(),
        }
    }

    /// Opens the bucket. If it does not exist, creates it with one replica, which every server
    /// supports, and restores the commits. For more replicas, create it before the first start.
    pub(super) async fn open(&self) -> Result<Store, Error> {
        let context = self.connection.context().await?;
        if let Ok(store) = context.get_key_value(&self.name).await {
            return Ok(store);
        }
        let config = Config {
            bucket: self.name.clone(),
            history: 1,
            description: "commits and group members of Postdate".to_owned(),
            ..Config::default()
        };
        // If the bucket exists, this changes nothing.
        let store = self.checked(context.create_key_value(config).await)?;
        self.restore_commits(&store).await?;
        Ok(store)
    }

    /// Names this installation of NATS: the nanosecond in which the deployment's bucket was created.
    pub(super) async fn installation(&self) -> Result<String, Error> {
        let store = self.open().await?;
        let created = store.stream.cached_info().created;
        Ok(created.unix_timestamp_nanos().to_string())
    }

    /// Checks that this client may read and write the bucket, by a write that the server rejects
    /// because of its revision. Returns false if the bucket does not exist.
    pub(crate) async fn check_access(&self) -> Result<bool, Error> {
        let stream = format!("KV_{}", self.name);
        let found = stream_info::fetch(&self.connection, &stream).await?;
        if found.is_none() {
            return Ok(false);
        }
        let store = self.open().await?;
        let (key, impossible_revision) = ("check", 1 << 60);
        self.checked(store.get(key).await)?;
        let update = store.update(key, Bytes::new(), impossible_revision);
        match update.await {
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(true),
            updated => self.checked(updated).map(|_| true),
        }
    }

    /// Writes the commits of this process again, which the bucket may have lost.
    pub(super) async fn restore_commits(&self, store: &Store) -> Result<(), Error> {
        let commits = self.commits.borrow().clone();
        for (key, metadata) in commits {
            self.checked(store.put(key, metadata.into()).await)?;
        }
        Ok(())
    }

    pub(super) fn checked<T>(&self, result: Result<T, impl std::error::Error>) -> Result<T, Error> {
        let object = || format!("the bucket {}", self.name);
        result.map_err(|error| self.connection.request_error(&object(), &error))
    }

    /// The metadata of the last commit of each partition.
    pub(super) async fn committed(
        &self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        let store = self.open().await?;
        let mut found = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let value = self.checked(store.get(commit_key(group, partition)).await)?;
            found.push(value.map(|value| String::from_utf8_lossy(&value).into_owned()));
        }
        Ok(found)
    }

    pub(super) async fn commit(&self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error> {
        let store = self.open().await?;
        for commit in commits {
            let key = commit_key(group, &commit.partition);
            let metadata = commit.metadata.clone();
            self.checked(store.put(&key, metadata.clone().into()).await)?;
            self.commits.borrow_mut().insert(key, metadata);
        }
        Ok(())
    }

    /// Forgets a commit, because another process commits for the partition from now on.
    pub(super) fn forget_commit(&self, group: &str, partition: &Partition) {
        let key = commit_key(group, partition);
        self.commits.borrow_mut().remove(&key);
    }
}

pub(crate) fn bucket_name(deployment: &str) -> String {
    format!("postdate-{deployment}")
}

fn commit_key(group: &str, partition: &Partition) -> String {
    let partition = partition.to_string();
    format!("commit.{}.{}", escape_key(group), escape_key(&partition))
}

/// Encodes any text as one token of a key.
pub(super) fn escape_key(text: &str) -> String {
    let mut token = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            token.push(char::from(byte));
        } else {
            write!(token, "={byte:02x}").expect("writing into a String cannot fail");
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_names_have_different_keys() {
        assert_eq!(
            commit_key("prod.orders", &Partition::new("S:a.*.>", 0)),
            "commit.prod=2eorders.S=3aa=2e=2a=2e=3e=2f0"
        );
        assert_ne!(escape_key("a=2e"), escape_key("a."));
    }
}
