//! Faults that a simulation injects: into processes, the network, the store and the source.

pub(crate) mod fleet;
pub(crate) mod freeze;
pub(crate) mod nats;
pub(crate) mod network;
pub(crate) mod producer;
pub(crate) mod single;
pub(crate) mod slow_store;
