//! Plain calls for tests of a store that are about more than the port's promises: one partition of a topic, and little in it.

use super::run_of;
use crate::model::{
    Claim, Cursor, Identity, Lease, Partition, ShardId, Timestamp, Token, Watermark,
};
use crate::store::{Advance, Append, Birth, Change, ChangeKind, List, Reading, Tally};
use std::time::Duration;

pub(crate) fn shard(topic: &str) -> ShardId {
    ShardId::new("route", Partition::new(topic, 0))
}

pub(crate) fn birth(topic: &str) -> Birth {
    Birth {
        shard: shard(topic),
        identity: Identity("id".into()),
        watermark: Watermark(0),
        delivered: Claim::START,
    }
}

/// The next message of the shard, at its place, in a run of its own, with the id `id<offset>`.
pub(crate) fn append_at(topic: &str, place: Cursor) -> Append {
    let offset = place.offset.0;
    let change = Change {
        id: format!("id{offset}").into(),
        kind: ChangeKind::Schedule(place),
    };
    let run = run_of(&format!("w{offset}"), &[place]);
    let (reading, from, to) = (Reading::default(), Watermark(offset), Watermark(offset + 1));
    Append {
        shard: shard(topic),
        reading,
        from,
        to,
        runs: vec![run],
        changes: vec![change],
    }
}

pub(crate) fn lease(topic: &str) -> Lease {
    crate::store::lease(&shard(topic), Token(7))
}

pub(crate) fn advance(topic: &str, claim: Claim) -> Advance {
    let (since, tally) = (Claim::START, Tally::default());
    Advance {
        lease: lease(topic),
        delivered: None,
        since,
        tally,
        deletes: vec![],
        ids: vec![],
        claim: Some(claim),
        skew_max: Duration::ZERO,
    }
}

pub(crate) fn everything(topic: &str) -> List {
    List {
        shard: shard(topic),
        from: Timestamp::AT_ONCE,
        until: Timestamp::MAX,
        limit: 1_000_000,
    }
}
