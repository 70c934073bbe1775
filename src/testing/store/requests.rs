//! Requests for adapter tests that go beyond the contract: one partition of a topic with few
//! messages.

use crate::model::OutcomeCounts;
use crate::model::{
    Cursor, Lease, LeaseToken, Partition, Progress, ShardId, SourceIdentity, Timestamp, Watermark,
};
use crate::store::{Acquire, Advance, Append, AppendEpoch, IdChange, IdChangeKind, List, NewShard};
use crate::testing::store::contract::run_of;
use std::time::Duration;

pub(crate) fn shard(topic: &str) -> ShardId {
    ShardId::new("route", Partition::new(topic, 0))
}

pub(crate) fn new_shard(topic: &str) -> NewShard {
    NewShard {
        shard: shard(topic),
        creates: true,
        identity: SourceIdentity("id".into()),
        watermark: Watermark(0),
        delivered: Progress::START,
        hold: Watermark(0),
        possibly_delivered: Progress::START,
        pause: None,
    }
}

/// The next message of the shard, in its own run, with the id `id<offset>`.
pub(crate) fn append_at(topic: &str, place: Cursor) -> Append {
    let offset = place.offset.0;
    let change = IdChange::new(&*format!("id{offset}"), IdChangeKind::Schedule(place));
    let run = run_of(&format!("w{offset}"), &[place]);
    let (reading, from, to) = (
        AppendEpoch::default(),
        Watermark(offset),
        Watermark(offset + 1),
    );
    Append {
        shard: shard(topic),
        epoch: reading,
        identity: new_shard(topic).identity,
        from,
        to,
        runs: vec![run],
        changes: vec![change],
        pause: None,
    }
}

pub(crate) fn lease(topic: &str) -> Lease {
    crate::store::lease(&shard(topic), LeaseToken::for_test(7))
}

pub(crate) fn acquire(topic: &str) -> Acquire {
    Acquire {
        lease: lease(topic),
        identity: new_shard(topic).identity,
        ended_holder: None,
    }
}

pub(crate) fn advance(topic: &str, claim: Progress) -> Advance {
    let (since, tally) = (Progress::START, OutcomeCounts::default());
    Advance {
        lease: lease(topic),
        delivered: None,
        delivered_before: since,
        outcomes: tally,
        occurrences: 0,
        deletes: vec![],
        delivered_ids: vec![],
        claimed_answers: vec![],
        delivered_answers: vec![],
        claim: Some(claim),
        seen: Watermark(0),
        clock_skew_max: Duration::ZERO,
    }
}

pub(crate) fn list_everything(topic: &str) -> List {
    List {
        shard: shard(topic),
        from: Timestamp::AT_ONCE,
        until: Timestamp::MAX,
        limit: 1_000_000,
    }
}
