//! Where a message may go.

pub(in crate::model) mod routing_rules;
pub(in crate::model) mod subject;
