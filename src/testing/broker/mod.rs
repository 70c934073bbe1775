//! The broker ports under test: a cluster in memory, and the contract that every broker must keep.

pub(crate) mod contract;
#[cfg(test)]
pub(crate) mod memory;
