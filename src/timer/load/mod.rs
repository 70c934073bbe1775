//! Reads stored runs into memory, ahead of their due time and within a byte budget.

mod loader;
mod memory_budget;

#[cfg(test)]
pub(super) use loader::{FetchBounds, decode_run, fetch_result};
pub(crate) use loader::{Load, LoadReply, LoadRequest, LoadResult, Loader, ReadOutcome};
pub(crate) use memory_budget::{MemoryAccount, MemoryBudget, Reservation, ResidentRun};
