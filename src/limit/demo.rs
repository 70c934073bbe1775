//! Bounds of the demo.

use std::time::Duration;

/// How long `postdate demo` may last, and how short it may be: a message or two must have the time to wait. What it sends in that time is
/// all that it can have to remember.
pub(crate) const DEMO_DURATION_MIN: Duration = Duration::from_secs(5);
pub(crate) const DEMO_DURATION_MAX: Duration = Duration::from_secs(3_600);

/// How often the demo sends and draws, and how many messages it sends at once at most.
pub(crate) const DEMO_TICK_INTERVAL: Duration = Duration::from_millis(100);
pub(crate) const DEMO_SENDS_PER_TICK_MAX: usize = 32;

/// Messages of the demo on their way to the broker: some seconds' worth.
pub(crate) const DEMO_IN_FLIGHT_MAX: usize = 1_000;

/// News between the demo's loops: a few batches of arrivals.
pub(crate) const DEMO_EVENT_QUEUE_MAX: usize = 1_024;

/// Arrivals that the demo shows, latenesses that it tells apart, and of a foreign message's texts how many characters it keeps.
pub(crate) const DEMO_SHOWN_ARRIVALS_MAX: usize = 16;
pub(crate) const DEMO_LATENESS_MAX: Duration = Duration::from_secs(10);
pub(crate) const DEMO_TEXT_CHARS_MAX: usize = 200;

/// How long the demo waits for the service to begin, and at the end for messages that are overdue.
pub(crate) const DEMO_START_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const DEMO_OVERDUE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the demo looks for duplicates after all has arrived.
pub(crate) const DEMO_DUPLICATE_WAIT: Duration = Duration::from_millis(500);

/// How soon the demo asks a broker again that did not answer.
pub(crate) const DEMO_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Warnings and errors that the demo keeps for its end while it draws, the latest ones, and bytes of each.
pub(crate) const DEMO_LOG_LINES_MAX: usize = 20;
pub(crate) const DEMO_LOG_LINE_BYTES_MAX: usize = 1_000;

/// How long the demo shows one of them, if no other comes.
pub(crate) const DEMO_LOG_LINE_SHOWN_FOR: Duration = Duration::from_secs(8);
