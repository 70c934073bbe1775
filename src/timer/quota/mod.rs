//! Limits on claims: messages in flight for each route, and the rates of a route.

mod rate_bucket;
pub(super) mod rate_hold;
pub(super) mod route_rates;

use crate::limit::TIMER_IN_FLIGHT_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The messages in flight by route. A route whose target is down leaves room for the others.
pub(crate) struct InFlightQuota {
    used: BTreeMap<Arc<str>, usize>,
    /// Messages among them that wait for other messages.
    waiting: BTreeMap<Arc<str>, usize>,
    /// Reserved for each route. All reservations together are half of the limit. Any route may use
    /// the other half, so that one busy route among idle ones is not limited to its reservation.
    reserved: usize,
}

impl InFlightQuota {
    pub(crate) fn new(routes: impl Iterator<Item = Arc<str>>) -> Self {
        let used: BTreeMap<_, _> = routes.map(|route| (route, 0)).collect();
        let reserved = TIMER_IN_FLIGHT_MAX / 2 / used.len().max(1);
        Self {
            used,
            waiting: BTreeMap::new(),
            reserved,
        }
    }

    pub(crate) fn add(&mut self, route: &str, messages: usize) {
        if let Some(used) = self.used.get_mut(route) {
            *used += messages;
        }
    }

    /// Claimed messages of the route wait for other messages, which may not be claimed yet.
    pub(crate) fn add_waiting(&mut self, route: &Arc<str>, messages: usize) {
        if messages > 0 {
            *self.waiting.entry(route.clone()).or_default() += messages;
        }
    }

    /// The messages of the route that are claimed and not acknowledged, except those that wait for others.
    pub(crate) fn unacknowledged(&self, route: &str) -> usize {
        let used = self.used.get(route).copied().unwrap_or(0);
        used.saturating_sub(self.waiting.get(route).copied().unwrap_or(0))
    }

    /// Returns the number of messages of the route that may still be claimed.
    pub(crate) fn room(&self, route: &str) -> usize {
        let others = self.used.iter().filter(|(other, _)| &***other != route);
        let taken: usize = others.map(|(_, used)| (*used).max(self.reserved)).sum();
        let own = self.used.get(route).copied();
        TIMER_IN_FLIGHT_MAX.saturating_sub(taken + own.unwrap_or(TIMER_IN_FLIGHT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(routes: &[&str]) -> InFlightQuota {
        InFlightQuota::new(routes.iter().map(|route| Arc::from(*route)))
    }

    #[test]
    fn a_single_route_may_use_the_whole_limit() {
        let mut quota = quota(&["a"]);
        assert_eq!(quota.room("a"), TIMER_IN_FLIGHT_MAX);
        quota.add("a", TIMER_IN_FLIGHT_MAX - 1);
        assert_eq!(quota.room("a"), 1);
    }

    #[test]
    fn a_full_route_leaves_the_others_their_reservation() {
        let mut quota = quota(&["a", "b", "c", "d", "e"]);
        let reserved = TIMER_IN_FLIGHT_MAX / 10;
        assert_eq!(quota.room("a"), TIMER_IN_FLIGHT_MAX - 4 * reserved);
        quota.add("a", quota.room("a"));
        assert_eq!(
            (quota.room("a"), quota.room("b"), quota.room("e")),
            (0, reserved, reserved)
        );
        quota.add("b", reserved);
        assert_eq!((quota.room("b"), quota.room("c")), (0, reserved));
    }

    #[test]
    fn all_routes_together_never_exceed_the_limit() {
        let names = ["a", "b", "c"];
        let mut quota = quota(&names);
        let mut total = 0;
        for name in names.iter().cycle().take(9) {
            let some = quota.room(name).div_ceil(2);
            quota.add(name, some);
            total += some;
        }
        assert!(total <= TIMER_IN_FLIGHT_MAX, "{total}");
        assert!(total > TIMER_IN_FLIGHT_MAX / 2, "{total}");
    }

    #[test]
    fn an_unknown_route_has_no_room() {
        assert_eq!(quota(&["a"]).room("b"), 0);
    }
}
