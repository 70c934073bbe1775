//! Renders the most important ratios as tiles at the top of the page.

use super::Results;
use crate::compare::{Comparison, of_the_floor};
use crate::row::{Row, Stage, System};

pub(super) fn tiles(results: &Results) -> String {
    let floor = |stage, says: &str| {
        of_the_floor(&results.runs, System::Postdate, stage, |row| row.rate)
            .map(|times| tile(&format!("{times:.2} ×"), says))
    };
    let rates = [
        floor(Stage::Store, "the rate of a plain copy, into the store"),
        floor(Stage::Drain, "the rate of a plain copy, out of the store"),
    ];
    let [bytes, cpu] = [
        "bytes of Redis per waiting message",
        "Redis CPU us per message, in and out",
    ]
    .map(|what| {
        let found = results
            .comparisons
            .iter()
            .find(|comparison| comparison.what == what);
        found.and_then(|comparison| share(comparison, System::Layout))
    });
    let rivals = [
        bytes.map(|share| {
            tile(
                &share,
                "of the bytes in Redis that an entry a message takes",
            )
        }),
        cpu.map(|share| tile(&share, "of the Redis CPU that an entry a message takes")),
    ];
    let tiles: String = rates
        .into_iter()
        .chain(rivals)
        .chain([late(&results.rows)])
        .flatten()
        .collect();
    if tiles.is_empty() {
        tiles
    } else {
        format!("<div class=\"tiles\">{tiles}</div>")
    }
}

/// Formats the ratio as a fraction, such as `1/4.0`.
fn share(comparison: &Comparison, system: System) -> Option<String> {
    let beside = comparison
        .rivals
        .iter()
        .find(|beside| beside.system == system)?;
    Some(format!("1/{:.1}", beside.times))
}

/// Shows the p99 lateness at the highest rate whose p50 is below half a second. At higher rates the
/// machine is overloaded.
fn late(rows: &[Row]) -> Option<String> {
    let of = |row: &Row| match (row.system, row.stage) {
        (System::Postdate, Stage::Steady(rate)) => row.lateness_ms.map(|late| (rate, late)),
        _ => None,
    };
    let (rate, late) = rows
        .iter()
        .filter_map(of)
        .filter(|(_, late)| late.p50 < 500.0)
        .max_by_key(|(rate, _)| *rate)?;
    Some(tile(
        &format!("{:.0} ms", late.p99),
        &format!("after the due at most, for 99 of 100 messages at {rate} a second"),
    ))
}

fn tile(figure: &str, says: &str) -> String {
    format!("<div class=\"tile\"><b>{figure}</b><span>{says}</span></div>")
}
