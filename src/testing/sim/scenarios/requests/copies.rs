//! A copy takes the place of its message: exactly one of the two arrives, or none after a cancel.

use super::super::block_on_paused;
use crate::model::retry::RetryHeader;
use crate::model::{Offset, Partition, RetryKeys, RetryState, Timestamp};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::single::{Faults, inject};
use crate::testing::sim::process::{Process, RETRY_KEY};
use crate::testing::sim::seeds::chosen;
use crate::testing::sim::world::{ROUTE, SOURCE, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The time in which messages are sent, and the time until all are settled.
const LENGTH: Duration = Duration::from_secs(10);
const SETTLING: Duration = Duration::from_secs(150);

/// A message, and what is sent after it.
struct Story {
    uid: String,
    partition: i32,
    offset: Offset,
    due: i64,
    /// A cancel is sent before its copy.
    is_cancelled: bool,
    /// A message that must not arrive early asks for no copy.
    copy_due: Option<i64>,
}

impl Story {
    fn produce(&self, world: &World, headers: &[(&str, String)]) -> Offset {
        let source = Partition::new(SOURCE, self.partition);
        world.produce(&source, &self.uid, headers)
    }

    /// Sends the message. `is_near`: it is due at about the time of its copy.
    fn begin(world: &World, random: &mut StdRng, number: usize, is_near: bool) -> Self {
        let now = world.now().as_millis();
        let delays = if is_near {
            1_000..3_000
        } else {
            30_000..60_000
        };
        let mut story = Self {
            uid: format!("m{number}"),
            partition: random.random_range(0..2),
            offset: Offset(0),
            due: now + random.random_range(delays),
            is_cancelled: !is_near && random.random_bool(0.3),
            copy_due: None,
        };
        let headers = [
            ("postdate-at", story.due.to_string()),
            ("postdate-id", format!("id-{}", story.uid)),
        ];
        story.offset = story.produce(world, &headers);
        story
    }

    fn cancel(&self, world: &World) {
        let headers = [
            ("postdate-op", "cancel".to_owned()),
            ("postdate-id", format!("id-{}", self.uid)),
        ];
        self.produce(world, &headers);
    }

    /// Sends the copy, as `command::change` writes it.
    fn copy(&mut self, world: &World, random: &mut StdRng) {
        let now = world.now().as_millis();
        let due = (now + random.random_range(0..2_000)).min(self.due - 1);
        self.copy_due = Some(due);
        let (due, id) = (Timestamp::from_millis(due), format!("id-{}", self.uid));
        let origin = format!("sim/{ROUTE}/{SOURCE}/{}/{}", self.partition, self.offset.0);
        let header = RetryHeader {
            retry: RetryState {
                attempt: 0,
                origin: &origin,
                due,
                error: None,
            },
            target: None,
            dialect: None,
            at: due,
            is_answer: false,
            id: Some(&id),
            replaces: Some(self.offset),
            sent_from: None,
        };
        let (bytes, mut line) = (self.uid.as_bytes(), String::new());
        let keys = RetryKeys::new(RETRY_KEY, false);
        header.append_line(&keys, Some(bytes), Some(bytes), &mut line);
        self.produce(world, &[("postdate-retry", line)]);
    }
}

async fn tell(world: World, mut random: StdRng, is_near: bool) -> Vec<Story> {
    let end = tokio::time::Instant::now() + LENGTH;
    let (mut open, mut told) = (BTreeMap::new(), Vec::new());
    for number in 0.. {
        let now = world.now().as_millis();
        if tokio::time::Instant::now() < end {
            let story = Story::begin(&world, &mut random, number, is_near);
            let wait = match is_near {
                true => story.due - now - random.random_range(-100..700),
                false => random.random_range(100..5_000),
            };
            open.insert((now + wait, number), story);
        } else if open.is_empty() {
            break;
        }
        while let Some(entry) = open.first_entry().filter(|it| it.key().0 <= now) {
            let mut story = entry.remove();
            if story.is_cancelled {
                story.cancel(&world);
            }
            story.copy(&world, &mut random);
            told.push(story);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    told
}

fn violations(world: &World, story: &Story, arrived: &[i64]) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_exact = world.is_exactly_once() || !world.may_have_duplicates();
    if story.is_cancelled && !arrived.is_empty() {
        wrong.push("it was cancelled before its copy");
    }
    if !story.is_cancelled && arrived.is_empty() {
        wrong.push("it is lost");
    }
    if is_exact && arrived.len() > 1 {
        wrong.push("it arrived twice");
    }
    let is_early = |at: &i64| *at + 3_000 < story.copy_due.unwrap_or(story.due);
    if arrived.iter().any(is_early) {
        wrong.push("it was early");
    }
    let Story { uid, due, .. } = story;
    let text = |what| {
        format!(
            "{uid}, due {due}, copy {:?}, {arrived:?}: {what}",
            story.copy_due
        )
    };
    wrong.into_iter().map(text).collect()
}

fn run(seed: u64, is_exactly_once: bool, faults: Faults, is_near: bool) -> Vec<String> {
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
        let teller = tell(
            world.clone(),
            StdRng::seed_from_u64(random.random()),
            is_near,
        );
        let inject = async {
            match faults == Faults::NONE {
                true => {}
                false => inject(&world, &mut process, faults, LENGTH, &mut random).await,
            }
        };
        let (stories, ()) = tokio::join!(teller, inject);
        world.heal();
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(SETTLING).await;
        process.stop().await;
        let mut arrivals: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for arrival in world.arrivals() {
            arrivals.entry(arrival.uid).or_default().push(arrival.at);
        }
        let mut wrong = world.take_violations();
        for story in &stories {
            let arrived = arrivals.get(&story.uid).map_or(&[][..], Vec::as_slice);
            wrong.extend(violations(&world, story, arrived));
        }
        wrong
    })
}

fn assert_kept(seeds: Range<u64>, is_exactly_once: bool, faults: Faults, is_near: bool) {
    for seed in chosen(seeds) {
        let wrong = run(seed, is_exactly_once, faults, is_near);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }
}

#[test]
fn a_message_or_its_copy_arrives_and_never_both() {
    for is_near in [false, true] {
        assert_kept(0..5, false, Faults::NONE, is_near);
        assert_kept(10..15, true, Faults::NONE, is_near);
        assert_kept(100..120, false, Faults::STORE_KEEPS, is_near);
        assert_kept(200..220, true, Faults::STORE_KEEPS, is_near);
    }
}

#[test]
fn copies_hold_when_the_store_loses_writes() {
    assert_kept(300..330, false, Faults::ALL, false);
    assert_kept(400..430, true, Faults::ALL, false);
}

#[test]
fn a_copy_that_takes_any_place_is_caught() {
    let faults = [InjectedFault::CopyTakesAnyPlace];
    let is_kept = |seed| run(seed, false, Faults::NONE, false).is_empty();
    let is_missed = || (500..510).all(is_kept);
    assert!(!fault_injection::with(faults, is_missed));
}
