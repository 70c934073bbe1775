//! Defines the messages of the measurements: size, delays and count.
//!
//! A message is determined by its number, and its payload contains that number.

mod delay;
#[path = "../../../src/config/error.rs"]
#[allow(dead_code, unreachable_pub, reason = "the configuration uses it")]
mod error;
mod file;
#[path = "../../../src/config/decode/quantity.rs"]
#[allow(dead_code, unused_imports, reason = "the configuration uses it")]
mod quantity;

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;

pub(crate) use delay::{Delay, spread};
pub(crate) use file::read;

/// Digits of the number in a payload.
const DIGITS: usize = 7;
/// Limit of messages per measurement, so that each number fits into its digits.
pub(crate) const COUNT_MAX: usize = 9_999_999;

/// A backlog has this many times the configured count, so that its start is a small part of it.
pub(crate) const BACKLOG_COUNTS: usize = 3;

/// Range of the long-waiting messages. Their numbers may repeat, because no measurement reads them
/// back.
pub(crate) const WAITING: RangeInclusive<usize> = 1_000..=200_000_000;

/// The smallest payload that can hold the number.
pub(crate) const PAYLOAD_MIN: usize = r#"{"fill":"","n":""}"#.len() + DIGITS;
/// `key-` and eight digits.
pub(crate) const KEY_MIN: usize = 12;
/// The per-message layout stores the length in 16 bits.
pub(crate) const KEY_MAX: usize = u16::MAX as usize;
/// The service's limits, minus the headers that Postdate and the measurements add.
pub(crate) const HEADERS_MAX: usize = 990;
pub(crate) const HEADER_BYTES_MAX: usize = 255 << 10;
/// Limit of key, headers and payload. By default a broker refuses larger records, and delivery adds
/// a few hundred bytes.
pub(crate) const RECORD_BYTES_MAX: usize = 1_000_000;
/// Limit per measurement. The disk holds the messages twice, in the source and in the target.
pub(crate) const LOAD_BYTES_MAX: usize = 64 << 30;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Workload {
    /// Messages of each measurement of throughput.
    pub(crate) count: usize,
    pub(crate) partitions: i32,
    pub(crate) message: Message,
    /// Delay of messages that are stored and not delivered.
    pub(crate) delay: Delay,
    pub(crate) steady: Steady,
    pub(crate) deep: Deep,
}

/// Many waiting messages, and a steady load beside them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Deep {
    pub(crate) waiting: usize,
    /// Delay of the waiting messages.
    pub(crate) delay: Delay,
    /// Messages per second of the load, which uses the delays of `Steady`.
    pub(crate) rate: usize,
    pub(crate) lasts: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Message {
    pub(crate) payload_bytes: usize,
    /// Part of the payload that does not compress, in per cent. The default order has its own fixed
    /// noise.
    pub(crate) noise_percent: usize,
    pub(crate) key_bytes: usize,
    /// Number of different keys. `None` gives each message its own key.
    pub(crate) distinct_keys: Option<usize>,
    /// Headers besides the control header.
    pub(crate) headers: Vec<(String, String)>,
}

/// A load at a steady rate for a limited time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Steady {
    /// Messages per second. Each rate is a separate measurement.
    pub(crate) rates: Vec<usize>,
    pub(crate) lasts: Duration,
    pub(crate) delay: Delay,
}

impl Default for Workload {
    fn default() -> Workload {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let message = Message {
            payload_bytes: ORDER_BYTES,
            noise_percent: 25,
            key_bytes: KEY_MIN,
            distinct_keys: None,
            headers,
        };
        let (minute, day) = (Duration::from_secs(60), Duration::from_secs(86_400));
        let delay = Delay::Uniform {
            min: 10 * minute,
            max: 10 * minute + day,
        };
        let short = Delay::Uniform {
            min: Duration::from_secs(2),
            max: Duration::from_secs(10),
        };
        let steady = Steady {
            rates: vec![1_000, 10_000, 50_000],
            lasts: Duration::from_secs(20),
            delay: short,
        };
        let long = Delay::Uniform {
            min: 60 * minute,
            max: 30 * day,
        };
        let deep = Deep {
            waiting: 10_000_000,
            delay: long,
            rate: 20_000,
            lasts: Duration::from_secs(30),
        };
        Workload {
            count: 1_000_000,
            partitions: 4,
            message,
            delay,
            steady,
            deep,
        }
    }
}

impl Message {
    /// The key of a message, always the same for the same number.
    pub(crate) fn key(&self, number: usize) -> String {
        let number = self
            .distinct_keys
            .map_or(number, |distinct| noise(number) as usize % distinct);
        format!(
            "{:-<width$}",
            format!("key-{number:08}"),
            width = self.key_bytes
        )
    }

    pub(crate) fn payload(&self, number: usize) -> String {
        if (self.payload_bytes, self.noise_percent) == (ORDER_BYTES, ORDER_NOISE) {
            return order(number);
        }
        let room = self.payload_bytes - PAYLOAD_MIN;
        // The noise consists of hexadecimal digits, which compress to half. One per cent of noise
        // therefore needs two per cent of digits.
        let digits = (room * 2 * self.noise_percent / 100).min(room);
        let words = (0..digits.div_ceil(16)).map(|word| {
            noise(number)
                .rotate_left(29)
                .wrapping_mul(word as u64 * 2 + 0xBF58_476D_1CE4_E5B9)
        });
        let mut fill: String = words.map(|word| format!("{word:016x}")).collect();
        fill.truncate(digits);
        fill.extend(PROSE.chars().cycle().take(room - digits));
        format!(r#"{{"fill":"{fill}","n":"{number:0DIGITS$}"}}"#)
    }

    /// Reads the number from a payload.
    pub(crate) fn number(payload: &[u8]) -> Option<usize> {
        let end = payload.len().checked_sub(2)?;
        std::str::from_utf8(payload.get(end.checked_sub(DIGITS)?..end)?)
            .ok()?
            .parse()
            .ok()
    }

    /// Bytes of key, headers and payload.
    pub(crate) fn bytes(&self) -> usize {
        self.payload_bytes
            + self.key_bytes
            + self
                .headers
                .iter()
                .map(|(name, value)| name.len() + value.len())
                .sum::<usize>()
    }
}

impl Workload {
    /// Returns why a measurement of `count` messages is too large, or `None` if it is not.
    pub(crate) fn too_much(&self, count: usize) -> Option<String> {
        let bytes = count.saturating_mul(self.message.bytes());
        let (size, most) = (self.message.bytes(), LOAD_BYTES_MAX >> 30);
        (bytes > LOAD_BYTES_MAX).then(|| {
            format!(
                "{count} messages of {size} bytes are {} GiB, and at most {most} are measured: ask for {} or fewer, or smaller ones",
                bytes >> 30,
                LOAD_BYTES_MAX / size
            )
        })
    }
}

/// Fills the payload besides the noise.
const PROSE: &str = "What is to be done later is written down now, in the plain words that every order of the day is made of. ";

const ORDER_BYTES: usize = 191;
const ORDER_NOISE: usize = 25;

/// An order of a shop: 191 bytes for numbers below ten million. A quarter of it is noise that does
/// not compress.
fn order(number: usize) -> String {
    let noise = noise(number);
    let (customer, cents) = (100_000 + noise % 900_000, 100_000 + (noise >> 20) % 900_000);
    format!(
        r#"{{"order_id":"{noise:016x}-{:016x}","customer":{customer},"amount_cents":{cents},"currency":"EUR","status":"pending_payment","sku":"SKU-{:05}","note":"close unless paid","n":"{number:0DIGITS$}"}}"#,
        noise.rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9),
        (noise >> 40) % 100_000
    )
}

/// Scatters the numbers evenly over all 64-bit values. The same number always gives the same value.
fn noise(number: usize) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
