//! How places, dues and runs are written inside the keys: text and scores, and back. Which key holds what stands in `key`.

use crate::model::{Offset, Slice, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::{AppendEpoch, Ledger, Lineage, OutcomeCounts, RunEntry, StoredShard};

/// Greatest whole number whose neighbours a zset score, a double, still tells apart.
const SCORE_MAX: i64 = (1 << 53) - 1;

/// A due as a zset score. `at once` has a score of its own, below all others; dues that a double cannot hold are drawn to the nearest one
/// that it can, which keeps their order towards all others.
pub(super) fn due_score(due: Timestamp) -> i64 {
    if due.is_at_once() {
        -SCORE_MAX
    } else {
        due.as_millis().clamp(1 - SCORE_MAX, SCORE_MAX)
    }
}

/// The due that a score stands for.
pub(super) fn parse_score(score: &str) -> Option<Timestamp> {
    let score = score.parse::<f64>().ok().filter(|score| !score.is_nan())?;
    // Saturates: a score that we did not write is still some due.
    let millis = score as i64;
    Some(if millis <= -SCORE_MAX {
        Timestamp::AT_ONCE
    } else {
        Timestamp::from_millis(millis)
    })
}

/// A run in its slice's index: least offset and name. Runs of the same least due so come in offset order.
pub(super) fn index_member(name: &RunName) -> String {
    format!("{:016x} {name}", name.least_offset().0)
}

/// The name in a member.
pub(super) fn parse_index_member(member: &str) -> Option<RunName> {
    Some(RunName::new(member.split_once(' ')?.1))
}

/// A member of the tail: the end of the batch, the run's member, the least due's score, the slice. So the tail stands in offset order.
pub(super) fn parse_tail_member(text: &str) -> Option<RunEntry> {
    let (_end, rest) = text.split_once(' ')?;
    let mut parts = rest.rsplitn(3, ' ');
    let (slice, score, member) = (parts.next()?, parts.next()?, parts.next()?);
    Some(RunEntry {
        slice: Slice::parse(slice)?,
        name: parse_index_member(member)?,
        least_due: parse_score(score)?,
    })
}

pub(super) fn watermark_hex(watermark: Watermark) -> String {
    format!("{:016x}", watermark.0)
}

pub(super) fn parse_watermark(text: &str) -> Option<Watermark> {
    if text.len() != 16 {
        return None;
    }
    Some(Watermark(u64::from_str_radix(text, 16).ok()?))
}

pub(super) fn epoch_text(reading: AppendEpoch) -> String {
    format!("{:x}-{:x}", reading.process, reading.number)
}

fn parse_epoch(text: &str) -> Option<AppendEpoch> {
    let (writer, number) = text.split_once('-')?;
    Some(AppendEpoch {
        process: u64::from_str_radix(writer, 16).ok()?,
        number: u64::from_str_radix(number, 16).ok()?,
    })
}

/// The history in a field of meta: none was kept of what does not read as one.
pub(super) fn parse_lineage(text: &str) -> Lineage {
    let parts: Vec<_> = text.split(' ').collect();
    let read = || {
        let [of, before, from, rewrites] = parts[..] else {
            return None;
        };
        let (reading, before, from) = (
            parse_epoch(of)?,
            parse_epoch(before)?,
            parse_watermark(from)?,
        );
        Some(Lineage {
            epoch: reading,
            previous_epoch: before,
            epoch_start: from,
            replacements: rewrites.parse().ok()?,
        })
    };
    read().unwrap_or_default()
}

/// The ledger in a field of meta; one that is not of this state was left behind by a version without ledgers.
pub(super) fn parse_ledger(text: &str, state: &StoredShard) -> Ledger {
    let of = format!(
        "{}{}",
        watermark_hex(state.watermark),
        state.delivered.to_hex()
    );
    let numbers = text
        .strip_suffix(&of)
        .map(|numbers| numbers.split_ascii_whitespace().map(str::parse).collect());
    let parts =
        numbers.and_then(|numbers: Result<Vec<u64>, _>| <[u64; 7]>::try_from(numbers.ok()?).ok());
    let Some(
        [
            accepted,
            delivered,
            cancelled,
            dead_lettered,
            sent_back,
            gone,
            unsure,
        ],
    ) = parts
    else {
        return Ledger::starting_with(state.pending + state.quarantined);
    };
    Ledger {
        accepted,
        outcomes: OutcomeCounts {
            delivered,
            cancelled,
            dead_lettered,
            retried: sent_back,
        },
        removed: gone,
        is_uncertain: unsure > 0,
    }
}

/// What one field of `counts` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountField {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) least_offset: Offset,
}

impl CountField {
    /// `<messages> <bytes> <least offset>`. What cannot be read stands for offset 0, which is never too high.
    pub(super) fn parse(text: &str) -> Self {
        let mut parts = text.split(' ');
        let messages = parts.next().and_then(|part| part.parse().ok());
        let bytes = parts.next().and_then(|part| part.parse().ok());
        let least = parts.next().and_then(parse_watermark);
        Self {
            messages: messages.unwrap_or(0),
            bytes: bytes.unwrap_or(0),
            least_offset: Offset(least.unwrap_or_default().0),
        }
    }

    /// Adds what this field says to the state of its shard.
    pub(super) fn add_to(self, state: &mut StoredShard, field: &str) {
        if field == super::key::QUARANTINE_FIELD {
            state.quarantined += self.messages;
        } else {
            state.pending += self.messages;
            state.stored_bytes += self.bytes;
            if let Some(slice) = Slice::parse(field) {
                state.forecast.add(slice, self.messages);
            }
        }
        state.lowest_pending = state.lowest_pending.min(self.least_offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn instant() -> impl Strategy<Value = Timestamp> {
        prop_oneof![
            any::<i64>(),
            Just(i64::MIN),
            Just(i64::MAX),
            -10i64..10,
            (1i64 << 53) - 3..(1 << 53) + 3,
            -(1i64 << 53) - 3..-(1 << 53) + 3
        ]
        .prop_map(Timestamp::from_millis)
    }

    proptest! {
        #[test]
        fn scores_never_reverse_the_order_of_dues(a in instant(), b in instant()) {
            let (earlier, later) = (a.min(b), a.max(b));
            prop_assert!(due_score(earlier) <= due_score(later));
            prop_assert!(due_score(earlier) as f64 as i64 == due_score(earlier), "a double holds it");
        }

        #[test]
        fn a_due_that_clocks_can_show_comes_back_from_its_score(millis in -(1i64 << 52)..(1 << 52)) {
            let timestamp = Timestamp::from_millis(millis);
            prop_assert_eq!(parse_score(&due_score(timestamp).to_string()), Some(timestamp));
        }

        #[test]
        fn at_once_is_told_from_every_real_due(other in instant()) {
            prop_assert_eq!(due_score(other) == due_score(Timestamp::AT_ONCE), other.is_at_once());
        }

        #[test]
        fn foreign_text_never_panics(text: String) {
            let _ = (parse_score(&text), parse_index_member(&text), parse_tail_member(&text), parse_watermark(&text), CountField::parse(&text));
        }
    }

    #[test]
    fn at_once_comes_back_from_its_score() {
        assert_eq!(
            parse_score(&due_score(Timestamp::AT_ONCE).to_string()),
            Some(Timestamp::AT_ONCE)
        );
    }

    #[test]
    fn a_count_that_cannot_be_read_keeps_lowest_pending_down() {
        assert_eq!(
            CountField::parse("12 3400 00000000000000ff"),
            CountField {
                messages: 12,
                bytes: 3_400,
                least_offset: Offset(255)
            }
        );
        assert_eq!(
            CountField::parse("garbage"),
            CountField {
                messages: 0,
                bytes: 0,
                least_offset: Offset(0)
            }
        );
    }
}
