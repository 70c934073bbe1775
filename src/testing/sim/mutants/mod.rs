//! Injected faults that replace a port instead of a line of production code.

pub(crate) mod ingress_sends_directly;
pub(crate) mod marker_faults;
pub(crate) mod source_faults;
pub(crate) mod tail_by_run_count;
