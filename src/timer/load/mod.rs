//! Reads stored runs into memory, ahead of their due time and within a byte budget.

mod loader;
mod memory_budget;

pub(crate) use loader::{BlockedRun, Loader, ReadOutcome};
pub(crate) use loader::{FetchLoad, Load, LoadReply, LoadRequest, LoadResult, TailLoad};
#[cfg(test)]
pub(super) use loader::{StoredRun, decode_run, fetch_result};
pub(crate) use memory_budget::{
    DefinitionMemory, MemoryAccount, MemoryBudget, Reservation, ResidentRun,
};
