//! The byte budget of a timer's loaded messages: each run in memory is charged for until it is dropped. The shards share it so that one with a
//! long backlog leaves the others room for what is due next.

use crate::model::{Cursor, Timestamp};
use crate::run::Loaded;
use crate::schedule::Places;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// What is used of the budget, in bytes. One a timer.
#[derive(Debug)]
pub(crate) struct Memory {
    used: Cell<usize>,
    messages: Cell<usize>,
    /// Of a message, when something was loaded last; 0: nothing was yet.
    mean: Cell<usize>,
    budget: usize,
    accounts: RefCell<Vec<Weak<Account>>>,
}

/// What one shard uses of it, as long as the shard is served or a run of its is held.
#[derive(Debug)]
pub(crate) struct Account {
    used: Cell<usize>,
    memory: Rc<Memory>,
}

impl Memory {
    pub(crate) fn new(budget: usize) -> Rc<Self> {
        Rc::new(Self { used: Cell::new(0), messages: Cell::new(0), mean: Cell::new(0), budget, accounts: RefCell::default() })
    }

    pub(crate) fn open(self: &Rc<Self>) -> Rc<Account> {
        let account = Rc::new(Account { used: Cell::new(0), memory: self.clone() });
        let mut accounts = self.accounts.borrow_mut();
        accounts.retain(|account| account.strong_count() > 0);
        accounts.push(Rc::downgrade(&account));
        account
    }

    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    /// Messages that are loaded.
    pub(crate) fn messages(&self) -> usize {
        self.messages.get()
    }

    /// What all shards may use beyond what they do, if none takes what is kept for another. Half of the budget is kept, in equal parts; the
    /// other half is for whoever comes first, so that one busy shard among idle ones is not held down to its part.
    fn free(&self) -> (isize, usize) {
        let accounts = self.accounts.borrow();
        let used: Vec<usize> = accounts.iter().filter_map(Weak::upgrade).map(|account| account.used.get()).collect();
        let kept = self.budget / 2 / used.len().max(1);
        let taken: usize = used.iter().map(|used| (*used).max(kept)).sum();
        (self.budget as isize - taken as isize, kept)
    }
}

impl Account {
    /// Bytes that may be loaded now.
    pub(crate) fn room(&self) -> usize {
        let (free, kept) = self.memory.free();
        let own = kept.saturating_sub(self.used.get()) as isize;
        usize::try_from(free + own).unwrap_or(0)
    }

    /// Messages that fit into the room if they are as large as those that were loaded last; as long as nothing was, one is tried.
    pub(crate) fn room_messages(&self) -> u64 {
        self.room().checked_div(self.memory.mean.get()).map_or(1, |messages| messages as u64)
    }

    /// Messages that fit into one of so many parts of the whole budget, if they are as large as those that were loaded last.
    pub(crate) fn fits(&self, parts: usize) -> u64 {
        (self.memory.budget / parts).checked_div(self.memory.mean.get()).map_or(u64::MAX, |messages| messages as u64)
    }

    /// Nothing more should be loaded.
    pub(crate) fn is_spent(&self) -> bool {
        self.room() == 0
    }

    /// Below half of the whole budget runs are kept whole, though not all of them may be needed soon.
    pub(crate) fn is_ample(&self) -> bool {
        self.memory.used.get() < self.memory.budget / 2
    }

    fn charge(&self, bytes: usize, messages: usize) {
        self.used.set(self.used.get() + bytes);
        self.memory.used.set(self.memory.used.get() + bytes);
        self.memory.messages.set(self.memory.messages.get() + messages);
        if let Some(mean) = self.memory.used.get().checked_div(self.memory.messages.get()) {
            self.memory.mean.set(mean.max(1));
        }
    }

    fn discharge(&self, bytes: usize, messages: usize) {
        self.used.set(self.used.get() - bytes);
        self.memory.used.set(self.memory.used.get() - bytes);
        self.memory.messages.set(self.memory.messages.get() - messages);
    }
}

/// A loaded run and its charge.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) run: Loaded,
    charged: usize,
    account: Rc<Account>,
}

impl Resident {
    pub(crate) fn new(run: Loaded, account: &Rc<Account>) -> Self {
        let charged = run.bytes_held();
        account.charge(charged, run.len());
        Self { run, charged, account: account.clone() }
    }

    /// Drops what is due after `horizon`, and its charge. Answers the due of the first message dropped by this call.
    pub(crate) fn keep_until(&mut self, horizon: Timestamp) -> Option<Timestamp> {
        let before = self.run.len();
        self.account.discharge(self.charged, before);
        self.run.keep_until(horizon);
        self.charged = self.run.bytes_held();
        self.account.charge(self.charged, self.run.len());
        if self.run.len() < before { self.run.next_after() } else { None }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.account.discharge(self.charged, self.run.len());
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_shard_alone_has_all_of_it_and_many_have_their_parts() {
        let memory = Memory::new(800);
        let first = memory.open();
        assert_eq!(first.room(), 800);
        let second = memory.open();
        assert_eq!((first.room(), second.room()), (600, 600));
        first.charge(600, 6);
        assert_eq!((first.room(), second.room()), (0, 200), "its part is left to the other");
        assert_eq!(second.room_messages(), 2);
        second.charge(200, 2);
        assert!(first.is_spent() && second.is_spent());
        drop(second);
        let third = memory.open();
        assert_eq!((first.room(), third.room()), (0, 200), "one that has gone keeps nothing");
    }

    proptest! {
        #[test]
        fn together_they_never_fill_more_than_the_budget(loads in prop::collection::vec((0..5_usize, 1..400_usize), 1..200)) {
            let memory = Memory::new(1_000);
            let accounts: Vec<_> = (0..5).map(|_| memory.open()).collect();
            for (at, bytes) in loads {
                let bytes = bytes.min(accounts[at].room());
                accounts[at].charge(bytes, 1);
                prop_assert!(memory.used() <= 1_000);
                for account in &accounts {
                    prop_assert!(account.used.get() + account.room() >= 100, "each has its part");
                }
            }
        }
    }
}
