//! The lateness of this process since its start, from its metrics.

use crate::model::readable::length;
use std::collections::BTreeMap;
use std::time::Duration;

const BUCKET: &str = "postdate_lateness_seconds_bucket{";

/// The bound below which 99 of 100 deliveries of all routes were late. `None`: there was none.
pub(super) fn p99(metrics: &str) -> Option<String> {
    // By upper bound in microseconds: these are whole numbers, and so they are ordered.
    let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
    for line in metrics.lines().filter_map(|line| line.strip_prefix(BUCKET)) {
        let (labels, count) = line.rsplit_once("} ")?;
        let (_, bound) = labels.split_once("le=\"")?;
        let bound = bound.split('"').next()?;
        let micros = match bound {
            "+Inf" => u64::MAX,
            seconds => (seconds.parse::<f64>().ok()? * 1e6) as u64,
        };
        *buckets.entry(micros).or_default() += count.parse::<u64>().ok()?;
    }
    let total = buckets.get(&u64::MAX).copied().filter(|total| *total > 0)?;
    let wanted = (total * 99).div_ceil(100);
    let (bound, _) = buckets.iter().find(|(_, count)| **count >= wanted)?;
    Some(match *bound {
        u64::MAX => "above all buckets".to_owned(),
        micros if micros < 1_000 => format!("≤ {micros} µs"),
        micros => format!("≤ {}", length(Duration::from_micros(micros))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_covers_99_of_100_deliveries_of_all_routes() {
        let line = |route: &str, bound: &str, count: u64| {
            format!("{BUCKET}route=\"{route}\",le=\"{bound}\"}} {count}\n")
        };
        let metrics = |slow: u64| {
            ["a", "b"].map(|route| {
                line(route, "0.001", 90)
                    + &line(route, "0.025", 100 - slow)
                    + &line(route, "+Inf", 100)
            })
        };
        assert_eq!(p99(&metrics(1).concat()).as_deref(), Some("≤ 25ms"));
        assert_eq!(
            p99(&metrics(2).concat()).as_deref(),
            Some("above all buckets")
        );
        assert_eq!(p99("postdate_ready 1\n"), None);
    }
}
