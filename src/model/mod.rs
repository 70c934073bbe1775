//! The domain: what a message, a shard, a lease and a due time are. No I/O, no clock, no
//! randomness; nothing here knows a broker or a store.
//!
//! A *record* read from a source is parsed into a *message* with a due time, or rejected with a
//! [`DeadLetterReason`]. The waiting messages of one source partition are a *shard*. The pair
//! (C, W), of type [`Progress`], tells which messages were taken or are done: those with an offset
//! below the *watermark* W and a (due, offset) not past the *cursor* C.
//!
//! | folder | duty |
//! |---|---|
//! | `headers` | the header block, the names of Postdate's headers, and the values it writes itself |
//! | `parsing` | from a record to a message, or to a dead letter with its reason |
//! | `dialect` | delay headers of other systems |
//! | `recurrence` | when a recurring schedule is due |
//! | `routing` | where a message may go: targets, allow-lists, NATS subjects |
//! | `protocol` | the values of the shard protocol, and their text forms |
//! | `answer` | the answer to a request |
//! | `outcome_record` | the fate of a message |
//! | `readable` | numbers, sizes and times as people read them |

mod answer;
mod dead_letter;
mod dialect;
mod headers;
mod message;
mod outcome_record;
mod parsing;
mod protocol;
pub(crate) mod readable;
mod recurrence;
mod routing;
mod shard;
mod start_point;
mod time;

pub(crate) use answer::{AnswerState, Effect, Request};
pub(crate) use dead_letter::DeadLetter;
pub(crate) use dialect::{Dialect, Dialects};
pub(crate) use headers::control::Control;
pub(crate) use headers::header::Headers;
pub(crate) use headers::origin::{
    OriginFormat, id_of_offset, is_from_subject, is_id_of_offset, partition_of_origin,
};
pub(crate) use headers::retry_keys::RetryKeys;
pub(crate) use headers::{header, header_name, retry};
pub(crate) use message::{Body, Disposition, Message, Record, RetryState, ScheduleState};
pub(crate) use outcome_record::{DraftKind, Fate, OutcomeDraft, OutcomeRecord, records_of_request};
pub(crate) use parsing::dead_letter_reason::DeadLetterReason;
pub(crate) use parsing::parse_record::{ParsedRecord, as_id, parse_record};
pub(crate) use parsing::rejection::Rejection;
pub(crate) use parsing::reply::{Reply, parse_reply};
pub(crate) use parsing::time_grammar::{Delay, parse_after, parse_rfc3339};
pub(crate) use protocol::commit_metadata::{CommitMetadata, UnreadableCommit};
pub(crate) use protocol::delivered_marker::{DeliveredMarker, OutcomeCounts};
pub(crate) use protocol::format_level::{COPY_LEVEL, FORMAT_LEVEL, readable_level};
pub(crate) use protocol::lease::{Lease, LeaseToken};
pub(crate) use protocol::pause::Pause;
#[cfg(test)]
pub(crate) use protocol::pause::PauseState;
pub(crate) use protocol::progress::{Cursor, Progress};
pub(crate) use protocol::redrive_position::RedrivePosition;
pub(crate) use protocol::rules_history::RulesHistory;
pub(crate) use protocol::worker::{Role, SessionId, WorkerEntry, WorkerId};
pub(crate) use recurrence::{
    Definition, Occurrence, ParsedDefinition, parse_definition, zone_data_version,
};
pub(crate) use routing::position_rules::PositionRules;
pub(crate) use routing::routing_rules::{
    Naming, OnDuplicate, ReplyRules, RoutingRules, TargetRules, WithoutDelay, is_topic_name,
};
pub(crate) use routing::subject::{
    covering_filter, filter_covers, filters_overlap, is_filter, is_inbox, is_subject, is_template,
    source_topic, split_source_topic, subject_within, template_error,
};
pub(crate) use shard::{
    Hint, Offset, Partition, ShardId, SourceIdentity, Watermark, other_installation,
};
pub(crate) use start_point::StartPoint;
pub(crate) use time::{Level, Slice, Timestamp};
