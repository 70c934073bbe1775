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
use crate::broker::Error;
use crate::model::Partition;
use async_nats::jetstream::kv::{Config, Store, UpdateErrorKind};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;

/// A key and a revision that do not exist, for a write that the server must reject.
const PROBE_KEY: &str = "check";
const IMPOSSIBLE_REVISION: u64 = 1 << 60;

/// The bucket on one connection. Clones share its state.
#[derive(Clone)]
pub(super) struct KvBucket {
    connection: Connection,
    /// The opened bucket. It is opened again after each error, because it may have been deleted.
    opened: Rc<RefCell<Option<Store>>>,
    /// The commits of this process by key. A recreated bucket has lost them, and the caller commits
    /// only changes.
    commits: Rc<RefCell<BTreeMap<String, String>>>,
}

impl KvBucket {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            opened: Rc::default(),
            commits: Rc::default(),
        }
    }

    /// Opens the bucket, and creates it if it does not exist. The new bucket has one replica, which
    /// every server supports. For more replicas, create the bucket before the first start.
    pub(super) async fn open(&self) -> Result<Store, Error> {
        let opened = self.opened.borrow().clone();
        if let Some(store) = opened {
            return Ok(store);
        }
        let context = self.connection.context().await?;
        let bucket = self.name();
        let store = if self.exists().await? {
            context
                .get_key_value(bucket)
                .await
                .map_err(|error| self.on_error(&error))?
        } else {
            let config = Config {
                bucket: bucket.clone(),
                history: 1,
                description: "commits and group members of Postdate".to_owned(),
                ..Config::default()
            };
            match context.create_key_value(config).await {
                Ok(store) => store,
                // Another process may have created it in between.
                Err(error) => context
                    .get_key_value(bucket)
                    .await
                    .map_err(|_| self.on_error(&error))?,
            }
        };
        *self.opened.borrow_mut() = Some(store.clone());
        self.restore_commits(&store).await?;
        Ok(store)
    }

    /// Checks that this client may read and write the bucket, by a write that the server rejects
    /// because of its revision. `None`: the bucket does not exist.
    pub(super) async fn check_access(&self) -> Result<Option<()>, Error> {
        if !self.exists().await? {
            return Ok(None);
        }
        let store = self.open().await?;
        store
            .get(PROBE_KEY)
            .await
            .map_err(|error| self.on_error(&error))?;
        match store
            .update(PROBE_KEY, Bytes::new(), IMPOSSIBLE_REVISION)
            .await
        {
            Ok(_) => Ok(Some(())),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(Some(())),
            Err(error) => Err(self.on_error(&error)),
        }
    }

    /// Writes the commits of this process again. Call it if the bucket may have lost them.
    pub(super) async fn restore_commits(&self, store: &Store) -> Result<(), Error> {
        let commits = self.commits.borrow().clone();
        for (key, metadata) in commits {
            store
                .put(key, metadata.into())
                .await
                .map_err(|error| self.on_error(&error))?;
        }
        Ok(())
    }

    /// Converts an error of the client. The next call opens the bucket again.
    pub(super) fn on_error(&self, error: &(impl std::error::Error + 'static)) -> Error {
        self.opened.borrow_mut().take();
        let call = format!("the bucket {}", self.name());
        self.connection.request_error(&call, error)
    }

    /// The metadata of the last commit of each partition.
    pub(super) async fn committed(
        &self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        let mut found = Vec::with_capacity(partitions.len());
        if partitions.is_empty() {
            return Ok(found);
        }
        let store = self.open().await?;
        for partition in partitions {
            let value = store
                .get(commit_key(group, partition))
                .await
                .map_err(|error| self.on_error(&error))?;
            found.push(value.map(|value| String::from_utf8_lossy(&value).into_owned()));
        }
        Ok(found)
    }

    pub(super) async fn commit(
        &self,
        group: &str,
        partition: &Partition,
        metadata: &str,
    ) -> Result<(), Error> {
        let store = self.open().await?;
        let key = commit_key(group, partition);
        store
            .put(&key, metadata.to_owned().into())
            .await
            .map_err(|error| self.on_error(&error))?;
        self.commits.borrow_mut().insert(key, metadata.to_owned());
        Ok(())
    }

    /// Another process commits for the partition from now on.
    pub(super) fn forget_commit(&self, group: &str, partition: &Partition) {
        self.commits
            .borrow_mut()
            .remove(&commit_key(group, partition));
    }

    fn name(&self) -> String {
        bucket_name(&self.connection.cluster().deployment)
    }

    async fn exists(&self) -> Result<bool, Error> {
        let stream = format!("KV_{}", self.name());
        let info = stream_info::fetch(&self.connection, &stream).await?;
        Ok(info.is_some())
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
