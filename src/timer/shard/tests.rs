//! Tests of a shard as a whole: claims, calls to the store, and tail polls.

use super::*;
use crate::limit::{CLAIM_AHEAD, CLAIM_INTERVAL, LATE_CLAIM_INTERVAL, USUAL_RUN_MEMORY_BYTES};
use crate::limit::{CLAIM_MESSAGES_MAX, TAIL_POLL_INTERVAL_MAX};
use crate::model::{LeaseToken, Level, Offset, Partition, Slice};
use crate::run::{RunDecoder, RunEncoder, RunName};
use crate::store::{Forecast, Ledger, Lineage, StoredShard};
use crate::timer::lease::LeaseDeadline;
use crate::timer::load::{MemoryBudget, ReadOutcome};

const WALL: Timestamp = Timestamp::from_millis(1_000_000);

impl ShardState {
    /// A shard that has delivered nothing and is not loaded yet.
    pub(super) fn for_test(slot: u16, memory: &Rc<MemoryBudget>, watermark: Watermark) -> Self {
        let shard = ShardId::new("orders", Partition::new("orders.delayed", 0));
        let origins = OriginFormat::new("prod", &shard);
        let grant = Grant {
            lease: Lease {
                shard,
                token: LeaseToken(7),
            },
            deadline: LeaseDeadline::new(Instant::now(), Duration::from_secs(3_600)),
            state: StoredShard {
                identity: SourceIdentity("a".into()),
                watermark,
                claimed: Progress::START,
                delivered: Progress::START,
                lowest_pending: Offset(0),
                pending: watermark.0,
                stored_bytes: 0,
                quarantined: 0,
                forecast: Forecast::default(),
                ledger: Ledger::default(),
            },
            start: Progress::START,
        };
        Self::new(grant, slot, origins, memory.open_account(), Instant::now())
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
        runs,
    }
}

/// A shard with one message, which is due `after` milliseconds after [`WALL`].
fn loaded(after: i64, now: Instant) -> ShardState {
    let memory = MemoryBudget::new(1 << 20);
    let watermark = Watermark(2);
    let mut state = ShardState::for_test(1, &memory, watermark);
    let due = Timestamp::from_millis(WALL.as_millis() + after);
    let message = (Cursor::new(due, Offset(1)), &b""[..]);
    let (_, bytes) = RunEncoder::new().encode([message].into_iter());
    let slice = Slice {
        level: Level::Hour,
        start: 0,
    };
    let run = RunDecoder::new()
        .decode(RunName::new("1-1-1-1"), slice, &bytes)
        .expect("a valid run");
    state.on_load_reply(tail(watermark, vec![ReadOutcome::Loaded(run)]), now);
    state
        .load
        .runs_mut()
        .mark_loaded_to(Cursor::new(due, Offset(2)));
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
            stopping: false,
            store_is_idle: false,
        };
        assert!(state.next_wakeup(&input) > now, "the reply wakes it");
        if restarts {
            state.restart_after(Progress::START, now);
        }
        let call = state.claim.finish().expect("a call is pending");
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
        let generation = state.load.generation();
        let call = state.claim.finish().expect("a call is pending");
        state.detect_rollback_by_reply(call.watermark_when_sent, watermark, now);
        let has_reloaded = state.load.generation() != generation;
        assert_eq!(has_reloaded, is_rollback, "{watermark:?}");
    }
}

#[test]
fn later_messages_do_not_overtake_a_pending_claim() {
    let now = Instant::now();
    for (after, may_send) in [(-1, false), (1, true)] {
        let mut state = loaded(0, now);
        let taken = state.take_for_test(now).expect("it is due");
        state.on_claimed(taken, Vec::new());
        let taken = loaded(after, now).take_for_test(now).expect("it is due");
        let advance = state
            .next_advance(Some(taken.claim), Duration::ZERO, now, false)
            .expect("it claims");
        state.start_call(&advance, Some(taken));
        let next = state.next_unsent_position().expect("one is claimed");
        let pending = state.claim.pending_position().expect("one is pending");
        assert_eq!(next < pending, may_send);
        state.claim.finish();
        assert_eq!(state.claim.pending_position(), None);
    }
}

#[test]
fn a_tail_poll_reserves_memory_if_it_will_probably_find_messages() {
    let now = Instant::now();
    let memory = MemoryBudget::new(64 << 20);
    let other = memory.open_account();
    let mut state = ShardState::for_test(1, &memory, Watermark(5));
    // Returns the limit of the next tail poll, and the memory that it reserves.
    let poll = |state: &mut ShardState, has_hint| {
        if has_hint {
            state.load.on_hint(WALL, WALL, now);
        }
        let mut request = || state.next_request(WALL, now + TAIL_POLL_INTERVAL_MAX, false);
        let is_tail = |load: &Load| matches!(load, Load::Tail { .. });
        let load = request().filter(is_tail).or_else(request);
        let Some(Load::Tail { limit, .. }) = load else {
            return (0, 0);
        };
        let reserved = memory.used_and_reserved();
        state.on_load_reply(tail(Watermark(5), Vec::new()), now);
        (limit, reserved - memory.used_and_reserved())
    };
    let run = USUAL_RUN_MEMORY_BYTES;
    assert_eq!(poll(&mut state, false), (3, 0), "nothing is expected");
    assert_eq!(poll(&mut state, true), (3, 3 * run));
    let _all = other.reserve(64 << 20);
    assert_eq!(poll(&mut state, true), (3, 3 * run), "its own part");
    let _own = state.load.memory().reserve(15 << 20);
    assert_eq!(poll(&mut state, true), (1, run), "at least one batch");
}

#[test]
fn replies_to_an_earlier_owner_period_do_not_match() {
    let memory = MemoryBudget::new(1 << 20);
    let mut earlier = ShardState::for_test(1, &memory, Watermark(5));
    let later = ShardState::for_test(2, &memory, Watermark(5));
    for _ in 0..100 {
        assert_ne!(earlier.load.generation(), later.load.generation());
        earlier.reload(Progress::START, Watermark(5), Instant::now());
    }
}
