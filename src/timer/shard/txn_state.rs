//! The transaction state of an exactly-once shard. Decides; `exactly_once` acts.
//!
//! Each exactly-once shard has one transactional producer. Every commit includes a *marker*, the
//! pair (C, W) that says which messages are delivered.
//!
//! | phase | what may follow |
//! |---|---|
//! | closed | opening, for a message due soon, a refresh of the marker, or recovery |
//! | opening | open, with the marker; nothing is claimed before that |
//! | open | due messages are sent; then a commit, or an abort if a record was not delivered |
//! | committing, aborting | open; messages that are claimed in between wait |
//!
//! The producer may be lost in every phase. A new one is opened then, and the shard restarts after
//! the marker, which tells whether the last commit succeeded.
//!
//! *Recovery* opens a producer without a message to deliver. Opening fences the previous owner of
//! the `transactional.id` and aborts the transaction that it may have left open.

use super::commit_point::CommitPoint;
use crate::limit::{
    IDLE_OFFSET_COMMIT_INTERVAL, MARKER_FIRST_COMMIT_DELAY, RESEND_DELAY_MAX, RESEND_DELAY_MIN,
    TRANSACTION_INTERVAL_FACTOR, TRANSACTION_INTERVAL_MAX, TRANSACTION_INTERVAL_MIN,
    TRANSACTION_MESSAGES_MAX, TRANSACTION_PAUSE_AFTER_COMMIT, TRANSACTION_SILENCE_TIMEOUT,
    TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT, TRANSACTIONAL_PRODUCER_TIMEOUT,
};
use crate::model::{Cursor, Progress};
use crate::retry::backoff;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct TxnState {
    phase: TxnPhase,
    /// Number of the current producer. Events of other numbers belong to earlier producers.
    number: u64,
    phase_since: Instant,
    current: Transaction,
    /// A commit was started and its result is unknown, so more messages may be delivered than this
    /// process knows. The marker tells, once the next producer has read it.
    pub(super) commit_in_doubt: bool,
    last_commit_at: Instant,
    /// Minimum time from one commit to the next.
    commit_interval: Duration,
    /// Pause after a failure: no producer is opened and no record sent before this time.
    not_before: Instant,
    /// Lost producers and failed commits since the last commit.
    failures: u32,
    refresh_marker_at: Instant,
    /// After this time the producer is opened for recovery, even if no message is due.
    recovery_due_at: Option<Instant>,
    /// The producer is closed after this time without work.
    idle_timeout: Duration,
    /// The pair of the last known commit.
    pub(crate) marker: Progress,
}

#[derive(Default)]
struct Transaction {
    /// When the first record was sent or the last one reported. `None`: the transaction is empty.
    last_progress: Option<Instant>,
    sent: usize,
    reported: usize,
    /// The greatest place in the transaction.
    highest_sent: Option<Cursor>,
    commit_point: Option<CommitPoint>,
    must_abort: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxnPhase {
    Closed,
    Opening,
    Open,
    /// The transaction has messages of the first `batches` batches and commits the marker `pair`.
    Committing {
        batches: usize,
        pair: Progress,
    },
    Aborting,
}

/// The state of the shard on which the next action depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxnInput {
    /// A message is claimed, or due soon.
    pub(crate) has_work: bool,
    /// No more messages will be claimed, so commit at once.
    pub(crate) commit_now: bool,
    /// The store has not yet acknowledged the delivered pair from which the next commit counts.
    pub(crate) is_reporting_delivered: bool,
    /// The number of batches that the transaction covers, and the pair to commit.
    pub(crate) commit: Option<(usize, Progress)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnAction {
    None,
    Open,
    Commit {
        batches: usize,
        pair: Progress,
    },
    Abort,
    Close,
    /// Replace the producer, which does not answer.
    Abandon,
}

impl TxnState {
    pub(crate) fn new(start: Progress, now: Instant) -> Self {
        Self {
            phase: TxnPhase::Closed,
            number: 0,
            phase_since: now,
            current: Transaction::default(),
            commit_in_doubt: false,
            last_commit_at: now - TRANSACTION_INTERVAL_MIN,
            commit_interval: TRANSACTION_INTERVAL_MIN,
            not_before: now,
            failures: 0,
            refresh_marker_at: now + MARKER_FIRST_COMMIT_DELAY,
            recovery_due_at: Some(now),
            idle_timeout: TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT,
            marker: start,
        }
    }

    /// Number of the current producer, if there is one.
    pub(crate) fn number(&self) -> Option<u64> {
        (self.phase != TxnPhase::Closed).then_some(self.number)
    }

    /// True if messages may be claimed: the marker is known and the previous owner is fenced.
    pub(crate) fn may_claim(&self) -> bool {
        !matches!(self.phase, TxnPhase::Closed | TxnPhase::Opening)
    }

    pub(crate) fn is_committing(&self) -> bool {
        matches!(self.phase, TxnPhase::Committing { .. })
    }

    /// True if the transaction has messages and all of them were delivered.
    pub(crate) fn is_fully_reported(&self) -> bool {
        self.abort_at().is_some() && self.unreported() == 0 && !self.current.must_abort
    }

    /// Records that the client has not reported on.
    pub(crate) fn unreported(&self) -> usize {
        self.current.sent - self.current.reported
    }

    /// True if claimed messages may be sent.
    pub(crate) fn accepts_records(&self, now: Instant) -> bool {
        self.phase == TxnPhase::Open && !self.current.must_abort && self.not_before <= now
    }

    /// True if the transaction has records, or has passed cancelled messages.
    pub(crate) fn has_records(&self) -> bool {
        self.current.last_progress.is_some()
    }

    /// The greatest place that was sent or committed.
    pub(crate) fn highest_place(&self) -> Cursor {
        let committed = self.marker.cursor;
        self.current
            .highest_sent
            .map_or(committed, |sent| sent.max(committed))
    }

    /// After an idle period the first message commits at once. Later messages wait for the commit
    /// interval and share a transaction.
    fn commit_at(&self) -> Instant {
        self.last_commit_at + self.commit_interval
    }

    fn is_commit_due(&self, now: Instant) -> bool {
        self.commit_at() <= now || self.current.sent >= TRANSACTION_MESSAGES_MAX
    }

    /// The point where the current transaction ends, once it is time to commit. `batches` batches
    /// are in flight.
    pub(crate) fn commit_point(&mut self, batches: usize, now: Instant) -> Option<CommitPoint> {
        let has_begun = self.current.last_progress.is_some_and(|begun| begun < now);
        if self.current.commit_point.is_none() && has_begun && self.is_commit_due(now) {
            self.current.commit_point = Some(CommitPoint {
                batches,
                until: self.highest_place(),
            });
        }
        self.current.commit_point
    }

    fn open_at(&self, has_work: bool) -> Option<Instant> {
        let work = has_work.then_some(self.not_before);
        let recovery = self.recovery_due_at.map(|at| at.max(self.not_before));
        [work, recovery, self.refresh_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When an idle producer commits the marker again, because brokers drop old ones.
    fn refresh_at(&self) -> Option<Instant> {
        let has_marker = self.marker != Progress::START;
        has_marker.then(|| self.refresh_marker_at.max(self.not_before))
    }

    fn close_at(&self, has_work: bool) -> Option<Instant> {
        (!has_work).then(|| self.phase_since + self.idle_timeout)
    }

    /// When a transaction that cannot be committed is aborted.
    pub(crate) fn abort_at(&self) -> Option<Instant> {
        self.current
            .last_progress
            .filter(|_| self.phase == TxnPhase::Open)
            .map(|last_progress| last_progress + TRANSACTION_SILENCE_TIMEOUT)
    }

    pub(crate) fn next_action(&self, input: TxnInput, now: Instant) -> TxnAction {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let may_commit = !input.is_reporting_delivered && self.unreported() == 0;
        let is_commit_due = input.commit_now || self.is_commit_due(now);
        match (self.phase, input.commit) {
            (TxnPhase::Closed, _) if is_due(self.open_at(input.has_work)) => TxnAction::Open,
            (TxnPhase::Closed, _) => TxnAction::None,
            (TxnPhase::Open, _) if self.current.must_abort => TxnAction::Abort,
            (TxnPhase::Open, _) if self.current.last_progress.is_none() => {
                if may_commit && is_due(self.refresh_at()) {
                    let pair = self.marker;
                    TxnAction::Commit { batches: 0, pair }
                } else if is_due(self.close_at(input.has_work)) {
                    TxnAction::Close
                } else {
                    TxnAction::None
                }
            }
            (TxnPhase::Open, Some((batches, pair))) if may_commit && is_commit_due => {
                TxnAction::Commit { batches, pair }
            }
            (TxnPhase::Open, _) if is_due(self.abort_at()) => TxnAction::Abort,
            (TxnPhase::Open, _) => TxnAction::None,
            _ if is_due(Some(self.phase_since + TRANSACTIONAL_PRODUCER_TIMEOUT)) => {
                TxnAction::Abandon
            }
            _ => TxnAction::None,
        }
    }

    /// When to call [`TxnState::next_action`] again, if no event comes before.
    pub(crate) fn next_wakeup(&self, has_work: bool, now: Instant) -> Option<Instant> {
        let later = |at: Instant| Some(at).filter(|at| *at > now);
        let times = match self.phase {
            TxnPhase::Closed => [self.open_at(has_work), None, None],
            TxnPhase::Open if self.current.must_abort => [Some(now), None, None],
            TxnPhase::Open if self.current.last_progress.is_none() => [
                self.refresh_at(),
                self.close_at(has_work),
                later(self.not_before),
            ],
            TxnPhase::Open => [
                later(self.commit_at()),
                self.abort_at(),
                later(self.not_before),
            ],
            _ => [
                Some(self.phase_since + TRANSACTIONAL_PRODUCER_TIMEOUT),
                None,
                None,
            ],
        };
        times.into_iter().flatten().min()
    }

    fn reset(&mut self, phase: TxnPhase, now: Instant) {
        self.current = Transaction::default();
        self.enter(phase, now);
    }

    fn enter(&mut self, phase: TxnPhase, now: Instant) {
        self.phase = phase;
        self.phase_since = now;
    }

    pub(crate) fn on_opening(&mut self, number: u64, now: Instant) {
        self.number = number;
        self.idle_timeout = TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT;
        self.reset(TxnPhase::Opening, now);
    }

    /// True while the producer is being opened for recovery.
    pub(crate) fn is_recovering(&self) -> bool {
        self.phase == TxnPhase::Opening && self.idle_timeout.is_zero()
    }

    /// The producer is opened only for recovery and is closed right after it.
    pub(crate) fn set_recovery_only(&mut self) {
        self.idle_timeout = Duration::ZERO;
    }

    /// Delays recovery and marker refresh. A due message still opens the producer before.
    pub(crate) fn defer_recovery(&mut self, until: Instant) {
        self.recovery_due_at = self.recovery_due_at.map(|_| until);
        self.refresh_marker_at = self.refresh_marker_at.max(until);
    }

    pub(crate) fn on_opened(&mut self, marker: Progress, now: Instant) {
        self.recovery_due_at = None;
        self.marker = marker;
        self.commit_in_doubt = false;
        self.enter(TxnPhase::Open, now);
    }

    /// The message at `place` was sent, or is cancelled (`is_sent` is false).
    pub(crate) fn on_sent(&mut self, place: Cursor, is_sent: bool, now: Instant) {
        self.current.last_progress.get_or_insert(now);
        self.idle_timeout = TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT;
        self.current.highest_sent = self.current.highest_sent.max(Some(place));
        self.current.sent += usize::from(is_sent);
    }

    /// Aborts the transaction and sends its messages again at `again` or later.
    pub(crate) fn abort_and_pause(&mut self, again: Instant) {
        self.current.must_abort = true;
        self.not_before = self.not_before.max(again);
    }

    pub(crate) fn on_report(&mut self, now: Instant) {
        self.current.reported += 1;
        self.current.last_progress = self.current.last_progress.map(|_| now);
    }

    pub(crate) fn on_committing(&mut self, batches: usize, pair: Progress, now: Instant) {
        self.last_commit_at = now;
        self.commit_in_doubt = batches > 0;
        self.enter(TxnPhase::Committing { batches, pair }, now);
    }

    /// Returns how many batches the commit covers and how long it took. `None` if no commit was in
    /// progress.
    pub(crate) fn on_committed(&mut self, now: Instant) -> Option<(usize, Duration)> {
        let TxnPhase::Committing { batches, pair } = self.phase else {
            return None;
        };
        let took = now - self.phase_since;
        self.marker = pair;
        self.failures = 0;
        self.refresh_marker_at = now + IDLE_OFFSET_COMMIT_INTERVAL;
        self.commit_interval = took
            .saturating_mul(TRANSACTION_INTERVAL_FACTOR)
            .clamp(TRANSACTION_INTERVAL_MIN, TRANSACTION_INTERVAL_MAX);
        self.not_before = self.not_before.max(now + TRANSACTION_PAUSE_AFTER_COMMIT);
        self.commit_in_doubt = false;
        self.reset(TxnPhase::Open, now);
        Some((batches, took))
    }

    pub(crate) fn on_aborting(&mut self, now: Instant) {
        self.enter(TxnPhase::Aborting, now);
    }

    /// The transaction was aborted. If a commit failed, the pause before the next attempt grows.
    pub(crate) fn on_aborted(&mut self, now: Instant) {
        if self.is_committing() {
            self.back_off(now);
        }
        self.commit_in_doubt = false;
        self.reset(TxnPhase::Open, now);
    }

    pub(crate) fn on_lost(&mut self, now: Instant) {
        self.recovery_due_at = Some(now);
        self.back_off(now);
        self.on_ended(now);
    }

    fn back_off(&mut self, now: Instant) {
        let wait = backoff(RESEND_DELAY_MIN, RESEND_DELAY_MAX, self.failures);
        self.failures += 1;
        self.not_before = self.not_before.max(now + wait);
    }

    pub(crate) fn on_ended(&mut self, now: Instant) {
        self.reset(TxnPhase::Closed, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, Timestamp, Watermark};

    const IDLE: TxnInput = TxnInput {
        has_work: false,
        commit_now: false,
        is_reporting_delivered: false,
        commit: None,
    };
    const MOMENT: Duration = Duration::from_millis(1);

    fn pair(at: u64) -> Progress {
        Progress::new(
            Cursor::new(Timestamp::from_millis(at as i64), Offset(at)),
            Watermark(at + 1),
        )
    }

    fn open(now: Instant) -> TxnState {
        let mut txn = TxnState::new(pair(1), now);
        txn.on_opening(7, now);
        txn.on_opened(pair(1), now);
        txn
    }

    fn whole(batches: usize) -> TxnInput {
        TxnInput {
            has_work: true,
            commit: Some((batches, pair(9))),
            ..IDLE
        }
    }

    #[test]
    fn a_first_message_is_committed_at_once_and_later_ones_share_a_transaction() {
        let mut now = Instant::now();
        let mut txn = open(now);
        txn.on_sent(pair(9).cursor, true, now);
        assert_eq!(
            txn.next_action(whole(1), now),
            TxnAction::None,
            "it is not reported yet"
        );
        txn.on_report(now);
        assert_eq!(
            txn.next_action(whole(1), now),
            TxnAction::Commit {
                batches: 1,
                pair: pair(9)
            }
        );
        txn.on_committing(1, pair(9), now);
        now += MOMENT;
        assert_eq!(txn.on_committed(now), Some((1, MOMENT)));
        assert!(
            !txn.accepts_records(now),
            "the broker still ends the last transaction"
        );
        let pace = now - MOMENT + TRANSACTION_INTERVAL_MIN;
        now += TRANSACTION_PAUSE_AFTER_COMMIT;
        assert!(txn.accepts_records(now));
        txn.on_sent(pair(9).cursor, true, now);
        txn.on_report(now);
        assert_eq!(txn.next_action(whole(1), now), TxnAction::None);
        assert_eq!(txn.next_wakeup(true, now), Some(pace));
        assert_eq!(
            txn.next_action(whole(1), pace),
            TxnAction::Commit {
                batches: 1,
                pair: pair(9)
            }
        );
        assert_eq!(
            txn.next_action(
                TxnInput {
                    commit_now: true,
                    ..whole(1)
                },
                now
            ),
            TxnAction::Commit {
                batches: 1,
                pair: pair(9)
            }
        );
    }

    #[test]
    fn the_commit_interval_follows_the_commit_time_within_bounds() {
        for (took, pace) in [
            (0, TRANSACTION_INTERVAL_MIN),
            (4, Duration::from_millis(12)),
            (1_000, TRANSACTION_INTERVAL_MAX),
        ] {
            let mut now = Instant::now();
            let mut txn = open(now);
            txn.on_committing(1, pair(9), now);
            let began = now;
            now += Duration::from_millis(took);
            txn.on_committed(now);
            txn.on_sent(pair(9).cursor, true, now);
            txn.on_report(now);
            let due = (began + pace).max(now);
            assert_eq!(
                txn.next_action(whole(1), due),
                TxnAction::Commit {
                    batches: 1,
                    pair: pair(9)
                },
                "{took} ms"
            );
            let is_sooner = due > now && txn.next_action(whole(1), due - MOMENT) != TxnAction::None;
            assert!(!is_sooner, "{took} ms");
        }
    }

    #[test]
    fn a_transaction_that_cannot_be_committed_is_aborted_after_a_timeout() {
        let now = Instant::now();
        let mut txn = open(now);
        txn.on_sent(pair(9).cursor, true, now);
        txn.on_report(now);
        let stuck = TxnInput {
            commit: None,
            ..whole(1)
        };
        assert_eq!(txn.next_action(stuck, now), TxnAction::None);
        assert_eq!(
            txn.next_action(stuck, now + TRANSACTION_SILENCE_TIMEOUT),
            TxnAction::Abort,
            "consumers of the target wait for it"
        );
    }

    #[test]
    fn after_the_commit_point_only_earlier_positions_are_accepted() {
        let mut now = Instant::now();
        let mut txn = open(now);
        txn.on_sent(pair(5).cursor, true, now);
        assert_eq!(
            txn.commit_point(1, now),
            None,
            "all messages of one moment share a transaction"
        );
        txn.on_sent(pair(3).cursor, true, now);
        now += MOMENT;
        let seal = CommitPoint {
            batches: 2,
            until: pair(5).cursor,
        };
        assert_eq!(txn.commit_point(2, now), Some(seal));
        txn.on_sent(pair(4).cursor, true, now);
        assert_eq!(
            txn.commit_point(7, now + MOMENT),
            Some(seal),
            "later messages belong to the next transaction"
        );
        txn.on_committing(2, pair(5), now);
        txn.on_committed(now);
        txn.on_sent(pair(6).cursor, true, now);
        assert_eq!(
            txn.commit_point(1, now + MOMENT),
            None,
            "the next transaction waits for the interval"
        );
        assert_eq!(
            txn.commit_point(1, now + TRANSACTION_INTERVAL_MIN),
            Some(CommitPoint {
                batches: 1,
                until: pair(6).cursor
            })
        );
    }

    #[test]
    fn a_transaction_with_a_failed_record_is_aborted() {
        let now = Instant::now();
        let mut txn = open(now);
        txn.on_sent(pair(9).cursor, true, now);
        txn.on_report(now);
        txn.abort_and_pause(now + MOMENT);
        assert_eq!(txn.next_action(whole(1), now), TxnAction::Abort);
        txn.on_aborting(now);
        txn.on_aborted(now);
        assert!(!txn.accepts_records(now) && txn.accepts_records(now + MOMENT));
    }

    #[test]
    fn the_producer_is_opened_for_work_and_closed_when_idle() {
        let now = Instant::now();
        let mut txn = open(now);
        txn.on_ended(now);
        assert_eq!(
            (txn.next_action(IDLE, now), txn.next_wakeup(false, now)),
            (TxnAction::None, Some(txn.refresh_marker_at))
        );
        assert_eq!(
            txn.next_action(
                TxnInput {
                    has_work: true,
                    ..IDLE
                },
                now
            ),
            TxnAction::Open
        );
        txn.on_opening(1, now);
        assert!(!txn.may_claim());
        txn.on_opened(Progress::START, now);
        assert!(txn.may_claim());
        assert_eq!(
            (
                txn.next_action(IDLE, now),
                txn.next_action(IDLE, now + TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT)
            ),
            (TxnAction::None, TxnAction::Close)
        );
    }

    #[test]
    fn a_new_owner_opens_the_producer_for_recovery_without_work() {
        let now = Instant::now();
        let mut txn = TxnState::new(Progress::START, now);
        assert_eq!(
            (txn.next_action(IDLE, now), txn.next_wakeup(false, now)),
            (TxnAction::Open, Some(now))
        );
        txn.defer_recovery(now + MOMENT);
        assert_eq!(
            (txn.next_action(IDLE, now), txn.next_wakeup(false, now)),
            (TxnAction::None, Some(now + MOMENT)),
            "other recoveries come first"
        );
        assert_eq!(
            txn.next_action(
                TxnInput {
                    has_work: true,
                    ..IDLE
                },
                now
            ),
            TxnAction::Open,
            "due messages do not wait"
        );
        txn.on_opening(1, now);
        txn.set_recovery_only();
        txn.on_opened(Progress::START, now);
        assert_eq!(
            txn.next_action(IDLE, now),
            TxnAction::Close,
            "recovery is complete"
        );
        txn.on_ended(now);
        assert_eq!(
            (txn.next_action(IDLE, now), txn.next_wakeup(false, now)),
            (TxnAction::None, None)
        );
        let mut txn = open(now);
        txn.on_lost(now);
        assert_eq!(
            txn.next_action(IDLE, now + RESEND_DELAY_MAX),
            TxnAction::Open,
            "its own transaction needs recovery now"
        );
    }

    #[test]
    fn a_commit_is_in_doubt_until_its_result_is_known_or_the_marker_is_read() {
        let now = Instant::now();
        let committing = || {
            let mut txn = open(now);
            txn.on_committing(1, pair(9), now);
            assert!(txn.commit_in_doubt);
            txn
        };
        let (mut committed, mut aborted, mut lost) = (committing(), committing(), committing());
        committed.on_committed(now);
        aborted.on_aborted(now);
        lost.on_lost(now);
        assert_eq!(
            (
                committed.commit_in_doubt,
                aborted.commit_in_doubt,
                lost.commit_in_doubt
            ),
            (false, false, true)
        );
        lost.on_opening(8, now);
        assert!(lost.commit_in_doubt);
        lost.on_opened(pair(9), now);
        assert!(!lost.commit_in_doubt);
    }

    #[test]
    fn failed_commits_are_repeated_with_growing_pauses() {
        let mut now = Instant::now();
        let (mut txn, mut last) = (open(now), Duration::ZERO);
        for _ in 0..8 {
            txn.on_sent(pair(9).cursor, true, now);
            txn.on_report(now);
            txn.on_committing(1, pair(9), now);
            txn.on_aborted(now);
            assert!(!txn.accepts_records(now));
            let again = txn.next_wakeup(true, now).expect("there is work");
            assert!(txn.accepts_records(again) && again - now >= last);
            (last, now) = (again - now, again);
        }
        assert_eq!(last, RESEND_DELAY_MAX);
        now += IDLE_OFFSET_COMMIT_INTERVAL;
        assert_eq!(
            txn.next_action(IDLE, now),
            TxnAction::Commit {
                batches: 0,
                pair: pair(1)
            }
        );
        txn.on_committing(0, pair(1), now);
        txn.on_aborted(now);
        assert_eq!(
            txn.next_action(IDLE, now),
            TxnAction::None,
            "a refresh waits as well"
        );
    }

    #[test]
    fn a_marker_is_refreshed_before_brokers_drop_it() {
        let now = Instant::now();
        let mut txn = open(now);
        assert_eq!(
            txn.next_action(IDLE, now + IDLE_OFFSET_COMMIT_INTERVAL),
            TxnAction::Commit {
                batches: 0,
                pair: pair(1)
            }
        );
        txn.on_ended(now);
        assert_eq!(
            txn.next_action(IDLE, now + IDLE_OFFSET_COMMIT_INTERVAL),
            TxnAction::Open
        );
        let late = now + IDLE_OFFSET_COMMIT_INTERVAL;
        txn.defer_recovery(late + MOMENT);
        assert_eq!(
            (txn.next_action(IDLE, late), txn.next_wakeup(false, late)),
            (TxnAction::None, Some(late + MOMENT)),
            "other shards come first"
        );
        let mut none = TxnState::new(Progress::START, now);
        none.on_opening(7, now);
        none.on_opened(Progress::START, now);
        none.on_ended(now);
        assert_eq!(
            none.next_action(IDLE, now + IDLE_OFFSET_COMMIT_INTERVAL),
            TxnAction::None,
            "no message is delivered yet"
        );
    }

    #[test]
    fn a_commit_waits_until_the_store_has_the_pair_that_it_counts_from() {
        let now = Instant::now();
        let mut txn = open(now);
        txn.on_sent(pair(9).cursor, true, now);
        txn.on_report(now);
        let (later, reporting) = (
            now + TRANSACTION_INTERVAL_MAX,
            TxnInput {
                is_reporting_delivered: true,
                ..whole(1)
            },
        );
        assert_eq!(txn.next_action(reporting, later), TxnAction::None);
        assert_eq!(
            txn.next_action(whole(1), later),
            TxnAction::Commit {
                batches: 1,
                pair: pair(9)
            }
        );
        let timeout = txn.abort_at().expect("it has messages");
        assert_eq!(
            (
                txn.next_action(reporting, timeout),
                txn.next_action(reporting, timeout - MOMENT)
            ),
            (TxnAction::Abort, TxnAction::None),
            "consumers wait for it"
        );
    }

    #[test]
    fn a_silent_producer_is_replaced_with_growing_pauses() {
        let mut now = Instant::now();
        let (mut txn, mut last) = (TxnState::new(pair(1), now), Duration::ZERO);
        for number in 1..9 {
            txn.on_opening(number, now);
            assert_eq!(txn.next_action(IDLE, now), TxnAction::None);
            now += TRANSACTIONAL_PRODUCER_TIMEOUT;
            assert_eq!(txn.next_action(IDLE, now), TxnAction::Abandon);
            txn.on_lost(now);
            let again = txn.next_wakeup(true, now).expect("there is work");
            assert!(again - now >= last);
            (last, now) = (again - now, again);
            assert_eq!(txn.next_action(whole(0), now), TxnAction::Open);
        }
        assert_eq!(last, RESEND_DELAY_MAX);
    }
}
