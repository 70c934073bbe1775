//! The leases that the store may have for this worker, which does not need them. Pure.

use crate::model::Lease;
use std::collections::VecDeque;
use tokio::time::Instant;

pub(super) struct Releases {
    /// They last as long as the session, so they are released until the store answers.
    waiting: Vec<Lease>,
    /// Leases that were released, with the time at which each is released once more: the store may
    /// have lost the release since its last answered heartbeat. The heartbeats show if it loses more.
    again: VecDeque<(Instant, Lease)>,
    /// The next call, after the store did not answer.
    not_before: Instant,
}

impl Releases {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            waiting: Vec::new(),
            again: VecDeque::new(),
            not_before: now,
        }
    }

    pub(super) fn add(&mut self, leases: impl IntoIterator<Item = Lease>) {
        self.waiting.extend(leases);
    }

    /// Removes waiting leases.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&Lease) -> bool) {
        self.waiting.retain(is_kept);
    }

    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The leases to release now.
    pub(super) fn due(&self, now: Instant) -> Vec<Lease> {
        if now < self.not_before {
            return Vec::new();
        }
        let again = self.again.iter().take_while(|(at, _)| *at <= now);
        let again = again.map(|(_, lease)| lease);
        self.waiting.iter().chain(again).cloned().collect()
    }

    /// The store has released those that were due at `asked`. It releases the waiting ones again at
    /// `again_at`.
    pub(super) fn on_released(&mut self, asked: Instant, again_at: Instant) {
        self.again.retain(|(at, _)| asked < *at);
        let released = self.waiting.drain(..);
        self.again.extend(released.map(|lease| (again_at, lease)));
    }

    /// Makes no call before this time.
    pub(super) fn set_not_before(&mut self, at: Instant) {
        self.not_before = at;
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let at = match self.are_waiting() {
            true => self.not_before,
            false => self.again.front()?.0,
        };
        Some(at.max(self.not_before))
    }

    pub(super) fn take_waiting(&mut self) -> Vec<Lease> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LeaseToken, Partition, ShardId};
    use std::time::Duration;

    fn lease(number: u64) -> Lease {
        Lease {
            shard: ShardId::new("r", Partition::new("in", 0)),
            token: LeaseToken::for_test(number),
        }
    }

    #[test]
    fn each_lease_is_released_twice_also_while_others_wait() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut releases = Releases::new(start);
        let mut released = Vec::new();
        for number in 0..100 {
            let now = after(100 * number);
            releases.add([lease(number)]);
            released.extend(releases.due(now));
            releases.on_released(now, now + Duration::from_millis(250));
        }
        assert_eq!(releases.again.len(), 3, "the others were released twice");
        released.sort_unstable_by_key(|lease| lease.token);
        assert!(released.chunks(2).take(97).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn without_an_answer_nothing_is_released_before_the_next_call() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let mut releases = Releases::new(start);
        assert_eq!(releases.next_wakeup(), None);
        releases.add([lease(1)]);
        releases.set_not_before(later);
        assert_eq!(releases.due(start), []);
        assert_eq!(releases.next_wakeup(), Some(later));
        assert_eq!(releases.due(later), [lease(1)]);
    }
}
