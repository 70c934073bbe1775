//! Tests of cancels, replacements and answers, and of the quota that may hold them back.

mod answers;
mod holds;
mod quota;
