//! Decides how the reading of an assigned partition starts, from what the broker and the store know
//! of it. Pure.

use crate::broker::PartitionInfo;
use crate::model::{
    CommitMetadata, Offset, PositionRules, Progress, RulesHistory, ShardId, SourceIdentity,
    Timestamp, Watermark, other_installation,
};
use crate::store::rules::{NO_HOLD, possibly_delivered};
use crate::store::{NewShard, Opened, StoredShard};
use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartDecision {
    Read {
        from: Watermark,
        delivered: Progress,
    },
    /// The source no longer retains the `missing` records, and they were never stored.
    Gap {
        missing: Range<Watermark>,
        delivered: Progress,
    },
    /// A person must act.
    Stop(String),
}

/// The state to write if the store does not have the shard. W is the committed lowest pending
/// offset, if the commit is for this incarnation of the partition; otherwise `start`. Timers claim
/// no message before the log is read to its present end: a record there may cancel one that is due.
///
/// If there is a commit, the store has lost the shard. Everything that was in the log and is due by
/// now may have been delivered.
pub(super) fn new_shard(
    shard: ShardId,
    info: &PartitionInfo,
    committed: Option<&CommitMetadata>,
    start: Offset,
    now: Timestamp,
) -> NewShard {
    let end = Watermark(info.end_offset.0);
    let (watermark, delivered, lost) = match usable_commit(committed, info) {
        Some(committed) => (
            Watermark(committed.lowest_pending.0),
            committed.delivered,
            possibly_delivered(committed.delivered, end, now),
        ),
        // The log may have changed since it was asked.
        None => (
            match fault!(SkipLogWithoutCommit) {
                true => end,
                false => Watermark(start.clamp(info.first_offset, info.end_offset).0),
            },
            Progress::START,
            Progress::START,
        ),
    };
    NewShard {
        shard,
        creates: true,
        identity: source_identity(info),
        watermark,
        delivered,
        hold: match fault!(CreateWithoutHold) {
            true => NO_HOLD,
            false => end,
        },
        possibly_delivered: match fault!(ForgetLostDeliveries) {
            true => Progress::START,
            false => lost,
        },
        pause: usable_commit(committed, info).and_then(|committed| committed.pause.clone()),
    }
}

/// True if the commit, or this process, knows positions that the store has lost. `stored` is the
/// greatest watermark that the store is known to have had.
pub(super) fn has_lost_writes(state: &StoredShard, known: &NewShard, stored: Watermark) -> bool {
    let is_behind = state.watermark < stored || !state.delivered.includes(known.delivered);
    is_behind && state.identity.is_same_source(&known.identity)
}

/// The greatest watermark that the store is known to have had.
pub(super) fn stored_before(
    info: &PartitionInfo,
    committed: Option<&CommitMetadata>,
    state: &StoredShard,
) -> Watermark {
    let committed = usable_commit(committed, info);
    let stored = committed.map_or(NO_HOLD, |committed| committed.stored);
    stored
        .max(state.watermark)
        .min(Watermark(info.end_offset.0))
}

/// The commit, if it is for this incarnation of the partition.
pub(super) fn usable_commit<'c>(
    committed: Option<&'c CommitMetadata>,
    info: &PartitionInfo,
) -> Option<&'c CommitMetadata> {
    committed.filter(|committed| {
        known_identity(committed.identity.as_ref()).is_same_source(&source_identity(info))
            && committed.lowest_pending <= info.end_offset
    })
}

/// The rules of all offsets for the reading that starts now. `own` are the rules of this process.
///
/// Offsets that may have been read before keep their rules. After an orderly shutdown these are the
/// offsets below the committed end. Otherwise the store may have lost later ones, so `own` begins
/// at the end of the log, which no reader has passed.
pub(super) fn rules_history(
    own: &PositionRules,
    info: &PartitionInfo,
    committed: Option<&CommitMetadata>,
    state: &StoredShard,
    is_created: bool,
) -> RulesHistory {
    let stored_to = state.watermark.max(state.delivered.watermark).offset();
    let Some(committed) = usable_commit(committed, info) else {
        let from = if is_created { Offset(0) } else { stored_to };
        return RulesHistory::default().followed_by(own, from);
    };
    let known = &committed.rules;
    let from = match committed.end {
        Some(end) if stored_to <= end => end,
        _ if known.last() == Some(own) => return known.clone(),
        _ if known.last().is_none() || fault!(NewRulesAtWatermark) => stored_to,
        _ => info.end_offset.max(stored_to),
    };
    known.followed_by(own, from)
}

/// The identity as the store keeps it: `-` for a broker that has no identities.
fn source_identity(info: &PartitionInfo) -> SourceIdentity {
    known_identity(info.identity.as_ref())
}

fn known_identity(identity: Option<&SourceIdentity>) -> SourceIdentity {
    let identity = identity.cloned();
    identity.unwrap_or_else(|| SourceIdentity("-".into()))
}

pub(super) fn decide_start(
    shard: &ShardId,
    info: &PartitionInfo,
    opened: &Opened,
) -> StartDecision {
    let state = match opened {
        Opened::Created(state) | Opened::Existing(state) => state,
        Opened::Absent => {
            return StartDecision::Stop(format!("the store has lost shard {shard} meanwhile"));
        }
        Opened::Incompatible(found) => {
            return StartDecision::Stop(format!(
                "the stored state of shard {shard} is not usable: {found}"
            ));
        }
    };
    if let Some(reason) = recreated_reason(shard, info, state) {
        return StartDecision::Stop(reason);
    }
    let from = state.watermark;
    let first = Watermark(info.first_offset.0);
    let delivered = state.delivered;
    if from < first {
        let missing = from..first;
        StartDecision::Gap { missing, delivered }
    } else {
        StartDecision::Read { from, delivered }
    }
}

/// Why the stored state cannot belong to the partition that the broker has now.
fn recreated_reason(shard: &ShardId, info: &PartitionInfo, state: &StoredShard) -> Option<String> {
    let (topic, route) = (&shard.partition.topic, &shard.route);
    let (id, stored_id) = (source_identity(info), &state.identity);
    // All partitions of a topic have the same id, so all of them give the same reason.
    if !stored_id.may_share_cluster(&id) {
        return Some(other_installation(shard, stored_id, &id));
    }
    let found = if !stored_id.is_same_source(&id) {
        format!(
            "topic {topic} of route {route} was recreated (its id is {id}, the stored state belongs to {stored_id})"
        )
    } else if state.watermark.0 > info.end_offset.0 {
        format!(
            "partition of {shard} ends at offset {}, but was read up to {}: it was truncated or recreated",
            info.end_offset, state.watermark
        )
    } else {
        return None;
    };
    Some(format!(
        "the source {found}. Waiting messages of the old topic are still delivered. To read the new one, stop \
         all processes of the deployment. Then run postdate reset --config FILE --route {route} --topic {topic}, and \
         start them again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Cursor, Dialects, Naming, Partition, RetryKeys, RoutingRules, TargetRules, Timestamp,
        WithoutDelay,
    };
    use std::time::Duration;

    fn shard() -> ShardId {
        ShardId::new("orders", Partition::new("orders.delayed", 3))
    }

    fn info(identity: &str, first: u64, end: u64) -> PartitionInfo {
        PartitionInfo {
            identity: Some(SourceIdentity(identity.into())),
            first_offset: Offset(first),
            end_offset: Offset(end),
        }
    }

    fn delivered() -> Progress {
        Progress::new(
            Cursor::new(Timestamp::from_millis(5), Offset(6)),
            Watermark(9),
        )
    }

    fn stored(identity: &str, watermark: u64) -> StoredShard {
        StoredShard {
            identity: SourceIdentity(identity.into()),
            watermark: Watermark(watermark),
            claimed: delivered(),
            delivered: delivered(),
            hold: NO_HOLD,
            possibly_delivered: Progress::START,
            pause: None,
            lowest_pending: Offset(0),
            slices: Vec::new(),
            quarantined: 0,
            keys: Default::default(),
            ledger: crate::store::Ledger::default(),
        }
    }

    fn existing(identity: &str, watermark: u64) -> Opened {
        Opened::Existing(stored(identity, watermark))
    }

    fn committed(identity: &str, low: u64) -> CommitMetadata {
        CommitMetadata {
            lowest_pending: Offset(low),
            delivered: delivered(),
            stored: Watermark(low),
            identity: Some(SourceIdentity(identity.into())),
            end: None,
            rules: RulesHistory::default(),
            pause: None,
        }
    }

    fn rules(seconds: u64) -> PositionRules {
        PositionRules::of(&RoutingRules {
            targets: TargetRules::new(Naming::Topic, Some("out"), [""; 0], [""; 0]),
            replies: None,
            max_delay: Duration::from_secs(seconds),
            max_retry_wait: Duration::ZERO,
            without_delay: WithoutDelay::Relay,
            on_duplicate: crate::model::OnDuplicate::Replace,
            change_by_origin: false,
            dialects: Dialects::default(),
            is_recurring: false,
            retry_keys: RetryKeys::default(),
        })
    }

    /// Begin of the new rules, for a shard with the watermark 40 in a log that ends at 90. `None`:
    /// the history does not change.
    fn new_rules_begin(
        known: Option<PositionRules>,
        end: Option<u64>,
        is_created: bool,
    ) -> Option<u64> {
        let history = RulesHistory::default();
        let history = known.map_or(history.clone(), |known| {
            history.followed_by(&known, Offset(0))
        });
        let committed = CommitMetadata {
            end: end.map(Offset),
            rules: history.clone(),
            ..committed("a", 7)
        };
        let found = rules_history(
            &rules(1),
            &info("a", 2, 90),
            Some(&committed),
            &stored("a", 40),
            is_created,
        );
        assert_eq!(found.last(), Some(&rules(1)));
        let last = found.epochs().last().map(|epoch| epoch.from);
        last.filter(|_| found != history)
    }

    #[test]
    fn new_rules_begin_behind_everything_that_may_have_been_read_by_the_old_ones() {
        for is_created in [false, true] {
            let begin = |known, end| new_rules_begin(known, end, is_created);
            assert_eq!(begin(Some(rules(1)), None), None);
            assert_eq!(begin(Some(rules(1)), Some(40)), None);
            assert_eq!(begin(Some(rules(2)), Some(40)), Some(40), "an orderly stop");
            assert_eq!(begin(Some(rules(2)), Some(50)), Some(50), "then a rollback");
            assert_eq!(begin(Some(rules(2)), None), Some(90), "a crash");
            assert_eq!(
                begin(Some(rules(2)), Some(39)),
                Some(90),
                "a crash later on"
            );
            assert_eq!(begin(None, None), Some(40), "the old rules are unknown");
        }
    }

    #[test]
    fn without_a_commit_the_rules_of_stored_records_are_unknown() {
        for (is_created, identity, expected) in
            [(true, None, 0), (false, None, 40), (false, Some("b"), 40)]
        {
            let committed = identity.map(|identity| committed(identity, 7));
            let state = stored("a", 40);
            let info = info("a", 2, 90);
            let found = rules_history(&rules(1), &info, committed.as_ref(), &state, is_created);
            let starts: Vec<_> = found.epochs().iter().map(|epoch| epoch.from).collect();
            assert_eq!(starts, [expected]);
        }
    }

    #[test]
    fn a_lost_shard_is_created_at_the_committed_lowest_pending_offset() {
        let committed = committed("a", 7);
        let now = Timestamp::from_millis(9_000);
        let new = new_shard(
            shard(),
            &info("a", 2, 90),
            Some(&committed),
            Offset(30),
            now,
        );
        assert_eq!((new.watermark, new.delivered), (Watermark(7), delivered()));
        let lost = new.possibly_delivered;
        let place = |due, offset| Cursor::new(Timestamp::from_millis(due), Offset(offset));
        assert!(lost.covers(place(9_300, 89)) && lost.covers(Cursor::of_answer(Offset(89))));
        assert!(!lost.covers(place(9_301, 89)) && !lost.covers(place(9_300, 90)));
    }

    #[test]
    fn a_store_behind_the_commit_or_behind_this_process_has_lost_writes() {
        let now = Timestamp::from_millis(9_000);
        let known = |identity| {
            let committed = committed(identity, 7);
            new_shard(
                shard(),
                &info(identity, 2, 90),
                Some(&committed),
                Offset(30),
                now,
            )
        };
        let state = |watermark, delivered| StoredShard {
            delivered,
            ..stored("a", watermark)
        };
        let lost = |identity, watermark, delivered| {
            has_lost_writes(
                &state(watermark, delivered),
                &known(identity),
                Watermark(40),
            )
        };
        assert!(!lost("a", 40, delivered()));
        assert!(lost("a", 39, delivered()));
        assert!(lost("a", 40, Progress::START));
        assert!(!lost("b", 39, Progress::START));
    }

    #[test]
    fn without_a_commit_for_this_incarnation_reading_starts_as_asked() {
        for (identity, low) in [("b", 7), ("a", 91)] {
            let committed = committed(identity, low);
            for (start, expected) in [(1, 2), (2, 2), (30, 30), (91, 90)] {
                let (info, now) = (info("a", 2, 90), Timestamp::from_millis(9_000));
                let new = new_shard(shard(), &info, Some(&committed), Offset(start), now);
                assert_eq!(
                    (new.watermark, new.delivered, new.possibly_delivered),
                    (Watermark(expected), Progress::START, Progress::START)
                );
            }
        }
    }

    #[test]
    fn reading_starts_at_the_watermark() {
        let decision = decide_start(&shard(), &info("a", 2, 90), &existing("a", 90));
        assert_eq!(
            decision,
            StartDecision::Read {
                from: Watermark(90),
                delivered: delivered()
            }
        );
    }

    #[test]
    fn records_that_expired_before_they_were_stored_are_a_gap() {
        let decision = decide_start(&shard(), &info("a", 20, 90), &existing("a", 15));
        assert_eq!(
            decision,
            StartDecision::Gap {
                missing: Watermark(15)..Watermark(20),
                delivered: delivered()
            }
        );
    }

    #[test]
    fn a_recreated_topic_stops_its_shard_and_names_the_reset_command() {
        for (info, opened) in [
            (info("b", 0, 90), existing("a", 5)),
            (info("a", 0, 4), existing("a", 5)),
        ] {
            let StartDecision::Stop(reason) = decide_start(&shard(), &info, &opened) else {
                panic!("expected a stop")
            };
            assert!(
                reason
                    .contains("postdate reset --config FILE --route orders --topic orders.delayed"),
                "{reason}"
            );
        }
    }

    #[test]
    fn a_shard_of_another_cluster_stops_and_names_both_clusters() {
        let decision = decide_start(&shard(), &info("k1:a", 0, 90), &existing("k2:b", 5));
        let StartDecision::Stop(reason) = decision else {
            panic!("expected a stop")
        };
        assert!(reason.contains("another installation"), "{reason}");
        assert!(reason.contains("k1") && reason.contains("k2"), "{reason}");
    }

    #[test]
    fn all_partitions_of_a_recreated_topic_give_the_same_reason() {
        let reason = |index| {
            let shard = ShardId::new("orders", Partition::new("orders.delayed", index));
            decide_start(
                &shard,
                &info("b", index as u64, 90),
                &existing("a", 5 + index as u64),
            )
        };
        assert_eq!(reason(0), reason(3));
    }

    #[test]
    fn an_incompatible_shard_stops_and_names_what_was_found() {
        let opened = Opened::Incompatible("layout version 9".into());
        assert!(
            matches!(decide_start(&shard(), &info("a", 0, 4), &opened), StartDecision::Stop(reason) if reason.contains("layout version 9"))
        );
    }
}
