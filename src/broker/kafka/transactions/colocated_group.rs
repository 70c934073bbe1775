//! Names a group whose offsets are in the same partition of `__consumer_offsets` as another's.
//!
//! Kafka chooses the partition by the hash of the group name (`GroupMetadataManager.partitionFor`):
//! the absolute value of Java's `String.hashCode`, modulo the number of partitions.

const LETTERS: u64 = 26;
/// The factor of Java's hash.
const BASE: u64 = 31;
/// With this many letters, every hash can be reached. A test checks that.
const LENGTH: u32 = 9;

/// Another group name in the same offsets partition, always the same for a group. A transaction
/// that commits an offset for it writes to that partition without changing the group.
///
/// The name is the group, `.ended.`, and letters that make the hashes equal.
pub(super) fn colocated_group(group: &str) -> String {
    let start = format!("{group}.ended.");
    let lowest = format!("{start}{}", "a".repeat(LENGTH as usize));
    let missing = u64::from(hash(group).wrapping_sub(hash(&lowest)));
    // Equal modulo 2^32, and a sum of powers of 31, each times the distance of a letter from `a`.
    let candidates = (missing..BASE.pow(LENGTH)).step_by(1 << 32);
    let letters = candidates.filter_map(letters).next().unwrap_or_default();
    format!("{start}{letters}")
}

/// The digits of `sum` in base 31 as letters; `None`: a digit is too large for a letter.
fn letters(sum: u64) -> Option<String> {
    let digits = (0..LENGTH).rev().map(|power| sum / BASE.pow(power) % BASE);
    let letter = |digit| Some(char::from(b'a' + u8::try_from(digit).ok()?));
    digits
        .map(|digit| letter(digit).filter(|_| digit < LETTERS))
        .collect()
}

/// Java's `String.hashCode`.
fn hash(text: &str) -> u32 {
    text.encode_utf16().fold(0, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(u32::from(unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_hash_equals_java_s() {
        // Printed by `System.out.println("...".hashCode())`.
        let answers = ["", "postdate", "prod.orders.delivered", "größe"].map(hash);
        assert_eq!(answers, [0, 757_479_502, 1_782_642_290, 98_762_257]);
    }

    proptest! {
        #[test]
        fn a_colocated_group_has_the_same_hash(group in "[a-z.]{1,60}|\\PC{1,20}") {
            let other = colocated_group(&group);
            prop_assert_eq!(hash(&other), hash(&group));
            prop_assert!(other.starts_with(&group));
            let length = group.len() + ".ended.".len() + LENGTH as usize;
            prop_assert_eq!(other.len(), length);
        }
    }
}
