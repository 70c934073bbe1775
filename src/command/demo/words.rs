//! Writes the demo as text: the introduction, one line per second, and the summary.

use super::board::{Arrival, Author, Board};
use super::venue::Place;
use super::{Phase, View};
use crate::config::BrokerKind;
use std::fmt::Write;

/// Names and values of the lateness percentiles.
pub(super) fn lateness(board: &Board) -> [(&'static str, String); 3] {
    let shown = |late: Option<u64>| {
        late.map_or_else(|| "-".to_owned(), |late| format!("{} ms", spaced(late)))
    };
    let late = board.lateness();
    [
        ("p50", shown(late.per_mille(500))),
        ("p99", shown(late.per_mille(990))),
        ("max", shown(late.greatest())),
    ]
}

/// A number with spaces between its thousands.
pub(super) fn spaced(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// The text before the start: the addresses, and how to send a message.
pub(super) fn introduction(place: &Place) -> String {
    if place.is_own {
        own_introduction(place)
    } else {
        foreign_introduction(place)
    }
}

fn own_introduction(place: &Place) -> String {
    match place.kind {
        BrokerKind::Kafka => kafka_introduction(place),
        BrokerKind::Nats => nats_introduction(place),
    }
}

fn nats_introduction(place: &Place) -> String {
    let Place {
        address,
        source,
        target,
        ..
    } = place;
    format!(
        "
The whole service in this one process, on the NATS server at
{address}. Messages are sent to {source},
wait, and arrive on {target} when they are due; at the end
the stream that holds them is taken away, and nothing stays on the server. Send
one yourself while it runs, due in five seconds, with the nats command:

{invitation}

or with Python and nats-py (pip installs it, in a venv):

python3 - <<'END'
import asyncio, nats
async def main():
    client = await nats.connect(\"{address}\")
    await client.jetstream().publish(
        \"{source}\", b\"hello\",
        headers={{\"postdate-after\": \"5s\"}})
    await client.close()
asyncio.run(main())
END

",
        invitation = invitation(place),
    )
}

fn kafka_introduction(place: &Place) -> String {
    let Place {
        address,
        source,
        target,
        ..
    } = place;
    format!(
        "
A Kafka and the whole service, in this one process. Messages are sent to
{source}, wait, and arrive on {target} when they are due. Send one yourself
while it runs, due in five seconds, with kcat:

{invitation}

or with Python and confluent-kafka (pip installs it, in a venv):

python3 - <<'END'
from confluent_kafka import Producer
producer = Producer({{\"bootstrap.servers\": \"{address}\"}})
headers = {{\"postdate-after\": \"5s\"}}
producer.produce(\"{source}\", key=\"me\", value=\"hello\", headers=headers)
producer.flush()
END

Clients built on librdkafka can talk to this broker. The Java client cannot: it
needs a real one, and `make up` starts one.

",
        invitation = invitation(place),
    )
}

fn foreign_introduction(place: &Place) -> String {
    let Place {
        address,
        source,
        target,
        ..
    } = place;
    format!(
        "
This runs the service of your configuration, all its routes, for as long as the
demo lasts, on {address}. Besides, it writes:

  to {source}: some 25 messages a second, each with a header `demo`
  to {target}: the same messages when they are due, as consumers will see

It reads {target}, as a consumer group of its own that commits nothing.

"
    )
}

/// A command that sends a message. It must fit into one line of a narrow terminal.
pub(super) fn invitation(place: &Place) -> String {
    let Place {
        address, source, ..
    } = place;
    match place.kind {
        BrokerKind::Kafka => format!("echo hi|kcat -Pb {address} -t {source} -H postdate-after=5s"),
        // The command must be short, so leave out the default scheme.
        BrokerKind::Nats => format!(
            "nats pub -J -H postdate-after:5s -s {} {source} hi",
            address.trim_start_matches("nats://")
        ),
    }
}

/// The status line of one second.
pub(super) fn line(view: &View<'_>) -> String {
    let tally = view.board.tally();
    let state = match view.phase {
        Phase::Starting => return "starting".to_owned(),
        Phase::Sending { .. } => format!("{:>3} s", view.elapsed().as_secs()),
        Phase::Finishing | Phase::Over => "  end".to_owned(),
    };
    let [p50, p99, max] = lateness(view.board).map(|(name, value)| format!("{name} {value}"));
    let counts = format!(
        "sent {}  delivered {}  waiting {}",
        tally.sent,
        tally.delivered,
        view.board.waiting()
    );
    let mut text = format!("{state}  {counts}  late by {p50}, {p99}, {max}");
    for (name, value) in [
        ("overdue", view.overdue()),
        ("early", tally.early),
        ("twice", tally.duplicates),
        ("refused", tally.refused),
    ] {
        if value > 0 {
            let _ = write!(text, "  {name} {value}");
        }
    }
    text
}

/// A line about another producer's message. The demo's own messages are only counted.
pub(super) fn guest(arrival: &Arrival) -> Option<String> {
    (arrival.author == Author::Guest).then(|| {
        let Arrival { key, text, .. } = arrival;
        match (&arrival.refusal, arrival.late()) {
            (Some(why), _) => format!("yours, refused: key {key:?}, {text:?}: {why}"),
            (None, Some(late)) => format!("yours has arrived: key {key:?}, {text:?}, +{late} ms"),
            (None, None) => format!("yours has arrived: key {key:?}, {text:?}"),
        }
    })
}

/// Messages that had not arrived at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    /// Overdue messages.
    pub(super) lost: u64,
    /// Messages that were not due yet or not awaited for the full timeout.
    pub(super) left: u64,
}

impl Ending {
    /// Returns whether every message arrived exactly once and none arrived early.
    pub(super) fn is_well(self, board: &Board) -> bool {
        let tally = board.tally();
        self.lost == 0
            && self.left == 0
            && tally.sent > 0
            && tally.sent == tally.delivered
            && tally.early == 0
            && tally.duplicates == 0
    }
}

/// The text after the end.
pub(super) fn summary(board: &Board, ending: Ending, place: &Place) -> String {
    let tally = board.tally();
    let headline = match (ending.is_well(board), ending.left) {
        (true, _) => "All that was sent has arrived: each once, none early.",
        (false, 1..) => "Left early: not all was waited for.",
        (false, 0) if tally.sent == 0 => "Nothing was sent.",
        (false, 0) => "Something went wrong: not all that was sent has arrived once, and in time.",
    };
    let mut text = format!("\n{headline}\n\n");
    let mut row = |name: &str, value: String| text += &format!("  {name:<12} {value}\n");
    for (name, value) in [
        ("sent", tally.sent),
        ("delivered", tally.delivered),
        ("lost", ending.lost),
        ("early", tally.early),
    ] {
        row(name, value.to_string());
    }
    row("duplicates", tally.duplicates.to_string());
    for (name, value) in [
        ("refused", tally.refused),
        ("not awaited", ending.left),
        ("yours", tally.guests),
    ] {
        if value > 0 {
            row(name, value.to_string());
        }
    }
    let [p50, p99, max] = lateness(board).map(|(name, value)| format!("{name} {value}"));
    row(
        "late by",
        format!("{p50}, {p99}, {max} (due until seen by a consumer)"),
    );
    text + &next(place)
}

fn next(place: &Place) -> String {
    let own = match (place.is_own, place.kind) {
        (true, BrokerKind::Kafka) => {
            "  postdate demo --config FILE  the same show on your own Kafka\n"
        }
        _ => "",
    };
    let (file, page) = match place.kind {
        BrokerKind::Kafka => (
            "config/kafka.toml",
            "README.md                    the headers, and what is promised",
        ),
        BrokerKind::Nats => (
            "config/nats.toml",
            "docs/nats.md                 what NATS users should know",
        ),
    };
    format!(
        "\nNext:\n{own}  postdate run --config FILE   the service; FILE may be {file}\n  \
         make up                      a Kafka, a NATS and a Redis here, to try it with\n  {page}\n",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::demo::board::tests::{arrival, at};

    fn place() -> Place {
        let (address, source, target) = (
            "127.0.0.1:41234".into(),
            "orders.delayed".into(),
            "orders".into(),
        );
        Place {
            kind: BrokerKind::Kafka,
            address,
            source,
            target,
            is_own: true,
        }
    }

    fn full() -> Board {
        let mut board = Board::default();
        (0..3).for_each(|number| board.send(number, at(1_000)));
        (0..2).for_each(|number| board.arrive(arrival(Author::Own(number), 1_000, 1_004)));
        board
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(spaced),
            ["0", "999", "1 000", "1 234 567"]
        );
    }

    #[test]
    fn the_summary_says_what_was_lost() {
        let ending = Ending { lost: 1, left: 0 };
        assert!(!ending.is_well(&full()));
        insta::assert_snapshot!(summary(&full(), ending, &place()));
    }

    #[test]
    fn the_summary_of_a_good_show() {
        let mut board = full();
        board.arrive(arrival(Author::Own(2), 1_000, 1_009));
        let ending = Ending { lost: 0, left: 0 };
        assert!(ending.is_well(&board));
        insta::assert_snapshot!(summary(&board, ending, &place()));
    }

    #[test]
    fn a_show_in_which_nothing_was_sent_is_no_success() {
        assert!(!Ending { lost: 0, left: 0 }.is_well(&Board::default()));
    }

    #[test]
    fn the_introduction_has_examples_to_paste() {
        let text = introduction(&place());
        assert!(
            text.lines().any(|line| line
                == "echo hi|kcat -Pb 127.0.0.1:41234 -t orders.delayed -H postdate-after=5s"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(
            text.contains("{\"bootstrap.servers\": \"127.0.0.1:41234\"}") && text.contains("Java"),
            "{text}"
        );
    }

    #[test]
    fn the_introduction_on_nats_has_examples_to_paste() {
        let (address, source, target) = (
            "nats://127.0.0.1:4222",
            "demo.1a2b3c4d.delayed",
            "demo.1a2b3c4d.orders",
        );
        let text = introduction(&Place {
            kind: BrokerKind::Nats,
            address: address.into(),
            source: source.into(),
            target: target.into(),
            ..place()
        });
        assert!(
            text.lines().any(|line| line
                == format!("nats pub -J -H postdate-after:5s -s 127.0.0.1:4222 {source} hi")),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(
            text.contains(&format!("nats.connect(\"{address}\")")) && text.contains("taken away"),
            "{text}"
        );
    }

    #[test]
    fn before_it_writes_to_somebodys_cluster_it_says_where() {
        let text = introduction(&Place {
            is_own: false,
            ..place()
        });
        assert!(
            ["to orders.delayed", "to orders:", "on 127.0.0.1:41234"]
                .iter()
                .all(|part| text.contains(part)),
            "{text}"
        );
    }
}
