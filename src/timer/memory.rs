//! The byte budget of a timer's loaded messages: each run in memory is charged for until it is dropped.

use crate::model::{Cursor, Timestamp};
use crate::run::Loaded;
use crate::schedule::Places;
use std::cell::Cell;
use std::rc::Rc;

/// What is used of the budget, in bytes. One a timer, shared by all its shards.
#[derive(Debug)]
pub(crate) struct Memory {
    used: Cell<usize>,
    messages: Cell<usize>,
    budget: usize,
}

impl Memory {
    pub(crate) fn new(budget: usize) -> Rc<Self> {
        Rc::new(Self { used: Cell::new(0), messages: Cell::new(0), budget })
    }

    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    /// Messages that are loaded.
    pub(crate) fn messages(&self) -> usize {
        self.messages.get()
    }

    fn charge(&self, bytes: usize, messages: usize) {
        self.used.set(self.used.get() + bytes);
        self.messages.set(self.messages.get() + messages);
    }

    fn discharge(&self, bytes: usize, messages: usize) {
        self.used.set(self.used.get() - bytes);
        self.messages.set(self.messages.get() - messages);
    }

    /// Below half of the budget runs are kept whole, though not all of them may be needed soon.
    pub(crate) fn is_ample(&self) -> bool {
        self.used.get() < self.budget / 2
    }

    /// Nothing more should be loaded.
    pub(crate) fn is_spent(&self) -> bool {
        self.used.get() >= self.budget
    }
}

/// A loaded run and its charge.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) run: Loaded,
    charged: usize,
    memory: Rc<Memory>,
}

impl Resident {
    pub(crate) fn new(run: Loaded, memory: &Rc<Memory>) -> Self {
        let charged = run.bytes_held();
        memory.charge(charged, run.len());
        Self { run, charged, memory: memory.clone() }
    }

    /// Drops what is due after `horizon`, and its charge. Answers the due of the first message dropped by this call.
    pub(crate) fn keep_until(&mut self, horizon: Timestamp) -> Option<Timestamp> {
        let before = self.run.len();
        self.memory.discharge(self.charged, before);
        self.run.keep_until(horizon);
        self.charged = self.run.bytes_held();
        self.memory.charge(self.charged, self.run.len());
        if self.run.len() < before { self.run.next_after() } else { None }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.memory.discharge(self.charged, self.run.len());
    }
}

impl Places for Resident {
    fn len(&self) -> usize {
        self.run.len()
    }

    fn place(&self, index: usize) -> Cursor {
        self.run.place(index)
    }
}
