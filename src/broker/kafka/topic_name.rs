//! The rules for Kafka topic names.
//!
//! An invalid name must not reach librdkafka. It ends a name at a zero byte, treats a leading `^`
//! as a pattern, and asks the brokers for any other invalid name with every refresh.

const TOPIC_NAME_BYTES_MAX: usize = 249;

pub(super) fn is_valid_topic_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=TOPIC_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_allowed)
        && name != "."
        && name != ".."
}

/// The error text for an invalid name.
pub(super) fn invalid_topic_name(name: &str) -> String {
    format!(
        "`{}` is not a valid topic name: use 1-{TOPIC_NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -, \
         and neither . nor ..",
        name.escape_debug()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_topic_names_are_recognised() {
        for name in ["a", "A-z_0.9", "...", "__x", &"x".repeat(249)] {
            assert!(is_valid_topic_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "^a",
            "a b",
            "a\0b",
            "a/b",
            "ümlaut",
            "a*",
            &"x".repeat(250),
        ] {
            assert!(!is_valid_topic_name(name), "{name:?}");
        }
    }
}
