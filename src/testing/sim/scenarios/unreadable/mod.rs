//! A shard waits in front of data that its process cannot read, and the others are delivered.

mod keys;
mod newer_version;
