//! The rules of the store port: what a request does to a shard. Pure: no I/O, no clock.
//!
//! Stores inside this process (embedded, memory) apply these rules and decide only where runs, ids
//! and cancelled places are kept. The scripts in `lua/` state the same rules for Redis.

mod counts;
mod forecast;
mod lease;
mod ledger;
mod lineage;
mod sessions;
mod shard_meta;
mod tail;

pub(crate) use counts::{RunTotals, ShardCounts};
pub(crate) use forecast::due_by;
pub(crate) use lease::LeaseHolder;
pub(crate) use ledger::{Balance, Ledger};
pub(crate) use lineage::{AppendEpoch, EpochStart, Lineage};
pub(crate) use sessions::Sessions;
pub(crate) use shard_meta::{Change, Moved, NO_HOLD, ShardMeta, possibly_delivered};
pub(crate) use tail::ShardTail;
