//! Tests of cancels, replacements, reschedules, answers and the rules of routes, and of the quota that may
//! hold them back.

mod answers;
mod holds;
mod policies;
mod quota;
