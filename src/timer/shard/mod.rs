//! The state of one owned shard: loaded runs, claims, messages in flight, and deliveries. It
//! decides; the dispatcher and the loader act.

mod claim;
pub(crate) mod commit_point;
mod compaction;
mod delivered;
mod hold;
mod load;
mod ownership;
mod prefetch;
mod schedules;
mod stall;
mod tail_poll;
pub(crate) mod txn_state;
mod wakeup;

pub(crate) use claim::PendingCall;
pub(crate) use ownership::{Ownership, ShardPhase};
pub(crate) use wakeup::{WakeupInput, next_wakeup};

use super::delivery::in_flight::ClaimedBatch;
use super::delivery::lanes::LaneState;
use super::delivery::outcome::ShardContext;
use super::lease::Grant;
use super::load::{Load, LoadResult, MemoryAccount, ResidentRun};
use super::quota::rate_hold::{HeldTime, RateHold};
use crate::limit::{RATE_LOADED_AHEAD, TRANSACTIONAL_PRODUCER_OPEN_AHEAD};
use crate::model::{
    Cursor, DeliveredMarker, Lease, OutcomeCounts, Progress, ShardId, SourceIdentity, Timestamp,
    Watermark,
};
use crate::schedule::{InFlightClaims, TakenBatch};
use crate::store::{Advance, RequestEffect};
use claim::ClaimState;
use compaction::CompactionScan;
use delivered::DeliveredState;
use load::ShardLoad;
use schedules::ShardSchedules;
use stall::StallTimer;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;
use txn_state::TxnState;

pub(crate) type ShardStates = BTreeMap<ShardId, ShardState>;

pub(crate) struct ShardState {
    pub(crate) lease: Lease,
    /// Identifies this period of ownership to the loader and in tickets.
    pub(crate) slot: u16,
    pub(crate) context: Rc<ShardContext>,
    /// The identity of the source for which the lease was granted.
    pub(crate) identity: SourceIdentity,
    pub(crate) ownership: Ownership,
    pub(crate) txn: Option<TxnState>,
    pub(crate) in_flight: InFlightClaims<ClaimedBatch>,
    pub(crate) lane: LaneState,
    pub(crate) load: ShardLoad,
    pub(crate) claim: ClaimState,
    pub(crate) delivered: DeliveredState,
    pub(crate) compaction: CompactionScan,
    /// The definitions of a recurring route. `None` before they are read.
    schedules: Option<ShardSchedules>,
    stall: StallTimer,
    pub(crate) rate_hold: RateHold,
    /// The time that counts for the messages of the pending claim.
    pub(crate) held_before_claim: HeldTime,
    /// Cover messages that earlier owners may have delivered: the claims that the store has, and those
    /// that it may have lost.
    earlier: [Progress; 2],
}

impl ShardState {
    pub(crate) fn new(
        grant: Grant,
        slot: u16,
        context: Rc<ShardContext>,
        memory: Rc<MemoryAccount>,
        now: Instant,
    ) -> Self {
        let Grant { start, state, .. } = grant;
        let shard = &grant.lease.shard;
        Self {
            load: ShardLoad::new(shard, slot, start, &state, memory, now),
            lease: grant.lease,
            slot,
            context,
            identity: state.identity,
            ownership: Ownership::new(grant.clock),
            txn: None,
            in_flight: InFlightClaims::new(start),
            lane: LaneState::default(),
            claim: ClaimState::default(),
            delivered: DeliveredState::new(start, state.delivered),
            compaction: CompactionScan::new(now),
            schedules: None,
            stall: StallTimer::new(now, start),
            rate_hold: RateHold::default(),
            held_before_claim: HeldTime::default(),
            earlier: [state.claimed, state.possibly_delivered],
        }
    }

    /// Makes it an exactly-once shard. Its claims never repeat a delivery of the previous owner.
    pub(crate) fn with_transactions(mut self, now: Instant) -> Self {
        self.txn = Some(TxnState::new(self.in_flight.delivered(), now));
        self.earlier = [Progress::START; 2];
        self
    }

    /// Drops everything in memory and loads it again.
    fn reload(&mut self, taken: Progress, watermark: Watermark, now: Instant) {
        self.change_load(now, |load| load.restart(taken, watermark, now));
    }

    /// Changes the load state. If it restarts, the scan for compaction restarts, and runs to delete
    /// are found again when they are listed.
    fn change_load<T>(&mut self, now: Instant, change: impl FnOnce(&mut ShardLoad) -> T) -> T {
        let generation = self.load.generation;
        let result = change(&mut self.load);
        if self.load.generation != generation {
            self.delivered.runs_to_delete.clear();
            self.compaction.restart(now);
        }
        result
    }

    /// The next request for the loader. `joins_batch`: other shards poll their tail anyway.
    pub(crate) fn next_request(
        &mut self,
        wall: Timestamp,
        now: Instant,
        joins_batch: bool,
    ) -> Option<Load> {
        if !self.ownership.is_active() {
            return None;
        }
        let is_sending = self.claim.is_sending(&self.in_flight);
        let load = self.next_prefetch_request(wall, is_sending);
        let is_claim_slow = self.claim.is_slow(&self.in_flight, wall, now);
        // A clock that is ahead of the store claims nothing earlier.
        let claim_time = self.claim_time(wall, now, Duration::ZERO);
        let frees_memory = self.load.frees_memory_soon(is_claim_slow, claim_time);
        load.or_else(|| self.load.next_tail_request(now, joins_batch, frees_memory))
    }

    fn next_prefetch_request(&mut self, wall: Timestamp, has_claims: bool) -> Option<Load> {
        if self.load.is_held() || self.has_enough_for_rate() {
            return None;
        }
        let ShardLoad { prefetch, runs, .. } = &mut self.load;
        prefetch.next_request(&self.lease.shard, runs, &self.compaction, wall, has_claims)
    }

    /// True if the rate of the route lets the messages in memory wait for long. A long backlog then leaves
    /// the memory that all shards share to the others.
    fn has_enough_for_rate(&self) -> bool {
        let Some(rate) = *self.context.route.rate.borrow() else {
            return false;
        };
        let memory = &self.load.runs.memory;
        let enough = u64::from(rate) * RATE_LOADED_AHEAD.as_secs();
        memory.messages() as u64 >= enough
            && !memory.is_within_part()
            && self.load.schedule().has_loaded_messages()
    }

    pub(crate) fn is_tail_poll_due(&self, now: Instant) -> bool {
        self.ownership.is_active() && self.load.tail.is_due(now, false)
    }

    /// Handles a reply of the loader. Returns false if the store does not know the shard.
    pub(crate) fn on_load_reply(&mut self, result: LoadResult, now: Instant) -> bool {
        let is_known = self.change_load(now, |load| load.on_reply(result, now));
        if let Some(run) = self.load.newer.take() {
            self.context
                .route
                .alerts
                .on_blocked_run(&self.lease.shard, &run);
        }
        if std::mem::take(&mut self.load.hold.is_cut_short) {
            tracing::error!(shard = %self.lease.shard,
                "the source cannot be read again, because the store or the quota of the route is full: \
                 delivery continues, and cancelled messages may be delivered. Give the store more memory, \
                 or raise max_waiting");
            self.context.route.metric.holds_cut_short.increment(1);
        }
        is_known
    }

    pub(crate) fn may_claim(&self, now: Instant) -> bool {
        self.ownership.may_claim(now) && self.txn.as_ref().is_none_or(TxnState::may_claim)
    }

    /// The time by which messages are claimed. It is this worker's own time, but at most `lead` ahead
    /// of the store's time, because the store refuses claims that are too far ahead of its clock.
    pub(crate) fn claim_time(&self, wall: Timestamp, now: Instant, lead: Duration) -> Timestamp {
        let latest = self.ownership.clock.store_time(now).plus(lead);
        if fault!(ClaimByOwnClock) {
            return wall;
        }
        wall.min(latest)
    }

    /// True if it is time to claim and a message is due within `ahead`.
    pub(crate) fn is_claim_due(&self, wall: Timestamp, now: Instant, ahead: Duration) -> bool {
        self.may_claim(now)
            && self.claim.earliest().is_none_or(|at| at <= now)
            && self.next_due().is_some_and(|due| due <= wall.plus(ahead))
    }

    /// The next call to the store, with `claim` if there is one. `None` if there is nothing to say.
    /// `at_once`: report deliveries without waiting for a claim.
    pub(crate) fn next_advance(
        &mut self,
        claim: Option<Progress>,
        clock_skew_max: Duration,
        now: Instant,
        at_once: bool,
    ) -> Option<Advance> {
        let delivered = self.in_flight.delivered();
        let deletable = if fault!(DeleteRunsAtClaim) {
            self.load.schedule().taken()
        } else {
            delivered
        };
        self.delivered
            .collect_deletes(&mut self.load.runs.index, deletable);
        let at_once = at_once || claim.is_some();
        let reports =
            self.may_report_delivered() && self.delivered.is_report_due(delivered, at_once, now);
        if claim.is_none() && !reports {
            return None;
        }
        let mut advance = Advance {
            lease: self.lease.clone(),
            delivered: None,
            delivered_before: self.delivered.ledger_pair,
            outcomes: OutcomeCounts::default(),
            occurrences: 0,
            deletes: Vec::new(),
            delivered_ids: Vec::new(),
            claimed_answers: Vec::new(),
            delivered_answers: Vec::new(),
            claim,
            seen: self.load.schedule().seen(),
            clock_skew_max,
        };
        if reports {
            self.delivered.report(delivered, &mut advance);
        }
        Some(advance)
    }

    pub(crate) fn start_call(&mut self, advance: &Advance, taken: Option<TakenBatch<ResidentRun>>) {
        // Late messages come first, by offset. The others follow by position.
        let first = taken
            .iter()
            .flat_map(|taken| taken.messages.iter().take(taken.late_count + 1));
        self.claim.pending = Some(PendingCall {
            reports_delivered: advance.delivered.is_some(),
            least_place: first.map(|(run, at)| run.run.place(*at as usize)).min(),
            taken,
            watermark_when_sent: self.load.schedule().seen(),
        });
    }

    /// The store has accepted a claim. Returns how many of its messages the previous owner may have
    /// delivered.
    pub(crate) fn on_claimed(
        &mut self,
        taken: TakenBatch<ResidentRun>,
        cancelled: Vec<Cursor>,
        effects: Vec<RequestEffect>,
        now: Instant,
    ) -> usize {
        let count = taken.messages.len();
        let positions = taken.messages.iter();
        let places = positions.map(|(run, at)| run.run.place(*at as usize));
        let possible_duplicates = places
            .filter(|place| self.earlier.iter().any(|pair| pair.covers(*place)))
            .count();
        let mut batch = ClaimedBatch::new(taken.messages, cancelled, effects, now);
        batch.held_by_rate = self.held_before_claim;
        batch.set_pause(self.load.pause());
        if self.context.route.rules.is_recurring {
            batch.set_start(taken.start);
        }
        self.in_flight.push(taken.claim, count, batch);
        possible_duplicates
    }

    /// Checks the watermark that came with the answer to a call. The loader may have seen a greater
    /// one that was stored later.
    pub(crate) fn detect_rollback_by_reply(
        &mut self,
        watermark_when_sent: Watermark,
        watermark: Watermark,
        now: Instant,
    ) {
        if watermark < watermark_when_sent {
            self.change_load(now, |load| load.detect_rollback(watermark, None, now));
        }
    }

    /// Messages that are claimed or about to be, and not acknowledged.
    pub(crate) fn claimed_messages(&self) -> usize {
        self.undelivered_messages() + self.claim.pending_messages()
    }

    /// Messages that are delivered, and wait only for their outcome records. No limit counts them, so that a topic
    /// for audits holds nothing up.
    pub(crate) fn owing_messages(&self) -> usize {
        let owing = self.in_flight.iter().map(ClaimedBatch::owing_messages);
        owing.sum()
    }

    /// Claimed messages that are not complete, without those that wait only for their outcome records.
    pub(crate) fn undelivered_messages(&self) -> usize {
        self.in_flight.open_messages() - self.owing_messages()
    }

    /// Claimed messages that wait for another message. They go out one by one, as the other ones do.
    pub(crate) fn waiting_messages(&self) -> usize {
        let waiting = self.in_flight.iter().map(ClaimedBatch::waiting_messages);
        waiting.sum()
    }

    /// True if a message is claimed or about to be.
    pub(crate) fn has_claims(&self) -> bool {
        !self.in_flight.is_empty() || self.claim.is_claiming()
    }

    pub(crate) fn next_unsent_place(&self) -> Option<Cursor> {
        let places = self.in_flight.iter().filter_map(ClaimedBatch::next_place);
        places.min()
    }

    pub(crate) fn unsent_messages(&self) -> usize {
        let unsent = self.in_flight.iter().map(ClaimedBatch::unsent_messages);
        unsent.sum()
    }

    /// Messages that were sent, and whose delivery is unknown.
    pub(crate) fn unacknowledged_messages(&self) -> usize {
        self.undelivered_messages() - self.unsent_messages()
    }

    /// Removes complete batches from the front and counts their outcomes. Calls `on_finished` for
    /// each.
    pub(crate) fn finish_batches(
        &mut self,
        mut on_finished: impl FnMut(&mut ClaimedBatch, OutcomeCounts),
    ) {
        while let Some(mut batch) = self.in_flight.pop_complete() {
            let rest = batch.not_committed();
            let outcomes = batch.outcomes(rest.clone());
            let mut counted = outcomes;
            if fault!(CountNothingAfterTakeover) && self.earlier[0] != Progress::START {
                counted = OutcomeCounts::default();
            }
            self.delivered.add(counted, &self.context, &batch, rest);
            on_finished(&mut batch, outcomes);
        }
    }

    /// True if a handover waits until the store knows the delivered pair.
    pub(crate) fn must_report_delivered(&self) -> bool {
        matches!(self.ownership.phase, ShardPhase::HandingOver { .. }) && !self.has_claims()
    }

    /// True if the store knows everything that is delivered.
    pub(crate) fn is_delivered_reported(&self) -> bool {
        self.delivered.is_sent(self.in_flight.delivered()) && self.claim.pending.is_none()
    }

    /// True if all claimed messages are delivered and the store knows it.
    pub(crate) fn is_drained(&self) -> bool {
        !self.has_claims() && self.is_delivered_reported()
    }

    /// True if the delivered pair may be reported. A commit counts from the last reported pair, so
    /// the pair must not change while the result of a commit is unknown.
    fn may_report_delivered(&self) -> bool {
        !self.txn.as_ref().is_some_and(|txn| txn.commit_in_doubt) || fault!(AcknowledgeDuringCommit)
    }

    /// The marker of a transaction with messages of the first `batches` batches. It has the outcomes
    /// that the store does not know, with those of the transaction.
    pub(crate) fn marker(&self, pair: Progress, batches: usize) -> DeliveredMarker {
        let mut marker = DeliveredMarker {
            delivered: pair,
            identity: self.identity.clone(),
            ledger_pair: self.delivered.ledger_pair,
            uncounted: self.delivered.outcomes,
            uncounted_occurrences: self.delivered.occurrences,
        };
        for batch in self.in_flight.iter().take(batches) {
            let in_transaction = batch.in_transaction();
            marker.uncounted.add(batch.outcomes(in_transaction.clone()));
            marker.uncounted_occurrences += batch.occurrences(in_transaction);
        }
        marker
    }

    /// A transaction was committed with the marker `pair`. It had messages of the first `batches`
    /// batches. Calls `on_finished` for each part of a batch that is delivered now.
    pub(crate) fn finish_committed(
        &mut self,
        batches: usize,
        pair: Progress,
        mut on_finished: impl FnMut(&mut ClaimedBatch, OutcomeCounts),
    ) {
        for number in self.in_flight.numbers().take(batches) {
            let batch = self.in_flight.get_mut(number);
            let batch = batch.expect("the batch is in flight");
            let committed = batch.in_transaction();
            let count = committed.len();
            let outcomes = batch.outcomes(committed.clone());
            self.delivered
                .add(outcomes, &self.context, batch, committed);
            on_finished(batch, outcomes);
            batch.mark_committed();
            self.in_flight.complete(number, count);
        }
        self.in_flight.advance_delivered(pair);
        self.finish_batches(on_finished);
    }

    /// Forgets all claims and starts again after `pair`, which is delivered.
    pub(crate) fn restart_after(&mut self, pair: Progress, now: Instant) {
        if pair == self.load.schedule().claimed() && !self.has_claims() {
            return;
        }
        if pair != self.in_flight.delivered() {
            // A commit that this process knows nothing about has delivered the messages in between.
            // Their number is unknown.
            self.delivered.ledger_pair = pair;
        }
        self.in_flight = InFlightClaims::new(pair);
        self.claim.cancel();
        self.reload(pair, self.load.schedule().seen(), now);
    }

    /// Takes over the counts in the marker of a previous owner, if they count from the pair in the
    /// store.
    pub(crate) fn adopt_uncounted(&mut self, marker: &DeliveredMarker) {
        if marker.ledger_pair == self.delivered.sent {
            self.delivered.ledger_pair = marker.ledger_pair;
            self.delivered.outcomes = marker.uncounted;
            self.delivered.occurrences = marker.uncounted_occurrences;
        }
    }

    /// The transaction was aborted: its messages are sent again.
    pub(crate) fn rewind_uncommitted(&mut self) {
        if !fault!(ForgetAbortedMessages) {
            self.in_flight
                .iter_mut()
                .for_each(ClaimedBatch::rewind_uncommitted);
        }
    }

    /// The next due time in memory, except of messages that are due at once, and of late ones behind
    /// the first.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let messages = self.load.schedule().next_due(Timestamp::AT_ONCE);
        let dues = [messages, self.next_occurrence_due()];
        dues.into_iter().flatten().min()
    }

    /// True if a message is claimed, late, or due at `until` or before.
    fn has_work_until(&self, until: Timestamp) -> bool {
        self.has_claims()
            || self.load.schedule().late_count() > 0
            || self.next_due().is_some_and(|due| due <= until)
    }

    /// True if a message is claimed, or due so soon that the producer should be open.
    pub(crate) fn has_work_soon(&self, wall: Timestamp) -> bool {
        self.has_work_until(wall.plus(TRANSACTIONAL_PRODUCER_OPEN_AHEAD))
    }

    /// Returns the time since the last progress of a shard that has due messages, or zero.
    pub(crate) fn stalled_for(&mut self, wall: Timestamp, now: Instant) -> Duration {
        let is_held_by_rate = self.rate_hold.is_active(now) && !self.has_claims();
        let has_work = self.has_work_until(wall) && !is_held_by_rate;
        let open_messages = self.in_flight.open_messages();
        self.stall
            .observe(self.in_flight.delivered(), open_messages, has_work, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{CLAIM_AHEAD, CLAIM_INTERVAL, LATE_CLAIM_INTERVAL, USUAL_RUN_MEMORY_BYTES};
    use crate::limit::{CLAIM_MESSAGES_MAX, TAIL_POLL_INTERVAL};
    use crate::membership::StoreTime;
    use crate::model::{LeaseToken, Level, Offset, Partition, Slice};
    use crate::run::{RunDecoder, RunEncoder, RunError, RunName};
    use crate::store::{Ledger, Lineage, StoredShard};
    use crate::timer::lease::LeaseClock;
    use crate::timer::load::{BlockedRun, MemoryBudget, ReadOutcome};
    use crate::timer::shard::load::ResidentRuns;

    const WALL: Timestamp = Timestamp::from_millis(1_000_000);

    impl ShardState {
        /// A shard that has delivered nothing and is not loaded yet.
        pub(super) fn for_test(slot: u16, memory: &Rc<MemoryBudget>, watermark: Watermark) -> Self {
            let shard = ShardId::new("orders", Partition::new("orders.delayed", 0));
            let context = Rc::new(ShardContext::for_test(shard.clone()));
            let grant = Grant {
                lease: Lease {
                    shard,
                    token: LeaseToken::for_test(7),
                },
                clock: LeaseClock::for_test(Instant::now()),
                state: StoredShard {
                    identity: SourceIdentity("a".into()),
                    watermark,
                    claimed: Progress::START,
                    delivered: Progress::START,
                    hold: Watermark(0),
                    possibly_delivered: Progress::START,
                    pause: None,
                    lowest_pending: Offset(0),
                    slices: Vec::new(),
                    quarantined: 0,
                    keys: Default::default(),
                    ledger: Ledger::default(),
                },
                start: Progress::START,
            };
            Self::new(grant, slot, context, memory.open_account(), Instant::now())
        }

        fn take_for_test(&mut self, now: Instant) -> Option<TakenBatch<ResidentRun>> {
            self.take_due(WALL, now, CLAIM_MESSAGES_MAX, CLAIM_AHEAD, Duration::ZERO)
        }

        /// Takes the due messages and sends their claim.
        fn claim_for_test(&mut self, now: Instant) {
            let taken = self.take_for_test(now).expect("it is due");
            let advance = self
                .next_advance(Some(taken.claim), Duration::ZERO, now, false)
                .expect("it claims");
            self.start_call(&advance, Some(taken));
        }
    }

    fn tail(watermark: Watermark, runs: Vec<ReadOutcome>) -> LoadResult {
        LoadResult::Tail {
            watermark,
            complete_to: watermark,
            lineage: Lineage::default(),
            hold: None,
            pause: None,
            runs,
        }
    }

    /// A shard with one message, which is due `after` milliseconds after [`WALL`].
    fn loaded(after: i64, now: Instant) -> ShardState {
        loaded_within(1 << 20, Watermark(0), after, now)
    }

    /// The shard has claimed up to `claimed`, at the least due time.
    fn loaded_within(
        memory_bytes: usize,
        claimed: Watermark,
        after: i64,
        now: Instant,
    ) -> ShardState {
        let memory = MemoryBudget::new(memory_bytes);
        let watermark = Watermark(2);
        let mut state = ShardState::for_test(1, &memory, watermark);
        let claimed = Progress::new(Progress::START.cursor, claimed);
        state.load.runs = ResidentRuns::new(claimed, watermark, state.load.runs.memory.clone());
        let due = Timestamp::from_millis(WALL.as_millis() + after);
        let message = (Cursor::new(due, Offset(1)), &b""[..]);
        let (_, bytes) = RunEncoder::new().encode([message].into_iter());
        let slice = Slice {
            level: Level::Hour,
            start: 0,
        };
        let run = RunDecoder::plain()
            .decode(&state.lease.shard, RunName::new("1-1-1-1"), slice, &bytes)
            .expect("a valid run");
        state.on_load_reply(tail(watermark, vec![ReadOutcome::Loaded(run)]), now);
        state.load.runs.mark_loaded_to(Cursor::new(due, Offset(2)));
        state
    }

    #[test]
    fn late_messages_are_claimed_as_soon_as_they_are_loaded_and_others_together() {
        let now = Instant::now();
        for (after, pause) in [
            (-1, LATE_CLAIM_INTERVAL),
            (0, CLAIM_INTERVAL),
            (20, CLAIM_INTERVAL),
        ] {
            let mut state = loaded(after, now);
            assert!(state.is_claim_due(WALL, now, CLAIM_AHEAD), "{after}");
            let taken = state.take_for_test(now).map(|taken| taken.messages.len());
            assert_eq!(taken, Some(1), "{after}");
            assert!(
                !state.is_claim_due(WALL, now + pause, CLAIM_AHEAD),
                "nothing is left"
            );
            assert_eq!(state.claim.earliest(), Some(now + pause), "{after}");
        }
    }

    #[test]
    fn with_full_memory_nothing_is_loaded_until_due_messages_are_sent() {
        let now = Instant::now();
        let loads_tail = |memory_bytes, after, claimed, is_claiming: bool| {
            let mut state = loaded_within(memory_bytes, Watermark(claimed), after, now);
            if is_claiming {
                state.claim_for_test(now);
            }
            let is_claim_slow = state.claim.is_slow(&state.in_flight, WALL, now);
            let load = &mut state.load;
            let frees_memory = load.frees_memory_soon(is_claim_slow, WALL);
            load.next_tail_request(now + TAIL_POLL_INTERVAL, false, frees_memory)
                .is_some()
        };
        let overdue = -(TAIL_POLL_INTERVAL.as_millis() as i64);
        for is_claiming in [false, true] {
            let loads = |memory_bytes, after| loads_tail(memory_bytes, after, 0, is_claiming);
            assert!(!loads(1, overdue), "it goes out first");
            assert!(loads(1 << 20, overdue), "there is memory");
            assert!(loads(1, overdue + 1), "the tail may be due earlier");
        }
        let store_is_behind = loads_tail(1, overdue, 3, false);
        assert!(
            store_is_behind,
            "only the tail shows when it may be claimed"
        );
    }

    /// The messages in memory are due by the worker's clock, but they cannot be claimed for an hour. The
    /// tail may be due earlier.
    #[test]
    fn with_full_memory_a_worker_whose_clock_is_ahead_of_the_store_reads_on() {
        let now = Instant::now();
        for (store_time, reads) in [(WALL, false), (Timestamp::from_millis(0), true)] {
            let overdue = -(TAIL_POLL_INTERVAL.as_millis() as i64);
            let mut state = loaded_within(1, Watermark(0), overdue, now);
            state.ownership.clock.set_store_time(StoreTime {
                time: store_time,
                answered: now,
            });
            let mut request = || state.next_request(WALL, now + TAIL_POLL_INTERVAL, false);
            // The first one may list runs.
            let requests = [request(), request()];
            let is_tail = |it: &Option<Load>| matches!(it, Some(Load::Tail(_)));
            assert_eq!(requests.iter().any(is_tail), reads);
        }
    }

    #[test]
    fn a_claim_counts_what_earlier_owners_may_have_delivered() {
        let now = Instant::now();
        let pair = |watermark| {
            let cursor = Cursor::new(WALL, Offset::MAX);
            Progress::new(cursor, Watermark(watermark))
        };
        let none = Progress::START;
        for (earlier, expected) in [
            ([none, none], 0),
            ([pair(2), none], 1),
            ([none, pair(2)], 1),
            ([pair(2), pair(2)], 1),
            ([none, pair(1)], 0),
        ] {
            let mut state = loaded(0, now);
            state.earlier = earlier;
            let taken = state.take_for_test(now).expect("it is due");
            let counted = state.on_claimed(taken, Vec::new(), Vec::new(), now);
            assert_eq!(counted, expected);
        }
    }

    #[test]
    fn a_pending_claim_is_cancelled_when_the_shard_restarts() {
        let now = Instant::now();
        for restarts in [false, true] {
            let mut state = loaded(0, now).with_transactions(now);
            let txn = state.txn.as_mut().expect("an exactly-once shard");
            txn.on_opening(1, now);
            txn.on_opened(Progress::START, now);
            state.claim_for_test(now);
            assert!(state.has_claims() && !state.is_delivered_reported());
            let input = WakeupInput {
                wall: WALL,
                now,
                claim_ahead: CLAIM_AHEAD,
                store_lead: CLAIM_AHEAD,
                stopping: false,
                may_call_store: false,
            };
            assert!(next_wakeup(&state, &input) > now, "the reply wakes it");
            if restarts {
                state.restart_after(Progress::START, now);
            }
            let call = state.claim.pending.take().expect("a call is pending");
            assert_eq!(call.taken.is_none(), restarts);
            let taken = state.load.schedule().taken();
            assert_eq!(taken == Progress::START, restarts);
        }
    }

    #[test]
    fn a_reply_that_was_overtaken_is_not_mistaken_for_a_rollback() {
        let now = Instant::now();
        for (watermark, is_rollback) in [
            (Watermark(2), false),
            (Watermark(5), false),
            (Watermark(1), true),
        ] {
            let mut state = loaded(0, now);
            state.claim_for_test(now);
            state.on_load_reply(tail(Watermark(9), Vec::new()), now);
            let generation = state.load.generation;
            let call = state.claim.pending.take().expect("a call is pending");
            state.detect_rollback_by_reply(call.watermark_when_sent, watermark, now);
            let has_reloaded = state.load.generation != generation;
            assert_eq!(has_reloaded, is_rollback, "{watermark:?}");
        }
    }

    #[test]
    fn no_claim_covers_a_newer_run_that_the_tail_has_shown() {
        let now = Instant::now();
        let mut state = loaded(0, now);
        let run = BlockedRun {
            name: RunName::new("1-2-1-2"),
            why: RunError::UnknownVersion(3),
        };
        state.on_load_reply(LoadResult::BlockedTail(run), now);
        let taken = state.take_for_test(now).expect("a known message is due");
        assert_eq!(taken.claim.watermark, Watermark(2));
        let later = now + 10 * TAIL_POLL_INTERVAL;
        assert!(!state.is_tail_poll_due(later), "it would show the same run");
    }

    #[test]
    fn later_messages_do_not_overtake_a_pending_claim() {
        let now = Instant::now();
        for (after, may_send) in [(-1, false), (1, true)] {
            let mut state = loaded(0, now);
            let taken = state.take_for_test(now).expect("it is due");
            state.on_claimed(taken, Vec::new(), Vec::new(), now);
            let taken = loaded(after, now).take_for_test(now).expect("it is due");
            let advance = state
                .next_advance(Some(taken.claim), Duration::ZERO, now, false)
                .expect("it claims");
            state.start_call(&advance, Some(taken));
            let next = state.next_unsent_place().expect("one is claimed");
            let pending = state.claim.pending_place().expect("one is pending");
            assert_eq!(next < pending, may_send);
            state.claim.pending.take();
            assert_eq!(state.claim.pending_place(), None);
        }
    }

    #[test]
    fn a_tail_poll_reserves_memory_if_it_will_probably_find_messages() {
        let now = Instant::now();
        let memory = MemoryBudget::new(256 << 20);
        let other = memory.open_account();
        let mut state = ShardState::for_test(1, &memory, Watermark(5));
        // Returns the limit of the next tail poll, and the memory that it reserves.
        let poll = |state: &mut ShardState, has_hint| {
            if has_hint {
                state.load.tail.on_hint(WALL, WALL, now);
            }
            let mut request = || state.next_request(WALL, now + TAIL_POLL_INTERVAL, false);
            let is_tail = |load: &Load| matches!(load, Load::Tail(_));
            let load = request().filter(is_tail).or_else(request);
            let Some(Load::Tail(poll)) = load else {
                return (0, 0);
            };
            let limit = poll.call.limit;
            let reserved = memory.used_and_reserved();
            state.on_load_reply(tail(Watermark(5), Vec::new()), now);
            (limit, reserved - memory.used_and_reserved())
        };
        let run = USUAL_RUN_MEMORY_BYTES;
        assert_eq!(poll(&mut state, false), (3, 0), "nothing is expected");
        assert_eq!(poll(&mut state, true), (3, 3 * run));
        let _all = other.reserve(256 << 20);
        assert_eq!(poll(&mut state, true), (3, 3 * run), "its own part");
        let _own = state.load.runs.memory.reserve(60 << 20);
        assert_eq!(poll(&mut state, true), (1, run), "at least one batch");
    }

    #[test]
    fn replies_to_an_earlier_owner_period_do_not_match() {
        let memory = MemoryBudget::new(1 << 20);
        let mut earlier = ShardState::for_test(1, &memory, Watermark(5));
        let later = ShardState::for_test(2, &memory, Watermark(5));
        for _ in 0..100 {
            assert_ne!(earlier.load.generation, later.load.generation);
            earlier.reload(Progress::START, Watermark(5), Instant::now());
        }
    }
}
