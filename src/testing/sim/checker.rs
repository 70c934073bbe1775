//! Compares the messages that arrived with the messages that were sent.
//!
//! It checks G1, G2, G3, G4 and G5, and that messages are on time once all faults have healed. It
//! checks for duplicates if no fault was injected, and always with exactly-once delivery. In the end
//! no row of a message may be left in the store. It reads like a consumer with `read_committed`.

use crate::model::OutcomeCounts;
use crate::store::Balance;
use crate::testing::sim::workload::{Sent, SentKind};
use crate::testing::sim::world::{ABORTED, Arrival, SimDelivery, World};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longer than any delay, lease and retry of a simulation together.
const SETTLING: Duration = Duration::from_secs(120);

/// In milliseconds: a message arrives within this time after its due time, and after the end of
/// all faults. It covers a lease, the load of a shard, and a clock that is corrected forward.
const LATENESS_MAX: i64 = 10_000;
/// The same after the store lost writes, and with less memory than usual. The runs of a shard that is filled
/// again exceed the small memory budget of a simulation. Its messages can wait until the last ones of
/// another shard are delivered, so the bound exceeds the longest delay.
const LATENESS_MAX_IN_FULL_MEMORY: i64 = 50_000;

/// Waits until all messages are settled. Returns the broken promises.
pub(crate) async fn check(world: &World, sent: &[Sent]) -> Vec<String> {
    let end = tokio::time::Instant::now() + SETTLING;
    while tokio::time::Instant::now() < end && !missing(world, sent).is_empty() {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    // A duplicate would arrive soon after the original.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let arrivals = arrivals_by_uid(world);
    let mut broken = missing(world, sent);
    world.check_ledgers();
    if !world.store_lost_writes() {
        broken.extend(ledgers(world, sent));
    }
    broken.extend(world.take_violations());
    broken.extend(early(world, sent));
    broken.extend(uncounted_duplicates(world, &arrivals));
    broken.extend(late(world, sent, &arrivals));
    broken.extend(
        arrivals
            .get(ABORTED)
            .map(|arrived| format!("delivered from an aborted transaction: {arrived:?}")),
    );
    let unacknowledged = arrivals.keys().filter(|uid| world.is_unacknowledged(uid));
    broken.extend(unacknowledged.map(|uid| format!("delivered, but never acknowledged: {uid}")));
    for message in sent {
        let arrived = arrivals
            .get(message.uid.as_str())
            .map_or(&[][..], Vec::as_slice);
        broken.extend(violations(world, message, arrived));
    }
    broken
}

/// When every message is settled, nothing is pending and the ledgers agree with the arrivals.
pub(crate) fn ledgers(world: &World, sent: &[Sent]) -> Vec<String> {
    let balances = world.balances();
    let is_closed = |balance: &Balance| {
        balance.difference == 0 && balance.pending == 0 && !balance.is_uncertain
    };
    let mut wrong: Vec<_> = balances
        .iter()
        .filter(|balance| !is_closed(balance))
        .map(|balance| format!("a ledger is open: {balance:?}"))
        .collect();
    if !world.may_have_duplicates() {
        let mut told = OutcomeCounts::default();
        balances
            .iter()
            .for_each(|balance| told.add(balance.outcomes));
        let accepted: u64 = balances.iter().map(|balance| balance.accepted).sum();
        let (dead, delivered): (Vec<_>, Vec<_>) = world
            .arrivals()
            .into_iter()
            .partition(|arrival| arrival.is_dead);
        let messages = sent
            .iter()
            .filter(|sent| !matches!(sent.kind, SentKind::Cancel { .. }))
            .count();
        let cancelled = sent.iter().filter(|sent| world.was_cancelled(sent)).count();
        let ledger = [
            told.delivered,
            told.dead_lettered,
            told.cancelled,
            accepted - told.retried,
        ];
        let seen = [delivered.len(), dead.len(), cancelled, messages].map(|count| count as u64);
        if ledger != seen {
            wrong.push(format!("the ledgers count {ledger:?} (delivered, dead-lettered, cancelled, accepted), but the simulation saw {seen:?}"));
        }
    }
    wrong
}

/// The rows that are left in the store, although every message is done and every process has stopped.
pub(crate) fn leftovers(world: &World) -> Vec<String> {
    let left = world.store().leftovers().into_iter();
    left.map(|left| format!("left in the store: {left}"))
        .collect()
}

fn arrivals_by_uid(world: &World) -> BTreeMap<String, Vec<Arrival>> {
    let mut arrivals: BTreeMap<String, Vec<Arrival>> = BTreeMap::new();
    for arrival in world.arrivals() {
        arrivals
            .entry(arrival.uid.clone())
            .or_default()
            .push(arrival);
    }
    arrivals
}

/// Messages that were accepted but neither arrived nor were cancelled.
fn missing(world: &World, sent: &[Sent]) -> Vec<String> {
    let arrived: BTreeSet<_> = world
        .arrivals()
        .into_iter()
        .map(|arrival| arrival.uid)
        .collect();
    let is_missing = |message: &&Sent| {
        let is_expected = !matches!(message.kind, SentKind::Cancel { .. });
        is_expected
            && !arrived.contains(&message.uid)
            && !world.was_cancelled(message)
            && !world.streams().was_purged(&message.uid)
    };
    sent.iter()
        .filter(is_missing)
        .map(|message| format!("lost: {message:?}"))
        .collect()
}

/// Duplicates that no process has counted as possible (G3). Without a fault, none is counted.
fn uncounted_duplicates(
    world: &World,
    arrivals: &BTreeMap<String, Vec<Arrival>>,
) -> Option<String> {
    let counted = world.duplicate_counter().total() as usize;
    let repeats = arrivals.values().map(|arrived| arrived.len() - 1);
    let (seen, unknown): (usize, _) = (repeats.sum(), world.unknown_deliveries());
    let is_wrong = seen > counted + unknown || counted > 0 && !world.may_count_duplicates();
    is_wrong.then(|| {
        format!("{seen} duplicates arrived, {counted} were counted, and {unknown} deliveries were forgotten")
    })
}

/// Messages that a process delivered before their due time by its own clock.
fn early(world: &World, sent: &[Sent]) -> Vec<String> {
    let due = |sent: &Sent| match sent.kind {
        SentKind::Delayed { due, .. } | SentKind::Large { due } => Some((sent.uid.clone(), due)),
        _ => None,
    };
    let mut dues: BTreeMap<String, i64> = sent.iter().filter_map(due).collect();
    if world.changes_rules() {
        // Some rules refuse them at once.
        let dead = world
            .arrivals()
            .into_iter()
            .filter(|arrival| arrival.is_dead);
        dead.for_each(|arrival| _ = dues.remove(&arrival.uid));
    }
    let is_early = |delivery: &&SimDelivery| {
        dues.get(&delivery.uid)
            .is_some_and(|due| *due > delivery.own_at)
    };
    world
        .deliveries()
        .iter()
        .filter(is_early)
        .map(|delivery| format!("early by its own clock: {delivery:?}"))
        .collect()
}

/// Messages that arrived long after their due time, although no fault delayed them any more.
fn late(world: &World, sent: &[Sent], arrivals: &BTreeMap<String, Vec<Arrival>>) -> Vec<String> {
    let healed_at = world.healed_at().expect("the faults have healed");
    let most = if world.store_lost_writes() || world.memory().is_some() {
        LATENESS_MAX_IN_FULL_MEMORY
    } else {
        LATENESS_MAX
    };
    let late = sent.iter().filter_map(|message| {
        let due = match message.kind {
            SentKind::Delayed { due, .. } | SentKind::Large { due } => due,
            SentKind::Relay | SentKind::Refused => i64::MIN,
            SentKind::Cancel { .. } => return None,
        };
        let first = arrivals.get(&message.uid)?.iter().map(|it| it.at).min()?;
        let lateness = first - due.max(healed_at);
        (lateness > most).then(|| format!("{lateness} ms late: {message:?}"))
    });
    late.collect()
}

fn violations(world: &World, message: &Sent, arrived: &[Arrival]) -> Vec<String> {
    let mut wrong = Vec::new();
    match &message.kind {
        // Some rules refuse them.
        SentKind::Delayed { .. } | SentKind::Relay if world.changes_rules() => {}
        SentKind::Delayed { .. } | SentKind::Relay => {
            wrong.extend(
                arrived
                    .iter()
                    .filter(|arrival| arrival.is_dead)
                    .map(|arrival| format!("dead-lettered: {message:?} {arrival:?}")),
            );
        }
        SentKind::Large { .. } | SentKind::Refused => {
            wrong.extend(
                arrived
                    .iter()
                    .filter(|arrival| !arrival.is_dead)
                    .map(|arrival| format!("delivered: {message:?} {arrival:?}")),
            );
        }
        SentKind::Cancel { .. } => wrong.extend(
            arrived
                .iter()
                .map(|arrival| format!("a cancel was delivered: {message:?} {arrival:?}")),
        ),
    }
    let is_twice = arrived.len() > 1 && !world.has_started_again();
    if !world.may_have_duplicates() && arrived.len() > 1 {
        wrong.push(format!("twice, without a fault: {message:?} {arrived:?}"));
    } else if (world.is_exactly_once() || world.streams().forbid_duplicates()) && is_twice {
        wrong.push(format!("twice: {message:?} {arrived:?}"));
    }
    if world.is_cancel_binding(message) && !arrived.is_empty() {
        wrong.push(format!(
            "delivered after its cancel was confirmed: {message:?} {arrived:?}"
        ));
    }
    wrong
}
