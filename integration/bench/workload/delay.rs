//! Draws the delay of each message from a distribution, always the same for the same number.

use std::time::Duration;

use serde::Serialize;

use super::noise;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "distribution", rename_all = "snake_case")]
pub(crate) enum Delay {
    /// Every delay is equally likely.
    Uniform { min: Duration, max: Duration },
    /// Most delays are short and a few are long. Delays beyond `max` are cut to `max`.
    Exponential {
        min: Duration,
        mean: Duration,
        max: Duration,
    },
}

impl Delay {
    /// The delay in milliseconds.
    pub(crate) fn of(&self, number: usize) -> i64 {
        match *self {
            Delay::Uniform { min, max } => millis(min) + spread(number, max - min),
            Delay::Exponential { min, mean, max } => {
                let beyond = -(1.0 - share(number)).ln() * (mean - min).as_secs_f64();
                (millis(min) + (beyond * 1e3) as i64).min(millis(max))
            }
        }
    }

    pub(crate) fn max(&self) -> Duration {
        match *self {
            Delay::Uniform { max, .. } | Delay::Exponential { max, .. } => max,
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("a time that somebody waits for")
}

/// Maps each number to a value in `0..span`, in milliseconds. The values are evenly spread and in
/// no order.
pub(crate) fn spread(number: usize, span: Duration) -> i64 {
    ((u128::from(scattered(number)) * span.as_millis()) >> 64) as i64
}

/// Maps each number to a value in `0.0..1.0`.
fn share(number: usize) -> f64 {
    (scattered(number) >> 11) as f64 / (1u64 << 53) as f64
}

fn scattered(number: usize) -> u64 {
    let mixed = noise(number) ^ (noise(number) >> 31);
    mixed.wrapping_mul(0x94D0_49BB_1331_11EB)
}
