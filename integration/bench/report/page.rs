//! Renders the results as one self-contained HTML page, without network, server or script.

use std::fmt::Write as _;

use super::chart::Figures;
use super::svg::{escaped, short};
use super::tile::tiles;
use super::{LEGEND, Results};
use crate::compare::{Comparison, RIVALS};
use crate::held::Held;
use crate::row::{Depth, Idle, Process, Row, Stage, System};

const STYLE: &str = include_str!("style.css");

pub(super) fn page(results: &Results) -> String {
    let figures = Figures {
        rows: &results.rows,
        runs: &results.runs,
    };
    let layout = results.rows.iter().any(|row| row.system == System::Layout);
    let but = if layout {
        " Of the per-message layout only Redis' part is told."
    } else {
        ""
    };
    let steadily = format!("Per cent of one core, all waiting included. Shorter is better.{but}");
    let body = [
        head(results),
        tiles(results),
        plot(
            "Throughput",
            "Messages a second. Longer is better.",
            figures.bars(|row| row.rate, "/s"),
        ),
        lateness(figures),
        plot(
            "Bytes of a waiting message",
            "In Redis, or in the embedded store's folder. Shorter is better.",
            bytes(figures),
        ),
        cpu(
            "Processor time at full speed",
            "Microseconds of one core a message. Shorter is better.",
            figures.cpu(at_full_speed, "µs"),
        ),
        plot(
            "Redis' processor time",
            "Microseconds of one core a message, into Redis and out. Shorter is better.",
            redis(results, figures),
        ),
        cpu(
            "Processor time under a steady load",
            &steadily,
            figures.cpu(under_a_load, "%"),
        ),
        beside(&results.comparisons),
        strained(results),
        idle(&results.rows),
        table(&results.rows),
        method(results),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Postdate: figures</title><style>\n{STYLE}</style></head>\n<body><main>\n{}\n</main></body></html>\n",
        body.join("\n")
    )
}

fn bytes(figures: Figures<'_>) -> Option<String> {
    figures.bars(|row| row.bytes, " B")
}

fn head(results: &Results) -> String {
    let verdict = if results.are_kept() {
        "<p class=\"verdict kept\">Nothing was lost, doubled, early or changed.</p>"
    } else {
        "<p class=\"verdict broken\">A promise was broken: see the last column of the table.</p>"
    };
    format!(
        "<header><h1>Postdate, measured</h1><p>{}</p><p>Version {}, {}.</p></header>{verdict}",
        escaped(&results.conditions()).replace('\n', "<br>"),
        results.version,
        results.finished
    )
}

/// Renders a section with a plot, or an empty string without a drawing.
fn plot(title: &str, says: &str, drawn: Option<String>) -> String {
    drawn.map_or_else(String::new, |drawn| {
        format!("<section><h2>{title}</h2><p>{says}</p>{drawn}</section>")
    })
}

/// Selects the rows at full speed. Leaves out the rivals, whose long bars would make all others
/// look alike.
fn at_full_speed(row: &Row) -> Option<f64> {
    (!matches!(
        row.stage,
        Stage::Steady(_)
            | Stage::Beside(_)
            | Stage::Meanwhile(_)
            | Stage::Answers(_)
            | Stage::BesideCancels(_)
    ) && !RIVALS.contains(&row.system))
    .then_some(1.0)
}

/// Draws Redis CPU per message for storing and delivering. Returns `None` if no rival was measured.
fn redis(results: &Results, figures: Figures<'_>) -> Option<String> {
    let there = results.rows.iter().any(|row| RIVALS.contains(&row.system));
    there.then(|| {
        figures.bars(
            |row| row.redis_cpu_us.filter(|_| row.stage == Stage::Both),
            " µs",
        )
    })?
}

/// Factor from microseconds per message to per cent of a core, at the rate of the row.
fn under_a_load(row: &Row) -> Option<f64> {
    match row.stage {
        Stage::Steady(rate) | Stage::Beside(Depth { rate, .. }) => Some(rate as f64 / 1e4),
        _ => None,
    }
}

fn cpu(title: &str, says: &str, drawn: Option<String>) -> String {
    let key = key(&[
        ("program", "the program itself"),
        ("redis", "Redis"),
        ("broker", "the broker"),
    ]);
    plot(title, &format!("{says}</p><p class=\"key\">{key}"), drawn)
}

fn lateness(figures: Figures<'_>) -> String {
    let panels = figures.lateness();
    if panels.is_empty() {
        return String::new();
    }
    let names: Vec<_> = figures
        .systems()
        .into_iter()
        .map(|system| (system.class(), system.name()))
        .collect();
    let drawn: String = panels
        .iter()
        .map(|(name, drawn)| format!("<figure><figcaption>{name}</figcaption>{drawn}</figure>"))
        .collect();
    let says = "How long after its due a message arrived, by the rate of a steady load: for half of them no longer than p50, for 99 of 100 \
                than p99, for 999 of 1000 than p99.9. Lower is better; each step of the scale is ten times the one below.";
    format!(
        "<section><h2>Lateness by rate</h2><p>{says}</p><p class=\"key\">{}</p><div class=\"panels\">{drawn}</div></section>",
        key(&names)
    )
}

fn key(names: &[(&str, &str)]) -> String {
    names
        .iter()
        .map(|(class, name)| format!("<span><i class=\"{class}\"></i>{name}</span>"))
        .collect()
}

/// Renders the comparison with the rivals.
fn beside(comparisons: &[Comparison]) -> String {
    if comparisons.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "<section><h2>Beside an entry a message in Redis</h2><p>How many times as much as Postdate, each ratio of one run.</p>",
    );
    text += "<div class=\"wide\"><table><thead><tr><th></th><th>Postdate</th>";
    RIVALS
        .iter()
        .for_each(|rival| text += &format!("<th>{}</th><th>times</th>", rival.name()));
    text += "</tr></thead><tbody>";
    for comparison in comparisons {
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{}</td>",
            comparison.what.replace(" us ", " µs "),
            short(comparison.postdate)
        );
        for rival in RIVALS {
            let found = comparison
                .rivals
                .iter()
                .find(|beside| beside.system == rival);
            let [value, times] = found.map_or([String::new(), String::new()], |beside| {
                [short(beside.value), short(beside.times)]
            });
            let _ = write!(text, "<td>{value}</td><td>{times}</td>");
        }
        text += "</tr>";
    }
    text + "</tbody></table></div></section>"
}

/// Renders the figures under strain: many waiting messages, and bursts.
fn strained(results: &Results) -> String {
    let rows = || {
        results
            .rows
            .iter()
            .filter_map(|row| Some((row.name(), row.process?)))
    };
    if rows().next().is_none() {
        return String::new();
    }
    let mut text = String::from(
        "<section><h2>Depth and bursts</h2><p>The service's process; its budget bounds its memory.</p>",
    );
    text += "<div class=\"wide\"><table><thead><tr><th></th><th>start-up, s</th><th>most memory, MiB</th><th>budget, MiB</th>";
    text += "<th>threads</th><th>descriptors</th><th>runs rewritten</th></tr></thead><tbody>";
    for (
        name,
        Process {
            start_up_s,
            peak_bytes,
            budget_bytes,
            threads,
            descriptors,
            rewritten_runs,
        },
    ) in rows()
    {
        let start_up = start_up_s.map_or_else(String::new, |seconds| format!("{seconds:.1}"));
        let [peak, budget] =
            [peak_bytes, budget_bytes].map(|bytes| short(bytes / f64::from(1 << 20)));
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{start_up}</td><td>{peak}</td><td>{budget}</td>",
            escaped(&name)
        );
        let _ = write!(
            text,
            "<td>{threads:.0}</td><td>{descriptors:.0}</td><td>{}</td></tr>",
            short(rewritten_runs)
        );
    }
    text += "</tbody></table></div>";
    if !results.held.is_empty() {
        text += "<div class=\"wide\"><table><thead><tr><th></th><th></th><th>held against</th><th></th><th>times</th></tr></thead><tbody>";
        for Held {
            what,
            value,
            against,
            base,
            times,
        } in &results.held
        {
            let (value, base) = (short(*value), short(*base));
            let _ = write!(
                text,
                "<tr><td>{what}</td><td>{value}</td><td>{against}</td><td>{base}</td><td>{times:.2}</td></tr>"
            );
        }
        text += "</tbody></table></div>";
    }
    text + "</section>"
}

/// Renders the processor time of idle services.
fn idle(rows: &[Row]) -> String {
    let rows = rows.iter().filter_map(|row| Some((row.name(), row.idle?)));
    let lines: String = rows
        .map(
            |(
                name,
                Idle {
                    service,
                    redis,
                    broker,
                },
            )| {
                let cells: String = [service, redis, broker]
                    .map(|part| format!("<td>{part:.2}</td>"))
                    .concat();
                format!("<tr><td>{}</td>{cells}</tr>", escaped(&name))
            },
        )
        .collect();
    if lines.is_empty() {
        return lines;
    }
    format!(
        "<section><h2>Nothing to do</h2><p>Per cent of one core.</p><div class=\"wide\"><table><thead><tr><th></th><th>the service</th>\
         <th>Redis</th><th>the broker</th></tr></thead><tbody>{lines}</tbody></table></div></section>"
    )
}

fn table(rows: &[Row]) -> String {
    let head = [
        "",
        "messages/s",
        "CPU, µs",
        "Redis CPU, µs",
        "broker's CPU, µs",
        "bytes",
        "p50 / p99 / p99.9, ms",
        "others' CPU",
        "arrived",
    ];
    let mut text =
        String::from("<section><h2>All figures</h2><div class=\"wide\"><table><thead><tr>");
    head.iter()
        .for_each(|head| text += &format!("<th>{head}</th>"));
    text += "</tr></thead><tbody>";
    for row in rows.iter().filter(|row| row.idle.is_none()) {
        let late = row
            .lateness_ms
            .map(|late| format!("{:.0} / {:.0} / {:.0}", late.p50, late.p99, late.p99_9));
        let fine = |figure: Option<f64>| figure.map(|figure| format!("{figure:.2}"));
        let cells = [
            row.rate.map(|rate| format!("{rate:.0}")),
            fine(row.cpu_us),
            fine(row.redis_cpu_us),
            fine(row.broker_cpu_us),
            row.bytes.map(short),
            late,
            Some(format!("{:.0} %", row.others * 100.0)),
            Some(row.verdict.to_string()),
        ];
        let _ = write!(text, "<tr><td>{}</td>", escaped(&row.name()));
        cells
            .iter()
            .for_each(|cell| text += &format!("<td>{}</td>", cell.as_deref().unwrap_or("")));
        text += "</tr>";
    }
    text + "</tbody></table></div></section>"
}

fn method(results: &Results) -> String {
    let (before, points) = LEGEND.split_once("\n- ").unwrap_or((LEGEND, ""));
    let points: String = points
        .split("\n- ")
        .map(|point| format!("<li>{}</li>", code(&escaped(point))))
        .collect();
    let runs = match results.runs.len() {
        1 => String::new(),
        runs => format!(
            "<p>Each figure is the median of {runs} runs; the thin line on a bar goes from the least to the greatest.</p>"
        ),
    };
    let workload = serde_json::to_string_pretty(&results.workload).expect("plain data");
    format!(
        "<section><h2>How it was measured</h2><p>{}</p>{runs}<ul>{points}</ul><details><summary>The workload</summary><pre>{}</pre></details></section>",
        escaped(before),
        escaped(&workload)
    )
}

/// Turns text in backticks into `<code>` elements.
fn code(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let marked = parts.iter().enumerate().map(|(at, part)| {
        if at % 2 == 1 {
            format!("<code>{part}</code>")
        } else {
            (*part).to_owned()
        }
    });
    marked.collect()
}
