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
use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind, KeyValueError};
use async_nats::jetstream::kv::{Config, Store, UpdateErrorKind};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fmt::Write as _;
use std::rc::Rc;

pub(crate) struct KvBucket {
    connection: Rc<Connection>,
    pub(crate) name: String,
    /// The commit keys of the partitions that this process owns.
    owned: RefCell<BTreeMap<String, OwnedKey>>,
}

/// A commit is written only over a known revision. So a process that was frozen cannot overwrite
/// the commit of the partition's next owner.
#[derive(Clone, Default)]
struct OwnedKey {
    /// The revision that the next commit replaces; 0: the key does not exist. `None`: not known.
    revision: Option<u64>,
    /// The last commit of this process. It is restored in a recreated bucket, because the caller
    /// commits only changes.
    metadata: Option<String>,
}

impl KvBucket {
    pub(super) fn new(connection: Rc<Connection>) -> Self {
        Self {
            name: bucket_name(&connection.cluster.deployment),
            connection,
            owned: RefCell::default(),
        }
    }

    /// Opens the bucket. If it does not exist, creates it with one replica, which every server
    /// supports, and restores the commits. For more replicas, create it before the first start.
    pub(super) async fn open(&self) -> Result<Store, Error> {
        let context = self.connection.context().await?;
        match context.get_key_value(&self.name).await {
            Err(error) if is_missing(&error) => {}
            found => return self.checked(found),
        }
        let config = Config {
            bucket: self.name.clone(),
            history: 1,
            description: "commits and group members of Postdate".to_owned(),
            ..Config::default()
        };
        // If another process has created the bucket meanwhile, this changes nothing.
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

    /// Writes the commits of this process again that the bucket lost. An existing key stays: it may
    /// be newer.
    pub(super) async fn restore_commits(&self, store: &Store) -> Result<(), Error> {
        let owned = self.owned.borrow().clone();
        for (key, OwnedKey { metadata, .. }) in owned {
            if let Some(metadata) = metadata {
                let revision = self.replace(store, &key, &metadata, 0).await?;
                self.owned.borrow_mut().entry(key).or_default().revision = revision;
            }
        }
        Ok(())
    }

    /// Writes a key that has this revision, and returns the new one. `None`: it has another one.
    async fn replace(
        &self,
        store: &Store,
        key: &str,
        metadata: &str,
        revision: u64,
    ) -> Result<Option<u64>, Error> {
        let value = Bytes::copy_from_slice(metadata.as_bytes());
        match store.update(key, value, revision).await {
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(None),
            updated => self.checked(updated).map(Some),
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
        let store = self.open().await?;
        let mut found = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let value = self.checked(store.get(commit_key(group, partition)).await)?;
            found.push(value.map(|value| String::from_utf8_lossy(&value).into_owned()));
        }
        Ok(found)
    }

    /// Commits for owned partitions. If another process has written a key, its commit fails until
    /// the next heartbeat has confirmed the owner.
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
            let known = self.owned.borrow().get(&key).and_then(|it| it.revision);
            let written = match known {
                Some(revision) => self.replace(&store, &key, metadata, revision).await?,
                None => None,
            };
            if written.is_none() {
                refused = Some(partition);
            }
            if let Some(owned) = self.owned.borrow_mut().get_mut(&key) {
                owned.revision = written;
                if written.is_some() {
                    owned.metadata = Some(metadata.clone());
                }
            }
        }
        match refused {
            None => Ok(()),
            Some(partition) => Err(Error::Rejected(format!(
                "another process may own {partition}: it is committed after the next heartbeat"
            ))),
        }
    }

    /// Commits for a group that no process uses.
    pub(super) async fn commit_unused(
        &self,
        group: &str,
        commits: &[OffsetCommit],
    ) -> Result<(), Error> {
        let store = self.open().await?;
        let partitions = commits.iter().map(|commit| commit.partition.clone());
        let partitions = partitions.collect();
        let revisions = self.unknown_revisions(&store, group, &partitions).await?;
        self.set_owned(group, &partitions, revisions);
        self.commit(group, commits).await
    }

    /// The revisions of the commits of these partitions whose revision is not known. A caller that
    /// reads them and then becomes the owner may replace them: a later owner's commit is newer.
    pub(super) async fn unknown_revisions(
        &self,
        store: &Store,
        group: &str,
        partitions: &BTreeSet<Partition>,
    ) -> Result<Vec<(String, u64)>, Error> {
        let mut revisions = Vec::new();
        for partition in partitions {
            let key = commit_key(group, partition);
            let known = self.owned.borrow().get(&key).and_then(|it| it.revision);
            if known.is_none() {
                let entry = self.checked(store.entry(key.as_str()).await)?;
                revisions.push((key, entry.map_or(0, |entry| entry.revision)));
            }
        }
        Ok(revisions)
    }

    /// Notes which partitions this process owns, and the revisions that it read before.
    pub(super) fn set_owned(
        &self,
        group: &str,
        partitions: &BTreeSet<Partition>,
        revisions: Vec<(String, u64)>,
    ) {
        let keys = partitions.iter().map(|it| commit_key(group, it));
        let keys: BTreeSet<String> = keys.collect();
        let mut owned = self.owned.borrow_mut();
        owned.retain(|key, _| keys.contains(key));
        for (key, revision) in revisions {
            owned.entry(key).or_default().revision = Some(revision);
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
