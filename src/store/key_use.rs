//! The stored messages of a shard by the key that encrypts them.

use super::StoredShard;
use crate::encryption::KeyRing;

/// The messages under one key, quarantine included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyUse {
    pub(crate) messages: u64,
    /// Compressed size. Plain runs in quarantine are not included.
    pub(crate) bytes: u64,
}

impl KeyUse {
    pub(crate) fn new(messages: u64, bytes: u64) -> Self {
        Self { messages, bytes }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// The messages that are not encrypted with the key that writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OtherKeys {
    /// The ring has their keys. Compaction encrypts them with the key that writes.
    pub(crate) old: KeyUse,
    /// They wait for a key that the ring does not have.
    pub(crate) missing: KeyUse,
}

impl StoredShard {
    /// The used keys by their names. `None`: messages that are not encrypted.
    pub(crate) fn key_uses(&self) -> impl Iterator<Item = (Option<&str>, KeyUse)> {
        let mut encrypted = KeyUse::default();
        self.keys.values().for_each(|used| encrypted.add(*used));
        // Version 0.1.0 does not count what a key encrypts, and writes only plain messages.
        let messages = self.pending() + self.quarantined;
        let plain = KeyUse {
            messages: messages.saturating_sub(encrypted.messages),
            bytes: self.stored_bytes().saturating_sub(encrypted.bytes),
        };
        let keys = (self.keys.iter()).map(|(name, used)| (Some(&**name), *used));
        keys.chain([(None, plain)])
            .filter(|(_, used)| used.messages > 0)
    }

    pub(crate) fn other_keys(&self, keys: &KeyRing) -> OtherKeys {
        let mut others = OtherKeys::default();
        for (name, used) in self.key_uses() {
            if !keys.reads(name) {
                others.missing.add(used);
            } else if name != keys.writer().map(|key| &**key) {
                others.old.add(used);
            }
        }
        others
    }

    /// The first key that the ring does not have.
    pub(crate) fn missing_key<'a>(&'a self, keys: &KeyRing) -> Option<Option<&'a str>> {
        let mut names = self.key_uses().map(|(name, _)| name);
        names.find(|name| !keys.reads(*name))
    }
}
