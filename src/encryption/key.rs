//! One key of the ring: seals runs and other values, and hashes ids.
//!
//! Everything is derived from the 32 bytes of the key by HKDF-SHA256, separately for each
//! deployment:
//!
//! | derived | from | use |
//! |---|---|---|
//! | run key | shard, run name | AES-256-GCM of one run, with a random nonce |
//! | value key | kind and name of the value | AES-256-GCM of a value that is no run, with a random nonce |
//! | id key | | HMAC-SHA256 of shard and id, cut to 128 bits |
//! | fingerprint | not the deployment | 32 bits that tell a wrong key under a known id |
//!
//! A run has a key of its own, because its name is never used twice (I3). Two runs share key and
//! nonce only if they also draw the same 96 random bits. So a ring key needs no limit of runs.
//!
//! Two of `n` ids of a shard have the same hash with a probability of about n² / 2^129: for a
//! billion ids, less than 10^-20.

use crate::model::ShardId;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};
use std::sync::Arc;

pub(crate) const NONCE_LENGTH: usize = ring::aead::NONCE_LEN;
pub(crate) const TAG_LENGTH: usize = 16;

/// Starts the hash of an id. No text starts with this byte, so no plain id equals a hash.
const HASHED_ID: u8 = 0xfe;
const ID_HASH_LENGTH: usize = 16;

const FINGERPRINT_LENGTH: usize = 4;

/// The associated data of a run: its place in the store, and its readable header.
pub(crate) struct RunContext<'a> {
    pub(crate) shard: &'a ShardId,
    pub(crate) name: &'a str,
    pub(crate) header: &'a [u8],
}

pub(super) struct Key {
    /// `<fingerprint>-<key id>`.
    pub(super) name: Arc<str>,
    runs: hkdf::Prk,
    values: hkdf::Prk,
    ids: hmac::Key,
    random: SystemRandom,
}

impl Key {
    pub(super) fn new(deployment: &str, id: &str, secret: &[u8; 32]) -> Self {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, b"postdate store").extract(secret);
        let mut fingerprint = [0; FINGERPRINT_LENGTH];
        let fingerprint_length = OutputLength(FINGERPRINT_LENGTH);
        expand(&root, &[b"fingerprint"], fingerprint_length)
            .fill(&mut fingerprint)
            .expect(FIXED);
        let fingerprint = u32::from_be_bytes(fingerprint);
        let deployment = deployment.as_bytes();
        Self {
            name: format!("{fingerprint:08x}-{id}").into(),
            runs: expand(&root, &[b"runs ", deployment], hkdf::HKDF_SHA256).into(),
            values: expand(&root, &[b"values ", deployment], hkdf::HKDF_SHA256).into(),
            ids: expand(&root, &[b"ids ", deployment], hmac::HMAC_SHA256).into(),
            random: SystemRandom::new(),
        }
    }

    /// Encrypts `content` in place. Returns the nonce and the tag.
    ///
    /// # Panics
    /// If the operating system gives no random bytes.
    pub(super) fn seal(
        &self,
        run: &RunContext<'_>,
        content: &mut [u8],
    ) -> ([u8; NONCE_LENGTH], [u8; TAG_LENGTH]) {
        let place = place(run);
        let associated = [&place, run.header].concat();
        self.seal_with(&value_key(&self.runs, &place), &associated, content)
    }

    /// Like [`Key::seal`], for a value that is no run. `place` is its kind and its name.
    pub(super) fn seal_value(
        &self,
        place: &[u8],
        content: &mut [u8],
    ) -> ([u8; NONCE_LENGTH], [u8; TAG_LENGTH]) {
        self.seal_with(&value_key(&self.values, place), place, content)
    }

    fn seal_with(
        &self,
        key: &LessSafeKey,
        associated: &[u8],
        content: &mut [u8],
    ) -> ([u8; NONCE_LENGTH], [u8; TAG_LENGTH]) {
        let mut nonce = [0; NONCE_LENGTH];
        self.random
            .fill(&mut nonce)
            .expect("the operating system gives random bytes");
        let used = Nonce::assume_unique_for_key(nonce);
        let tag = key
            .seal_in_place_separate_tag(used, Aad::from(associated), content)
            .expect("the content is far smaller than the limit of the cipher");
        let mut bytes = [0; TAG_LENGTH];
        bytes.copy_from_slice(tag.as_ref());
        (nonce, bytes)
    }

    /// Decrypts `sealed`, content and tag, in place. `None`: the run was changed, or belongs to
    /// another place.
    pub(super) fn open<'b>(
        &self,
        run: &RunContext<'_>,
        nonce: [u8; NONCE_LENGTH],
        sealed: &'b mut [u8],
    ) -> Option<&'b [u8]> {
        let place = place(run);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let associated = Aad::from([&place, run.header].concat());
        let opened = value_key(&self.runs, &place).open_in_place(nonce, associated, sealed);
        opened.ok().map(|content| &*content)
    }

    /// Like [`Key::open`], for a value that is no run.
    pub(super) fn open_value<'b>(
        &self,
        place: &[u8],
        nonce: [u8; NONCE_LENGTH],
        sealed: &'b mut [u8],
    ) -> Option<&'b [u8]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let key = value_key(&self.values, place);
        let opened = key.open_in_place(nonce, Aad::from(place), sealed);
        opened.ok().map(|content| &*content)
    }

    /// Marker, fingerprint as text, and hash. The append step reads the fingerprint.
    pub(super) fn hash_id(&self, shard: &ShardId, id: &str) -> Box<[u8]> {
        let mut context = hmac::Context::with_key(&self.ids);
        context.update(&shard_bytes(shard));
        context.update(id.as_bytes());
        let hash = context.sign();
        let fingerprint = &self.name.as_bytes()[..2 * FINGERPRINT_LENGTH];
        let hash = &hash.as_ref()[..ID_HASH_LENGTH];
        [&[HASHED_ID], fingerprint, hash].concat().into()
    }
}

/// The fingerprint in a hashed id, with which the name of its key starts. `None`: a plain id.
pub(super) fn fingerprint_of_id(stored: &[u8]) -> Option<&str> {
    let (first, rest) = stored.split_first()?;
    let is_hash = *first == HASHED_ID;
    let fingerprint = rest.get(..2 * FINGERPRINT_LENGTH).filter(|_| is_hash)?;
    std::str::from_utf8(fingerprint).ok()
}

const FIXED: &str = "the length is fixed, and HKDF allows it";

fn expand<'a, L: hkdf::KeyType>(
    key: &'a hkdf::Prk,
    info: &'a [&'a [u8]],
    length: L,
) -> hkdf::Okm<'a, L> {
    key.expand(info, length).expect(FIXED)
}

/// The key of one value.
fn value_key(values: &hkdf::Prk, place: &[u8]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::from(expand(values, &[place], &AES_256_GCM)))
}

/// A number of derived bytes.
struct OutputLength(usize);

impl hkdf::KeyType for OutputLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// Shard and run name. Different places have different bytes.
fn place(run: &RunContext<'_>) -> Vec<u8> {
    [&shard_bytes(run.shard), run.name.as_bytes()].concat()
}

fn shard_bytes(shard: &ShardId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    for text in [&shard.route, &shard.partition.topic] {
        bytes.extend((text.len() as u64).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes.extend(shard.partition.index.to_be_bytes());
    bytes
}
