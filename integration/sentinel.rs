//! Tests a group of Redis servers with sentinels: failovers under load lose nothing, and each
//! command finds the primary.

use std::time::{Duration, Instant};

use crate::env::{Postdate, RedisGroup, eventually, kafka};
use crate::verdict::{LIMIT, Scene, wait_until_ready};

/// Messages that are sent together, ten times a second.
const PER_STEP: usize = 100;
const STEP: Duration = Duration::from_millis(100);
/// Load before the fault, in steps.
const BEFORE: usize = 15;
/// Load after the failover, in steps.
const AFTER: usize = 15;

/// A way to lose the primary.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Killed,
    Frozen,
    /// Killed, while its replica lacks the last two seconds.
    ReplicaBehind,
}

/// Two workers on a group of servers.
struct Deployment {
    group: RedisGroup,
    scene: Scene,
    workers: [Postdate; 2],
}

impl Deployment {
    fn start(name: &str, delivery: &str) -> Deployment {
        let group = RedisGroup::start();
        let scene = Scene::new(kafka(), name, 4);
        let more = format!("delivery = \"{delivery}\"");
        let config = scene.config_stored(&group.table(), &more);
        let workers = [(); 2].map(|()| Postdate::start(&config));
        workers.iter().for_each(wait_until_ready);
        Deployment {
            group,
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

    /// Loses the primary under load, and continues until another one has taken over.
    fn lose_primary(&mut self, loss: Loss) {
        self.load(BEFORE);
        if matches!(loss, Loss::ReplicaBehind) {
            self.group.leave_replica_behind();
            self.load(20);
        }
        let old = self.group.wait_for_primary();
        match loss {
            Loss::Frozen => self.group.server(old).pause(),
            Loss::Killed | Loss::ReplicaBehind => self.group.server_mut(old).kill(),
        }
        let began = Instant::now();
        while self.group.primary().is_none_or(|primary| primary == old) {
            assert!(began.elapsed() < Duration::from_secs(60), "no failover");
            self.load(1);
        }
        self.load(AFTER);
        // It claims to be the primary until the sentinels make it a replica.
        match loss {
            Loss::Frozen => self.group.server(old).resume(),
            Loss::Killed | Loss::ReplicaBehind => self.group.server_mut(old).restart(),
        }
        self.load(AFTER);
        self.scene.flush();
        self.group.wait_until_whole();
    }

    fn counted_duplicates(&self) -> usize {
        let counts = self
            .workers
            .iter()
            .map(|worker| worker.metrics().sum("postdate_possible_duplicates_total") as usize);
        counts.sum()
    }
}

const LOSSES: [Loss; 3] = [Loss::Killed, Loss::Frozen, Loss::ReplicaBehind];

#[test]
fn at_least_once_survives_failovers_and_counts_its_duplicates() {
    let mut deployment = Deployment::start("sentinel", "at-least-once");
    let sink = deployment.scene.sink();
    for loss in LOSSES {
        deployment.lose_primary(loss);
        let duplicates = deployment.scene.all_arrive(&sink);
        let counted = deployment.counted_duplicates();
        assert!(
            duplicates <= counted,
            "{loss:?}: {duplicates} duplicates, {counted} counted"
        );
    }
    deployment.workers.iter().for_each(wait_until_ready);
    deployment
        .scene
        .ledger_says_none_twice(&deployment.workers[0]);
}

#[test]
fn exactly_once_survives_failovers_without_duplicates() {
    let mut deployment = Deployment::start("sentinel_exact", "exactly-once");
    let sink = deployment.scene.sink();
    for loss in LOSSES {
        deployment.lose_primary(loss);
        let duplicates = deployment.scene.all_arrive(&sink);
        assert_eq!(duplicates, 0, "{loss:?}");
    }
    deployment.workers.iter().for_each(wait_until_ready);
    deployment
        .scene
        .ledger_says_none_twice(&deployment.workers[0]);
}

#[test]
fn every_command_finds_the_primary_after_a_failover_with_a_silent_sentinel() {
    let mut deployment = Deployment::start("sentinel_commands", "at-least-once");
    deployment.scene.send(200, 3_600_000..3_700_000);
    let group = &mut deployment.group;
    let old = group.wait_for_primary();
    group.server_mut(old).kill();
    group.wait_until_replaced(old);
    group.pause_sentinel(0);
    deployment.workers.iter().for_each(wait_until_ready);
    eventually("200 messages wait", LIMIT, || {
        let workers = deployment.workers.iter();
        let waiting = workers.map(|worker| worker.metrics().sum("postdate_pending_messages"));
        (waiting.sum::<f64>() >= 200.0).then_some(())
    });
    let worker = &deployment.workers[0];
    for command in [
        &["pending"][..],
        &["ledger"],
        &["workers"],
        &["quarantine", "list"],
    ] {
        let output = worker.command(command);
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
    let output = worker.command(&["pending"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("redis sentinel orders") && said.contains("200"),
        "{said}"
    );
    let output = worker.command(&["check", "--json"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let check: serde_json::Value = serde_json::from_str(&said).unwrap();
    let items = check["items"].as_array().unwrap();
    let sentinels = items
        .iter()
        .filter(|item| item.to_string().contains("\"sentinel 127.0.0.1:"));
    assert_eq!(sentinels.count(), 3, "{said}");
    assert_eq!(check["fail"], 0, "{said}");
    deployment.group.resume_sentinel(0);
}
