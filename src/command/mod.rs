//! What `postdate` does beside serving: each command is a file, and ends by itself.

mod reset;

pub(crate) use reset::reset;
