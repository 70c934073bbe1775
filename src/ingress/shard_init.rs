//! Decides how the reading of an assigned partition starts, from what the broker and the store know
//! of it. Pure.

use crate::broker::PartitionInfo;
use crate::model::{
    CommitMetadata, Progress, ShardId, SourceIdentity, Watermark, other_installation,
};
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
/// offset, if the commit is for this incarnation of the partition; otherwise the first retained
/// offset.
pub(super) fn new_shard(
    shard: ShardId,
    info: &PartitionInfo,
    committed: Option<&CommitMetadata>,
) -> NewShard {
    let is_usable = |committed: &&CommitMetadata| {
        known_identity(committed.identity.as_ref()).is_same_source(&source_identity(info))
            && committed.lowest_pending <= info.end_offset
    };
    let (watermark, delivered) = match committed.filter(is_usable) {
        Some(committed) => (Watermark(committed.lowest_pending.0), committed.delivered),
        None => (Watermark(info.first_offset.0), Progress::START),
    };
    NewShard {
        shard,
        identity: source_identity(info),
        watermark,
        delivered,
    }
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
         the route's processes, run: postdate reset --config FILE --route {route} --topic {topic}, and start them again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Partition, Timestamp};

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

    fn existing(identity: &str, watermark: u64) -> Opened {
        Opened::Existing(StoredShard {
            identity: SourceIdentity(identity.into()),
            watermark: Watermark(watermark),
            claimed: delivered(),
            delivered: delivered(),
            lowest_pending: Offset(0),
            slices: Vec::new(),
            quarantined: 0,
            ledger: crate::store::Ledger::default(),
        })
    }

    #[test]
    fn a_lost_shard_is_created_at_the_committed_lowest_pending_offset() {
        let committed = CommitMetadata {
            lowest_pending: Offset(7),
            delivered: delivered(),
            identity: Some(SourceIdentity("a".into())),
        };
        let new = new_shard(shard(), &info("a", 2, 90), Some(&committed));
        assert_eq!((new.watermark, new.delivered), (Watermark(7), delivered()));
    }

    #[test]
    fn a_commit_for_another_incarnation_is_ignored() {
        for (identity, low) in [("b", 7), ("a", 91)] {
            let committed = CommitMetadata {
                lowest_pending: Offset(low),
                delivered: delivered(),
                identity: Some(SourceIdentity(identity.into())),
            };
            let new = new_shard(shard(), &info("a", 2, 90), Some(&committed));
            assert_eq!(
                (new.watermark, new.delivered),
                (Watermark(2), Progress::START)
            );
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
