//! The texts of the demo: introduction, picture, lines and summary.

use super::board::{Board, Phase};
use super::scene::Scene;
use crate::command::page::{Page, Tone};
use crate::model::{Timestamp, readable::count};

/// The text before the start: addresses, and how to send a message.
pub(super) fn introduction(scene: &Scene) -> String {
    let (address, source, target) = (&scene.address, &scene.source, &scene.target);
    let invitation = invitation(scene);
    let note = scene.route.source.kind.facts().demo_note;
    let rest = if scene.is_own {
        let why = "Send one yourself while it runs, due in five seconds";
        format!("{why}:\n\n{invitation}\n\n{note}\ndocs/commands.md has the same in Python.")
    } else {
        "It serves all routes of your configuration. Its own consumer commits nothing.".to_owned()
    };
    format!(
        "
The whole service runs in this process, on {address}. It writes:

  to {source}: some 25 messages a second, with a header `demo`
  to {target}: the same messages when they are due

{rest}

"
    )
}

/// A command that sends a message.
fn invitation(scene: &Scene) -> String {
    (scene.route.source.kind.facts().send_command)(&scene.address, &scene.source)
}

pub(super) fn lateness(board: &Board) -> String {
    let shown = |late: Option<u64>| late.map_or("-".into(), |late| format!("{} ms", count(late)));
    let [p50, p99, max] = board.percentiles().map(shown);
    format!("late by p50 {p50}, p99 {p99}, max {max}")
}

pub(super) fn counts(board: &Board, now: Timestamp) -> String {
    let state = match board.phase {
        Phase::Starting => "start".to_owned(),
        Phase::Sending { since } => format!("{:>3} s", now.since(since).as_secs()),
        Phase::Finishing | Phase::Over => "  end".to_owned(),
    };
    let (sent, delivered, waiting) = (board.sent, board.delivered, board.waiting.len());
    format!("{state}  sent {sent}  delivered {delivered}  waiting {waiting}")
}

/// The smallest terminal for a picture, without a line for the cursor.
pub(super) const HEIGHT_MIN: u16 = 20;
pub(super) const WIDTH_MIN: u16 = 78;

/// Waiting messages by second, counts, and the latest deliveries.
pub(super) fn picture(board: &Board, scene: &Scene, now: Timestamp, page: &Page) -> Vec<String> {
    let title = "postdate demo  waiting messages, by the second in which they are due";
    // A line of the log may replace the empty line.
    let mut lines = vec![String::new(), page.paint(Tone::Strong, title)];
    let waiting: [u64; 10] = board.by_second(now);
    let most = waiting.into_iter().fold(8, u64::max);
    for (second, waiting) in waiting.into_iter().enumerate() {
        let bar = page.paint(Tone::Bar, &page.bar(waiting, most, 50));
        lines.push(format!("  +{second} s {waiting:>4}  {bar}"));
    }
    lines.push(page.paint(Tone::Strong, &counts(board, now)));
    lines.push(format!("       {}", lateness(board)));
    lines.extend((0..4).map(|at| board.latest.get(at).cloned().unwrap_or_default()));
    if board.phase != Phase::Over && scene.is_own {
        lines.push(format!("try  {}", invitation(scene)));
    }
    lines.extend(match board.phase {
        Phase::Over => None,
        Phase::Finishing => Some(page.paint(Tone::Faint, "q    leave now, without the rest")),
        _ => Some(page.paint(Tone::Faint, "q    send no more, wait for the rest, and end")),
    });
    lines
}

/// The text after the end.
pub(super) fn summary(board: &Board) -> String {
    let lost = board.lost();
    let left = board.waiting.len() - lost;
    let headline = match left {
        _ if board.is_well() => "All that was sent has arrived: each once, none early.",
        0 if board.sent == 0 => "Nothing was sent.",
        0 => "Something went wrong: not every message arrived exactly once and in time.",
        _ => "Left early: some messages were still waiting.",
    };
    let mut text = format!("\n{headline}\n\n");
    for (name, value, is_always_shown) in [
        ("sent", board.sent, true),
        ("delivered", board.delivered, true),
        ("lost", lost, true),
        ("early", board.early, true),
        ("duplicates", board.duplicates, true),
        ("refused", board.refused, false),
        ("not awaited", left, false),
        ("yours", board.guests, false),
    ] {
        if is_always_shown || value > 0 {
            text += &format!("  {name:<12} {value}\n");
        }
    }
    let late = lateness(board);
    text + &format!(
        "  {late} (due until seen by a consumer)

Next: postdate demo --config FILE shows it on your own Kafka, and postdate run --config FILE
runs the service. README.md has the headers, and what is promised.
"
    )
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::{arrive, arrive_dead, at, board};
    use super::super::scene::tests::{on_nats, own};
    use super::*;

    /// Three messages: one waits, and two were delivered.
    fn full() -> Board {
        let mut board = board();
        (0..3).for_each(|_| _ = board.send(at(1_000)));
        (0..2).for_each(|number| arrive(&mut board, Some(number), 1_004));
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
            arrive(&mut board, Some(number), 99_000 + late);
        });
        arrive_dead(&mut board, 40, 99_004);
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
          refused: key "order-7", "close it": too late
          key "order-7", "close it", seen 99004
          key "order-7", "close it", seen 99003
          key "order-7", "close it", seen 99002
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
        board.begin(at(0), std::time::Duration::ZERO);
        (0..2).for_each(|_| board.end_phase(at(20_000)));
        insta::assert_snapshot!(summary(&board).trim(), @r#"
        Something went wrong: not every message arrived exactly once and in time.

          sent         3
          delivered    2
          lost         1
          early        0
          duplicates   0
          late by p50 4 ms, p99 4 ms, max 4 ms (due until seen by a consumer)

        Next: postdate demo --config FILE shows it on your own Kafka, and postdate run --config FILE
        runs the service. README.md has the headers, and what is promised.
        "#);
    }

    #[test]
    fn the_summary_of_a_good_show() {
        let mut board = full();
        arrive(&mut board, Some(2), 1_009);
        board.begin(at(0), std::time::Duration::ZERO);
        (0..2).for_each(|_| board.end_phase(at(20_000)));
        insta::assert_snapshot!(summary(&board).trim(), @r#"
        All that was sent has arrived: each once, none early.

          sent         3
          delivered    3
          lost         0
          early        0
          duplicates   0
          late by p50 4 ms, p99 9 ms, max 9 ms (due until seen by a consumer)

        Next: postdate demo --config FILE shows it on your own Kafka, and postdate run --config FILE
        runs the service. README.md has the headers, and what is promised.
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
        let text = introduction(&on_nats());
        let command = "nats pub -J -H postdate-after:5s -s 127.0.0.1:4222 demo.1a2b3c4d.delayed hi";
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
