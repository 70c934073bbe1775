//! Encrypts runs, and decrypts them. The header stays readable: it has counts, sizes, and the
//! positions of the first and the last message.
//!
//! The header is authenticated with the content, and so are the shard and the name of the run. A run
//! that is changed, or copied to another place, does not open.

use super::RunName;
use super::header::{self, CODEC_AT, HEADER_LENGTH, ParsedRun, RunError, SEALED, VERSION_AT};
use crate::encryption::{KeyRing, NONCE_LENGTH, RunContext, TAG_LENGTH};
use crate::model::ShardId;
use bytes::{Bytes, BytesMut};
use std::borrow::Cow;

/// Encrypts a plain run with the first key of the ring, if that is a key. `name` tells it.
pub(super) fn seal(keys: &KeyRing, shard: &ShardId, name: &RunName, plain: Bytes) -> Bytes {
    let mut bytes = BytesMut::from(plain);
    let (head, content) = bytes.split_at_mut(HEADER_LENGTH);
    let run = RunContext {
        shard,
        name: name.as_str(),
        header: &head[CODEC_AT..],
    };
    if let Some((nonce, tag)) = keys.seal(&run, content) {
        bytes[VERSION_AT] = SEALED;
        bytes.extend_from_slice(&tag);
        bytes.extend_from_slice(&nonce);
        header::write_checksum(&mut bytes);
    }
    bytes.freeze()
}

/// Returns the compressed content of a run. `bytes` are those that were parsed.
pub(super) fn open<'a>(
    keys: &KeyRing,
    shard: &ShardId,
    name: &RunName,
    bytes: &'a [u8],
    parsed: &ParsedRun<'a>,
) -> Result<Cow<'a, [u8]>, RunError> {
    let key = name.key();
    if key.is_some() != parsed.is_sealed {
        return Err(RunError::Sealed);
    }
    if !keys.reads(key) {
        return Err(RunError::MissingKey);
    }
    let Some(key) = key else {
        return Ok(Cow::Borrowed(parsed.content));
    };
    let (sealed, nonce) = (parsed.content)
        .split_last_chunk::<NONCE_LENGTH>()
        .ok_or(RunError::Sealed)?;
    let run = RunContext {
        shard,
        name: name.as_str(),
        header: &bytes[CODEC_AT..HEADER_LENGTH],
    };
    let mut content = sealed.to_vec();
    let length = keys
        .open(key, &run, *nonce, &mut content)
        .ok_or(RunError::Sealed)?
        .len();
    debug_assert_eq!(length + TAG_LENGTH, content.len());
    content.truncate(length);
    Ok(Cow::Owned(content))
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{at, shard};
    use super::super::{EncodedMessage, Run, RunBuilder, RunDecoder};
    use super::*;
    use crate::encryption::test_rings::{line, ring};
    use crate::model::{Level, Slice};
    use proptest::prelude::*;

    const SLICE: Slice = Slice {
        level: Level::Hour,
        start: 0,
    };

    fn build(keys: &str, record: &[u8]) -> Run {
        let mut messages = [EncodedMessage {
            slice: SLICE,
            place: at(1, 1),
            record,
        }];
        let mut runs = RunBuilder::new(7, ring(keys)).build(&shard(), &mut messages, None);
        runs.pop().expect("it has a message")
    }

    /// The error of a run that is read under this name.
    fn error(keys: &str, name: &str, bytes: &[u8]) -> Option<RunError> {
        let mut decoder = RunDecoder::new(ring(keys));
        let decoded = decoder.decode(&shard(), RunName::new(name), SLICE, bytes);
        decoded.err()
    }

    #[test]
    fn a_missing_key_differs_from_damage() {
        let (a, b) = (line("a", 1), line("b", 2));
        let run = build(&a, b"\x02secret payload");
        let name = run.name.as_str();
        assert!(
            name.starts_with("7-1-1-1-") && name.ends_with("-a"),
            "{name}"
        );
        let find = |text: &[u8]| run.bytes.windows(text.len()).any(|part| part == text);
        assert!(!find(b"secret"));
        let both = format!("{b}{a}");
        assert_eq!(error(&both, name, &run.bytes), None);
        let missing = Some(RunError::MissingKey);
        assert_eq!(error(&b, name, &run.bytes), missing);
        assert_eq!(
            error(&line("a", 3), name, &run.bytes),
            missing,
            "a wrong key"
        );
        assert_eq!(error("plain", name, &run.bytes), missing);
        assert!(RunError::MissingKey.is_undamaged() && !RunError::Sealed.is_undamaged());
        let other = name.replace("7-1-", "7-2-");
        assert_eq!(error(&both, &other, &run.bytes), Some(RunError::Sealed));
        let unnamed = "7-1-1-1";
        assert_eq!(error(&both, unnamed, &run.bytes), Some(RunError::Sealed));
        let mut damaged = run.bytes.to_vec();
        damaged[80] ^= 1;
        assert_eq!(error(&b, name, &damaged), Some(RunError::Checksum));
    }

    #[test]
    fn a_plain_run_is_read_only_with_plain_in_the_ring() {
        let run = build("plain", b"\x02secret payload");
        assert_eq!((run.name.as_str(), run.name.key()), ("7-1-1-1", None));
        let a = line("a", 1);
        assert_eq!(error(&format!("{a}plain"), "7-1-1-1", &run.bytes), None);
        let missing = Some(RunError::MissingKey);
        assert_eq!(error(&a, "7-1-1-1", &run.bytes), missing);
        let named = build(&a, b"").name;
        let forged = error(&a, named.as_str(), &run.bytes);
        assert_eq!(
            forged,
            Some(RunError::Sealed),
            "it does not pass as an encrypted one"
        );
    }

    proptest! {
        #[test]
        fn a_sealed_run_reads_back_and_every_change_is_detected(
            record: Vec<u8>,
            changed in any::<prop::sample::Index>(),
            change in 1u8..,
        ) {
            let a = line("a", 1);
            let run = build(&a, &record);
            let mut decoder = RunDecoder::new(ring(&a));
            let loaded = decoder.decode(&shard(), run.name.clone(), SLICE, &run.bytes).unwrap();
            prop_assert_eq!(loaded.record(0), &record[..]);
            let mut bytes = run.bytes.to_vec();
            let at = changed.index(bytes.len());
            bytes[at] ^= change;
            prop_assert!(error(&a, run.name.as_str(), &bytes).is_some(), "byte {}", at);
            // With a matching checksum it is still detected.
            if at >= CODEC_AT {
                header::write_checksum(&mut bytes);
                prop_assert!(error(&a, run.name.as_str(), &bytes).is_some(), "byte {}", at);
            }
            prop_assert!(error(&a, run.name.as_str(), &run.bytes[..at]).is_some());
        }
    }
}
