//! Tests of cancels, replacements, reschedules, copies, answers, pauses and the rules of routes, and of the
//! quota and the rate that may hold them back.

mod answers;
mod copies;
mod holds;
mod pauses;
mod policies;
mod quota;
mod rate;
mod sent_back;
