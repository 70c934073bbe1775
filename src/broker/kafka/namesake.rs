//! Another group that lies where a given one does: in the same partition of `__consumer_offsets`, which Kafka chooses by the hash of the
//! name (`GroupMetadataManager.partitionFor`: Java's `String.hashCode`, without its sign, modulo the number of partitions). A transaction that
//! commits something for it is written there, and changes nothing of the group itself. Pure.

const LETTERS: u64 = 26;
/// What Java multiplies the hash with at each character.
const BASE: u64 = 31;
/// With so many letters there is one for every hash: see the test.
const LENGTH: u32 = 9;

/// The same name for the same group, always: the name, `.ended.`, and letters that make the hashes equal.
pub(super) fn colocated_group(group: &str) -> String {
    let start = format!("{group}.ended.");
    let plain = format!("{start}{}", "a".repeat(LENGTH as usize));
    let lacks = u64::from(hash(group).wrapping_sub(hash(&plain)));
    // The same modulo 2^32, as the sum of digits times powers of 31, each a letter behind `a`.
    let sums = (lacks..BASE.pow(LENGTH)).step_by(1 << 32);
    let letters = sums.filter_map(letters).next().unwrap_or_default();
    format!("{start}{letters}")
}

/// `None`: some digit is not a letter.
fn letters(sum: u64) -> Option<String> {
    let digits = (0..LENGTH).rev().map(|power| sum / BASE.pow(power) % BASE);
    digits
        .map(|digit| {
            (digit < LETTERS).then(|| char::from(b'a' + u8::try_from(digit).unwrap_or_default()))
        })
        .collect()
}

/// Which of the partitions of `__consumer_offsets` holds what a group has committed.
pub(super) fn offsets_partition(group: &str, partitions: i32) -> i32 {
    // As Java's: the least of all numbers has no positive counterpart.
    hash(group).cast_signed().checked_abs().unwrap_or(0) % partitions.max(1)
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
    fn the_hash_is_java_s() {
        // As `System.out.println("...".hashCode())` prints it.
        let answers = ["", "postdate", "prod.orders.delivered", "größe"].map(hash);
        assert_eq!(answers, [0, 757_479_502, 1_782_642_290, 98_762_257]);
    }

    #[test]
    fn a_group_lies_where_java_puts_it() {
        // As `Utils.abs(group.hashCode()) % 50` of Kafka's own library answers: the first hash is below 0.
        let at = [
            "demo.r.delivered",
            "postdate.orders.delivered",
            "prod.orders.delivered",
        ]
        .map(|group| offsets_partition(group, 50));
        assert_eq!(at, [25, 15, 40]);
        assert_eq!(
            offsets_partition("polygenelubricants", 50),
            0,
            "the least of all numbers"
        );
    }

    proptest! {
        #[test]
        fn a_namesake_lies_in_the_same_partition_and_is_another(group in "[a-z.]{1,60}|\\PC{1,20}") {
            let other = colocated_group(&group);
            prop_assert_eq!(hash(&other), hash(&group));
            prop_assert!(other.len() == group.len() + ".ended.".len() + LENGTH as usize && other.starts_with(&group));
        }
    }
}
