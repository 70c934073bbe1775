//! Tests that run simulations.

pub(crate) mod compactor_stopped;
mod idle_rollback;
