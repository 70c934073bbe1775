//! Faults of a single process, injected at random times.

use crate::testing::sim::faults::nats::StreamFault;
use crate::testing::sim::process::Process;
use crate::testing::sim::world::World;
use rand::RngExt;
use rand::rngs::StdRng;
use std::time::Duration;

/// The kinds of faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) kills: bool,
    pub(crate) store_loses: bool,
    pub(crate) clock_steps: bool,
    /// The clocks of workers and store jump forward for some seconds.
    pub(crate) clock_jumps: bool,
    pub(crate) outages: bool,
    /// Single shards of the store go back, as in a Redis Cluster.
    pub(crate) shards_go_back: bool,
    /// The store has no room for some seconds.
    pub(crate) store_fills: bool,
    /// The store loses the writes since its last write to the disk.
    pub(crate) power_loss: bool,
    /// Brokers go away, and partitions change their leaders.
    pub(crate) brokers: bool,
    /// The process is down until its commits expire.
    pub(crate) commits_expire: bool,
    /// Faults of a source stream.
    pub(crate) streams: StreamFault,
}

impl Faults {
    pub(crate) const NONE: Self = Self {
        kills: false,
        store_loses: false,
        clock_steps: false,
        clock_jumps: false,
        outages: false,
        shards_go_back: false,
        store_fills: false,
        power_loss: false,
        brokers: false,
        commits_expire: false,
        streams: StreamFault::None,
    };
    pub(crate) const ALL: Self = Self {
        kills: true,
        store_loses: true,
        clock_steps: true,
        outages: true,
        ..Self::NONE
    };
    /// Only store rollbacks. A takeover would reload everything and hide a missing reload.
    pub(crate) const STORE_LOSES: Self = Self {
        store_loses: true,
        ..Self::NONE
    };
    /// Kills and store losses, while all clocks agree.
    pub(crate) const KILLS_AND_LOSSES: Self = Self {
        kills: true,
        ..Self::STORE_LOSES
    };
    pub(crate) const CLOCK_JUMPS: Self = Self {
        clock_jumps: true,
        ..Self::NONE
    };
    /// Kills, and losses of single shards.
    pub(crate) const SHARDS_GO_BACK: Self = Self {
        kills: true,
        shards_go_back: true,
        ..Self::NONE
    };
    /// Kills, while the store is full from time to time.
    pub(crate) const STORE_FILLS: Self = Self {
        kills: true,
        store_fills: true,
        ..Self::NONE
    };
    /// Kills and power losses.
    pub(crate) const POWER_LOSS: Self = Self {
        kills: true,
        power_loss: true,
        ..Self::NONE
    };
    /// Only brokers that go away.
    pub(crate) const BROKERS: Self = Self {
        brokers: true,
        ..Self::NONE
    };
    /// Brokers that go away, kills, and losses of the store.
    pub(crate) const BROKERS_AND_LOSSES: Self = Self {
        brokers: true,
        ..Self::KILLS_AND_LOSSES
    };
    /// Kills, and commits that expire, also together with a loss of the store.
    pub(crate) const COMMITS_EXPIRE: Self = Self {
        kills: true,
        commits_expire: true,
        ..Self::NONE
    };
    /// All faults except store rollbacks.
    pub(crate) const STORE_KEEPS: Self = Self {
        store_loses: false,
        ..Self::ALL
    };
}

/// Injects faults for `length`.
pub(crate) async fn inject(
    world: &World,
    process: &mut Process,
    faults: Faults,
    length: Duration,
    random: &mut StdRng,
) {
    let end = tokio::time::Instant::now() + length;
    if faults.power_loss {
        world.sync_store();
    }
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(random.random_range(20..1_500))).await;
        world.take_snapshot();
        if faults.power_loss && random.random_bool(0.7) {
            world.sync_store();
        }
        match random.random_range(0..faults.streams.kinds()) {
            0..5 if faults.clock_jumps => world.jump_clocks(random).await,
            2..6 if faults.shards_go_back => world.roll_back_shard(random),
            2..6 if faults.power_loss => world.lose_power(random).await,
            2..6 if faults.commits_expire => world.expire_commits(process, random).await,
            6..10 if faults.brokers => {
                let is_killed = faults.kills && random.random_bool(0.3);
                world.lose_broker(process, is_killed, random).await;
            }
            2..6 if faults.store_fills => fill_store(world, process, random).await,
            0 | 1 if faults.kills => {
                world.note("kill");
                process.kill(world).await;
                tokio::time::sleep(Duration::from_millis(random.random_range(0..3_000))).await;
                process.ensure_running(world, random);
            }
            2 if faults.store_loses => world.roll_back(random),
            3 if faults.store_loses && random.random_bool(0.4) => world.wipe(),
            4 if faults.clock_steps => world.step_clock(random.random_range(-1_500..1_500)),
            5 if faults.outages => {
                world.store_down(true);
                tokio::time::sleep(Duration::from_millis(random.random_range(10..2_000))).await;
                world.store_down(false);
            }
            6 if faults.outages => {
                world.target_missing(true);
                tokio::time::sleep(Duration::from_millis(random.random_range(10..2_000))).await;
                world.target_missing(false);
            }
            7 if faults.outages => hold_reports(world, process, faults, random).await,
            8 if faults.outages => {
                // The worker does not learn the outcome of its commit.
                let is_unheard = world.is_exactly_once() && random.random_bool(0.5);
                if is_unheard {
                    world.hold_reports(true);
                    tokio::time::sleep(Duration::from_millis(random.random_range(10..300))).await;
                }
                world.producers_failed(true);
                tokio::time::sleep(Duration::from_millis(random.random_range(10..3_000))).await;
                world.producers_failed(false);
                if is_unheard {
                    world.hold_reports(false);
                }
            }
            9 if faults.outages && world.is_exactly_once() => {
                hold_sends(world, process, faults, random).await;
            }
            10.. => faults.streams.inject(world, process, random).await,
            _ => {}
        }
    }
}

/// The store is full for some seconds, and the process may be killed meanwhile.
async fn fill_store(world: &World, process: &mut Process, random: &mut StdRng) {
    world.store_full(true);
    tokio::time::sleep(Duration::from_millis(random.random_range(10..3_000))).await;
    if random.random_bool(0.5) {
        world.note("kill, with a full store");
        process.kill(world).await;
        process.ensure_running(world, random);
        tokio::time::sleep(Duration::from_millis(random.random_range(10..3_000))).await;
    }
    world.store_full(false);
}

/// Reports arrive late, and the process may be killed meanwhile.
async fn hold_reports(world: &World, process: &mut Process, faults: Faults, random: &mut StdRng) {
    world.hold_reports(true);
    tokio::time::sleep(Duration::from_millis(random.random_range(10..600))).await;
    if faults.kills && random.random_bool(0.5) {
        world.note("kill, with sends in flight");
        process.kill(world).await;
        if faults.clock_steps {
            // The next owner sees fewer due messages than its predecessor claimed.
            world.step_clock(random.random_range(-1_500..0));
        }
        process.ensure_running(world, random);
    }
    world.hold_reports(false);
}

/// The network holds sent records, and the process may be killed meanwhile.
async fn hold_sends(world: &World, process: &mut Process, faults: Faults, random: &mut StdRng) {
    world.hold_sends(true);
    tokio::time::sleep(Duration::from_millis(random.random_range(10..600))).await;
    if faults.kills && random.random_bool(0.7) {
        world.note("kill, with sends in the network");
        process.kill(world).await;
        process.ensure_running(world, random);
        tokio::time::sleep(Duration::from_millis(random.random_range(10..3_000))).await;
    }
    world.hold_sends(false);
}
