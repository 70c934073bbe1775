//! The admin endpoint, queries about waiting messages, dead letters, traces, and the commands `check`,
//! `send` and `demo`.

use std::time::Duration;

/// Shards that a query asks about with one call.
pub(crate) const QUERY_SHARDS_PER_CALL_MAX: usize = 500;
/// Shards that a report lists; the sums contain the rest.
pub(crate) const REPORT_SHARDS_MAX: usize = 10_000;
/// Bytes of keys, headers and payloads in a page of a search. The message that passes it is still in.
pub(crate) const SEARCH_PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Messages in a page of a search.
pub(crate) const SEARCH_PAGE_MAX: usize = 1_000;
/// Runs that one search reads. A run has up to some thousand messages.
pub(crate) const SEARCH_RUNS_MAX: usize = 2_000;
/// A search reads no further runs after this time.
pub(crate) const SEARCH_TIMEOUT: Duration = Duration::from_millis(200);
/// Runs that a search fetches with one call, and holds in memory.
pub(crate) const SEARCH_RUNS_PER_FETCH: usize = 8;
/// Searches that follow each other to find one message by its offset.
pub(crate) const SEARCH_CALLS_MAX: usize = 25;
/// Names of runs that a search lists of one shard, at least.
pub(crate) const SEARCH_NAMES_MIN: usize = 64;
/// Hours that a report lists; the sums contain the rest.
pub(crate) const REPORT_HOURS_MAX: usize = 10_000;
/// Queries that wait for the thread that answers them, one after the other.
pub(crate) const ADMIN_QUERIES_MAX: usize = 16;
/// Reports are answered again for this time, so that many readers ask the store once.
pub(crate) const ADMIN_REPORT_AGE_MAX: Duration = Duration::from_secs(1);
/// Reports that are kept for this: each may have some MiB.
pub(crate) const ADMIN_REPORTS_KEPT_MAX: usize = 4;
/// Changes that wait for the thread that writes them, one after the other.
pub(crate) const ADMIN_CHANGES_MAX: usize = 16;
/// Timeout of a change: more than that of the broker's acknowledgement.
pub(crate) const ADMIN_CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a message that the API publishes.
pub(crate) const ADMIN_PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// Interval at which the API looks for the outcome of a cancel.
pub(crate) const ADMIN_OUTCOME_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait for the outcome of a change, without `wait`.
pub(crate) const ADMIN_OUTCOME_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest `wait`.
pub(crate) const ADMIN_OUTCOME_TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// A message that is due within this time is not copied to an earlier one: the copy would come too late, or
/// hardly earlier.
pub(crate) const COPY_MARGIN: Duration = Duration::from_secs(5);
/// Time after which one call of the API changes no further messages.
pub(crate) const BULK_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages that one call changes: those of this many seconds at its rate. So a call reads no message that it
/// does not change.
pub(crate) const BULK_CALL_SECONDS: usize = 8;
/// Messages that a call changes without `limit`.
pub(crate) const BULK_LIMIT_DEFAULT: usize = 1_000;
/// Records of a call for many messages that are written together. Other changes wait for them, some milliseconds as a rule.
pub(crate) const CHANGES_PER_WRITE_MAX: u32 = 100;
/// Changes per second without `rate`.
pub(crate) const BULK_RATE_DEFAULT: u32 = 100;
/// Lines that the store keeps of each part of the audit list, and that wait for the store at most.
pub(crate) const AUDIT_LINES_MAX: usize = 1_000;
/// Bytes of a text in a line of the audit list. The log has the whole text.
pub(crate) const AUDIT_TEXT_BYTES_MAX: usize = 500;
/// Audit lines that are written to the store with one call.
pub(crate) const AUDIT_LINES_PER_CALL_MAX: usize = 100;
/// A failed write of audit lines is repeated after this time.
pub(crate) const AUDIT_RETRY_DELAY: Duration = Duration::from_secs(2);
/// The first answer to a request with an idempotency key is kept for this time.
pub(crate) const IDEMPOTENCY_TIME: Duration = Duration::from_secs(24 * 3_600);
/// A request that has not ended is forgotten after this time: more than it can last.
pub(crate) const IDEMPOTENCY_RUNNING_TIME: Duration = Duration::from_secs(60);
/// Answers to requests with an idempotency key that the store keeps: some 500 bytes each, and some 4 KiB with the longest texts.
pub(crate) const ENDED_REQUESTS_MAX: usize = 20_000;
/// Bytes that the texts of a request with an idempotency key may have in its answer.
pub(crate) const IDEMPOTENCY_TEXTS_BYTES_MAX: usize = 1024;
/// Old requests that the embedded store removes with one call.
pub(crate) const ENDED_REQUESTS_REMOVED_MAX: usize = 16;
/// Bytes of an idempotency key.
pub(crate) const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Timeout of the store for the state of a request, with all repeats. Other changes wait meanwhile.
pub(crate) const IDEMPOTENCY_STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of one attempt: a connection that was cut without a sign leaves time for a new one.
pub(crate) const IDEMPOTENCY_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// A failed attempt is repeated after this time.
pub(crate) const IDEMPOTENCY_RETRY_DELAY: Duration = Duration::from_millis(100);
/// After the store has failed, requests with an idempotency key are refused for this time without a call, so that other
/// changes do not wait for each of them.
pub(crate) const IDEMPOTENCY_AWAY_TIME: Duration = Duration::from_secs(5);
/// Begin and end at the store, a producer that is closed and opened, and the record.
const IDEMPOTENCY_DURATION_MAX: Duration = IDEMPOTENCY_STORE_TIMEOUT
    .saturating_mul(2)
    .saturating_add(COMMAND_REPORT_TIMEOUT.saturating_mul(2));
const _: () = assert!(IDEMPOTENCY_DURATION_MAX.as_millis() < IDEMPOTENCY_RUNNING_TIME.as_millis());
/// A stopping process writes the last audit lines for this time: more than that of its last responses.
pub(crate) const AUDIT_STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of a query to the admin endpoint.
pub(crate) const ADMIN_QUERY_TIMEOUT: Duration = Duration::from_secs(20);
/// A command repeats a request to a busy service this often: for longer than a call of [`BULK_CALL_TIMEOUT`] lasts.
pub(crate) const ADMIN_BUSY_REPEATS_MAX: u32 = 10;
/// The time before each of these repeats.
pub(crate) const ADMIN_BUSY_DELAY: Duration = Duration::from_secs(2);
/// Bytes of an admin response that a command reads: more than the largest report.
pub(crate) const ADMIN_RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Connections to the admin server. A further one closes the oldest without a request.
pub(crate) const ADMIN_CONNECTIONS_MAX: usize = 128;
/// Requests that the admin server answers at the same time, except probes.
pub(crate) const ADMIN_REQUESTS_MAX: usize = 32;
/// Bytes of the header of a request: more than a token and the cookies of a browser.
pub(crate) const ADMIN_HEADER_BYTES_MAX: usize = 32 * 1024;
/// Timeout for the header of a request, also of the next one on an idle connection.
pub(crate) const ADMIN_HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request with its body: more than that of a query.
pub(crate) const ADMIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection takes no more requests after this time, so a slow reader does not keep it.
pub(crate) const ADMIN_CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// A stopping admin server waits for its responses for this time.
pub(crate) const ADMIN_STOP_TIMEOUT: Duration = Duration::from_secs(1);
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

/// Timeout of `check` for each server, and for the count of waiting messages.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(8);
/// Timeout for reading the end of a topic of definitions, before and after a change: other changes of the
/// service wait meanwhile.
pub(crate) const DEFINITION_LOOK_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout for the acknowledgement of the record that a command sends.
pub(crate) const COMMAND_DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Records of a command that the broker may have to acknowledge at once.
pub(crate) const COMMAND_IN_FLIGHT_MAX: usize = 1_000;
/// Timeout for the client's report of the outcome.
pub(crate) const COMMAND_REPORT_TIMEOUT: Duration =
    COMMAND_DELIVERY_TIMEOUT.saturating_add(Duration::from_secs(2));
/// Timeout of `send --reply` for the answer. `too_late` waits until its message is acknowledged.
pub(crate) const COMMAND_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
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
/// Calls about schedules that wait for the thread that answers them, one after the other.
pub(crate) const SCHEDULES_CALLS_MAX: usize = 4;
/// Schedules in an answer, and in memory while their topic is read.
pub(crate) const SCHEDULES_PAGE_MAX: usize = 1_000;
/// Records of the dead-letter topic that one call of the API reads.
pub(crate) const DEAD_LETTERS_SCANNED_MAX: u64 = 20_000;
/// Codes that a report counts one by one, more than there are.
pub(crate) const DEAD_LETTER_CODES_MAX: usize = 100;
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
