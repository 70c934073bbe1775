//! Runs the store of a chaos run, one Redis, a group with sentinels or a cluster, and injects its
//! faults.

use std::time::{Duration, Instant};

use crate::asked::Topology;
use crate::env::{Redis, RedisCluster, RedisGroup, Snapshot};
use crate::fault::Fault;

/// An older copy than this is not put back: the source may not retain the lost messages.
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(60);
/// The replica that is promoted lacks the writes of this time.
const BEHIND: Duration = Duration::from_secs(2);

pub(crate) enum Store {
    Single {
        redis: Redis,
        snapshot: Option<(Instant, Snapshot)>,
    },
    Group {
        group: RedisGroup,
        /// The server that a fault has hit.
        victim: usize,
    },
    Cluster {
        cluster: RedisCluster,
        /// The node that a fault has hit.
        victim: usize,
        /// The rank of the primary that the next fault hits.
        next_rank: usize,
    },
}

impl Store {
    pub(crate) fn start(topology: Topology) -> Self {
        match topology {
            Topology::Single => Self::Single {
                redis: Redis::start(),
                snapshot: None,
            },
            Topology::Sentinel => Self::Group {
                group: RedisGroup::start(),
                victim: 0,
            },
            Topology::Cluster => Self::Cluster {
                cluster: RedisCluster::start(),
                victim: 0,
                next_rank: 0,
            },
        }
    }

    /// The table of the configuration.
    pub(crate) fn table(&self) -> String {
        match self {
            Self::Single { redis, .. } => format!("[store.redis]\nurl = \"{}\"", redis.url()),
            Self::Group { group, .. } => group.table(),
            Self::Cluster { cluster, .. } => cluster.table(),
        }
    }

    /// Keeps a copy, to which a rollback returns. Groups and clusters have replicas for that.
    pub(crate) fn take_snapshot(&mut self) {
        if let Self::Single { redis, snapshot } = self {
            *snapshot = Some((Instant::now(), redis.snapshot()));
        }
    }

    pub(crate) fn begin(&mut self, fault: Fault) {
        match self {
            Self::Single { redis, snapshot } => match fault {
                Fault::KillRedis => redis.kill(),
                Fault::FreezeRedis => redis.pause(),
                Fault::EmptyRedis => redis.flush_all(),
                Fault::RollBackRedis => {
                    let copy = snapshot.take();
                    match copy.filter(|(taken, _)| taken.elapsed() < SNAPSHOT_AGE_MAX) {
                        Some((_, copy)) => redis.roll_back_to(&copy),
                        None => redis.restart(),
                    }
                }
                other => panic!("{other:?} does not hit the store"),
            },
            Self::Group { group, victim } => {
                if fault == Fault::RollBackRedis {
                    group.leave_replica_behind();
                    std::thread::sleep(BEHIND);
                }
                *victim = group.wait_for_primary();
                lose(group.server_mut(*victim), fault);
            }
            Self::Cluster {
                cluster,
                victim,
                next_rank,
            } => {
                *victim = cluster.primary(*next_rank);
                *next_rank = (*next_rank + 1) % RedisCluster::PRIMARIES;
                if fault == Fault::RollBackRedis {
                    cluster.leave_replica_behind(*victim);
                    std::thread::sleep(BEHIND);
                }
                lose(cluster.node_mut(*victim), fault);
            }
        }
    }

    /// Repairs a fault. In a group or a cluster, another server has become the primary before.
    pub(crate) fn end(&mut self, fault: Fault) {
        match self {
            Self::Single { redis, .. } => match fault {
                Fault::KillRedis => redis.restart(),
                Fault::FreezeRedis => redis.resume(),
                _ => {}
            },
            Self::Group { group, victim } => {
                if fault == Fault::EmptyRedis {
                    return;
                }
                group.wait_until_replaced(*victim);
                if fault == Fault::FreezeRedis {
                    group.server(*victim).resume();
                } else {
                    group.server_mut(*victim).restart();
                }
                group.wait_until_whole();
            }
            Self::Cluster {
                cluster, victim, ..
            } => {
                if fault == Fault::EmptyRedis {
                    return;
                }
                cluster.wait_until_replaced(*victim);
                if fault == Fault::FreezeRedis {
                    cluster.node(*victim).resume();
                } else {
                    cluster.node_mut(*victim).restart();
                }
                cluster.wait_until_whole();
            }
        }
    }
}

/// A primary of a group or a cluster fails, or loses its data.
fn lose(primary: &mut Redis, fault: Fault) {
    match fault {
        Fault::KillRedis | Fault::RollBackRedis => primary.kill(),
        Fault::FreezeRedis => primary.pause(),
        Fault::EmptyRedis => primary.flush_all(),
        other => panic!("{other:?} does not hit the store"),
    }
}
