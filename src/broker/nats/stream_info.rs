//! The state and settings of a stream, and single messages of it by sequence.

use super::connection::Connection;
use super::limit::NATS_REQUEST_TIMEOUT;
use crate::broker::{Error, PartitionInfo};
use crate::model::{
    Offset, Partition, SourceIdentity, Timestamp, filter_covers, split_source_topic,
};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, Info, RawMessage, RetentionPolicy, StorageType};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use time::OffsetDateTime;

/// A stream as it was when its info was fetched.
#[derive(Clone, Debug)]
pub(super) struct StreamInfo {
    pub(super) config: Config,
    /// Time of the last message. Long ago if there was none.
    pub(super) last_message_at: Timestamp,
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
        let end = info.state.last_sequence + 1;
        let first = info.state.first_sequence.clamp(1, end);
        let last_message_at = info.state.last_timestamp.unix_timestamp_nanos();
        Self {
            config: info.config,
            last_message_at: timestamp(last_message_at).unwrap_or(Timestamp::from_millis(i64::MIN)),
            deleted: (end - first).saturating_sub(info.state.messages),
            created: info.created.unix_timestamp_nanos(),
            first,
            end,
        }
    }

    /// The stream also drops messages when it exceeds a number or a size.
    pub(super) fn has_size_limit(&self) -> bool {
        let config = &self.config;
        config.max_messages > 0 || config.max_bytes > 0 || config.max_messages_per_subject > 0
    }

    /// A restart of the server loses the messages.
    pub(super) fn is_in_memory(&self) -> bool {
        self.config.storage == StorageType::Memory
    }

    /// The identity of the stream in an installation of NATS. The nanosecond of its creation names
    /// a stream: two streams do not share it, unless one was restored from a backup of the other.
    pub(super) fn identity(&self, installation: &str) -> SourceIdentity {
        SourceIdentity::new(Some(installation), Some(&self.created.to_string()))
    }

    pub(super) fn describe(&self, installation: &str) -> PartitionInfo {
        PartitionInfo {
            identity: Some(self.identity(installation)),
            first_offset: Offset(self.first),
            end_offset: Offset(self.end),
        }
    }

    /// An upper bound for the removed messages with sequences from `from` on. It counts only those
    /// before the first stored one if the filter does not match every subject.
    pub(super) fn removed_since(&self, filter: &str, from: u64) -> u64 {
        let deleted = Some(self.deleted).filter(|_| self.is_covered_by(filter));
        self.first.saturating_sub(from) + deleted.unwrap_or(0)
    }

    /// Returns true if the filter matches every message. A stream that mirrors another one, has
    /// sources or transforms subjects may hold messages with other subjects than its own.
    pub(super) fn is_covered_by(&self, filter: &str) -> bool {
        let config = &self.config;
        config.mirror.is_none()
            && config.sources.as_ref().is_none_or(Vec::is_empty)
            && config.subject_transform.is_none()
            && config
                .subjects
                .iter()
                .all(|subject| filter_covers(filter, subject))
    }

    /// Why the stream cannot be the source of a route that reads the headers of NATS' schedules.
    pub(super) fn schedule_conflict(&self) -> Option<String> {
        self.config.allow_message_schedules.then(|| {
            format!(
                "the stream {} delivers messages with Nats-Schedule by itself \
                 (allow_msg_schedules), so that a route with the dialect nats would deliver them \
                 once more: remove nats from the route's dialects, or read a stream without \
                 allow_msg_schedules",
                self.config.name
            )
        })
    }

    /// Why the stream cannot be a source: its retention removes messages that others have read.
    pub(super) fn unusable_reason(&self) -> Option<String> {
        let retention = match self.config.retention {
            RetentionPolicy::Limits => return None,
            RetentionPolicy::Interest => "interest",
            RetentionPolicy::WorkQueue => "work-queue",
        };
        Some(format!(
            "the stream {} has {retention} retention, which removes messages that may have to be \
             read again: a source needs limits retention, which only a new stream can have",
            self.config.name
        ))
    }
}

/// The time of a message in nanoseconds as a timestamp, if it fits.
pub(super) fn timestamp(nanos: i128) -> Option<Timestamp> {
    let millis = i64::try_from(nanos.div_euclid(1_000_000)).ok()?;
    Some(Timestamp::from_millis(millis))
}

/// Fetches the info of a stream. `None`: the stream does not exist.
pub(super) async fn fetch(
    connection: &Connection,
    stream: &str,
) -> Result<Option<StreamInfo>, Error> {
    let call = format!("STREAM.INFO.{stream}");
    let info = request(connection, &format!("the stream {stream}"), &call, &()).await?;
    Ok(info.map(StreamInfo::new))
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
) -> Result<Option<RawMessage>, Error> {
    #[derive(serde::Deserialize)]
    struct Reply {
        message: RawMessage,
    }
    let object = format!("the stream {stream}");
    let call = format!("STREAM.MSG.GET.{stream}");
    let next = json!({ "seq": from, "next_by_subj": filter });
    let reply: Option<Reply> = request(connection, &object, &call, &next).await?;
    Ok(reply.map(|reply| reply.message))
}

/// The header block and the payload of a message that was read by [`read_message`].
pub(super) fn decode(message: &RawMessage) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let decode = |text: &str| {
        let invalid = |error| Error::Unavailable(format!("an invalid message: {error}"));
        STANDARD.decode(text).map_err(invalid)
    };
    let headers = decode(message.headers.as_deref().unwrap_or_default())?;
    Ok((headers, decode(&message.payload)?))
}

/// The first offset of each partition whose message is not older than `time`; one past the last if
/// there is none.
pub(super) async fn offsets_at(
    connection: &Connection,
    partitions: &[Partition],
    time: Timestamp,
) -> Result<Vec<Offset>, Error> {
    let mut found = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let (stream, _) = split_source_topic(&partition.topic).unwrap_or_default();
        found.push(Offset(sequence_at(connection, stream, time).await?));
    }
    Ok(found)
}

/// The first sequence whose message is not older than `time`; one past the last if there is none.
///
/// Only a consumer can be asked for it, and it tells where it would start. It reads nothing.
async fn sequence_at(connection: &Connection, stream: &str, time: Timestamp) -> Result<u64, Error> {
    let object = format!("the stream {stream}");
    let nanos = i128::from(time.as_millis()) * 1_000_000;
    let start_time = OffsetDateTime::from_unix_timestamp_nanos(nanos)
        .map_err(|error| Error::Rejected(format!("{object}: {error}")))?;
    let config = pull::Config {
        deliver_policy: DeliverPolicy::ByStartTime { start_time },
        ack_policy: AckPolicy::None,
        inactive_threshold: NATS_REQUEST_TIMEOUT,
        ..pull::Config::default()
    };
    let context = connection.context().await?;
    let created = context.create_consumer_on_stream(config, stream).await;
    let consumer = created.map_err(|error| connection.request_error(&object, &error))?;
    Ok(consumer.cached_info().delivered.stream_sequence + 1)
}

/// Names of the streams whose subjects overlap with a filter. Only the first page of the reply.
pub(super) async fn names_for_subject(
    connection: &Connection,
    filter: &str,
) -> Result<Vec<String>, Error> {
    #[derive(Default, serde::Deserialize)]
    struct Reply {
        streams: Option<Vec<String>>,
    }
    let object = format!("the streams with the subject {filter}");
    let names = json!({ "subject": filter });
    let reply: Option<Reply> = request(connection, &object, "STREAM.NAMES", &names).await?;
    Ok(reply.unwrap_or_default().streams.unwrap_or_default())
}

/// Sends a request of the JetStream API. `None`: the object does not exist.
pub(super) async fn request<T: DeserializeOwned>(
    connection: &Connection,
    object: &str,
    call: &str,
    request: &impl Serialize,
) -> Result<Option<T>, Error> {
    match connection
        .context()
        .await?
        .request(call.to_owned(), request)
        .await
    {
        Ok(Response::Ok(reply)) => Ok(Some(reply)),
        Ok(Response::Err { error }) if error.code() == 404 => Ok(None),
        Ok(Response::Err { error }) => Err(Error::Rejected(format!("{object}: {error}"))),
        Err(error) => Err(connection.request_error(object, &error)),
    }
}
