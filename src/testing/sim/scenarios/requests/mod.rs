//! Tests of cancels, replacements, reschedules, answers and the rules of routes, and of quota and rate, which may
//! hold them back.

mod answers;
mod holds;
mod policies;
mod quota;
mod rate;
