//! Tests that run whole simulations.

pub(crate) mod compactor_stopped;
mod idle_rollback;
