//! The numbers (slots) that identify a dispatcher's shards in tickets.
//!
//! A free slot is reused as late as possible. Clients may still report on messages of a lost shard
//! under its old slot, and such a report must not complete a message of another shard (I4).

use super::shard::{ShardState, ShardStates};
use crate::model::ShardId;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct ShardSlots {
    shards: BTreeMap<u16, ShardId>,
    last_assigned: u16,
}

impl ShardSlots {
    /// Assigns the first free slot after the last assigned one.
    pub(super) fn assign(&mut self, shard: ShardId) -> u16 {
        self.last_assigned = self.last_assigned.wrapping_add(1);
        while self.shards.contains_key(&self.last_assigned) {
            self.last_assigned = self.last_assigned.wrapping_add(1);
        }
        self.shards.insert(self.last_assigned, shard);
        self.last_assigned
    }

    pub(super) fn state<'a>(
        &self,
        shards: &'a mut ShardStates,
        slot: u16,
    ) -> Option<&'a mut ShardState> {
        shards.get_mut(self.shards.get(&slot)?)
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
    fn a_released_slot_is_the_last_to_be_assigned_again() {
        let mut slots = ShardSlots::default();
        let kept = slots.assign(shard());
        let released = slots.assign(shard());
        slots.release(released);
        for _ in 0..u16::MAX - 1 {
            let next = slots.assign(shard());
            assert!(next != released && next != kept);
            slots.release(next);
        }
        assert_eq!(slots.assign(shard()), released);
        assert_eq!(slots.shards.get(&kept), Some(&shard()));
    }
}
