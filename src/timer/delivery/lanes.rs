//! Selects the client queue (lane) of each shard and limits what the shard puts into it.
//!
//! A client sends in order, so a message waits for everything that its queue already holds. A shard
//! with many due messages therefore uses a second client, the bulk lane, and does not delay the
//! others. A shard changes its lane only when it has no unreported message, because otherwise its
//! messages could overtake each other (G4).
//!
//! Outcome records go by the bulk lane and have a quota of their own. So no message of the fast lane waits behind
//! them, and a topic that does not acknowledge them takes no room from messages.
//!
//! The benchmarks `drain` and `burst` show the gain of two lanes.

use crate::limit::{
    BULK_LANE_MESSAGES_MAX, FAST_LANE_MESSAGES_MAX, LANE_MESSAGES_PER_SHARD_MIN,
    OUTCOME_RECORDS_SENT_MAX, OUTCOME_RECORDS_SENT_PER_SHARD_MIN, SHARD_SENDS_PER_TICK_MAX,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lane {
    #[default]
    Fast,
    /// For shards that have more due messages than their part of the fast lane.
    Bulk,
}

impl Lane {
    /// Returns the number of messages that each of `shards` shards may have in the queue.
    pub(crate) fn quota(self, shards: usize) -> usize {
        let all = match self {
            Self::Fast => FAST_LANE_MESSAGES_MAX,
            Self::Bulk => BULK_LANE_MESSAGES_MAX,
        };
        (all / shards.max(1)).max(LANE_MESSAGES_PER_SHARD_MIN)
    }
}

#[derive(Debug, Default)]
pub(crate) struct LaneState {
    lane: Lane,
    /// Messages that were sent and not reported on.
    unreported: usize,
    /// Outcome records that were sent and not reported on.
    unreported_records: usize,
    /// The last tick could not send all due messages.
    has_more_due: bool,
    /// The quota kept it from sending them. In the fast lane, the shard then sends nothing until
    /// all messages are reported on and it can change its lane.
    is_full: bool,
    /// Only the limit of messages per tick kept it from sending them.
    hit_tick_limit: bool,
}

impl LaneState {
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// True if more messages can be sent at once. Otherwise the shard waits for the client.
    pub(crate) fn hit_tick_limit(&self) -> bool {
        self.hit_tick_limit
    }

    /// Begins a tick: chooses the lane if the shard has no unreported messages.
    pub(crate) fn choose_lane(&mut self) {
        if self.unreported == 0 {
            self.lane = if self.has_more_due {
                Lane::Bulk
            } else {
                Lane::Fast
            };
            self.is_full = false;
        }
    }

    pub(crate) fn room(&self, quota: usize) -> usize {
        match self.lane {
            Lane::Fast if self.is_full => 0,
            _ => quota
                .saturating_sub(self.unreported)
                .min(SHARD_SENDS_PER_TICK_MAX),
        }
    }

    pub(crate) fn on_sent(&mut self, count: usize, quota: usize, has_more_due: bool) {
        self.unreported += count;
        self.has_more_due = has_more_due;
        self.is_full = has_more_due && (self.is_full || self.unreported >= quota);
        self.hit_tick_limit = has_more_due && !self.is_full && count == SHARD_SENDS_PER_TICK_MAX;
    }

    /// A single message was sent again. Such messages are few, so no quota applies.
    pub(crate) fn on_resent(&mut self) {
        self.unreported += 1;
    }

    pub(crate) fn on_reports(&mut self, count: usize) {
        self.unreported = self
            .unreported
            .checked_sub(count)
            .expect("a record is reported on once");
    }

    pub(crate) fn unreported_records(&self) -> usize {
        self.unreported_records
    }

    /// How many outcome records the shard may send now. All shards of the route have `sent` unreported ones.
    pub(crate) fn record_room(&self, sent: usize) -> usize {
        let least = OUTCOME_RECORDS_SENT_PER_SHARD_MIN.saturating_sub(self.unreported_records);
        OUTCOME_RECORDS_SENT_MAX.saturating_sub(sent).max(least)
    }

    pub(crate) fn on_records_sent(&mut self, count: usize) {
        self.unreported_records += count;
    }

    pub(crate) fn on_record_reports(&mut self, count: usize) {
        self.unreported_records = self
            .unreported_records
            .checked_sub(count)
            .expect("a record is reported on once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One tick of a shard with `due` due messages. Returns how many it sent, and by which lane.
    fn tick(state: &mut LaneState, due: usize, quota: usize) -> (usize, Lane) {
        state.choose_lane();
        let room = state.room(quota);
        let count = room.min(due);
        state.on_sent(count, quota, due > room);
        (count, state.lane())
    }

    #[test]
    fn a_shard_with_many_due_messages_changes_to_the_bulk_lane_when_all_is_reported() {
        let mut state = LaneState::default();
        assert_eq!(tick(&mut state, 5_000, 300), (300, Lane::Fast));
        assert_eq!(tick(&mut state, 4_700, 300), (0, Lane::Fast));
        state.on_reports(299);
        assert_eq!(
            tick(&mut state, 4_700, 300),
            (0, Lane::Fast),
            "one is unreported"
        );
        state.on_reports(1);
        assert_eq!(
            tick(&mut state, 4_700, 5_000),
            (SHARD_SENDS_PER_TICK_MAX, Lane::Bulk)
        );
        state.on_reports(SHARD_SENDS_PER_TICK_MAX);
        assert_eq!(
            tick(&mut state, 900, 5_000),
            (900, Lane::Bulk),
            "the tick before left some"
        );
        state.on_reports(900);
        assert_eq!(tick(&mut state, 10, 300), (10, Lane::Fast), "all was sent");
    }

    #[test]
    fn a_shard_within_its_quota_stays_in_the_fast_lane() {
        let mut state = LaneState::default();
        for _ in 0..100 {
            assert_eq!(tick(&mut state, 250, 300), (250, Lane::Fast));
            state.on_reports(250);
        }
    }

    #[test]
    fn messages_beyond_the_limit_of_a_tick_are_sent_by_the_next_tick() {
        let mut state = LaneState::default();
        assert_eq!(
            tick(&mut state, 10_000, 50_000),
            (SHARD_SENDS_PER_TICK_MAX, Lane::Fast)
        );
        assert!(state.hit_tick_limit());
        assert_eq!(tick(&mut state, 0, 50_000), (0, Lane::Fast));
        assert!(!state.hit_tick_limit());
        state.on_sent(3, 50_000, true);
        assert!(!state.hit_tick_limit(), "the client accepted no more");
    }

    #[test]
    fn outcome_records_take_no_room_from_messages() {
        let mut state = LaneState::default();
        let room = state.record_room(0);
        assert_eq!(room, OUTCOME_RECORDS_SENT_MAX);
        state.on_records_sent(room);
        assert_eq!(state.record_room(room), 0);
        let other = LaneState::default().record_room(room);
        assert_eq!(other, OUTCOME_RECORDS_SENT_PER_SHARD_MIN);
        for _ in 0..3 {
            assert_eq!(tick(&mut state, 250, 300), (250, Lane::Fast));
            state.on_reports(250);
        }
        assert_eq!(tick(&mut state, 5_000, 300), (300, Lane::Fast));
        state.on_reports(300);
        let (_, lane) = tick(&mut state, 4_700, 5_000);
        assert_eq!(lane, Lane::Bulk, "no record keeps the shard in its lane");
        state.on_record_reports(room);
        assert_eq!(state.unreported_records(), 0);
    }

    #[test]
    fn the_queue_of_a_client_does_not_grow_with_the_number_of_shards() {
        for (lane, all) in [
            (Lane::Fast, FAST_LANE_MESSAGES_MAX),
            (Lane::Bulk, BULK_LANE_MESSAGES_MAX),
        ] {
            assert_eq!((lane.quota(0), lane.quota(1)), (all, all));
            for shards in 2..=all / LANE_MESSAGES_PER_SHARD_MIN {
                assert!(lane.quota(shards) * shards <= all, "{shards}");
            }
            let quota = lane.quota(10_000);
            assert_eq!(quota, LANE_MESSAGES_PER_SHARD_MIN, "no shard stops");
        }
    }

    proptest! {
        #[test]
        fn the_lane_changes_only_without_unreported_messages_and_no_shard_waits_forever(
            ticks in prop::collection::vec((0usize..20_000, 0usize..20_000, 256usize..9_000), 1..60),
        ) {
            let mut state = LaneState::default();
            let (mut unreported, mut due) = (0, 0);
            for (more, reported, quota) in ticks {
                due += more;
                let before = state.lane();
                let (count, lane) = tick(&mut state, due, quota);
                prop_assert!(unreported == 0 || lane == before, "{unreported} in {before:?}");
                prop_assert!(count == 0 || unreported + count <= quota);
                prop_assert!(count > 0 || due == 0 || unreported > 0, "the shard is stuck");
                due -= count;
                unreported += count;
                let reported = reported.min(unreported);
                state.on_reports(reported);
                unreported -= reported;
            }
        }
    }
}
