//! The key-value bucket of a deployment, which holds what Kafka's groups hold: the metadata of commits, and who reads which partition.
//!
//! | key | value |
//! |---|---|
//! | `commit.<group>.<partition>` | the metadata of the last commit |
//! | `group.<group>` | see `group` |
//!
//! Of names, bytes that a key cannot have are written as `=` and two hex digits.

use super::link::{Link, chain};
use crate::broker::Error;
use crate::model::Partition;
use async_nats::jetstream::context::CreateKeyValueErrorKind;
use async_nats::jetstream::kv::{Config, Store};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;

/// The bucket by one connection, looked for once. Clones are the same.
#[derive(Clone)]
pub(super) struct Bucket {
    link: Link,
    found: Rc<RefCell<Option<Store>>>,
}

impl Bucket {
    pub(super) fn new(link: Link) -> Self {
        Self { link, found: Rc::default() }
    }

    /// Makes the bucket if it is not there: with one replica, so that it works anywhere; who wants more makes it beforehand.
    pub(super) async fn store(&self) -> Result<Store, Error> {
        let found = self.found.borrow().clone();
        if let Some(store) = found {
            return Ok(store);
        }
        let (context, bucket) = (self.link.context().await?, name(&self.link.cluster().deployment));
        let description = "what Postdate commits, and who reads what".to_owned();
        let config = Config { bucket: bucket.clone(), history: 1, description, ..Config::default() };
        let store = match context.get_key_value(bucket.as_str()).await {
            Ok(store) => store,
            Err(_) => match context.create_key_value(config).await {
                Ok(store) => store,
                // Another process was quicker.
                Err(error)
                    if error.kind() == CreateKeyValueErrorKind::BucketCreate && context.get_key_value(bucket.as_str()).await.is_ok() =>
                {
                    context.get_key_value(bucket.as_str()).await.map_err(|error| unavailable(&bucket, &error))?
                }
                Err(error) => return Err(unavailable(&bucket, &error)),
            },
        };
        *self.found.borrow_mut() = Some(store.clone());
        Ok(store)
    }

    pub(super) async fn committed(&self, group: &str, partitions: &[Partition]) -> Result<Vec<Option<String>>, Error> {
        let mut found = Vec::with_capacity(partitions.len());
        if partitions.is_empty() {
            return Ok(found);
        }
        let store = self.store().await?;
        for partition in partitions {
            let value = store.get(commit_key(group, partition)).await.map_err(|error| unavailable(&store.name, &error))?;
            found.push(value.map(|value| String::from_utf8_lossy(&value).into_owned()));
        }
        Ok(found)
    }

    pub(super) async fn commit(&self, group: &str, partition: &Partition, metadata: &str) -> Result<(), Error> {
        let store = self.store().await?;
        let put = store.put(commit_key(group, partition), metadata.to_owned().into()).await;
        put.map(drop).map_err(|error| unavailable(&store.name, &error))
    }
}

pub(super) fn unavailable(bucket: &str, error: &(impl std::error::Error + 'static)) -> Error {
    Error::Unavailable(format!("the bucket {bucket}: {}", chain(error)))
}

/// The bucket's name.
pub(crate) fn name(deployment: &str) -> String {
    format!("postdate-{deployment}")
}

fn commit_key(group: &str, partition: &Partition) -> String {
    format!("commit.{}.{}", escaped(group), escaped(&partition.to_string()))
}

/// One token of a key, for any text.
pub(super) fn escaped(text: &str) -> String {
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
        assert_eq!(commit_key("prod.orders", &Partition::new("S:a.*.>", 0)), "commit.prod=2eorders.S=3aa=2e=2a=2e=3e=2f0");
        assert_ne!(escaped("a=2e"), escaped("a."));
    }
}
