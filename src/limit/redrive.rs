//! Dead letters that are read and sent again.

use std::time::Duration;

/// Bytes of the metadata of a position. Brokers accept 4,096 by default (`offset.metadata.max.bytes`).
pub(crate) const REDRIVE_POSITION_BYTES_MAX: usize = 3_500;
/// Dead letters of one transaction.
pub(crate) const REDRIVE_BATCH_MAX: usize = 500;
/// Bytes that wait for an acknowledgement. One record may exceed it.
pub(crate) const REDRIVE_IN_FLIGHT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Timeout for opening a producer, and for the end of a transaction. The coordinator may still end an earlier transaction.
pub(crate) const REDRIVE_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which one call of the API reads and sends no more dead letters.
pub(crate) const REDRIVE_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls that wait for the thread that answers them, one after the other.
pub(crate) const REDRIVE_CALLS_MAX: usize = 4;
/// Records of the dead-letter topic that one call of the API reads.
pub(crate) const DEAD_LETTERS_SCANNED_MAX: u64 = 20_000;
/// Dead letters of one code that a report shows.
pub(crate) const DEAD_LETTER_SAMPLES_MAX: usize = 5;
/// Bytes of a text that a sample shows.
pub(crate) const DEAD_LETTER_TEXT_BYTES_MAX: usize = 300;
/// Bytes that are fetched ahead.
pub(crate) const DEAD_LETTER_FETCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Messages of NATS in one read: each takes a request.
pub(crate) const DEAD_LETTERS_PER_READ_MAX: usize = 100;
/// Interval at which fetched records are looked for.
pub(crate) const DEAD_LETTER_POLL_INTERVAL: Duration = Duration::from_millis(5);
