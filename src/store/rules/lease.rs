//! The lease of a shard. Pure: the caller passes the time.

use crate::model::{LeaseToken, Timestamp};
use crate::store::Renewed;
use std::time::Duration;

/// Which worker may deliver a shard (I5); `None` if the lease is free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseHolder(Option<HeldLease>);

#[derive(Clone, Copy, Debug)]
struct HeldLease {
    token: LeaseToken,
    end: Timestamp,
    length: Duration,
}

impl HeldLease {
    fn new(token: LeaseToken, length: Duration, now: Timestamp) -> Self {
        let end = now.plus(length);
        Self { token, end, length }
    }

    /// A lease that ends after twice its length was given before the clock of the store was set
    /// back. Its holder renews it long before, unless the holder is dead.
    fn has_expired(&self, now: Timestamp) -> bool {
        let is_of_later_time = self.end > now.plus(2 * self.length);
        self.end <= now || is_of_later_time && !fault!(KeepLeaseOfLaterTime)
    }
}

impl LeaseHolder {
    /// Takes the lease if it is free, has expired, or is held with this token.
    pub(crate) fn acquire(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> bool {
        let is_available = self
            .0
            .is_none_or(|held| held.token == token || held.has_expired(now));
        if is_available {
            self.0 = Some(HeldLease::new(token, length, now));
        }
        is_available
    }

    /// Extends the lease of this token. An expired lease that no other worker took is extended too.
    pub(crate) fn renew(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> Renewed {
        if !self.is_held(token) {
            return Renewed::Fenced;
        }
        self.0 = Some(HeldLease::new(token, length, now));
        Renewed::Renewed { now }
    }

    pub(crate) fn release(&mut self, token: LeaseToken) {
        if self.is_held(token) {
            self.0 = None;
        }
    }

    /// The holder of the lease, unless it has expired.
    #[cfg(test)]
    pub(crate) fn holder_at(&self, now: Timestamp) -> Option<LeaseToken> {
        let held = self.0.filter(|held| !held.has_expired(now));
        held.map(|held| held.token)
    }

    pub(crate) fn is_held(&self, token: LeaseToken) -> bool {
        self.0.is_some_and(|held| held.token == token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fault_injection::{self, InjectedFault};

    const LENGTH: Duration = Duration::from_secs(5);

    /// Returns true if another worker gets a lease that was renewed at `renewed`. Its holder then died.
    fn is_free_at(renewed: i64, now: i64) -> bool {
        let [renewed, now] = [renewed, now].map(|at| Timestamp::from_millis(1_000 * at));
        let mut holder = LeaseHolder::default();
        assert!(holder.acquire(LeaseToken(1), 2 * LENGTH, renewed));
        assert!(matches!(
            holder.renew(LeaseToken(1), LENGTH, renewed),
            Renewed::Renewed { .. }
        ));
        // The length of the other worker's lease does not matter.
        holder.acquire(LeaseToken(2), LENGTH / 5, now)
    }

    #[test]
    fn a_lease_does_not_outlive_a_step_back_of_the_clock() {
        for (now, is_free) in [
            (104, false),
            (105, true),
            (95, false),
            (94, true),
            (-900, true),
        ] {
            assert_eq!(is_free_at(100, now), is_free, "{now}");
        }
        let ignores = [InjectedFault::KeepLeaseOfLaterTime];
        assert!(!fault_injection::with(ignores, || is_free_at(100, 40)));
    }
}
