//! How the bound on messages in flight is shared between routes, so that one whose target is away leaves the others room. Pure.

use crate::limit::TIMER_IN_FLIGHT_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module's page.
pub(super) struct InFlightQuota {
    /// In flight, by route.
    used: BTreeMap<Arc<str>, usize>,
    /// What each route can always have. Together half of all: the other half is for whoever comes first, so that one busy route among idle
    /// ones is not held down to its share.
    reserved: usize,
}

impl InFlightQuota {
    pub(super) fn new(routes: impl Iterator<Item = Arc<str>>) -> Self {
        let used: BTreeMap<_, _> = routes.map(|route| (route, 0)).collect();
        let kept = TIMER_IN_FLIGHT_MAX / 2 / used.len().max(1);
        Self {
            used,
            reserved: kept,
        }
    }

    pub(super) fn add(&mut self, route: &str, messages: usize) {
        if let Some(used) = self.used.get_mut(route) {
            *used += messages;
        }
    }

    /// How many messages of the route may take off.
    pub(super) fn room(&self, route: &str) -> usize {
        let others = self.used.iter().filter(|(other, _)| &***other != route);
        let taken: usize = others.map(|(_, used)| (*used).max(self.reserved)).sum();
        TIMER_IN_FLIGHT_MAX
            .saturating_sub(taken + self.used.get(route).copied().unwrap_or(TIMER_IN_FLIGHT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(routes: &[&str]) -> InFlightQuota {
        InFlightQuota::new(routes.iter().map(|route| Arc::from(*route)))
    }

    #[test]
    fn a_route_that_is_alone_has_all_of_it() {
        let mut shares = shares(&["a"]);
        assert_eq!(shares.room("a"), TIMER_IN_FLIGHT_MAX);
        shares.add("a", TIMER_IN_FLIGHT_MAX - 1);
        assert_eq!(shares.room("a"), 1);
    }

    #[test]
    fn a_route_that_has_filled_up_leaves_the_others_their_share() {
        let mut shares = shares(&["a", "b", "c", "d", "e"]);
        let share = TIMER_IN_FLIGHT_MAX / 10;
        assert_eq!(shares.room("a"), TIMER_IN_FLIGHT_MAX - 4 * share);
        shares.add("a", shares.room("a"));
        assert_eq!(
            (shares.room("a"), shares.room("b"), shares.room("e")),
            (0, share, share)
        );
        shares.add("b", share);
        assert_eq!((shares.room("b"), shares.room("c")), (0, share));
    }

    #[test]
    fn all_together_never_have_more_than_the_bound() {
        let (names, mut together) = (["a", "b", "c"], 0);
        let mut shares = shares(&names);
        for name in names.iter().cycle().take(9) {
            let some = shares.room(name).div_ceil(2);
            shares.add(name, some);
            together += some;
        }
        assert!(together <= TIMER_IN_FLIGHT_MAX, "{together}");
        assert!(together > TIMER_IN_FLIGHT_MAX / 2, "{together}");
    }

    #[test]
    fn a_route_that_nobody_knows_has_no_room() {
        assert_eq!(shares(&["a"]).room("b"), 0);
    }
}
