//! Postdate: delayed delivery for Kafka.
#![allow(dead_code, reason = "the ground is laid before what stands on it; goes with the first role")]

mod broker;
mod clock;
mod limit;
mod model;
mod mutant;
mod run;
mod store;
mod wheel;
