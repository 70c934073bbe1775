//! Draws the demo on a terminal.
//!
//! It uses only the terminal's sixteen colours and its background, which are readable on light and
//! dark themes.

use super::board::{Arrival, Author};
use super::words::{lateness, spaced};
use super::{Phase, View};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// The preferred height, and the smallest size that can be drawn.
pub(super) const HEIGHT: u16 = 26;
pub(super) const HEIGHT_LEAST: u16 = 20;
pub(super) const WIDTH_LEAST: u16 = 78;

/// More width would only add empty space.
const WIDTH_MAX: u16 = 100;

/// Seconds that the chart covers: slightly more than the shop's longest delay.
const SECONDS: usize = 12;
const BAR_LINES: usize = 5;
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

const ACCENT: Color = Color::Cyan;
const GOOD: Color = Color::Green;
const BAD: Color = Color::Red;
const GUEST: Color = Color::Magenta;
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws the view into the frame, at most `WIDTH_MAX` columns wide.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View<'_>) {
    let area = frame.area();
    let area = Rect {
        x: area.x + 1,
        width: area.width.saturating_sub(2).min(WIDTH_MAX),
        ..area
    };
    let chart_lines = u16::try_from(BAR_LINES + 3).expect("a few");
    let [head, _, chart, _, numbers, _, arrivals, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Length(chart_lines),
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(2),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(header(view, usize::from(area.width))), head);
    frame.render_widget(
        Paragraph::new(pending(view, usize::from(area.width))),
        chart,
    );
    frame.render_widget(Paragraph::new(vec![counters(view), late(view)]), numbers);
    frame.render_widget(
        Paragraph::new(latest(
            view,
            usize::from(arrivals.height),
            usize::from(area.width),
        )),
        arrivals,
    );
    frame.render_widget(Paragraph::new(footer(view)), foot);
}

fn header(view: &View<'_>, width: usize) -> Vec<Line<'static>> {
    let title = [
        Span::styled("postdate demo", BOLD.fg(ACCENT)),
        Span::styled("  a shop that says \"later\"", DIM),
    ];
    let state = state(view);
    let used = title.iter().map(Span::width).sum::<usize>() + state.chars().count();
    let mut first = Line::from(title.to_vec());
    first.push_span(Span::raw(" ".repeat(width.saturating_sub(used))));
    first.push_span(Span::styled(state, DIM));
    let done = usize::try_from(
        view.elapsed().as_millis() * width as u128 / view.length.as_millis().max(1),
    )
    .map_or(width, |done| done.min(width));
    let rule = Line::from(vec![
        Span::styled("━".repeat(done), Style::new().fg(ACCENT)),
        Span::styled("─".repeat(width - done), DIM),
    ]);
    vec![first, rule]
}

fn state(view: &View<'_>) -> String {
    match view.phase {
        Phase::Starting => "starting".to_owned(),
        Phase::Sending { .. } => format!(
            "{} s of {} s",
            view.elapsed().as_secs(),
            view.length.as_secs()
        ),
        Phase::Finishing => format!("waiting for the last {}", view.board.waiting()),
        Phase::Over => "done".to_owned(),
    }
}

/// A bar for each second of due times, with its count on top.
fn pending(view: &View<'_>, width: usize) -> Vec<Line<'static>> {
    let pending = view.board.pending(view.now, SECONDS);
    let (cell, most) = (
        (width / SECONDS).max(4),
        pending.iter().max().copied().unwrap_or(0).max(8),
    );
    let heights: Vec<usize> = pending.iter().map(|count| eighths(*count, most)).collect();
    let mut lines = vec![Line::from(vec![
        Span::styled(spaced(view.board.waiting()), BOLD),
        Span::raw(" wait, by the second in which they are due"),
    ])];
    for row in (0..=BAR_LINES).rev() {
        let spans = pending
            .iter()
            .zip(&heights)
            .enumerate()
            .map(|(second, (count, height))| bar(row, *count, *height, (second, cell)));
        lines.push(Line::from(spans.collect::<Vec<_>>()));
    }
    let labels = (0..SECONDS).map(|second| {
        if second == 0 {
            "now".to_owned()
        } else {
            format!("+{second} s")
        }
    });
    lines.push(Line::styled(
        labels
            .map(|label| format!("{label:<cell$}"))
            .collect::<String>(),
        DIM,
    ));
    lines
}

/// One cell of a bar: a block, the count above the bar, or blanks.
fn bar(row: usize, count: u64, height: usize, (second, cell): (usize, usize)) -> Span<'static> {
    let (below, color) = (row * 8, if second == 0 { GOOD } else { ACCENT });
    if height > below {
        let block = EIGHTHS[(height - below).min(8)].repeat(cell - 2);
        return Span::styled(format!("{block:<cell$}"), Style::new().fg(color));
    }
    let is_top = height.div_ceil(8) == row;
    Span::styled(
        if is_top && count > 0 {
            format!("{count:<cell$}")
        } else {
            " ".repeat(cell)
        },
        DIM,
    )
}

fn eighths(count: u64, most: u64) -> usize {
    let height = (count * (BAR_LINES * 8) as u64).div_ceil(most);
    usize::try_from(height).unwrap_or(0).min(BAR_LINES * 8)
}

fn counters(view: &View<'_>) -> Line<'static> {
    let tally = view.board.tally();
    let mut line = Line::default();
    let mut add = |name: &'static str, value: u64, style: Style| {
        line.push_span(Span::styled(format!("{name} "), DIM));
        line.push_span(Span::styled(format!("{}   ", spaced(value)), style));
    };
    add("sent", tally.sent, BOLD);
    add("delivered", tally.delivered, BOLD.fg(GOOD));
    add("waiting", view.board.waiting(), BOLD.fg(ACCENT));
    for (name, value) in [
        ("overdue", view.overdue()),
        ("early", tally.early),
        ("twice", tally.duplicates),
        ("refused", tally.refused),
    ] {
        // Problems stay visible at a fixed place. Refusals appear only when they happen.
        if value > 0 || name != "refused" {
            add(
                name,
                value,
                if value > 0 {
                    BOLD.fg(BAD)
                } else {
                    Style::new()
                },
            );
        }
    }
    line
}

fn late(view: &View<'_>) -> Line<'static> {
    let mut line = Line::from(Span::styled("late by ", DIM));
    for (name, value) in lateness(view.board) {
        line.push_span(Span::styled(format!("{name} "), DIM));
        line.push_span(Span::styled(format!("{value}   "), BOLD));
    }
    let guests = view.board.tally().guests;
    if guests > 0 {
        line.push_span(Span::styled(
            format!("and {} of yours", spaced(guests)),
            BOLD.fg(GUEST),
        ));
    }
    line
}

fn latest(view: &View<'_>, lines: usize, width: usize) -> Vec<Line<'static>> {
    let mut shown = vec![Line::styled("the last to arrive", DIM)];
    let arrivals = view
        .board
        .latest_guest()
        .into_iter()
        .chain(view.board.latest());
    shown.extend(
        arrivals
            .take(lines.saturating_sub(2))
            .map(|arrival| row(arrival, width)),
    );
    shown
}

fn row(arrival: &Arrival, width: usize) -> Line<'static> {
    let color = match arrival.author {
        _ if arrival.refusal.is_some() => Style::new().fg(BAD),
        Author::Guest => BOLD.fg(GUEST),
        Author::Own(_) => Style::new(),
    };
    let (end, end_style) = match (&arrival.refusal, arrival.late()) {
        (Some(why), _) => (format!("refused: {why}"), Style::new().fg(BAD)),
        (None, Some(late)) => (format!("+{late} ms"), Style::new().fg(GOOD)),
        (None, None) => ("at once".to_owned(), DIM),
    };
    let end = cut(&end, width.saturating_sub(KEY) * 2 / 3);
    let room = width.saturating_sub(KEY + end.chars().count() + 2);
    Line::from(vec![
        Span::styled(format!("{:<KEY$}", cut(&arrival.key, KEY - 1)), color),
        Span::styled(format!("{:<room$}  ", cut(&arrival.text, room)), DIM),
        Span::styled(end, end_style),
    ])
}

/// Width of the key column.
const KEY: usize = 15;

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        text.to_owned()
    } else {
        text.chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect()
    }
}

fn footer(view: &View<'_>) -> Vec<Line<'static>> {
    let first = match &view.note {
        _ if view.phase == Phase::Over => Line::default(),
        Some(note) => Line::styled(note.clone(), Style::new().fg(BAD)),
        None => view.invitation.as_ref().map_or_else(Line::default, |line| {
            Line::from(vec![
                Span::styled("try  ", DIM),
                Span::styled(line.clone(), Style::new().fg(GUEST)),
            ])
        }),
    };
    let keys = match view.phase {
        Phase::Finishing => "q    leave now, without the rest",
        Phase::Starting | Phase::Sending { .. } => "q    send no more, wait for the rest, and end",
        Phase::Over => "",
    };
    vec![first, Line::styled(keys, DIM)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::demo::board::Board;
    use crate::command::demo::board::tests::{arrival, at};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    /// A typical board: pending messages, a delivered guest message, and a refused one.
    fn board() -> Board {
        let mut board = Board::default();
        for number in 0..140_u64 {
            let ahead = if number < 40 {
                -1_000
            } else {
                i64::try_from(number * number % 9_000).unwrap()
            };
            board.send(number, at(100_000 + ahead));
        }
        (140..160).for_each(|number| board.send(number, at(106_000)));
        (0..40).for_each(|number| {
            board.arrive(arrival(
                Author::Own(number),
                99_000,
                99_000 + i64::try_from(number % 7).unwrap(),
            ));
        });
        let guest = arrival(Author::Guest, 99_000, 99_004);
        board.arrive(Arrival {
            key: "me".to_owned(),
            text: "hello".to_owned(),
            ..guest.clone()
        });
        let why =
            "postdate-after is \"10x\"; it takes milliseconds, or units such as 1h30m, 250ms, 7d"
                .to_owned();
        board.arrive(Arrival {
            key: "me".to_owned(),
            text: "hello".to_owned(),
            refusal: Some(why),
            ..guest
        });
        board
    }

    fn drawn(width: u16, height: u16, phase: Phase, board: &Board) -> String {
        let invitation = Some(
            "echo hi|kcat -Pb 127.0.0.1:41234 -t orders.delayed -H postdate-after=5s".to_owned(),
        );
        let view = View {
            board,
            now: at(100_300),
            phase,
            length: Duration::from_secs(30),
            note: None,
            invitation,
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &view)).unwrap();
        let (buffer, mut text) = (terminal.backend().buffer(), String::new());
        for y in 0..height {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            text += &format!("|{}\n", line.trim_end());
        }
        text
    }

    #[test]
    fn a_narrow_terminal_shows_it_all() {
        insta::assert_snapshot!(drawn(
            80,
            23,
            Phase::Sending { begun: at(88_000) },
            &board()
        ));
    }

    #[test]
    fn the_least_terminal_leaves_nothing_out() {
        let drawn = drawn(
            WIDTH_LEAST,
            HEIGHT_LEAST,
            Phase::Sending { begun: at(88_000) },
            &board(),
        );
        for last in [
            "12 s of 30 s\n",
            "+11 s\n",
            "twice 0\n",
            "of yours\n",
            "postdate-after=5s\n",
            "and end\n",
        ] {
            assert!(drawn.contains(last), "{last:?} is missing:\n{drawn}");
        }
    }

    #[test]
    fn a_wide_terminal_has_wider_bars() {
        insta::assert_snapshot!(drawn(140, 26, Phase::Finishing, &board()));
    }

    #[test]
    fn before_anything_has_arrived_nothing_is_made_up() {
        insta::assert_snapshot!(drawn(80, 23, Phase::Starting, &Board::default()));
    }

    #[test]
    fn no_size_of_a_terminal_makes_it_panic() {
        for (width, height) in [(1, 1), (3, 22), (59, 5), (61, 16), (300, 60)] {
            drawn(width, height, Phase::Over, &board());
        }
    }
}
