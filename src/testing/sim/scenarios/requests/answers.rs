//! Every request has one outcome, and it agrees with the messages that the consumer sees.

use super::super::block_on_paused;
use crate::model::{Offset, Partition};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::single::{Faults, inject};
use crate::testing::sim::process::Process;
use crate::testing::sim::seeds::chosen;
use crate::testing::sim::trace;
use crate::testing::sim::world::{ANSWERS, SOURCE, SentBack, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
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
    /// The place of the message that was changed.
    changed: Option<Offset>,
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
    let mut answers: BTreeMap<String, Vec<Answer>> = BTreeMap::new();
    for record in world.cluster().records(ANSWERS) {
        let payload = record.payload.unwrap_or_default();
        let json: serde_json::Value = serde_json::from_slice(&payload).expect("an answer is JSON");
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        let named = match text("replaced_origin") {
            replaced if replaced.is_empty() => text("origin"),
            replaced => replaced,
        };
        answers.entry(text("request_id")).or_default().push(Answer {
            at: record.at.as_millis(),
            outcome: text("outcome"),
            is_late: json["late_for"].is_string(),
            changed: named
                .rsplit_once('/')
                .map(|(_, offset)| Offset(offset.parse().expect("an origin ends with an offset"))),
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

/// A request with its answers, and the fate of the message that it names.
struct Found<'a> {
    world: &'a World,
    request: &'a Request,
    answers: &'a [Answer],
    /// The answers to a later change of the message.
    second: &'a [Answer],
    /// When the named message arrived.
    arrived: &'a [i64],
    sent_back: &'a [SentBack],
}

fn is_cancel(answer: &Answer) -> bool {
    matches!(&*answer.outcome, "cancelled" | "replaced")
}

impl Found<'_> {
    /// A loss of the store may change the outcome of requests that the last commit does not cover.
    fn may_differ(&self) -> bool {
        !self.world.is_exactly_once() && self.world.store_lost_writes()
    }

    /// The records of the message that went back to its source.
    fn sent_back(&self) -> impl Iterator<Item = &SentBack> {
        let is_named = |it: &&SentBack| {
            (it.partition, &*it.uid) == (self.request.partition, &*self.request.named)
        };
        self.sent_back.iter().filter(is_named)
    }

    /// At-least-once delivery may be interrupted when it has delivered a message or sent it back. Then it does
    /// one of the two again. True if the request has changed only the record that was sent back, and the
    /// message may have arrived at this time without that.
    fn may_be_other(&self, answer: &Answer, arrived: i64) -> bool {
        if self.world.is_exactly_once() {
            return false;
        }
        let mut place = answer.changed;
        while let Some(record) = self.sent_back().find(|it| Some(it.offset) == place) {
            let same_place = self.sent_back().filter(|it| it.from == record.from);
            let between = record.at.min(arrived)..=record.at.max(arrived);
            if same_place.count() > 1 || self.world.was_interrupted(between) {
                return true;
            }
            place = Some(record.from);
        }
        false
    }

    fn is_cancelled_later(&self) -> bool {
        self.second.iter().any(is_cancel)
    }

    fn reschedule_violations(&self, due: i64) -> Vec<String> {
        let (mut wrong, arrived) = (Vec::new(), self.arrived);
        let is_too_early = |at: &i64| at + CLOCK_STEP_MAX < due;
        let is_late = |it: &Answer| it.outcome == "too_late" || it.is_late;
        // A second change that was too late may undo the first one.
        let is_undone = self.world.is_exactly_once() && self.second.iter().any(is_late);
        let rescheduled = self.answers.iter().filter(|it| it.outcome == "rescheduled");
        let mut binding = rescheduled.filter(|_| !self.may_differ() && !is_undone);
        let is_missing = match binding.clone().next() {
            Some(_) => arrived.iter().all(is_too_early),
            None => arrived.is_empty(),
        };
        let breaks = |answer: &Answer| {
            let mut early = arrived.iter().filter(|at| is_too_early(at));
            early.any(|at| !self.may_be_other(answer, *at))
        };
        if binding.any(breaks) {
            wrong.push(format!(
                "rescheduled to {due}, but it arrived at {arrived:?}"
            ));
        }
        let is_repeated = self.world.is_exactly_once() && arrived.len() > 1;
        if is_missing && !self.is_cancelled_later() || is_repeated {
            wrong.push(format!(
                "rescheduled to {due}, and it arrived at {arrived:?}"
            ));
        }
        wrong
    }

    /// The faults of the answers to the request.
    fn violations(&self) -> Vec<String> {
        let Self {
            world,
            request,
            answers,
            arrived,
            ..
        } = *self;
        let mut wrong = Vec::new();
        let is_exact = world.is_exactly_once() || !world.may_have_duplicates();
        if answers.is_empty() || is_exact && answers.len() > 1 {
            wrong.push(format!("{} answers", answers.len()));
        }
        let may_differ = self.may_differ();
        if let Kind::Reschedule(due) = request.kind {
            wrong.extend(self.reschedule_violations(due));
        }
        for answer in answers {
            let expected: &[&str] = match request.kind {
                Kind::Cancel => &["too_late", "not_found"],
                Kind::Replace => &["scheduled"],
                Kind::Reschedule(_) => &["too_late", "not_found", "rescheduled"],
            };
            let is_expected = expected.contains(&&*answer.outcome);
            let is_the_changed = |at: &i64| !self.may_be_other(answer, *at);
            let arrived_although =
                is_cancel(answer) && !may_differ && arrived.iter().any(is_the_changed);
            // A loss may undo a cancel before its answer goes out.
            let is_undone = || may_differ && was_cancelled(world, request);
            let is_missing =
                is_expected && arrived.is_empty() && !is_undone() && !self.is_cancelled_later();
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
            // A message is acknowledged when it has gone back to its source, and arrives later.
            let has_gone_back = self.sent_back().any(|it| it.at <= answer.at);
            let is_ordered = !world.may_have_duplicates() && !has_gone_back;
            if is_ordered && is_too_late && arrived.iter().all(|at| *at > answer.at) {
                wrong.push(format!("{answer:?} before it arrived at {arrived:?}"));
            }
            if answer.outcome != answers[0].outcome && !may_differ {
                wrong.push(format!("different answers: {answers:?}"));
            }
        }
        wrong
    }
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
        let (answers, sent_back) = (answers(&world), world.sent_back());
        let mut wrong = world.take_violations();
        let mut outcomes = BTreeMap::new();
        for request in &requests {
            let answers_to = |id: &str| answers.get(id).map_or(&[][..], Vec::as_slice);
            let second = request.id.replace('q', "again");
            let found = Found {
                world: &world,
                request,
                answers: answers_to(&request.id),
                second: match second == request.id {
                    true => &[],
                    false => answers_to(&second),
                },
                arrived: arrivals.get(&request.named).map_or(&[], Vec::as_slice),
                sent_back: &sent_back,
            };
            let text = |what| format!("{} of {}: {what}", request.id, request.named);
            wrong.extend(found.violations().into_iter().map(text));
            for answer in found.answers {
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
