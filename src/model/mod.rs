//! The domain: what a message, a shard, a claim and a due time are. No I/O, no clock, no randomness; nothing here knows a broker or a
//! store.
//!
//! A *record* read from a source becomes a *message* with a due time, or a refusal with a *reason*. The messages of one source partition
//! that wait are a *shard*. A *claim* (C, W) says which of them are taken or done: those whose offset lies before the *watermark* W and
//! whose (due, offset) is not past the *cursor* C.

mod admission;
mod claim;
mod committed;
mod dialect;
mod due;
pub(crate) mod header;
pub(crate) mod header_name;
mod lease;
mod marker;
mod message;
mod origin;
mod picked;
mod reason;
mod refusal;
pub(crate) mod retry;
mod route;
mod shard;
mod subject;
mod tally;
mod time;
mod worker;

pub(crate) use admission::{Admission, Warning, admit};
pub(crate) use claim::{Claim, Cursor};
pub(crate) use committed::Committed;
pub(crate) use dialect::{Dialect, Dialects};
pub(crate) use due::{Delay, parse_after, parse_rfc3339};
pub(crate) use header::Headers;
pub(crate) use lease::{Lease, Token};
pub(crate) use marker::Delivered;
pub(crate) use message::{Body, Disposition, Message, Record, Retry};
pub(crate) use origin::{Origins, is_of_subject};
pub(crate) use reason::Reason;
pub(crate) use refusal::Refusal;
pub(crate) use route::{AllowList, CameBy, Naming, Rules, WithoutDelay};
pub(crate) use shard::{Hint, Identity, Offset, Partition, ShardId, Watermark};
pub(crate) use subject::{
    covers, fault_of_template, is_filter, is_subject, is_template, lets_through, overlap,
    source_topic, split_topic,
};
pub(crate) use tally::Tally;
pub(crate) use time::{Level, Slice, Timestamp};
pub(crate) use worker::Worker;
