//! What a claimer knows of the shards that it wants: which there are, which it holds, which it is to hand over and which to take. Decides;
//! the claimer does.

use super::fleet::Fleet;
use super::term::Term;
use super::tries::Tries;
use crate::limit::{
    CATALOG_INTERVAL, DEPART_SPARE, HAND_OVER_RETRY, HAND_OVERS_MAX, HAND_OVERS_PART, ROLL_INTERVAL,
};
use crate::metric;
use crate::model::{Claim, Identity, Lease, ShardId, Worker};
use crate::mutant::{self, Mutant};
use crate::store::Peer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A lease, and its metric, which is 0 again when this is dropped.
pub(super) struct Held {
    pub(super) lease: Lease,
    pub(super) term: Term,
    /// Since when its work is being finished, for another worker to have it.
    pub(super) handing: Option<Instant>,
    /// It is not handed over again before.
    not_before: Option<Instant>,
    /// It was another worker's, who lives and did not take it: it stays here until the fleet changes.
    is_stray: bool,
    _metric: metric::LeaseHeld,
}

/// See the module's page.
pub(super) struct Wanted {
    pub(super) shards: Vec<ShardId>,
    pub(super) held: BTreeMap<ShardId, Held>,
    /// The last pair that this process itself finished: it may be ahead of what a store that went back remembers. It speaks of one
    /// incarnation of the source; the offsets of the next one mean other messages.
    pub(super) own: BTreeMap<ShardId, (Identity, Claim)>,
    /// Told to be dropped, and not yet.
    pub(super) leaving: BTreeSet<ShardId>,
    pub(super) fleet: Fleet,
    pub(super) tries: Tries,
    /// When all that live have surely seen what this worker sees of the fleet. What is handed over before to one that has not is delivered by nobody
    /// until it has.
    settled: Instant,
    /// All is to go, from then on.
    pub(super) departs: Option<Instant>,
}

impl Wanted {
    pub(super) fn new(me: Worker, now: Instant) -> Self {
        Self {
            shards: Vec::new(),
            held: BTreeMap::new(),
            own: BTreeMap::new(),
            leaving: BTreeSet::new(),
            fleet: Fleet::new(me),
            tries: Tries::new(now),
            settled: now,
            departs: None,
        }
    }

    /// Takes in which shards there are. Answers whether some were not known.
    pub(super) fn add(&mut self, shards: impl Iterator<Item = ShardId>, now: Instant) -> bool {
        let before = self.shards.len();
        for shard in shards {
            if let Err(at) = self.shards.binary_search(&shard) {
                self.shards.insert(at, shard);
            }
        }
        let is_news = self.shards.len() > before;
        if is_news {
            self.place(now);
            self.settled = now + CATALOG_INTERVAL;
        }
        is_news
    }

    /// How many shards each route has.
    pub(super) fn count(&self) -> BTreeMap<Arc<str>, usize> {
        let routes = self.shards.chunk_by(|a, b| a.route == b.route);
        routes
            .map(|shards| (shards[0].route.clone(), shards.len()))
            .collect()
    }

    /// Takes in who lives. Answers whether that is news.
    pub(super) fn learn(&mut self, peers: &[Peer], now: Instant) -> bool {
        let is_news = self.fleet.learn(peers);
        if is_news {
            self.place(now);
            self.settled = self.settled.max(now + ROLL_INTERVAL + DEPART_SPARE);
        }
        is_news
    }

    fn place(&mut self, now: Instant) {
        self.fleet.place(&self.shards);
        self.tries.placed(now);
        self.held
            .values_mut()
            .for_each(|held| held.is_stray = false);
    }

    /// What to try to take now.
    pub(super) fn next_to_take(&mut self, now: Instant, slow: Duration) -> Vec<ShardId> {
        if self.departs.is_some() {
            return Vec::new();
        }
        let (own, others) = self.missing();
        self.tries.next(now, slow, &own, &others)
    }

    /// The shards that are not held: this worker's own, and others'.
    fn missing(&self) -> (Vec<ShardId>, Vec<ShardId>) {
        let missing = self
            .shards
            .iter()
            .filter(|shard| !self.held.contains_key(*shard) && !self.leaving.contains(*shard));
        missing
            .cloned()
            .partition(|shard| self.fleet.is_mine(shard) || mutant::active(Mutant::TakesOthers))
    }

    /// It was taken.
    pub(super) fn take(&mut self, lease: Lease, term: Term) {
        let (shard, is_stray) = (lease.shard.clone(), !self.fleet.is_mine(&lease.shard));
        let _metric = metric::LeaseHeld::new(&shard);
        self.held.insert(
            shard,
            Held {
                lease,
                term,
                handing: None,
                not_before: None,
                is_stray,
                _metric,
            },
        );
    }

    /// What to hand over now, as many at a time as is good for those who are to take it.
    pub(super) fn next_to_hand_over(&mut self, now: Instant) -> Vec<ShardId> {
        let is_departing = self.departs.is_some_and(|at| at <= now);
        let goes = |shard: &ShardId, held: &Held| {
            is_departing || self.departs.is_none() && self.is_anothers(shard, held)
        };
        let going: Vec<_> = self
            .held
            .iter()
            .filter(|(shard, held)| goes(shard, held))
            .map(|(shard, _)| shard.clone())
            .collect();
        let under_way = self
            .held
            .values()
            .filter(|held| held.handing.is_some())
            .count();
        let room = HAND_OVERS_MAX
            .max(going.len() / HAND_OVERS_PART)
            .saturating_sub(under_way);
        let is_seen =
            |shard: &ShardId| is_departing || self.settled <= now || self.fleet.is_awaited(shard);
        let is_next =
            |held: &Held| held.handing.is_none() && held.not_before.is_none_or(|at| at <= now);
        let next: Vec<_> = going
            .into_iter()
            .filter(|shard| is_seen(shard) && is_next(&self.held[shard]))
            .take(room)
            .collect();
        for shard in &next {
            self.held
                .get_mut(shard)
                .expect("it was just found there")
                .handing = Some(now);
        }
        next
    }

    fn is_anothers(&self, shard: &ShardId, held: &Held) -> bool {
        !held.is_stray && !self.fleet.is_mine(shard)
    }

    /// Its work could not be finished in time, and goes on.
    pub(super) fn put_off(&mut self, shard: &ShardId, now: Instant) {
        if let Some(held) = self.held.get_mut(shard) {
            (held.handing, held.not_before) = (None, Some(now + HAND_OVER_RETRY));
        }
    }

    /// When there is something to take, or to hand over, that no message will announce.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        let waits = self
            .held
            .values()
            .filter(|held| held.handing.is_none())
            .filter_map(|held| held.not_before)
            .filter(|at| *at > now)
            .min();
        if self.departs.is_some() {
            return self
                .departs
                .filter(|at| *at > now)
                .into_iter()
                .chain(waits)
                .min();
        }
        let is_unsettled = self.settled > now
            && self
                .held
                .iter()
                .any(|(shard, held)| self.is_anothers(shard, held));
        let (own, others) = self.missing();
        let tries = self.tries.next_at(now, !own.is_empty(), !others.is_empty());
        tries
            .into_iter()
            .chain(waits)
            .chain(is_unsettled.then_some(self.settled))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Partition, Token};

    const SLOW: Duration = Duration::from_millis(250);

    fn peers(workers: &[u128]) -> Vec<Peer> {
        workers
            .iter()
            .map(|id| Peer {
                worker: Worker(*id),
                left: Duration::from_secs(1),
            })
            .collect()
    }

    /// A worker that has taken all of so many shards while it was alone.
    fn alone(shards: i32, now: Instant) -> Wanted {
        let mut wanted = Wanted::new(Worker(1), now);
        wanted.add(
            (0..shards).map(|index| ShardId::new("r", Partition::new("in", index))),
            now,
        );
        assert_eq!(wanted.next_to_take(now, SLOW), [], "it has not enrolled");
        assert!(wanted.learn(&peers(&[1]), now));
        take_all(&mut wanted, now);
        assert_eq!(wanted.held.len(), shards as usize);
        wanted
    }

    fn take_all(wanted: &mut Wanted, now: Instant) {
        for shard in wanted.next_to_take(now, SLOW) {
            wanted.take(
                Lease {
                    shard,
                    token: Token(7),
                },
                Term::new(now, SLOW),
            );
        }
    }

    #[test]
    fn who_is_joined_hands_over_half_a_few_at_a_time() {
        let now = Instant::now();
        let mut wanted = alone(16, now);
        assert!(wanted.learn(&peers(&[1, 2]), now));
        let mut given = BTreeSet::new();
        loop {
            let next = wanted.next_to_hand_over(now);
            assert!(
                next.len() <= HAND_OVERS_MAX && wanted.next_to_hand_over(now).is_empty(),
                "no more than so many at a time"
            );
            if next.is_empty() {
                break;
            }
            for shard in next {
                wanted.held.remove(&shard);
                given.insert(shard);
            }
        }
        assert_eq!((given.len(), wanted.held.len()), (8, 8));
        assert_eq!(wanted.next_to_take(now, SLOW), [], "they are the other's");
        assert!(wanted.learn(&peers(&[1]), now));
        assert_eq!(
            wanted
                .next_to_take(now, SLOW)
                .into_iter()
                .collect::<BTreeSet<_>>(),
            given
        );
    }

    /// One of a fleet that another has left: it holds what was its own before that.
    fn left(by: u128, now: Instant) -> Wanted {
        let mut wanted = alone(32, now);
        wanted.learn(&peers(&[1, 2, 3, by]), now);
        let fleet = &wanted.fleet;
        wanted.held.retain(|shard, _| fleet.is_mine(shard));
        wanted.learn(&peers(&[1, 2, 3]), now + CATALOG_INTERVAL);
        wanted
    }

    #[test]
    fn what_goes_to_one_that_was_there_before_is_kept_until_that_one_has_seen_the_change() {
        let now = Instant::now();
        let moved = |wanted: &Wanted| {
            wanted
                .held
                .keys()
                .filter(|shard| !wanted.fleet.is_mine(shard))
                .count()
        };
        let mut wanted = (4..99)
            .map(|by| left(by, now))
            .find(|wanted| moved(wanted) > 0)
            .expect("some change places now and then");
        let seen = now + CATALOG_INTERVAL;
        assert_eq!(
            (
                wanted.next_to_hand_over(seen),
                wanted.next_at(seen).map(|at| at <= wanted.settled)
            ),
            (Vec::new(), Some(true))
        );
        let settled = seen + ROLL_INTERVAL + DEPART_SPARE;
        assert_eq!(
            wanted.next_to_hand_over(settled).len(),
            moved(&wanted).min(HAND_OVERS_MAX)
        );
    }

    #[test]
    fn what_cannot_be_finished_goes_on_and_is_handed_over_later() {
        let now = Instant::now();
        let mut wanted = alone(2, now);
        wanted.learn(&peers(&[1, 2]), now);
        let next = wanted.next_to_hand_over(now);
        wanted.put_off(&next[0], now);
        assert_eq!(wanted.next_to_hand_over(now), []);
        assert_eq!(
            wanted.next_at(now).map(|at| at <= now + HAND_OVER_RETRY),
            Some(true)
        );
        assert_eq!(wanted.next_to_hand_over(now + HAND_OVER_RETRY), next);
    }

    #[test]
    fn what_its_worker_did_not_take_is_kept_until_the_fleet_changes() {
        let now = Instant::now();
        let mut wanted = alone(2, now);
        wanted.learn(&peers(&[1, 2]), now);
        wanted
            .next_to_hand_over(now)
            .iter()
            .for_each(|shard| _ = wanted.held.remove(shard));
        let later = now + crate::limit::STRAY_TRY;
        take_all(&mut wanted, later);
        assert_eq!(
            (wanted.held.len(), wanted.next_to_hand_over(later)),
            (2, Vec::new())
        );
        wanted.learn(&peers(&[1, 2, 3]), later);
        assert!(
            wanted
                .next_to_hand_over(later + ROLL_INTERVAL + DEPART_SPARE)
                .len()
                + wanted.fleet.mine()
                == 2
        );
    }

    #[test]
    fn who_departs_takes_nothing_and_hands_over_all_when_the_others_know() {
        let now = Instant::now();
        let mut wanted = alone(2, now);
        wanted.departs = Some(now + SLOW);
        wanted.held.remove(&wanted.shards[0]);
        assert_eq!(
            (
                wanted.next_to_take(now, SLOW),
                wanted.next_to_hand_over(now)
            ),
            (Vec::new(), Vec::new())
        );
        assert_eq!(wanted.next_at(now), Some(now + SLOW));
        assert_eq!(wanted.next_to_hand_over(now + SLOW), wanted.shards[1..]);
    }
}
