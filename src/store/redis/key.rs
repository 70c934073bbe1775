//! The keys of a shard in Redis, and nothing of what is done with them.
//!
//! All keys of a shard lie under one hash tag, so that they live and fail over together and a script may touch them in one step:
//! `pd:{<deployment>/<route>/<topic>/<partition>}:` and then
//!
//! | key | type | holds |
//! |---|---|---|
//! | `meta` | hash | identity, layout version, watermark, claimed, delivered, the ledger, the history, the lease's token and end, from where the tail is complete |
//! | `counts` | hash | slice (or `quarantine`) -> messages, bytes, least offset ever added: index of slices, forecast, lowest pending |
//! | `tail` | zset | the newest runs by the end of their batch |
//! | `ids` | hash | id -> place of the message that waits under it |
//! | `cancelled` | zset | places that are not to be delivered |
//! | `quarantine` | hash | name -> bytes of runs that could not be read |
//! | `slice:<slice>` | zset | the slice's index: least offset and name of each run, scored by least due |
//! | `pool:<slice>` | hash | name -> encoded run |
//!
//! None of them expires: each is gone with its last element, but for `meta`, which stays until the shard is erased.
//!
//! And one key of the deployment, `pd:{<deployment>}:workers`: a zset of the timer workers, scored by the millisecond until which each counts
//! as alive. It expires with the last of them. `pd:{<deployment>}:hints` is no key but a channel: see `hints`.

use crate::model::{Partition, ShardId, Slice};
use std::fmt::Write;

/// What is kept of a shard. A change of any of it is another [`LAYOUT_VERSION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key<'a> {
    Meta,
    Counts,
    Tail,
    Ids,
    Cancelled,
    Quarantine,
    /// By the slice's text, so that a slice of a level that this version does not know can be erased too.
    Slice(&'a str),
    Pool(&'a str),
}

/// Version of keys and values; `meta` carries it, and every script but birth and erase leaves a shard of another version alone.
pub(super) const LAYOUT_VERSION: &str = "1";

/// Field of `counts` for what is set aside; no slice is written like it.
pub(super) const QUARANTINE_FIELD: &str = "quarantine";

/// What a slice's two keys are, in the server's words.
pub(super) const SLICE_TYPE: &str = "zset";
pub(super) const POOL_TYPE: &str = "hash";

/// Names the keys of one deployment's shards.
#[derive(Clone, Debug)]
pub(super) struct Keyspace {
    deployment: String,
}

impl Keyspace {
    pub(super) fn new(deployment: &str) -> Self {
        Self {
            deployment: escaped(deployment),
        }
    }

    pub(super) fn shard_keys(&self, shard: &ShardId) -> Keys {
        let (route, topic) = (escaped(&shard.route), escaped(&shard.partition.topic));
        Keys {
            prefix: format!(
                "pd:{{{}/{route}/{topic}/{}}}:",
                self.deployment, shard.partition.index
            ),
        }
    }

    /// Of no shard: the tag of one has slashes in it.
    pub(super) fn workers_key(&self) -> String {
        format!("pd:{{{}}}:workers", self.deployment)
    }

    /// The channel.
    pub(super) fn hint_channel(&self) -> String {
        format!("pd:{{{}}}:hints", self.deployment)
    }

    /// Matches the metas of all shards, and may match more: see [`Self::shard`].
    pub(super) fn meta_pattern(&self) -> String {
        // An escaped name has no character that a pattern gives a meaning to.
        format!("pd:{{{}/*}}:meta", self.deployment)
    }

    /// The shard whose meta `key` is; `None`: it is none of this deployment's.
    pub(super) fn shard_of_meta_key(&self, key: &str) -> Option<ShardId> {
        let tag = key.strip_prefix("pd:{")?.strip_suffix("}:meta")?;
        let mut parts = tag
            .strip_prefix(&self.deployment)?
            .strip_prefix('/')?
            .split('/');
        let (route, topic, index) = (parts.next()?, parts.next()?, parts.next()?);
        let shard = ShardId::new(
            unescaped(route)?,
            Partition::new(unescaped(topic)?, index.parse().ok()?),
        );
        (self.shard_keys(&shard).name(Key::Meta) == key).then_some(shard)
    }
}

/// Names the keys of one shard.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn name(&self, key: Key<'_>) -> String {
        let prefix = &self.prefix;
        match key {
            Key::Meta => format!("{prefix}meta"),
            Key::Counts => format!("{prefix}counts"),
            Key::Tail => format!("{prefix}tail"),
            Key::Ids => format!("{prefix}ids"),
            Key::Cancelled => format!("{prefix}cancelled"),
            Key::Quarantine => format!("{prefix}quarantine"),
            Key::Slice(slice) => format!("{prefix}slice:{}", escaped(slice)),
            Key::Pool(slice) => format!("{prefix}pool:{}", escaped(slice)),
        }
    }

    pub(super) fn names<const N: usize>(&self, keys: [Key<'_>; N]) -> Vec<String> {
        keys.into_iter().map(|key| self.name(key)).collect()
    }

    pub(super) fn slice(&self, slice: Slice) -> String {
        self.name(Key::Slice(&slice.to_string()))
    }

    pub(super) fn pool(&self, slice: Slice) -> String {
        self.name(Key::Pool(&slice.to_string()))
    }
}

/// Where a value goes that somebody else wrote under one of our keys.
pub(super) fn foreign_key(key: &str) -> String {
    format!("{key}:foreign")
}

/// Keeps letters, digits, `.`, `_` and `-`, all that brokers' and our own names are made of; any other byte becomes `%` and two hex digits.
/// So no name can end the hash tag, reach into another part of the key, or be taken for another name.
fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

/// What [`escaped`] made of a name; `None`: not of its making.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn meta(deployment: &str, route: &str, topic: &str) -> String {
        let shard = ShardId::new(route, Partition::new(topic, 3));
        Keyspace::new(deployment).shard_keys(&shard).name(Key::Meta)
    }

    #[test]
    fn keys_read_as_the_layout_table_says() {
        let keys = Keyspace::new("prod")
            .shard_keys(&ShardId::new("orders", Partition::new("orders.delayed", 0)));
        assert_eq!(
            keys.name(Key::Meta),
            "pd:{prod/orders/orders.delayed/0}:meta"
        );
        assert_eq!(
            keys.name(Key::Slice("h482913")),
            "pd:{prod/orders/orders.delayed/0}:slice:h482913"
        );
        assert_eq!(
            keys.name(Key::Pool("n7")),
            "pd:{prod/orders/orders.delayed/0}:pool:n7"
        );
        assert_eq!(Keyspace::new("pr/od").workers_key(), "pd:{pr%2fod}:workers");
    }

    proptest! {
        #[test]
        fn two_shards_never_share_a_key_whatever_they_are_called(a: [String; 3], b: [String; 3]) {
            prop_assert_eq!(a == b, meta(&a[0], &a[1], &a[2]) == meta(&b[0], &b[1], &b[2]));
        }

        #[test]
        fn a_shard_is_read_back_from_its_key_by_its_own_deployment_only(names: [String; 3], other: String, index: i32) {
            let (keyspace, shard) = (Keyspace::new(&names[0]), ShardId::new(&*names[1], Partition::new(&*names[2], index)));
            let key = keyspace.shard_keys(&shard).name(Key::Meta);
            prop_assert_eq!(Keyspace::new(&other).shard_of_meta_key(&key).is_some(), other == names[0]);
            prop_assert_eq!(keyspace.shard_of_meta_key(&key), Some(shard));
        }

        #[test]
        fn foreign_keys_are_no_shards(key: String) {
            prop_assert_eq!(Keyspace::new("prod").shard_of_meta_key(&key), None);
            let _ = Keyspace::new("prod").shard_of_meta_key(&format!("pd:{{prod/{key}}}:meta"));
        }

        #[test]
        fn no_name_breaks_out_of_the_hash_tag(name: String) {
            let key = meta(&name, &name, &name);
            prop_assert_eq!(key.find('{'), Some(3));
            prop_assert_eq!(key.matches(['{', '}']).count(), 2);
            prop_assert_eq!(key.split_once('}').map(|(_, rest)| rest), Some(":meta"));
        }
    }

    #[test]
    fn a_name_with_a_slash_or_a_brace_is_not_another_shards() {
        assert_ne!(meta("a/b", "c", "t"), meta("a", "b/c", "t"));
        assert_eq!(meta("a", "b", "{t}"), "pd:{a/b/%7bt%7d/3}:meta");
    }
}
