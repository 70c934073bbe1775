//! The outcome records agree with the messages that the consumer sees, and no message waits for them.

use super::super::block_on_paused;
use crate::broker::{DeliveryFailure, FailureKind};
use crate::model::{DeadLetterReason, OnDuplicate, Partition};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::single::{Faults, inject};
use crate::testing::sim::process::Process;
use crate::testing::sim::seeds::chosen;
use crate::testing::sim::trace;
use crate::testing::sim::workload::{SOON, Sender, Sent, SentKind};
use crate::testing::sim::world::{OUTCOMES, SOURCE, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;

/// The time in which messages are sent, and the time until all are settled.
const LENGTH: Duration = Duration::from_secs(10);
const SETTLING: Duration = Duration::from_secs(150);

/// The records of each message, by its origin: how many there are of each outcome.
type Outcomes = BTreeMap<String, BTreeMap<String, usize>>;

fn origin(partition: i32, offset: u64) -> String {
    format!("sim/r/{SOURCE}/{partition}/{offset}")
}

/// The first origin of each message that was sent back to its source, by the origin of that record.
fn first_origins(world: &World) -> BTreeMap<String, String> {
    let mut firsts = BTreeMap::new();
    for record in world.cluster().records(SOURCE) {
        let is_retry = |(name, _): &&(Vec<u8>, _)| name == b"postdate-retry";
        let Some((_, Some(line))) = record.headers.iter().find(is_retry) else {
            continue;
        };
        let line = String::from_utf8_lossy(line);
        let first = line
            .split("origin=")
            .nth(1)
            .and_then(|it| it.split(' ').next());
        let first = first.expect("a retry names its origin").to_owned();
        firsts.insert(origin(record.partition, record.offset.0), first);
    }
    firsts
}

fn outcomes(world: &World) -> Outcomes {
    let firsts = first_origins(world);
    let mut outcomes = Outcomes::new();
    for record in world.cluster().records(OUTCOMES) {
        let payload = record.payload.expect("an outcome record has a payload");
        let json: serde_json::Value = serde_json::from_slice(&payload).expect("it is JSON");
        let origin = json["origin"]
            .as_str()
            .expect("it has an origin")
            .to_owned();
        assert_eq!(record.key.as_deref(), Some(origin.as_bytes()));
        let origin = firsts.get(&origin).cloned().unwrap_or(origin);
        let outcome = json["outcome"].as_str().expect("it has an outcome");
        let of_message = outcomes.entry(origin).or_default();
        *of_message.entry(outcome.to_owned()).or_default() += 1;
    }
    outcomes
}

/// The faults of the records of a message. `arrived`: how often it arrived, and how often as a dead letter.
fn violations(
    world: &World,
    sent: &Sent,
    outcomes: &BTreeMap<String, usize>,
    arrived: [usize; 2],
    faults: Faults,
) -> Vec<String> {
    let count = |outcome: &str| outcomes.get(outcome).copied().unwrap_or(0);
    let ends = ["delivered", "dead_lettered"].map(count);
    let others: usize = ["cancelled", "replaced", "dropped", "expired"]
        .map(count)
        .iter()
        .sum();
    let scheduled = usize::from(!matches!(sent.kind, SentKind::Refused | SentKind::Relay));
    let begun = count("scheduled") + count("dropped");
    let all = ends[0] + ends[1] + others;
    let is_complete = (begun, ends, all) == (scheduled, arrived, 1);
    let is_repeated = begun > scheduled || others > 1 || world.is_exactly_once() && all > 1;
    let is_delivered = others > 0 && arrived != [0, 0];
    let mut wrong = Vec::new();
    if faults == Faults::NONE && !is_complete || is_repeated || is_delivered {
        wrong.push(format!("it arrived {arrived:?} times: {outcomes:?}"));
    }
    if ends
        .into_iter()
        .zip(arrived)
        .any(|(told, arrived)| told > arrived)
    {
        wrong.push(format!(
            "it arrived {arrived:?} times, and has {ends:?} records"
        ));
    }
    wrong
}

struct Run {
    wrong: Vec<String>,
    /// The number of records of each outcome.
    totals: BTreeMap<String, usize>,
}

fn run(seed: u64, world: impl FnOnce() -> World, faults: Faults) -> Run {
    block_on_paused(async {
        let mut random = StdRng::seed_from_u64(seed);
        let world = world().with_outcomes();
        if faults != Faults::NONE {
            world.allow_duplicates();
        }
        let mut process = Process::start(&world, &mut random);
        let sender = Sender::new(&world, StdRng::seed_from_u64(random.random()), SOON);
        let inject = async {
            match faults == Faults::NONE {
                true => {}
                false => inject(&world, &mut process, faults, LENGTH, &mut random).await,
            }
        };
        let (sent, ()) = tokio::join!(sender.send_for(LENGTH), inject);
        world.heal();
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(SETTLING).await;
        process.stop().await;
        let mut arrivals: BTreeMap<String, [usize; 2]> = BTreeMap::new();
        for arrival in world.arrivals() {
            arrivals.entry(arrival.uid).or_default()[usize::from(arrival.is_dead)] += 1;
        }
        let outcomes = outcomes(&world);
        let mut wrong = world.take_violations();
        let mut totals: BTreeMap<String, usize> = BTreeMap::new();
        for (outcome, count) in outcomes.values().flatten() {
            *totals.entry(outcome.clone()).or_default() += count;
        }
        let none = BTreeMap::new();
        for sent in sent {
            if matches!(sent.kind, SentKind::Cancel { .. }) {
                continue;
            }
            let found = outcomes.get(&origin(sent.partition, sent.offset.0));
            let arrived = arrivals.get(&sent.uid).copied().unwrap_or_default();
            let found = violations(&world, &sent, found.unwrap_or(&none), arrived, faults);
            let text = |what| format!("{} at {}: {what}", sent.uid, sent.offset);
            wrong.extend(found.into_iter().map(text));
        }
        if !wrong.is_empty() {
            let trace = trace::render(&world.take_trace(), &wrong);
            wrong.extend(trace.lines().map(str::to_owned));
        }
        Run { wrong, totals }
    })
}

fn assert_kept(
    seeds: impl IntoIterator<Item = u64>,
    world: fn() -> World,
    faults: Faults,
) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for seed in seeds {
        let Run { wrong, totals } = run(seed, world, faults);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
        for (outcome, count) in totals {
            *all.entry(outcome).or_default() += count;
        }
    }
    all
}

fn at_least_once() -> World {
    World::new()
}

fn exactly_once() -> World {
    World::new().with_exactly_once()
}

fn keeps_first() -> World {
    let world = World::new();
    world.set_on_duplicate(OnDuplicate::KeepFirst);
    world
}

#[test]
fn without_faults_each_fate_has_one_record() {
    for world in [at_least_once, exactly_once] {
        let totals = assert_kept(0..3, world, Faults::NONE);
        for outcome in [
            "scheduled",
            "replaced",
            "cancelled",
            "delivered",
            "dead_lettered",
        ] {
            assert!(totals.contains_key(outcome), "{outcome}: {totals:?}");
        }
    }
    let totals = assert_kept(0..3, keeps_first, Faults::NONE);
    assert!(totals.contains_key("dropped"), "{totals:?}");
}

#[test]
fn a_record_with_a_wrong_end_is_noticed() {
    let injected = [InjectedFault::TellAllAsDelivered];
    let run = fault_injection::with(injected, || run(0, at_least_once, Faults::NONE));
    assert!(!run.wrong.is_empty(), "the fault is caught");
}

#[test]
fn records_of_changes_that_are_read_again_after_a_loss_are_noticed() {
    let is_noticed = |seed| {
        let injected = [InjectedFault::TellStoredAgain];
        let faults = Faults::KILLS_AND_LOSSES;
        let run = fault_injection::with(injected, || run(seed, at_least_once, faults));
        !run.wrong.is_empty()
    };
    assert!((300..310).any(is_noticed), "the fault is caught");
}

#[test]
fn a_change_of_a_message_that_may_have_been_delivered_is_noticed() {
    let injected = [InjectedFault::TellUncertainChanges];
    let run = fault_injection::with(injected, || run(100, exactly_once, Faults::ALL));
    assert!(!run.wrong.is_empty(), "the fault is caught");
}

#[test]
fn exactly_once_no_fate_has_two_records_through_all_faults() {
    let mut totals = assert_kept(chosen(100..120), exactly_once, Faults::ALL);
    totals.extend(assert_kept(
        chosen(200..210),
        exactly_once,
        Faults::STORE_KEEPS,
    ));
    assert!(totals.contains_key("retried"), "{totals:?}");
}

#[test]
fn at_least_once_no_record_tells_of_a_delivery_that_did_not_happen() {
    assert_kept(chosen(300..320), at_least_once, Faults::KILLS_AND_LOSSES);
}

#[test]
fn a_kill_while_the_outcome_topic_does_not_answer_repeats_no_message() {
    for world in [at_least_once, exactly_once] {
        block_on_paused(async {
            let mut random = StdRng::seed_from_u64(1);
            let world = world().with_outcomes();
            let cluster = world.cluster();
            let mut process = Process::start(&world, &mut random);
            let source = Partition::new(SOURCE, 0);
            let produce = |count: usize, name: &str| {
                let due = world.now().as_millis() + 3_000;
                for number in 0..count {
                    let at = [("postdate-at", due.to_string())];
                    world.produce(&source, &format!("{name}{number}"), &at);
                }
            };
            produce(20, "a");
            // The schedules have their records before the topic fails.
            tokio::time::sleep(Duration::from_secs(2)).await;
            cluster.set_leaderless(&cluster.partitions(OUTCOMES));
            tokio::time::sleep(Duration::from_secs(4)).await;
            process.kill(&world).await;
            cluster.drop_sends_of_dead_producers();
            cluster.set_leaderless(&[]);
            process.ensure_running(&world, &mut random);
            produce(10, "b");
            tokio::time::sleep(SETTLING).await;
            process.stop().await;
            assert_eq!(world.arrivals().len(), 30);
            let mut totals: BTreeMap<String, usize> = BTreeMap::new();
            for (outcome, count) in outcomes(&world).values().flatten() {
                *totals.entry(outcome.clone()).or_default() += count;
            }
            assert_eq!((totals["scheduled"], totals["delivered"]), (30, 10));
        });
    }
}

/// How the outcome topic is broken, from the start of a run.
#[derive(Clone, Copy)]
enum Fault {
    Fails(FailureKind, DeadLetterReason),
    DoesNotAnswer,
}

const MISSING: Fault = Fault::Fails(FailureKind::NotDelivered, DeadLetterReason::UnknownTarget);

/// The messages of a run: their number, and the milliseconds from one due time to the next.
const FEW: (i64, i64) = (300, 100);
const MANY: (i64, i64) = (6_000, 10);

struct Broken {
    /// The greatest lateness of a message, in milliseconds.
    lateness: i64,
    records: usize,
    /// The number of records in the source.
    sources: usize,
}

/// A run in which the outcome topic is broken until all messages have arrived.
fn with_broken_topic(world: World, (messages, interval): (i64, i64), fault: Fault) -> Broken {
    block_on_paused(async {
        let mut random = StdRng::seed_from_u64(1);
        let world = world.with_outcomes();
        let cluster = world.cluster();
        match fault {
            Fault::Fails(kind, reason) => {
                let failure = DeliveryFailure::new(kind, reason, "said the broker");
                cluster.refuse_records(OUTCOMES, Some(failure));
            }
            Fault::DoesNotAnswer => cluster.set_leaderless(&cluster.partitions(OUTCOMES)),
        }
        let mut process = Process::start(&world, &mut random);
        let source = Partition::new(SOURCE, 0);
        let start = world.now().as_millis();
        let mut dues = BTreeMap::new();
        for number in 0..messages {
            let (uid, due) = (format!("u{number}"), start + 10_000 + number * interval);
            world.produce(&source, &uid, &[("postdate-at", due.to_string())]);
            dues.insert(uid, due);
        }
        tokio::time::sleep(Duration::from_secs(120)).await;
        cluster.refuse_records(OUTCOMES, None);
        cluster.set_leaderless(&[]);
        tokio::time::sleep(SETTLING).await;
        process.stop().await;
        let arrivals = world.arrivals();
        assert_eq!(arrivals.len(), dues.len());
        let lateness = arrivals.iter().map(|it| it.at - dues[&it.uid]).max();
        let outcomes = outcomes(&world);
        Broken {
            lateness: lateness.expect("messages arrived"),
            records: outcomes.values().flatten().map(|(_, count)| count).sum(),
            sources: cluster.records(SOURCE).len(),
        }
    })
}

#[test]
fn records_that_their_topic_does_not_take_are_dropped_and_delay_no_message() {
    let rejects = Fault::Fails(FailureKind::Rejected, DeadLetterReason::Unauthorized);
    for fault in [rejects, MISSING] {
        for world in [at_least_once, exactly_once] {
            let broken = with_broken_topic(world(), FEW, fault);
            assert_eq!(broken.records, 0);
            assert_eq!(broken.sources, 300, "no record goes through the source");
            assert!(broken.lateness < 1_000, "{}", broken.lateness);
        }
    }
}

#[test]
fn a_topic_that_does_not_answer_delays_no_message_and_gets_its_records_later() {
    for world in [at_least_once, exactly_once] {
        let broken = with_broken_topic(world(), FEW, Fault::DoesNotAnswer);
        assert!(broken.lateness < 1_000, "{}", broken.lateness);
        assert_eq!(broken.records, 600, "the client has kept them");
    }
}

/// There are more records than a client may have, and more than the messages of a second of the rate.
#[test]
fn thousands_of_messages_are_prompt_while_their_outcome_topic_is_broken() {
    for fault in [Fault::DoesNotAnswer, MISSING] {
        // The rate is more than the input: 100 messages in a second. All requests are read before.
        for rate in [None, Some(150)] {
            // No message waits for memory.
            let world = at_least_once().with_memory(16 << 20);
            world.set_rate(rate);
            let broken = with_broken_topic(world, MANY, fault);
            assert!(broken.lateness < 1_000, "{rate:?}: {}", broken.lateness);
            assert_eq!(broken.sources, 6_000);
        }
    }
}
