//! The keys in Redis: names, types, fields and the format of values. `lua/` and `codec` write and
//! read them.
//!
//! All keys of a shard have one hash tag. So they live and fail over together, and one script can
//! change them in one step: `pd:{<deployment>/<route>/<topic>/<partition>}:<key>`.
//!
//! | key | type | field or member | value | written by |
//! |---|---|---|---|---|
//! | `meta` | hash | `version` | layout version; `copy` while a copy writes the shard | open, begin copy, end copy |
//! | | | `copy` | number of the copy that writes the shard | begin copy, end copy |
//! | | | `identity` | identity of the source | open |
//! | | | `watermark` | watermark | open, append |
//! | | | `claimed` | pair | open, advance |
//! | | | `delivered` | pair | open, advance |
//! | | | `tail_from` | watermark from which the tail is complete | open, append |
//! | | | `hold` | watermark up to which claims wait; `-`: the wait has ended | open, append, end hold |
//! | | | `possibly_delivered` | pair: what may have been delivered before Redis lost writes | open |
//! | | | `pause` | state after the last control record: `<watermark behind it><p if paused, or else r><since>:<until>:<earlier>:<at>:<note in base64>` | open, append |
//! | | | `token` | lease token: `<session>.<tenure>` | acquire, release |
//! | | | `ledger` | ledger | open, append, advance, replace, restore |
//! | | | `history` | lineage | append, replace |
//! | | | `key:<name of a key>` | messages in slices that this key encrypts | append, advance, replace, quarantine, restore |
//! | `counts` | hash | slice, or `quarantine` | `<messages> <bytes> <least offset ever added>` | append, advance, replace, quarantine, restore |
//! | `tail` | zset | `<end of the batch> <index member> <score of least due> <slice>` | 0 | append |
//! | `ids` | hash | id, or its hash, see `encryption::key` | place of the message that waits under it | append, advance, replace |
//! | `cancelled` | zset | place that must not be delivered; if it is rescheduled, followed by the offset of the record that gave it its due time, and the due time | 0 | append, advance |
//! | `effects` | hash | offset of a request with an answer | place of the message that it names, then `c` if it is changed or `l` if not | append, advance, remove_finished_ids |
//! | | | place of a changed message | offset of the request that changed it last | append, advance, remove_finished_ids |
//! | `quarantine` | hash | run name | bytes of an unreadable run | quarantine, restore |
//! | `slice:<slice>` | zset | index member: `<least offset> <run name>` | score of least due | append, advance, replace, quarantine, restore |
//! | `pool:<slice>` | hash | run name | encoded run | append, advance, replace, quarantine, restore |
//!
//! | format | text |
//! |---|---|
//! | offset, watermark | 16 hex digits |
//! | place | due and offset: 32 hex digits |
//! | pair | due and offset of the cursor, and watermark: 48 hex digits |
//! | score | due in ms as a double, see `codec::due_score` |
//! | ledger | `<accepted> <delivered> <cancelled> <dead-lettered> <retried> <removed> <uncertain: 0 or 1> <watermark><delivered>`; the last part names the positions that the ledger belongs to |
//! | lineage | `<replacements>`, then for each of the last epochs, the latest one first: ` <epoch> <watermark where it started>` |
//! | epoch | `<process>-<number>` in hex |
//!
//! A copy writes all keys but `tail`, and ends with the fields of `meta`.
//!
//! No key of a shard expires. A key disappears with its last element; `meta` stays until the shard
//! is erased. A foreign value under a key of a slice is renamed to `<key>:foreign`.
//!
//! One key belongs to the deployment: `pd:{<deployment>}:sessions`, a hash. A field is the id of a
//! session, `<worker id>-<number>`. Its value is `<heartbeats> <end in epoch ms> <length in ms>
//! <server> <entry>`; the server is the run id of the server to which its process listened at the last
//! heartbeat, or 0, and the entry is the JSON of a `WorkerEntry`. The key expires after a day without
//! heartbeats. Version 0.1.0 lists its live workers in the zset `pd:{<deployment>}:workers`. Its leases
//! have `lease_end` and `lease_length` in `meta`, which the next acquire removes.
//!
//! `pd:{<deployment>}:audit` and `pd:{<deployment>}:audit:frequent` are zsets: the last lines of the parts of the audit list. The
//! score of a member is 0. It is the position of the line in 40 hex digits, and then the line: JSON, or its encrypted form. The
//! keys do not expire.
//!
//! `pd:{<deployment>}:request:<name>` is a string: the state of a request with an idempotency key, as JSON or in its encrypted form.
//! It expires. `pd:{<deployment>}:requests` is a zset: the names of those that ended, with the end of their keys in epoch ms as score.
//! It expires with its last member.
//!
//! `pd:{<deployment>}:hints` and `pd:{<deployment>}:worker:<process>` are pub/sub channels, see
//! `pubsub`.

use crate::model::{Partition, SessionId, ShardId};
use crate::store::AuditPart;
use std::fmt::{Display, Write};

// The keys of a shard. A change of a name, a type or a format needs a new `LAYOUT_VERSION`.
pub(super) const META: &str = "meta";
pub(super) const COUNTS: &str = "counts";
pub(super) const TAIL: &str = "tail";
pub(super) const IDS: &str = "ids";
pub(super) const CANCELLED: &str = "cancelled";
pub(super) const QUARANTINE: &str = "quarantine";
pub(super) const EFFECTS: &str = "effects";
/// The keys that every shard has, besides those of its slices.
pub(super) const OF_EVERY_SHARD: [&str; 7] =
    [META, COUNTS, TAIL, IDS, CANCELLED, QUARANTINE, EFFECTS];

/// Version of keys and values, stored in `meta`. Only erase changes a shard of another version.
pub(super) const LAYOUT_VERSION: &str = "1";

/// The version of a shard that `postdate store copy` writes. No other call reads such a shard.
pub(super) const COPY_VERSION: &str = "copy";

/// Field of `counts` for the quarantine. No slice has this name.
pub(super) const QUARANTINE_FIELD: &str = "quarantine";

/// Starts the fields of `meta` for keys of the key ring.
pub(super) const KEY_FIELD_PREFIX: &str = "key:";

/// Redis types of the two keys of a slice.
pub(super) const INDEX_TYPE: &str = "zset";
pub(super) const POOL_TYPE: &str = "hash";

/// Names the keys of one deployment.
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
        let route = escaped(&shard.route);
        let topic = escaped(&shard.partition.topic);
        Keys {
            prefix: format!(
                "pd:{{{}/{route}/{topic}/{}}}:",
                self.deployment, shard.partition.index
            ),
        }
    }

    /// Differs from every key of a shard: the hash tag of a shard contains slashes.
    pub(super) fn sessions_key(&self) -> String {
        format!("pd:{{{}}}:sessions", self.deployment)
    }

    pub(super) fn request_key(&self, name: &str) -> String {
        format!("pd:{{{}}}:request:{name}", self.deployment)
    }

    pub(super) fn ended_requests_key(&self) -> String {
        format!("pd:{{{}}}:requests", self.deployment)
    }

    pub(super) fn audit_key(&self, part: AuditPart) -> String {
        let name = match part {
            AuditPart::Changes => "audit",
            AuditPart::Frequent => "audit:frequent",
        };
        format!("pd:{{{}}}:{name}", self.deployment)
    }

    /// The channel to which the process of a session listens, as a sign that it lives.
    pub(super) fn worker_channel(&self, session: SessionId) -> String {
        format!("{}{}", self.worker_channel_prefix(), session.process())
    }

    /// The name of a process follows.
    pub(super) fn worker_channel_prefix(&self) -> String {
        format!("pd:{{{}}}:worker:", self.deployment)
    }

    /// The key in which version 0.1.0 lists its live workers.
    pub(super) fn workers_key(&self) -> String {
        format!("pd:{{{}}}:workers", self.deployment)
    }

    /// The name of the pub/sub channel.
    pub(super) fn hint_channel(&self) -> String {
        format!("pd:{{{}}}:hints", self.deployment)
    }

    /// Matches the meta keys of all shards, and maybe other keys: see
    /// [`Self::shard_of_meta_key`].
    pub(super) fn meta_pattern(&self) -> String {
        // An escaped name contains no special character of a pattern.
        format!("pd:{{{}/*}}:meta", self.deployment)
    }

    /// The shard of this meta key. `None`: no meta key of this deployment.
    pub(super) fn shard_of_meta_key(&self, key: &str) -> Option<ShardId> {
        let tag = key.strip_prefix("pd:{")?.strip_suffix("}:meta")?;
        let mut parts = tag
            .strip_prefix(&self.deployment)?
            .strip_prefix('/')?
            .split('/');
        let route = unescaped(parts.next()?)?;
        let topic = unescaped(parts.next()?)?;
        let index = parts.next()?.parse().ok()?;
        let shard = ShardId::new(route, Partition::new(topic, index));
        // Rejects other spellings of the same names.
        (self.shard_keys(&shard).name(META) == key).then_some(shard)
    }
}

/// Names the keys of one shard.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(super) fn names(&self, keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| self.name(key)).collect()
    }

    /// The slice may be a text, so that one with a level that this version does not know can be
    /// erased.
    pub(super) fn slice(&self, slice: impl Display) -> String {
        self.name(&format!("slice:{}", escaped(&slice.to_string())))
    }

    pub(super) fn pool(&self, slice: impl Display) -> String {
        self.name(&format!("pool:{}", escaped(&slice.to_string())))
    }
}

/// The name for a foreign value that was found under this key.
pub(super) fn foreign_key(key: &str) -> String {
    format!("{key}:foreign")
}

/// Keeps letters, digits, `.`, `_` and `-`. Any other byte becomes `%` and two hex digits. So a
/// name cannot end the hash tag, reach into another part of the key, or equal another name.
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

/// The inverse of [`escaped`]. `None`: not a result of it.
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
        Keyspace::new(deployment).shard_keys(&shard).name(META)
    }

    #[test]
    fn keys_read_as_the_layout_table_says() {
        let keys = Keyspace::new("prod")
            .shard_keys(&ShardId::new("orders", Partition::new("orders.delayed", 0)));
        assert_eq!(keys.name(META), "pd:{prod/orders/orders.delayed/0}:meta");
        assert_eq!(
            keys.slice("h482913"),
            "pd:{prod/orders/orders.delayed/0}:slice:h482913"
        );
        assert_eq!(keys.pool("n7"), "pd:{prod/orders/orders.delayed/0}:pool:n7");
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
            let key = keyspace.shard_keys(&shard).name(META);
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
