//! Prints the result tables.

use crate::compare::{Comparison, Figure, RIVALS, of_the_floor};
use crate::held::Held;
use crate::row::{Idle, Process, Row, System};

/// Prints the rows and their ratios to the baseline. Each ratio uses the figures of one run.
pub(crate) fn print(rows: &[Row], runs: &[Vec<Row>]) {
    let ratio =
        |row: &Row, figure: Figure| number(of_the_floor(runs, row.system, row.stage, figure), 2);
    let head = [
        "stage",
        "messages/s",
        "of the floor",
        "CPU us",
        "of the floor",
        "Redis CPU us",
        "bytes stored",
        "others' CPU",
        "arrived",
    ];
    let mut lines = vec![head.map(str::to_owned), head.map(|_| "---".to_owned())];
    lines.extend(rows.iter().filter(|row| row.idle.is_none()).map(|row| {
        [
            row.name(),
            number(row.rate, 0),
            ratio(row, |row| row.rate),
            number(row.cpu_us, 2),
            ratio(row, |row| row.cpu_us),
            number(row.redis_cpu_us, 2),
            number(row.bytes, 0),
            format!("{:.0} %", row.others * 100.0),
            row.verdict.to_string(),
        ]
    }));
    print_aligned(&lines);
    print_lateness(rows);
}

/// Prints the lateness of the rows that have one, in milliseconds.
fn print_lateness(rows: &[Row]) {
    let head = [
        "lateness",
        "p50",
        "p99",
        "p99.9",
        "greatest",
        "p50 in its last fifth",
    ];
    let mut lines = vec![head.map(str::to_owned), head.map(|_| "---".to_owned())];
    for row in rows {
        if let Some(late) = row.lateness_ms {
            let [p50, p99, p99_9, greatest] =
                [late.p50, late.p99, late.p99_9, late.greatest].map(millis);
            lines.push([
                row.name(),
                p50,
                p99,
                p99_9,
                greatest,
                row.last_p50_ms.map_or_else(String::new, millis),
            ]);
        }
    }
    if lines.len() > 2 {
        print_aligned(&lines);
    }
}

/// Prints the processor time of idle services.
pub(crate) fn print_idle(rows: &[Row]) {
    let head = [
        "idle: per cent of a core",
        "the service",
        "Redis",
        "the broker",
    ];
    let mut lines = vec![head.map(str::to_owned), head.map(|_| "---".to_owned())];
    lines.extend(rows.iter().filter_map(|row| {
        let Idle {
            service,
            redis,
            broker,
        } = row.idle?;
        let [service, redis, broker] = [service, redis, broker].map(|part| format!("{part:.2} %"));
        Some([row.name(), service, redis, broker])
    }));
    if lines.len() > 2 {
        print_aligned(&lines);
    }
}

/// Prints the figures of the rivals and their ratios to Postdate.
pub(crate) fn print_comparisons(comparisons: &[Comparison]) {
    const COLUMNS: usize = 2 + 2 * RIVALS.len();
    let cells = |what: String, postdate: String, beside: &dyn Fn(System) -> [String; 2]| {
        let rivals = RIVALS.into_iter().flat_map(beside);
        let cells: Vec<String> = [what, postdate].into_iter().chain(rivals).collect();
        <[String; COLUMNS]>::try_from(cells).expect("two columns for each rival")
    };
    let what = "beside one Redis entry per message".to_owned();
    let head = cells(what, "Postdate".to_owned(), &|rival| {
        [rival.name().to_owned(), "times".to_owned()]
    });
    let mut lines = vec![head, std::array::from_fn(|_| "---".to_owned())];
    for Comparison {
        what,
        postdate,
        rivals,
    } in comparisons
    {
        let digits = if *postdate < 100.0 { 2 } else { 0 };
        let beside = |rival: System| {
            let found = rivals.iter().find(|beside| beside.system == rival);
            [
                number(found.map(|beside| beside.value), digits),
                number(found.map(|beside| beside.times), 2),
            ]
        };
        lines.push(cells(
            what.clone(),
            number(Some(*postdate), digits),
            &beside,
        ));
    }
    if lines.len() > 2 {
        print_aligned(&lines);
    }
}

/// Prints the process figures of the service, and the comparisons between measurements of Postdate.
pub(crate) fn print_strained(rows: &[Row], held: &[Held]) {
    let head = [
        "the service's process",
        "start-up",
        "most memory",
        "budget for messages",
        "threads",
        "descriptors",
        "runs rewritten",
    ];
    let mut lines = vec![head.map(str::to_owned), head.map(|_| "---".to_owned())];
    lines.extend(rows.iter().filter_map(|row| {
        let Process {
            start_up_s,
            peak_bytes,
            budget_bytes,
            threads,
            descriptors,
            rewritten_runs,
        } = row.process?;
        let mib = |bytes: f64| format!("{:.0} MiB", bytes / f64::from(1 << 20));
        let start_up = start_up_s.map_or_else(String::new, |seconds| format!("{seconds:.1} s"));
        Some([
            row.name(),
            start_up,
            mib(peak_bytes),
            mib(budget_bytes),
            format!("{threads:.0}"),
            format!("{descriptors:.0}"),
            format!("{rewritten_runs:.0}"),
        ])
    }));
    if lines.len() > 2 {
        print_aligned(&lines);
    }
    let head = ["compared in one run", "", "with", "", "times"];
    let mut lines = vec![head.map(str::to_owned), head.map(|_| "---".to_owned())];
    lines.extend(held.iter().map(
        |Held {
             what,
             value,
             against,
             base,
             times,
         }| {
            [
                what.clone(),
                format!("{value:.0}"),
                against.clone(),
                format!("{base:.0}"),
                format!("{times:.2}"),
            ]
        },
    ));
    if lines.len() > 2 {
        print_aligned(&lines);
    }
}

fn millis(late: f64) -> String {
    format!("{late:.0} ms")
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}

/// Prints a Markdown table with aligned columns, so that its source is readable too.
fn print_aligned<const N: usize>(lines: &[[String; N]]) {
    let width = |at: usize| {
        lines
            .iter()
            .map(|line| line[at].chars().count())
            .max()
            .unwrap_or(0)
    };
    for line in lines {
        let cells = line
            .iter()
            .enumerate()
            .map(|(at, cell)| match cell.as_str() {
                "---" if at == 0 => "-".repeat(width(at)),
                "---" => format!("{}:", "-".repeat(width(at) - 1)),
                cell if at == 0 => format!("{cell:<width$}", width = width(at)),
                cell => format!("{cell:>width$}", width = width(at)),
            });
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    println!();
}
