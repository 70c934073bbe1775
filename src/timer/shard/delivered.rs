//! Deliveries that the store does not know yet: the delivered pair, outcome counts, runs to delete,
//! and ids that became free.

use super::resident_runs::ResidentRuns;
use crate::limit::{ADVANCE_DELETES_MAX, DELIVERED_WRITE_DELAY};
use crate::model::{Cursor, OutcomeCounts, Progress, Slice};
use crate::run::RunName;
use tokio::time::Instant;

/// The unreported deliveries of one shard.
pub(crate) struct DeliveredState {
    /// The delivered pair in the last call to the store. The store knows it once it has answered.
    sent: Progress,
    report_at: Option<Instant>,
    /// The delivered pair up to which the ledger in the store counts.
    ledger_pair: Progress,
    /// Outcomes since `ledger_pair`.
    outcomes: OutcomeCounts,
    runs_to_delete: Vec<(Slice, RunName)>,
    ids: Vec<(Box<str>, Cursor)>,
}

/// The part of one call that reports deliveries.
pub(super) struct DeliveredReport {
    /// `None` if the call only claims.
    pub(super) delivered: Option<Progress>,
    pub(super) ledger_pair: Progress,
    pub(super) outcomes: OutcomeCounts,
    pub(super) deletes: Vec<(Slice, RunName)>,
    pub(super) ids: Vec<(Box<str>, Cursor)>,
}

impl DeliveredState {
    /// `start` is where the ledger counts from, and `sent` the delivered pair in the store.
    pub(super) fn new(start: Progress, sent: Progress) -> Self {
        Self {
            sent,
            report_at: None,
            ledger_pair: start,
            outcomes: OutcomeCounts::default(),
            runs_to_delete: Vec::new(),
            ids: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        outcomes: OutcomeCounts,
        ids: impl Iterator<Item = (Box<str>, Cursor)>,
    ) {
        self.outcomes.add(outcomes);
        self.ids.extend(ids);
    }

    pub(super) fn sent(&self) -> Progress {
        self.sent
    }

    pub(crate) fn ledger_pair(&self) -> Progress {
        self.ledger_pair
    }

    pub(super) fn outcomes(&self) -> OutcomeCounts {
        self.outcomes
    }

    /// True if everything up to `delivered` is in a call to the store.
    pub(super) fn is_sent(&self, delivered: Progress) -> bool {
        delivered == self.sent && self.runs_to_delete.is_empty() && self.ids.is_empty()
    }

    /// When the deliveries are reported without waiting for a claim any longer.
    pub(super) fn report_at(&self) -> Option<Instant> {
        self.report_at
    }

    /// The runs in memory are dropped. They are found again when they are listed.
    pub(super) fn forget_deletes(&mut self) {
        self.runs_to_delete.clear();
    }

    /// Counts again from `pair`.
    pub(super) fn set_ledger(&mut self, pair: Progress) {
        self.ledger_pair = pair;
    }

    /// Takes over counts that a previous owner has not reported.
    pub(super) fn set_uncounted(&mut self, pair: Progress, outcomes: OutcomeCounts) {
        self.ledger_pair = pair;
        self.outcomes = outcomes;
    }

    /// Collects runs whose messages are all delivered.
    pub(super) fn collect_deletes(&mut self, runs: &mut ResidentRuns, delivered: Progress) {
        let room = ADVANCE_DELETES_MAX.saturating_sub(self.runs_to_delete.len());
        if room > 0 {
            self.runs_to_delete
                .extend(runs.remove_deletable(delivered, room));
        }
    }

    /// The report to send now: with a claim (`at_once`), when it has waited long enough, or when it
    /// is full. `may_report` is false while a commit is in doubt.
    pub(super) fn next_report(
        &mut self,
        delivered: Progress,
        may_report: bool,
        at_once: bool,
        now: Instant,
    ) -> Option<DeliveredReport> {
        if !may_report {
            return None;
        }
        if self.is_sent(delivered) {
            self.report_at = None;
            return None;
        }
        let report_at = *self.report_at.get_or_insert(now + DELIVERED_WRITE_DELAY);
        let is_full = self.runs_to_delete.len() == ADVANCE_DELETES_MAX
            || self.ids.len() >= ADVANCE_DELETES_MAX;
        if !at_once && !is_full && report_at > now {
            return None;
        }
        let report = DeliveredReport {
            delivered: Some(delivered),
            ledger_pair: self.ledger_pair,
            outcomes: self.outcomes,
            deletes: drain(&mut self.runs_to_delete),
            ids: drain(&mut self.ids),
        };
        self.report_at = None;
        // The call is repeated until the store answers, so its content counts as stored.
        self.ledger_pair = delivered;
        self.sent = delivered;
        self.outcomes = OutcomeCounts::default();
        Some(report)
    }

    /// The content of a call that only claims.
    pub(super) fn empty_report(&self) -> DeliveredReport {
        DeliveredReport {
            delivered: None,
            ledger_pair: self.ledger_pair,
            outcomes: OutcomeCounts::default(),
            deletes: Vec::new(),
            ids: Vec::new(),
        }
    }
}

fn drain<T>(items: &mut Vec<T>) -> Vec<T> {
    items
        .drain(..items.len().min(ADVANCE_DELETES_MAX))
        .collect()
}
