//! Limits on claims: messages in flight for each route, and the catch-up rate after an outage.

pub(super) mod catch_up_rate;
pub(super) mod in_flight;
