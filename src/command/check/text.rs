//! Formats a check as text: one line per item, grouped by area, with the remedy below.

use super::Document;
use crate::broker::inspection::Verdict;
use crate::command::page::{Page, Tone};
use crate::model::readable::several;

pub(super) fn document(document: &Document, page: &Page) -> String {
    let subjects = document.items.iter().map(|item| &item.finding.subject);
    let width = subjects.map(|subject| subject.chars().count()).max();
    let width = width.unwrap_or_default().max("fix".len());
    let indent = 2 + 4 + 2 + width + 2;
    let (mut text, mut area) = (String::new(), "");
    for item in &document.items {
        if item.area != area {
            text += if area.is_empty() { "" } else { "\n" };
            area = &item.area;
            text += &format!("{}\n", page.paint(Tone::Strong, area));
        }
        let (word, tone) = match item.finding.verdict {
            Verdict::Ok => ("ok  ", Tone::Good),
            Verdict::Warn => ("warn", Tone::Warning),
            Verdict::Fail => ("fail", Tone::Bad),
        };
        let (word, subject) = (page.paint(tone, word), &item.finding.subject);
        let found = wrapped(&item.finding.found, indent, page);
        text += &format!("  {word}  {subject:width$}  {found}\n");
        if let Some(fix) = &item.finding.fix {
            let (word, fix) = (format!("{:width$}", "fix"), wrapped(fix, indent, page));
            text += &format!("        {}  {fix}\n", page.paint(Tone::Faint, &word));
        }
    }
    let tone = match (document.fail, document.warn) {
        (0, 0) => Tone::Good,
        (0, _) => Tone::Warning,
        _ => Tone::Bad,
    };
    let warnings = several(document.warn as u64, "warning");
    let sum = format!("{} ok, {warnings}, {} failed", document.ok, document.fail);
    text += &format!("\n{}\n", page.paint(tone, &sum));
    let plan = document.plan.as_ref().map(|plan| plan.text(page));
    text + &plan.unwrap_or_default()
}

/// Wraps the text to the terminal's width. All lines after the first are indented.
fn wrapped(text: &str, indent: usize, page: &Page) -> String {
    // A very narrow column is harder to read than a line that the terminal breaks.
    if !page.is_terminal || page.width < indent + 30 {
        return text.to_owned();
    }
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let length = line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && indent + length > page.width {
            lines.push(std::mem::take(&mut line));
        }
        line += if line.is_empty() { "" } else { " " };
        line += word;
    }
    lines.push(line);
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::Finding;

    fn example() -> Document {
        let missing = "target of orders does not exist";
        let fix = "set maxmemory below what the machine has: a full Redis still delivers";
        let areas = vec![
            (
                "kafka.main".to_owned(),
                vec![
                    Finding::ok("reachable", "1 broker"),
                    Finding::fail("orders.paid", missing, "create it"),
                ],
            ),
            (
                "store".to_owned(),
                vec![Finding::warn("maxmemory", "not set", fix)],
            ),
        ];
        Document::new("prod", areas, None)
    }

    #[test]
    fn a_check_is_read_by_area_with_the_fix_below_what_needs_one() {
        insta::assert_snapshot!(document(&example(), &Page::PLAIN), @r#"
        kafka.main
          ok    reachable    1 broker
          fail  orders.paid  target of orders does not exist
                fix          create it

        store
          warn  maxmemory    not set
                fix          set maxmemory below what the machine has: a full Redis still delivers

        1 ok, 1 warning, 1 failed
        "#);
    }

    #[test]
    fn a_terminal_gets_lines_that_fit() {
        let page = Page {
            is_terminal: true,
            width: 60,
            ..Page::PLAIN
        };
        assert!(
            document(&example(), &page)
                .lines()
                .all(|line| line.chars().count() <= 60)
        );
    }
}
