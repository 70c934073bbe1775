//! Renders the report of a chaos run as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::asked::{Asked, Broker};
use crate::fault::Fault;
use crate::kafka::ABORTED_PARTITIONS;
use crate::sender::Sent;
use crate::server::{PARTITIONS, WINDOW};
use crate::storm::{Again, Injected, Outcome};

pub(crate) fn page(asked: &Asked, outcome: &Outcome) -> String {
    let mut page = String::new();
    let minutes = outcome.took.as_secs_f64() / 60.0;
    let Asked {
        broker,
        brokers,
        mode,
        rate,
        redis,
        seed,
        ..
    } = asked;
    let servers = match brokers {
        1 => format!("one {broker}"),
        count => format!("{count} brokers of one {broker} cluster with replicated data"),
    };
    let verdict = if outcome.is_kept(asked) {
        "Every promise was kept."
    } else {
        "A PROMISE WAS BROKEN."
    };
    let _ = write!(
        page,
        "# Chaos: {broker}, {mode}\n\n{verdict}\n\n{minutes:.0} minutes, {rate} messages a second with delays of 0 to 60 s over {PARTITIONS} \
         partitions, 3 timers and 2 ingresses, {servers}, {redis}\n(`appendfsync everysec`), leases of 5 s, all on one machine; seed {seed}. \
         {}\n\n",
        beside(*broker)
    );
    totals(&mut page, *broker, outcome);
    lost(&mut page, outcome);
    lateness(&mut page, *broker, outcome);
    faults(&mut page, asked, outcome);
    page
}

/// Describes the traffic besides the load.
fn beside(broker: Broker) -> String {
    match broker {
        Broker::Kafka => format!(
            "Beside the load transactions that are aborted, 20\nrecords a second, in {ABORTED_PARTITIONS} of the partitions: where a fault leaves \
             one of these open, what is behind it is read late."
        ),
        Broker::Nats => format!(
            "Each partition is a subject\nof one stream, which takes 20 messages a second of a subject that nobody reads. The target's duplicate \
             window: {} s.",
            WINDOW.as_secs()
        ),
    }
}

fn totals(page: &mut String, broker: Broker, outcome: &Outcome) {
    let unsure = outcome
        .sent
        .iter()
        .filter(|sent| sent.place.is_none())
        .count();
    let (soon, foreign) = match broker {
        Broker::Kafka => (
            None,
            "records that nobody sent, or of an aborted transaction",
        ),
        Broker::Nats => (
            Some((
                "**of these within the duplicate window**",
                outcome.arrived.soon_doubled,
            )),
            "messages that nobody sent there",
        ),
    };
    let rows = [
        ("messages sent", outcome.sent.len()),
        (
            "of these not acknowledged by the source, so that they may be missing",
            unsure,
        ),
        ("arrived", outcome.arrived.count()),
        ("**lost**", outcome.lost().count()),
        ("**early**", outcome.early()),
        ("came again (duplicates)", outcome.arrived.again.len()),
        (
            "possible duplicates, as the processes told",
            outcome.possible_duplicates,
        ),
        (
            "possible duplicates that the faults explain at most",
            outcome.explained_duplicates(),
        ),
        ("dead letters, where none belongs", outcome.arrived.dead),
        (foreign, outcome.foreign()),
        (
            "processes that ended by themselves, or badly when asked to",
            outcome.crashed,
        ),
        (
            "messages that the ledgers miss, or have too many of, at the end",
            outcome.ledgers.difference as usize,
        ),
        (
            "messages that are pending by the ledgers, after all has arrived",
            outcome.ledgers.pending as usize,
        ),
        ("ledgers that cannot say", outcome.ledgers.unsure),
        (
            "rounds with a fault that causes a failover",
            outcome.failovers(),
        ),
    ];
    page.push_str("| | |\n| --- | ---: |\n");
    for (what, count) in rows[..6]
        .iter()
        .copied()
        .chain(soon)
        .chain(rows[6..].iter().copied())
    {
        let _ = writeln!(page, "| {what} | {count} |");
    }
}

fn lost(page: &mut String, outcome: &Outcome) {
    let mut by_partition: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    outcome
        .lost()
        .for_each(|(partition, offset)| by_partition.entry(partition).or_default().push(offset));
    for (partition, offsets) in by_partition {
        let (count, first, last) = (offsets.len(), offsets.iter().min(), offsets.iter().max());
        let _ = writeln!(
            page,
            "\nLost of source partition {partition}: {count}, from offset {first:?} to {last:?}."
        );
    }
}

fn lateness(page: &mut String, broker: Broker, outcome: &Outcome) {
    page.push_str("\n| after the due, ms | messages | p50 | p99 | p99.9 | greatest |\n| --- | ---: | ---: | ---: | ---: | ---: |\n");
    let stands_behind_aborted = |sent: &Sent| {
        broker == Broker::Kafka
            && sent
                .place
                .is_some_and(|(partition, _)| partition < ABORTED_PARTITIONS)
    };
    let calm = |behind: bool| {
        outcome.lateness(|sent| outcome.is_calm(sent.due) && stands_behind_aborted(sent) == behind)
    };
    let rows = [
        ("all", outcome.lateness(|_| true)),
        (
            "due when no fault was near (15 s after one, 1 s before)",
            calm(false),
        ),
        (
            "the same, of partitions in which others' transactions are aborted",
            calm(true),
        ),
    ];
    for (what, late) in rows {
        if late.is_empty() {
            continue;
        }
        let at = |share: usize| late[(late.len() - 1) * share / 1_000];
        let _ = writeln!(
            page,
            "| {what} | {} | {} | {} | {} | {} |",
            late.len(),
            at(500),
            at(990),
            at(999),
            at(1_000)
        );
    }
}

fn faults(page: &mut String, asked: &Asked, outcome: &Outcome) {
    let (again, calm) = outcome.again();
    let rounds: Vec<_> = outcome.injected.iter().zip(again).collect();
    let together: Vec<_> = rounds
        .iter()
        .copied()
        .filter(|(injected, _)| injected.faults.len() > 1)
        .collect();
    let _ = write!(
        page,
        "\n{} rounds of faults, {} of them two at once. Until every shard had an owner again, where that was all that happened; and what came \
         again\n(duplicates), really and possibly, after rounds of that fault alone. A message that came again is counted with the last round that \
         began before\nit did, unless that had been over for 15 s. Possible ones are what the timers had counted when the next round began, less what they \
         had when this\none did; each was asked just before it was killed or asked to end, so that only what it counted while it ended is missing.\n\n\
         | fault | times | owner again after, s: median | greatest | alone | came again | possibly | came again, mean |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        rounds.len(),
        together.len(),
    );
    for fault in Fault::ALL {
        let times = rounds
            .iter()
            .filter(|(injected, _)| injected.faults.contains(&fault))
            .count();
        let alone: Vec<_> = rounds
            .iter()
            .copied()
            .filter(|(injected, _)| injected.faults == [fault])
            .collect();
        row(page, &fault.words(asked), times, &alone);
    }
    row(page, "two of these at once", together.len(), &together);
    let _ = writeln!(page, "| none, for 15 s | | | | | {calm} | | |");
}

fn row(page: &mut String, what: &str, times: usize, alone: &[(&Injected, Again)]) {
    let mut took: Vec<Duration> = alone
        .iter()
        .filter_map(|(injected, _)| injected.took)
        .collect();
    took.sort_unstable();
    let seconds = |took: Option<&Duration>| {
        took.map(|took| format!("{:.1}", took.as_secs_f64()))
            .unwrap_or_default()
    };
    let came: usize = alone.iter().map(|(_, again)| again.came).sum();
    let possible: usize = alone.iter().map(|(_, again)| again.possible).sum();
    let mean = if alone.is_empty() {
        String::new()
    } else {
        format!("{:.1}", came as f64 / alone.len() as f64)
    };
    let (median, greatest) = (seconds(took.get(took.len() / 2)), seconds(took.last()));
    let _ = writeln!(
        page,
        "| {what} | {times} | {median} | {greatest} | {} | {came} | {possible} | {mean} |",
        alone.len()
    );
}
