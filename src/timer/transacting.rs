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

use super::sealing::Seal;
use crate::limit::{
    MARKER_REFRESH, MARKER_REFRESH_FIRST, RESEND_MAX, RESEND_MIN, TRANSACTION_ANSWER_MAX,
    TRANSACTION_MESSAGES_MAX, TRANSACTION_OPEN_MAX, TRANSACTION_PACE_MAX, TRANSACTION_PACE_MIN,
    TRANSACTION_PACE_PART, TRANSACTION_REST, TRANSACTOR_IDLE,
};
use crate::model::{Claim, Cursor};
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(crate) struct Transacting {
    phase: Phase,
    /// Names the opening; what is heard of another number is of an earlier one.
    number: u64,
    /// When its phase began.
    since: Instant,
    /// When the first of the transaction was handed over, or one of it was reported on last; `None`: there is nothing in it.
    begun: Option<Instant>,
    sent: usize,
    reported: usize,
    /// The greatest place that is in it.
    high: Option<Cursor>,
    seal: Option<Seal>,
    /// It can only be aborted.
    has_failed: bool,
    /// A commit was begun, and nobody knows yet how it ended.
    is_in_doubt: bool,
    /// When the last commit began, and how long after it the next one may.
    committed: Instant,
    pace: Duration,
    /// Nothing is opened or handed over before.
    not_before: Instant,
    /// How often it was lost, or a commit refused, since the last commit.
    losses: u32,
    refresh: Instant,
    /// From then on it is opened to end what whoever bore its name last may have left open.
    unseen: Option<Instant>,
    /// How long it is kept open for nothing.
    idle: Duration,
    /// The pair of the last commit that is known of.
    marker: Claim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed,
    Opening,
    Open,
    /// What is in it is of so many flights, and `pair` says that it is delivered.
    Committing {
        flights: usize,
        pair: Claim,
    },
    Aborting,
}

/// What is seen of the work it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    /// Something is claimed, or is due soon.
    pub(super) is_wanted: bool,
    /// Nothing more comes: what there is, is to be committed now.
    pub(super) is_hurried: bool,
    /// It is not known yet that the store knows what it was told last, from which a commit counts.
    pub(super) is_being_told: bool,
    /// Of how many flights the transaction is, and the pair to commit it with.
    pub(super) pair: Option<(usize, Claim)>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    None,
    Open,
    Commit {
        flights: usize,
        pair: Claim,
    },
    Abort,
    /// Nobody needs it.
    End,
    /// It does not answer.
    GiveUp,
}

impl Transacting {
    pub(super) fn new(start: Claim, now: Instant) -> Self {
        Self {
            phase: Phase::Closed,
            number: 0,
            since: now,
            begun: None,
            sent: 0,
            reported: 0,
            high: None,
            seal: None,
            has_failed: false,
            is_in_doubt: false,
            committed: now - TRANSACTION_PACE_MIN,
            pace: TRANSACTION_PACE_MIN,
            not_before: now,
            losses: 0,
            refresh: now + MARKER_REFRESH_FIRST,
            unseen: Some(now),
            idle: TRANSACTOR_IDLE,
            marker: start,
        }
    }

    /// The number of the opening, if there is one.
    pub(super) fn number(&self) -> Option<u64> {
        (self.phase != Phase::Closed).then_some(self.number)
    }

    /// Whether the shard may be claimed of: the marker is known, and who had the shard before is fenced.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Closed | Phase::Opening)
    }

    pub(super) fn is_committing(&self) -> bool {
        matches!(self.phase, Phase::Committing { .. })
    }

    /// Whether more may be delivered than is known of: the marker says, when it is read.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    pub(super) fn marker(&self) -> Claim {
        self.marker
    }

    /// Whether there is something in it, and all of that is reported on.
    pub(super) fn is_reported(&self) -> bool {
        self.phase == Phase::Open
            && self.begun.is_some()
            && self.in_client() == 0
            && !self.has_failed
    }

    /// Handed to the client and not reported on.
    pub(super) fn in_client(&self) -> usize {
        self.sent - self.reported
    }

    /// Whether what is claimed may be handed over.
    pub(super) fn is_taking(&self, now: Instant) -> bool {
        self.phase == Phase::Open && !self.has_failed && self.not_before <= now
    }

    /// The greatest place that is handed over or done.
    pub(super) fn until(&self) -> Cursor {
        self.high
            .map_or(self.marker.cursor, |high| high.max(self.marker.cursor))
    }

    /// Whether the transaction is to end. A first message is committed at once; others so soon after it wait a moment, for each other.
    fn is_due(&self, now: Instant) -> bool {
        self.committed + self.pace <= now || self.sent >= TRANSACTION_MESSAGES_MAX
    }

    /// What may still go along, if not everything; `flights`: so many there are by now.
    pub(super) fn sealed(&mut self, flights: usize, now: Instant) -> Option<Seal> {
        if self.seal.is_none() && self.begun.is_some_and(|begun| begun < now) && self.is_due(now) {
            self.seal = Some(Seal {
                flights,
                until: self.until(),
            });
        }
        self.seal
    }

    pub(super) fn step(&self, sight: Sight, now: Instant) -> Step {
        let is_silent = self.since + TRANSACTION_ANSWER_MAX <= now;
        match self.phase {
            Phase::Closed
                if self.not_before <= now
                    && (sight.is_wanted || self.is_to_be_seen(now) || self.is_to_refresh(now)) =>
            {
                Step::Open
            }
            Phase::Closed => Step::None,
            Phase::Opening | Phase::Committing { .. } | Phase::Aborting if is_silent => {
                Step::GiveUp
            }
            Phase::Opening | Phase::Committing { .. } | Phase::Aborting => Step::None,
            Phase::Open if self.has_failed => Step::Abort,
            Phase::Open
                if self.begun.is_none()
                    && self.not_before <= now
                    && self.is_to_refresh(now)
                    && !sight.is_being_told =>
            {
                Step::Commit {
                    flights: 0,
                    pair: self.marker,
                }
            }
            Phase::Open
                if self.begun.is_none() && !sight.is_wanted && self.since + self.idle <= now =>
            {
                Step::End
            }
            Phase::Open => self.step_on(sight, now),
        }
    }

    /// Of a transaction under way.
    fn step_on(&self, sight: Sight, now: Instant) -> Step {
        let Some(begun) = self.begun else {
            return Step::None;
        };
        match sight.pair {
            Some((flights, pair))
                if !sight.is_being_told
                    && self.in_client() == 0
                    && (sight.is_hurried || self.is_due(now)) =>
            {
                Step::Commit { flights, pair }
            }
            _ if begun + TRANSACTION_OPEN_MAX <= now => Step::Abort,
            _ => Step::None,
        }
    }

    /// Whether the marker is so old that brokers may soon forget it.
    fn is_to_refresh(&self, now: Instant) -> bool {
        self.refresh <= now && self.marker != Claim::START
    }

    /// When a transaction that cannot be committed is undone.
    pub(super) fn patience(&self) -> Option<Instant> {
        self.begun
            .filter(|_| self.phase == Phase::Open)
            .map(|begun| begun + TRANSACTION_OPEN_MAX)
    }

    /// When there is something to do that nothing will announce.
    pub(super) fn wake(&self, is_wanted: bool, now: Instant) -> Option<Instant> {
        let refresh = (self.marker != Claim::START).then_some(self.refresh.max(self.not_before));
        let pause = Some(self.not_before).filter(|at| *at > now);
        match self.phase {
            Phase::Closed if is_wanted => pause.or(Some(now)),
            Phase::Closed => [refresh, self.unseen.map(|at| at.max(self.not_before))]
                .into_iter()
                .flatten()
                .min(),
            Phase::Opening | Phase::Committing { .. } | Phase::Aborting => {
                Some(self.since + TRANSACTION_ANSWER_MAX)
            }
            Phase::Open if self.has_failed => Some(now),
            Phase::Open => {
                let commit = self
                    .begun
                    .map(|_| self.committed + self.pace)
                    .filter(|at| *at > now);
                let end = self
                    .begun
                    .map_or(self.since + self.idle, |begun| begun + TRANSACTION_OPEN_MAX);
                let end = Some(end).filter(|_| self.begun.is_some() || !is_wanted);
                [refresh, pause, commit, end].into_iter().flatten().min()
            }
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.since) = (phase, now);
    }

    fn clear(&mut self) {
        (self.begun, self.sent, self.reported, self.has_failed) = (None, 0, 0, false);
        (self.high, self.seal) = (None, None);
    }

    pub(super) fn opening(&mut self, number: u64, now: Instant) {
        (self.number, self.idle) = (number, TRANSACTOR_IDLE);
        self.clear();
        self.enter(Phase::Opening, now);
    }

    /// It is opened only to end what was left open.
    pub(super) fn looking(&mut self) {
        self.idle = Duration::ZERO;
    }

    /// It is not opened before then unless something is due.
    pub(super) fn put_off(&mut self, until: Instant) {
        self.unseen = self.unseen.map(|_| until);
        self.refresh = self.refresh.max(until);
    }

    fn is_to_be_seen(&self, now: Instant) -> bool {
        self.unseen.is_some_and(|at| at <= now)
    }

    pub(super) fn opened(&mut self, marker: Claim, now: Instant) {
        self.unseen = None;
        (self.marker, self.is_in_doubt) = (marker, false);
        self.enter(Phase::Open, now);
    }

    /// The message at a place was handed over, or need not be.
    pub(super) fn handed(&mut self, place: Cursor, is_sent: bool, now: Instant) {
        self.begun.get_or_insert(now);
        self.idle = TRANSACTOR_IDLE;
        self.high = self.high.max(Some(place));
        self.sent += usize::from(is_sent);
    }

    /// What is in the transaction is to be handed over again then.
    pub(super) fn fail(&mut self, again: Instant) {
        self.has_failed = true;
        self.not_before = self.not_before.max(again);
    }

    /// One was reported on: it goes on, however slowly.
    pub(super) fn reported(&mut self, now: Instant) {
        self.reported += 1;
        self.begun = self.begun.map(|_| now);
    }

    pub(super) fn committing(&mut self, flights: usize, pair: Claim, now: Instant) {
        self.committed = now;
        self.is_in_doubt = flights > 0;
        self.enter(Phase::Committing { flights, pair }, now);
    }

    /// How many flights are delivered with that, and how long it took; `None`: nothing was being committed.
    pub(super) fn committed(&mut self, now: Instant) -> Option<(usize, Duration)> {
        let Phase::Committing { flights, pair } = self.phase else {
            return None;
        };
        let took = now - self.since;
        (self.marker, self.losses, self.refresh) = (pair, 0, now + MARKER_REFRESH);
        self.pace = took
            .saturating_mul(TRANSACTION_PACE_PART)
            .clamp(TRANSACTION_PACE_MIN, TRANSACTION_PACE_MAX);
        self.not_before = self.not_before.max(now + TRANSACTION_REST);
        self.is_in_doubt = false;
        self.clear();
        self.enter(Phase::Open, now);
        Some((flights, took))
    }

    pub(super) fn aborting(&mut self, now: Instant) {
        self.enter(Phase::Aborting, now);
    }

    /// A commit that was refused is tried again after a while, longer each time.
    pub(super) fn aborted(&mut self, now: Instant) {
        if self.is_committing() {
            self.back_off(now);
        }
        self.is_in_doubt = false;
        self.clear();
        self.enter(Phase::Open, now);
    }

    pub(super) fn lost(&mut self, now: Instant) {
        self.unseen = Some(now);
        self.back_off(now);
        self.ended(now);
    }

    fn back_off(&mut self, now: Instant) {
        let wait = RESEND_MIN
            .saturating_mul(1 << self.losses.min(10))
            .min(RESEND_MAX);
        self.losses += 1;
        self.not_before = self.not_before.max(now + wait);
    }

    pub(super) fn ended(&mut self, now: Instant) {
        self.clear();
        self.enter(Phase::Closed, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, Timestamp, Watermark};

    const IDLE: Sight = Sight {
        is_wanted: false,
        is_hurried: false,
        is_being_told: false,
        pair: None,
    };
    const MOMENT: Duration = Duration::from_millis(1);

    fn pair(at: u64) -> Claim {
        Claim::new(
            Cursor::new(Timestamp::from_millis(at as i64), Offset(at)),
            Watermark(at + 1),
        )
    }

    fn open(now: Instant) -> Transacting {
        let mut exact = Transacting::new(pair(1), now);
        exact.opening(7, now);
        exact.opened(pair(1), now);
        exact
    }

    fn whole(flights: usize) -> Sight {
        Sight {
            is_wanted: true,
            pair: Some((flights, pair(9))),
            ..IDLE
        }
    }

    #[test]
    fn one_alone_is_committed_at_once_and_many_wait_for_each_other_a_moment() {
        let mut now = Instant::now();
        let mut exact = open(now);
        exact.handed(pair(9).cursor, true, now);
        assert_eq!(
            exact.step(whole(1), now),
            Step::None,
            "nobody knows what became of it"
        );
        exact.reported(now);
        assert_eq!(
            exact.step(whole(1), now),
            Step::Commit {
                flights: 1,
                pair: pair(9)
            }
        );
        exact.committing(1, pair(9), now);
        now += MOMENT;
        assert_eq!(exact.committed(now), Some((1, MOMENT)));
        assert!(
            !exact.is_taking(now),
            "the broker is not done with the last one"
        );
        let pace = now - MOMENT + TRANSACTION_PACE_MIN;
        now += TRANSACTION_REST;
        assert!(exact.is_taking(now));
        exact.handed(pair(9).cursor, true, now);
        exact.reported(now);
        assert_eq!(exact.step(whole(1), now), Step::None);
        assert_eq!(exact.wake(true, now), Some(pace));
        assert_eq!(
            exact.step(whole(1), pace),
            Step::Commit {
                flights: 1,
                pair: pair(9)
            }
        );
        assert_eq!(
            exact.step(
                Sight {
                    is_hurried: true,
                    ..whole(1)
                },
                now
            ),
            Step::Commit {
                flights: 1,
                pair: pair(9)
            }
        );
    }

    #[test]
    fn commits_follow_each_other_as_fast_as_they_are_answered_within_bounds() {
        for (took, pace) in [
            (0, TRANSACTION_PACE_MIN),
            (4, Duration::from_millis(12)),
            (1_000, TRANSACTION_PACE_MAX),
        ] {
            let mut now = Instant::now();
            let mut exact = open(now);
            exact.committing(1, pair(9), now);
            let began = now;
            now += Duration::from_millis(took);
            exact.committed(now);
            exact.handed(pair(9).cursor, true, now);
            exact.reported(now);
            let due = (began + pace).max(now);
            assert_eq!(
                exact.step(whole(1), due),
                Step::Commit {
                    flights: 1,
                    pair: pair(9)
                },
                "{took} ms"
            );
            let is_sooner = due > now && exact.step(whole(1), due - MOMENT) != Step::None;
            assert!(!is_sooner, "{took} ms");
        }
    }

    #[test]
    fn what_cannot_be_committed_is_undone_after_a_while() {
        let now = Instant::now();
        let mut exact = open(now);
        exact.handed(pair(9).cursor, true, now);
        exact.reported(now);
        let stuck = Sight {
            pair: None,
            ..whole(1)
        };
        assert_eq!(exact.step(stuck, now), Step::None);
        assert_eq!(
            exact.step(stuck, now + TRANSACTION_OPEN_MAX),
            Step::Abort,
            "others wait behind it in the target"
        );
    }

    #[test]
    fn what_is_sealed_takes_only_what_lies_before_what_it_has() {
        let mut now = Instant::now();
        let mut exact = open(now);
        exact.handed(pair(5).cursor, true, now);
        assert_eq!(
            exact.sealed(1, now),
            None,
            "all that is due at the same moment goes along"
        );
        exact.handed(pair(3).cursor, true, now);
        now += MOMENT;
        let seal = Seal {
            flights: 2,
            until: pair(5).cursor,
        };
        assert_eq!(exact.sealed(2, now), Some(seal));
        exact.handed(pair(4).cursor, true, now);
        assert_eq!(
            exact.sealed(7, now + MOMENT),
            Some(seal),
            "what comes later goes into the next one"
        );
        exact.committing(2, pair(5), now);
        exact.committed(now);
        exact.handed(pair(6).cursor, true, now);
        assert_eq!(
            exact.sealed(1, now + MOMENT),
            None,
            "the next one waits for company"
        );
        assert_eq!(
            exact.sealed(1, now + TRANSACTION_PACE_MIN),
            Some(Seal {
                flights: 1,
                until: pair(6).cursor
            })
        );
    }

    #[test]
    fn nothing_of_a_transaction_that_failed_is_committed() {
        let now = Instant::now();
        let mut exact = open(now);
        exact.handed(pair(9).cursor, true, now);
        exact.reported(now);
        exact.fail(now + MOMENT);
        assert_eq!(exact.step(whole(1), now), Step::Abort);
        exact.aborting(now);
        exact.aborted(now);
        assert!(!exact.is_taking(now) && exact.is_taking(now + MOMENT));
    }

    #[test]
    fn it_is_opened_when_it_is_needed_and_ended_when_it_is_not() {
        let now = Instant::now();
        let mut exact = open(now);
        exact.ended(now);
        assert_eq!(
            (exact.step(IDLE, now), exact.wake(false, now)),
            (Step::None, Some(exact.refresh))
        );
        assert_eq!(
            exact.step(
                Sight {
                    is_wanted: true,
                    ..IDLE
                },
                now
            ),
            Step::Open
        );
        exact.opening(1, now);
        assert!(!exact.is_open());
        exact.opened(Claim::START, now);
        assert!(exact.is_open());
        assert_eq!(
            (
                exact.step(IDLE, now),
                exact.step(IDLE, now + TRANSACTOR_IDLE)
            ),
            (Step::None, Step::End)
        );
    }

    #[test]
    fn what_another_may_have_left_open_is_looked_after_though_nothing_is_due() {
        let now = Instant::now();
        let mut exact = Transacting::new(Claim::START, now);
        assert_eq!(
            (exact.step(IDLE, now), exact.wake(false, now)),
            (Step::Open, Some(now))
        );
        exact.put_off(now + MOMENT);
        assert_eq!(
            (exact.step(IDLE, now), exact.wake(false, now)),
            (Step::None, Some(now + MOMENT)),
            "others look first"
        );
        assert_eq!(
            exact.step(
                Sight {
                    is_wanted: true,
                    ..IDLE
                },
                now
            ),
            Step::Open,
            "what is due does not wait for that"
        );
        exact.opening(1, now);
        exact.looking();
        exact.opened(Claim::START, now);
        assert_eq!(exact.step(IDLE, now), Step::End, "that was all");
        exact.ended(now);
        assert_eq!(
            (exact.step(IDLE, now), exact.wake(false, now)),
            (Step::None, None)
        );
        let mut exact = open(now);
        exact.lost(now);
        assert_eq!(
            exact.step(IDLE, now + RESEND_MAX),
            Step::Open,
            "and now it is its own"
        );
    }

    #[test]
    fn a_commit_is_in_doubt_until_its_end_is_known_or_the_marker_read() {
        let now = Instant::now();
        let committing = || {
            let mut exact = open(now);
            exact.committing(1, pair(9), now);
            assert!(exact.is_in_doubt());
            exact
        };
        let (mut committed, mut aborted, mut lost) = (committing(), committing(), committing());
        committed.committed(now);
        aborted.aborted(now);
        lost.lost(now);
        assert_eq!(
            (
                committed.is_in_doubt(),
                aborted.is_in_doubt(),
                lost.is_in_doubt()
            ),
            (false, false, true)
        );
        lost.opening(8, now);
        assert!(lost.is_in_doubt());
        lost.opened(pair(9), now);
        assert!(!lost.is_in_doubt());
    }

    #[test]
    fn a_commit_that_is_refused_is_tried_again_more_and_more_slowly() {
        let mut now = Instant::now();
        let (mut exact, mut last) = (open(now), Duration::ZERO);
        for _ in 0..8 {
            exact.handed(pair(9).cursor, true, now);
            exact.reported(now);
            exact.committing(1, pair(9), now);
            exact.aborted(now);
            assert!(!exact.is_taking(now));
            let again = exact.wake(true, now).expect("it is wanted");
            assert!(exact.is_taking(again) && again - now >= last);
            (last, now) = (again - now, again);
        }
        assert_eq!(last, RESEND_MAX);
        now += MARKER_REFRESH;
        assert_eq!(
            exact.step(IDLE, now),
            Step::Commit {
                flights: 0,
                pair: pair(1)
            }
        );
        exact.committing(0, pair(1), now);
        exact.aborted(now);
        assert_eq!(exact.step(IDLE, now), Step::None, "a refresh waits too");
    }

    #[test]
    fn a_marker_is_refreshed_before_brokers_forget_it() {
        let now = Instant::now();
        let mut exact = open(now);
        assert_eq!(
            exact.step(IDLE, now + MARKER_REFRESH),
            Step::Commit {
                flights: 0,
                pair: pair(1)
            }
        );
        exact.ended(now);
        assert_eq!(exact.step(IDLE, now + MARKER_REFRESH), Step::Open);
        let late = now + MARKER_REFRESH;
        exact.put_off(late + MOMENT);
        assert_eq!(
            (exact.step(IDLE, late), exact.wake(false, late)),
            (Step::None, Some(late + MOMENT)),
            "others come first"
        );
        let mut none = Transacting::new(Claim::START, now);
        none.opening(7, now);
        none.opened(Claim::START, now);
        none.ended(now);
        assert_eq!(
            none.step(IDLE, now + MARKER_REFRESH),
            Step::None,
            "nothing is delivered yet"
        );
    }

    #[test]
    fn nothing_is_committed_until_the_store_knows_what_that_counts_from() {
        let now = Instant::now();
        let mut exact = open(now);
        exact.handed(pair(9).cursor, true, now);
        exact.reported(now);
        let (later, told) = (
            now + TRANSACTION_PACE_MAX,
            Sight {
                is_being_told: true,
                ..whole(1)
            },
        );
        assert_eq!(exact.step(told, later), Step::None);
        assert_eq!(
            exact.step(whole(1), later),
            Step::Commit {
                flights: 1,
                pair: pair(9)
            }
        );
        let patience = exact.patience().expect("something is in it");
        assert_eq!(
            (
                exact.step(told, patience),
                exact.step(told, patience - MOMENT)
            ),
            (Step::Abort, Step::None),
            "others wait behind it"
        );
    }

    #[test]
    fn who_does_not_answer_is_given_up_and_opened_again_more_and_more_slowly() {
        let mut now = Instant::now();
        let (mut exact, mut last) = (Transacting::new(pair(1), now), Duration::ZERO);
        for number in 1..9 {
            exact.opening(number, now);
            assert_eq!(exact.step(IDLE, now), Step::None);
            now += TRANSACTION_ANSWER_MAX;
            assert_eq!(exact.step(IDLE, now), Step::GiveUp);
            exact.lost(now);
            let again = exact.wake(true, now).expect("it is wanted");
            assert!(again - now >= last);
            (last, now) = (again - now, again);
            assert_eq!(exact.step(whole(0), now), Step::Open);
        }
        assert_eq!(last, RESEND_MAX);
    }
}
