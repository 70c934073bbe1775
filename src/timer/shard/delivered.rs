//! Deliveries that the store does not know yet: the delivered pair, outcome counts, runs to delete,
//! and ids that became free.

use crate::encryption::StoredId;
use crate::limit::{ADVANCE_DELETES_MAX, DELIVERED_WRITE_DELAY};
use crate::model::{Cursor, Offset, OutcomeCounts, Progress, Slice};
use crate::run::RunName;
use crate::schedule::RunIndex;
use crate::store::Advance;
use crate::timer::delivery::in_flight::ClaimedBatch;
use crate::timer::delivery::outcome::ShardContext;
use std::ops::Range;
use tokio::time::Instant;

pub(crate) struct DeliveredState {
    /// The delivered pair in the last call to the store. The store knows it once it has answered.
    pub(super) sent: Progress,
    /// When the deliveries are reported without waiting for a claim any longer.
    pub(super) report_at: Option<Instant>,
    /// The delivered pair up to which the ledger in the store counts.
    pub(crate) ledger_pair: Progress,
    /// Outcomes since `ledger_pair`.
    pub(super) outcomes: OutcomeCounts,
    /// The occurrences of schedules among them.
    pub(super) occurrences: u64,
    pub(super) runs_to_delete: Vec<(Slice, RunName)>,
    ids: Vec<(StoredId, Cursor)>,
    /// Requests whose answers were delivered.
    answers: Vec<Offset>,
}

impl DeliveredState {
    /// `start` is where the ledger counts from, and `sent` the delivered pair in the store.
    pub(super) fn new(start: Progress, sent: Progress) -> Self {
        Self {
            sent,
            report_at: None,
            ledger_pair: start,
            outcomes: OutcomeCounts::default(),
            occurrences: 0,
            runs_to_delete: Vec::new(),
            ids: Vec::new(),
            answers: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        outcomes: OutcomeCounts,
        context: &ShardContext,
        batch: &ClaimedBatch,
        indexes: Range<usize>,
    ) {
        self.outcomes.add(outcomes);
        self.occurrences += batch.occurrences(indexes.clone());
        self.ids
            .extend(batch.delivered_ids(context, indexes.clone()));
        self.answers.extend(batch.delivered_answers(indexes));
    }

    /// Ids and answers that are not in a call to the store yet. Too many of them stop claims.
    pub(super) fn unreported_ids(&self) -> usize {
        self.ids.len() + self.answers.len()
    }

    /// True if everything up to `delivered` is in a call to the store.
    pub(super) fn is_sent(&self, delivered: Progress) -> bool {
        delivered == self.sent && self.runs_to_delete.is_empty() && self.unreported_ids() == 0
    }

    pub(super) fn collect_deletes(&mut self, runs: &mut RunIndex, delivered: Progress) {
        let room = ADVANCE_DELETES_MAX.saturating_sub(self.runs_to_delete.len());
        self.runs_to_delete
            .extend(runs.remove_deletable(delivered, room));
    }

    /// True if it is time to report: with a claim (`at_once`), after a delay, or when the report is
    /// full.
    pub(super) fn is_report_due(
        &mut self,
        delivered: Progress,
        at_once: bool,
        now: Instant,
    ) -> bool {
        if self.is_sent(delivered) {
            self.report_at = None;
            return false;
        }
        let report_at = *self.report_at.get_or_insert(now + DELIVERED_WRITE_DELAY);
        let most = self.runs_to_delete.len().max(self.unreported_ids());
        at_once || report_at <= now || most >= ADVANCE_DELETES_MAX
    }

    /// Moves the deliveries into a call. The call is repeated until the store answers, so its
    /// content counts as stored.
    pub(super) fn report(&mut self, delivered: Progress, advance: &mut Advance) {
        advance.delivered = Some(delivered);
        advance.outcomes = std::mem::take(&mut self.outcomes);
        advance.occurrences = std::mem::take(&mut self.occurrences);
        advance.deletes = drain(&mut self.runs_to_delete);
        advance.delivered_ids = drain(&mut self.ids);
        advance.delivered_answers = drain(&mut self.answers);
        self.report_at = None;
        self.ledger_pair = delivered;
        self.sent = delivered;
    }
}

fn drain<T>(items: &mut Vec<T>) -> Vec<T> {
    items
        .drain(..items.len().min(ADVANCE_DELETES_MAX))
        .collect()
}
