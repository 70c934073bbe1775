//! Tests of cancels, replacements, reschedules, copies, answers and the rules of routes, and of the quota and the rate
//! that may hold them back.

mod answers;
mod copies;
mod holds;
mod policies;
mod quota;
mod rate;
