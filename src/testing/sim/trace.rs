//! The events of a simulation in time order: faults, leases, transactional producers, and the fate
//! of each message.
//!
//! A failure shows only the messages that its accusations name.

use std::collections::BTreeSet;

/// Upper bounds of a rendered trace: lines, and messages whose lines are shown.
const LINES_MAX: usize = 600;
const MESSAGES_MAX: usize = 10;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceLine {
    /// Milliseconds since the start of the simulation. Clock faults do not change it.
    pub(crate) at: i64,
    /// The message that the event belongs to, if any.
    pub(crate) uid: Option<String>,
    pub(crate) what: String,
}

/// The part of a trace that explains the broken promises: all events without a message, and the
/// events of the accused messages. If no message is accused, the last few are shown.
pub(crate) fn render(trace: &[TraceLine], broken: &[String]) -> String {
    let of_trace = || trace.iter().rev().filter_map(|line| line.uid.as_deref());
    let known: BTreeSet<&str> = of_trace().collect();
    let mut uids = first(
        broken
            .iter()
            .flat_map(|broken| words(broken))
            .filter(|word| known.contains(word)),
    );
    if uids.is_empty() {
        uids = first(of_trace());
    }
    let is_shown = |line: &&TraceLine| line.uid.as_deref().is_none_or(|uid| uids.contains(&uid));
    let lines: Vec<_> = trace
        .iter()
        .filter(is_shown)
        .map(|line| format!("{:>8} {}", line.at, line.what))
        .collect();
    let left_out = lines.len().saturating_sub(LINES_MAX);
    let messages = uids.join(", ");
    format!(
        "events by millisecond, with those of {messages} ({left_out} earlier lines left out):\n{}",
        lines[left_out..].join("\n")
    )
}

/// The first distinct ids, up to the limit.
fn first<'a>(uids: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    uids.filter(|uid| seen.insert(*uid))
        .take(MESSAGES_MAX)
        .collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: i64, uid: Option<&str>, what: &str) -> TraceLine {
        TraceLine {
            at,
            uid: uid.map(str::to_owned),
            what: what.to_owned(),
        }
    }

    #[test]
    fn a_trace_shows_the_accused_messages_or_else_the_last_ones() {
        let trace = [
            line(1, Some("u1"), "u1 is sent"),
            line(2, None, "kill"),
            line(3, Some("u11"), "u11 is sent"),
        ];
        let lines = |broken: &str| {
            render(&trace, &[broken.to_owned()])
                .lines()
                .skip(1)
                .map(str::trim_start)
                .collect::<Vec<_>>()
                .join("; ")
        };
        assert_eq!(lines("lost: Sent { uid: \"u1\" }"), "1 u1 is sent; 2 kill");
        assert_eq!(
            lines("u2 and a ledger is open"),
            "1 u1 is sent; 2 kill; 3 u11 is sent"
        );
    }

    #[test]
    fn the_length_of_a_rendered_trace_is_bounded() {
        let trace: Vec<_> = (0..5_000)
            .flat_map(|at| {
                [
                    line(at, None, "kill"),
                    line(at, Some(&format!("u{at}")), "sent"),
                ]
            })
            .collect();
        let text = render(&trace, &["a ledger is open".to_owned()]);
        assert_eq!(text.lines().count(), 1 + LINES_MAX);
        assert!(
            text.ends_with("    4999 sent") && text.contains(" earlier lines left out"),
            "{text}"
        );
    }
}
