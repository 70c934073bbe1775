//! What a stream says of itself, and single messages of it by their sequence.

use super::connection::Connection;
use crate::broker::{Error, PartitionInfo};
use crate::model::{Offset, SourceIdentity, Timestamp, filter_covers};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::time::Duration;

/// A stream as it is now.
#[derive(Clone, Debug)]
pub(crate) struct StreamInfo {
    pub(crate) name: String,
    pub(crate) subjects: Vec<String>,
    /// How long it keeps its messages; `None`: no bound.
    pub(crate) max_age: Option<Duration>,
    /// Whether it also drops messages by their number or their size.
    pub(crate) has_size_limit: bool,
    /// How long it passes over what it has already, and when it took its last message; long ago, if it never has.
    pub(crate) duplicate_window: Duration,
    pub(crate) last_message_at: Timestamp,
    /// The consumers that it may have at a time; `None`: no bound of its own.
    pub(crate) max_consumers: Option<usize>,
    /// How long a consumer of it may stay unasked at most; `None`: no bound.
    pub(super) consumer_idle_max: Option<Duration>,
    retention: RetentionPolicy,
    /// Whether the server itself delivers what bears the headers of its schedules.
    pub(crate) runs_schedules: bool,
    /// Whether it confirms nothing, or takes nothing any more.
    pub(crate) is_without_acks: bool,
    pub(crate) is_sealed: bool,
    /// Whether a server that is started again has forgotten it.
    pub(crate) is_in_memory: bool,
    /// Whether it may have other subjects than its own: those of other streams, or what it makes of its own.
    may_hold_other_subjects: bool,
    /// Sequences between the first and the last that it has not, or has no more.
    deleted: u64,
    /// When it was made, in nanoseconds: another stream of its name has another.
    pub(super) created: i128,
    /// The first sequence that is retained.
    pub(super) first: u64,
    /// One past the last.
    pub(super) end: u64,
}

impl StreamInfo {
    pub(super) fn describe(&self) -> PartitionInfo {
        PartitionInfo {
            identity: Some(SourceIdentity(self.created.to_string().into())),
            first_offset: Offset(self.first),
            end_offset: Offset(self.end),
        }
    }

    /// How many of the sequences from one on it had at most, and has no more. Of a stream that has other subjects than a filter lets through, nothing
    /// is known but what lay before its first.
    pub(super) fn removed_since(&self, filter: &str, from: u64) -> u64 {
        self.first.saturating_sub(from)
            + if self.is_covered_by(filter) {
                self.deleted
            } else {
                0
            }
    }

    /// Whether a filter lets all through.
    pub(super) fn is_covered_by(&self, filter: &str) -> bool {
        !self.may_hold_other_subjects
            && self
                .subjects
                .iter()
                .all(|subject| filter_covers(filter, subject))
    }

    /// Why it cannot be a source of who reads the headers of the server's schedules.
    pub(crate) fn schedule_conflict(&self) -> Option<String> {
        self.runs_schedules.then(|| {
            format!(
                "the stream {} delivers messages with Nats-Schedule by itself (allow_msg_schedules), so that a route with the dialect nats \
                 would deliver them once more: take nats from the route's dialects, or read a stream without allow_msg_schedules",
                self.name
            )
        })
    }

    /// Why it cannot be a source: it takes away what is read elsewhere.
    pub(crate) fn unusable_reason(&self) -> Option<String> {
        let retention = match self.retention {
            RetentionPolicy::Limits => return None,
            RetentionPolicy::Interest => "interest",
            RetentionPolicy::WorkQueue => "work-queue",
        };
        Some(format!(
            "the stream {} has {retention} retention, under which messages vanish that may have to be read again: \
             a source needs limits retention, which only a new stream can have",
            self.name
        ))
    }
}

/// `None`: there is no such stream.
pub(super) async fn fetch(link: &Connection, stream: &str) -> Result<Option<StreamInfo>, Error> {
    if !is_stream_name(stream) {
        return Ok(None);
    }
    let info = match link.context().await?.get_stream(stream).await {
        Ok(stream) => stream.cached_info().clone(),
        Err(error) => {
            return match error.kind() {
                GetStreamErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                GetStreamErrorKind::JetStream(error) => {
                    Err(Error::Rejected(format!("the stream {stream}: {error}")))
                }
                _ => Err(link.request_error(&format!("the stream {stream}"), &error)),
            };
        }
    };
    let (first, end) = (
        info.state.first_sequence.max(1),
        info.state.last_sequence + 1,
    );
    let last = info
        .state
        .last_timestamp
        .unix_timestamp_nanos()
        .div_euclid(1_000_000);
    let deleted = (end - first.min(end)).saturating_sub(info.state.messages);
    let Config {
        name,
        subjects,
        max_age,
        max_messages,
        max_bytes,
        max_messages_per_subject,
        retention,
        ..
    } = info.config;
    let Config {
        duplicate_window,
        max_consumers,
        consumer_limits,
        no_ack,
        sealed,
        storage,
        ..
    } = info.config;
    let Config {
        mirror,
        sources,
        subject_transform,
        ..
    } = info.config;
    let consumer_idle = consumer_limits.map(|limits| limits.inactive_threshold);
    Ok(Some(StreamInfo {
        name,
        subjects,
        max_age: Some(max_age).filter(|max_age| !max_age.is_zero()),
        duplicate_window,
        last_message_at: Timestamp::from_millis(i64::try_from(last).unwrap_or(i64::MIN)),
        max_consumers: usize::try_from(max_consumers).ok().filter(|max| *max > 0),
        consumer_idle_max: consumer_idle.filter(|idle| !idle.is_zero()),
        has_size_limit: max_messages > 0 || max_bytes > 0 || max_messages_per_subject > 0,
        retention,
        runs_schedules: info.config.allow_message_schedules,
        is_without_acks: no_ack,
        is_sealed: sealed,
        is_in_memory: storage == StorageType::Memory,
        may_hold_other_subjects: mirror.is_some()
            || sources.is_some_and(|sources| !sources.is_empty())
            || subject_transform.is_some(),
        deleted,
        created: info.created.unix_timestamp_nanos(),
        first: first.min(end),
        end,
    }))
}

/// What the server takes for the name of a stream, and what cannot be taken for another subject of its API.
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
    /// As they are on the wire.
    pub(super) headers: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

#[derive(serde::Deserialize)]
struct Answer {
    message: Option<Message>,
    error: Option<Refusal>,
}

#[derive(serde::Deserialize)]
struct Message {
    subject: String,
    seq: u64,
    time: String,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

#[derive(serde::Deserialize)]
struct Refusal {
    code: u16,
    description: String,
}

/// The first message from `from` on that the filter lets through; `None`: there is none now. In another way than consumers read: a message
/// whose headers the client library cannot take ends a connection on which it is consumed.
pub(super) async fn read_message(
    link: &Connection,
    (stream, filter): (&str, &str),
    from: u64,
) -> Result<Option<StoredMessage>, Error> {
    let ask = serde_json::json!({ "seq": from, "next_by_subj": filter }).to_string();
    let answer = link
        .client()
        .await?
        .request(
            link.api_subject(&format!("STREAM.MSG.GET.{stream}")),
            ask.into(),
        )
        .await;
    let answer =
        answer.map_err(|error| link.request_error(&format!("the stream {stream}"), &error))?;
    let unreadable = |what: &dyn std::fmt::Display| {
        Error::Unavailable(format!(
            "the stream {stream} answers what is not understood: {what}"
        ))
    };
    match serde_json::from_slice::<Answer>(&answer.payload).map_err(|error| unreadable(&error))? {
        Answer {
            error: Some(Refusal { code: 404, .. }),
            ..
        } => Ok(None),
        Answer {
            error: Some(Refusal { description, .. }),
            ..
        } => Err(Error::Rejected(format!(
            "the stream {stream}: {description}"
        ))),
        Answer {
            message: Some(message),
            ..
        } => {
            let decode = |text: &str| STANDARD.decode(text).map_err(|error| unreadable(&error));
            Ok(Some(StoredMessage {
                sequence: message.seq,
                timestamp: crate::model::parse_rfc3339(&message.time),
                headers: decode(&message.hdrs)?,
                payload: decode(&message.data)?,
                subject: message.subject,
            }))
        }
        Answer { .. } => Err(unreadable(&"neither a message nor an error")),
    }
}

#[derive(serde::Deserialize)]
struct Names {
    streams: Option<Vec<String>>,
}

/// The names of the streams that take what a filter lets through, or is sent to a subject: those that one answer has room for.
pub(super) async fn names_for_subject(
    link: &Connection,
    filter: &str,
) -> Result<Vec<String>, Error> {
    let ask = serde_json::json!({ "subject": filter });
    let answer = link
        .context()
        .await?
        .request("STREAM.NAMES", &ask)
        .await
        .map_err(|error| link.request_error(&format!("the streams behind {filter}"), &error))?;
    match answer {
        Response::Ok(Names { streams }) => Ok(streams.unwrap_or_default()),
        Response::Err { error } => Err(Error::Rejected(format!(
            "the streams behind {filter}: {error}"
        ))),
    }
}
