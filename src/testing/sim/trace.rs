//! What happened in a simulation, in the order of time: faults, leases and transactors, and what became of each message. Of the messages only
//! those are shown that somebody is accused of.

use std::collections::BTreeSet;

/// Lines that are shown at most, and messages whose lines are.
const LINES_MAX: usize = 600;
const MESSAGES_MAX: usize = 10;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceLine {
    /// In milliseconds since the simulation began: no step of a clock changes it.
    pub(crate) at: i64,
    /// The message that it is about, if it is about one.
    pub(crate) uid: Option<String>,
    pub(crate) what: String,
}

/// What is to be read of a trace to understand what was broken: all that is not about messages, and what became of the messages that the
/// accusations name - of the last few, if they name none.
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
        "what happened, in milliseconds, with what became of {messages} ({left_out} lines before it left out):\n{}",
        lines[left_out..].join("\n")
    )
}

/// So many of them, each once.
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
    fn of_messages_only_those_are_shown_that_are_accused_or_the_last_if_none_is() {
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
    fn what_is_shown_is_bounded_however_much_happened() {
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
            text.ends_with("    4999 sent") && text.contains(" lines before it left out"),
            "{text}"
        );
    }
}
