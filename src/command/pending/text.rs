//! Formats waiting messages as text: a table of routes and shards, and a bar chart by due time.

use crate::command::page::{Page, Table, Tone};
use crate::model::Timestamp;
use crate::model::readable::{count, moment, relative, several, size};
use crate::store::query::{Amount, IdSearch, PendingReport, PendingShard};

const HOUR_MS: i64 = 3_600_000;
/// Hours per line of the chart. The chart uses the first step that needs at most `LINES_MAX` lines.
const STEPS: [i64; 6] = [1, 6, 24, 7 * 24, 30 * 24, 365 * 24];
const LINES_MAX: usize = 30;
/// Shards per route in the table. The JSON document has all of them.
const SHARDS_SHOWN_MAX: usize = 16;

const UPPER_BOUND: &str = "Upper bounds: messages are stored in batches, and a batch counts until its last message is delivered. Cancelled messages count, too.";
const UNCONFIGURED: &str = "not in the configuration, so nothing of it is delivered";

pub(super) fn report(report: &PendingReport, page: &Page) -> String {
    let mut text = page.title(&report.deployment, &report.store, report.at_ms) + "\n";
    let quarantined = report.total.quarantined;
    if report.total.messages == 0 && quarantined == 0 {
        return text + "Nothing waits.\n" + &unconfigured(report, page);
    }
    text += &table(report, page);
    text += &unconfigured(report, page);
    if report.total.messages > 0 {
        let bound = page.paint(Tone::Faint, UPPER_BOUND);
        text += &format!("\n{}\n{bound}\n", chart(report, page));
    }
    if quarantined > 0 {
        let messages = several(quarantined, "message");
        let what = format!(
            "{messages} quarantined as unreadable, and not delivered: see PostdateQuarantined in docs/runbook.md."
        );
        text += &format!("{}\n", page.paint(Tone::Bad, &what));
    }
    text
}

fn table(report: &PendingReport, page: &Page) -> String {
    let quarantined = if report.total.quarantined > 0 {
        "QUARANTINED"
    } else {
        ""
    };
    let head = [
        "ROUTE",
        "SHARD",
        "WAITING",
        "STORED",
        "FIRST HOUR",
        quarantined,
    ];
    let mut table = Table::new(&[0, 1, 4], head);
    let mark = |name: String, is_configured| match is_configured {
        true => name,
        false => format!("{name} (!)"),
    };
    let tone = |tone, is_configured| if is_configured { tone } else { Tone::Warning };
    for route in &report.routes {
        let holds = |shard: &&PendingShard| {
            let waits = shard.amount.messages + shard.amount.quarantined;
            shard.route == route.route && waits > 0
        };
        let shards: Vec<&PendingShard> = report.shards.iter().filter(holds).collect();
        let first = shards.iter().filter_map(|shard| shard.first_hour_ms).min();
        let first = first_hour(first, report.at_ms);
        let names = [
            mark(route.route.clone(), route.configured),
            several(route.shards, "shard"),
        ];
        table.row(
            tone(Tone::Plain, route.configured),
            row(names, &route.amount, first),
        );
        for shard in shards.iter().take(SHARDS_SHOWN_MAX) {
            let name = format!("{}/{}", shard.topic, shard.partition);
            let names = [String::new(), mark(name, shard.configured)];
            let first = first_hour(shard.first_hour_ms, report.at_ms);
            table.row(
                tone(Tone::Faint, shard.configured),
                row(names, &shard.amount, first),
            );
        }
        if shards.len() > SHARDS_SHOWN_MAX {
            let mut cells = [const { String::new() }; 6];
            cells[1] = format!(
                "and {} more: --json has all",
                shards.len() - SHARDS_SHOWN_MAX
            );
            table.row(Tone::Faint, cells);
        }
    }
    if report.routes.len() > 1 {
        let names = ["total".to_owned(), String::new()];
        table.row(Tone::Strong, row(names, &report.total, String::new()));
    }
    table.print(page)
}

fn row([route, shard]: [String; 2], amount: &Amount, first_hour: String) -> [String; 6] {
    let (waiting, stored) = (count(amount.messages), size(amount.bytes));
    let quarantined = Some(amount.quarantined).filter(|messages| *messages > 0);
    let quarantined = quarantined.map(count).unwrap_or_default();
    [route, shard, waiting, stored, first_hour, quarantined]
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

/// The shards of configured routes whose topics the routes no longer read.
pub(in crate::command) fn shards_of_removed_topics(
    report: &PendingReport,
) -> impl Iterator<Item = &PendingShard> {
    let shards = report.shards.iter().filter(|shard| !shard.configured);
    shards.filter(|shard| {
        let mut routes = report.routes.iter();
        routes.any(|route| route.configured && route.route == shard.route)
    })
}

/// Explains the routes and topics that the table marks with `(!)`.
fn unconfigured(report: &PendingReport, page: &Page) -> String {
    let routes = report.routes.iter().filter(|route| !route.configured);
    let routes = routes.map(|route| format!("route {}", route.route));
    let topics = shards_of_removed_topics(report);
    let topics = topics.map(|shard| format!("{} of route {}", shard.topic, shard.route));
    let mut names: Vec<String> = routes.chain(topics).collect();
    names.dedup();
    if names.is_empty() {
        return String::new();
    }
    let text = format!("(!) {}: {UNCONFIGURED}", names.join(", "));
    format!("\n{}\n", page.paint(Tone::Warning, &text))
}

/// One line of the chart: label and number of messages.
type Line = (String, u64);

fn chart(report: &PendingReport, page: &Page) -> String {
    let drawn = STEPS.map(|step| (step, lines(report, step)));
    let fits = |(_, lines): &&(i64, Vec<Line>)| lines.len() <= LINES_MAX;
    let (step, lines) = drawn.iter().find(fits).unwrap_or(&drawn[STEPS.len() - 1]);
    let unit = match step {
        1 => "BY HOUR".to_owned(),
        24 => "BY DAY".to_owned(),
        hours if *hours < 24 => format!("EVERY {hours} HOURS"),
        hours => format!("EVERY {} DAYS", hours / 24),
    };
    let max = lines
        .iter()
        .map(|(_, messages)| *messages)
        .max()
        .unwrap_or(0);
    let labels = lines.iter().map(|(label, _)| label.chars().count());
    let (labels, counts) = (labels.max().unwrap_or(0), count(max).len());
    let cells = page.width.saturating_sub(labels + counts + 8).clamp(10, 60);
    let title = page.paint(Tone::Faint, &format!("DUE, {unit} (UTC)"));
    let mut text = format!("  {title}\n");
    for (label, messages) in lines {
        let bar = page.paint(Tone::Bar, &page.bar(*messages, max, cells));
        let amount = Some(*messages).filter(|messages| *messages > 0);
        let amount = amount.map(count).unwrap_or_default();
        text += format!("  {label:labels$}  {amount:>counts$}  {bar}").trim_end();
        text += "\n";
    }
    text
}

/// One line for messages already due, then one per `step` hours up to the last that holds messages.
/// Long empty stretches become `...`.
fn lines(report: &PendingReport, step: i64) -> Vec<Line> {
    let is_ahead = |start_ms: i64| start_ms + HOUR_MS > report.at_ms;
    let (ahead, over): (Vec<_>, Vec<_>) = report
        .hours
        .iter()
        .partition(|hour| is_ahead(hour.start_ms));
    let over: u64 = over.iter().map(|hour| hour.messages).sum();
    let due = over + report.due_when_stored.messages;
    let mut lines = vec![("due already".to_owned(), due)];
    let step_of = |start_ms: i64| start_ms.div_euclid(step * HOUR_MS);
    let mut next = ahead.first().map_or(0, |first| step_of(first.start_ms));
    for group in ahead.chunk_by(|a, b| step_of(a.start_ms) == step_of(b.start_ms)) {
        let this = step_of(group[0].start_ms);
        if this - next > 2 {
            lines.push(("...".to_owned(), 0));
            next = this;
        }
        lines.extend((next..this).map(|empty| (label(empty * step * HOUR_MS, step), 0)));
        let messages = group.iter().map(|hour| hour.messages).sum();
        lines.push((label(this * step * HOUR_MS, step), messages));
        next = this + 1;
    }
    lines.push(("later".to_owned(), report.later.messages));
    lines.push(("in any hour".to_owned(), report.far.messages));
    let is_hour = |label: &str| !["due already", "later", "in any hour"].contains(&label);
    lines.retain(|(label, messages)| *messages > 0 || is_hour(label));
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
    let mut text = page.title(&search.deployment, &search.store, search.at_ms);
    let id = &search.id;
    if search.found.is_empty() {
        let end = "it was delivered, cancelled, or never stored";
        return text + &format!("\nNothing waits under the id {id}: {end}.\n");
    }
    let now = Timestamp::from_millis(search.at_ms);
    for place in &search.found {
        let (topic, partition, offset) = (&place.topic, place.partition, place.offset);
        let mark = match place.configured {
            true => String::new(),
            false => format!("  ({UNCONFIGURED})"),
        };
        let due = match place.due_ms.map(Timestamp::from_millis) {
            Some(due) => format!("{}  ({})", moment(due), relative(due, now)),
            None => "at once".to_owned(),
        };
        text += "\n";
        text += &page.fields(&[
            ("id", id.clone()),
            ("route", place.route.clone() + &mark),
            ("source", format!("{topic}/{partition} offset {offset}")),
            ("due", due),
        ]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::query::{FoundMessage, PendingHour, PendingRoute};

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
            first_hour_ms: None,
            last_hour_ms: None,
            paused: 0,
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

          ROUTE     SHARD               WAITING    STORED  FIRST HOUR        QUARANTINED
          mail (!)  1 shard                  12    1020 B  due                         3
                    mail.delayed/0 (!)       12    1020 B  due
          orders    3 shards            128,400  10.4 MiB  this hour
                    orders.delayed/0    100,000   8.1 MiB  this hour
                    orders.old/0 (!)     28,400   2.3 MiB  2026-11-22 00:00
          total                         128,412  10.4 MiB                              3

        (!) route mail, orders.old of route orders: not in the configuration, so nothing of it is delivered

          DUE, BY HOUR (UTC)
          due already           12  #
          2026-11-21 23:00  64,200  ############################################################
          2026-11-22 00:00  32,100  ##############################
          2026-11-22 01:00
          2026-11-22 02:00  21,400  ####################
          ...
          2026-11-22 08:00  10,700  ##########

        Upper bounds: messages are stored in batches, and a batch counts until its last message is delivered. Cancelled messages count, too.
        3 messages quarantined as unreadable, and not delivered: see PostdateQuarantined in docs/runbook.md.
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
