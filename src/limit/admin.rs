//! The admin endpoint, queries about waiting messages, and traces.

use std::time::Duration;

/// Shards that a query asks about with one call.
pub(crate) const QUERY_SHARDS_PER_CALL_MAX: usize = 500;
/// Shards that a report lists; the sums contain the rest.
pub(crate) const REPORT_SHARDS_MAX: usize = 10_000;
/// Hours that a report lists; the sums contain the rest.
pub(crate) const REPORT_HOURS_MAX: usize = 10_000;
/// Queries that wait for the thread that answers them, one after the other.
pub(crate) const ADMIN_QUERIES_MAX: usize = 4;
/// Timeout of a query to the admin endpoint.
pub(crate) const ADMIN_QUERY_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of an admin response that a command reads: more than the largest report.
pub(crate) const ADMIN_RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// TLS handshakes that the admin endpoint runs at the same time.
pub(crate) const ADMIN_HANDSHAKES_MAX: usize = 128;
/// Timeout of a TLS handshake: less than a probe waits.
pub(crate) const ADMIN_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(4);
/// Producers' spans that one span of a batch links to: collectors keep this many links.
pub(crate) const SPAN_LINKS_MAX: usize = 128;
/// Spans queued for export, of some 3 KiB each with all links.
pub(crate) const SPANS_QUEUE_MAX: usize = 2_048;
/// Spans in one export request.
pub(crate) const SPANS_PER_REQUEST_MAX: usize = 512;
/// Spans wait this long for others in their request; so does a failed request for its next attempt.
pub(crate) const SPANS_LINGER: Duration = Duration::from_secs(1);
/// Further attempts of a failed export request.
pub(crate) const SPANS_RETRIES_MAX: u32 = 2;
/// Timeout of an export request.
pub(crate) const SPANS_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A stopping process sends the remaining spans for this time.
pub(crate) const SPANS_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
