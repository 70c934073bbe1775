//! The store port under test: a store in memory, and the contract that every store must keep.

pub(crate) mod contract;
pub(crate) mod memory;
pub(crate) mod requests;
