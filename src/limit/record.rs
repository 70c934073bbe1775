//! Sizes of records, of the batches that an ingress appends, and of runs.

use std::time::Duration;

/// Bytes of the note that an operator gives to a pause or a resume.
pub(crate) const CONTROL_NOTE_BYTES_MAX: usize = 150;
/// The same with the sender: a name, which may be cut, and an IPv6 address. It is part of the commit metadata.
pub(crate) const PAUSE_NOTE_BYTES_MAX: usize = 210;
/// Headers of one record; a record with more becomes a dead letter.
pub(crate) const RECORD_HEADERS_MAX: usize = 1_000;
/// Bytes of all headers of one record; a record with more becomes a dead letter.
pub(crate) const RECORD_HEADER_BYTES_MAX: usize = 256 * 1024;
/// Bytes of key, headers and payload of one record; a larger record becomes a dead letter. The
/// record and the batch around it must fit into a run.
pub(crate) const RECORD_BYTES_MAX: usize = RUN_BYTES_MAX - 2 * BATCH_BYTES_MAX;
/// Messages of one append batch of a shard.
pub(crate) const BATCH_MESSAGES_MAX: usize = 16_384;
/// Bytes of one append batch before compression; its last record may exceed it.
pub(crate) const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Messages of one hour in a batch from which on the hour has a run of its own. A run costs some
/// 300 bytes of Redis, so hours with fewer messages share a run until compaction.
pub(crate) const HOUR_RUN_MESSAGES_MIN: usize = 64;
/// Hours that end within this time have a run of their own: compaction would not pay.
pub(crate) const HOUR_RUN_HORIZON: Duration = Duration::from_secs(2 * 3600);
/// Bytes of a decompressed run. A reader treats a header with a larger size as corrupt.
pub(crate) const RUN_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The key of an answer. An answer to a record with a larger key has no key.
pub(crate) const ANSWER_KEY_BYTES_MAX: usize = BATCH_BYTES_MAX / 2;
/// A batch with one record of the greatest size and its answer fits into a run. Each message adds
/// at most three varints in columns, and a record has some bytes beside key, headers and payload.
const _: () = assert!(
    BATCH_BYTES_MAX
        + RECORD_BYTES_MAX
        + ANSWER_KEY_BYTES_MAX
        + (BATCH_MESSAGES_MAX + 1) * 30
        + 4_096
        <= RUN_BYTES_MAX
);
/// Bytes at which a batch that a source reads is closed; its last record may exceed it.
pub(crate) const SOURCE_BATCH_BYTES_MAX: usize = 1024 * 1024;
