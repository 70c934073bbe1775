//! Tests of cancels, replacements and answers.

mod answers;
mod holds;
