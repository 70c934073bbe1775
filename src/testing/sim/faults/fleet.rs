//! Random steps of a simulated fleet: workers join and leave, and faults are injected.

use crate::testing::sim::faults::network::CutMode;
use crate::testing::sim::fleet::Fleet;
use rand::RngExt;
use std::time::Duration;

const WORKERS_MAX: usize = 4;

/// Faults in addition to workers that join and leave as planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FleetFaults {
    None,
    /// Kills, freezes, network cuts, outages, failed producers, wrong clocks, readers without
    /// assignment, and late commits.
    All,
    /// The faults above, and a store that rolls back or loses everything.
    StoreLoses,
    /// The faults above, and consumers that are recreated. The source is a NATS stream.
    Streams,
    /// The faults of `All`, and two servers that are both the store for a while.
    TwoStores,
    /// Exactly-once delivery with all faults, and a network that holds sent records.
    ExactlyOnce,
    /// The faults above, and a store that rolls back or loses everything.
    ExactlyOnceStoreLoses,
    /// The faults of `ExactlyOnce`, and two servers that are both the store for a while.
    ExactlyOnceTwoStores,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Rest,
    Join,
    Leave,
    Kill,
    Freeze,
    CutFromStore,
    CutFromBrokers,
    FailProducers,
    SetClock,
    StoreOutage,
    RollBack,
    Wipe,
    SplitStore,
    ReadAll,
    HoldCommits,
    RemakeConsumers,
    HoldSends,
    FreezeUnheard,
}

const PLANNED: &[Step] = &[Step::Rest, Step::Join, Step::Join, Step::Leave];
const FAULTS: &[Step] = &[
    Step::Kill,
    Step::Freeze,
    Step::Freeze,
    Step::CutFromStore,
    Step::CutFromBrokers,
    Step::FailProducers,
    Step::SetClock,
    Step::SetClock,
    Step::StoreOutage,
    Step::ReadAll,
    Step::HoldCommits,
];
const STORE_LOSES: &[Step] = &[Step::RollBack, Step::Wipe];
const TWO_STORES: &[Step] = &[Step::SplitStore, Step::SplitStore];
const STREAMS: &[Step] = &[Step::RemakeConsumers];
const NETWORK: &[Step] = &[Step::HoldSends, Step::FreezeUnheard];

impl FleetFaults {
    pub(crate) fn is_exactly_once(self) -> bool {
        matches!(
            self,
            Self::ExactlyOnce | Self::ExactlyOnceStoreLoses | Self::ExactlyOnceTwoStores
        )
    }

    fn steps(self) -> Vec<Step> {
        let steps: &[&[Step]] = match self {
            Self::None => &[PLANNED],
            Self::All => &[PLANNED, FAULTS],
            Self::StoreLoses => &[PLANNED, FAULTS, STORE_LOSES],
            Self::Streams => &[PLANNED, FAULTS, STORE_LOSES, STREAMS],
            Self::TwoStores => &[PLANNED, FAULTS, TWO_STORES],
            Self::ExactlyOnceTwoStores => &[PLANNED, FAULTS, NETWORK, TWO_STORES],
            Self::ExactlyOnce => &[PLANNED, FAULTS, NETWORK],
            Self::ExactlyOnceStoreLoses => &[PLANNED, FAULTS, NETWORK, STORE_LOSES],
        };
        steps.concat()
    }
}

impl Fleet {
    pub(crate) async fn step(&mut self, faults: FleetFaults) {
        self.world.take_snapshot();
        let steps = faults.steps();
        match steps[self.random.random_range(0..steps.len())] {
            Step::Rest => {}
            Step::Join if self.processes.len() < WORKERS_MAX => self.join(),
            Step::Leave if self.processes.len() > 1 => self.leave().await,
            Step::Kill if self.processes.len() > 1 => {
                let at = self.random_index();
                self.kill(at, "is killed").await;
            }
            Step::Join | Step::Leave | Step::Kill => {}
            Step::Freeze => {
                let at = self.random_index();
                self.freeze(at, "is frozen").await;
            }
            Step::CutFromStore => self.cut_from_store().await,
            Step::CutFromBrokers => self.cut_from_brokers().await,
            Step::FailProducers => self.fail_producers().await,
            Step::SetClock => {
                let (at, off) = (self.random_index(), self.random.random_range(-1_200..1_200));
                self.set_clock(at, off);
            }
            Step::StoreOutage => self.store_outage().await,
            Step::RollBack => self.world.roll_back(&mut self.random),
            Step::Wipe if self.random.random_bool(0.4) => self.world.wipe(),
            Step::Wipe => {}
            Step::SplitStore => self.split_store().await,
            Step::ReadAll => {
                let at = self.random_index();
                self.note(at, "reads all partitions beside the others");
                let reads_all = self.processes[at].control.reads_all.clone();
                reads_all.send_replace(true);
                self.pause(3_000).await;
                reads_all.send_replace(false);
            }
            Step::HoldCommits => self.hold_commits().await,
            Step::RemakeConsumers => self.world.remake_consumers(),
            Step::HoldSends => self.hold_sends().await,
            Step::FreezeUnheard => {
                self.world.hold_reports(true);
                self.pause(1_000).await;
                let at = self.random_index();
                self.freeze(at, "is frozen while reports are in flight")
                    .await;
            }
        }
    }

    pub(crate) async fn pause(&mut self, most: u64) {
        tokio::time::sleep(Duration::from_millis(self.random.random_range(20..most))).await;
    }

    fn random_index(&mut self) -> usize {
        self.random.random_range(0..self.processes.len())
    }

    /// Returns the number of the process and the current time.
    fn note(&self, at: usize, what: &str) -> (usize, i64) {
        let process = self.processes[at].control.number;
        self.world.note(format!("process {process} {what}"));
        (process, self.world.elapsed())
    }

    fn set_clock(&self, at: usize, off: i64) {
        self.note(at, &format!("has a clock that is {off} ms off"));
        self.world.note_clocks_differ();
        self.processes[at].control.clock.set_offset(off);
    }

    async fn leave(&mut self) {
        let at = self.random_index();
        let (process, _) = self.note(at, "stops");
        let mut leaving = self.processes.remove(at);
        if !leaving.stop().await {
            self.world
                .report_violation(format!("process {process} did not stop in time"));
        }
    }

    async fn kill(&mut self, at: usize, what: &str) {
        let (process, now) = self.note(at, what);
        self.allow_duplicates(process, now);
        let mut dead = self.processes.remove(at);
        dead.kill(&self.world).await;
    }

    /// Freezes a process for a while. Reports that were held arrive before it continues.
    async fn freeze(&mut self, at: usize, what: &str) {
        let (process, now) = self.note(at, what);
        self.allow_duplicates(process, now);
        self.processes[at].control.freeze(true);
        self.pause(3_000).await;
        self.world.hold_reports(false);
        self.note(at, "continues");
        self.processes[at].control.freeze(false);
    }

    async fn cut_from_store(&mut self) {
        let at = self.random_index();
        let (process, from) = self.note(at, "is cut off from the store");
        self.allow_duplicates(process, from);
        self.processes[at].control.is_cut_from_store.set(true);
        self.pause(3_000).await;
        let (_, until) = self.note(at, "is connected again");
        self.allow_duplicates(process, until);
        self.processes[at].control.is_cut_from_store.set(false);
    }

    /// Cuts one process off from the brokers: it cannot read, query or send. The others continue.
    async fn cut_from_brokers(&mut self) {
        let (at, cut) = (
            self.random_index(),
            if self.random.random_bool(0.5) {
                CutMode::Fails
            } else {
                CutMode::Hangs
            },
        );
        let (process, from) = self.note(
            at,
            &format!("is cut off from the brokers, queries: {cut:?}"),
        );
        let network = self.processes[at].control.network.clone();
        network.cut(cut);
        self.pause(3_000).await;
        match self.random.random_range(0..5) {
            0 if self.processes.len() > 1 => {
                self.kill(at, "is killed, cut off from the brokers").await;
            }
            1 => self.freeze(at, "is frozen, cut off from the brokers").await,
            _ => {}
        }
        self.world
            .note(format!("the network of process {process} heals"));
        network.heal();
        self.allow_duplicates(process, from);
    }

    /// Makes a process resend its messages with a clock that was set back.
    async fn fail_producers(&mut self) {
        let at = self.random_index();
        let (process, from) = self.note(at, "is cut off from the brokers, queries hang");
        let network = self.processes[at].control.network.clone();
        network.cut(CutMode::Hangs);
        self.pause(700).await;
        self.note(at, "has producers that failed permanently");
        network.fail_producers();
        let off = self.random.random_range(-1_500..0);
        self.set_clock(at, off);
        self.pause(700).await;
        self.note(at, "has new producers and reaches the brokers again");
        network.heal();
        self.allow_duplicates(process, from);
    }

    async fn store_outage(&mut self) {
        let (from, all): (_, Vec<usize>) = (
            self.world.elapsed(),
            self.processes
                .iter()
                .map(|process| process.control.number)
                .collect(),
        );
        self.world.store_down(true);
        self.pause(3_000).await;
        if self.processes.len() > 1 && self.random.random_bool(0.3) {
            let at = self.random_index();
            self.kill(at, "is killed, while the store does not answer")
                .await;
            self.pause(1_000).await;
        }
        self.world.store_down(false);
        all.into_iter()
            .for_each(|process| self.allow_duplicates(process, from));
    }

    /// After a failover, some processes still reach the former primary, and others its replica. The
    /// writes of the former one are lost.
    async fn split_store(&mut self) {
        let former_server = self.world.store().fork();
        let left_behind: Vec<_> = self
            .processes
            .iter()
            .filter(|_| self.random.random_bool(0.5))
            .map(|process| process.control.clone())
            .collect();
        for control in &left_behind {
            control.former_server.replace(Some(former_server.clone()));
        }
        let numbers: Vec<_> = left_behind.iter().map(|control| control.number).collect();
        self.world
            .note(format!("processes {numbers:?} stay with the former server"));
        let since = self.world.elapsed();
        self.world.note_second_store(since);
        if self.random.random_bool(0.5) {
            self.world.roll_back(&mut self.random);
        }
        self.pause(4_000).await;
        if self.processes.len() > 1 && self.random.random_bool(0.3) {
            let at = self.random_index();
            self.kill(at, "is killed, while there are two stores").await;
            self.pause(1_000).await;
        }
        self.world.note("the former server is gone");
        self.world.note_second_store(since);
        for control in &left_behind {
            control.former_server.replace(None);
        }
    }

    /// The commits of a process arrive after those of others, which may have its partitions by then.
    async fn hold_commits(&mut self) {
        let at = self.random_index();
        self.note(at, "has commits that arrive late");
        let network = self.processes[at].control.network.clone();
        network.hold_commits(true);
        self.pause(2_000).await;
        if self.processes.len() > 1 && self.random.random_bool(0.7) {
            self.kill(at, "is killed, with commits in the network")
                .await;
            self.pause(3_000).await;
        }
        self.world.note("the late commits arrive");
        network.hold_commits(false);
    }

    async fn hold_sends(&mut self) {
        self.world.hold_sends(true);
        self.pause(1_000).await;
        if self.processes.len() > 1 && self.random.random_bool(0.5) {
            let at = self.random_index();
            self.kill(at, "is killed, with sends in the network").await;
            self.pause(2_000).await;
        }
        self.world.hold_sends(false);
    }
}
