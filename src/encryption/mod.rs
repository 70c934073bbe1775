//! Encryption of everything that the store keeps about messages: the key ring, the cipher of runs,
//! and the stored form of ids.
//!
//! `RunBuilder` seals each run that it builds, and `RunDecoder` opens it. The store port takes ids
//! only as [`StoredId`]. So no adapter ever gets a readable payload, header, key or id, and none
//! has code for encryption. Without a key ring, runs and ids are plain.
//!
//! The positions of messages stay readable, because the store compares them: due times and
//! offsets, counts, sizes, and the names of routes and topics.

mod key;
mod key_ring;
mod stored_id;

pub(crate) use key::{NONCE_LENGTH, RunContext, TAG_LENGTH};
#[cfg(test)]
pub(crate) use key_ring::tests as test_rings;
pub(crate) use key_ring::{KeyRing, describe_key, waits_for_key};
pub(crate) use stored_id::{IdCounts, StoredId};
