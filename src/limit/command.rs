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
/// Unacknowledged messages of the demo: some seconds' worth.
pub(crate) const DEMO_IN_FLIGHT_MAX: usize = 1_000;
/// Lines that the demo keeps until the next tick, and deliveries that it keeps to show.
pub(crate) const DEMO_LINES_MAX: usize = 32;
/// Bytes that the demo shows of the key, the payload or the refusal of a message.
pub(crate) const DEMO_TEXT_BYTES_MAX: usize = 200;
/// Lateness that the demo tells apart to the millisecond. A greater one counts as this.
pub(crate) const DEMO_LATENESS_MAX: Duration = Duration::from_secs(60);
/// Timeout for the start of the service in a demo.
pub(crate) const DEMO_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for overdue messages at the end of a demo.
pub(crate) const DEMO_OVERDUE_TIMEOUT: Duration = Duration::from_secs(10);
