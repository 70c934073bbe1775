//! Birth and reopening of shards: from what the broker and the store say of a partition, where reading begins, or why it must not. Pure.

use crate::broker::PartitionInfo;
use crate::model::{CommitMetadata, Progress, ShardId, SourceIdentity, Watermark};
use crate::store::{NewShard, Opened, StoredShard};

/// What to do with a gained partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartDecision {
    Read {
        from: Watermark,
        delivered: Progress,
    },
    /// The records in `from..to` are no longer retained and were never stored.
    Gap {
        from: Watermark,
        to: Watermark,
        delivered: Progress,
    },
    /// A person must act.
    Stop(String),
}

/// What is written if the shard is absent: W is the lowest pending offset that was committed for this incarnation of the partition, else
/// the first retained offset.
pub(crate) fn new_shard(
    shard: &ShardId,
    described: &PartitionInfo,
    committed: Option<&CommitMetadata>,
) -> NewShard {
    let is_of_it = |committed: &&CommitMetadata| {
        committed.identity == described.identity || fault!(UseOldCommitAfterRecreation)
    };
    let same = |committed: &&CommitMetadata| {
        is_of_it(committed) && committed.lowest_pending <= described.end_offset
    };
    let (watermark, delivered) = match committed.filter(same) {
        Some(committed) => (Watermark(committed.lowest_pending.0), committed.delivered),
        None => (Watermark(described.first_offset.0), Progress::START),
    };
    NewShard {
        shard: shard.clone(),
        identity: stored_identity(described),
        watermark,
        delivered,
    }
}

/// The identity as it is stored; a broker without identities has the same for all.
fn stored_identity(described: &PartitionInfo) -> SourceIdentity {
    described
        .identity
        .clone()
        .unwrap_or_else(|| SourceIdentity("-".into()))
}

pub(crate) fn decide_start(
    shard: &ShardId,
    described: &PartitionInfo,
    opened: &Opened,
) -> StartDecision {
    let state = match opened {
        Opened::Created(state) | Opened::Existing(state) => state,
        Opened::Incompatible(found) => {
            return StartDecision::Stop(format!(
                "what the store keeps of {shard} is not usable: {found}"
            ));
        }
    };
    if let Some(reason) =
        recreated_reason(shard, described, state).filter(|_| !fault!(IgnoreSourceRecreation))
    {
        return StartDecision::Stop(reason);
    }
    let (from, first) = (state.watermark, Watermark(described.first_offset.0));
    if from < first {
        return StartDecision::Gap {
            from,
            to: first,
            delivered: state.delivered,
        };
    }
    StartDecision::Read {
        from,
        delivered: state.delivered,
    }
}

fn recreated_reason(
    shard: &ShardId,
    described: &PartitionInfo,
    state: &StoredShard,
) -> Option<String> {
    let (topic, route) = (&shard.partition.topic, &shard.route);
    // The topic's id is the same for each of its partitions, and so is what is said.
    let what = if state.identity != stored_identity(described) {
        format!(
            "topic {topic} of route {route} was recreated (its id is {}, what is stored belongs to {})",
            stored_identity(described),
            state.identity
        )
    } else if state.watermark.0 > described.end_offset.0 {
        let (end, watermark) = (described.end_offset, state.watermark);
        format!(
            "partition of {shard} ends at offset {end}, but was read up to {watermark}: it was truncated or recreated"
        )
    } else {
        return None;
    };
    Some(format!(
        "the source {what}. Messages of the old one that wait are still delivered; nothing new is read until you \
         stop the route's processes, run: postdate reset --config FILE --route {route} --topic {topic}, and start them again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Partition, Timestamp};

    fn shard() -> ShardId {
        ShardId::new("orders", Partition::new("orders.delayed", 3))
    }

    fn described(identity: &str, first: u64, end: u64) -> PartitionInfo {
        PartitionInfo {
            identity: Some(SourceIdentity(identity.into())),
            first_offset: Offset(first),
            end_offset: Offset(end),
        }
    }

    fn done() -> Progress {
        Progress::new(
            Cursor::new(Timestamp::from_millis(5), Offset(6)),
            Watermark(9),
        )
    }

    fn state(identity: &str, watermark: u64) -> Opened {
        Opened::Existing(StoredShard {
            identity: SourceIdentity(identity.into()),
            watermark: Watermark(watermark),
            claimed: done(),
            delivered: done(),
            lowest_pending: Offset(0),
            pending: 0,
            stored_bytes: 0,
            quarantined: 0,
            forecast: crate::store::Forecast::default(),
            ledger: crate::store::Ledger::default(),
        })
    }

    #[test]
    fn a_lost_store_is_read_again_from_the_lowest_pending_offset() {
        let committed = CommitMetadata {
            lowest_pending: Offset(7),
            delivered: done(),
            identity: Some(SourceIdentity("a".into())),
        };
        let birth = new_shard(&shard(), &described("a", 2, 90), Some(&committed));
        assert_eq!((birth.watermark, birth.delivered), (Watermark(7), done()));
    }

    #[test]
    fn what_was_committed_for_another_incarnation_does_not_count() {
        for (identity, low) in [("b", 7), ("a", 91)] {
            let committed = CommitMetadata {
                lowest_pending: Offset(low),
                delivered: done(),
                identity: Some(SourceIdentity(identity.into())),
            };
            let birth = new_shard(&shard(), &described("a", 2, 90), Some(&committed));
            assert_eq!(
                (birth.watermark, birth.delivered),
                (Watermark(2), Progress::START)
            );
        }
    }

    #[test]
    fn reading_goes_on_at_the_watermark() {
        let verdict = decide_start(&shard(), &described("a", 2, 90), &state("a", 90));
        assert_eq!(
            verdict,
            StartDecision::Read {
                from: Watermark(90),
                delivered: done()
            }
        );
    }

    #[test]
    fn records_that_are_gone_and_were_never_stored_are_a_gap() {
        let verdict = decide_start(&shard(), &described("a", 20, 90), &state("a", 15));
        assert_eq!(
            verdict,
            StartDecision::Gap {
                from: Watermark(15),
                to: Watermark(20),
                delivered: done()
            }
        );
    }

    #[test]
    fn a_recreated_topic_stops_its_shard_and_says_how_to_reset_it() {
        for (described, opened) in [
            (described("b", 0, 90), state("a", 5)),
            (described("a", 0, 4), state("a", 5)),
        ] {
            let StartDecision::Stop(reason) = decide_start(&shard(), &described, &opened) else {
                panic!("it reads on")
            };
            assert!(
                reason
                    .contains("postdate reset --config FILE --route orders --topic orders.delayed"),
                "{reason}"
            );
        }
    }

    #[test]
    fn a_recreated_topic_is_told_in_the_same_words_by_all_its_partitions() {
        let reason = |index| {
            let shard = ShardId::new("orders", Partition::new("orders.delayed", index));
            decide_start(
                &shard,
                &described("b", index as u64, 90),
                &state("a", 5 + index as u64),
            )
        };
        assert_eq!(reason(0), reason(3));
    }

    #[test]
    fn a_foreign_shard_stops_with_what_was_found() {
        let opened = Opened::Incompatible("layout version 9".into());
        assert!(
            matches!(decide_start(&shard(), &described("a", 0, 4), &opened), StartDecision::Stop(reason) if reason.contains("layout version 9"))
        );
    }
}
