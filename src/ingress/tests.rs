//! Tests: an ingress with a memory broker and a memory store.

use super::partition::NextStep;
use super::quota::Waiting;
use super::{Appender, HealthParts, Ingress, Options, Ports, Quota, appender_channels};
use crate::broker::{OffsetCommit, Source as _};
use crate::clock::WallClock;
use crate::encryption::KeyRing;
use crate::health::Health;
use crate::limit::{
    COORDINATOR_WAIT_MAX, DISPLACED_READER_DELAY, IngressMemory, LOOP_STALL_MAX,
    MEMBERSHIP_INTERVAL, OFFSET_COMMIT_INTERVAL, OFFSET_COMMIT_REPEAT_INTERVAL,
    SHARD_OPEN_RETRY_DELAY,
};
use crate::membership::{ReadAssignment, SessionClock, StoreTime};
use crate::metric;
use crate::model::{
    CommitMetadata, Control, Dialects, Naming, Offset, Partition, Pause, PositionRules, RetryKeys,
    RoutingRules, SessionId, ShardId, StartPoint, TargetRules, Timestamp, Watermark, WithoutDelay,
    WorkerId,
};
use crate::run::{FarTarget, RunBuilder, ThinHours};
use crate::store::{ShardStore as _, StorePart};
use crate::testing::broker::memory::MemoryCluster;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::store::memory::MemoryStore;
use crate::trace::Tracer;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_util::sync::CancellationToken;

const SESSION: Duration = Duration::from_secs(5);

const LONG: Duration = Duration::from_secs(3_600);

/// The topic `t`, the group `g`, and what all workers share.
struct Environment {
    cluster: MemoryCluster,
    store: MemoryStore,
    health: Health,
    assigned: watch::Sender<ReadAssignment>,
    session_clock: SessionClock,
}

impl Environment {
    fn new(partitions: i32) -> Self {
        let cluster = MemoryCluster::new(Rc::new(WallClock));
        cluster.create_topic("t", partitions);
        Self {
            cluster,
            store: MemoryStore::new(Rc::new(WallClock)),
            health: Health::new(),
            assigned: watch::Sender::new(ReadAssignment::default()),
            session_clock: SessionClock::default(),
        }
    }

    fn ingress(&self, rules: RoutingRules, process: u64) -> Ingress {
        self.worker(rules, process, Quota::default()).0
    }

    fn worker(&self, rules: RoutingRules, process: u64, quota: Quota) -> (Ingress, Appender) {
        let options = Options {
            deployment: "d".into(),
            route: "r".into(),
            rules,
            tells_outcomes: false,
            start: StartPoint::First,
            stops_at_gap: true,
            quota: watch::channel(quota).1,
            thin: ThinHours::DEFAULT,
            keys: KeyRing::plain(),
            memory: IngressMemory {
                unstored: 1 << 26,
                call: 1 << 22,
            },
        };
        let (appender, inbox) = appender_channels();
        let timers_done = CancellationToken::new();
        timers_done.cancel();
        let ports = Ports {
            source: Box::new(self.cluster.source("g")),
            store: Rc::new(self.store.clone()),
            clock: Rc::new(WallClock),
            health: HealthParts::new(&self.health, "r"),
            metric: metric::RouteMetrics::new("r"),
            memory_metric: metric::MemoryGauges::new("unstored"),
            tracer: Tracer::default(),
            appender,
            assignment: self.assigned.subscribe(),
            session_clock: self.session_clock.clone(),
            timers_done,
        };
        let appender = Appender {
            store: Rc::new(self.store.clone()),
            inbox,
            hints: Vec::new(),
            health: Health::new().register("appender"),
            call_bytes_max: 1 << 22,
            outcomes: None,
        };
        (Ingress::new(options, ports, process), appender)
    }

    fn assign(&self, ingress: &mut Ingress, indexes: &[i32]) {
        let partitions = indexes.iter().map(|index| Partition::new("t", *index));
        self.assigned.send_replace(ReadAssignment {
            partitions: partitions.collect(),
            of_route: indexes.len(),
            is_complete: true,
        });
        ingress.on_assignment();
    }

    fn renew_session(&self) {
        let session = SessionId {
            worker: WorkerId(1),
            number: 1,
        };
        let store = StoreTime::just_answered(Timestamp::AT_ONCE);
        self.session_clock
            .renew(session, Instant::now(), SESSION, store);
    }

    async fn settle_session(&self) {
        self.renew_session();
        advance(SESSION).await;
        self.renew_session();
    }

    fn committed(&self, partition: &Partition) -> String {
        let committed = self.cluster.committed_offset("g", partition);
        committed.expect("a commit").1
    }
}

fn rules(max_delay: Duration) -> RoutingRules {
    let no_names = Vec::<String>::new;
    RoutingRules {
        targets: TargetRules::new(Naming::Topic, Some("target"), no_names(), no_names()),
        replies: None,
        max_delay,
        max_retry_wait: Duration::from_secs(1),
        without_delay: WithoutDelay::Relay,
        on_duplicate: crate::model::OnDuplicate::Replace,
        change_by_origin: false,
        dialects: Dialects::default(),
        is_recurring: false,
        retry_keys: RetryKeys::default(),
    }
}

async fn check(ingress: &mut Ingress) {
    ingress.start_check(false);
    ingress.finish_check().await.unwrap();
}

fn is_reading(ingress: &Ingress, id: &Partition) -> bool {
    let partition = ingress.partitions.get(id);
    partition.is_some_and(|partition| partition.is_reading())
}

/// Runs a body that injected faults may change, with its own paused clock.
fn run<T>(faults: &[InjectedFault], body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime without I/O can always be built");
    fault_injection::with(faults.iter().copied(), || runtime.block_on(body))
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_was_revoked_does_not_keep_the_process_from_being_ready() {
    let world = Environment::new(2);
    let mut ingress = world.ingress(rules(LONG), 1);
    let (uncommitted, stopped) = (Partition::new("t", 0), Partition::new("t", 1));
    world.assign(&mut ingress, &[0, 1]);
    ingress.open_due_shards().await.unwrap();
    assert_eq!(world.health.not_ready(), []);

    let mut partition = ingress.partitions.get_mut(&stopped).unwrap();
    partition.stop_reading(Instant::now(), Some("its topic was recreated".to_owned()));
    drop(partition);
    ingress.report_shards();
    let mut partition = ingress.partitions.get_mut(&uncommitted).unwrap();
    partition.last_commit = None;
    drop(partition);
    world.cluster.set_down(true);
    check(&mut ingress).await;
    let parts = |health: &Health| health.not_ready().into_iter().map(|it| it.part);
    let expected = ["route r commits", "route r shards"];
    assert_eq!(parts(&world.health).collect::<Vec<_>>(), expected);

    world.assign(&mut ingress, &[]);
    check(&mut ingress).await;
    assert_eq!(world.health.not_ready(), []);
}

#[tokio::test(start_paused = true)]
async fn shards_are_opened_while_another_part_of_the_store_is_away() {
    let (world, ids) = (
        Environment::new(2),
        [0, 1].map(|at| Partition::new("t", at)),
    );
    world.store.set_parts(2);
    let mut ingress = world.ingress(rules(LONG), 1);
    world.assign(&mut ingress, &[0, 1]);
    let read = |ingress: &Ingress| ids.each_ref().map(|id| is_reading(ingress, id));
    world.store.set_down_part(Some(StorePart(0)));
    ingress.open_due_shards().await.unwrap();
    assert_eq!(read(&ingress), [false, true]);
    world.store.set_down_part(None);
    advance(SHARD_OPEN_RETRY_DELAY).await;
    ingress.open_due_shards().await.unwrap();
    assert_eq!(read(&ingress), [true, true]);
    assert_eq!(world.health.not_ready(), []);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_waits_for_the_group_coordinator_only_if_the_store_may_have_gone_back() {
    let (world, id) = (Environment::new(1), Partition::new("t", 0));
    let mut first = world.ingress(rules(LONG), 1);
    world.assign(&mut first, &[0]);
    first.open_due_shards().await.unwrap();
    drop(first);

    world.cluster.silence_coordinator(true);
    let mut second = world.ingress(rules(LONG), 2);
    world.assign(&mut second, &[0]);
    world.renew_session();
    let opening = timeout(Duration::from_secs(1), second.open_due_shards());
    assert!(opening.await.is_err(), "a new session trusts no store");
    world.settle_session().await;
    let asked = Instant::now();
    second.open_due_shards().await.unwrap();
    assert!(asked.elapsed() <= COORDINATOR_WAIT_MAX + Duration::from_millis(1));
    assert!(is_reading(&second, &id));
    check(&mut second).await;
    let not_ready = world.health.not_ready();
    assert!(
        not_ready[0]
            .reason
            .contains("does not tell the last offset commits")
    );

    world.store.wipe();
    check(&mut second).await;
    let opening = timeout(Duration::from_secs(1), second.open_due_shards());
    assert!(
        opening.await.is_err(),
        "only the commit tells where to start"
    );
}

/// Otherwise the worker would lose its session, with all shards of all routes.
#[tokio::test(start_paused = true)]
async fn a_loop_that_waits_for_the_broker_to_open_a_shard_moves_and_takes_append_results() {
    let (world, id) = (Environment::new(2), Partition::new("t", 0));
    let (mut ingress, appender) = world.worker(rules(LONG), 1, Quota::default());
    world.assign(&mut ingress, &[0]);
    ingress.open_due_shards().await.unwrap();
    let produced = (None, Some(&b"m"[..]));
    world.cluster.produce(&id, None, produced, []);
    while !ingress.partitions.get(&id).unwrap().has_batch() {
        let event = ingress.ports.source.next_event().await;
        ingress.on_source_event(event).unwrap();
    }
    // The store does not know the other shard, so its opening waits for the coordinator.
    world.cluster.silence_coordinator(true);
    world.assign(&mut ingress, &[0, 1]);
    ingress.ports.health.source.heartbeat();
    tokio::select! {
        opened = ingress.open_due_shards() => panic!("{opened:?}"),
        ended = appender.serve(CancellationToken::new()) => panic!("{ended:?}"),
        () = sleep(2 * LOOP_STALL_MAX) => {}
    }
    assert_eq!(world.health.not_moving(LOOP_STALL_MAX), []);
    let stored = ingress.partitions.get(&id).unwrap().stored_to();
    assert_eq!(stored, Some(Watermark(1)));
}

/// Otherwise a store loss would forget a pause that was reported.
#[tokio::test(start_paused = true)]
async fn a_pause_that_was_read_is_committed_although_the_group_coordinator_answers_late() {
    let (world, id) = (Environment::new(1), Partition::new("t", 0));
    let mut ingress = world.ingress(rules(LONG), 1);
    world.assign(&mut ingress, &[0]);
    ingress.open_due_shards().await.unwrap();
    world.settle_session().await;
    let control = Control {
        pauses: true,
        origin: "d/r/t/0/0",
        at: Timestamp::from_millis(1),
        note: "why".into(),
    };
    let pause = Pause::followed_by(None, Offset(0), &control);
    let mut partition = ingress.partitions.get_mut(&id).unwrap();
    partition.pause.clone_from(&pause);
    partition.stop_reading(Instant::now(), None);
    drop(partition);
    world.cluster.silence_coordinator(true);
    let answer_late = async {
        sleep(Duration::from_secs(1)).await;
        world.cluster.silence_coordinator(false);
    };
    let (opened, ()) = tokio::join!(ingress.open_due_shards(), answer_late);
    opened.unwrap();
    assert!(is_reading(&ingress, &id));
    let committed = CommitMetadata::parse(&world.committed(&id)).unwrap();
    assert_eq!(committed.and_then(|it| it.pause), pause);
}

/// The rules in the commit, with their first offsets, after a takeover by other rules that the group
/// coordinator has not answered at first. The source begins at offset 5.
async fn rules_after_takeover() -> Vec<(u64, PositionRules)> {
    let (world, id) = (Environment::new(1), Partition::new("t", 0));
    for _ in 0..5 {
        let produced = (None, Some(&b"m"[..]));
        world.cluster.produce(&id, None, produced, []);
    }
    world.cluster.trim_to(&id, Offset(5));
    let mut first = world.ingress(rules(LONG), 1);
    world.assign(&mut first, &[0]);
    first.open_due_shards().await.unwrap();
    drop(first);

    let before = world.committed(&id);
    world.cluster.silence_coordinator(true);
    let mut second = world.ingress(rules(Duration::from_secs(60)), 2);
    world.assign(&mut second, &[0]);
    world.settle_session().await;
    second.open_due_shards().await.unwrap();
    second.start_check(false);
    let checked = timeout(OFFSET_COMMIT_INTERVAL, second.finish_check());
    drop(checked.await);
    assert_eq!(world.committed(&id), before);
    world.cluster.silence_coordinator(false);
    second.finish_check().await.unwrap();
    let answer = second.question.answer().await;
    second.on_commits(answer).unwrap();
    check(&mut second).await;
    let committed = CommitMetadata::parse(&world.committed(&id));
    let committed = committed.expect("a known version").expect("a commit");
    let epochs = committed.rules.epochs().iter();
    epochs
        .map(|epoch| (epoch.from, epoch.rules.clone()))
        .collect()
}

#[test]
fn rules_that_a_takeover_assumes_are_added_to_the_committed_ones() {
    let [old, new] = [LONG, Duration::from_secs(60)].map(|delay| PositionRules::of(&rules(delay)));
    let expected = vec![(0, old), (5, new)];
    assert_eq!(run(&[], rules_after_takeover()), expected);
    let faults = [InjectedFault::CommitAssumedRules];
    assert_ne!(run(&faults, rules_after_takeover()), expected);
}

/// Returns whether an idle ingress replaces an older commit in time.
async fn replaces_a_late_commit() -> bool {
    let (world, id) = (Environment::new(1), Partition::new("t", 0));
    let mut ingress = world.ingress(rules(LONG), 1);
    world.assign(&mut ingress, &[0]);
    ingress.open_due_shards().await.unwrap();
    check(&mut ingress).await;
    let committed = world.committed(&id);
    let late = OffsetCommit {
        partition: id.clone(),
        offset: Offset(0),
        metadata: "of a frozen worker".to_owned(),
    };
    let mut frozen = world.cluster.source("g");
    frozen.commit(vec![late]).await.unwrap();
    let since = Instant::now();
    while since.elapsed() <= OFFSET_COMMIT_REPEAT_INTERVAL {
        advance(OFFSET_COMMIT_INTERVAL).await;
        check(&mut ingress).await;
    }
    world.committed(&id) == committed
}

#[test]
fn a_commit_that_a_frozen_worker_sent_late_is_replaced() {
    assert!(run(&[], replaces_a_late_commit()));
    let faults = [InjectedFault::NeverRepeatCommits];
    assert!(!run(&faults, replaces_a_late_commit()));
}

const fn quota(messages: u64) -> Quota {
    Quota {
        messages: Some(messages),
        bytes: None,
        refuses: false,
    }
}

/// A worker reads partition 0 for some seconds with this quota, and stops. Returns the watermark
/// and the hold of the shard.
async fn positions_after_reading(world: &Environment, process: u64, quota: Quota) -> (u64, u64) {
    let (mut ingress, appender) = world.worker(rules(LONG), process, quota);
    world.assign(&mut ingress, &[0]);
    let stop = CancellationToken::new();
    let stopping = async {
        sleep(5 * OFFSET_COMMIT_INTERVAL).await;
        stop.cancel();
    };
    let give_up = CancellationToken::new();
    let (read, stored, ()) = tokio::join!(
        ingress.serve(stop.clone()),
        appender.serve(give_up),
        stopping
    );
    read.unwrap();
    stored.unwrap();
    let shard = ShardId::new("r", Partition::new("t", 0));
    let states = world.store.state(&[shard]).await.unwrap();
    let state = states[0].as_ref().expect("the shard was created");
    (state.watermark.0, state.hold.0)
}

/// The source returns 500 records at once, and nothing is delivered. The second quota is smaller.
async fn positions_over_quota() -> [(u64, u64); 3] {
    let (world, id) = (Environment::new(1), Partition::new("t", 0));
    for _ in 0..4_000 {
        let produced = (None, Some(&b"m"[..]));
        world.cluster.produce(&id, None, produced, []);
    }
    let first = positions_after_reading(&world, 1, quota(1_200)).await;
    let restarted = positions_after_reading(&world, 2, quota(100)).await;
    world.store.wipe();
    let rebuilt = positions_after_reading(&world, 3, quota(100)).await;
    [first, restarted, rebuilt]
}

#[test]
fn over_its_quota_a_route_reads_only_what_was_stored_before_a_store_loss_and_waits_for_no_hold() {
    let expected = [(1_500, 0); 3];
    assert_eq!(run(&[], positions_over_quota()), expected);
    let [.., rebuilt] = run(&[InjectedFault::QuotaStopsRebuild], positions_over_quota());
    assert!(rebuilt.0 < 1_500, "{rebuilt:?}");
    let [.., rebuilt] = run(&[InjectedFault::QuotaKeepsHolds], positions_over_quota());
    assert_eq!(rebuilt, (1_500, 4_000), "the timer waits for ever");
}

#[test]
fn each_worker_stops_at_its_share_of_the_quota() {
    let share = run(&[], async {
        let (world, id) = (Environment::new(2), Partition::new("t", 0));
        for _ in 0..4_000 {
            let produced = (None, Some(&b"m"[..]));
            world.cluster.produce(&id, None, produced, []);
        }
        let (mut ingress, _) = world.worker(rules(LONG), 1, quota(1_000));
        world.assign(&mut ingress, &[0]);
        ingress.open_due_shards().await.unwrap();
        ingress.route_partitions = 4;
        let mut partition = ingress.partitions.get_mut(&id).unwrap();
        let waiting = Waiting {
            messages: 249,
            bytes: 0,
        };
        partition.waiting.checked(waiting, Waiting::default());
        drop(partition);
        let before = ingress.waits_for_quota();
        let mut partition = ingress.partitions.get_mut(&id).unwrap();
        let waiting = Waiting {
            messages: 250,
            ..waiting
        };
        partition.waiting.checked(waiting, Waiting::default());
        drop(partition);
        [before, ingress.waits_for_quota()]
    });
    assert_eq!(share, [false, true]);
}

/// Returns whether a displaced reader reads again before its session is renewed, and after that.
async fn reads_again() -> [bool; 2] {
    let (world, id) = (Environment::new(1), Partition::new("t", 0));
    let mut ingress = world.ingress(rules(LONG), 1);
    world.assign(&mut ingress, &[0]);
    world.renew_session();
    ingress.open_due_shards().await.unwrap();
    advance(2 * DISPLACED_READER_DELAY).await;
    ingress.take_step(&id, NextStep::Displaced, "");
    advance(DISPLACED_READER_DELAY).await;
    ingress.open_due_shards().await.unwrap();
    let before = is_reading(&ingress, &id);
    world.renew_session();
    advance(MEMBERSHIP_INTERVAL).await;
    ingress.open_due_shards().await.unwrap();
    [before, is_reading(&ingress, &id)]
}

#[test]
fn a_displaced_reader_waits_until_the_membership_names_it_again() {
    assert_eq!(run(&[], reads_again()), [false, true]);
    let faults = [InjectedFault::DisplacedReaderContinues];
    assert_eq!(run(&faults, reads_again()), [true, true]);
}

/// A worker opens the shard. Between its questions to the broker and to the store, the worker before it
/// appends and commits five new records, and the store loses all if `is_lost`. Returns where the reading
/// starts. `None`: the worker does not read.
async fn start_beside_an_append(is_lost: bool) -> Option<Watermark> {
    let (world, id) = (Environment::new(1), Partition::new("t", 0));
    let mut first = world.ingress(rules(LONG), 1);
    world.assign(&mut first, &[0]);
    first.open_due_shards().await.unwrap();
    let mut second = world.ingress(rules(LONG), 2);
    world.assign(&mut second, &[0]);
    world.cluster.silence_coordinator(true);
    let append = async {
        // The opening has asked for the end, and waits for the last commit.
        sleep(Duration::from_millis(1)).await;
        for _ in 0..5 {
            let produced = (None, Some(&b"m"[..]));
            world.cluster.produce(&id, None, produced, []);
        }
        let mut partition = first.partitions.get_mut(&id).unwrap();
        partition.reached_end(Offset(5), Instant::now());
        let far = FarTarget::at(Timestamp::from_millis(0), ThinHours::DEFAULT);
        let job = partition.build_append(&mut RunBuilder::plain(1), far);
        let shards = [partition.shard.clone()];
        drop(partition);
        world.store.append(&[job.append]).await.unwrap();
        let state = world.store.state(&shards).await.unwrap().remove(0).unwrap();
        let mut partition = first.partitions.get_mut(&id).unwrap();
        let commit = partition.next_commit(&state, true, false, Instant::now());
        drop(partition);
        world.cluster.silence_coordinator(false);
        let committed = first.ports.source.commit(vec![commit.unwrap()]);
        committed.await.unwrap();
        if is_lost {
            world.store.wipe();
        }
    };
    let (opened, ()) = tokio::join!(second.open_due_shards(), append);
    opened.unwrap();
    let partition = second.partitions.get(&id).unwrap();
    partition.is_reading().then(|| partition.stored_to())?
}

#[test]
fn an_append_while_a_shard_is_opened_does_not_look_like_a_truncation() {
    for is_lost in [false, true] {
        let expected = Some(Watermark(5));
        assert_eq!(run(&[], start_beside_an_append(is_lost)), expected);
    }
    let faults = [InjectedFault::JudgeByEarlierEnd];
    assert_eq!(run(&faults, start_beside_an_append(false)), None);
    let repeats_all = Some(Watermark(0));
    assert_eq!(run(&faults, start_beside_an_append(true)), repeats_all);
}

#[tokio::test(start_paused = true)]
async fn a_truncation_is_found_when_the_shard_is_opened() {
    let (world, id) = (Environment::new(1), Partition::new("t", 0));
    for _ in 0..5 {
        let produced = (None, Some(&b"m"[..]));
        world.cluster.produce(&id, None, produced, []);
    }
    positions_after_reading(&world, 1, Quota::default()).await;
    world.cluster.truncate(&id, Offset(3));
    let mut ingress = world.ingress(rules(LONG), 2);
    world.assign(&mut ingress, &[0]);
    ingress.open_due_shards().await.unwrap();
    let reason = ingress.partitions.get(&id).unwrap().stop_reason.clone();
    let reason = reason.expect("the shard is stopped");
    assert!(
        reason.contains("ends at offset 3, but was read up to 5"),
        "{reason}"
    );
}
