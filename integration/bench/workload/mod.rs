//! The messages that all measurements are made with: what they are, how long they wait, how many come. Knows each by its number, and the
//! number by the payload; sends nothing.

mod delay;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the service's own words for what is wrong with a file; it has more of them"
)]
#[path = "../../../src/config/error.rs"]
mod error;
mod file;
#[allow(
    dead_code,
    unused_imports,
    reason = "the service's own grammar of durations and sizes, whole"
)]
#[path = "../../../src/config/decode/quantity.rs"]
mod quantity;

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;

pub(crate) use delay::{Delay, spread};
pub(crate) use file::read;

/// Numbers have so many digits in a payload.
const DIGITS: usize = 7;
/// Of a run, so that each number fits.
pub(crate) const COUNT_MAX: usize = 9_999_999;

/// Of messages that wait for days; numbers come again among them, for none is read back.
pub(crate) const WAITING: RangeInclusive<usize> = 1_000..=200_000_000;

/// The least that still tells the number: what stands before and behind it.
pub(crate) const PAYLOAD_MIN: usize = r#"{"fill":"","n":""}"#.len() + DIGITS;
/// `key-` and eight digits.
pub(crate) const KEY_MIN: usize = 12;
/// What the per-message layout has 16 bits for.
pub(crate) const KEY_MAX: usize = u16::MAX as usize;
/// As the service takes them, less what Postdate and the measurements put beside them.
pub(crate) const HEADERS_MAX: usize = 990;
pub(crate) const HEADER_BYTES_MAX: usize = 255 << 10;
/// Key, headers and payload: a broker takes no larger record unless it is told to, and a few hundred bytes come to it on delivery.
pub(crate) const RECORD_BYTES_MAX: usize = 1_000_000;
/// Of one measurement. They lie on the disk twice, in the source and in the target.
pub(crate) const LOAD_BYTES_MAX: usize = 64 << 30;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Workload {
    /// Messages of each rate.
    pub(crate) count: usize,
    pub(crate) partitions: i32,
    pub(crate) message: Message,
    /// Between sending and the due, of what is only stored.
    pub(crate) delay: Delay,
    pub(crate) steady: Steady,
    pub(crate) deep: Deep,
}

/// Many that wait, and a load beside them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Deep {
    pub(crate) waiting: usize,
    /// Between sending and the due, of what waits.
    pub(crate) delay: Delay,
    /// Messages a second beside them, with the steady load's delays.
    pub(crate) rate: usize,
    pub(crate) lasts: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Message {
    pub(crate) payload_bytes: usize,
    /// Per cent of the payload that no compression shrinks, if it isn't the usual one.
    pub(crate) noise_percent: usize,
    pub(crate) key_bytes: usize,
    /// Different keys; none: each message has its own.
    pub(crate) distinct_keys: Option<usize>,
    /// Beside the control header.
    pub(crate) headers: Vec<(String, String)>,
}

/// A load that lasts for a while.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Steady {
    /// Messages a second, each measured by itself.
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
    /// Of that length, and the same for the same number.
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
        // Hexadecimal digits, of which compression leaves half: for a per cent of noise, two of them.
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

    /// The number that a payload was made from.
    pub(crate) fn number(payload: &[u8]) -> Option<usize> {
        let end = payload.len().checked_sub(2)?;
        std::str::from_utf8(payload.get(end.checked_sub(DIGITS)?..end)?)
            .ok()?
            .parse()
            .ok()
    }

    /// Key, headers and payload.
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
    /// Why a measurement of so many messages cannot be made.
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

/// What fills a payload beside the noise.
const PROSE: &str = "What is to be done later is written down now, in the plain words that every order of the day is made of. ";

const ORDER_BYTES: usize = 191;
const ORDER_NOISE: usize = 25;

/// What a shop would send: 191 bytes up to ten million, and a quarter of it noise that no compression shrinks.
fn order(number: usize) -> String {
    let noise = noise(number);
    let (customer, cents) = (100_000 + noise % 900_000, 100_000 + (noise >> 20) % 900_000);
    format!(
        r#"{{"order_id":"{noise:016x}-{:016x}","customer":{customer},"amount_cents":{cents},"currency":"EUR","status":"pending_payment","sku":"SKU-{:05}","note":"close unless paid","n":"{number:0DIGITS$}"}}"#,
        noise.rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9),
        (noise >> 40) % 100_000
    )
}

/// Scattered evenly over all 64-bit numbers, and the same for the same number.
fn noise(number: usize) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
