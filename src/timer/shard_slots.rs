//! The numbers under which a dispatcher's works stand in tickets. One that is free again is not given away soon: what a lost shard left
//! under way is reported under its old number, and must settle nothing of another work's (I4).

use crate::model::ShardId;
use std::collections::BTreeMap;

/// See the module's page.
#[derive(Default)]
pub(super) struct ShardSlots {
    shards: BTreeMap<u16, ShardId>,
    last_assigned: u16,
}

impl ShardSlots {
    /// The number after the last one that was given away and is free.
    pub(super) fn assign(&mut self, shard: ShardId) -> u16 {
        self.last_assigned = self.last_assigned.wrapping_add(1);
        while self.shards.contains_key(&self.last_assigned) {
            self.last_assigned = self.last_assigned.wrapping_add(1);
        }
        self.shards.insert(self.last_assigned, shard);
        self.last_assigned
    }

    pub(super) fn shard(&self, slot: u16) -> Option<&ShardId> {
        self.shards.get(&slot)
    }

    pub(super) fn release(&mut self, slot: u16) {
        self.shards.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;

    fn shard() -> ShardId {
        ShardId::new("orders", Partition::new("orders.delayed", 0))
    }

    #[test]
    fn a_slot_that_is_free_again_is_the_last_to_be_given_away() {
        let mut slots = ShardSlots::default();
        let (stays, first) = (slots.assign(shard()), slots.assign(shard()));
        slots.release(first);
        for _ in 0..u16::MAX - 1 {
            let next = slots.assign(shard());
            assert!(next != first && next != stays);
            slots.release(next);
        }
        assert_eq!(slots.assign(shard()), first);
        assert_eq!(slots.shard(stays), Some(&shard()));
    }
}
