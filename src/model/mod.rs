//! The domain: what a message, a shard, a claim and a due time are. No I/O, no clock, no randomness; nothing here knows a broker or a
//! store.
//!
//! A *record* read from a source becomes a *message* with a due time, or a refusal with a *reason*. The messages of one source partition
//! that wait are a *shard*. A *claim* (C, W) says which of them are taken or done: those whose offset lies before the *watermark* W and
//! whose (due, offset) is not past the *cursor* C.

mod commit_metadata;
mod dead_letter_reason;
mod delivered_marker;
mod dialect;
pub(crate) mod header;
mod header_lookup;
pub(crate) mod header_name;
mod lease;
mod message;
mod origin;
mod outcome_counts;
mod parse_record;
mod progress;
mod rejection;
pub(crate) mod retry;
mod routing_rules;
mod shard;
mod subject;
mod time;
mod time_grammar;
mod worker;

pub(crate) use commit_metadata::CommitMetadata;
pub(crate) use dead_letter_reason::Reason;
pub(crate) use delivered_marker::DeliveredMarker;
pub(crate) use dialect::{Dialect, Dialects};
pub(crate) use header::Headers;
pub(crate) use lease::{Lease, LeaseToken};
pub(crate) use message::{Body, Disposition, Message, Record, RetryState};
pub(crate) use origin::{OriginFormat, is_from_subject};
pub(crate) use outcome_counts::OutcomeCounts;
pub(crate) use parse_record::{ParsedRecord, Warning, parse_record};
pub(crate) use progress::{Cursor, Progress};
pub(crate) use rejection::Rejection;
pub(crate) use routing_rules::{AllowList, Naming, RoutingRules, TemplateInput, WithoutDelay};
pub(crate) use shard::{Hint, Offset, Partition, ShardId, SourceIdentity, Watermark};
pub(crate) use subject::{
    filter_covers, filter_matches, filters_overlap, is_filter, is_subject, is_template,
    source_topic, split_source_topic, template_error,
};
pub(crate) use time::{Level, Slice, Timestamp};
pub(crate) use time_grammar::{Delay, parse_after, parse_rfc3339};
pub(crate) use worker::WorkerId;
