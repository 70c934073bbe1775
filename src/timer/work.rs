//! One shard's work in a timer, as a value: its schedule, what is loaded of it and what must be asked for next, its claims in flight. Decides;
//! the loader and the dispatcher do.

use super::advancing::PendingCall;
use super::filling::Prefetch;
use super::flying::{ClaimedBatch, next_batch};
use super::lease::Grant;
use super::lease::LeaseDeadline;
use super::load::{Load, LoadResult, ReadOutcome};
use super::load::{MemoryAccount, Reservation, ResidentRun};
use super::poll::TailPoll;
use super::queue::LaneState;
use super::rewriting::CompactionScan;
use super::stall::StallTimer;
use super::transacting::TxnState;
use crate::limit::{
    ADVANCE_DELETES_MAX, CLAIM_INTERVAL, CLAIM_MESSAGES_MAX, CLOCK_AHEAD_PAUSE,
    DELIVERED_WRITE_DELAY, LATE_CLAIM_INTERVAL, SHARD_IN_FLIGHT_MAX, TAIL_POLL_INTERVAL_MAX,
};
use crate::model::{
    Cursor, Lease, Offset, OriginFormat, Progress, Slice, SourceIdentity, Timestamp, Watermark,
};
use crate::run::RunName;
use crate::schedule::{InFlightClaims, RunIndex, Schedule, TakenBatch};
use crate::store::{Advance, Lineage, OutcomeCounts};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(crate) struct ShardState {
    pub(crate) lease: Lease,
    /// Names this incarnation of the work to the loader and in tickets.
    pub(crate) slot: u16,
    pub(crate) origins: OriginFormat,
    /// The incarnation of the source that it was granted for.
    pub(super) identity: SourceIdentity,
    pub(crate) phase: ShardPhase,
    /// Of an exactly-once shard.
    pub(super) txn: Option<TxnState>,
    pub(super) lease_deadline: LeaseDeadline,
    /// Its term has run out, and that was said.
    pub(super) expiry_reported: bool,
    pub(crate) in_flight: InFlightClaims<ClaimedBatch>,
    pub(super) lane: LaneState,
    pub(crate) schedule: Schedule<ResidentRun>,
    /// As the loader saw it last. `None`: nothing is loaded yet, so whatever it is, all that is loaded will be of it.
    pub(super) history: Option<Lineage>,
    pub(super) inventory: RunIndex,
    pub(super) memory: Rc<MemoryAccount>,
    pub(super) compaction: CompactionScan,
    pub(super) stall: StallTimer,
    /// What of the shard a former owner may have handed over already.
    pub(crate) previous_owner_claim: Progress,
    /// Replies with another tag were asked for before everything was dropped.
    load_generation: u64,
    pub(super) prefetch: Prefetch,
    /// The lane that follows what is appended.
    pub(super) tail_poll: TailPoll,
    /// For what was appended, while it is asked for.
    tail_reservation: Option<Reservation>,
    /// The due up to which runs are asked for; what is appended up to it is kept.
    pub(super) load_horizon: Timestamp,
    /// The pair that the store was last told to be delivered, and knows when it has answered.
    pub(super) delivered_sent: Progress,
    pub(super) pending_call: Option<PendingCall>,
    /// Nothing is taken before it: the last claim was just now, or was refused.
    pub(super) no_claim_before: Option<Instant>,
    /// Nothing but late messages is taken before it: what is due soon is claimed.
    pub(super) no_early_claim_before: Option<Instant>,
    pub(super) report_at: Option<Instant>,
    /// The pair up to which the ledger has it, and what was settled since.
    pub(super) ledger_since: Progress,
    pub(super) outcomes: OutcomeCounts,
    runs_to_delete: Vec<(Slice, RunName)>,
    pub(super) released_ids: Vec<(Box<str>, Cursor)>,
    /// Unreadable runs, to be set aside.
    pub(crate) unreadable_runs: Vec<(Slice, RunName)>,
    /// Runs that the last fetch did not find.
    pub(super) missing_runs: Vec<(Slice, RunName)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardPhase {
    Active,
    /// Another worker is to have the shard: nothing more is taken, and what is claimed is finished, unless that takes too long.
    HandingOver {
        until: Instant,
    },
    /// The lease is gone, or was too late: nothing more is taken, and what is in flight is waited for, though not for ever.
    LeaseLost {
        until: Instant,
    },
}

impl ShardState {
    pub(crate) fn new(
        grant: Grant,
        slot: u16,
        origins: OriginFormat,
        memory: Rc<MemoryAccount>,
        now: Instant,
    ) -> Self {
        let Grant {
            lease,
            deadline: term,
            state,
            start,
        } = grant;
        Self {
            lease,
            slot,
            origins,
            identity: state.identity,
            phase: ShardPhase::Active,
            txn: None,
            lease_deadline: term,
            expiry_reported: false,
            in_flight: InFlightClaims::new(start),
            lane: LaneState::new(),
            schedule: Schedule::new(start, state.watermark),
            history: None,
            inventory: RunIndex::default(),
            memory,
            compaction: CompactionScan::new(now),
            stall: StallTimer::new(now, start),
            previous_owner_claim: state.claimed,
            // What was asked for by an earlier work of the same shard may still be answered, and speaks of another time.
            load_generation: u64::from(slot) << 32,
            prefetch: Prefetch::Idle,
            tail_poll: TailPoll::new(now),
            tail_reservation: None,
            load_horizon: Timestamp::AT_ONCE,
            delivered_sent: state.delivered,
            pending_call: None,
            no_claim_before: None,
            no_early_claim_before: None,
            report_at: None,
            ledger_since: start,
            outcomes: OutcomeCounts::default(),
            runs_to_delete: Vec::new(),
            released_ids: Vec::new(),
            unreadable_runs: Vec::new(),
            missing_runs: Vec::new(),
        }
    }

    pub(crate) fn load_generation(&self) -> u64 {
        self.load_generation
    }

    /// Whether the shard is this worker's beyond doubt: what is claimed may be handed over.
    pub(crate) fn may_deliver(&self, now: Instant) -> bool {
        !matches!(self.phase, ShardPhase::LeaseLost { .. }) && !self.lease_deadline.has_passed(now)
    }

    /// Whether more may be taken.
    pub(super) fn may_claim(&self, now: Instant) -> bool {
        self.phase == ShardPhase::Active && !self.lease_deadline.has_passed(now)
    }

    /// Whether somebody waits for the store to know what was delivered.
    pub(crate) fn must_report_delivered(&self) -> bool {
        matches!(self.phase, ShardPhase::HandingOver { .. }) && !self.has_claims()
    }

    /// Whether all that was claimed is done with, and the store knows it.
    pub(crate) fn is_drained(&self) -> bool {
        !self.has_claims() && self.is_delivered_reported()
    }

    /// Drops what is held and loads it again: the store went back, or a claim was refused.
    pub(crate) fn reload(&mut self, taken: Progress, watermark: Watermark, now: Instant) {
        self.schedule = Schedule::new(taken, watermark);
        self.history = None;
        self.inventory = RunIndex::default();
        self.runs_to_delete.clear();
        self.prefetch = Prefetch::Idle;
        (self.tail_poll, self.tail_reservation) = (TailPoll::new(now), None);
        self.compaction = self.compaction.restarted(now);
        self.load_generation += 1;
    }

    /// The claim of what was taken last was refused, for this worker's clock is ahead: it is taken again, after a while.
    pub(crate) fn on_claim_refused(&mut self, watermark: Watermark, now: Instant) {
        self.reload(self.in_flight.claimed(), watermark, now);
        self.no_claim_before = Some(now + CLOCK_AHEAD_PAUSE);
    }

    /// Something was appended.
    pub(crate) fn on_hint(&mut self, least_due: Timestamp, wall: Timestamp, now: Instant) {
        self.tail_poll.on_hint(least_due, wall, now);
    }

    /// What to ask the loader for now, if anything.
    pub(crate) fn next_request(
        &mut self,
        wall: Timestamp,
        now: Instant,
        others_poll: bool,
    ) -> Option<Load> {
        if self.phase != ShardPhase::Active {
            return None;
        }
        self.next_prefetch_request(wall)
            .or_else(|| self.next_tail_request(now, others_poll))
    }

    /// Whether it is time to look for what was appended.
    pub(crate) fn is_tail_poll_due(&self, now: Instant) -> bool {
        self.phase == ShardPhase::Active && self.tail_poll.is_due(now, false)
    }

    fn next_tail_request(&mut self, now: Instant, others_poll: bool) -> Option<Load> {
        if !self.tail_poll.is_due(now, others_poll) {
            return None;
        }
        let is_backlogged = self.schedule.late_count() > CLAIM_MESSAGES_MAX
            || self.in_flight.open_messages() >= SHARD_IN_FLIGHT_MAX;
        if is_backlogged && self.memory.is_exhausted() {
            // What is here goes first. If the tail is cut meanwhile, the shard is loaded again, within the budget.
            self.tail_poll.postpone(now + TAIL_POLL_INTERVAL_MAX);
            return None;
        }
        let (limit, bytes) = self.memory.tail_limits();
        self.tail_reservation = self
            .tail_poll
            .is_likely_to_find()
            .then(|| self.memory.reserve(bytes));
        let expected = self.tail_poll.start();
        let keep = if self.memory.is_half_free() {
            Timestamp::MAX
        } else {
            self.load_horizon
        };
        Some(Load::Tail {
            after: self.schedule.seen(),
            until: self.load_horizon,
            keep_until: keep,
            limit,
            hinted: expected,
        })
    }

    /// Takes in what the loader answered. `false`: the store does not know the shard.
    pub(crate) fn on_load_reply(&mut self, answer: LoadResult, now: Instant) -> bool {
        match answer {
            LoadResult::UnknownShard => return false,
            LoadResult::TailGap { watermark } => {
                if fault!(IgnoreRollback) && watermark < self.schedule.seen() {
                    self.tail_poll.finish(false, false, now);
                    self.tail_reservation = None;
                } else if !self.detect_rollback(watermark, now) {
                    tracing::info!(shard = %self.lease.shard, "the tail does not reach back far enough: loading again");
                    self.reload(self.schedule.taken(), watermark, now);
                }
            }
            LoadResult::Tail {
                watermark,
                seen,
                history,
                runs,
            } => {
                if self.detect_rollback_by_history(watermark, history, now) {
                    return true;
                }
                self.tail_poll
                    .finish(seen > self.schedule.seen(), seen < watermark, now);
                self.tail_reservation = None;
                runs.into_iter().for_each(|read| self.add_run(read));
                self.schedule.advance_seen(seen);
            }
            LoadResult::List {
                watermark,
                history,
                runs,
                more,
            } => {
                if !self.detect_rollback_by_history(watermark, history, now) {
                    self.history = Some(history);
                    self.on_list_reply(runs, more);
                }
            }
            LoadResult::Fetch { reads, left } => {
                let missing = reads.iter().filter_map(|read| match read {
                    ReadOutcome::Missing { slice, name } => Some((*slice, name.clone())),
                    _ => None,
                });
                let missing = missing.collect();
                reads.into_iter().for_each(|read| self.add_run(read));
                self.on_fetch_reply(missing, left, now);
            }
        }
        true
    }

    fn add_run(&mut self, read: ReadOutcome) {
        match read {
            ReadOutcome::Missing { .. } => {}
            ReadOutcome::Corrupt { slice, name, why } => {
                tracing::error!(shard = %self.lease.shard, run = %name, least_offset = %name.least_offset(), messages = name.count(),
                    "a stored run is unreadable ({why}): it is set aside in the shard's quarantine, the rest goes on");
                self.unreadable_runs.push((slice, name));
            }
            ReadOutcome::Loaded(run) => {
                let stub = run.first_dropped_due();
                self.inventory
                    .insert(run.name(), run.slice(), run.summary(), stub);
                if let Some(stub) = stub {
                    // It was cut by an older bound than what is loaded since.
                    self.schedule.lower_loaded(Cursor::new(stub, Offset(0)));
                }
                self.schedule
                    .add_run(Rc::new(ResidentRun::new(run, &self.memory)));
            }
        }
    }

    /// Whether claims may be asked for.
    fn txn_allows_claims(&self) -> bool {
        self.txn.as_ref().is_none_or(TxnState::may_claim)
    }

    /// Whether it is this shard's time to claim, and there is something to claim.
    pub(crate) fn is_claim_due(&self, wall: Timestamp, now: Instant, ahead: Duration) -> bool {
        let is_time = self.may_claim(now)
            && self
                .no_claim_before
                .max(self.no_early_claim_before)
                .is_none_or(|at| at <= now);
        is_time
            && self.txn_allows_claims()
            && self.first_due().is_some_and(|due| due <= wall.plus(ahead))
    }

    /// Takes what is due, and what is within `ahead`, if there is room for it in flight. It may do so `sooner` than it would by itself.
    pub(crate) fn take_due(
        &mut self,
        wall: Timestamp,
        now: Instant,
        limit: usize,
        (ahead, sooner): (Duration, Duration),
    ) -> Option<TakenBatch<ResidentRun>> {
        let is_late = self
            .schedule
            .next_late_due()
            .is_some_and(|due| due <= wall.plus(ahead));
        if self.no_claim_before.is_some_and(|at| at > now)
            || !is_late
                && self
                    .no_early_claim_before
                    .is_some_and(|at| at > now + sooner)
        {
            return None;
        }
        let room = SHARD_IN_FLIGHT_MAX.saturating_sub(self.in_flight.open_messages());
        if !self.may_claim(now) || !self.txn_allows_claims() || room == 0 {
            return None;
        }
        let take = self.schedule.take(wall.plus(ahead), limit.min(room))?;
        let (is_small, is_all) = (
            take.messages.len() < CLAIM_MESSAGES_MAX / 2,
            take.messages.len() < limit.min(room),
        );
        self.no_claim_before = is_small.then_some(now + LATE_CLAIM_INTERVAL);
        // What was cut short for want of room goes on as soon as there is some; what is behind, as soon as more is loaded.
        let is_behind = take
            .messages
            .first()
            .is_some_and(|(resident, at)| resident.run.place(*at as usize).due < wall);
        self.no_early_claim_before =
            (is_small && is_all && !is_behind).then_some(now + CLAIM_INTERVAL.min(ahead));
        Some(take)
    }

    /// What the store is to be told now, along with `claim`; `None`: nothing yet.
    pub(crate) fn next_advance(
        &mut self,
        claim: Option<Progress>,
        skew_max: Duration,
        now: Instant,
        at_once: bool,
    ) -> Option<Advance> {
        let finished = if fault!(DeleteRunsAtClaim) {
            self.schedule.taken()
        } else {
            self.in_flight.delivered()
        };
        if self.runs_to_delete.len() < ADVANCE_DELETES_MAX {
            self.runs_to_delete.extend(
                self.inventory
                    .remove_deletable(finished, ADVANCE_DELETES_MAX - self.runs_to_delete.len()),
            );
        }
        let may_tell = self.may_report_delivered();
        let has_news = may_tell
            && (self.in_flight.delivered() != self.delivered_sent
                || !self.runs_to_delete.is_empty()
                || !self.released_ids.is_empty());
        if has_news {
            self.report_at.get_or_insert(now + DELIVERED_WRITE_DELAY);
        } else if may_tell {
            // What was to be told is known meanwhile, or was dropped: nobody need wake up for it.
            self.report_at = None;
        }
        let is_full = self.runs_to_delete.len() == ADVANCE_DELETES_MAX
            || self.released_ids.len() >= ADVANCE_DELETES_MAX;
        let is_time =
            at_once || claim.is_some() || is_full || self.report_at.is_some_and(|at| at <= now);
        if !(claim.is_some() || has_news && is_time) {
            return None;
        }
        self.report_at = self.report_at.filter(|_| !has_news);
        let told = if has_news { ADVANCE_DELETES_MAX } else { 0 };
        let ids = self
            .released_ids
            .drain(..self.released_ids.len().min(told))
            .collect();
        let (since, delivered) = (self.ledger_since, self.in_flight.delivered());
        // It is told until the store answers, so it counts as told.
        self.ledger_since = if has_news { delivered } else { since };
        self.delivered_sent = if has_news {
            delivered
        } else {
            self.delivered_sent
        };
        let tally = if has_news {
            self.outcomes
        } else {
            OutcomeCounts::default()
        };
        if has_news {
            self.outcomes = OutcomeCounts::default();
        }
        Some(Advance {
            lease: self.lease.clone(),
            delivered: has_news.then_some(delivered),
            delivered_before: since,
            outcomes: tally,
            deletes: self
                .runs_to_delete
                .drain(..self.runs_to_delete.len().min(told))
                .collect(),
            delivered_ids: ids,
            claim,
            clock_skew_max: skew_max,
        })
    }

    /// The flight to hand over from, which has the least place of all, and the least place of the others, or of what is being claimed.
    pub(crate) fn next_batch(&self) -> Option<(u32, Option<Cursor>)> {
        let (number, until) = next_batch(self.in_flight.numbered())?;
        let Some(asked) = self.pending_claim_place() else {
            return Some((number, until));
        };
        (self.next_unsent_place()? < asked)
            .then(|| (number, Some(until.map_or(asked, |until| until.min(asked)))))
    }

    /// The least place of what is claimed and not handed over yet.
    pub(super) fn next_unsent_place(&self) -> Option<Cursor> {
        self.in_flight
            .iter()
            .filter_map(ClaimedBatch::next_unsent_place)
            .min()
    }

    /// Messages that are claimed and not handed over yet.
    pub(crate) fn unsent_messages(&self) -> usize {
        self.in_flight
            .iter()
            .map(|aloft| aloft.messages.len() - aloft.next_unsent)
            .sum()
    }

    /// Messages that are handed over and not settled.
    pub(crate) fn unacknowledged_messages(&self) -> usize {
        self.in_flight.open_messages() - self.unsent_messages()
    }

    /// Takes complete flights off, and notes what that settles and was not before.
    pub(crate) fn finish_batches(
        &mut self,
        mut tell: impl FnMut(&mut ClaimedBatch, OutcomeCounts),
    ) {
        while let Some(mut aloft) = self.in_flight.pop_complete() {
            let settled = aloft.committed..aloft.messages.len();
            let tally = aloft.outcomes(settled.clone());
            self.released_ids.extend(aloft.released_ids(settled));
            if !(fault!(CountNothingAfterTakeover) && self.previous_owner_claim != Progress::START)
            {
                self.outcomes.add(tally);
            }
            tell(&mut aloft, tally);
        }
    }

    /// Whether the store has been told everything.
    pub(crate) fn is_delivered_reported(&self) -> bool {
        self.in_flight.delivered() == self.delivered_sent
            && self.runs_to_delete.is_empty()
            && self.released_ids.is_empty()
            && !self.has_pending_call()
    }
}

#[cfg(test)]
impl ShardState {
    /// Of a shard that has delivered nothing, and is not loaded yet.
    pub(super) fn for_test(
        slot: u16,
        memory: &Rc<super::load::MemoryBudget>,
        watermark: Watermark,
    ) -> Self {
        let shard =
            crate::model::ShardId::new("orders", crate::model::Partition::new("orders.delayed", 0));
        let state = crate::store::StoredShard {
            identity: SourceIdentity("a".into()),
            watermark,
            claimed: Progress::START,
            delivered: Progress::START,
            lowest_pending: Offset(0),
            pending: watermark.0,
            stored_bytes: 0,
            quarantined: 0,
            forecast: crate::store::Forecast::default(),
            ledger: crate::store::Ledger::default(),
        };
        let origins = OriginFormat::new("prod", &shard);
        let term = LeaseDeadline::new(Instant::now(), Duration::from_secs(3_600));
        let grant = Grant {
            lease: Lease {
                shard,
                token: crate::model::LeaseToken(7),
            },
            deadline: term,
            state,
            start: Progress::START,
        };
        Self::new(grant, slot, origins, memory.open_account(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::CLAIM_AHEAD;
    use crate::model::Level;
    use crate::run::{RunDecoder, RunEncoder};
    use crate::timer::load::MemoryBudget;
    use crate::timer::waking::WakeupInput;

    /// Of a shard in which one message was due so many milliseconds before `wall`, or is after it.
    fn loaded(wall: Timestamp, after: i64, now: Instant) -> ShardState {
        let (memory, offset, watermark) = (MemoryBudget::new(1 << 20), Offset(1), Watermark(2));
        let mut work = ShardState::for_test(1, &memory, watermark);
        let due = Timestamp::from_millis(wall.as_millis() + after);
        let (_, bytes) =
            RunEncoder::new().encode([(Cursor::new(due, offset), &b""[..])].into_iter());
        let (name, slice) = (
            RunName::new("1-1-1-1"),
            Slice {
                level: Level::Hour,
                start: 0,
            },
        );
        let run = RunDecoder::new()
            .decode(name, slice, &bytes)
            .expect("a whole run");
        work.on_load_reply(
            LoadResult::Tail {
                watermark,
                seen: watermark,
                history: Lineage::default(),
                runs: vec![ReadOutcome::Loaded(run)],
            },
            now,
        );
        work.schedule.set_loaded(Cursor::new(due, Offset(2)));
        work
    }

    #[test]
    fn what_is_behind_is_claimed_as_soon_as_it_is_loaded_and_what_lies_ahead_together() {
        let (wall, now, ahead) = (
            Timestamp::from_millis(1_000_000),
            Instant::now(),
            (CLAIM_AHEAD, Duration::ZERO),
        );
        for (after, pause) in [
            (-1, LATE_CLAIM_INTERVAL),
            (0, CLAIM_INTERVAL),
            (20, CLAIM_INTERVAL),
        ] {
            let mut work = loaded(wall, after, now);
            assert!(work.is_claim_due(wall, now, CLAIM_AHEAD), "{after}");
            assert_eq!(
                work.take_due(wall, now, CLAIM_MESSAGES_MAX, ahead)
                    .map(|take| take.messages.len()),
                Some(1),
                "{after}"
            );
            assert!(
                !work.is_claim_due(wall, now + pause, CLAIM_AHEAD),
                "there is nothing left"
            );
            assert_eq!(
                work.no_claim_before.max(work.no_early_claim_before),
                Some(now + pause),
                "{after}"
            );
        }
    }

    #[test]
    fn what_was_asked_to_be_claimed_when_the_work_began_anew_is_taken_again_and_not_handed_over() {
        let (wall, now, ahead) = (
            Timestamp::from_millis(1_000_000),
            Instant::now(),
            (CLAIM_AHEAD, Duration::ZERO),
        );
        for begins_anew in [false, true] {
            let mut work = loaded(wall, 0, now).with_transactions(now);
            work.txn.iter_mut().for_each(|exact| {
                exact.on_opening(1, now);
                exact.on_opened(Progress::START, now);
            });
            let take = work
                .take_due(wall, now, CLAIM_MESSAGES_MAX, ahead)
                .expect("it is due");
            let advance = work
                .next_advance(Some(take.claim), Duration::ZERO, now, false)
                .expect("it claims");
            work.start_call(&advance, Some(take));
            assert!(work.has_claims() && !work.is_delivered_reported());
            let moment = WakeupInput {
                wall,
                now,
                claim_ahead: CLAIM_AHEAD,
                stopping: false,
                store_is_idle: false,
            };
            assert!(work.next_wakeup(&moment) > now, "the answer wakes");
            if begins_anew {
                work.restart_after(Progress::START, now);
            }
            let call = work.take_call().expect("it was asked");
            assert_eq!(
                (
                    call.take.is_none(),
                    work.schedule.taken() == Progress::START
                ),
                (begins_anew, begins_anew)
            );
        }
    }

    #[test]
    fn an_answer_that_was_overtaken_is_not_taken_for_a_store_that_went_back() {
        let (wall, now, ahead) = (
            Timestamp::from_millis(1_000_000),
            Instant::now(),
            (CLAIM_AHEAD, Duration::ZERO),
        );
        for (answered, went_back) in [
            (Watermark(2), false),
            (Watermark(5), false),
            (Watermark(1), true),
        ] {
            let mut work = loaded(wall, 0, now);
            let take = work
                .take_due(wall, now, CLAIM_MESSAGES_MAX, ahead)
                .expect("it is due");
            let advance = work
                .next_advance(Some(take.claim), Duration::ZERO, now, false)
                .expect("it claims");
            work.start_call(&advance, Some(take));
            work.on_load_reply(
                LoadResult::Tail {
                    watermark: Watermark(9),
                    seen: Watermark(9),
                    history: Lineage::default(),
                    runs: Vec::new(),
                },
                now,
            );
            let (tag, call) = (
                work.load_generation(),
                work.take_call().expect("it was asked"),
            );
            work.detect_rollback_by_reply(call.watermark_when_sent, answered, now);
            assert_eq!(work.load_generation() != tag, went_back, "{answered:?}");
        }
    }

    #[test]
    fn what_is_being_claimed_is_not_overtaken_by_what_comes_after_it() {
        let (wall, now) = (Timestamp::from_millis(1_000_000), Instant::now());
        for (asked, goes) in [(-1, false), (1, true)] {
            let ahead = (CLAIM_AHEAD, Duration::ZERO);
            let mut work = loaded(wall, 0, now);
            let take = work
                .take_due(wall, now, CLAIM_MESSAGES_MAX, ahead)
                .expect("it is due");
            work.in_flight
                .push(take.claim, 1, ClaimedBatch::new(take.messages, Vec::new()));
            let take = loaded(wall, asked, now)
                .take_due(wall, now, CLAIM_MESSAGES_MAX, ahead)
                .expect("it is due");
            let advance = work
                .next_advance(Some(take.claim), Duration::ZERO, now, false)
                .expect("it claims");
            work.start_call(&advance, Some(take));
            assert_eq!(work.next_batch().is_some(), goes);
            work.take_call();
            assert!(work.next_batch().is_some(), "it is known what was claimed");
        }
    }

    #[test]
    fn of_what_was_appended_no_more_is_asked_for_than_there_is_room_for_and_it_is_kept_until_it_came()
     {
        let (wall, now, memory) = (
            Timestamp::from_millis(1_000_000),
            Instant::now(),
            MemoryBudget::new(64 << 20),
        );
        let other = memory.open_account();
        let mut work = ShardState::for_test(1, &memory, Watermark(5));
        let asked = |work: &mut ShardState, is_told| {
            if is_told {
                work.on_hint(wall, wall, now);
            }
            let mut asked = || work.next_request(wall, now + TAIL_POLL_INTERVAL_MAX, false);
            let Some(Load::Tail { limit, .. }) = asked()
                .filter(|what| matches!(what, Load::Tail { .. }))
                .or_else(asked)
            else {
                return (0, 0);
            };
            let kept = memory.used_and_reserved();
            work.on_load_reply(
                LoadResult::Tail {
                    watermark: Watermark(5),
                    seen: Watermark(5),
                    history: Lineage::default(),
                    runs: Vec::new(),
                },
                now,
            );
            (limit, kept - memory.used_and_reserved())
        };
        let run = crate::limit::USUAL_RUN_MEMORY_BYTES;
        assert_eq!(
            (asked(&mut work, false), asked(&mut work, true)),
            ((3, 0), (3, 3 * run)),
            "nothing is kept for what is not expected"
        );
        let _all = other.reserve(64 << 20);
        assert_eq!(asked(&mut work, true), (3, 3 * run), "its part");
        let _own = work.memory.reserve(15 << 20);
        assert_eq!(asked(&mut work, true), (1, run), "one batch in any case");
    }

    #[test]
    fn what_an_earlier_work_of_the_shard_asked_for_is_not_taken_for_an_answer() {
        let memory = MemoryBudget::new(1 << 20);
        let (mut earlier, later) = (
            ShardState::for_test(1, &memory, Watermark(5)),
            ShardState::for_test(2, &memory, Watermark(5)),
        );
        for _ in 0..100 {
            assert_ne!(earlier.load_generation(), later.load_generation());
            earlier.reload(Progress::START, Watermark(5), Instant::now());
        }
    }
}
