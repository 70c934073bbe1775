//! The report, as a page of Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::asked::{Asked, Broker};
use crate::fault::Fault;
use crate::kafka::ABORTED_PARTITIONS;
use crate::sender::Sent;
use crate::server::{PARTITIONS, WINDOW};
use crate::storm::Outcome;

pub(crate) fn page(asked: &Asked, outcome: &Outcome) -> String {
    let mut page = String::new();
    let minutes = outcome.took.as_secs_f64() / 60.0;
    let Asked { broker, mode, rate, seed, .. } = asked;
    let verdict = if outcome.is_kept(asked) { "Every promise was kept." } else { "A PROMISE WAS BROKEN." };
    let _ = write!(
        page,
        "# Chaos: {broker}, {mode}\n\n{verdict}\n\n{minutes:.0} minutes, {rate} messages a second with delays of 0 to 60 s over {PARTITIONS} \
         partitions, 3 timers and 2 ingresses, one {broker}, one Redis\n(`appendfsync everysec`), leases of 5 s, all on one machine; seed {seed}. \
         {}\n\n",
        beside(*broker)
    );
    totals(&mut page, *broker, outcome);
    lost(&mut page, outcome);
    lateness(&mut page, *broker, outcome);
    faults(&mut page, *broker, outcome);
    page
}

/// What goes on beside the load.
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
    let unsure = outcome.sent.iter().filter(|sent| sent.place.is_none()).count();
    let (soon, foreign) = match broker {
        Broker::Kafka => (None, "records that nobody sent, or of an aborted transaction"),
        Broker::Nats => {
            (Some(("**of these within the duplicate window**", outcome.arrived.soon_doubled)), "messages that nobody sent there")
        }
    };
    let rows = [
        ("messages sent", outcome.sent.len()),
        ("of these not acknowledged by the source, so that they may be missing", unsure),
        ("arrived", outcome.arrived.count()),
        ("**lost**", outcome.lost().count()),
        ("**early**", outcome.early()),
        ("came again (duplicates)", outcome.arrived.doubled),
        ("possible duplicates, as the processes told before they were killed", outcome.possible_duplicates),
        ("dead letters, where none belongs", outcome.arrived.dead),
        (foreign, outcome.foreign()),
        ("processes that crashed", outcome.crashed),
        ("messages that the ledgers miss at the end", outcome.ledgers.0 as usize),
        ("ledgers that cannot say, for the store lost what it had", outcome.ledgers.1),
    ];
    page.push_str("| | |\n| --- | ---: |\n");
    for (what, count) in rows[..6].iter().copied().chain(soon).chain(rows[6..].iter().copied()) {
        let _ = writeln!(page, "| {what} | {count} |");
    }
}

fn lost(page: &mut String, outcome: &Outcome) {
    let mut by_partition: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    outcome.lost().for_each(|(partition, offset)| by_partition.entry(partition).or_default().push(offset));
    for (partition, offsets) in by_partition {
        let (count, first, last) = (offsets.len(), offsets.iter().min(), offsets.iter().max());
        let _ = writeln!(page, "\nLost of source partition {partition}: {count}, from offset {first:?} to {last:?}.");
    }
}

fn lateness(page: &mut String, broker: Broker, outcome: &Outcome) {
    page.push_str("\n| after the due, ms | messages | p50 | p99 | p99.9 | greatest |\n| --- | ---: | ---: | ---: | ---: | ---: |\n");
    let stands_behind_aborted =
        |sent: &Sent| broker == Broker::Kafka && sent.place.is_some_and(|(partition, _)| partition < ABORTED_PARTITIONS);
    let calm = |behind: bool| outcome.lateness(|sent| outcome.is_calm(sent.due) && stands_behind_aborted(sent) == behind);
    let rows = [
        ("all", outcome.lateness(|_| true)),
        ("due when no fault was near (15 s after one, 1 s before)", calm(false)),
        ("the same, of partitions in which others' transactions are aborted", calm(true)),
    ];
    for (what, late) in rows {
        if late.is_empty() {
            continue;
        }
        let at = |share: usize| late[(late.len() - 1) * share / 1_000];
        let _ = writeln!(page, "| {what} | {} | {} | {} | {} | {} |", late.len(), at(500), at(990), at(999), at(1_000));
    }
}

fn faults(page: &mut String, broker: Broker, outcome: &Outcome) {
    let together = outcome.injected.iter().filter(|injected| injected.faults.len() > 1).count();
    let _ = write!(
        page,
        "\n{} rounds of faults, {together} of them two at once. Until every shard had an owner again, where that was all that happened:\n\n\
         | fault | times | owner again after, s: median | greatest |\n| --- | ---: | ---: | ---: |\n",
        outcome.injected.len()
    );
    for fault in Fault::ALL {
        let of: Vec<_> = outcome.injected.iter().filter(|injected| injected.faults.contains(&fault)).collect();
        let mut took: Vec<Duration> = of.iter().filter_map(|injected| injected.took).collect();
        took.sort_unstable();
        let seconds = |took: Option<&Duration>| took.map(|took| format!("{:.1}", took.as_secs_f64())).unwrap_or_default();
        let _ =
            writeln!(page, "| {} | {} | {} | {} |", fault.words(broker), of.len(), seconds(took.get(took.len() / 2)), seconds(took.last()));
    }
}
