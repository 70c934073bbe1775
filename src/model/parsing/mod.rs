//! From a record's headers to a message with a due time, or to a dead letter with its reason.

pub(in crate::model) mod dead_letter_reason;
pub(in crate::model) mod parse_record;
pub(in crate::model) mod rejection;
pub(in crate::model) mod time_grammar;
