//! From a record to a message, or to a rejection.

pub(in crate::model) mod dead_letter_reason;
pub(in crate::model) mod parse_record;
mod parse_retry;
pub(in crate::model) mod rejection;
pub(in crate::model) mod reply;
#[cfg(test)]
mod tests;
pub(in crate::model) mod time_grammar;
