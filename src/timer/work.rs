//! One shard's work in a timer, as a value: its schedule, what is loaded of it and what must be asked for next, its claims in flight. Decides;
//! the loader and the dispatcher do.

use super::advancing::Call;
use super::claimer::Grant;
use super::filling::Fill;
use super::flying::{Aloft, least};
use super::loader::{Answer, Read, What};
use super::memory::{Account, Reserved, Resident};
use super::poll::Poll;
use super::queue::Queued;
use super::rewriting::Rewriting;
use super::stall::Stall;
use super::term::Term;
use super::transacting::Transacting;
use crate::limit::{
    CLAIM_INTERVAL, CLAIM_MAX, CLAIM_PACE, DELETES_MAX, IN_FLIGHT_SHARD_MAX, POLL_MAX,
    REFUSED_PAUSE, TELL_AFTER,
};
use crate::model::{Claim, Cursor, Identity, Lease, Offset, Origins, Slice, Timestamp, Watermark};
use crate::mutant::{self, Mutant};
use crate::run::Name;
use crate::schedule::{Flights, Inventory, Schedule, Take};
use crate::store::{Advance, History, Tally};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(crate) struct Work {
    pub(crate) lease: Lease,
    /// Names this incarnation of the work to the loader and in tickets.
    pub(crate) slot: u16,
    pub(crate) origins: Origins,
    /// The incarnation of the source that it was granted for.
    pub(super) identity: Identity,
    pub(crate) phase: Phase,
    /// Of an exactly-once shard.
    pub(super) exact: Option<Transacting>,
    pub(super) term: Term,
    /// Its term has run out, and that was said.
    pub(super) is_out: bool,
    pub(crate) flights: Flights<Aloft>,
    pub(super) queued: Queued,
    pub(crate) schedule: Schedule<Resident>,
    /// As the loader saw it last. `None`: nothing is loaded yet, so whatever it is, all that is loaded will be of it.
    pub(super) history: Option<History>,
    pub(super) inventory: Inventory,
    pub(super) memory: Rc<Account>,
    pub(super) rewriting: Rewriting,
    pub(super) stall: Stall,
    /// What of the shard a former owner may have handed over already.
    pub(crate) suspect: Claim,
    /// Replies with another tag were asked for before everything was dropped.
    tag: u64,
    pub(super) fill: Fill,
    /// The lane that follows what is appended.
    pub(super) poll: Poll,
    /// For what was appended, while it is asked for.
    reserved: Option<Reserved>,
    /// The due up to which runs are asked for; what is appended up to it is kept.
    pub(super) horizon: Timestamp,
    /// The pair that the store was last told to be delivered, and knows when it has answered.
    pub(super) told: Claim,
    pub(super) call: Option<Call>,
    /// Nothing is taken before it: the last claim was just now, or was refused.
    pub(super) not_before: Option<Instant>,
    /// Nothing but late messages is taken before it: what is due soon is claimed.
    pub(super) ahead_at: Option<Instant>,
    pub(super) tell_at: Option<Instant>,
    /// The pair up to which the ledger has it, and what was settled since.
    pub(super) counted: Claim,
    pub(super) tally: Tally,
    deletes: Vec<(Slice, Name)>,
    pub(super) ids: Vec<(Box<str>, Cursor)>,
    /// Unreadable runs, to be set aside.
    pub(crate) corrupt: Vec<(Slice, Name)>,
    /// Runs that the last fetch did not find.
    pub(super) missing: Vec<(Slice, Name)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Active,
    /// Another worker is to have the shard: nothing more is taken, and what is claimed is finished, unless that takes too long.
    HandingOver {
        until: Instant,
    },
    /// The lease is gone, or was too late: nothing more is taken, and what is in flight is waited for, though not for ever.
    Leaving {
        until: Instant,
    },
}

impl Work {
    pub(crate) fn new(
        grant: Grant,
        slot: u16,
        origins: Origins,
        memory: Rc<Account>,
        now: Instant,
    ) -> Self {
        let Grant {
            lease,
            term,
            state,
            start,
        } = grant;
        Self {
            lease,
            slot,
            origins,
            identity: state.identity,
            phase: Phase::Active,
            exact: None,
            term,
            is_out: false,
            flights: Flights::new(start),
            queued: Queued::new(),
            schedule: Schedule::new(start, state.watermark),
            history: None,
            inventory: Inventory::default(),
            memory,
            rewriting: Rewriting::new(now),
            stall: Stall::new(now, start),
            suspect: state.claimed,
            // What was asked for by an earlier work of the same shard may still be answered, and speaks of another time.
            tag: u64::from(slot) << 32,
            fill: Fill::Idle,
            poll: Poll::new(now),
            reserved: None,
            horizon: Timestamp::AT_ONCE,
            told: state.delivered,
            call: None,
            not_before: None,
            ahead_at: None,
            tell_at: None,
            counted: start,
            tally: Tally::default(),
            deletes: Vec::new(),
            ids: Vec::new(),
            corrupt: Vec::new(),
            missing: Vec::new(),
        }
    }

    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    /// Whether the shard is this worker's beyond doubt: what is claimed may be handed over.
    pub(crate) fn is_ours(&self, now: Instant) -> bool {
        !matches!(self.phase, Phase::Leaving { .. }) && !self.term.has_run_out(now)
    }

    /// Whether more may be taken.
    pub(super) fn is_taking(&self, now: Instant) -> bool {
        self.phase == Phase::Active && !self.term.has_run_out(now)
    }

    /// Whether somebody waits for the store to know what was delivered.
    pub(crate) fn is_to_be_told(&self) -> bool {
        matches!(self.phase, Phase::HandingOver { .. }) && !self.has_claims()
    }

    /// Whether all that was claimed is done with, and the store knows it.
    pub(crate) fn is_finished(&self) -> bool {
        !self.has_claims() && self.is_told()
    }

    /// Drops what is held and loads it again: the store went back, or a claim was refused.
    pub(crate) fn reload(&mut self, taken: Claim, watermark: Watermark, now: Instant) {
        self.schedule = Schedule::new(taken, watermark);
        self.history = None;
        self.inventory = Inventory::default();
        self.deletes.clear();
        self.fill = Fill::Idle;
        (self.poll, self.reserved) = (Poll::new(now), None);
        self.rewriting = self.rewriting.again(now);
        self.tag += 1;
    }

    /// The claim of what was taken last was refused, for this worker's clock is ahead: it is taken again, after a while.
    pub(crate) fn refused(&mut self, watermark: Watermark, now: Instant) {
        self.reload(self.flights.claimed(), watermark, now);
        self.not_before = Some(now + REFUSED_PAUSE);
    }

    /// Something was appended.
    pub(crate) fn hint(&mut self, least_due: Timestamp, wall: Timestamp, now: Instant) {
        self.poll.hint(least_due, wall, now);
    }

    /// What to ask the loader for now, if anything.
    pub(crate) fn next_request(
        &mut self,
        wall: Timestamp,
        now: Instant,
        others_poll: bool,
    ) -> Option<What> {
        if self.phase != Phase::Active {
            return None;
        }
        self.next_fill(wall)
            .or_else(|| self.next_poll(now, others_poll))
    }

    /// Whether it is time to look for what was appended.
    pub(crate) fn is_polling(&self, now: Instant) -> bool {
        self.phase == Phase::Active && self.poll.is_due(now, false)
    }

    fn next_poll(&mut self, now: Instant, others_poll: bool) -> Option<What> {
        if !self.poll.is_due(now, others_poll) {
            return None;
        }
        let is_backlogged =
            self.schedule.late() > CLAIM_MAX || self.flights.left() >= IN_FLIGHT_SHARD_MAX;
        if is_backlogged && self.memory.is_spent() {
            // What is here goes first. If the tail is cut meanwhile, the shard is loaded again, within the budget.
            self.poll.put_off(now + POLL_MAX);
            return None;
        }
        let (limit, bytes) = self.memory.appended();
        self.reserved = self.poll.is_promising().then(|| self.memory.reserve(bytes));
        let expected = self.poll.begin();
        let keep = if self.memory.is_ample() {
            Timestamp::MAX
        } else {
            self.horizon
        };
        Some(What::Tail {
            after: self.schedule.seen(),
            until: self.horizon,
            keep,
            limit,
            expected,
        })
    }

    /// Takes in what the loader answered. `false`: the store does not know the shard.
    pub(crate) fn take_in(&mut self, answer: Answer, now: Instant) -> bool {
        match answer {
            Answer::Unknown => return false,
            Answer::Broken { watermark } => {
                if mutant::active(Mutant::IgnoresRollback) && watermark < self.schedule.seen() {
                    self.poll.end(false, false, now);
                    self.reserved = None;
                } else if !self.observe(watermark, now) {
                    tracing::info!(shard = %self.lease.shard, "the tail does not reach back far enough: loading again");
                    self.reload(self.schedule.taken(), watermark, now);
                }
            }
            Answer::Tail {
                watermark,
                seen,
                history,
                runs,
            } => {
                if self.follow(watermark, history, now) {
                    return true;
                }
                self.poll
                    .end(seen > self.schedule.seen(), seen < watermark, now);
                self.reserved = None;
                runs.into_iter().for_each(|read| self.merge(read));
                self.schedule.see(seen);
            }
            Answer::List {
                watermark,
                history,
                runs,
                more,
            } => {
                if !self.follow(watermark, history, now) {
                    self.history = Some(history);
                    self.listed(runs, more);
                }
            }
            Answer::Fetch { reads, left } => {
                let missing = reads.iter().filter_map(|read| match read {
                    Read::Gone { slice, name } => Some((*slice, name.clone())),
                    _ => None,
                });
                let missing = missing.collect();
                reads.into_iter().for_each(|read| self.merge(read));
                self.fetched(missing, left, now);
            }
        }
        true
    }

    fn merge(&mut self, read: Read) {
        match read {
            Read::Gone { .. } => {}
            Read::Corrupt { slice, name, why } => {
                tracing::error!(shard = %self.lease.shard, run = %name, least_offset = %name.least_offset(), messages = name.count(),
                    "a stored run is unreadable ({why}): it is set aside in the shard's quarantine, the rest goes on");
                self.corrupt.push((slice, name));
            }
            Read::Run(run) => {
                let stub = run.next_after();
                self.inventory
                    .add(run.name(), run.slice(), run.summary(), stub);
                if let Some(stub) = stub {
                    // It was cut by an older bound than what is loaded since.
                    self.schedule
                        .load_reaches_only(Cursor::new(stub, Offset(0)));
                }
                self.schedule
                    .merge(Rc::new(Resident::new(run, &self.memory)));
            }
        }
    }

    /// Whether claims may be asked for.
    fn is_open(&self) -> bool {
        self.exact.as_ref().is_none_or(Transacting::is_open)
    }

    /// Whether it is this shard's time to claim, and there is something to claim.
    pub(crate) fn is_claiming(&self, wall: Timestamp, now: Instant, ahead: Duration) -> bool {
        let is_time = self.is_taking(now)
            && self
                .not_before
                .max(self.ahead_at)
                .is_none_or(|at| at <= now);
        is_time && self.is_open() && self.first_due().is_some_and(|due| due <= wall.plus(ahead))
    }

    /// Takes what is due, and what is within `ahead`, if there is room for it in flight. It may do so `sooner` than it would by itself.
    pub(crate) fn take(
        &mut self,
        wall: Timestamp,
        now: Instant,
        limit: usize,
        (ahead, sooner): (Duration, Duration),
    ) -> Option<Take<Resident>> {
        let is_late = self
            .schedule
            .late_due()
            .is_some_and(|due| due <= wall.plus(ahead));
        if self.not_before.is_some_and(|at| at > now)
            || !is_late && self.ahead_at.is_some_and(|at| at > now + sooner)
        {
            return None;
        }
        let room = IN_FLIGHT_SHARD_MAX.saturating_sub(self.flights.left());
        if !self.is_taking(now) || !self.is_open() || room == 0 {
            return None;
        }
        let take = self.schedule.take(wall.plus(ahead), limit.min(room))?;
        let (is_small, is_all) = (
            take.messages.len() < CLAIM_MAX / 2,
            take.messages.len() < limit.min(room),
        );
        self.not_before = is_small.then_some(now + CLAIM_PACE);
        // What was cut short for want of room goes on as soon as there is some; what is behind, as soon as more is loaded.
        let is_behind = take
            .messages
            .first()
            .is_some_and(|(resident, at)| resident.run.place(*at as usize).due < wall);
        self.ahead_at =
            (is_small && is_all && !is_behind).then_some(now + CLAIM_INTERVAL.min(ahead));
        Some(take)
    }

    /// What the store is to be told now, along with `claim`; `None`: nothing yet.
    pub(crate) fn advance(
        &mut self,
        claim: Option<Claim>,
        skew_max: Duration,
        now: Instant,
        at_once: bool,
    ) -> Option<Advance> {
        let finished = if mutant::active(Mutant::DeletesEarly) {
            self.schedule.taken()
        } else {
            self.flights.finished()
        };
        if self.deletes.len() < DELETES_MAX {
            self.deletes.extend(
                self.inventory
                    .finished(finished, DELETES_MAX - self.deletes.len()),
            );
        }
        let may_tell = self.may_tell();
        let has_news = may_tell
            && (self.flights.finished() != self.told
                || !self.deletes.is_empty()
                || !self.ids.is_empty());
        if has_news {
            self.tell_at.get_or_insert(now + TELL_AFTER);
        } else if may_tell {
            // What was to be told is known meanwhile, or was dropped: nobody need wake up for it.
            self.tell_at = None;
        }
        let is_full = self.deletes.len() == DELETES_MAX || self.ids.len() >= DELETES_MAX;
        let is_time =
            at_once || claim.is_some() || is_full || self.tell_at.is_some_and(|at| at <= now);
        if !(claim.is_some() || has_news && is_time) {
            return None;
        }
        self.tell_at = self.tell_at.filter(|_| !has_news);
        let told = if has_news { DELETES_MAX } else { 0 };
        let ids = self.ids.drain(..self.ids.len().min(told)).collect();
        let (since, delivered) = (self.counted, self.flights.finished());
        // It is told until the store answers, so it counts as told.
        self.counted = if has_news { delivered } else { since };
        self.told = if has_news { delivered } else { self.told };
        let tally = if has_news {
            self.tally
        } else {
            Tally::default()
        };
        if has_news && !mutant::active(Mutant::TalliesTwice) {
            self.tally = Tally::default();
        }
        Some(Advance {
            lease: self.lease.clone(),
            delivered: has_news.then_some(delivered),
            since,
            tally,
            deletes: self.deletes.drain(..self.deletes.len().min(told)).collect(),
            ids,
            claim,
            skew_max,
        })
    }

    /// The flight to hand over from, which has the least place of all, and the least place of the others, or of what is being claimed.
    pub(crate) fn next_flight(&self) -> Option<(u32, Option<Cursor>)> {
        let (number, until) = least(self.flights.numbered())?;
        let Some(asked) = self.asked_place() else {
            return Some((number, until));
        };
        (self.next_place()? < asked)
            .then(|| (number, Some(until.map_or(asked, |until| until.min(asked)))))
    }

    /// The least place of what is claimed and not handed over yet.
    pub(super) fn next_place(&self) -> Option<Cursor> {
        self.flights.iter().filter_map(Aloft::next_place).min()
    }

    /// Messages that are claimed and not handed over yet.
    pub(crate) fn unsent(&self) -> usize {
        self.flights
            .iter()
            .map(|aloft| aloft.messages.len() - aloft.next)
            .sum()
    }

    /// Messages that are handed over and not settled.
    pub(crate) fn handed(&self) -> usize {
        self.flights.left() - self.unsent()
    }

    /// Takes complete flights off, and notes what that settles and was not before.
    pub(crate) fn land(&mut self, mut tell: impl FnMut(&mut Aloft, Tally)) {
        while let Some(mut aloft) = self.flights.land() {
            let settled = aloft.done..aloft.messages.len();
            let tally = aloft.outcome(settled.clone());
            self.ids.extend(aloft.ids(settled));
            if !(mutant::active(Mutant::TalliesNothing) && self.suspect != Claim::START) {
                self.tally.add(tally);
            }
            tell(&mut aloft, tally);
        }
    }

    /// Whether the store has been told everything.
    pub(crate) fn is_told(&self) -> bool {
        self.flights.finished() == self.told
            && self.deletes.is_empty()
            && self.ids.is_empty()
            && !self.is_calling()
    }
}

#[cfg(test)]
impl Work {
    /// Of a shard that has delivered nothing, and is not loaded yet.
    pub(super) fn begun(
        slot: u16,
        memory: &Rc<super::memory::Memory>,
        watermark: Watermark,
    ) -> Self {
        let shard =
            crate::model::ShardId::new("orders", crate::model::Partition::new("orders.delayed", 0));
        let state = crate::store::State {
            identity: Identity("a".into()),
            watermark,
            claimed: Claim::START,
            delivered: Claim::START,
            lowest_pending: Offset(0),
            pending: watermark.0,
            bytes: 0,
            quarantined: 0,
            forecast: crate::store::Forecast::default(),
            ledger: crate::store::Ledger::default(),
        };
        let origins = Origins::new("prod", &shard);
        let term = Term::new(Instant::now(), Duration::from_secs(3_600));
        let grant = Grant {
            lease: Lease {
                shard,
                token: crate::model::Token(7),
            },
            term,
            state,
            start: Claim::START,
        };
        Self::new(grant, slot, origins, memory.open(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::CLAIM_AHEAD;
    use crate::model::Level;
    use crate::run::{Decoder, Encoder};
    use crate::timer::memory::Memory;
    use crate::timer::waking::Moment;

    /// Of a shard in which one message was due so many milliseconds before `wall`, or is after it.
    fn loaded(wall: Timestamp, after: i64, now: Instant) -> Work {
        let (memory, offset, watermark) = (Memory::new(1 << 20), Offset(1), Watermark(2));
        let mut work = Work::begun(1, &memory, watermark);
        let due = Timestamp::from_millis(wall.as_millis() + after);
        let (_, bytes) = Encoder::new().encode([(Cursor::new(due, offset), &b""[..])].into_iter());
        let (name, slice) = (
            Name::new("1-1-1-1"),
            Slice {
                level: Level::Hour,
                start: 0,
            },
        );
        let run = Decoder::new()
            .decode(name, slice, &bytes)
            .expect("a whole run");
        work.take_in(
            Answer::Tail {
                watermark,
                seen: watermark,
                history: History::default(),
                runs: vec![Read::Run(run)],
            },
            now,
        );
        work.schedule.load_reached(Cursor::new(due, Offset(2)));
        work
    }

    #[test]
    fn what_is_behind_is_claimed_as_soon_as_it_is_loaded_and_what_lies_ahead_together() {
        let (wall, now, ahead) = (
            Timestamp::from_millis(1_000_000),
            Instant::now(),
            (CLAIM_AHEAD, Duration::ZERO),
        );
        for (after, pause) in [(-1, CLAIM_PACE), (0, CLAIM_INTERVAL), (20, CLAIM_INTERVAL)] {
            let mut work = loaded(wall, after, now);
            assert!(work.is_claiming(wall, now, CLAIM_AHEAD), "{after}");
            assert_eq!(
                work.take(wall, now, CLAIM_MAX, ahead)
                    .map(|take| take.messages.len()),
                Some(1),
                "{after}"
            );
            assert!(
                !work.is_claiming(wall, now + pause, CLAIM_AHEAD),
                "there is nothing left"
            );
            assert_eq!(
                work.not_before.max(work.ahead_at),
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
            let mut work = loaded(wall, 0, now).exactly_once(now);
            work.exact.iter_mut().for_each(|exact| {
                exact.opening(1, now);
                exact.opened(Claim::START, now);
            });
            let take = work.take(wall, now, CLAIM_MAX, ahead).expect("it is due");
            let advance = work
                .advance(Some(take.claim), Duration::ZERO, now, false)
                .expect("it claims");
            work.begin_call(&advance, Some(take));
            assert!(work.has_claims() && !work.is_told());
            let moment = Moment {
                wall,
                now,
                ahead: CLAIM_AHEAD,
                stopping: false,
                may_ask: false,
            };
            assert!(work.next_wake(&moment) > now, "the answer wakes");
            if begins_anew {
                work.begin_behind(Claim::START, now);
            }
            let call = work.call_ended().expect("it was asked");
            assert_eq!(
                (call.take.is_none(), work.schedule.taken() == Claim::START),
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
            let take = work.take(wall, now, CLAIM_MAX, ahead).expect("it is due");
            let advance = work
                .advance(Some(take.claim), Duration::ZERO, now, false)
                .expect("it claims");
            work.begin_call(&advance, Some(take));
            work.take_in(
                Answer::Tail {
                    watermark: Watermark(9),
                    seen: Watermark(9),
                    history: History::default(),
                    runs: Vec::new(),
                },
                now,
            );
            let (tag, call) = (work.tag(), work.call_ended().expect("it was asked"));
            work.observe_answer(call.seen, answered, now);
            assert_eq!(work.tag() != tag, went_back, "{answered:?}");
        }
    }

    #[test]
    fn what_is_being_claimed_is_not_overtaken_by_what_comes_after_it() {
        let (wall, now) = (Timestamp::from_millis(1_000_000), Instant::now());
        for (asked, goes) in [(-1, false), (1, true)] {
            let ahead = (CLAIM_AHEAD, Duration::ZERO);
            let mut work = loaded(wall, 0, now);
            let take = work.take(wall, now, CLAIM_MAX, ahead).expect("it is due");
            work.flights
                .take_off(take.claim, 1, Aloft::new(take.messages, Vec::new()));
            let take = loaded(wall, asked, now)
                .take(wall, now, CLAIM_MAX, ahead)
                .expect("it is due");
            let advance = work
                .advance(Some(take.claim), Duration::ZERO, now, false)
                .expect("it claims");
            work.begin_call(&advance, Some(take));
            assert_eq!(work.next_flight().is_some(), goes);
            work.call_ended();
            assert!(work.next_flight().is_some(), "it is known what was claimed");
        }
    }

    #[test]
    fn of_what_was_appended_no_more_is_asked_for_than_there_is_room_for_and_it_is_kept_until_it_came()
     {
        let (wall, now, memory) = (
            Timestamp::from_millis(1_000_000),
            Instant::now(),
            Memory::new(64 << 20),
        );
        let other = memory.open();
        let mut work = Work::begun(1, &memory, Watermark(5));
        let asked = |work: &mut Work, is_told| {
            if is_told {
                work.hint(wall, wall, now);
            }
            let mut asked = || work.next_request(wall, now + POLL_MAX, false);
            let Some(What::Tail { limit, .. }) = asked()
                .filter(|what| matches!(what, What::Tail { .. }))
                .or_else(asked)
            else {
                return (0, 0);
            };
            let kept = memory.taken();
            work.take_in(
                Answer::Tail {
                    watermark: Watermark(5),
                    seen: Watermark(5),
                    history: History::default(),
                    runs: Vec::new(),
                },
                now,
            );
            (limit, kept - memory.taken())
        };
        let run = crate::limit::RUN_HELD_USUAL;
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
        let memory = Memory::new(1 << 20);
        let (mut earlier, later) = (
            Work::begun(1, &memory, Watermark(5)),
            Work::begun(2, &memory, Watermark(5)),
        );
        for _ in 0..100 {
            assert_ne!(earlier.tag(), later.tag());
            earlier.reload(Claim::START, Watermark(5), Instant::now());
        }
    }
}
