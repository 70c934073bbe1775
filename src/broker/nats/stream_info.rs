//! The state and settings of a stream, and single messages of it by sequence.

use super::connection::Connection;
use crate::broker::{Error, PartitionInfo};
use crate::model::{Offset, SourceIdentity, Timestamp, filter_covers};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, Info, RetentionPolicy, StorageType};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::time::Duration;

/// A stream as it was when its info was fetched.
#[derive(Clone, Debug)]
pub(crate) struct StreamInfo {
    pub(crate) name: String,
    pub(crate) subjects: Vec<String>,
    /// Maximum age of a message. `None`: no limit.
    pub(crate) max_age: Option<Duration>,
    /// The stream also drops messages when it exceeds a number or a size.
    pub(crate) has_size_limit: bool,
    /// The stream detects duplicates by message id within this time.
    pub(crate) duplicate_window: Duration,
    /// Time of the last message. Long ago if there was none.
    pub(crate) last_message_at: Timestamp,
    /// Maximum number of consumers. `None`: the stream sets no limit.
    pub(crate) max_consumers: Option<usize>,
    /// The server deletes a consumer that is not pulled for this time. `None`: no limit.
    pub(super) consumer_idle_max: Option<Duration>,
    retention: RetentionPolicy,
    /// The server itself delivers messages with the headers of its schedules.
    pub(crate) runs_schedules: bool,
    /// Publishes are not acknowledged (`no_ack`).
    pub(crate) is_without_acks: bool,
    /// The stream rejects every publish.
    pub(crate) is_sealed: bool,
    /// A restart of the server loses the messages.
    pub(crate) is_in_memory: bool,
    /// Messages may have other subjects than `subjects`, because the stream mirrors another one,
    /// has sources, or transforms subjects.
    may_hold_other_subjects: bool,
    /// Number of sequences between the first and the last that have no message.
    deleted: u64,
    /// Creation time in nanoseconds. It identifies the stream: a recreated one differs.
    pub(super) created: i128,
    /// The first sequence that is still stored.
    pub(super) first: u64,
    /// One past the last sequence.
    pub(super) end: u64,
}

impl StreamInfo {
    fn new(info: Info) -> Self {
        let Info {
            config,
            created,
            state,
            ..
        } = info;
        let first = state.first_sequence.max(1);
        let end = state.last_sequence + 1;
        Self {
            max_age: non_zero(config.max_age),
            has_size_limit: has_size_limit(&config),
            duplicate_window: config.duplicate_window,
            last_message_at: timestamp_of(state.last_timestamp.unix_timestamp_nanos()),
            max_consumers: usize::try_from(config.max_consumers)
                .ok()
                .filter(|max| *max > 0),
            may_hold_other_subjects: may_hold_other_subjects(&config),
            consumer_idle_max: config
                .consumer_limits
                .and_then(|limits| non_zero(limits.inactive_threshold)),
            retention: config.retention,
            runs_schedules: config.allow_message_schedules,
            is_without_acks: config.no_ack,
            is_sealed: config.sealed,
            is_in_memory: config.storage == StorageType::Memory,
            name: config.name,
            subjects: config.subjects,
            deleted: (end - first.min(end)).saturating_sub(state.messages),
            created: created.unix_timestamp_nanos(),
            first: first.min(end),
            end,
        }
    }

    pub(super) fn describe(&self) -> PartitionInfo {
        PartitionInfo {
            identity: Some(SourceIdentity(self.created.to_string().into())),
            first_offset: Offset(self.first),
            end_offset: Offset(self.end),
        }
    }

    /// An upper bound for the removed messages with sequences from `from` on. It counts only those
    /// before the first stored one if the filter does not match every subject.
    pub(super) fn removed_since(&self, filter: &str, from: u64) -> u64 {
        let before_first = self.first.saturating_sub(from);
        if self.is_covered_by(filter) {
            before_first + self.deleted
        } else {
            before_first
        }
    }

    /// Returns true if the filter matches every message.
    pub(super) fn is_covered_by(&self, filter: &str) -> bool {
        !self.may_hold_other_subjects
            && self
                .subjects
                .iter()
                .all(|subject| filter_covers(filter, subject))
    }

    /// Why the stream cannot be the source of a route that reads the headers of NATS' schedules.
    pub(crate) fn schedule_conflict(&self) -> Option<String> {
        self.runs_schedules.then(|| {
            format!(
                "the stream {} delivers messages with Nats-Schedule by itself \
                 (allow_msg_schedules), so that a route with the dialect nats would deliver them \
                 once more: take nats from the route's dialects, or read a stream without \
                 allow_msg_schedules",
                self.name
            )
        })
    }

    /// Why the stream cannot be a source: its retention removes messages that others have read.
    pub(crate) fn unusable_reason(&self) -> Option<String> {
        let retention = match self.retention {
            RetentionPolicy::Limits => return None,
            RetentionPolicy::Interest => "interest",
            RetentionPolicy::WorkQueue => "work-queue",
        };
        Some(format!(
            "the stream {} has {retention} retention, which removes messages that may have to be \
             read again: a source needs limits retention, which only a new stream can have",
            self.name
        ))
    }
}

fn has_size_limit(config: &Config) -> bool {
    config.max_messages > 0 || config.max_bytes > 0 || config.max_messages_per_subject > 0
}

fn may_hold_other_subjects(config: &Config) -> bool {
    config.mirror.is_some()
        || config
            .sources
            .as_ref()
            .is_some_and(|sources| !sources.is_empty())
        || config.subject_transform.is_some()
}

fn non_zero(duration: Duration) -> Option<Duration> {
    Some(duration).filter(|duration| !duration.is_zero())
}

fn timestamp_of(nanos: i128) -> Timestamp {
    let millis = nanos.div_euclid(1_000_000);
    Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MIN))
}

/// Fetches the info of a stream. `None`: the stream does not exist.
pub(super) async fn fetch(
    connection: &Connection,
    stream: &str,
) -> Result<Option<StreamInfo>, Error> {
    if !is_stream_name(stream) {
        return Ok(None);
    }
    match connection.context().await?.get_stream(stream).await {
        Ok(found) => Ok(Some(StreamInfo::new(found.cached_info().clone()))),
        Err(error) => fetch_error(connection, stream, &error),
    }
}

fn fetch_error(
    connection: &Connection,
    stream: &str,
    error: &GetStreamError,
) -> Result<Option<StreamInfo>, Error> {
    match error.kind() {
        GetStreamErrorKind::JetStream(error)
            if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
        {
            Ok(None)
        }
        GetStreamErrorKind::JetStream(error) => {
            Err(Error::Rejected(format!("the stream {stream}: {error}")))
        }
        _ => Err(connection.request_error(&format!("the stream {stream}"), error)),
    }
}

/// Returns true if the server allows the name. A name with a dot would change the API subject.
pub(super) fn is_stream_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// A message as the server stores it.
pub(super) struct StoredMessage {
    pub(super) sequence: u64,
    pub(super) subject: String,
    pub(super) timestamp: Option<Timestamp>,
    /// The header block of the wire protocol.
    pub(super) headers: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

/// The reply of the API request `STREAM.MSG.GET`.
#[derive(serde::Deserialize)]
struct MessageReply {
    message: Option<MessageBody>,
    error: Option<ApiError>,
}

#[derive(serde::Deserialize)]
struct MessageBody {
    subject: String,
    seq: u64,
    time: String,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

#[derive(serde::Deserialize)]
struct ApiError {
    code: u16,
    description: String,
}

/// The first message from sequence `from` on that matches the filter. `None`: there is none now.
///
/// It does not use a consumer, because consuming a message ends the connection if the client
/// library cannot parse the message's headers.
pub(super) async fn read_message(
    connection: &Connection,
    stream: &str,
    filter: &str,
    from: u64,
) -> Result<Option<StoredMessage>, Error> {
    let request = serde_json::json!({ "seq": from, "next_by_subj": filter }).to_string();
    let subject = connection.api_subject(&format!("STREAM.MSG.GET.{stream}"));
    let reply = connection
        .client()
        .await?
        .request(subject, request.into())
        .await
        .map_err(|error| connection.request_error(&format!("the stream {stream}"), &error))?;
    let invalid = |reason: &dyn std::fmt::Display| {
        Error::Unavailable(format!(
            "the stream {stream} sent an invalid reply: {reason}"
        ))
    };
    let reply: MessageReply =
        serde_json::from_slice(&reply.payload).map_err(|error| invalid(&error))?;
    if let Some(ApiError { code, description }) = reply.error {
        return match code {
            404 => Ok(None),
            _ => Err(Error::Rejected(format!(
                "the stream {stream}: {description}"
            ))),
        };
    }
    let message = reply
        .message
        .ok_or_else(|| invalid(&"neither a message nor an error"))?;
    let decode = |text: &str| STANDARD.decode(text).map_err(|error| invalid(&error));
    Ok(Some(StoredMessage {
        sequence: message.seq,
        timestamp: crate::model::parse_rfc3339(&message.time),
        headers: decode(&message.hdrs)?,
        payload: decode(&message.data)?,
        subject: message.subject,
    }))
}

/// The reply of the API request `STREAM.NAMES`.
#[derive(serde::Deserialize)]
struct StreamNames {
    streams: Option<Vec<String>>,
}

/// Names of the streams whose subjects overlap with a filter. Only the first page of the reply.
pub(super) async fn names_for_subject(
    connection: &Connection,
    filter: &str,
) -> Result<Vec<String>, Error> {
    let request = serde_json::json!({ "subject": filter });
    let call = format!("the streams with the subject {filter}");
    let reply = connection
        .context()
        .await?
        .request("STREAM.NAMES", &request)
        .await
        .map_err(|error| connection.request_error(&call, &error))?;
    match reply {
        Response::Ok(StreamNames { streams }) => Ok(streams.unwrap_or_default()),
        Response::Err { error } => Err(Error::Rejected(format!("{call}: {error}"))),
    }
}
