//! The KV bucket of a deployment. It holds what Kafka keeps for a consumer group without members:
//! the key `commit.<group>.<partition>` has the metadata of the last commit.
//!
//! A key cannot contain every byte. In the names of groups and partitions, such a byte is written
//! as `=` and two hex digits.

use super::connection::Connection;
use super::limit::NATS_COMMIT_READS_MAX;
use super::stream_info;
use crate::broker::{Error, OffsetCommit};
use crate::model::Partition;
use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind, KeyValueError};
use async_nats::jetstream::kv::{Config, Store, UpdateErrorKind};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt::Write as _;
use std::rc::Rc;

pub(crate) struct KvBucket {
    connection: Rc<Connection>,
    pub(crate) name: String,
    /// The revision of each key that this process has committed. A commit replaces only this
    /// revision, so a process that was frozen cannot overwrite the commit of the partition's next
    /// reader. The first commit of a reading replaces any other.
    revisions: RefCell<BTreeMap<String, u64>>,
}

impl KvBucket {
    pub(super) fn new(connection: Rc<Connection>) -> Self {
        Self {
            name: bucket_name(&connection.cluster.deployment),
            connection,
            revisions: RefCell::default(),
        }
    }

    /// Opens the bucket. If it does not exist, creates it with one replica, which every server
    /// supports. For more replicas, create it before the first start.
    pub(super) async fn open(&self) -> Result<Store, Error> {
        let context = self.connection.context().await?;
        match context.get_key_value(&self.name).await {
            Err(error) if is_missing(&error) => {}
            found => return self.checked(found),
        }
        let config = Config {
            bucket: self.name.clone(),
            history: 1,
            description: "offset commits of Postdate".to_owned(),
            ..Config::default()
        };
        // If another process has created the bucket meanwhile, this changes nothing.
        self.checked(context.create_key_value(config).await)
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
        let store = &self.open().await?;
        let reads = partitions.iter().map(|partition| async move {
            let key = commit_key(group, partition);
            let value = self.checked(store.get(key.as_str()).await)?;
            // A new reading begins.
            self.revisions.borrow_mut().remove(&key);
            Ok::<_, Error>(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
        });
        let reads = stream::iter(reads).buffered(NATS_COMMIT_READS_MAX);
        reads.try_collect().await
    }

    /// Commits for the partitions that this process reads. A key that another process has written
    /// since is refused once: the next commit, of a process that still reads the partition, replaces
    /// it.
    pub(super) async fn commit(&self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error> {
        let store = self.open().await?;
        let mut refused = None;
        for OffsetCommit {
            partition,
            metadata,
            ..
        } in commits
        {
            let key = commit_key(group, partition);
            let known = self.revisions.borrow_mut().remove(&key);
            let revision = match known {
                Some(revision) => revision,
                None => {
                    let entry = self.checked(store.entry(key.as_str()).await)?;
                    entry.map_or(0, |entry| entry.revision)
                }
            };
            let value = Bytes::copy_from_slice(metadata.as_bytes());
            match store.update(&key, value, revision).await {
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {
                    refused = Some(partition);
                }
                written => {
                    let revision = self.checked(written)?;
                    self.revisions.borrow_mut().insert(key, revision);
                }
            }
        }
        match refused {
            None => Ok(()),
            Some(partition) => Err(Error::Rejected(format!(
                "another process has committed for {partition}, so it is committed again in a second. If this \
                 repeats, stop all workers of Postdate 0.1.0"
            ))),
        }
    }
}

/// Returns whether the server answered that the bucket does not exist.
fn is_missing(error: &KeyValueError) -> bool {
    let source = error.source();
    let source = source.and_then(|source| source.downcast_ref::<GetStreamError>());
    source.is_some_and(|error| {
        matches!(error.kind(), GetStreamErrorKind::JetStream(answer) if answer.code() == 404)
    })
}

pub(crate) fn bucket_name(deployment: &str) -> String {
    format!("postdate-{deployment}")
}

fn commit_key(group: &str, partition: &Partition) -> String {
    let partition = partition.to_string();
    format!("commit.{}.{}", escape_key(group), escape_key(&partition))
}

/// Encodes any text as one token of a key.
fn escape_key(text: &str) -> String {
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
