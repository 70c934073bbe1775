//! An id of a message in the form in which the store keeps it.

use super::key::fingerprint_of_id;
use std::collections::BTreeMap;

/// The names under which the store may know one id: one for each key of the ring, and the id itself
/// if the ring has `plain`. New entries are written under the first name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredId {
    name: Box<[u8]>,
    others: Box<[Box<[u8]>]>,
}

impl StoredId {
    /// `names` has at least one.
    pub(super) fn new(mut names: impl Iterator<Item = Box<[u8]>>) -> Self {
        Self {
            name: names.next().expect("a key ring has a first member"),
            others: names.collect(),
        }
    }

    /// The name under which the id is written.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// All names, that of [`Self::name`] first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&*self.name).chain(self.others.iter().map(|name| &**name))
    }

    /// True if one of the names is a hash by this key, which is named as in
    /// [`RunName::key`](crate::run::RunName::key).
    pub(crate) fn is_hashed_by(&self, key: &str) -> bool {
        self.names()
            .filter_map(fingerprint_of_id)
            .any(|found| key.starts_with(found))
    }
}

/// Numbers of stored ids by the key that has hashed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdCounts {
    plain: u64,
    by_fingerprint: BTreeMap<Box<str>, u64>,
}

impl IdCounts {
    /// Counts an id by one of its names.
    pub(crate) fn add(&mut self, name: &[u8]) {
        match fingerprint_of_id(name) {
            Some(fingerprint) => {
                *self.by_fingerprint.entry(fingerprint.into()).or_default() += 1;
            }
            None => self.plain += 1,
        }
    }

    /// The ids that this key has hashed; `None`: plain ids.
    pub(crate) fn under(&self, key: Option<&str>) -> u64 {
        let Some(key) = key else { return self.plain };
        let (fingerprint, _) = key.split_once('-').unwrap_or((key, ""));
        self.by_fingerprint.get(fingerprint).copied().unwrap_or(0)
    }
}

/// A plain id.
#[cfg(any(test, feature = "test-support"))]
impl From<&str> for StoredId {
    fn from(id: &str) -> Self {
        Self::new([id.as_bytes().into()].into_iter())
    }
}
