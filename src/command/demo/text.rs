//! The texts of the demo: introduction, picture, lines and summary.

use super::board::{Arrival, Board, Phase};
use super::scene::Scene;
use crate::command::page::{Page, Tone};
use crate::config::BrokerKind;
use crate::model::Timestamp;
use crate::model::readable::count;

/// The text before the start: addresses, and how to send a message.
pub(super) fn introduction(scene: &Scene) -> String {
    let (address, source, target) = (&scene.address, &scene.source, &scene.target);
    if !scene.is_own {
        return format!(
            "
This runs the service of your configuration, all its routes, for as long as the
demo lasts, on {address}. Besides, it writes:

  to {source}: some 25 messages a second, each with a header `demo`
  to {target}: the same messages when they are due, as consumers will see

It reads {target}, as a consumer group of its own that commits nothing.

"
        );
    }
    let (place, note) = match scene.route().source.kind {
        BrokerKind::Kafka => (
            "A Kafka and the whole service, in this one process.".to_owned(),
            "Clients built on librdkafka can talk to this broker. The Java client cannot: it
needs a real one, and `make up` starts one.",
        ),
        BrokerKind::Nats => (
            format!("The whole service in this one process, on the NATS server at\n{address}."),
            "At the end the demo deletes the stream with the messages, and nothing stays
on the server.",
        ),
    };
    let invitation = invitation(scene);
    format!(
        "
{place} Messages are sent to
{source}, wait, and arrive on {target}
when they are due. Send one yourself while it runs, due in five seconds:

{invitation}

docs/commands.md has the same in Python.
{note}

"
    )
}

/// A command that sends a message. It must fit into one line of a narrow terminal.
fn invitation(scene: &Scene) -> String {
    // The command must be short, so leave out the default scheme.
    let address = scene.address.trim_start_matches("nats://");
    let source = &scene.source;
    match scene.route().source.kind {
        BrokerKind::Kafka => format!("echo hi|kcat -Pb {address} -t {source} -H postdate-after=5s"),
        BrokerKind::Nats => format!("nats pub -J -H postdate-after:5s -s {address} {source} hi"),
    }
}

/// A line about an arrival.
pub(super) fn delivery(arrival: &Arrival) -> String {
    let late = arrival.due.map(|due| arrival.at.since(due).as_millis());
    let late = late.map_or(String::new(), |late| format!(", +{late} ms"));
    let content = &arrival.content;
    match (&arrival.refusal, arrival.number) {
        (Some(why), Some(_)) => format!("  refused: {content}: {why}"),
        (None, Some(_)) => format!("  {content}{late}"),
        (Some(why), None) => format!("yours, refused: {content}: {why}"),
        (None, None) => format!("yours has arrived: {content}{late}"),
    }
}

fn lateness(board: &Board) -> String {
    let shown =
        |late: Option<u64>| late.map_or("-".to_owned(), |late| format!("{} ms", count(late)));
    let [p50, p99, max] = board.lateness([500, 990, 1_000]).map(shown);
    format!("late by p50 {p50}, p99 {p99}, max {max}")
}

fn counts(board: &Board, now: Timestamp) -> String {
    let state = match board.phase {
        Phase::Starting => "start".to_owned(),
        Phase::Sending { since } => format!("{:>3} s", now.since(since).as_secs()),
        Phase::Finishing | Phase::Over => "  end".to_owned(),
    };
    let (sent, delivered, waiting) = (board.sent, board.delivered(), board.waiting());
    format!("{state}  sent {sent}  delivered {delivered}  waiting {waiting}")
}

/// The line of one second.
pub(super) fn line(board: &Board, now: Timestamp) -> String {
    format!("{}  {}", counts(board, now), lateness(board))
}

/// The smallest terminal for a picture, without a line for the cursor.
pub(super) const HEIGHT_MIN: u16 = 20;
pub(super) const WIDTH_MIN: u16 = 78;

/// The picture: waiting messages by second, counts, and the latest deliveries.
pub(super) fn picture(board: &Board, scene: &Scene, now: Timestamp, page: &Page) -> Vec<String> {
    let faint = |text: &str| page.paint(Tone::Faint, text);
    let title = page.paint(Tone::Strong, "postdate demo");
    let heading = faint("waiting messages, by the second in which they are due");
    // A line of the log may replace the empty line.
    let mut lines = vec![String::new(), format!("{title}  {heading}")];
    // Slightly more seconds than the longest delay.
    let waiting = board.by_second(now, 10);
    let most = waiting.iter().max().map_or(8, |most| 8.max(*most));
    for (second, waiting) in waiting.into_iter().enumerate() {
        let bar = page.paint(Tone::Bar, &page.bar(waiting, most, 50));
        lines.push(format!("  +{second} s {waiting:>4}  {bar}"));
    }
    lines.push(page.paint(Tone::Strong, &counts(board, now)));
    lines.push(format!("       {}", lateness(board)));
    lines.extend((0..4).map(|at| board.latest.get(at).cloned().unwrap_or_default()));
    let invitation = format!("try  {}", invitation(scene));
    let invites = scene.is_own && board.phase != Phase::Over;
    lines.push(if invites { invitation } else { String::new() });
    lines.push(faint(match board.phase {
        Phase::Over => "",
        Phase::Finishing => "q    leave now, without the rest",
        _ => "q    send no more, wait for the rest, and end",
    }));
    lines
}

/// The text after the end.
pub(super) fn summary(board: &Board) -> String {
    let (lost, waiting) = (board.lost(), board.waiting());
    let headline = match waiting - lost {
        _ if board.is_well() => "All that was sent has arrived: each once, none early.",
        1.. => "Left early: not all was waited for.",
        0 if board.sent == 0 => "Nothing was sent.",
        0 => "Something went wrong: not all that was sent has arrived once, and in time.",
    };
    let mut text = format!("\n{headline}\n\n");
    for (name, value, is_shown) in [
        ("sent", board.sent, true),
        ("delivered", board.delivered(), true),
        ("lost", lost, true),
        ("early", board.early, true),
        ("duplicates", board.duplicates, true),
        ("refused", board.refused, board.refused > 0),
        ("not awaited", waiting - lost, waiting > lost),
        ("yours", board.guests, board.guests > 0),
    ] {
        if is_shown {
            text += &format!("  {name:<12} {value}\n");
        }
    }
    let late = lateness(board);
    text + &format!("  {late} (due until seen by a consumer)\n{NEXT}")
}

const NEXT: &str = "
Next:
  postdate demo --config FILE  the same show on your own Kafka
  postdate run --config FILE   the service; FILE may be config/kafka.toml or config/nats.toml
  make up                      a Kafka, a NATS and a Redis here, to try it with
  README.md                    the headers, and what is promised
";

#[cfg(test)]
mod tests {
    use super::super::board::tests::{arrival, at, board};
    use super::super::scene::tests::own;
    use super::*;

    /// Three messages: one waits, and two were delivered.
    fn full() -> Board {
        let mut board = board();
        (0..3).for_each(|_| _ = board.send(at(1_000)));
        (0..2).for_each(|number| board.arrive(&arrival(Some(number), 1_000, 1_004)));
        board
    }

    /// Waiting messages, delivered ones, and a refused one.
    fn busy() -> Board {
        let mut board = board();
        for number in 0..140_i64 {
            let ahead = if number < 40 {
                -1_000
            } else {
                number * number % 9_000
            };
            board.send(at(100_000 + ahead));
        }
        (0..40).for_each(|number| {
            let late = i64::try_from(number % 7).unwrap();
            board.arrive(&arrival(Some(number), 99_000, 99_000 + late));
        });
        let refusal = Some("too late".to_owned());
        board.arrive(&Arrival {
            refusal,
            ..arrival(Some(40), 99_000, 99_004)
        });
        board
    }

    fn drawn(board: &Board, page: &Page) -> String {
        picture(board, &own(), at(100_300), page).join("\n")
    }

    #[test]
    fn the_picture_shows_waiting_messages_counts_and_deliveries() {
        let mut board = busy();
        board.phase = Phase::Sending { since: at(88_000) };
        let page = Page {
            is_terminal: true,
            ..Page::PLAIN
        };
        insta::assert_snapshot!(drawn(&board, &page).trim_start(), @r#"
        postdate demo  waiting messages, by the second in which they are due
          +0 s    8  ██████████████████████████▊
          +1 s   11  ████████████████████████████████████▊
          +2 s   15  ██████████████████████████████████████████████████
          +3 s   14  ██████████████████████████████████████████████▊
          +4 s   11  ████████████████████████████████████▊
          +5 s   11  ████████████████████████████████████▊
          +6 s   10  █████████████████████████████████▍
          +7 s   10  █████████████████████████████████▍
          +8 s    9  ██████████████████████████████
          +9 s    0  
         12 s  sent 140  delivered 40  waiting 99
               late by p50 3 ms, p99 6 ms, max 6 ms
          refused: key "order-7", "close it unless it was paid": too late
          key "order-7", "close it unless it was paid", +4 ms
          key "order-7", "close it unless it was paid", +3 ms
          key "order-7", "close it unless it was paid", +2 ms
        try  echo hi|kcat -Pb 127.0.0.1:41234 -t orders.delayed -H postdate-after=5s
        q    send no more, wait for the rest, and end
        "#);
    }

    #[test]
    fn the_picture_fits_the_smallest_terminal() {
        for mut board in [busy(), board()] {
            let sending = Phase::Sending { since: at(0) };
            for phase in [Phase::Starting, sending, Phase::Finishing, Phase::Over] {
                board.phase = phase;
                let picture = drawn(&board, &Page::PLAIN) + "\n";
                let lines: Vec<&str> = picture.split_terminator('\n').collect();
                assert!(lines.len() <= usize::from(HEIGHT_MIN), "{picture}");
                let fits = |line: &&str| line.chars().count() <= usize::from(WIDTH_MIN);
                assert!(lines.iter().all(fits), "{picture}");
            }
        }
    }

    #[test]
    fn the_summary_says_what_was_lost() {
        let mut board = full();
        board.end(at(20_000));
        insta::assert_snapshot!(summary(&board).trim(), @r#"
        Something went wrong: not all that was sent has arrived once, and in time.

          sent         3
          delivered    2
          lost         1
          early        0
          duplicates   0
          late by p50 4 ms, p99 4 ms, max 4 ms (due until seen by a consumer)

        Next:
          postdate demo --config FILE  the same show on your own Kafka
          postdate run --config FILE   the service; FILE may be config/kafka.toml or config/nats.toml
          make up                      a Kafka, a NATS and a Redis here, to try it with
          README.md                    the headers, and what is promised
        "#);
    }

    #[test]
    fn the_summary_of_a_good_show() {
        let mut board = full();
        board.arrive(&arrival(Some(2), 1_000, 1_009));
        board.end(at(20_000));
        insta::assert_snapshot!(summary(&board).trim(), @r#"
        All that was sent has arrived: each once, none early.

          sent         3
          delivered    3
          lost         0
          early        0
          duplicates   0
          late by p50 4 ms, p99 9 ms, max 9 ms (due until seen by a consumer)

        Next:
          postdate demo --config FILE  the same show on your own Kafka
          postdate run --config FILE   the service; FILE may be config/kafka.toml or config/nats.toml
          make up                      a Kafka, a NATS and a Redis here, to try it with
          README.md                    the headers, and what is promised
        "#);
    }

    #[test]
    fn a_demo_in_which_nothing_was_sent_is_no_success() {
        assert!(!board().is_well());
    }

    #[test]
    fn the_introduction_has_examples_to_paste() {
        let text = introduction(&own());
        let command = "echo hi|kcat -Pb 127.0.0.1:41234 -t orders.delayed -H postdate-after=5s";
        assert!(text.lines().any(|line| line == command), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(
            text.contains("librdkafka") && text.contains("Java"),
            "{text}"
        );
    }

    #[test]
    fn the_introduction_on_nats_has_examples_to_paste() {
        let source = "demo.1a2b3c4d.delayed";
        let mut scene = own();
        scene.address = "nats://127.0.0.1:4222".to_owned();
        (scene.source, scene.target) = (source.to_owned(), "demo.1a2b3c4d.orders".to_owned());
        let mut routes = scene.config.routes.values_mut();
        routes.next().unwrap().source.kind = BrokerKind::Nats;
        let text = introduction(&scene);
        let command = format!("nats pub -J -H postdate-after:5s -s 127.0.0.1:4222 {source} hi");
        assert!(text.lines().any(|line| line == command), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(text.contains("deletes the stream"), "{text}");
    }

    #[test]
    fn before_it_writes_to_somebodys_cluster_it_says_where() {
        let mut scene = own();
        scene.is_own = false;
        let text = introduction(&scene);
        let parts = ["to orders.delayed", "to orders:", "on 127.0.0.1:41234"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}
