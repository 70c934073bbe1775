//! Formats pending messages as text: a table of routes and shards, and a bar chart by due time.

use crate::command::page::{Page, Side, Table, Tone, count, moment, relative, several, size};
use crate::model::Timestamp;
use crate::store::query::{IdSearch, PendingReport, PendingShard};

const HOUR_MS: i64 = 3_600_000;
/// Hours per line of the chart. The chart uses the first step that needs at most `LINES_MAX` lines.
const STEPS: [i64; 6] = [1, 6, 24, 7 * 24, 30 * 24, 365 * 24];
const LINES_MAX: usize = 30;
/// Shards per route in the table. The JSON document has all of them.
const SHARDS_SHOWN_MAX: usize = 16;

const UPPER_BOUND: &str = "Upper bounds: messages are stored in batches, and a batch counts until its last one is delivered; cancelled ones count along.";
const UNCONFIGURED: &str = "not in the configuration, so nothing of it is delivered";

pub(super) fn report(report: &PendingReport, page: &Page) -> String {
    let mut text = head(&report.deployment, &report.store, report.at_ms, page);
    let quarantined = report.total.quarantined;
    if report.total.messages == 0 && quarantined == 0 {
        return text + "\nNothing waits.\n" + &unconfigured(report, page);
    }
    text += "\n";
    text += &table(report, page);
    text += &unconfigured(report, page);
    if report.total.messages > 0 {
        text += "\n";
        text += &chart(report, page);
        text += "\n";
        text += &page.paint(Tone::Faint, UPPER_BOUND);
        text += "\n";
    }
    if quarantined > 0 {
        let what = format!(
            "{} set aside as unreadable, and not delivered: see PostdateQuarantined in docs/runbook.md.",
            several(quarantined, "message")
        );
        text += &format!("{}\n", page.paint(Tone::Bad, &what));
    }
    text
}

/// Title line: deployment, store and time.
fn head(deployment: &str, store: &str, at_ms: i64, page: &Page) -> String {
    let rest = format!(
        "  {store}  {}",
        moment(Timestamp::from_millis(at_ms.div_euclid(1_000) * 1_000))
    );
    format!(
        "{}{}\n",
        page.paint(Tone::Strong, deployment),
        page.paint(Tone::Faint, &rest)
    )
}

fn table(report: &PendingReport, page: &Page) -> String {
    let aside = |messages: u64| {
        if messages == 0 {
            String::new()
        } else {
            count(messages)
        }
    };
    let mut table = Table::new([
        Side::Left,
        Side::Left,
        Side::Right,
        Side::Right,
        Side::Left,
        Side::Right,
    ]);
    let has_aside = report.total.quarantined > 0;
    table.row(
        Tone::Faint,
        [
            "ROUTE",
            "SHARD",
            "WAITING",
            "STORED",
            "FIRST HOUR",
            if has_aside { "SET ASIDE" } else { "" },
        ],
    );
    for route in &report.routes {
        let name = if route.configured {
            (Tone::Plain, route.route.clone())
        } else {
            (Tone::Odd, format!("{} (!)", route.route))
        };
        let shards: Vec<&PendingShard> = report
            .shards
            .iter()
            .filter(|shard| shard.route == route.route && holds(shard))
            .collect();
        let (first, amount) = (
            shards.iter().filter_map(|shard| shard.first_hour_ms).min(),
            route.amount,
        );
        let shard = several(route.shards, "shard");
        let cells = [
            count(amount.messages),
            size(amount.bytes),
            first_hour(first, report.at_ms),
            aside(amount.quarantined),
        ];
        let [waiting, stored, due, quarantined] = cells.map(|cell| (Tone::Plain, cell));
        table.toned([
            name,
            (Tone::Faint, shard),
            waiting,
            stored,
            due,
            quarantined,
        ]);
        for shard in shards.iter().take(SHARDS_SHOWN_MAX) {
            let name = format!(
                "{}/{}{}",
                shard.topic,
                shard.partition,
                if shard.configured { "" } else { " (!)" }
            );
            let tone = if shard.configured {
                Tone::Faint
            } else {
                Tone::Odd
            };
            let (waiting, stored) = (count(shard.amount.messages), size(shard.amount.bytes));
            let due = first_hour(shard.first_hour_ms, report.at_ms);
            table.row(
                tone,
                [
                    String::new(),
                    name,
                    waiting,
                    stored,
                    due,
                    aside(shard.amount.quarantined),
                ],
            );
        }
        if let Some(more) = shards
            .len()
            .checked_sub(SHARDS_SHOWN_MAX)
            .filter(|more| *more > 0)
        {
            table.row(
                Tone::Faint,
                [
                    "",
                    &format!("and {more} more: --json has all"),
                    "",
                    "",
                    "",
                    "",
                ],
            );
        }
    }
    if report.routes.len() > 1 {
        let total = report.total;
        table.row(
            Tone::Strong,
            [
                "total",
                "",
                &count(total.messages),
                &size(total.bytes),
                "",
                &aside(total.quarantined),
            ],
        );
    }
    table.print(page)
}

fn holds(shard: &PendingShard) -> bool {
    shard.amount.messages + shard.amount.quarantined > 0
}

/// Formats the first hour with a due message. Finer times would require reading the messages.
fn first_hour(hour_ms: Option<i64>, at_ms: i64) -> String {
    match hour_ms {
        None => "-".to_owned(),
        Some(hour) if hour + HOUR_MS <= at_ms => "due".to_owned(),
        Some(hour) if hour <= at_ms => "this hour".to_owned(),
        Some(hour) => label(hour, 1),
    }
}

/// Explains the routes and topics that the table marks with `(!)`.
fn unconfigured(report: &PendingReport, page: &Page) -> String {
    let routes = report
        .routes
        .iter()
        .filter(|route| !route.configured)
        .map(|route| format!("route {}", route.route));
    let is_topic = |shard: &&PendingShard| {
        !shard.configured
            && report
                .routes
                .iter()
                .any(|route| route.configured && route.route == shard.route)
    };
    let mut topics: Vec<String> = report
        .shards
        .iter()
        .filter(is_topic)
        .map(|shard| format!("{} of route {}", shard.topic, shard.route))
        .collect();
    topics.dedup();
    let names: Vec<String> = routes.chain(topics).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "\n{}\n",
        page.paint(
            Tone::Odd,
            &format!("(!) {}: {UNCONFIGURED}", names.join(", "))
        )
    )
}

/// One line of the chart.
struct Line {
    label: String,
    messages: u64,
}

fn chart(report: &PendingReport, page: &Page) -> String {
    let drawn = |step: &i64| (*step, lines(report, *step));
    let (step, lines) = STEPS
        .iter()
        .map(drawn)
        .find(|(step, lines)| lines.len() <= LINES_MAX || *step == STEPS[STEPS.len() - 1])
        .expect("the last one is taken");
    let unit = match step {
        1 => "BY HOUR".to_owned(),
        24 => "BY DAY".to_owned(),
        hours if hours < 24 => format!("EVERY {hours} HOURS"),
        hours => format!("EVERY {} DAYS", hours / 24),
    };
    let max = lines
        .iter()
        .map(|line| line.messages)
        .max()
        .unwrap_or_default();
    let width = |text: fn(&Line) -> usize| lines.iter().map(text).max().unwrap_or_default();
    let (labels, counts) = (
        width(|line| line.label.chars().count()),
        width(|line| count(line.messages).len()),
    );
    let cells = page.width.saturating_sub(labels + counts + 8).clamp(10, 60);
    let mut text = format!(
        "  {}\n",
        page.paint(Tone::Faint, &format!("DUE, {unit} (UTC)"))
    );
    for line in &lines {
        let bar = page.paint(Tone::Bar, &page.bar(line.messages, max, cells));
        let amount = if line.messages == 0 {
            String::new()
        } else {
            count(line.messages)
        };
        text += format!("  {:labels$}  {amount:>counts$}  {bar}", line.label).trim_end();
        text += "\n";
    }
    text
}

/// One line for messages already due, then one per `step` hours up to the last that holds messages.
/// Long empty stretches become `...`.
fn lines(report: &PendingReport, step: i64) -> Vec<Line> {
    let is_over = |start_ms: i64| start_ms + HOUR_MS <= report.at_ms;
    let over = report
        .hours
        .iter()
        .filter(|hour| is_over(hour.start_ms))
        .map(|hour| hour.messages)
        .sum::<u64>();
    let due = over + report.due_when_stored.messages;
    let ahead: Vec<_> = report
        .hours
        .iter()
        .filter(|hour| !is_over(hour.start_ms))
        .collect();
    let mut lines = Vec::new();
    if due > 0 {
        lines.push(Line {
            label: "due already".to_owned(),
            messages: due,
        });
    }
    let step_of = |start_ms: i64| start_ms.div_euclid(step * HOUR_MS);
    let mut next = ahead.first().map_or(0, |first| step_of(first.start_ms));
    for group in ahead.chunk_by(|a, b| step_of(a.start_ms) == step_of(b.start_ms)) {
        let this = step_of(group[0].start_ms);
        if this - next > 2 {
            lines.push(Line {
                label: "...".to_owned(),
                messages: 0,
            });
            next = this;
        }
        lines.extend((next..this).map(|empty| Line {
            label: label(empty * step * HOUR_MS, step),
            messages: 0,
        }));
        lines.push(Line {
            label: label(this * step * HOUR_MS, step),
            messages: group.iter().map(|hour| hour.messages).sum(),
        });
        next = this + 1;
    }
    let rest = [("later", report.later), ("in any hour", report.far)];
    let rest = rest.into_iter().filter(|(_, amount)| amount.messages > 0);
    lines.extend(rest.map(|(label, amount)| Line {
        label: label.to_owned(),
        messages: amount.messages,
    }));
    lines
}

fn label(start_ms: i64, step: i64) -> String {
    let text = Timestamp::from_millis(start_ms).to_rfc3339();
    let (date, time) = text.split_once('T').unwrap_or((&text, ""));
    if step < 24 {
        format!("{date} {}", time.get(..5).unwrap_or_default())
    } else {
        date.to_owned()
    }
}

pub(super) fn search(search: &IdSearch, page: &Page) -> String {
    let mut text = head(&search.deployment, &search.store, search.at_ms, page);
    if search.found.is_empty() {
        return text
            + &format!(
                "\nNothing waits under the id {}: it was delivered, cancelled, or never stored.\n",
                search.id
            );
    }
    let now = Timestamp::from_millis(search.at_ms);
    for place in &search.found {
        let mut table = Table::new([Side::Left, Side::Left]);
        let mark = if place.configured {
            String::new()
        } else {
            format!("  ({UNCONFIGURED})")
        };
        let due = match place.due_ms.map(Timestamp::from_millis) {
            Some(due) => format!("{}  ({})", moment(due), relative(due, now)),
            None => "at once".to_owned(),
        };
        let source = format!(
            "{}/{} offset {}",
            place.topic, place.partition, place.offset
        );
        for (name, value) in [
            ("id", search.id.clone()),
            ("route", place.route.clone() + &mark),
            ("source", source),
            ("due", due),
        ] {
            table.toned([(Tone::Faint, name.to_owned()), (Tone::Plain, value)]);
        }
        text += "\n";
        text += &table.print(page);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::query::{Amount, FoundMessage, PendingHour, PendingRoute};

    /// This is 2026-11-21T23:00:05Z.
    const NOW: i64 = 1_795_302_005_000;
    const THIS_HOUR: i64 = 1_795_302_000_000;

    fn amount(messages: u64, quarantined: u64) -> Amount {
        Amount {
            messages,
            bytes: 85 * messages,
            quarantined,
        }
    }

    fn example() -> PendingReport {
        let shard =
            |route: &str, topic: &str, partition, messages, first: Option<i64>| PendingShard {
                route: route.into(),
                topic: topic.into(),
                partition,
                configured: route == "orders" && topic == "orders.delayed",
                amount: amount(messages, 0),
                first_hour_ms: first.map(|hour| THIS_HOUR + hour * HOUR_MS),
            };
        let hour = |at: i64, messages| PendingHour {
            start_ms: THIS_HOUR + at * HOUR_MS,
            start: String::new(),
            messages,
            bytes: 0,
        };
        let route = |name: &str, configured, shards, amount| PendingRoute {
            route: name.into(),
            configured,
            shards,
            amount,
        };
        PendingReport {
            deployment: "prod".into(),
            store: "redis 127.0.0.1:6379".into(),
            at_ms: NOW,
            total: amount(128_412, 3),
            routes: vec![
                route("mail", false, 1, amount(12, 3)),
                route("orders", true, 3, amount(128_400, 0)),
            ],
            shards: vec![
                shard("mail", "mail.delayed", 0, 12, Some(-2)),
                shard("orders", "orders.delayed", 0, 100_000, Some(0)),
                shard("orders", "orders.delayed", 1, 0, None),
                shard("orders", "orders.old", 0, 28_400, Some(1)),
            ],
            hours: vec![
                hour(-2, 12),
                hour(0, 64_200),
                hour(1, 32_100),
                hour(3, 21_400),
                hour(9, 10_700),
            ],
            ..PendingReport::default()
        }
    }

    #[test]
    fn the_report_has_a_table_and_a_chart() {
        insta::assert_snapshot!(report(&example(), &Page::PLAIN), @r#"
        prod  redis 127.0.0.1:6379  2026-11-21 23:00:05 UTC

          ROUTE     SHARD               WAITING    STORED  FIRST HOUR        SET ASIDE
          mail (!)  1 shard                  12    1020 B  due                       3
                    mail.delayed/0 (!)       12    1020 B  due
          orders    3 shards            128,400  10.4 MiB  this hour
                    orders.delayed/0    100,000   8.1 MiB  this hour
                    orders.old/0 (!)     28,400   2.3 MiB  2026-11-22 00:00
          total                         128,412  10.4 MiB                            3

        (!) route mail, orders.old of route orders: not in the configuration, so nothing of it is delivered

          DUE, BY HOUR (UTC)
          due already           12  #
          2026-11-21 23:00  64,200  ############################################################
          2026-11-22 00:00  32,100  ##############################
          2026-11-22 01:00
          2026-11-22 02:00  21,400  ####################
          ...
          2026-11-22 08:00  10,700  ##########

        Upper bounds: messages are stored in batches, and a batch counts until its last one is delivered; cancelled ones count along.
        3 messages set aside as unreadable, and not delivered: see PostdateQuarantined in docs/runbook.md.
        "#);
    }

    #[test]
    fn a_terminal_gets_bars_of_block_characters() {
        let page = Page {
            is_terminal: true,
            width: 60,
            ..Page::PLAIN
        };
        let text = report(&example(), &page);
        let chart: Vec<&str> = text
            .lines()
            .skip_while(|line| !line.contains("DUE, BY HOUR"))
            .take(9)
            .collect();
        insta::assert_snapshot!(chart.join("\n"), @r#"
        DUE, BY HOUR (UTC)
        due already           12  ▏
        2026-11-21 23:00  64,200  ██████████████████████████████
        2026-11-22 00:00  32,100  ███████████████
        2026-11-22 01:00
        2026-11-22 02:00  21,400  ██████████
        ...
        2026-11-22 08:00  10,700  █████
        "#);
    }

    #[test]
    fn a_chart_never_exceeds_its_maximum_of_lines() {
        for span in [1, 30, 31, 400, 9_000, 87_600] {
            let hours = (0..span).step_by(usize::try_from(span / 60 + 1).unwrap());
            let hours = hours.map(|at| PendingHour {
                start_ms: THIS_HOUR + at * HOUR_MS,
                start: String::new(),
                messages: 1,
                bytes: 0,
            });
            let report = PendingReport {
                at_ms: NOW,
                hours: hours.collect(),
                ..PendingReport::default()
            };
            let lines = chart(&report, &Page::PLAIN).lines().count();
            assert!(lines <= LINES_MAX + 1, "{span} hours: {lines}");
        }
    }

    #[test]
    fn an_empty_store_is_reported_in_one_sentence() {
        let nothing = PendingReport {
            deployment: "prod".into(),
            store: "folder /x".into(),
            at_ms: NOW,
            ..PendingReport::default()
        };
        assert_eq!(
            report(&nothing, &Page::PLAIN),
            "prod  folder /x  2026-11-21 23:00:05 UTC\n\nNothing waits.\n"
        );
    }

    #[test]
    fn a_found_message_is_shown_with_its_position_and_due_time() {
        let place = FoundMessage {
            route: "orders".into(),
            topic: "orders.delayed".into(),
            partition: 2,
            offset: 7,
            configured: true,
            due_ms: Some(NOW + 200_000),
            due: String::new(),
        };
        let found = IdSearch {
            deployment: "prod".into(),
            store: "folder /x".into(),
            at_ms: NOW,
            id: "order-42".into(),
            found: vec![place],
        };
        insta::assert_snapshot!(search(&found, &Page::PLAIN), @r#"
        prod  folder /x  2026-11-21 23:00:05 UTC

          id      order-42
          route   orders
          source  orders.delayed/2 offset 7
          due     2026-11-21 23:03:25 UTC  (in 3m 20s)
        "#);
        let none = IdSearch {
            found: vec![],
            ..found
        };
        assert!(search(&none, &Page::PLAIN).ends_with(
            "Nothing waits under the id order-42: it was delivered, cancelled, or never stored.\n"
        ));
    }
}
