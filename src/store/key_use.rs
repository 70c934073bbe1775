//! The waiting messages of a shard by the key that encrypts them. Quarantined ones do not count: they wait
//! for a person, and need their key only then.

use super::StoredShard;
use crate::encryption::KeyRing;

/// Numbers of waiting messages that are not encrypted with the key that writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OtherKeys {
    /// Messages whose key is in the key ring. Compaction encrypts the messages with the key that writes.
    pub(crate) known: u64,
    /// They wait for a key that the ring does not have.
    pub(crate) missing: u64,
}

impl StoredShard {
    /// The keys of waiting messages, and the numbers of their messages. `None`: messages that are not
    /// encrypted.
    pub(crate) fn key_uses(&self) -> impl Iterator<Item = (Option<&str>, u64)> {
        // Version 0.1.0 does not count what a key encrypts, and writes only plain messages.
        let encrypted: u64 = self.keys.values().sum();
        let plain = self.pending().saturating_sub(encrypted);
        let keys = (self.keys.iter()).map(|(name, messages)| (Some(&**name), *messages));
        keys.chain([(None, plain)])
            .filter(|(_, messages)| *messages > 0)
    }

    pub(crate) fn other_keys(&self, keys: &KeyRing) -> OtherKeys {
        let mut others = OtherKeys::default();
        for (name, messages) in self.key_uses() {
            if !keys.reads(name) {
                others.missing += messages;
            } else if name != keys.writer().map(|key| &**key) {
                others.known += messages;
            }
        }
        others
    }

    /// The keys that the ring does not have.
    pub(crate) fn missing_keys(&self, keys: &KeyRing) -> impl Iterator<Item = Option<&str>> {
        let names = self.key_uses().map(|(name, _)| name);
        names.filter(|name| !keys.reads(*name))
    }
}
