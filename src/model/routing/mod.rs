//! Where a message may go, and which of a route's rules decide when it goes.

pub(in crate::model) mod position_rules;
pub(in crate::model) mod routing_rules;
pub(in crate::model) mod subject;
