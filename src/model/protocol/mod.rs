//! The values of the shard protocol (`docs/internals/protocol.md`), and their text forms.

pub(in crate::model) mod commit_metadata;
pub(in crate::model) mod delivered_marker;
pub(in crate::model) mod lease;
pub(in crate::model) mod outcome_counts;
pub(in crate::model) mod progress;
pub(in crate::model) mod worker;
