//! Numbers, sizes and times as people read them.

use super::Timestamp;
use std::time::Duration;

/// Groups digits: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Counts with a plural: `1 message`, `2 messages`.
pub(crate) fn several(number: u64, one: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {one}{plural}", count(number))
}

/// Formats a size: `812 B`, `9.1 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut amount, mut unit) = (bytes as f64 / 1024.0, "KiB");
    for next in ["MiB", "GiB", "TiB"] {
        if amount >= 1024.0 {
            (amount, unit) = (amount / 1024.0, next);
        }
    }
    let digits = usize::from(amount < 99.95);
    format!("{amount:.digits$} {unit}")
}

/// The two greatest units of a duration: `2d 4h`, `3m 20s`, `250ms`.
pub(crate) fn length(duration: Duration) -> String {
    let seconds = duration.as_secs();
    // Milliseconds are shown only below one second.
    if seconds == 0 {
        return format!("{}ms", duration.as_millis());
    }
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let units = units.iter().skip_while(|(amount, _)| *amount == 0).take(2);
    let units = units.filter(|(amount, _)| *amount > 0);
    let parts: Vec<_> = units
        .map(|(amount, unit)| format!("{amount}{unit}"))
        .collect();
    parts.join(" ")
}

/// Time relative to `now`: `in 3m 20s`, `2h ago`, `now`.
pub(crate) fn relative(instant: Timestamp, now: Timestamp) -> String {
    match (instant.since(now), now.since(instant)) {
        (Duration::ZERO, Duration::ZERO) => "now".to_owned(),
        (Duration::ZERO, ago) => format!("{} ago", length(ago)),
        (ahead, _) => format!("in {}", length(ahead)),
    }
}

/// A UTC time: `2026-11-21 23:00:05 UTC`.
pub(crate) fn moment(instant: Timestamp) -> String {
    let text = instant.to_rfc3339();
    match text.strip_suffix('Z') {
        Some(date) => format!("{} UTC", date.replacen('T', " ", 1)),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_times_are_formatted_for_people() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345_678, "12,345,678"),
        ] {
            assert_eq!(count(number), text);
        }
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (150 << 20, "150 MiB"),
            (5 << 40, "5.0 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (millis, text) in [
            (0, "0ms"),
            (250, "250ms"),
            (1_500, "1s"),
            (200_000, "3m 20s"),
            (3_600_000, "1h"),
            (3_605_000, "1h"),
            (187_200_000, "2d 4h"),
        ] {
            assert_eq!(length(Duration::from_millis(millis)), text);
        }
        let at = Timestamp::from_millis;
        assert_eq!(relative(at(60_000), at(0)), "in 1m");
        assert_eq!(relative(at(0), at(60_000)), "1m ago");
        assert_eq!(relative(at(5), at(5)), "now");
        assert_eq!(moment(at(1_801_386_000_000)), "2027-01-31 09:00:00 UTC");
    }
}
