//! Tests a Redis Cluster: failovers and moving slots under load lose nothing, and each command
//! reaches all primaries.

use std::time::{Duration, Instant};

use crate::env::{Postdate, RedisCluster, eventually, kafka, now_ms};
use crate::verdict::{LIMIT, Lateness, Scene, number, wait_until_ready};

/// Messages that are sent together, ten times a second.
const PER_STEP: usize = 100;
const STEP: Duration = Duration::from_millis(100);
/// Load before and after a fault, in steps.
const AROUND: usize = 15;
/// Load while a replica is cut off, in steps.
const BEHIND: usize = 20;
const PARTITIONS: i32 = 12;
/// Load while a primary without a replica is away, in steps.
const AWAY: usize = 100;

/// A way to lose a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Killed,
    Frozen,
    /// Killed, while its replica lacks the last two seconds.
    ReplicaBehind,
}

/// Two workers on a cluster.
struct Deployment {
    cluster: RedisCluster,
    scene: Scene,
    workers: [Postdate; 2],
}

impl Deployment {
    fn start(name: &str, delivery: &str) -> Deployment {
        let cluster = RedisCluster::start();
        let scene = Scene::new(kafka(), name, PARTITIONS);
        let more = format!("delivery = \"{delivery}\"");
        let config = scene.config_stored(&cluster.table(), &more);
        let workers = [(); 2].map(|()| Postdate::start(&config));
        workers.iter().for_each(wait_until_ready);
        Deployment {
            cluster,
            scene,
            workers,
        }
    }

    /// Sends messages that are due in 0.5 to 3.5 seconds, so that more than a thousand wait.
    fn load(&mut self, steps: usize) {
        for _ in 0..steps {
            let began = Instant::now();
            self.scene.load(PER_STEP, 500..3_500);
            std::thread::sleep(STEP.saturating_sub(began.elapsed()));
        }
    }

    /// Loses a primary under load, and continues until its replica has taken over.
    fn lose_primary(&mut self, rank: usize, loss: Loss) {
        self.load(AROUND);
        let old = self.cluster.primary(rank);
        if loss == Loss::ReplicaBehind {
            self.cluster.leave_replica_behind(old);
            self.load(BEHIND);
        }
        match loss {
            Loss::Frozen => self.cluster.node(old).pause(),
            Loss::Killed | Loss::ReplicaBehind => self.cluster.node_mut(old).kill(),
        }
        let began = Instant::now();
        while !self.cluster.has_replaced(old) {
            assert!(began.elapsed() < Duration::from_secs(60), "no failover");
            self.load(1);
        }
        self.load(AROUND);
        match loss {
            Loss::Frozen => self.cluster.node(old).resume(),
            Loss::Killed | Loss::ReplicaBehind => self.cluster.node_mut(old).restart(),
        }
        self.load(AROUND);
        self.scene.flush();
        self.cluster.wait_until_whole();
    }

    fn lose_each_primary(&mut self) {
        let losses = [Loss::Killed, Loss::Frozen, Loss::ReplicaBehind];
        for (rank, loss) in losses.into_iter().enumerate() {
            self.lose_primary(rank, loss);
        }
    }

    fn counted_duplicates(&self) -> usize {
        let counts = self
            .workers
            .iter()
            .map(|worker| worker.metrics().sum("postdate_possible_duplicates_total") as usize);
        counts.sum()
    }

    fn is_ready_and_balanced(&mut self) {
        self.workers.iter().for_each(wait_until_ready);
        self.scene.ledger_says_none_twice(&self.workers[0]);
    }
}

#[test]
fn at_least_once_survives_failovers_of_each_primary_and_counts_its_duplicates() {
    let mut deployment = Deployment::start("redis_cluster", "at-least-once");
    let sink = deployment.scene.sink();
    deployment.lose_each_primary();
    let duplicates = deployment.scene.all_arrive(&sink);
    let counted = deployment.counted_duplicates();
    assert!(
        duplicates <= counted,
        "{duplicates} duplicates, {counted} counted"
    );
    deployment.is_ready_and_balanced();
}

#[test]
fn exactly_once_survives_failovers_of_each_primary_without_duplicates() {
    let mut deployment = Deployment::start("redis_cluster_exact", "exactly-once");
    let sink = deployment.scene.sink();
    deployment.lose_each_primary();
    assert_eq!(deployment.scene.all_arrive(&sink), 0);
    deployment.is_ready_and_balanced();
}

#[test]
fn a_lost_primary_without_replica_delays_only_its_own_shards() {
    let mut deployment = Deployment::start("redis_cluster_part", "at-least-once");
    let sink = deployment.scene.sink();
    // The second worker has its share of the shards by then.
    deployment.load(3 * AROUND);
    let (cluster, scene) = (&mut deployment.cluster, &deployment.scene);
    let owner = |partition| cluster.owner(&format!("{}meta", scene.shard(partition)));
    let owners: Vec<usize> = (0..PARTITIONS).map(owner).collect();
    // Without the list of workers, all deliveries stop.
    let keeps = cluster.owner(&scene.sessions());
    let other = owners.iter().find(|owner| **owner != keeps);
    let lost = *other.expect("the shards are on all primaries");
    let replica = cluster.replica_of(lost);
    cluster.node_mut(replica).kill();
    cluster.node_mut(lost).kill();
    let since = now_ms();
    deployment.load(AWAY);
    let until = now_ms();
    for node in [lost, replica] {
        deployment.cluster.node_mut(node).restart();
    }
    deployment.load(AROUND);
    deployment.scene.flush();
    deployment.cluster.wait_until_whole();
    deployment.scene.all_arrive(&sink);
    let records = sink.records();
    let (away, others): (Vec<_>, Vec<_>) = records
        .iter()
        .partition(|record| owners[number(record) % owners.len()] == lost);
    let away = Lateness::of("of the lost primary", away, since..until);
    let others = Lateness::of("of the others", others, since..until);
    // A shard that waits for the lost primary waits for all of its absence.
    assert!(away.greatest() > 5_000, "the primary was away");
    assert!(others.at(990) < away.at(500) / 4 && others.greatest() < away.greatest() / 2);
    deployment.is_ready_and_balanced();
}

#[test]
fn slots_move_under_load_and_nothing_is_lost_or_repeated() {
    let mut deployment = Deployment::start("redis_cluster_moves", "at-least-once");
    let sink = deployment.scene.sink();
    deployment.load(AROUND);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let from = deployment.cluster.primary(from);
        let to = deployment.cluster.primary(to);
        // Half of the slots of a primary, and so half of its shards.
        let mut moving = deployment.cluster.move_slots(from, to, 2_700);
        let status = loop {
            deployment.load(1);
            if let Some(status) = moving.try_wait().unwrap() {
                break status;
            }
        };
        assert!(status.success(), "{status}");
    }
    deployment.load(AROUND);
    deployment.scene.flush();
    assert_eq!(deployment.scene.all_arrive(&sink), 0);
    deployment.is_ready_and_balanced();
}

#[test]
fn every_command_reaches_the_shards_of_all_primaries() {
    let mut deployment = Deployment::start("redis_cluster_commands", "at-least-once");
    deployment.scene.send(200, 3_600_000..3_700_000);
    let worker = &deployment.workers[0];
    eventually("200 messages wait", LIMIT, || {
        let workers = deployment.workers.iter();
        let waiting = workers.map(|worker| worker.metrics().sum("postdate_pending_messages"));
        (waiting.sum::<f64>() >= 200.0).then_some(())
    });
    for command in [
        &["pending"][..],
        &["ledger"],
        &["workers"],
        &["quarantine", "list"],
    ] {
        let output = worker.command(command);
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
    let said = |command: &[&str]| {
        let output = worker.command(command);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let pending = said(&["pending"]);
    assert!(
        pending.contains("redis cluster 127.0.0.1:") && pending.contains("200"),
        "{pending}"
    );
    let text = said(&["check", "--json"]);
    let check: serde_json::Value = serde_json::from_str(&text).unwrap();
    let items = check["items"].as_array().unwrap();
    let primaries = items.iter().filter(|item| {
        let is_of_primary = item.to_string().contains("\"store 127.0.0.1:");
        is_of_primary && item.to_string().contains("redis reachable")
    });
    assert_eq!(
        (primaries.count(), &check["fail"]),
        (3, &0.into()),
        "{text}"
    );
}
