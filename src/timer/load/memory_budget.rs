//! The byte budget of a timer's loaded messages: each run in memory is charged for until it is dropped, and what is being fetched is reserved.
//! The shards share it so that one with a long backlog leaves the others room for what is due next.
//!
//! What is used and reserved together exceeds the budget by one run at most, of whichever shard: one that holds nothing must be able to load its
//! next run, however small its part. Only messages that are due at one instant and lie interleaved in several runs must be in memory together.

use crate::limit::{FETCH_BYTES_MAX, TAIL_REPLY_RUNS_MAX, USUAL_RUN_MEMORY_BYTES};
use crate::model::{Cursor, Timestamp};
use crate::run::LoadedRun;
use crate::schedule::Places;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// What is used of the budget, in bytes. One a timer.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    used: Cell<usize>,
    messages: Cell<usize>,
    limit: usize,
    accounts: RefCell<Vec<Weak<MemoryAccount>>>,
}

/// What one shard uses of it, as long as the shard is served or a run of its is held.
#[derive(Debug)]
pub(crate) struct MemoryAccount {
    used: Cell<usize>,
    messages: Cell<usize>,
    /// For what is under way from the store.
    reserved: Cell<usize>,
    /// Of a message, when something was loaded last; 0: nothing was yet.
    mean_message: Cell<usize>,
    /// Of a run: the greatest, lately; 0: none was loaded yet.
    usual_run: Cell<usize>,
    budget: Rc<MemoryBudget>,
}

impl MemoryBudget {
    pub(crate) fn new(budget: usize) -> Rc<Self> {
        Rc::new(Self {
            used: Cell::new(0),
            messages: Cell::new(0),
            limit: budget,
            accounts: RefCell::default(),
        })
    }

    pub(crate) fn open_account(self: &Rc<Self>) -> Rc<MemoryAccount> {
        let cell = || Cell::new(0);
        let account = MemoryAccount {
            used: cell(),
            messages: cell(),
            reserved: cell(),
            mean_message: cell(),
            usual_run: cell(),
            budget: self.clone(),
        };
        let account = Rc::new(account);
        let mut accounts = self.accounts.borrow_mut();
        accounts.retain(|account| account.strong_count() > 0);
        accounts.push(Rc::downgrade(&account));
        account
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used.get()
    }

    /// Messages that are loaded.
    pub(crate) fn loaded_messages(&self) -> usize {
        self.messages.get()
    }

    /// What all shards may use beyond what they do, if none takes what is kept for another; less than nothing if one exceeds what it may. Half of
    /// the budget is kept, in equal parts; the other half is for whoever comes first, so that one busy shard among idle ones is not held down to
    /// its part.
    fn unallocated(&self) -> (isize, usize) {
        let accounts = self.accounts.borrow();
        let open = || accounts.iter().filter_map(Weak::upgrade);
        let kept = self.limit / 2 / open().count().max(1);
        let taken: usize = open()
            .map(|account| account.used_and_reserved().max(kept))
            .sum();
        (self.limit as isize - taken as isize, kept)
    }
}

impl MemoryAccount {
    fn used_and_reserved(&self) -> usize {
        self.used.get() + self.reserved.get()
    }

    /// Bytes that may be loaded now.
    pub(crate) fn available(&self) -> usize {
        let (free, kept) = self.budget.unallocated();
        usize::try_from(free).unwrap_or(0) + kept.saturating_sub(self.used_and_reserved())
    }

    /// What a run of so many messages will take, with something to spare: by those that were loaded last.
    pub(crate) fn expected_bytes(&self, messages: u32) -> usize {
        let mean = self.mean_message.get();
        if mean == 0 {
            USUAL_RUN_MEMORY_BYTES
        } else {
            (messages as usize * (mean + mean / 8)).min(USUAL_RUN_MEMORY_BYTES)
        }
    }

    /// Keeps so many bytes for what is about to be loaded.
    pub(crate) fn reserve(self: &Rc<Self>, bytes: usize) -> Reservation {
        self.reserved.set(self.reserved.get() + bytes);
        Reservation {
            bytes,
            account: self.clone(),
        }
    }

    /// How many runs may be asked for that were just appended, and what they will take: one, whatever the room.
    pub(crate) fn tail_limits(&self) -> (usize, usize) {
        let run = if self.usual_run.get() == 0 {
            USUAL_RUN_MEMORY_BYTES
        } else {
            self.usual_run.get()
        };
        let runs = (self.available().min(FETCH_BYTES_MAX) / run).clamp(1, TAIL_REPLY_RUNS_MAX);
        (runs, runs * run)
    }

    /// Messages that fit into one of so many parts of the whole budget, if they are as large as those that were loaded last.
    pub(crate) fn messages_per_part(&self, parts: usize) -> u64 {
        (self.budget.limit / parts)
            .checked_div(self.mean_message.get())
            .map_or(u64::MAX, |messages| messages as u64)
    }

    /// Nothing more should be loaded.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.available() == 0
    }

    /// Some shard has exceeded what it may.
    pub(crate) fn is_over_budget(&self) -> bool {
        self.budget.unallocated().0 < 0
    }

    /// Below half of the whole budget runs are kept whole, though not all of them may be needed soon.
    pub(crate) fn is_half_free(&self) -> bool {
        self.budget.used.get() < self.budget.limit / 2
    }

    fn charge(&self, bytes: usize, messages: usize) {
        self.used.set(self.used.get() + bytes);
        self.messages.set(self.messages.get() + messages);
        self.budget.used.set(self.budget.used.get() + bytes);
        self.budget
            .messages
            .set(self.budget.messages.get() + messages);
        if let Some(mean) = self.used.get().checked_div(self.messages.get()) {
            self.mean_message.set(mean.max(1));
        }
    }

    fn discharge(&self, bytes: usize, messages: usize) {
        self.used.set(self.used.get() - bytes);
        self.messages.set(self.messages.get() - messages);
        self.budget.used.set(self.budget.used.get() - bytes);
        self.budget
            .messages
            .set(self.budget.messages.get() - messages);
    }
}

/// Room that nobody else takes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: usize,
    account: Rc<MemoryAccount>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account
            .reserved
            .set(self.account.reserved.get() - self.bytes);
    }
}

/// A loaded run and its charge.
#[derive(Debug)]
pub(crate) struct ResidentRun {
    pub(crate) run: LoadedRun,
    charged: usize,
    account: Rc<MemoryAccount>,
}

impl ResidentRun {
    pub(crate) fn new(run: LoadedRun, account: &Rc<MemoryAccount>) -> Self {
        let charged = run.memory_size();
        account.charge(charged, run.len());
        account
            .usual_run
            .set(charged.max(account.usual_run.get() - account.usual_run.get() / 8));
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
        self.run.drop_after(horizon);
        self.charged = self.run.memory_size();
        self.account.charge(self.charged, self.run.len());
        if self.run.len() < before {
            self.run.first_dropped_due()
        } else {
            None
        }
    }
}

impl Drop for ResidentRun {
    fn drop(&mut self) {
        self.account.discharge(self.charged, self.run.len());
    }
}

impl Places for ResidentRun {
    fn len(&self) -> usize {
        self.run.len()
    }

    fn place(&self, index: usize) -> Cursor {
        self.run.place(index)
    }
}

#[cfg(test)]
impl MemoryBudget {
    /// What is used and reserved together.
    pub(crate) fn used_and_reserved(&self) -> usize {
        self.accounts
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .map(|account| account.used_and_reserved())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_shard_alone_has_all_of_it_and_many_have_their_parts() {
        let memory = MemoryBudget::new(800);
        let first = memory.open_account();
        assert_eq!(first.available(), 800);
        let second = memory.open_account();
        assert_eq!((first.available(), second.available()), (600, 600));
        first.charge(600, 6);
        assert_eq!(
            (first.available(), second.available()),
            (0, 200),
            "its part is left to the other"
        );
        second.charge(200, 2);
        assert!(first.is_exhausted() && second.is_exhausted());
        drop(second);
        let third = memory.open_account();
        assert_eq!(
            (first.available(), third.available()),
            (0, 200),
            "one that has gone keeps nothing"
        );
        first.charge(100, 1);
        assert_eq!(
            (first.is_over_budget(), third.available()),
            (true, 200),
            "nor does one that takes too much take another's part"
        );
    }

    #[test]
    fn what_is_reserved_is_nobody_elses_until_it_is_given_back() {
        let memory = MemoryBudget::new(800);
        let (first, second) = (memory.open_account(), memory.open_account());
        let reserved = first.reserve(500);
        assert_eq!(
            (
                first.available(),
                second.available(),
                memory.used_and_reserved(),
                memory.used_bytes()
            ),
            (100, 300, 500, 0)
        );
        drop(reserved);
        assert_eq!(
            (
                first.available(),
                second.available(),
                memory.used_and_reserved()
            ),
            (600, 600, 0)
        );
    }

    #[test]
    fn what_a_shard_expects_follows_from_its_own_messages_and_not_from_anothers() {
        let memory = MemoryBudget::new(1 << 30);
        let (small, large, new) = (
            memory.open_account(),
            memory.open_account(),
            memory.open_account(),
        );
        small.charge(300 * 1_000, 1_000);
        large.charge(1 << 30, 1_024);
        assert_eq!(
            (small.expected_bytes(1_000), large.expected_bytes(2)),
            (337_000, 2 * ((1 << 20) + (1 << 17)))
        );
        assert_eq!(
            (large.expected_bytes(1_000), new.expected_bytes(1)),
            (USUAL_RUN_MEMORY_BYTES, USUAL_RUN_MEMORY_BYTES)
        );
        assert_eq!(
            (small.messages_per_part(1), new.messages_per_part(1)),
            ((1 << 30) / 300, u64::MAX)
        );
    }

    #[test]
    fn of_what_was_appended_as_much_is_asked_for_as_there_is_room_for_and_one_run_at_least() {
        let memory = MemoryBudget::new(64 << 20);
        let (shard, other) = (memory.open_account(), memory.open_account());
        assert_eq!(
            shard.tail_limits(),
            (3, 3 * USUAL_RUN_MEMORY_BYTES),
            "as long as none was loaded"
        );
        shard.usual_run.set(10_000);
        assert_eq!(
            shard.tail_limits(),
            (TAIL_REPLY_RUNS_MAX, TAIL_REPLY_RUNS_MAX * 10_000)
        );
        shard.usual_run.set(1 << 20);
        assert_eq!(shard.tail_limits(), (16, FETCH_BYTES_MAX));
        let (_own, _others) = (shard.reserve(14 << 20), other.reserve(46 << 20));
        assert_eq!(shard.tail_limits(), (4, 4 << 20));
        let _all = shard.reserve(9 << 20);
        assert_eq!(shard.tail_limits(), (1, 1 << 20));
    }

    proptest! {
        #[test]
        fn together_they_never_fill_more_than_the_budget(loads in prop::collection::vec((0..5_usize, 1..400_usize), 1..200)) {
            let memory = MemoryBudget::new(1_000);
            let accounts: Vec<_> = (0..5).map(|_| memory.open_account()).collect();
            for (at, bytes) in loads {
                let bytes = bytes.min(accounts[at].available());
                accounts[at].charge(bytes, 1);
                prop_assert!(memory.used_bytes() <= 1_000);
                for account in &accounts {
                    prop_assert!(account.used.get() + account.available() >= 100, "each has its part");
                }
            }
        }
    }
}
