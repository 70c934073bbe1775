//! Formats the output of commands: tables, bars, amounts and times.
//!
//! Colours and block characters appear only on a terminal.

use crate::model::Timestamp;
use anyhow::Result;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Width without a terminal.
const WIDTH: usize = 100;
/// Upper limit of the width, because longer lines are hard to read.
const WIDTH_MAX: usize = 120;

/// Capabilities of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) width: usize,
    /// Allows block characters. The reader is a person, not a program.
    pub(crate) is_terminal: bool,
    pub(crate) has_colours: bool,
}

/// Emphasis of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Odd,
    Bad,
    Bar,
}

impl Page {
    /// Plain text without a terminal.
    pub(crate) const PLAIN: Self = Self {
        width: WIDTH,
        is_terminal: false,
        has_colours: false,
    };

    pub(crate) fn of_stdout() -> Self {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return Self::PLAIN;
        }
        let width = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
        let width = if width == 0 {
            WIDTH
        } else {
            width.min(WIDTH_MAX)
        };
        // As no-color.org defines it: `NO_COLOR` disables colours if it is set and not empty.
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            width,
            is_terminal: true,
            has_colours,
        }
    }

    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            _ if !self.has_colours || text.is_empty() => return text.to_owned(),
            Tone::Strong => "1",
            Tone::Faint => "2",
            Tone::Good => "32",
            Tone::Odd => "33",
            Tone::Bad => "31",
            Tone::Bar => "36",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// A bar of at most `cells` cells for `count` out of `max`. A count above zero is always
    /// visible.
    pub(crate) fn bar(&self, count: u64, max: u64, cells: usize) -> String {
        if count == 0 || max == 0 || cells == 0 {
            return String::new();
        }
        let eighths = (u128::from(count) * 8 * cells as u128)
            .div_ceil(u128::from(max))
            .min(8 * cells as u128) as usize;
        if !self.is_terminal {
            return "#".repeat(eighths.div_ceil(8));
        }
        let parts = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        format!("{}{}", "█".repeat(eighths / 8), parts[eighths % 8])
    }
}

/// Prints to standard output. A closed pipe is not an error, because the reader may stop early.
pub(crate) fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Wraps the text to the terminal's width. All lines after the first are indented.
pub(crate) fn wrapped(text: &str, indent: usize, page: &Page) -> String {
    // A very narrow column is harder to read than a line that the terminal breaks.
    if !page.is_terminal || page.width < indent + 30 {
        return text.to_owned();
    }
    let (mut wrapped, mut column) = (String::new(), indent);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > page.width {
            wrapped += "\n";
            wrapped += &" ".repeat(indent);
            column = indent;
        } else if column > indent {
            wrapped.push(' ');
            column += 1;
        }
        wrapped += word;
        column += length;
    }
    wrapped
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A table whose cells each have a tone.
pub(crate) struct Table<const N: usize> {
    sides: [Side; N],
    rows: Vec<[(Tone, String); N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(sides: [Side; N]) -> Self {
        Self {
            sides,
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, tone: Tone, cells: [impl Into<String>; N]) {
        self.rows.push(cells.map(|cell| (tone, cell.into())));
    }

    /// Adds a row with a tone for each cell.
    pub(crate) fn toned(&mut self, cells: [(Tone, String); N]) {
        self.rows.push(cells);
    }

    /// Renders the rows with a margin of two spaces before each column and no trailing spaces.
    pub(crate) fn print(&self, page: &Page) -> String {
        let widths: [usize; N] = std::array::from_fn(|column| {
            self.rows
                .iter()
                .map(|row| row[column].1.chars().count())
                .max()
                .unwrap_or_default()
        });
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            let last = row
                .iter()
                .rposition(|(_, cell)| !cell.is_empty())
                .unwrap_or_default();
            for (column, (tone, cell)) in row.iter().enumerate().take(last + 1) {
                let blanks = " ".repeat(widths[column] - cell.chars().count());
                let painted = page.paint(*tone, cell);
                line += "  ";
                line += &match self.sides[column] {
                    Side::Right => blanks + &painted,
                    Side::Left if column == last => painted,
                    Side::Left => painted + &blanks,
                };
            }
            text += &line;
            text += "\n";
        }
        text
    }
}

/// Groups digits: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Counts with a plural: `1 message`, `2 messages`.
pub(crate) fn several(number: u64, one: &str) -> String {
    format!(
        "{} {one}{}",
        count(number),
        if number == 1 { "" } else { "s" }
    )
}

/// Formats a size: `812 B`, `9.1 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    let (mut amount, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if amount < 1024.0 {
            break;
        }
        (amount, unit) = (amount / 1024.0, next);
    }
    if unit == "B" || amount >= 99.95 {
        format!("{amount:.0} {unit}")
    } else {
        format!("{amount:.1} {unit}")
    }
}

/// The two greatest units of a duration: `2d 4h`, `3m 20s`, `250ms`.
pub(crate) fn length(duration: Duration) -> String {
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ];
    let mut rest = duration.as_millis();
    let first = units
        .iter()
        .position(|(_, unit)| rest >= *unit)
        .unwrap_or(units.len() - 1);
    let mut parts = Vec::new();
    // Milliseconds are shown only below one second.
    let last = if first == units.len() - 1 {
        first
    } else {
        (first + 1).min(units.len() - 2)
    };
    for (name, unit) in &units[first..=last] {
        if rest >= *unit || parts.is_empty() {
            parts.push(format!("{}{name}", rest / unit));
        }
        rest %= unit;
    }
    parts.join(" ")
}

/// Time relative to `now`: `in 3m 20s`, `2h ago`, `now`.
pub(crate) fn relative(instant: Timestamp, now: Timestamp) -> String {
    match (instant.since(now), now.since(instant)) {
        (Duration::ZERO, Duration::ZERO) => "now".to_owned(),
        (Duration::ZERO, ago) => format!("{} ago", length(ago)),
        (ahead, _) => format!("in {}", length(ahead)),
    }
}

/// A UTC time: `2026-11-21 23:00:05 UTC`.
pub(crate) fn moment(instant: Timestamp) -> String {
    let text = instant.to_rfc3339();
    match text.strip_suffix('Z') {
        Some(date) => format!("{} UTC", date.replacen('T', " ", 1)),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_times_are_formatted_for_people() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345_678, "12,345,678"),
        ] {
            assert_eq!(count(number), text);
        }
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (150 << 20, "150 MiB"),
            (5 << 40, "5.0 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (millis, text) in [
            (0, "0ms"),
            (250, "250ms"),
            (1_500, "1s"),
            (200_000, "3m 20s"),
            (3_600_000, "1h"),
            (3_605_000, "1h"),
            (187_200_000, "2d 4h"),
        ] {
            assert_eq!(length(Duration::from_millis(millis)), text);
        }
        let at = Timestamp::from_millis;
        assert_eq!(relative(at(60_000), at(0)), "in 1m");
        assert_eq!(relative(at(0), at(60_000)), "1m ago");
        assert_eq!(relative(at(5), at(5)), "now");
        assert_eq!(moment(at(1_801_386_000_000)), "2027-01-31 09:00:00 UTC");
    }

    #[test]
    fn a_bar_shows_the_smallest_count_and_never_exceeds_its_width() {
        let terminal = Page {
            is_terminal: true,
            ..Page::PLAIN
        };
        assert_eq!(
            (
                terminal.bar(0, 9, 4),
                terminal.bar(1, 1_000_000, 4),
                terminal.bar(9, 9, 4)
            ),
            (String::new(), "▏".into(), "████".into())
        );
        assert_eq!(
            (terminal.bar(5, 16, 4), Page::PLAIN.bar(5, 16, 4)),
            ("█▎".into(), "##".into())
        );
        assert_eq!(terminal.bar(u64::MAX, u64::MAX, 2), "██");
    }

    #[test]
    fn columns_align_with_and_without_colours() {
        let mut table = Table::new([Side::Left, Side::Right]);
        table.row(Tone::Strong, ["name", "count"]);
        table.row(Tone::Plain, ["a", "1,000"]);
        table.row(Tone::Plain, ["b", ""]);
        assert_eq!(
            table.print(&Page::PLAIN),
            "  name  count\n  a     1,000\n  b\n"
        );
        let coloured = table.print(&Page {
            has_colours: true,
            ..Page::PLAIN
        });
        assert!(
            coloured.starts_with("  \u{1b}[1mname\u{1b}[0m  \u{1b}[1mcount\u{1b}[0m\n"),
            "{coloured:?}"
        );
    }
}
