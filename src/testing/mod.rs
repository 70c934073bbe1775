//! Everything that never ships: adapters in memory, contract suites, the simulation and injected faults.

#[macro_use]
pub(crate) mod fault_injection;
#[macro_use]
pub(crate) mod older_version;

#[cfg(any(test, feature = "test-support"))]
pub(crate) mod broker;
#[cfg(test)]
pub(crate) mod fuzz;
#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
pub(crate) mod store;
