//! Every request has one outcome, and it agrees with the messages that the consumer sees.

use super::super::block_on_paused;
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::single::{Faults, inject};
use crate::testing::sim::process::Process;
use crate::testing::sim::seeds::chosen;
use crate::testing::sim::trace;
use crate::testing::sim::world::{ANSWERS, SOURCE, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time in which messages are sent, and the time until all are settled.
const LENGTH: Duration = Duration::from_secs(10);
const SETTLING: Duration = Duration::from_secs(150);

/// A change of the message with the payload `named`.
struct Request {
    id: String,
    named: String,
    partition: i32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cancel,
    Replace,
    /// The new due time.
    Reschedule(i64),
}

/// A clock may be this far ahead, in milliseconds.
const CLOCK_STEP_MAX: i64 = 3_000;

/// An answer as the requester reads it.
#[derive(Debug)]
struct Answer {
    at: i64,
    outcome: String,
    /// A schedule came too late for an earlier message.
    is_late: bool,
    /// The changed message had gone back to its source after a failure.
    changed_retry: bool,
}

struct Requester {
    world: World,
    random: StdRng,
    /// Requests by the time at which they are sent.
    planned: BTreeMap<(i64, usize), Request>,
    sent: Vec<Request>,
    messages: usize,
}

impl Requester {
    async fn run(mut self) -> Vec<Request> {
        let end = tokio::time::Instant::now() + LENGTH;
        while tokio::time::Instant::now() < end || !self.planned.is_empty() {
            if tokio::time::Instant::now() < end && self.random.random_bool(0.3) {
                self.schedule();
            }
            let now = self.world.now().as_millis();
            while let Some(entry) = self.planned.first_entry().filter(|it| it.key().0 <= now) {
                let request = entry.remove();
                self.send(&request);
                self.sent.push(request);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.sent
    }

    /// Sends a message, and plans a request for a time around its due time.
    fn schedule(&mut self) {
        let number = self.messages;
        self.messages += 1;
        let partition = self.random.random_range(0..2);
        let due = self.world.now().as_millis() + self.random.random_range(100..3_000);
        let named = format!("m{number}");
        let headers = [
            ("postdate-at", due.to_string()),
            ("postdate-id", format!("id-{named}")),
        ];
        let source = Partition::new(SOURCE, partition);
        self.world.produce(&source, &named, &headers);
        let at = due + self.random.random_range(-500..200);
        let kind = match self.random.random_range(0..10) {
            0..5 => Kind::Cancel,
            5..8 => Kind::Reschedule(due + CLOCK_STEP_MAX + self.random.random_range(1_000..9_000)),
            _ => Kind::Replace,
        };
        let change = |id: &str, kind| Request {
            id: format!("{id}{number}"),
            named: named.clone(),
            partition,
            kind,
        };
        self.planned.insert((at, number), change("q", kind));
        // By then the message has usually gone back to its source.
        if let Kind::Reschedule(moved) = kind
            && self.random.random_bool(0.5)
        {
            let at = self.random.random_range(due + 200..moved - 500);
            let later = moved + CLOCK_STEP_MAX + self.random.random_range(1_000..5_000);
            let kind = match self.random.random_range(0..3) {
                0 => Kind::Reschedule(later),
                1 => Kind::Replace,
                _ => Kind::Cancel,
            };
            self.planned
                .insert((at, usize::MAX - number), change("again", kind));
        }
    }

    fn send(&self, request: &Request) {
        let mut headers = vec![
            ("postdate-id", format!("id-{}", request.named)),
            ("postdate-reply-to", ANSWERS.to_owned()),
            ("postdate-request-id", request.id.clone()),
        ];
        match request.kind {
            Kind::Cancel => headers.push(("postdate-op", "cancel".to_owned())),
            Kind::Replace => headers.push(("postdate-after", "700ms".to_owned())),
            Kind::Reschedule(due) => headers.extend([
                ("postdate-op", "reschedule".to_owned()),
                ("postdate-at", due.to_string()),
            ]),
        }
        let source = Partition::new(SOURCE, request.partition);
        self.world.produce(&source, &request.id, &headers);
    }
}

/// The answers by request id.
fn answers(world: &World) -> BTreeMap<String, Vec<Answer>> {
    let retries: BTreeSet<String> = world
        .cluster()
        .records(SOURCE)
        .into_iter()
        .filter(|record| {
            record
                .headers
                .iter()
                .any(|(name, _)| name == b"postdate-retry")
        })
        .map(|record| format!("/{SOURCE}/{}/{}", record.partition, record.offset))
        .collect();
    let mut answers: BTreeMap<String, Vec<Answer>> = BTreeMap::new();
    for record in world.cluster().records(ANSWERS) {
        let payload = record.payload.unwrap_or_default();
        let json: serde_json::Value = serde_json::from_slice(&payload).expect("an answer is JSON");
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        answers.entry(text("request_id")).or_default().push(Answer {
            at: record.at.as_millis(),
            outcome: text("outcome"),
            is_late: json["late_for"].is_string(),
            changed_retry: retries.iter().any(|it| text("origin").ends_with(it)),
        });
    }
    answers
}

/// True if the store has cancelled the named message once, or its retry.
fn was_cancelled(world: &World, request: &Request) -> bool {
    let records = world.cluster().records(SOURCE).into_iter();
    let mut named = records.filter(|it| it.payload.as_deref() == Some(request.named.as_bytes()));
    named.any(|it| world.was_cancelled_at(it.partition, it.offset))
}

/// The faults of the answers to a request. `arrived`: when the named message arrived. `second`: the answers to a
/// later change of it.
fn violations(
    world: &World,
    request: &Request,
    answers: &[Answer],
    arrived: &[i64],
    second: &[Answer],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_exact = world.is_exactly_once() || !world.may_have_duplicates();
    if answers.is_empty() || is_exact && answers.len() > 1 {
        wrong.push(format!("{} answers", answers.len()));
    }
    // A loss of the store may change the outcome of requests that the last commit does not cover.
    let may_differ = !world.is_exactly_once() && world.store_lost_writes();
    let is_cancel = |answer: &Answer| matches!(&*answer.outcome, "cancelled" | "replaced");
    if let Kind::Reschedule(due) = request.kind {
        let is_too_early = |at: &i64| at + CLOCK_STEP_MAX < due;
        let is_rescheduled = answers.iter().any(|it| it.outcome == "rescheduled");
        // A second change that was too late may undo the first one.
        let is_undone = second
            .iter()
            .any(|it| it.outcome == "too_late" || it.is_late);
        if is_rescheduled && !may_differ && !is_undone && arrived.iter().any(is_too_early) {
            wrong.push(format!(
                "rescheduled to {due}, but it arrived at {arrived:?}"
            ));
        }
        let is_repeated = world.is_exactly_once() && arrived.len() > 1;
        if arrived.is_empty() && !second.iter().any(is_cancel) || is_repeated {
            wrong.push(format!(
                "rescheduled to {due}, and it arrived at {arrived:?}"
            ));
        }
    }
    for answer in answers {
        let is_cancelled = is_cancel(answer);
        let expected: &[&str] = match request.kind {
            Kind::Cancel => &["too_late", "not_found"],
            Kind::Replace => &["scheduled"],
            Kind::Reschedule(_) => &["too_late", "not_found", "rescheduled"],
        };
        let is_expected = expected.contains(&&*answer.outcome);
        // After a crash, at-least-once delivery may repeat a message that it has sent back to its source. Only
        // one of the two has the id.
        let may_be_repeated =
            !world.is_exactly_once() && world.may_have_duplicates() && answer.changed_retry;
        let arrived_although =
            is_cancelled && !arrived.is_empty() && !may_differ && !may_be_repeated;
        // A loss may undo a cancel before its answer goes out.
        let is_undone = || may_differ && was_cancelled(world, request);
        let is_cancelled_later = second.iter().any(is_cancel);
        let is_missing = is_expected && arrived.is_empty() && !is_undone() && !is_cancelled_later;
        if arrived_although || is_missing {
            wrong.push(format!("{answer:?}, but it arrived at {arrived:?}"));
        }
        let cancels = match request.kind {
            Kind::Cancel => answer.outcome == "cancelled",
            Kind::Replace => answer.outcome == "replaced",
            Kind::Reschedule(_) => false,
        };
        if !cancels && !is_expected {
            wrong.push(format!("{answer:?}"));
        }
        let is_too_late = answer.outcome == "too_late" || answer.is_late;
        // A failed message is acknowledged when its retry is sent, and arrives later.
        let is_ordered = !world.may_have_duplicates();
        if is_ordered && is_too_late && arrived.iter().all(|at| *at > answer.at) {
            wrong.push(format!("{answer:?} before it arrived at {arrived:?}"));
        }
        if answer.outcome != answers[0].outcome && !may_differ {
            wrong.push(format!("different answers: {answers:?}"));
        }
    }
    wrong
}

/// The violations, and the number of answers of each outcome.
fn run(seed: u64, is_exactly_once: bool, faults: Faults) -> (Vec<String>, BTreeMap<String, usize>) {
    block_on_paused(async {
        let mut random = StdRng::seed_from_u64(seed);
        let world = match is_exactly_once {
            true => World::new().with_exactly_once(),
            false => World::new(),
        };
        if faults != Faults::NONE {
            world.allow_duplicates();
        }
        let mut process = Process::start(&world, &mut random);
        let requester = Requester {
            world: world.clone(),
            random: StdRng::seed_from_u64(random.random()),
            planned: BTreeMap::new(),
            sent: Vec::new(),
            messages: 0,
        };
        let inject = async {
            match faults == Faults::NONE {
                true => {}
                false => inject(&world, &mut process, faults, LENGTH, &mut random).await,
            }
        };
        let (requests, ()) = tokio::join!(requester.run(), inject);
        world.heal();
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(SETTLING).await;
        process.stop().await;
        let mut arrivals: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for arrival in world.arrivals() {
            arrivals.entry(arrival.uid).or_default().push(arrival.at);
        }
        let answers = answers(&world);
        let mut wrong = world.take_violations();
        let mut outcomes = BTreeMap::new();
        for request in &requests {
            let found = answers.get(&request.id).map_or(&[][..], Vec::as_slice);
            let arrived = arrivals.get(&request.named).map_or(&[][..], Vec::as_slice);
            let text = |what| format!("{} of {}: {what}", request.id, request.named);
            let second = request.id.replace('q', "again");
            let second = Some(second).filter(|id| *id != request.id);
            let second = second.and_then(|id| answers.get(&id));
            let second = second.map_or(&[][..], Vec::as_slice);
            wrong.extend(
                violations(&world, request, found, arrived, second)
                    .into_iter()
                    .map(text),
            );
            for answer in found {
                *outcomes.entry(answer.outcome.clone()).or_default() += 1;
            }
        }
        if !wrong.is_empty() {
            let trace = trace::render(&world.take_trace(), &wrong);
            wrong.extend(trace.lines().map(str::to_owned));
        }
        (wrong, outcomes)
    })
}

fn assert_kept(
    seeds: impl IntoIterator<Item = u64>,
    is_exactly_once: bool,
    faults: Faults,
) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for seed in seeds {
        let (wrong, outcomes) = run(seed, is_exactly_once, faults);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
        for (outcome, count) in outcomes {
            *all.entry(outcome).or_default() += count;
        }
    }
    all
}

#[test]
fn without_faults_every_request_is_answered_once() {
    let all = [
        "cancelled",
        "not_found",
        "replaced",
        "rescheduled",
        "scheduled",
        "too_late",
    ];
    let outcomes = assert_kept(0..4, false, Faults::NONE);
    assert!(
        all.iter().all(|it| outcomes.contains_key(*it)),
        "{outcomes:?}"
    );
    let outcomes = assert_kept(0..4, true, Faults::NONE);
    assert!(outcomes.contains_key("cancelled"), "{outcomes:?}");
}

#[test]
fn answers_agree_with_the_messages_that_arrive() {
    assert_kept(chosen(100..140), false, Faults::ALL);
    assert_kept(chosen(200..220), false, Faults::STORE_KEEPS);
}

#[test]
fn exactly_once_answers_agree_with_the_messages_that_arrive() {
    assert_kept(chosen(300..360), true, Faults::ALL);
    assert_kept(chosen(400..420), true, Faults::STORE_KEEPS);
}

#[test]
fn every_fault_injected_into_answers_is_caught() {
    let planted = [
        (InjectedFault::AnswerBeforeDelivery, false, Faults::NONE),
        (InjectedFault::AnswerByClaim, true, Faults::NONE),
        (InjectedFault::ChangeUnclaimedOnly, true, Faults::ALL),
        (InjectedFault::PassCancelledBeforeAnswer, true, Faults::ALL),
        (InjectedFault::RescheduleClaimed, false, Faults::NONE),
        (InjectedFault::ForgetSentFrom, true, Faults::ALL),
    ];
    let is_missed = |(injected, exactly, faults): &(InjectedFault, bool, Faults)| {
        fault_injection::with([*injected], || {
            (500..800).all(|seed| run(seed, *exactly, *faults).0.is_empty())
        })
    };
    let missed: Vec<_> = planted.into_iter().filter(is_missed).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
