//! The byte budget of a timer's loaded messages: each run in memory is charged for until it is dropped, and what is being fetched is reserved.
//! The shards share it so that one with a long backlog leaves the others room for what is due next.
//!
//! What is used and reserved together exceeds the budget by one run at most, of whichever shard: one that holds nothing must be able to load its
//! next run, however small its part. Only messages that are due at one instant and lie interleaved in several runs must be in memory together.

use crate::limit::{FETCH_BYTES_MAX, RUN_HELD_USUAL, TAIL_LIMIT};
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
    budget: usize,
    accounts: RefCell<Vec<Weak<Account>>>,
}

/// What one shard uses of it, as long as the shard is served or a run of its is held.
#[derive(Debug)]
pub(crate) struct Account {
    used: Cell<usize>,
    messages: Cell<usize>,
    /// For what is under way from the store.
    reserved: Cell<usize>,
    /// Of a message, when something was loaded last; 0: nothing was yet.
    mean: Cell<usize>,
    /// Of a run: the greatest, lately; 0: none was loaded yet.
    run: Cell<usize>,
    memory: Rc<Memory>,
}

impl Memory {
    pub(crate) fn new(budget: usize) -> Rc<Self> {
        Rc::new(Self {
            used: Cell::new(0),
            messages: Cell::new(0),
            budget,
            accounts: RefCell::default(),
        })
    }

    pub(crate) fn open(self: &Rc<Self>) -> Rc<Account> {
        let cell = || Cell::new(0);
        let account = Account {
            used: cell(),
            messages: cell(),
            reserved: cell(),
            mean: cell(),
            run: cell(),
            memory: self.clone(),
        };
        let account = Rc::new(account);
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

    /// What all shards may use beyond what they do, if none takes what is kept for another; less than nothing if one exceeds what it may. Half of
    /// the budget is kept, in equal parts; the other half is for whoever comes first, so that one busy shard among idle ones is not held down to
    /// its part.
    fn free(&self) -> (isize, usize) {
        let accounts = self.accounts.borrow();
        let open = || accounts.iter().filter_map(Weak::upgrade);
        let kept = self.budget / 2 / open().count().max(1);
        let taken: usize = open().map(|account| account.taken().max(kept)).sum();
        (self.budget as isize - taken as isize, kept)
    }
}

impl Account {
    fn taken(&self) -> usize {
        self.used.get() + self.reserved.get()
    }

    /// Bytes that may be loaded now.
    pub(crate) fn room(&self) -> usize {
        let (free, kept) = self.memory.free();
        usize::try_from(free).unwrap_or(0) + kept.saturating_sub(self.taken())
    }

    /// What a run of so many messages will take, with something to spare: by those that were loaded last.
    pub(crate) fn expected(&self, messages: u32) -> usize {
        let mean = self.mean.get();
        if mean == 0 {
            RUN_HELD_USUAL
        } else {
            (messages as usize * (mean + mean / 8)).min(RUN_HELD_USUAL)
        }
    }

    /// Keeps so many bytes for what is about to be loaded.
    pub(crate) fn reserve(self: &Rc<Self>, bytes: usize) -> Reserved {
        self.reserved.set(self.reserved.get() + bytes);
        Reserved {
            bytes,
            account: self.clone(),
        }
    }

    /// How many runs may be asked for that were just appended, and what they will take: one, whatever the room.
    pub(crate) fn appended(&self) -> (usize, usize) {
        let run = if self.run.get() == 0 {
            RUN_HELD_USUAL
        } else {
            self.run.get()
        };
        let runs = (self.room().min(FETCH_BYTES_MAX) / run).clamp(1, TAIL_LIMIT);
        (runs, runs * run)
    }

    /// Messages that fit into one of so many parts of the whole budget, if they are as large as those that were loaded last.
    pub(crate) fn fits(&self, parts: usize) -> u64 {
        (self.memory.budget / parts)
            .checked_div(self.mean.get())
            .map_or(u64::MAX, |messages| messages as u64)
    }

    /// Nothing more should be loaded.
    pub(crate) fn is_spent(&self) -> bool {
        self.room() == 0
    }

    /// Some shard has exceeded what it may.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.memory.free().0 < 0
    }

    /// Below half of the whole budget runs are kept whole, though not all of them may be needed soon.
    pub(crate) fn is_ample(&self) -> bool {
        self.memory.used.get() < self.memory.budget / 2
    }

    fn charge(&self, bytes: usize, messages: usize) {
        self.used.set(self.used.get() + bytes);
        self.messages.set(self.messages.get() + messages);
        self.memory.used.set(self.memory.used.get() + bytes);
        self.memory
            .messages
            .set(self.memory.messages.get() + messages);
        if let Some(mean) = self.used.get().checked_div(self.messages.get()) {
            self.mean.set(mean.max(1));
        }
    }

    fn discharge(&self, bytes: usize, messages: usize) {
        self.used.set(self.used.get() - bytes);
        self.messages.set(self.messages.get() - messages);
        self.memory.used.set(self.memory.used.get() - bytes);
        self.memory
            .messages
            .set(self.memory.messages.get() - messages);
    }
}

/// Room that nobody else takes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    bytes: usize,
    account: Rc<Account>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.account
            .reserved
            .set(self.account.reserved.get() - self.bytes);
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
        account
            .run
            .set(charged.max(account.run.get() - account.run.get() / 8));
        Self {
            run,
            charged,
            account: account.clone(),
        }
    }

    /// Drops what is due after `horizon`, and its charge. Answers the due of the first message dropped by this call.
    pub(crate) fn keep_until(&mut self, horizon: Timestamp) -> Option<Timestamp> {
        let before = self.run.len();
        self.account.discharge(self.charged, before);
        self.run.keep_until(horizon);
        self.charged = self.run.bytes_held();
        self.account.charge(self.charged, self.run.len());
        if self.run.len() < before {
            self.run.next_after()
        } else {
            None
        }
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
impl Memory {
    /// What is used and reserved together.
    pub(super) fn taken(&self) -> usize {
        self.accounts
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .map(|account| account.taken())
            .sum()
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
        assert_eq!(
            (first.room(), second.room()),
            (0, 200),
            "its part is left to the other"
        );
        second.charge(200, 2);
        assert!(first.is_spent() && second.is_spent());
        drop(second);
        let third = memory.open();
        assert_eq!(
            (first.room(), third.room()),
            (0, 200),
            "one that has gone keeps nothing"
        );
        first.charge(100, 1);
        assert_eq!(
            (first.is_overdrawn(), third.room()),
            (true, 200),
            "nor does one that takes too much take another's part"
        );
    }

    #[test]
    fn what_is_reserved_is_nobody_elses_until_it_is_given_back() {
        let memory = Memory::new(800);
        let (first, second) = (memory.open(), memory.open());
        let reserved = first.reserve(500);
        assert_eq!(
            (first.room(), second.room(), memory.taken(), memory.used()),
            (100, 300, 500, 0)
        );
        drop(reserved);
        assert_eq!((first.room(), second.room(), memory.taken()), (600, 600, 0));
    }

    #[test]
    fn what_a_shard_expects_follows_from_its_own_messages_and_not_from_anothers() {
        let memory = Memory::new(1 << 30);
        let (small, large, new) = (memory.open(), memory.open(), memory.open());
        small.charge(300 * 1_000, 1_000);
        large.charge(1 << 30, 1_024);
        assert_eq!(
            (small.expected(1_000), large.expected(2)),
            (337_000, 2 * ((1 << 20) + (1 << 17)))
        );
        assert_eq!(
            (large.expected(1_000), new.expected(1)),
            (RUN_HELD_USUAL, RUN_HELD_USUAL)
        );
        assert_eq!((small.fits(1), new.fits(1)), ((1 << 30) / 300, u64::MAX));
    }

    #[test]
    fn of_what_was_appended_as_much_is_asked_for_as_there_is_room_for_and_one_run_at_least() {
        let memory = Memory::new(64 << 20);
        let (shard, other) = (memory.open(), memory.open());
        assert_eq!(
            shard.appended(),
            (3, 3 * RUN_HELD_USUAL),
            "as long as none was loaded"
        );
        shard.run.set(10_000);
        assert_eq!(shard.appended(), (TAIL_LIMIT, TAIL_LIMIT * 10_000));
        shard.run.set(1 << 20);
        assert_eq!(shard.appended(), (16, FETCH_BYTES_MAX));
        let (_own, _others) = (shard.reserve(14 << 20), other.reserve(46 << 20));
        assert_eq!(shard.appended(), (4, 4 << 20));
        let _all = shard.reserve(9 << 20);
        assert_eq!(shard.appended(), (1, 1 << 20));
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
