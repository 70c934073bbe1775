//! What an exactly-once shard knows of its transactor and of the transaction under way, which is committed with the pair that says what it
//! holds (`sealing`). Decides; `exactly` does.
//!
//! | phase | what may follow |
//! |---|---|
//! | closed | opened when something is due soon, the marker is to be refreshed, or it is not known what its last bearer left open |
//! | opening | open, with the marker; until then nothing is claimed |
//! | open | what is due is handed over; sealed after a while, then committed, or aborted if some of it was not taken |
//! | committing, aborting | open again; what is claimed meanwhile waits |
//!
//! From each it may be lost: then it is opened anew, and the work begins anew behind the marker, which says how the last commit ended.

use super::sealing::CommitPoint;
use crate::limit::{
    IDLE_OFFSET_COMMIT_INTERVAL, MARKER_FIRST_COMMIT_DELAY, RESEND_DELAY_MAX, RESEND_DELAY_MIN,
    TRANSACTION_INTERVAL_FACTOR, TRANSACTION_INTERVAL_MAX, TRANSACTION_INTERVAL_MIN,
    TRANSACTION_MESSAGES_MAX, TRANSACTION_PAUSE_AFTER_COMMIT, TRANSACTION_SILENCE_TIMEOUT,
    TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT, TRANSACTIONAL_PRODUCER_TIMEOUT,
};
use crate::model::{Cursor, Progress};
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(crate) struct TxnState {
    phase: TxnPhase,
    /// Names the opening; what is heard of another number is of an earlier one.
    number: u64,
    /// When its phase began.
    phase_since: Instant,
    /// When the first of the transaction was handed over, or one of it was reported on last; `None`: there is nothing in it.
    last_progress: Option<Instant>,
    sent: usize,
    reported: usize,
    /// The greatest place that is in it.
    highest_sent: Option<Cursor>,
    commit_point: Option<CommitPoint>,
    /// It can only be aborted.
    must_abort: bool,
    /// A commit was begun, and nobody knows yet how it ended.
    commit_in_doubt: bool,
    /// When the last commit began, and how long after it the next one may.
    last_commit_at: Instant,
    commit_interval: Duration,
    /// Nothing is opened or handed over before.
    not_before: Instant,
    /// How often it was lost, or a commit refused, since the last commit.
    failures: u32,
    refresh_marker_at: Instant,
    /// From then on it is opened to end what whoever bore its name last may have left open.
    recovery_due_at: Option<Instant>,
    /// How long it is kept open for nothing.
    idle_timeout: Duration,
    /// The pair of the last commit that is known of.
    marker: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxnPhase {
    Closed,
    Opening,
    Open,
    /// What is in it is of so many flights, and `pair` says that it is delivered.
    Committing {
        flights: usize,
        pair: Progress,
    },
    Aborting,
}

/// What is seen of the work it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TxnInput {
    /// Something is claimed, or is due soon.
    pub(super) has_work: bool,
    /// Nothing more comes: what there is, is to be committed now.
    pub(super) commit_now: bool,
    /// It is not known yet that the store knows what it was told last, from which a commit counts.
    pub(super) is_reporting_delivered: bool,
    /// Of how many flights the transaction is, and the pair to commit it with.
    pub(super) pair: Option<(usize, Progress)>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxnAction {
    None,
    Open,
    Commit {
        flights: usize,
        pair: Progress,
    },
    Abort,
    /// Nobody needs it.
    Close,
    /// It does not answer.
    Abandon,
}

impl TxnState {
    pub(super) fn new(start: Progress, now: Instant) -> Self {
        Self {
            phase: TxnPhase::Closed,
            number: 0,
            phase_since: now,
            last_progress: None,
            sent: 0,
            reported: 0,
            highest_sent: None,
            commit_point: None,
            must_abort: false,
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

    /// The number of the opening, if there is one.
    pub(super) fn number(&self) -> Option<u64> {
        (self.phase != TxnPhase::Closed).then_some(self.number)
    }

    /// Whether the shard may be claimed of: the marker is known, and who had the shard before is fenced.
    pub(super) fn may_claim(&self) -> bool {
        !matches!(self.phase, TxnPhase::Closed | TxnPhase::Opening)
    }

    pub(super) fn is_committing(&self) -> bool {
        matches!(self.phase, TxnPhase::Committing { .. })
    }

    /// Whether more may be delivered than is known of: the marker says, when it is read.
    pub(super) fn commit_in_doubt(&self) -> bool {
        self.commit_in_doubt
    }

    pub(super) fn marker(&self) -> Progress {
        self.marker
    }

    /// Whether there is something in it, and all of that is reported on.
    pub(super) fn is_fully_reported(&self) -> bool {
        self.phase == TxnPhase::Open
            && self.last_progress.is_some()
            && self.unreported() == 0
            && !self.must_abort
    }

    /// Handed to the client and not reported on.
    pub(super) fn unreported(&self) -> usize {
        self.sent - self.reported
    }

    /// Whether what is claimed may be handed over.
    pub(super) fn accepts_records(&self, now: Instant) -> bool {
        self.phase == TxnPhase::Open && !self.must_abort && self.not_before <= now
    }

    /// The greatest place that is handed over or done.
    pub(super) fn highest_place(&self) -> Cursor {
        self.highest_sent
            .map_or(self.marker.cursor, |high| high.max(self.marker.cursor))
    }

    /// Whether the transaction is to end. A first message is committed at once; others so soon after it wait a moment, for each other.
    fn is_commit_due(&self, now: Instant) -> bool {
        self.last_commit_at + self.commit_interval <= now || self.sent >= TRANSACTION_MESSAGES_MAX
    }

    /// What may still go along, if not everything; `flights`: so many there are by now.
    pub(super) fn commit_point(&mut self, flights: usize, now: Instant) -> Option<CommitPoint> {
        if self.commit_point.is_none()
            && self.last_progress.is_some_and(|begun| begun < now)
            && self.is_commit_due(now)
        {
            self.commit_point = Some(CommitPoint {
                batches: flights,
                until: self.highest_place(),
            });
        }
        self.commit_point
    }

    pub(super) fn next_action(&self, sight: TxnInput, now: Instant) -> TxnAction {
        let is_silent = self.phase_since + TRANSACTIONAL_PRODUCER_TIMEOUT <= now;
        match self.phase {
            TxnPhase::Closed
                if self.not_before <= now
                    && (sight.has_work
                        || self.is_recovery_due(now)
                        || self.is_refresh_due(now)) =>
            {
                TxnAction::Open
            }
            TxnPhase::Closed => TxnAction::None,
            TxnPhase::Opening | TxnPhase::Committing { .. } | TxnPhase::Aborting if is_silent => {
                TxnAction::Abandon
            }
            TxnPhase::Opening | TxnPhase::Committing { .. } | TxnPhase::Aborting => TxnAction::None,
            TxnPhase::Open if self.must_abort => TxnAction::Abort,
            TxnPhase::Open
                if self.last_progress.is_none()
                    && self.not_before <= now
                    && self.is_refresh_due(now)
                    && !sight.is_reporting_delivered =>
            {
                TxnAction::Commit {
                    flights: 0,
                    pair: self.marker,
                }
            }
            TxnPhase::Open
                if self.last_progress.is_none()
                    && !sight.has_work
                    && self.phase_since + self.idle_timeout <= now =>
            {
                TxnAction::Close
            }
            TxnPhase::Open => self.action_in_transaction(sight, now),
        }
    }

    /// Of a transaction under way.
    fn action_in_transaction(&self, sight: TxnInput, now: Instant) -> TxnAction {
        let Some(begun) = self.last_progress else {
            return TxnAction::None;
        };
        match sight.pair {
            Some((flights, pair))
                if !sight.is_reporting_delivered
                    && self.unreported() == 0
                    && (sight.commit_now || self.is_commit_due(now)) =>
            {
                TxnAction::Commit { flights, pair }
            }
            _ if begun + TRANSACTION_SILENCE_TIMEOUT <= now => TxnAction::Abort,
            _ => TxnAction::None,
        }
    }

    /// Whether the marker is so old that brokers may soon forget it.
    fn is_refresh_due(&self, now: Instant) -> bool {
        self.refresh_marker_at <= now && self.marker != Progress::START
    }

    /// When a transaction that cannot be committed is undone.
    pub(super) fn abort_at(&self) -> Option<Instant> {
        self.last_progress
            .filter(|_| self.phase == TxnPhase::Open)
            .map(|begun| begun + TRANSACTION_SILENCE_TIMEOUT)
    }

    /// When there is something to do that nothing will announce.
    pub(super) fn next_wakeup(&self, is_wanted: bool, now: Instant) -> Option<Instant> {
        let refresh =
            (self.marker != Progress::START).then_some(self.refresh_marker_at.max(self.not_before));
        let pause = Some(self.not_before).filter(|at| *at > now);
        match self.phase {
            TxnPhase::Closed if is_wanted => pause.or(Some(now)),
            TxnPhase::Closed => [
                refresh,
                self.recovery_due_at.map(|at| at.max(self.not_before)),
            ]
            .into_iter()
            .flatten()
            .min(),
            TxnPhase::Opening | TxnPhase::Committing { .. } | TxnPhase::Aborting => {
                Some(self.phase_since + TRANSACTIONAL_PRODUCER_TIMEOUT)
            }
            TxnPhase::Open if self.must_abort => Some(now),
            TxnPhase::Open => {
                let commit = self
                    .last_progress
                    .map(|_| self.last_commit_at + self.commit_interval)
                    .filter(|at| *at > now);
                let end = self
                    .last_progress
                    .map_or(self.phase_since + self.idle_timeout, |begun| {
                        begun + TRANSACTION_SILENCE_TIMEOUT
                    });
                let end = Some(end).filter(|_| self.last_progress.is_some() || !is_wanted);
                [refresh, pause, commit, end].into_iter().flatten().min()
            }
        }
    }

    fn enter(&mut self, phase: TxnPhase, now: Instant) {
        (self.phase, self.phase_since) = (phase, now);
    }

    fn clear(&mut self) {
        (
            self.last_progress,
            self.sent,
            self.reported,
            self.must_abort,
        ) = (None, 0, 0, false);
        (self.highest_sent, self.commit_point) = (None, None);
    }

    pub(super) fn on_opening(&mut self, number: u64, now: Instant) {
        (self.number, self.idle_timeout) = (number, TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT);
        self.clear();
        self.enter(TxnPhase::Opening, now);
    }

    /// It is opened only to end what was left open.
    pub(super) fn set_recovery_only(&mut self) {
        self.idle_timeout = Duration::ZERO;
    }

    /// It is not opened before then unless something is due.
    pub(super) fn defer_recovery(&mut self, until: Instant) {
        self.recovery_due_at = self.recovery_due_at.map(|_| until);
        self.refresh_marker_at = self.refresh_marker_at.max(until);
    }

    fn is_recovery_due(&self, now: Instant) -> bool {
        self.recovery_due_at.is_some_and(|at| at <= now)
    }

    pub(super) fn on_opened(&mut self, marker: Progress, now: Instant) {
        self.recovery_due_at = None;
        (self.marker, self.commit_in_doubt) = (marker, false);
        self.enter(TxnPhase::Open, now);
    }

    /// The message at a place was handed over, or need not be.
    pub(super) fn on_sent(&mut self, place: Cursor, is_sent: bool, now: Instant) {
        self.last_progress.get_or_insert(now);
        self.idle_timeout = TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT;
        self.highest_sent = self.highest_sent.max(Some(place));
        self.sent += usize::from(is_sent);
    }

    /// What is in the transaction is to be handed over again then.
    pub(super) fn abort_and_pause(&mut self, again: Instant) {
        self.must_abort = true;
        self.not_before = self.not_before.max(again);
    }

    /// One was reported on: it goes on, however slowly.
    pub(super) fn on_report(&mut self, now: Instant) {
        self.reported += 1;
        self.last_progress = self.last_progress.map(|_| now);
    }

    pub(super) fn on_committing(&mut self, flights: usize, pair: Progress, now: Instant) {
        self.last_commit_at = now;
        self.commit_in_doubt = flights > 0;
        self.enter(TxnPhase::Committing { flights, pair }, now);
    }

    /// How many flights are delivered with that, and how long it took; `None`: nothing was being committed.
    pub(super) fn on_committed(&mut self, now: Instant) -> Option<(usize, Duration)> {
        let TxnPhase::Committing { flights, pair } = self.phase else {
            return None;
        };
        let took = now - self.phase_since;
        (self.marker, self.failures, self.refresh_marker_at) =
            (pair, 0, now + IDLE_OFFSET_COMMIT_INTERVAL);
        self.commit_interval = took
            .saturating_mul(TRANSACTION_INTERVAL_FACTOR)
            .clamp(TRANSACTION_INTERVAL_MIN, TRANSACTION_INTERVAL_MAX);
        self.not_before = self.not_before.max(now + TRANSACTION_PAUSE_AFTER_COMMIT);
        self.commit_in_doubt = false;
        self.clear();
        self.enter(TxnPhase::Open, now);
        Some((flights, took))
    }

    pub(super) fn on_aborting(&mut self, now: Instant) {
        self.enter(TxnPhase::Aborting, now);
    }

    /// A commit that was refused is tried again after a while, longer each time.
    pub(super) fn on_aborted(&mut self, now: Instant) {
        if self.is_committing() {
            self.back_off(now);
        }
        self.commit_in_doubt = false;
        self.clear();
        self.enter(TxnPhase::Open, now);
    }

    pub(super) fn on_lost(&mut self, now: Instant) {
        self.recovery_due_at = Some(now);
        self.back_off(now);
        self.on_ended(now);
    }

    fn back_off(&mut self, now: Instant) {
        let wait = RESEND_DELAY_MIN
            .saturating_mul(1 << self.failures.min(10))
            .min(RESEND_DELAY_MAX);
        self.failures += 1;
        self.not_before = self.not_before.max(now + wait);
    }

    pub(super) fn on_ended(&mut self, now: Instant) {
        self.clear();
        self.enter(TxnPhase::Closed, now);
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
        pair: None,
    };
    const MOMENT: Duration = Duration::from_millis(1);

    fn pair(at: u64) -> Progress {
        Progress::new(
            Cursor::new(Timestamp::from_millis(at as i64), Offset(at)),
            Watermark(at + 1),
        )
    }

    fn open(now: Instant) -> TxnState {
        let mut exact = TxnState::new(pair(1), now);
        exact.on_opening(7, now);
        exact.on_opened(pair(1), now);
        exact
    }

    fn whole(flights: usize) -> TxnInput {
        TxnInput {
            has_work: true,
            pair: Some((flights, pair(9))),
            ..IDLE
        }
    }

    #[test]
    fn one_alone_is_committed_at_once_and_many_wait_for_each_other_a_moment() {
        let mut now = Instant::now();
        let mut exact = open(now);
        exact.on_sent(pair(9).cursor, true, now);
        assert_eq!(
            exact.next_action(whole(1), now),
            TxnAction::None,
            "nobody knows what became of it"
        );
        exact.on_report(now);
        assert_eq!(
            exact.next_action(whole(1), now),
            TxnAction::Commit {
                flights: 1,
                pair: pair(9)
            }
        );
        exact.on_committing(1, pair(9), now);
        now += MOMENT;
        assert_eq!(exact.on_committed(now), Some((1, MOMENT)));
        assert!(
            !exact.accepts_records(now),
            "the broker is not done with the last one"
        );
        let pace = now - MOMENT + TRANSACTION_INTERVAL_MIN;
        now += TRANSACTION_PAUSE_AFTER_COMMIT;
        assert!(exact.accepts_records(now));
        exact.on_sent(pair(9).cursor, true, now);
        exact.on_report(now);
        assert_eq!(exact.next_action(whole(1), now), TxnAction::None);
        assert_eq!(exact.next_wakeup(true, now), Some(pace));
        assert_eq!(
            exact.next_action(whole(1), pace),
            TxnAction::Commit {
                flights: 1,
                pair: pair(9)
            }
        );
        assert_eq!(
            exact.next_action(
                TxnInput {
                    commit_now: true,
                    ..whole(1)
                },
                now
            ),
            TxnAction::Commit {
                flights: 1,
                pair: pair(9)
            }
        );
    }

    #[test]
    fn commits_follow_each_other_as_fast_as_they_are_answered_within_bounds() {
        for (took, pace) in [
            (0, TRANSACTION_INTERVAL_MIN),
            (4, Duration::from_millis(12)),
            (1_000, TRANSACTION_INTERVAL_MAX),
        ] {
            let mut now = Instant::now();
            let mut exact = open(now);
            exact.on_committing(1, pair(9), now);
            let began = now;
            now += Duration::from_millis(took);
            exact.on_committed(now);
            exact.on_sent(pair(9).cursor, true, now);
            exact.on_report(now);
            let due = (began + pace).max(now);
            assert_eq!(
                exact.next_action(whole(1), due),
                TxnAction::Commit {
                    flights: 1,
                    pair: pair(9)
                },
                "{took} ms"
            );
            let is_sooner =
                due > now && exact.next_action(whole(1), due - MOMENT) != TxnAction::None;
            assert!(!is_sooner, "{took} ms");
        }
    }

    #[test]
    fn what_cannot_be_committed_is_undone_after_a_while() {
        let now = Instant::now();
        let mut exact = open(now);
        exact.on_sent(pair(9).cursor, true, now);
        exact.on_report(now);
        let stuck = TxnInput {
            pair: None,
            ..whole(1)
        };
        assert_eq!(exact.next_action(stuck, now), TxnAction::None);
        assert_eq!(
            exact.next_action(stuck, now + TRANSACTION_SILENCE_TIMEOUT),
            TxnAction::Abort,
            "others wait behind it in the target"
        );
    }

    #[test]
    fn what_is_sealed_takes_only_what_lies_before_what_it_has() {
        let mut now = Instant::now();
        let mut exact = open(now);
        exact.on_sent(pair(5).cursor, true, now);
        assert_eq!(
            exact.commit_point(1, now),
            None,
            "all that is due at the same moment goes along"
        );
        exact.on_sent(pair(3).cursor, true, now);
        now += MOMENT;
        let seal = CommitPoint {
            batches: 2,
            until: pair(5).cursor,
        };
        assert_eq!(exact.commit_point(2, now), Some(seal));
        exact.on_sent(pair(4).cursor, true, now);
        assert_eq!(
            exact.commit_point(7, now + MOMENT),
            Some(seal),
            "what comes later goes into the next one"
        );
        exact.on_committing(2, pair(5), now);
        exact.on_committed(now);
        exact.on_sent(pair(6).cursor, true, now);
        assert_eq!(
            exact.commit_point(1, now + MOMENT),
            None,
            "the next one waits for company"
        );
        assert_eq!(
            exact.commit_point(1, now + TRANSACTION_INTERVAL_MIN),
            Some(CommitPoint {
                batches: 1,
                until: pair(6).cursor
            })
        );
    }

    #[test]
    fn nothing_of_a_transaction_that_failed_is_committed() {
        let now = Instant::now();
        let mut exact = open(now);
        exact.on_sent(pair(9).cursor, true, now);
        exact.on_report(now);
        exact.abort_and_pause(now + MOMENT);
        assert_eq!(exact.next_action(whole(1), now), TxnAction::Abort);
        exact.on_aborting(now);
        exact.on_aborted(now);
        assert!(!exact.accepts_records(now) && exact.accepts_records(now + MOMENT));
    }

    #[test]
    fn it_is_opened_when_it_is_needed_and_ended_when_it_is_not() {
        let now = Instant::now();
        let mut exact = open(now);
        exact.on_ended(now);
        assert_eq!(
            (exact.next_action(IDLE, now), exact.next_wakeup(false, now)),
            (TxnAction::None, Some(exact.refresh_marker_at))
        );
        assert_eq!(
            exact.next_action(
                TxnInput {
                    has_work: true,
                    ..IDLE
                },
                now
            ),
            TxnAction::Open
        );
        exact.on_opening(1, now);
        assert!(!exact.may_claim());
        exact.on_opened(Progress::START, now);
        assert!(exact.may_claim());
        assert_eq!(
            (
                exact.next_action(IDLE, now),
                exact.next_action(IDLE, now + TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT)
            ),
            (TxnAction::None, TxnAction::Close)
        );
    }

    #[test]
    fn what_another_may_have_left_open_is_looked_after_though_nothing_is_due() {
        let now = Instant::now();
        let mut exact = TxnState::new(Progress::START, now);
        assert_eq!(
            (exact.next_action(IDLE, now), exact.next_wakeup(false, now)),
            (TxnAction::Open, Some(now))
        );
        exact.defer_recovery(now + MOMENT);
        assert_eq!(
            (exact.next_action(IDLE, now), exact.next_wakeup(false, now)),
            (TxnAction::None, Some(now + MOMENT)),
            "others look first"
        );
        assert_eq!(
            exact.next_action(
                TxnInput {
                    has_work: true,
                    ..IDLE
                },
                now
            ),
            TxnAction::Open,
            "what is due does not wait for that"
        );
        exact.on_opening(1, now);
        exact.set_recovery_only();
        exact.on_opened(Progress::START, now);
        assert_eq!(
            exact.next_action(IDLE, now),
            TxnAction::Close,
            "that was all"
        );
        exact.on_ended(now);
        assert_eq!(
            (exact.next_action(IDLE, now), exact.next_wakeup(false, now)),
            (TxnAction::None, None)
        );
        let mut exact = open(now);
        exact.on_lost(now);
        assert_eq!(
            exact.next_action(IDLE, now + RESEND_DELAY_MAX),
            TxnAction::Open,
            "and now it is its own"
        );
    }

    #[test]
    fn a_commit_is_in_doubt_until_its_end_is_known_or_the_marker_read() {
        let now = Instant::now();
        let committing = || {
            let mut exact = open(now);
            exact.on_committing(1, pair(9), now);
            assert!(exact.commit_in_doubt());
            exact
        };
        let (mut committed, mut aborted, mut lost) = (committing(), committing(), committing());
        committed.on_committed(now);
        aborted.on_aborted(now);
        lost.on_lost(now);
        assert_eq!(
            (
                committed.commit_in_doubt(),
                aborted.commit_in_doubt(),
                lost.commit_in_doubt()
            ),
            (false, false, true)
        );
        lost.on_opening(8, now);
        assert!(lost.commit_in_doubt());
        lost.on_opened(pair(9), now);
        assert!(!lost.commit_in_doubt());
    }

    #[test]
    fn a_commit_that_is_refused_is_tried_again_more_and_more_slowly() {
        let mut now = Instant::now();
        let (mut exact, mut last) = (open(now), Duration::ZERO);
        for _ in 0..8 {
            exact.on_sent(pair(9).cursor, true, now);
            exact.on_report(now);
            exact.on_committing(1, pair(9), now);
            exact.on_aborted(now);
            assert!(!exact.accepts_records(now));
            let again = exact.next_wakeup(true, now).expect("it is wanted");
            assert!(exact.accepts_records(again) && again - now >= last);
            (last, now) = (again - now, again);
        }
        assert_eq!(last, RESEND_DELAY_MAX);
        now += IDLE_OFFSET_COMMIT_INTERVAL;
        assert_eq!(
            exact.next_action(IDLE, now),
            TxnAction::Commit {
                flights: 0,
                pair: pair(1)
            }
        );
        exact.on_committing(0, pair(1), now);
        exact.on_aborted(now);
        assert_eq!(
            exact.next_action(IDLE, now),
            TxnAction::None,
            "a refresh waits too"
        );
    }

    #[test]
    fn a_marker_is_refreshed_before_brokers_forget_it() {
        let now = Instant::now();
        let mut exact = open(now);
        assert_eq!(
            exact.next_action(IDLE, now + IDLE_OFFSET_COMMIT_INTERVAL),
            TxnAction::Commit {
                flights: 0,
                pair: pair(1)
            }
        );
        exact.on_ended(now);
        assert_eq!(
            exact.next_action(IDLE, now + IDLE_OFFSET_COMMIT_INTERVAL),
            TxnAction::Open
        );
        let late = now + IDLE_OFFSET_COMMIT_INTERVAL;
        exact.defer_recovery(late + MOMENT);
        assert_eq!(
            (
                exact.next_action(IDLE, late),
                exact.next_wakeup(false, late)
            ),
            (TxnAction::None, Some(late + MOMENT)),
            "others come first"
        );
        let mut none = TxnState::new(Progress::START, now);
        none.on_opening(7, now);
        none.on_opened(Progress::START, now);
        none.on_ended(now);
        assert_eq!(
            none.next_action(IDLE, now + IDLE_OFFSET_COMMIT_INTERVAL),
            TxnAction::None,
            "nothing is delivered yet"
        );
    }

    #[test]
    fn nothing_is_committed_until_the_store_knows_what_that_counts_from() {
        let now = Instant::now();
        let mut exact = open(now);
        exact.on_sent(pair(9).cursor, true, now);
        exact.on_report(now);
        let (later, told) = (
            now + TRANSACTION_INTERVAL_MAX,
            TxnInput {
                is_reporting_delivered: true,
                ..whole(1)
            },
        );
        assert_eq!(exact.next_action(told, later), TxnAction::None);
        assert_eq!(
            exact.next_action(whole(1), later),
            TxnAction::Commit {
                flights: 1,
                pair: pair(9)
            }
        );
        let patience = exact.abort_at().expect("something is in it");
        assert_eq!(
            (
                exact.next_action(told, patience),
                exact.next_action(told, patience - MOMENT)
            ),
            (TxnAction::Abort, TxnAction::None),
            "others wait behind it"
        );
    }

    #[test]
    fn who_does_not_answer_is_given_up_and_opened_again_more_and_more_slowly() {
        let mut now = Instant::now();
        let (mut exact, mut last) = (TxnState::new(pair(1), now), Duration::ZERO);
        for number in 1..9 {
            exact.on_opening(number, now);
            assert_eq!(exact.next_action(IDLE, now), TxnAction::None);
            now += TRANSACTIONAL_PRODUCER_TIMEOUT;
            assert_eq!(exact.next_action(IDLE, now), TxnAction::Abandon);
            exact.on_lost(now);
            let again = exact.next_wakeup(true, now).expect("it is wanted");
            assert!(again - now >= last);
            (last, now) = (again - now, again);
            assert_eq!(exact.next_action(whole(0), now), TxnAction::Open);
        }
        assert_eq!(last, RESEND_DELAY_MAX);
    }
}
