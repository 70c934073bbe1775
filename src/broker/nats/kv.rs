//! The key-value bucket of a deployment, which holds what Kafka's groups hold: the metadata of commits, and who reads which partition.
//!
//! | key | value |
//! |---|---|
//! | `commit.<group>.<partition>` | the metadata of the last commit |
//! | `group.<group>` | see `group` |
//!
//! Of names, bytes that a key cannot have are written as `=` and two hex digits.

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

/// A key that nobody writes, and a revision that it never has.
const PROBE_KEY: &str = "check";
const IMPOSSIBLE_REVISION: u64 = 1 << 60;

/// The bucket by one connection, looked for once, and again when something failed: it may have been deleted. Clones are the same.
#[derive(Clone)]
pub(super) struct KvBucket {
    link: Connection,
    opened: Rc<RefCell<Option<Store>>>,
    /// What this process committed, by key: another bucket of the name knows nothing of it, and who commits does so only what is new.
    commits: Rc<RefCell<BTreeMap<String, String>>>,
}

impl KvBucket {
    pub(super) fn new(link: Connection) -> Self {
        Self {
            link,
            opened: Rc::default(),
            commits: Rc::default(),
        }
    }

    /// Makes the bucket if it is not there: with one replica, so that it works anywhere; who wants more makes it beforehand.
    pub(super) async fn open(&self) -> Result<Store, Error> {
        let found = self.opened.borrow().clone();
        if let Some(store) = found {
            return Ok(store);
        }
        let (context, bucket) = (
            self.link.context().await?,
            bucket_name(&self.link.cluster().deployment),
        );
        let description = "what Postdate commits, and who reads what".to_owned();
        let config = Config {
            bucket: bucket.clone(),
            history: 1,
            description,
            ..Config::default()
        };
        let is_there = stream_info::fetch(&self.link, &format!("KV_{bucket}"))
            .await?
            .is_some();
        let made = if is_there {
            None
        } else {
            Some(context.create_key_value(config).await)
        };
        let store = match made {
            Some(Ok(store)) => store,
            // Another process was quicker, or that is the reason.
            Some(Err(error)) => context
                .get_key_value(bucket.as_str())
                .await
                .map_err(|_| self.on_error(&error))?,
            None => context
                .get_key_value(bucket.as_str())
                .await
                .map_err(|error| self.on_error(&error))?,
        };
        *self.opened.borrow_mut() = Some(store.clone());
        self.restore_commits(&store).await?;
        Ok(store)
    }

    /// Whether this client may read and write it: by a write that the server refuses for what it says. `None`: there is no bucket.
    pub(super) async fn check_access(&self) -> Result<Option<()>, Error> {
        let bucket = bucket_name(&self.link.cluster().deployment);
        if stream_info::fetch(&self.link, &format!("KV_{bucket}"))
            .await?
            .is_none()
        {
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

    /// After something failed.
    pub(super) fn forget(&self) {
        self.opened.borrow_mut().take();
    }

    /// What the bucket may have lost.
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

    pub(super) fn on_error(&self, error: &(impl std::error::Error + 'static)) -> Error {
        self.forget();
        self.link.request_error(
            &format!(
                "the bucket {}",
                bucket_name(&self.link.cluster().deployment)
            ),
            error,
        )
    }

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
        let (store, key) = (self.open().await?, commit_key(group, partition));
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
}

/// The bucket's name.
pub(crate) fn bucket_name(deployment: &str) -> String {
    format!("postdate-{deployment}")
}

fn commit_key(group: &str, partition: &Partition) -> String {
    format!(
        "commit.{}.{}",
        escape_key(group),
        escape_key(&partition.to_string())
    )
}

/// One token of a key, for any text.
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
    fn no_two_names_share_a_key() {
        assert_eq!(
            commit_key("prod.orders", &Partition::new("S:a.*.>", 0)),
            "commit.prod=2eorders.S=3aa=2e=2a=2e=3e=2f0"
        );
        assert_ne!(escape_key("a=2e"), escape_key("a."));
    }
}
