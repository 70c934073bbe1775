//! Tests of cancels, replacements, reschedules, copies, answers, outcome records, pauses and the rules of routes, and of the
//! quota and the rate that may hold them back.

mod answers;
mod copies;
mod holds;
mod outcomes;
mod pauses;
mod policies;
mod quota;
mod rate;
