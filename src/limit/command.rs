//! Bounds of the commands `check`, `send` and `demo`.

use std::time::Duration;

/// Timeout of `check` for each server, and for the count of waiting messages.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(8);

/// Timeout for the acknowledgement of the record that a command sends.
pub(crate) const COMMAND_DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for the client's report of the outcome.
pub(crate) const COMMAND_REPORT_TIMEOUT: Duration =
    COMMAND_DELIVERY_TIMEOUT.saturating_add(Duration::from_secs(2));

/// Bytes of a payload that `send` reads: more than any broker accepts.
pub(crate) const COMMAND_PAYLOAD_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Interval at which the demo sends and draws.
pub(crate) const DEMO_TICK_INTERVAL: Duration = Duration::from_millis(100);

/// Messages that the demo sends in one tick.
pub(crate) const DEMO_SENDS_PER_TICK_MAX: usize = 32;

/// Unacknowledged messages of the demo: some seconds' worth.
pub(crate) const DEMO_IN_FLIGHT_MAX: usize = 1_000;

/// Events queued between the demo's loops: a few batches of arrivals.
pub(crate) const DEMO_EVENT_QUEUE_MAX: usize = 1_024;

/// Arrivals that the demo shows.
pub(crate) const DEMO_SHOWN_ARRIVALS_MAX: usize = 16;

/// Greatest lateness that the demo's histogram tells apart.
pub(crate) const DEMO_LATENESS_MAX: Duration = Duration::from_secs(10);

/// Characters that the demo keeps of a text in another producer's message.
pub(crate) const DEMO_TEXT_CHARS_MAX: usize = 200;

/// Timeout for the start of the service in a demo.
pub(crate) const DEMO_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for overdue messages at the end of a demo.
pub(crate) const DEMO_OVERDUE_TIMEOUT: Duration = Duration::from_secs(10);

/// The demo watches for duplicates for this time after the last arrival.
pub(crate) const DEMO_DUPLICATE_WAIT: Duration = Duration::from_millis(500);

/// Wait before the demo asks a broker again that did not answer.
pub(crate) const DEMO_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Latest warnings and errors that the demo prints at its end.
pub(crate) const DEMO_LOG_LINES_MAX: usize = 20;

/// Bytes that the demo keeps of one log line.
pub(crate) const DEMO_LOG_LINE_BYTES_MAX: usize = 1_000;

/// The demo shows a log line for this time, unless another one comes.
pub(crate) const DEMO_LOG_LINE_SHOWN_FOR: Duration = Duration::from_secs(8);
