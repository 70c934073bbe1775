//! The byte budget of a timer's loaded messages.
//!
//! Each run in memory is charged until it is dropped, and memory for runs that are being fetched is
//! reserved. The shards share the budget: half of it is guaranteed to them in equal parts, so that
//! a shard with a long backlog leaves room for the others.
//!
//! Used and reserved memory exceed the budget by one run at most. A shard that holds nothing must
//! be able to load its next run, however small its part is. Only messages that are due at the same
//! time and are spread over several runs must be in memory together.

use crate::limit::{FETCH_BYTES_MAX, TAIL_REPLY_RUNS_MAX, USUAL_RUN_MEMORY_BYTES};
use crate::model::{Cursor, Timestamp};
use crate::run::LoadedRun;
use crate::schedule::Places;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limit: usize,
    accounts: RefCell<Vec<Weak<MemoryAccount>>>,
    totals: Cell<Totals>,
    /// Reserved memory of the definitions of all shards.
    definitions: Cell<usize>,
}

/// Sums over all open accounts. They follow each change, so that a call costs the same for one
/// shard and for thousands.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    accounts: usize,
    used: usize,
    messages: usize,
    /// Used and reserved bytes beyond the guaranteed part of each shard.
    beyond: usize,
}

/// The memory of one shard, in bytes. It exists while the shard is served or one of its runs is
/// held.
#[derive(Debug)]
pub(crate) struct MemoryAccount {
    used: Cell<usize>,
    /// Messages in memory.
    messages: Cell<usize>,
    /// For runs that are being fetched, and for definitions of schedules.
    reserved: Cell<usize>,
    /// Mean size of the messages in memory at the last load; 0 before the first load.
    mean_message: Cell<usize>,
    /// Size of a large recent run: the maximum, which decays; 0 before the first load.
    usual_run: Cell<usize>,
    budget: Rc<MemoryBudget>,
}

impl MemoryBudget {
    /// Bytes of the runs of one fetch.
    pub(crate) fn fetch_bytes_max(limit: usize) -> usize {
        (limit / 16).min(FETCH_BYTES_MAX)
    }

    pub(crate) fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self {
            limit,
            accounts: RefCell::default(),
            totals: Cell::default(),
            definitions: Cell::new(0),
        })
    }

    pub(crate) fn open_account(self: &Rc<Self>) -> Rc<MemoryAccount> {
        let account = Rc::new(MemoryAccount {
            used: Cell::new(0),
            messages: Cell::new(0),
            reserved: Cell::new(0),
            mean_message: Cell::new(0),
            usual_run: Cell::new(0),
            budget: self.clone(),
        });
        let mut accounts = self.accounts.borrow_mut();
        accounts.retain(|account| account.strong_count() > 0);
        accounts.push(Rc::downgrade(&account));
        drop(accounts);
        self.recount();
        account
    }

    /// Adds up all open accounts: their number has changed, and with it the guaranteed part.
    fn recount(&self) {
        let accounts = self.accounts.borrow();
        let open: Vec<_> = accounts.iter().filter_map(Weak::upgrade).collect();
        self.totals.set(Totals {
            accounts: open.len(),
            ..Totals::default()
        });
        let guaranteed = self.guaranteed();
        let mut totals = self.totals.get();
        for account in &open {
            totals.used += account.used.get();
            totals.messages += account.messages.get();
            totals.beyond += account.beyond(guaranteed);
        }
        self.totals.set(totals);
    }

    /// The part of one shard.
    fn guaranteed(&self) -> usize {
        self.limit / 2 / self.totals.get().accounts.max(1)
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.totals.get().used
    }

    pub(crate) fn loaded_messages(&self) -> usize {
        self.totals.get().messages
    }

    /// The bytes that no shard uses and that are not guaranteed to a shard; negative if shards have
    /// exceeded their parts. The second value is the guaranteed part of one shard.
    fn unallocated(&self) -> (isize, usize) {
        let (totals, guaranteed) = (self.totals.get(), self.guaranteed());
        let allocated = totals.accounts * guaranteed + totals.beyond;
        (self.limit as isize - allocated as isize, guaranteed)
    }
}

impl MemoryAccount {
    fn used_and_reserved(&self) -> usize {
        self.used.get() + self.reserved.get()
    }

    fn beyond(&self, guaranteed: usize) -> usize {
        self.used_and_reserved().saturating_sub(guaranteed)
    }

    /// Changes the account, and the totals with it.
    fn change(&self, change: impl FnOnce(&Self)) {
        let guaranteed = self.budget.guaranteed();
        let amounts = || {
            (
                self.used.get(),
                self.messages.get(),
                self.beyond(guaranteed),
            )
        };
        let (used, messages, beyond) = amounts();
        change(self);
        let now = amounts();
        self.budget.totals.update(|totals| Totals {
            accounts: totals.accounts,
            used: totals.used - used + now.0,
            messages: totals.messages - messages + now.1,
            beyond: totals.beyond - beyond + now.2,
        });
    }

    /// The bytes that this shard may load now.
    pub(crate) fn available(&self) -> usize {
        let (unallocated, guaranteed) = self.budget.unallocated();
        usize::try_from(unallocated).unwrap_or(0)
            + guaranteed.saturating_sub(self.used_and_reserved())
    }

    /// The estimated size of a run of `messages` messages, with a reserve of an eighth.
    pub(crate) fn expected_bytes(&self, messages: u32) -> usize {
        match self.mean_message.get() {
            0 => USUAL_RUN_MEMORY_BYTES,
            mean => (messages as usize * (mean + mean / 8)).min(USUAL_RUN_MEMORY_BYTES),
        }
    }

    /// Reserves memory for runs that are about to be fetched.
    pub(crate) fn reserve(self: &Rc<Self>, bytes: usize) -> Reservation {
        self.change(|account| account.reserved.update(|reserved| reserved + bytes));
        Reservation {
            bytes,
            account: self.clone(),
        }
    }

    /// The bytes that this shard may fetch with one call.
    pub(crate) fn fetchable(&self) -> usize {
        let fetch = MemoryBudget::fetch_bytes_max(self.budget.limit);
        self.available().min(fetch)
    }

    /// The number of appended runs to request, and their estimated size. At least one run, even
    /// without available memory.
    pub(crate) fn tail_limits(&self) -> (usize, usize) {
        let run = match self.usual_run.get() {
            0 => USUAL_RUN_MEMORY_BYTES,
            usual => usual,
        };
        let runs = (self.fetchable() / run).clamp(1, TAIL_REPLY_RUNS_MAX);
        (runs, runs * run)
    }

    /// The number of messages of this shard's mean size that fit into `1/parts` of the whole
    /// budget.
    pub(crate) fn messages_per_part(&self, parts: usize) -> u64 {
        (self.budget.limit / parts)
            .checked_div(self.mean_message.get())
            .map_or(u64::MAX, |messages| messages as u64)
    }

    /// The messages of this shard in memory.
    pub(crate) fn messages(&self) -> usize {
        self.messages.get()
    }

    /// Returns whether this shard holds no memory beyond its guaranteed part.
    pub(crate) fn is_within_part(&self) -> bool {
        self.beyond(self.budget.guaranteed()) == 0
    }

    /// Returns whether this shard should load nothing more.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.available() == 0
    }

    /// Returns whether the shards together exceed their limit.
    pub(crate) fn is_over_budget(&self) -> bool {
        self.budget.unallocated().0 < 0
    }

    /// The due time up to which to keep the messages of a run: all of them while less than half of
    /// the whole budget is used, so that the run need not be read again.
    pub(crate) fn keep_until(&self, horizon: Timestamp) -> Timestamp {
        if self.budget.used_bytes() < self.budget.limit / 2 {
            Timestamp::MAX
        } else {
            horizon
        }
    }

    fn charge(&self, bytes: usize, messages: usize) {
        self.change(|account| {
            account.used.update(|used| used + bytes);
            account.messages.update(|count| count + messages);
        });
        if let Some(mean) = self.used.get().checked_div(self.messages.get()) {
            self.mean_message.set(mean.max(1));
        }
    }

    fn discharge(&self, bytes: usize, messages: usize) {
        self.change(|account| {
            account.used.update(|used| used - bytes);
            account.messages.update(|count| count - messages);
        });
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.budget.recount();
    }
}

/// Reserved memory. Dropping it ends the reservation.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: usize,
    account: Rc<MemoryAccount>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let reserved = &self.account.reserved;
        self.account
            .change(|_| reserved.update(|bytes| bytes - self.bytes));
    }
}

/// The memory of a definition of a schedule.
#[derive(Debug)]
pub(crate) struct DefinitionMemory(Reservation);

impl MemoryAccount {
    /// Reserves memory for a definition. `None` if the definitions of all shards would take more than half
    /// of the budget: the rest must be enough to load messages.
    pub(crate) fn reserve_definition(self: &Rc<Self>, bytes: usize) -> Option<DefinitionMemory> {
        let definitions = self.budget.definitions.get() + bytes;
        (definitions <= self.budget.limit / 2).then(|| {
            self.budget.definitions.set(definitions);
            DefinitionMemory(self.reserve(bytes))
        })
    }

    /// The bytes of the occurrences that are computed in one step.
    pub(crate) fn occurrence_bytes_max(&self) -> usize {
        MemoryBudget::fetch_bytes_max(self.budget.limit)
    }
}

impl Drop for DefinitionMemory {
    fn drop(&mut self) {
        let definitions = &self.0.account.budget.definitions;
        definitions.update(|bytes| bytes - self.0.bytes);
    }
}

/// A loaded run, charged to its shard's account until it is dropped.
#[derive(Debug)]
pub(crate) struct ResidentRun {
    pub(crate) run: LoadedRun,
    account: Rc<MemoryAccount>,
}

impl ResidentRun {
    pub(crate) fn new(run: LoadedRun, account: &Rc<MemoryAccount>) -> Self {
        let size = run.memory_size();
        account.charge(size, run.len());
        let usual = &account.usual_run;
        usual.update(|bytes| size.max(bytes - bytes / 8));
        let account = account.clone();
        Self { run, account }
    }

    /// Drops the messages that are due after `horizon`, and their charge. Returns the due time of
    /// the first message that this call dropped.
    pub(crate) fn keep_until(&mut self, horizon: Timestamp) -> Option<Timestamp> {
        let before = self.run.len();
        self.account.discharge(self.run.memory_size(), before);
        self.run.drop_after(horizon);
        self.account.charge(self.run.memory_size(), self.run.len());
        let first_dropped = self.run.first_dropped_due;
        first_dropped.filter(|_| self.run.len() < before)
    }
}

impl Drop for ResidentRun {
    fn drop(&mut self) {
        self.account
            .discharge(self.run.memory_size(), self.run.len());
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
    pub(crate) fn used_and_reserved(&self) -> usize {
        let accounts = self.accounts.borrow();
        let open = accounts.iter().filter_map(Weak::upgrade);
        open.map(|account| account.used_and_reserved()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn definitions_take_at_most_half_of_the_budget() {
        let budget = MemoryBudget::new(800);
        let (first, second) = (budget.open_account(), budget.open_account());
        let kept = first.reserve_definition(300).expect("room");
        assert!(second.reserve_definition(101).is_none());
        assert!(second.reserve_definition(100).is_some());
        assert_eq!((first.available(), second.available()), (300, 500));
        drop(kept);
        assert_eq!((first.available(), second.available()), (600, 600));
        assert!(second.reserve_definition(400).is_some());
    }

    #[test]
    fn a_shard_is_within_its_part_up_to_an_equal_part_of_half_the_budget() {
        let budget = MemoryBudget::new(800);
        let (first, second) = (budget.open_account(), budget.open_account());
        let _part = first.reserve(200);
        assert!(first.is_within_part());
        let _more = first.reserve(1);
        assert!(!first.is_within_part() && second.is_within_part());
    }

    #[test]
    fn a_single_shard_may_use_everything_and_several_have_guaranteed_parts() {
        let budget = MemoryBudget::new(800);
        let first = budget.open_account();
        assert_eq!(first.available(), 800);
        let second = budget.open_account();
        assert_eq!((first.available(), second.available()), (600, 600));
        first.charge(600, 6);
        assert_eq!(
            (first.available(), second.available()),
            (0, 200),
            "the second shard keeps its guaranteed part"
        );
        second.charge(200, 2);
        assert!(first.is_exhausted() && second.is_exhausted());
        drop(second);
        let third = budget.open_account();
        assert_eq!(
            (first.available(), third.available()),
            (0, 200),
            "a closed account has no guaranteed part"
        );
        first.charge(100, 1);
        assert!(first.is_over_budget());
        assert_eq!(
            third.available(),
            200,
            "a shard over its part does not reduce another's"
        );
    }

    #[test]
    fn reserved_memory_is_not_available_until_it_is_returned() {
        let budget = MemoryBudget::new(800);
        let (first, second) = (budget.open_account(), budget.open_account());
        let reservation = first.reserve(500);
        assert_eq!((first.available(), second.available()), (100, 300));
        assert_eq!((budget.used_and_reserved(), budget.used_bytes()), (500, 0));
        drop(reservation);
        assert_eq!((first.available(), second.available()), (600, 600));
        assert_eq!(budget.used_and_reserved(), 0);
    }

    #[test]
    fn estimates_follow_the_messages_of_the_same_shard() {
        let budget = MemoryBudget::new(1 << 30);
        let [small, large, new] = [(); 3].map(|()| budget.open_account());
        small.charge(300 * 1_000, 1_000);
        large.charge(1 << 30, 1_024);
        assert_eq!(small.expected_bytes(1_000), 337_000);
        assert_eq!(large.expected_bytes(2), 2 * ((1 << 20) + (1 << 17)));
        assert_eq!(large.expected_bytes(1_000), USUAL_RUN_MEMORY_BYTES);
        assert_eq!(new.expected_bytes(1), USUAL_RUN_MEMORY_BYTES);
        assert_eq!(small.messages_per_part(1), (1 << 30) / 300);
        assert_eq!(new.messages_per_part(1), u64::MAX);
    }

    #[test]
    fn a_tail_request_asks_for_as_many_runs_as_fit_and_at_least_one() {
        let budget = MemoryBudget::new(256 << 20);
        let (shard, other) = (budget.open_account(), budget.open_account());
        assert_eq!(
            shard.tail_limits(),
            (3, 3 * USUAL_RUN_MEMORY_BYTES),
            "before the first load"
        );
        shard.usual_run.set(10_000);
        assert_eq!(
            shard.tail_limits(),
            (TAIL_REPLY_RUNS_MAX, TAIL_REPLY_RUNS_MAX * 10_000)
        );
        shard.usual_run.set(1 << 20);
        assert_eq!(shard.tail_limits(), (16, 16 << 20));
        let (_own, _others) = (shard.reserve(60 << 20), other.reserve(192 << 20));
        assert_eq!(shard.tail_limits(), (4, 4 << 20));
        let _all = shard.reserve(9 << 20);
        assert_eq!(shard.tail_limits(), (1, 1 << 20));
    }

    proptest! {
        #[test]
        fn the_shards_together_never_exceed_the_budget(
            loads in prop::collection::vec((0..5_usize, 1..400_usize), 1..200),
        ) {
            let budget = MemoryBudget::new(1_000);
            let accounts: Vec<_> = (0..5).map(|_| budget.open_account()).collect();
            for (at, bytes) in loads {
                let bytes = bytes.min(accounts[at].available());
                accounts[at].charge(bytes, 1);
                prop_assert!(budget.used_bytes() <= 1_000);
                let totals = budget.totals.get();
                budget.recount();
                let counted = budget.totals.get();
                prop_assert_eq!((totals.used, totals.beyond), (counted.used, counted.beyond));
                for account in &accounts {
                    prop_assert!(
                        account.used.get() + account.available() >= 100,
                        "each shard has its part"
                    );
                }
            }
        }
    }
}
