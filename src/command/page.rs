//! Formats the output of commands: colours, bars and tables.
//!
//! Colours and block characters appear only on a terminal.

use crate::cli::OutputArgs;
use crate::model::Timestamp;
use crate::model::readable::moment;
use anyhow::Result;
use serde::Serialize;
use std::io::{IsTerminal, Write};

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
    Warning,
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
        Self {
            width: if width == 0 {
                WIDTH
            } else {
                width.min(WIDTH_MAX)
            },
            is_terminal: true,
            // As no-color.org defines it: `NO_COLOR` disables colours if it is set and not empty.
            has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        }
    }

    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            _ if !self.has_colours || text.is_empty() => return text.to_owned(),
            Tone::Strong => "1",
            Tone::Faint => "2",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Bar => "36",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// A bar of at most `cells` cells for `count` out of `max`. A count above zero is always
    /// visible.
    pub(crate) fn bar(&self, count: u64, max: u64, cells: usize) -> String {
        let full = 8 * cells as u128;
        let eighths = (u128::from(count) * full).div_ceil(u128::from(max.max(1)));
        let eighths = eighths.min(full) as usize;
        if !self.is_terminal {
            return "#".repeat(eighths.div_ceil(8));
        }
        let parts = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        format!("{}{}", "█".repeat(eighths / 8), parts[eighths % 8])
    }

    /// The title line of a report: deployment, store and time.
    pub(crate) fn title(&self, deployment: &str, store: &str, at_ms: i64) -> String {
        let at = Timestamp::from_millis(at_ms.div_euclid(1_000) * 1_000);
        let rest = self.paint(Tone::Faint, &format!("  {store}  {}", moment(at)));
        format!("{}{rest}\n", self.paint(Tone::Strong, deployment))
    }

    /// Names and values, one below the other.
    pub(crate) fn fields(&self, fields: &[(&str, String)]) -> String {
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let line = |(name, value): &(&str, String)| {
            let name = self.paint(Tone::Faint, &format!("{name:width$}"));
            format!("  {name}  {value}\n")
        };
        fields.iter().map(line).collect()
    }
}

/// Prints to standard output. A closed pipe is not an error, because the reader may stop early.
pub(crate) fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Asks at a terminal. Elsewhere the answer is no.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Ok(false);
    }
    print(&format!("{question} [y/N] "))?;
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Prints a document as JSON, or as text for people.
pub(crate) fn print_document<D: Serialize>(
    document: &D,
    output: OutputArgs,
    text: impl FnOnce(&D, &Page) -> String,
) -> Result<()> {
    print(&match output.is_json() {
        true => serde_json::to_string_pretty(document)? + "\n",
        false => text(document, &Page::of_stdout()),
    })
}

/// A table. The columns of `left` are aligned to the left, the others to the right.
pub(crate) struct Table<const N: usize> {
    left: &'static [usize],
    rows: Vec<(Tone, [String; N])>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(left: &'static [usize], head: [&str; N]) -> Self {
        let rows = vec![(Tone::Faint, head.map(str::to_owned))];
        Self { left, rows }
    }

    pub(crate) fn row(&mut self, tone: Tone, cells: [String; N]) {
        self.rows.push((tone, cells));
    }

    /// Renders the rows with a margin of two spaces before each column and no trailing spaces.
    pub(crate) fn print(&self, page: &Page) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|(_, cells)| &cells[column]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let mut text = String::new();
        for (tone, cells) in &self.rows {
            let aligned = |(column, cell): (usize, &String)| match widths[column] {
                width if self.left.contains(&column) => format!("{cell:width$}"),
                width => format!("{cell:>width$}"),
            };
            let cells: Vec<String> = cells.iter().enumerate().map(aligned).collect();
            let line = cells.join("  ");
            text += &format!("  {}\n", page.paint(*tone, line.trim_end()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut table = Table::new(&[0], ["name", "count"]);
        table.row(Tone::Strong, ["a".to_owned(), "1,000".to_owned()]);
        table.row(Tone::Plain, ["b".to_owned(), String::new()]);
        assert_eq!(
            table.print(&Page::PLAIN),
            "  name  count\n  a     1,000\n  b\n"
        );
        let coloured = table.print(&Page {
            has_colours: true,
            ..Page::PLAIN
        });
        assert!(
            coloured
                .starts_with("  \u{1b}[2mname  count\u{1b}[0m\n  \u{1b}[1ma     1,000\u{1b}[0m\n"),
            "{coloured:?}"
        );
    }
}
