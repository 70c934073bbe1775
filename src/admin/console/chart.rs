//! Bar charts as SVG, with a text for each bar.

use crate::model::Timestamp;
use crate::model::readable::{count, several};
use crate::store::query::PendingHour;
use std::fmt::Write;

const HOUR_MS: i64 = 3_600_000;
/// Bars of the chart: two days.
const HOURS: i64 = 48;
const WIDTH: i64 = 960;
const HEIGHT: i64 = 160;
/// Height of the labels under the bars.
const LABELS: i64 = 24;

/// The messages that are due in each of the next 48 hours, from the one of `now`. `None` if there
/// are none.
pub(super) fn forecast(hours: &[PendingHour], now: Timestamp) -> Option<String> {
    let first = now.as_millis().div_euclid(HOUR_MS) * HOUR_MS;
    let mut bars = [0_u64; HOURS as usize];
    for hour in hours {
        let index = (hour.start_ms - first).div_euclid(HOUR_MS);
        if let Some(bar) = usize::try_from(index)
            .ok()
            .and_then(|index| bars.get_mut(index))
        {
            *bar += hour.messages;
        }
    }
    let max = bars.iter().copied().max().filter(|max| *max > 0)?;
    let total = bars.iter().sum();
    let mut svg = format!(
        r#"<svg class="chart" viewBox="0 0 {WIDTH} {}" role="img" aria-label="{} due within 48 hours, at most {} in one hour">"#,
        HEIGHT + LABELS,
        several(total, "message"),
        count(max),
    );
    let step = WIDTH / HOURS;
    for (index, messages) in (0_i64..).zip(bars) {
        let start = Timestamp::from_millis(first + index * HOUR_MS).to_rfc3339();
        let (date, time) = start.split_once('T').unwrap_or((&start, ""));
        let hour = time.get(..5).unwrap_or_default();
        let height = bar_height(messages, max);
        let (x, y) = (index * step, HEIGHT - height);
        if height > 0 {
            let width = step - 4;
            let _ = write!(
                svg,
                r#"<rect class="bar" x="{x}" y="{y}" width="{width}" height="{height}" rx="2"><title>{date} {hour} UTC: {}</title></rect>"#,
                several(messages, "message"),
            );
        }
        if index % 6 == 0 {
            let label = if hour == "00:00" || index == 0 {
                format!("{} {hour}", &date[5..])
            } else {
                hour.to_owned()
            };
            let base = HEIGHT + LABELS - 6;
            let _ = write!(
                svg,
                r#"<text class="tick" x="{x}" y="{base}">{label}</text>"#
            );
        }
    }
    let _ = write!(
        svg,
        r#"<line class="axis" x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/></svg>"#
    );
    Some(svg)
}

/// At least 2 for a bar with messages, so that it is visible.
fn bar_height(messages: u64, max: u64) -> i64 {
    let height = u128::from(messages) * HEIGHT as u128 / u128::from(max.max(1));
    match messages {
        0 => 0,
        _ => i64::try_from(height).unwrap_or(HEIGHT).max(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_one_bar_for_each_hour_with_messages() {
        let hour = |index: i64, messages| PendingHour {
            start_ms: index * HOUR_MS,
            start: String::new(),
            messages,
            bytes: 0,
        };
        let now = Timestamp::from_millis(10 * HOUR_MS + 5);
        assert_eq!(forecast(&[hour(9, 4), hour(58, 1)], now), None);
        let svg = forecast(&[hour(10, 1), hour(12, 4_000_000), hour(57, 9)], now).unwrap();
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
        assert!(
            svg.contains("1970-01-01 12:00 UTC: 4,000,000 messages"),
            "{svg}"
        );
    }
}
