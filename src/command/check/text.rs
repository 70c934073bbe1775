//! Formats a check as text: one line per item, grouped by area, with the remedy below.

use super::item::{Document, Verdict};
use crate::command::page::{Page, Tone, several, wrapped};

pub(super) fn document(document: &Document, page: &Page) -> String {
    let mut text = String::new();
    let subjects = document
        .items
        .iter()
        .map(|item| item.subject.chars().count())
        .max()
        .unwrap_or_default()
        .max("fix".len());
    let indent = 2 + 4 + 2 + subjects + 2;
    let mut area = "";
    for item in &document.items {
        if item.area != area {
            area = &item.area;
            text += &format!(
                "{}{}\n",
                if text.is_empty() { "" } else { "\n" },
                page.paint(Tone::Strong, area)
            );
        }
        let (word, tone) = match item.verdict {
            Verdict::Ok => ("ok  ", Tone::Good),
            Verdict::Warn => ("warn", Tone::Odd),
            Verdict::Fail => ("fail", Tone::Bad),
        };
        text += &format!(
            "  {}  {:subjects$}  {}\n",
            page.paint(tone, word),
            item.subject,
            wrapped(&item.found, indent, page)
        );
        if let Some(fix) = &item.fix {
            text += &format!(
                "        {}  {}\n",
                page.paint(Tone::Faint, &format!("{:subjects$}", "fix")),
                wrapped(fix, indent, page)
            );
        }
    }
    let (warn, fail) = (several(document.warn as u64, "warning"), document.fail);
    let tone = if fail > 0 {
        Tone::Bad
    } else if document.warn > 0 {
        Tone::Odd
    } else {
        Tone::Good
    };
    text + &format!(
        "\n{}\n",
        page.paint(tone, &format!("{} ok, {warn}, {fail} failed", document.ok))
    )
}

#[cfg(test)]
mod tests {
    use super::super::item::Item;
    use super::*;

    fn example() -> Document {
        let items = vec![
            Item::ok("kafka.main", "reachable", "1 broker"),
            Item::fail(
                "kafka.main",
                "orders.paid",
                "target of orders does not exist",
                "create it",
            ),
            Item::warn(
                "store",
                "maxmemory",
                "not set",
                "set maxmemory below what the machine has: a full Redis still delivers",
            ),
        ];
        Document::new("prod", items)
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
