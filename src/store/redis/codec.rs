//! The values in Redis as Rust types, and back. The formats are listed in `key`.

use crate::model::{Cursor, Offset, Pause, Slice, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::rules::{Moved, NO_HOLD, ShardMeta};
use crate::store::{
    AppendEpoch, EffectKind, EpochStart, IdChange, IdChangeKind, Ledger, Lineage, RequestEffect,
    RunEntry, StoredShard, ToldEffect,
};

/// Scores are doubles. All whole numbers up to this one are exact.
const SCORE_MAX: i64 = (1 << 53) - 1;

/// A due time as a score. `at once` has its own score below all others. A due time that a double
/// cannot hold becomes the nearest possible score, which keeps the order of due times.
pub(super) fn due_score(due: Timestamp) -> i64 {
    if due == Timestamp::AT_ONCE {
        -SCORE_MAX
    } else {
        due.as_millis().clamp(1 - SCORE_MAX, SCORE_MAX)
    }
}

/// The due time of a score.
pub(super) fn parse_score(score: &str) -> Option<Timestamp> {
    let score = score.parse::<f64>().ok().filter(|score| !score.is_nan())?;
    // Saturates, so that a foreign score is some due time as well.
    let millis = score as i64;
    Some(if millis <= -SCORE_MAX {
        Timestamp::AT_ONCE
    } else {
        Timestamp::from_millis(millis)
    })
}

/// The member of a run in the index of its slice. Runs with the same least due sort by least
/// offset.
pub(super) fn index_member(name: &RunName) -> String {
    format!("{:016x} {name}", name.least_offset().0)
}

pub(super) fn parse_index_member(member: &str) -> Option<RunName> {
    Some(RunName::new(member.split_once(' ')?.1))
}

/// True if a member of the tail names a slice that only a newer version knows.
pub(super) fn is_of_newer_slice(tail_member: &str) -> bool {
    let slice = tail_member.rsplit(' ').next();
    slice.is_some_and(Slice::is_newer)
}

pub(super) fn parse_tail_member(text: &str) -> Option<RunEntry> {
    let (_batch_end, rest) = text.split_once(' ')?;
    // From the right, because the index member contains a space.
    let mut parts = rest.rsplitn(3, ' ');
    let slice = Slice::parse(parts.next()?)?;
    let least_due = parse_score(parts.next()?)?;
    let name = parse_index_member(parts.next()?)?;
    Some(RunEntry {
        slice,
        name,
        least_due,
    })
}

pub(super) fn watermark_hex(watermark: Watermark) -> String {
    format!("{:016x}", watermark.0)
}

pub(super) fn offset_hex(offset: Offset) -> String {
    format!("{:016x}", offset.0)
}

/// The change as `lua/append.lua` reads it, and the request: `!` if it changes a claimed message too or `?` if
/// the reply tells its effect, then its offset if it asks for an answer.
pub(super) fn id_change(change: &IdChange) -> [String; 2] {
    let kind = match change.kind {
        IdChangeKind::Schedule(place) => format!("s{}", place.to_hex()),
        IdChangeKind::Retry(place) => format!("r{}", place.to_hex()),
        IdChangeKind::KeepFirst { place, timestamp } => {
            format!("k{}{}", place.to_hex(), due_hex(timestamp))
        }
        IdChangeKind::Cancel => "c".to_owned(),
        IdChangeKind::Reschedule { by, due } => format!("m{}{}", offset_hex(by), due_hex(due)),
        IdChangeKind::Delivered => "d".to_owned(),
        IdChangeKind::TakePlace { place, of } => format!("t{}{}", place.to_hex(), offset_hex(of)),
        IdChangeKind::PlaceTaken { of } => format!("p{}", offset_hex(of)),
    };
    let mark = match (change.changes_claimed, change.tells_effect) {
        (true, _) => "!",
        (false, true) => "?",
        (false, false) => "",
    };
    let request = change.request.map(offset_hex).unwrap_or_default();
    [kind, format!("{mark}{request}")]
}

fn due_hex(due: Timestamp) -> String {
    format!("{:016x}", due.to_ordered_bits())
}

pub(super) fn parse_number(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// Offset of the request, place that it names, and a letter.
pub(super) fn parse_effect(text: &str) -> Option<RequestEffect> {
    let (request, rest) = text.split_at_checked(16)?;
    let (place, letter) = rest.split_at_checked(32)?;
    Some(RequestEffect {
        request: Offset(parse_number(request)?),
        place: Cursor::from_hex(place)?,
        kind: match letter {
            "c" => EffectKind::Changed,
            "l" => EffectKind::Unchanged,
            _ => return None,
        },
    })
}

/// Place of the named message, a letter, and the number of the change.
pub(super) fn parse_told(text: &str) -> Option<ToldEffect> {
    let (place, rest) = text.split_at_checked(32)?;
    let (letter, change) = rest.split_at_checked(1)?;
    Some(ToldEffect {
        change: change.parse().ok()?,
        named: Cursor::from_hex(place)?,
        is_changed: match letter {
            "c" => true,
            "l" => false,
            _ => return None,
        },
    })
}

/// Place of a rescheduled message, offset of the record that gave it its due time, and the due time.
pub(super) fn parse_moved(text: &str) -> Option<RequestEffect> {
    let (place, moved) = text.split_at_checked(32)?;
    Some(parse_move(moved)?.effect(Cursor::from_hex(place)?))
}

/// Offset of the record that gave a message its due time, and the due time.
pub(super) fn parse_move(text: &str) -> Option<Moved> {
    let (by, due) = text
        .split_at_checked(16)
        .filter(|(_, due)| due.len() == 16)?;
    Some(Moved {
        by: Offset(parse_number(by)?),
        due: Timestamp::from_ordered_bits(parse_number(due)?),
    })
}

pub(super) fn move_hex(moved: Moved) -> String {
    offset_hex(moved.by) + &due_hex(moved.due)
}

pub(super) fn parse_watermark(text: &str) -> Option<Watermark> {
    if text.len() != 16 {
        return None;
    }
    Some(Watermark(u64::from_str_radix(text, 16).ok()?))
}

/// `None`: the hold has ended, because the store or the quota was full. Foreign text is no hold.
pub(super) fn parse_hold(text: &str) -> Option<Watermark> {
    match text {
        "-" => None,
        text => Some(parse_watermark(text).unwrap_or(NO_HOLD)),
    }
}

/// Empty: there was no control record.
pub(super) fn pause_text(pause: Option<&Pause>) -> String {
    pause.map(Pause::to_string).unwrap_or_default()
}

pub(super) fn epoch_text(epoch: AppendEpoch) -> String {
    format!("{:x}-{:x}", epoch.process, epoch.number)
}

fn parse_epoch(text: &str) -> Option<AppendEpoch> {
    let (process, number) = text.split_once('-')?;
    Some(AppendEpoch {
        process: u64::from_str_radix(process, 16).ok()?,
        number: u64::from_str_radix(number, 16).ok()?,
    })
}

/// The lineage in meta. An unreadable text counts as the lineage of a new shard.
pub(super) fn parse_lineage(text: &str) -> Lineage {
    let parse = || {
        let (replacements, epochs) = text.split_once(' ').unwrap_or((text, ""));
        let mut lineage = Lineage {
            replacements: replacements.parse().ok()?,
            ..Lineage::default()
        };
        let mut words = epochs.split_ascii_whitespace();
        for place in &mut lineage.epochs {
            let Some(epoch) = words.next() else { break };
            *place = EpochStart {
                epoch: parse_epoch(epoch)?,
                start: parse_watermark(words.next()?)?,
            };
        }
        words.next().is_none().then_some(lineage)
    };
    parse().unwrap_or_default()
}

/// The ledger in meta. If it belongs to other positions, a version without ledgers moved them: then
/// the ledger starts anew with the messages that are stored now.
pub(super) fn parse_ledger(text: &str, shard: &StoredShard) -> Ledger {
    let positions = format!(
        "{}{}",
        watermark_hex(shard.watermark),
        shard.delivered.to_hex()
    );
    let parse = || {
        let numbers = text.strip_suffix(&positions)?.split_ascii_whitespace();
        let numbers: Vec<u64> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Ledger::from_numbers(numbers.try_into().ok()?))
    };
    parse().unwrap_or_else(|| Ledger::starting_with(shard.pending() + shard.quarantined))
}

/// The value of the ledger in meta.
pub(super) fn ledger_text(meta: &ShardMeta) -> String {
    let Ledger {
        accepted,
        outcomes,
        removed,
        is_uncertain,
    } = meta.ledger;
    let [delivered, cancelled, dead_lettered, retried] = outcomes.to_array();
    format!(
        "{accepted} {delivered} {cancelled} {dead_lettered} {retried} {removed} {} {}{}",
        u8::from(is_uncertain),
        watermark_hex(meta.watermark),
        meta.delivered.to_hex()
    )
}

/// The sum of ten thousands of such numbers fits into 64 bits. No slice holds as many bytes.
const COUNT_MAX: u64 = 1 << 48;

/// The value of one field of `counts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountField {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) least_offset: Offset,
}

impl CountField {
    /// An unreadable part counts as 0. Offset 0 is never too high. A foreign number must not make a
    /// sum overflow.
    pub(super) fn parse(text: &str) -> Self {
        let mut parts = text.split(' ');
        let mut number = || {
            let number: u64 = parts.next()?.parse().ok()?;
            (number <= COUNT_MAX).then_some(number)
        };
        let (messages, bytes) = (number(), number());
        let least = parts.next().and_then(parse_watermark);
        Self {
            messages: messages.unwrap_or(0),
            bytes: bytes.unwrap_or(0),
            least_offset: Offset(least.unwrap_or_default().0),
        }
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

    #[test]
    fn a_count_that_no_slice_can_have_counts_as_unreadable() {
        let count = CountField::parse("18446744073709551615 7 0000000000000003");
        assert_eq!((count.messages, count.bytes), (0, 7));
        assert_eq!(count.least_offset, Offset(3));
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
            prop_assert_eq!(due_score(other) == due_score(Timestamp::AT_ONCE), other == Timestamp::AT_ONCE);
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
