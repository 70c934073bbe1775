//! The limit of one record, which follows from those of batches and runs.

use super::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, RUN_BYTES_MAX};

/// Key, headers and payload of one record beyond which it is refused to the dead letters: with the batch that it comes to, it must fit into a run.
pub(crate) const RECORD_BYTES_MAX: usize = RUN_BYTES_MAX - 2 * BATCH_BYTES_MAX;

/// A batch that takes in one record of the greatest size is not taken for corrupt by its reader: beside them it has columns of at most three
/// varints a message, and in the record what is neither key nor header nor payload.
const _: () =
    assert!(BATCH_BYTES_MAX + RECORD_BYTES_MAX + BATCH_MESSAGES_MAX * 30 + 4_096 <= RUN_BYTES_MAX);
