//! The live workers, the shards that exist, and which of them are assigned to this worker. Pure.

use super::ReadAssignment;
use super::assignment::assign_work;
use crate::limit::{MEMBERSHIP_INTERVAL, PARTITION_DISCOVERY_INTERVAL, SHUTDOWN_ANNOUNCE_MARGIN};
use crate::model::{Role, SessionId, ShardId, SourceIdentity, WorkerEntry, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// The shards and the live timers, as the lease loop of this worker needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkView {
    /// The session of this worker; `None` before its first heartbeat, and after its end.
    pub(crate) session: Option<SessionId>,
    /// All sessions that have not ended.
    pub(crate) live_sessions: BTreeSet<SessionId>,
    /// All shards, sorted.
    pub(crate) shards: Vec<ShardId>,
    /// The source of each shard, as its broker described it last.
    pub(crate) identities: BTreeMap<ShardId, SourceIdentity>,
    /// Timers besides this worker.
    pub(crate) other_timers: usize,
    /// The shards that this worker delivers.
    pub(crate) mine: BTreeSet<ShardId>,
    /// Shards of workers that joined with the last change, which already try to acquire them.
    pub(crate) for_newcomers: BTreeSet<ShardId>,
    /// The time at which all live workers have certainly seen this assignment. A worker that has
    /// not seen it would not acquire a shard that is handed to it.
    pub(crate) settled_at: Instant,
    pub(crate) departure: Departure,
}

/// How far the departure of this worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    NotAsked,
    /// The store tells the other workers since this time.
    Announced(Instant),
    /// The store does not answer. The other workers notice only when the session is over.
    Failed,
}

impl WorkView {
    /// No shard and no worker is known.
    pub(super) fn empty(now: Instant) -> Self {
        Self {
            session: None,
            live_sessions: BTreeSet::new(),
            shards: Vec::new(),
            identities: BTreeMap::new(),
            other_timers: 0,
            mine: BTreeSet::new(),
            for_newcomers: BTreeSet::new(),
            settled_at: now,
            departure: Departure::NotAsked,
        }
    }
}

pub(crate) struct Roster {
    me: WorkerId,
    /// All live workers by id. Empty until this worker has begun its session.
    workers: BTreeMap<WorkerId, WorkerEntry>,
    /// The workers that joined with the last change.
    newcomers: BTreeSet<WorkerId>,
    /// Every source has answered.
    is_complete: bool,
    view: WorkView,
    reads: BTreeSet<ShardId>,
}

impl Roster {
    pub(crate) fn new(me: WorkerId, now: Instant) -> Self {
        Self {
            me,
            workers: BTreeMap::new(),
            newcomers: BTreeSet::new(),
            is_complete: false,
            view: WorkView::empty(now),
            reads: BTreeSet::new(),
        }
    }

    /// Adds the shards that exist now. A shard that no longer exists stays, because it may still
    /// have stored messages. `is_complete`: every source has answered.
    pub(crate) fn add_shards(
        &mut self,
        shards: Vec<(ShardId, SourceIdentity)>,
        is_complete: bool,
        now: Instant,
    ) {
        self.is_complete |= is_complete;
        let before = self.view.shards.len();
        for (shard, identity) in shards {
            self.view.identities.insert(shard.clone(), identity);
            if let Err(at) = self.view.shards.binary_search(&shard) {
                self.view.shards.insert(at, shard);
            }
        }
        if self.view.shards.len() > before {
            self.assign();
            self.view.settled_at = now + PARTITION_DISCOVERY_INTERVAL;
        }
    }

    /// Records which workers are alive. Returns whether that changed.
    pub(crate) fn update_workers(
        &mut self,
        workers: impl IntoIterator<Item = WorkerEntry>,
        now: Instant,
    ) -> bool {
        let workers: BTreeMap<_, _> = workers.into_iter().map(|it| (it.id(), it)).collect();
        if workers == self.workers {
            return false;
        }
        let joined = workers.keys().filter(|id| !self.workers.contains_key(id));
        self.newcomers = joined.copied().collect();
        self.workers = workers;
        self.assign();
        let settled_at = now + MEMBERSHIP_INTERVAL + SHUTDOWN_ANNOUNCE_MARGIN;
        self.view.settled_at = self.view.settled_at.max(settled_at);
        true
    }

    fn assign(&mut self) {
        let work = assign_work(&self.workers, &self.view.shards);
        let assigned_to = |work: &BTreeMap<&ShardId, WorkerId>,
                           is_meant: &dyn Fn(&WorkerId) -> bool| {
            let meant = work.iter().filter(|(_, worker)| is_meant(worker));
            meant.map(|(shard, _)| (*shard).clone()).collect()
        };
        let (me, newcomers) = (self.me, &self.newcomers);
        self.reads = assigned_to(&work.readers, &|worker| *worker == me);
        let mine = assigned_to(&work.timers, &|worker| *worker == me);
        let is_newcomer = |worker: &WorkerId| *worker != me && newcomers.contains(worker);
        let for_newcomers = assigned_to(&work.timers, &is_newcomer);
        let view = &mut self.view;
        view.mine = mine;
        view.for_newcomers = for_newcomers;
        let others = self.workers.iter().filter(|(id, _)| **id != self.me);
        view.other_timers = others
            .filter(|(_, entry)| entry.roles.contains(&Role::Timer))
            .count();
    }

    /// The session of this worker, and all sessions that have not ended.
    pub(crate) fn set_sessions(
        &mut self,
        own: Option<SessionId>,
        live: impl IntoIterator<Item = SessionId>,
    ) {
        self.view.session = own;
        self.view.live_sessions = live.into_iter().collect();
    }

    pub(crate) fn set_departure(&mut self, departure: Departure) {
        self.view.departure = departure;
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Live workers that deliver.
    pub(crate) fn timers(&self) -> usize {
        let entries = self.workers.values();
        entries.filter(|it| it.roles.contains(&Role::Timer)).count()
    }

    pub(crate) fn view(&self) -> &WorkView {
        &self.view
    }

    /// The partitions of a route that this worker reads.
    pub(super) fn read_assignment(&self, route: &str) -> ReadAssignment {
        let is_of_route = |shard: &&ShardId| &*shard.route == route;
        let mine = self.reads.iter().filter(is_of_route);
        ReadAssignment {
            partitions: mine.map(|shard| shard.partition.clone()).collect(),
            of_route: self.view.shards.iter().filter(is_of_route).count(),
            is_complete: self.is_complete && self.workers.contains_key(&self.me),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;

    fn workers(names: &[&str]) -> Vec<WorkerEntry> {
        names
            .iter()
            .map(|name| WorkerEntry::for_test(name))
            .collect()
    }

    fn roster(shards: i32, now: Instant) -> Roster {
        let mut roster = Roster::new(WorkerId::of_name("b"), now);
        let shard = |index| {
            let shard = ShardId::new("r", Partition::new("in", index));
            (shard, SourceIdentity::new(None, None))
        };
        roster.add_shards((0..shards).map(shard).collect(), true, now);
        roster
    }

    #[test]
    fn a_worker_has_no_shard_before_its_session_and_every_shard_while_it_is_alone() {
        let now = Instant::now();
        let mut roster = roster(8, now);
        assert_eq!(roster.view().mine.len(), 0);
        assert_eq!(roster.read_assignment("r").partitions.len(), 0);
        assert!(roster.update_workers(workers(&["b"]), now));
        assert_eq!(
            (roster.view().mine.len(), roster.view().other_timers),
            (8, 0)
        );
        assert!(!roster.update_workers(workers(&["b"]), now));
        assert!(roster.update_workers(workers(&["a", "b"]), now));
        assert_eq!(
            (roster.view().mine.len(), roster.view().other_timers),
            (4, 1)
        );
        assert_eq!(roster.view().for_newcomers.len(), 4);
        assert!(roster.update_workers(workers(&["a", "b", "c"]), now));
        let for_newcomers = roster.view().for_newcomers.len();
        assert!((2..=3).contains(&for_newcomers), "only c is a newcomer now");
    }

    #[test]
    fn a_worker_reads_what_it_delivers() {
        let now = Instant::now();
        let mut roster = roster(9, now);
        roster.update_workers(workers(&["a", "b"]), now);
        let reads = roster.read_assignment("r");
        assert!(reads.is_complete && !reads.partitions.is_empty());
        assert!(
            reads.partitions.len() < reads.of_route,
            "b reads the others"
        );
        assert_eq!(reads.of_route, 9);
        let mine = roster.view().mine.iter().map(|shard| &shard.partition);
        assert!(reads.partitions.iter().eq(mine));
        assert_eq!(roster.read_assignment("other").partitions.len(), 0);
    }
}
