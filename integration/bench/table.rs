//! The tables that are printed, and what their columns mean.

use crate::ledger::Verdict;
use crate::meter::Usage;

/// One measurement; what does not apply is left out.
pub(crate) struct Row {
    pub(crate) stage: String,
    pub(crate) rate: Option<f64>,
    /// Microseconds of processor time a message: of the copy or the service, and of Redis.
    pub(crate) cpu: f64,
    pub(crate) redis_cpu: Option<f64>,
    /// Of the store, a message that waits.
    pub(crate) bytes: Option<f64>,
    pub(crate) others: f64,
    pub(crate) verdict: Verdict,
}

impl Row {
    /// Of a copy by this process.
    pub(crate) fn copy(stage: &str, usage: &Usage, verdict: Verdict) -> Row {
        let count = verdict.count as f64;
        Row {
            stage: stage.to_owned(),
            rate: Some(count / usage.wall.as_secs_f64()),
            cpu: usage.here.as_secs_f64() * 1e6 / count,
            redis_cpu: None,
            bytes: None,
            others: usage.others,
            verdict,
        }
    }

    /// Of the service.
    pub(crate) fn service(stage: &str, seconds: Option<f64>, usage: &Usage, verdict: Verdict) -> Row {
        let count = verdict.count as f64;
        Row {
            stage: stage.to_owned(),
            rate: seconds.map(|seconds| count / seconds),
            cpu: usage.service.as_secs_f64() * 1e6 / count,
            redis_cpu: Some(usage.redis.as_secs_f64() * 1e6 / count),
            bytes: None,
            others: usage.others,
            verdict,
        }
    }

    /// What a message costs on both of two ways.
    pub(crate) fn and(&self, other: &Row, stage: &str) -> Row {
        let add = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
        Row {
            stage: stage.to_owned(),
            rate: add(self.rate.map(f64::recip), other.rate.map(f64::recip)).map(f64::recip),
            cpu: self.cpu + other.cpu,
            redis_cpu: add(self.redis_cpu, other.redis_cpu),
            bytes: None,
            others: self.others.max(other.others),
            verdict: other.verdict,
        }
    }
}

/// What the row of the floor is called.
pub(crate) const FLOOR: &str = "copy, in batches: the floor";

/// Prints the rows beside the floor, if it is one of them.
pub(crate) fn print(rows: &[Row]) {
    let floor = rows.iter().find(|row| row.stage == FLOOR);
    let number = |value: Option<f64>, digits: usize| value.map_or_else(String::new, |value| format!("{value:.digits$}"));
    let ratio = |value: Option<f64>, of: Option<f64>| number(value.zip(of).map(|(value, of)| value / of), 2);
    let head = ["stage", "messages/s", "of the floor", "CPU us", "of the floor", "Redis CPU us", "bytes stored", "others' CPU", "arrived"];
    let mut lines = vec![head.map(str::to_owned), head.map(|_| "---".to_owned())];
    lines.extend(rows.iter().map(|row| {
        [
            row.stage.clone(),
            number(row.rate, 0),
            ratio(row.rate, floor.and_then(|floor| floor.rate)),
            format!("{:.2}", row.cpu),
            ratio(Some(row.cpu), floor.map(|floor| floor.cpu)),
            number(row.redis_cpu, 2),
            number(row.bytes, 0),
            format!("{:.0} %", row.others * 100.0),
            row.verdict.to_string(),
        ]
    }));
    print_aligned(&lines);
}

/// One line of milliseconds after the due.
pub(crate) fn print_lateness(lateness: &[i64]) {
    let share = |per_mille: usize| {
        let at = (lateness.len() * per_mille / 1_000).min(lateness.len().saturating_sub(1));
        lateness.get(at).map_or_else(String::new, |late| format!("{late} ms"))
    };
    let head = ["steady load: in the target after the due, by", "p50", "p99", "p99.9", "greatest"];
    let line = ["the broker's stamp".to_owned(), share(500), share(990), share(999), share(1_000)];
    print_aligned(&[head.map(str::to_owned), head.map(|_| "---".to_owned()), line]);
}

/// As Markdown, and readable as it is.
fn print_aligned<const N: usize>(lines: &[[String; N]]) {
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    for line in lines {
        let cells = line.iter().enumerate().map(|(at, cell)| match cell.as_str() {
            "---" if at == 0 => "-".repeat(width(at)),
            "---" => format!("{}:", "-".repeat(width(at) - 1)),
            cell if at == 0 => format!("{cell:<width$}", width = width(at)),
            cell => format!("{cell:>width$}", width = width(at)),
        });
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    println!();
}
