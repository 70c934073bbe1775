//! Postdate: delayed delivery for Kafka.
#![allow(dead_code, reason = "the ground is laid before what stands on it; goes with the first role")]

mod broker;
mod clock;
mod limit;
mod model;
mod mutant;
mod run;
mod store;

/// Conformance suites for the integration tests, which have the servers.
#[cfg(feature = "test-support")]
pub mod test_support {
    pub use crate::broker::kafka::{kafka_contract, kafka_outage_contract};
}
