//! Handles to freeze one simulated process, to cut it off and to change its clock.

use crate::clock::{Clock as _, SteadyClock};
use crate::model::Timestamp;
use crate::testing::sim::clock::SimClock;
use crate::testing::sim::faults::freeze::Freeze;
use crate::testing::sim::faults::network::Network;
use crate::testing::sim::lease_audit::LeaseAudit;
use crate::testing::sim::world::World;
use crate::testing::store::memory::MemoryStore;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use tokio::sync::watch;

/// A handle; clones control the same process.
#[derive(Clone)]
pub(crate) struct ProcessControl {
    pub(crate) number: usize,
    /// The clock of its machine, which faults change.
    pub(crate) clock: Rc<SimClock>,
    /// The clock of its current run.
    steady: Rc<RefCell<SteadyClock<Rc<SimClock>>>>,
    /// True if it is cut off from the store.
    pub(crate) is_cut_from_store: Rc<Cell<bool>>,
    /// The former server of the store, if the process still reaches it instead of the current one.
    pub(crate) former_server: Rc<RefCell<Option<MemoryStore>>>,
    pub(crate) network: Rc<Network>,
    /// True if it reads all partitions, not only those that the membership assigns.
    pub(crate) reads_all: Rc<watch::Sender<bool>>,
    pub(crate) leases: Rc<LeaseAudit>,
    /// Freezes its compactor only.
    pub(crate) compactor: Rc<Freeze>,
    frozen: Rc<Freeze>,
}

impl ProcessControl {
    pub(crate) fn new(world: &World, number: usize) -> Self {
        Self::with_clock(world.clock(), number)
    }

    /// With its own clock.
    pub(crate) fn with_own_clock(world: &World, number: usize) -> Self {
        Self::with_clock(world.new_clock(), number)
    }

    fn with_clock(clock: Rc<SimClock>, number: usize) -> Self {
        Self {
            number,
            steady: Rc::new(RefCell::new(SteadyClock::new(clock.clone()))),
            clock,
            is_cut_from_store: Rc::default(),
            former_server: Rc::default(),
            network: Rc::default(),
            reads_all: Rc::default(),
            leases: Rc::default(),
            compactor: Rc::default(),
            frozen: Rc::default(),
        }
    }

    /// The clock of a new run of the process.
    pub(crate) fn start_clock(&self) -> SteadyClock<Rc<SimClock>> {
        let clock = SteadyClock::new(self.clock.clone());
        self.steady.replace(clock.clone());
        clock
    }

    /// The time by the clock of the current run.
    pub(crate) fn own_time(&self) -> Timestamp {
        self.steady.borrow().now()
    }

    pub(crate) fn freeze(&self, is_frozen: bool) {
        if !is_frozen {
            self.leases.on_wake();
        }
        self.frozen.set(is_frozen);
    }

    /// A task of the process that is not polled while the process is frozen.
    pub(crate) fn freezable<F: Future>(&self, body: F) -> impl Future<Output = F::Output> + use<F> {
        self.frozen.wrap(body)
    }
}
