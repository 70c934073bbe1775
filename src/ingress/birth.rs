//! Birth and reopening of shards: from what the broker and the store say of a partition, where reading begins, or why it must not. Pure.

use crate::broker::Described;
use crate::model::{Claim, Committed, Identity, ShardId, Watermark};
use crate::mutant::{self, Mutant};
use crate::store::{Birth, Opened, State};

/// What to do with a gained partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Read {
        from: Watermark,
        delivered: Claim,
    },
    /// The records in `from..to` are no longer retained and were never stored.
    Gap {
        from: Watermark,
        to: Watermark,
        delivered: Claim,
    },
    /// A person must act.
    Stop(String),
}

/// What is written if the shard is absent: W is the lowest pending offset that was committed for this incarnation of the partition, else
/// the first retained offset.
pub(crate) fn birth(
    shard: &ShardId,
    described: &Described,
    committed: Option<&Committed>,
) -> Birth {
    let is_of_it = |committed: &&Committed| {
        committed.identity == described.identity || mutant::active(Mutant::TakesOldCommit)
    };
    let same =
        |committed: &&Committed| is_of_it(committed) && committed.lowest_pending <= described.end;
    let (watermark, delivered) = match committed.filter(same) {
        Some(committed) => (Watermark(committed.lowest_pending.0), committed.delivered),
        None => (Watermark(described.first.0), Claim::START),
    };
    Birth {
        shard: shard.clone(),
        identity: stored(described),
        watermark,
        delivered,
    }
}

/// The identity as it is stored; a broker without identities has the same for all.
fn stored(described: &Described) -> Identity {
    described
        .identity
        .clone()
        .unwrap_or_else(|| Identity("-".into()))
}

pub(crate) fn verdict(shard: &ShardId, described: &Described, opened: &Opened) -> Verdict {
    let state = match opened {
        Opened::Born(state) | Opened::Found(state) => state,
        Opened::Foreign(found) => {
            return Verdict::Stop(format!(
                "what the store keeps of {shard} is not usable: {found}"
            ));
        }
    };
    if let Some(reason) =
        recreated(shard, described, state).filter(|_| !mutant::active(Mutant::TakesForOld))
    {
        return Verdict::Stop(reason);
    }
    let (from, first) = (state.watermark, Watermark(described.first.0));
    if from < first {
        return Verdict::Gap {
            from,
            to: first,
            delivered: state.delivered,
        };
    }
    Verdict::Read {
        from,
        delivered: state.delivered,
    }
}

fn recreated(shard: &ShardId, described: &Described, state: &State) -> Option<String> {
    let (topic, route) = (&shard.partition.topic, &shard.route);
    // The topic's id is the same for each of its partitions, and so is what is said.
    let what = if state.identity != stored(described) {
        format!(
            "topic {topic} of route {route} was recreated (its id is {}, what is stored belongs to {})",
            stored(described),
            state.identity
        )
    } else if state.watermark.0 > described.end.0 {
        let (end, watermark) = (described.end, state.watermark);
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

    fn described(identity: &str, first: u64, end: u64) -> Described {
        Described {
            identity: Some(Identity(identity.into())),
            first: Offset(first),
            end: Offset(end),
        }
    }

    fn done() -> Claim {
        Claim::new(
            Cursor::new(Timestamp::from_millis(5), Offset(6)),
            Watermark(9),
        )
    }

    fn state(identity: &str, watermark: u64) -> Opened {
        Opened::Found(State {
            identity: Identity(identity.into()),
            watermark: Watermark(watermark),
            claimed: done(),
            delivered: done(),
            lowest_pending: Offset(0),
            pending: 0,
            bytes: 0,
            quarantined: 0,
            forecast: crate::store::Forecast::default(),
            ledger: crate::store::Ledger::default(),
        })
    }

    #[test]
    fn a_lost_store_is_read_again_from_the_lowest_pending_offset() {
        let committed = Committed {
            lowest_pending: Offset(7),
            delivered: done(),
            identity: Some(Identity("a".into())),
        };
        let birth = birth(&shard(), &described("a", 2, 90), Some(&committed));
        assert_eq!((birth.watermark, birth.delivered), (Watermark(7), done()));
    }

    #[test]
    fn what_was_committed_for_another_incarnation_does_not_count() {
        for (identity, low) in [("b", 7), ("a", 91)] {
            let committed = Committed {
                lowest_pending: Offset(low),
                delivered: done(),
                identity: Some(Identity(identity.into())),
            };
            let birth = birth(&shard(), &described("a", 2, 90), Some(&committed));
            assert_eq!(
                (birth.watermark, birth.delivered),
                (Watermark(2), Claim::START)
            );
        }
    }

    #[test]
    fn reading_goes_on_at_the_watermark() {
        let verdict = verdict(&shard(), &described("a", 2, 90), &state("a", 90));
        assert_eq!(
            verdict,
            Verdict::Read {
                from: Watermark(90),
                delivered: done()
            }
        );
    }

    #[test]
    fn records_that_are_gone_and_were_never_stored_are_a_gap() {
        let verdict = verdict(&shard(), &described("a", 20, 90), &state("a", 15));
        assert_eq!(
            verdict,
            Verdict::Gap {
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
            let Verdict::Stop(reason) = verdict(&shard(), &described, &opened) else {
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
            verdict(
                &shard,
                &described("b", index as u64, 90),
                &state("a", 5 + index as u64),
            )
        };
        assert_eq!(reason(0), reason(3));
    }

    #[test]
    fn a_foreign_shard_stops_with_what_was_found() {
        let opened = Opened::Foreign("layout version 9".into());
        assert!(
            matches!(verdict(&shard(), &described("a", 0, 4), &opened), Verdict::Stop(reason) if reason.contains("layout version 9"))
        );
    }
}
