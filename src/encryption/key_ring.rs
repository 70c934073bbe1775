//! The keys of a process: the first one writes, all of them read.
//!
//! A ring is written as text, one member a line: `<key id>:<32 bytes in base64>`, or `plain` for
//! data that is not encrypted. Empty lines, and lines that start with `#`, are ignored.

use super::StoredId;
use super::key::{Key, NONCE_LENGTH, RunContext, TAG_LENGTH};
use crate::model::ShardId;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Every lookup of an id asks for all members.
const MEMBERS_MAX: usize = 8;

const KEY_ID_LENGTH_MAX: usize = 24;

/// Starts an encrypted value that is no run. Plain ones are JSON, which starts with another byte.
const SEALED_VALUE: u8 = 1;

/// The member for data that is not encrypted.
const PLAIN: &str = "plain";

/// Names a line and never its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyRingError {
    #[error("line {0} is neither <key id>:<key> nor plain")]
    Form(usize),
    #[error("the key id in line {0} has other characters than a-z 0-9 . _ -, or more than 24")]
    KeyId(usize),
    #[error("the key in line {0} is not base64 of 32 bytes")]
    Secret(usize),
    #[error("line {0} repeats an earlier key or key id")]
    Repeated(usize),
    #[error("there is no key")]
    Empty,
    #[error("there are more than {MEMBERS_MAX} keys")]
    TooMany,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct KeyRing {
    members: Arc<[Member]>,
    /// The index of the member that writes.
    writer: usize,
}

/// `None`: data that is not encrypted.
type Member = Option<Key>;

impl KeyRing {
    /// The ring of a process without keys: writes and reads only plain data.
    pub(crate) fn plain() -> Self {
        Self::new([None].into())
    }

    fn new(members: Arc<[Member]>) -> Self {
        Self { members, writer: 0 }
    }

    /// The same ring, but the key with this name writes, if the ring has it.
    pub(crate) fn with_writer(&self, key: Option<&str>) -> Self {
        Self {
            members: self.members.clone(),
            writer: self
                .names()
                .position(|known| known == key)
                .unwrap_or(self.writer),
        }
    }

    /// Reads the text of a ring. Different deployments get different ciphertexts from one ring.
    pub(crate) fn parse(deployment: &str, text: &str) -> Result<Self, KeyRingError> {
        let mut members: Vec<Member> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let (line, number) = (line.trim(), index + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let member = parse_member(deployment, line, number)?;
            if members.iter().any(|earlier| is_same(earlier, &member)) {
                return Err(KeyRingError::Repeated(number));
            }
            members.push(member);
        }
        match members.len() {
            0 => Err(KeyRingError::Empty),
            1..=MEMBERS_MAX => Ok(Self::new(members.into())),
            _ => Err(KeyRingError::TooMany),
        }
    }

    /// The name of the key that writes; `None` if data is written in plain form.
    pub(crate) fn writer(&self) -> Option<&Arc<str>> {
        self.members[self.writer].as_ref().map(|key| &key.name)
    }

    /// The names of all keys in order. `None`: plain data.
    pub(crate) fn names(&self) -> impl Iterator<Item = Option<&str>> {
        self.members.iter().map(name)
    }

    /// True if the ring can read data under this key; `None`: plain data.
    pub(crate) fn reads(&self, key: Option<&str>) -> bool {
        self.names().any(|known| known == key)
    }

    /// The forms of an id in the store.
    pub(crate) fn stored_id(&self, shard: &ShardId, id: &str) -> StoredId {
        let (others, writer) = self.members.split_at(self.writer);
        StoredId::new(writer.iter().chain(others).map(|member| match member {
            Some(key) => key.hash_id(shard, id),
            None => id.as_bytes().into(),
        }))
    }

    /// Encrypts the content of a new run in place. Returns the nonce and the tag; `None` if the
    /// ring writes plain data, which changes nothing.
    pub(crate) fn seal(
        &self,
        run: &RunContext<'_>,
        content: &mut [u8],
    ) -> Option<([u8; NONCE_LENGTH], [u8; TAG_LENGTH])> {
        let writer = self.members[self.writer].as_ref();
        writer.map(|key| key.seal(run, content))
    }

    /// Decrypts content and tag of a run in place. `None`: it was changed, or it is at another place
    /// than the one for which it was written, or the ring does not have the key.
    pub(crate) fn open<'b>(
        &self,
        key: &str,
        run: &RunContext<'_>,
        nonce: [u8; NONCE_LENGTH],
        sealed: &'b mut [u8],
    ) -> Option<&'b [u8]> {
        let mut keys = self.members.iter().flatten();
        keys.find(|known| &*known.name == key)?
            .open(run, nonce, sealed)
    }

    /// The stored form of a value that is no run: the content, if the ring writes plain data.
    /// `place` is the kind and the name of the value.
    pub(crate) fn seal_value(&self, place: &[u8], mut content: Vec<u8>) -> Vec<u8> {
        let Some(key) = &self.members[self.writer] else {
            return content;
        };
        let (nonce, tag) = key.seal_value(place, &mut content);
        let name = key.name.as_bytes();
        let head = [SEALED_VALUE, name.len() as u8];
        [&head, name, &nonce, &content, &tag].concat()
    }

    /// The content of a stored value. `None`: it was changed, or it is at another place, or the ring
    /// does not have its key.
    pub(crate) fn open_value(&self, place: &[u8], stored: &[u8]) -> Option<Vec<u8>> {
        let Some(rest) = stored.strip_prefix(&[SEALED_VALUE]) else {
            return self.reads(None).then(|| stored.to_vec());
        };
        let (&length, rest) = rest.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(length))?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LENGTH>()?;
        let mut keys = self.members.iter().flatten();
        let key = keys.find(|known| known.name.as_bytes() == name)?;
        let mut sealed = sealed.to_vec();
        let content = key.open_value(place, *nonce, &mut sealed)?;
        Some(content.to_vec())
    }
}

impl Default for KeyRing {
    fn default() -> Self {
        Self::plain()
    }
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// A key for people, by its name; `None`: plain data.
pub(crate) fn describe_key(name: Option<&str>) -> String {
    match name.and_then(|name| name.split_once('-')) {
        Some((fingerprint, id)) => format!("key `{id}` with fingerprint {fingerprint}"),
        None => format!("`{PLAIN}`, for data that is not encrypted"),
    }
}

/// Why a shard waits, and the remedy.
pub(crate) fn waits_for_key(shard: &ShardId, name: Option<&str>) -> String {
    let key = describe_key(name);
    format!("shard {shard} waits for {key}: add it to store.encryption.keys_file, and restart")
}

fn parse_member(deployment: &str, line: &str, number: usize) -> Result<Member, KeyRingError> {
    if line == PLAIN {
        return Ok(None);
    }
    let (id, encoded) = line.split_once(':').ok_or(KeyRingError::Form(number))?;
    let is_allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-".contains(&c);
    if id.is_empty() || id.len() > KEY_ID_LENGTH_MAX || !id.bytes().all(is_allowed) || id == PLAIN {
        return Err(KeyRingError::KeyId(number));
    }
    // Base64 is decoded in whole groups of three bytes.
    let mut decoded = Zeroizing::new([0; 33]);
    let length = STANDARD.decode_slice(encoded.trim(), &mut *decoded);
    let secret = decoded.first_chunk().filter(|_| length == Ok(32));
    let secret = secret.ok_or(KeyRingError::Secret(number))?;
    Ok(Some(Key::new(deployment, id, secret)))
}

fn name(member: &Member) -> Option<&str> {
    member.as_ref().map(|key| &*key.name)
}

fn is_same(a: &Member, b: &Member) -> bool {
    let parts = |member| name(member).and_then(|name| name.split_once('-'));
    match (parts(a), parts(b)) {
        (Some(a), Some(b)) => a.0 == b.0 || a.1 == b.1,
        (a, b) => a == b,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::Partition;
    use proptest::prelude::*;

    /// A line of a ring whose key consists of this byte.
    pub(crate) fn line(id: &str, byte: u8) -> String {
        format!("{id}:{}\n", STANDARD.encode([byte; 32]))
    }

    pub(crate) fn ring(text: &str) -> KeyRing {
        KeyRing::parse("prod", text).expect("the text is valid")
    }

    fn shard(route: &str, topic: &str, index: i32) -> ShardId {
        ShardId::new(route, Partition::new(topic, index))
    }

    fn error(text: &str) -> (KeyRingError, String) {
        let error = KeyRing::parse("prod", text).expect_err("the text is invalid");
        (error, error.to_string())
    }

    #[test]
    fn the_first_member_writes_and_all_of_them_read() {
        let text = format!("# new\n{}\n  plain \n{}", line("b", 2), line("a.1_x-y", 1));
        let ring = ring(&text);
        let names: Vec<_> = ring.names().map(describe_key).collect();
        assert!(
            names[0].starts_with("key `b` with fingerprint "),
            "{names:?}"
        );
        assert_eq!(names[1], "`plain`, for data that is not encrypted");
        assert!(names[2].starts_with("key `a.1_x-y` with "), "{names:?}");
        let writer = ring.writer().expect("a key writes").clone();
        assert!(ring.reads(Some(&writer)) && ring.reads(None));
        assert!(!ring.reads(Some("00000000-b")), "another key under the id");
        assert!(!KeyRing::plain().reads(Some(&writer)));
    }

    #[test]
    fn an_error_names_the_line_and_never_the_key() {
        let secret = STANDARD.encode([7; 32]);
        let short = STANDARD.encode([7; 31]);
        let long = STANDARD.encode([7; 33]);
        let a = line("a", 1);
        for (text, expected) in [
            (String::new(), KeyRingError::Empty),
            (format!("\n{secret}"), KeyRingError::Form(2)),
            (format!("#\nA:{secret}"), KeyRingError::KeyId(2)),
            (format!(":{secret}"), KeyRingError::KeyId(1)),
            (format!("plain:{secret}"), KeyRingError::KeyId(1)),
            (
                format!("{}:{secret}", "a".repeat(25)),
                KeyRingError::KeyId(1),
            ),
            (format!("{a}b:{short}"), KeyRingError::Secret(2)),
            (format!("{a}b:{long}"), KeyRingError::Secret(2)),
            (format!("{a}b:{secret}{secret}"), KeyRingError::Secret(2)),
            (format!("b:{}", &secret[1..]), KeyRingError::Secret(1)),
            (format!("{a}a:{secret}"), KeyRingError::Repeated(2)),
            (format!("{a}{}", line("b", 1)), KeyRingError::Repeated(2)),
            ("plain\nplain".to_owned(), KeyRingError::Repeated(2)),
            (
                (0..9).map(|n| line(&n.to_string(), n)).collect(),
                KeyRingError::TooMany,
            ),
        ] {
            let (error, message) = error(&text);
            assert_eq!(error, expected, "{text}");
            assert!(!message.contains(&secret[..8]), "{message}");
        }
        let shown = format!("{:?}", ring(&a));
        assert!(!shown.contains(&STANDARD.encode([1; 32])), "{shown}");
    }

    /// Stored data must stay readable: these bytes never change.
    #[test]
    fn derived_values_never_change() {
        let ring = ring(&line("k1", 1));
        let id = ring.stored_id(&shard("orders", "in", 3), "o-1");
        let hex: String = id.name().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&**ring.writer().expect("a key"), "ca4f905c-k1");
        assert_eq!(hex, "fe6361346639303563fe8786f78147ea11cbf21e24e5fe227d");
    }

    proptest! {
        #[test]
        fn a_run_opens_only_at_its_place_with_its_key_and_unchanged(
            content in prop::collection::vec(any::<u8>(), 0..60),
            flip in any::<prop::sample::Index>(),
        ) {
            let ring = ring(&format!("{}{}plain", line("a", 1), line("b", 2)));
            let key = ring.writer().expect("a key").to_string();
            let place = shard("r", "t", 1);
            let run = RunContext { shard: &place, name: "1-1-1-0", header: b"h" };
            let mut sealed = content.clone();
            let (nonce, tag) = ring.seal(&run, &mut sealed).expect("a key writes");
            sealed.extend(tag);
            let open = |ring: &KeyRing, key: &str, run: &RunContext<'_>, sealed: &[u8]| {
                let mut sealed = sealed.to_vec();
                ring.open(key, run, nonce, &mut sealed).map(<[u8]>::to_vec)
            };
            prop_assert_eq!(open(&ring, &key, &run, &sealed), Some(content));
            for other in [shard("r", "t", 2), shard("rt", "", 1), shard("", "rt", 1)] {
                let moved = RunContext { shard: &other, ..run };
                prop_assert_eq!(open(&ring, &key, &moved, &sealed), None, "{}", other);
            }
            let renamed = RunContext { name: "1-2-1-0", ..run };
            prop_assert_eq!(open(&ring, &key, &renamed, &sealed), None);
            let other_header = RunContext { header: b"x", ..run };
            prop_assert_eq!(open(&ring, &key, &other_header, &sealed), None);
            let second = ring.names().nth(1).flatten().expect("a key");
            prop_assert_eq!(open(&ring, second, &run, &sealed), None, "another key");
            let other = KeyRing::parse("test", &line("a", 1)).expect("valid");
            prop_assert_eq!(open(&other, &key, &run, &sealed), None, "another deployment");
            let mut changed = sealed.clone();
            let at = flip.index(changed.len());
            changed[at] ^= 1;
            prop_assert_eq!(open(&ring, &key, &run, &changed), None);
        }

        #[test]
        fn ids_are_hashed_by_every_key_and_differ_between_shards(id in ".{0,20}") {
            let ring = ring(&format!("{}plain\n{}", line("a", 1), line("b", 2)));
            let stored = ring.stored_id(&shard("r", "t", 1), &id);
            let names: Vec<_> = stored.names().collect();
            prop_assert_eq!(names.len(), 3);
            prop_assert_eq!(names[1], id.as_bytes());
            for (name, key) in [(names[0], 0), (names[2], 2)] {
                let key = ring.names().nth(key).flatten().expect("a key");
                prop_assert_eq!(name.len(), 25);
                prop_assert!(std::str::from_utf8(name).is_err(), "it is no plain id");
                prop_assert!(stored.is_hashed_by(key));
            }
            prop_assert!(!stored.is_hashed_by("00000000-a"));
            let elsewhere = ring.stored_id(&shard("r", "t", 2), &id);
            prop_assert_ne!(stored.name(), elsewhere.name());
            prop_assert_eq!(&ring.stored_id(&shard("r", "t", 1), &id), &stored);
        }

        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = KeyRing::parse("prod", &text);
        }
    }

    #[test]
    fn a_value_opens_only_at_its_place_and_with_its_key() {
        let ring = ring(&format!("{}plain\n{}", line("a", 1), line("b", 2)));
        let other = ring.with_writer(ring.names().nth(2).flatten());
        let stored = other.seal_value(b"audit 1", b"{1}".to_vec());
        assert_eq!(ring.open_value(b"audit 1", &stored).unwrap(), b"{1}");
        assert_eq!(ring.open_value(b"audit 2", &stored), None);
        assert_eq!(KeyRing::plain().open_value(b"audit 1", &stored), None);
        for at in 0..stored.len() {
            let mut changed = stored.clone();
            changed[at] ^= 1;
            let opened = ring.open_value(b"audit 1", &changed);
            // Without the first byte, it is a plain value that is no JSON.
            assert!(opened.is_none() || at == 0, "{at}");
            assert_eq!(
                ring.open_value(b"audit 1", &stored[..at]).is_some(),
                at == 0
            );
        }
        let plain = KeyRing::plain().seal_value(b"audit 1", b"{2}".to_vec());
        assert_eq!(ring.open_value(b"audit 3", &plain).unwrap(), b"{2}");
        let without_plain = KeyRing::parse("prod", &line("a", 1)).unwrap();
        assert_eq!(without_plain.open_value(b"audit 1", &plain), None);
    }

    #[test]
    fn two_runs_of_one_name_have_different_nonces() {
        let ring = ring(&line("a", 1));
        let place = shard("r", "t", 1);
        let run = RunContext {
            shard: &place,
            name: "1-1-1-0",
            header: b"",
        };
        let seal = || ring.seal(&run, &mut [0; 4]).expect("a key writes").0;
        assert_ne!(seal(), seal());
    }
}
