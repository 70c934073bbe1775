//! Parses the `traceparent` header of W3C Trace Context.

/// The span in which a producer sent a message. Its trace is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
}

/// Bytes of `00-<trace>-<span>-<flags>`. Later versions may append more.
const LENGTH: usize = 55;
const SAMPLED: u8 = 1;

impl TraceParent {
    /// `None`: the value is invalid, or its trace is not sampled.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (fields, rest) = value.split_at_checked(LENGTH)?;
        let (version, fields) = (&fields[..2], &fields[2..]);
        let is_complete = if version == b"00" {
            rest.is_empty()
        } else {
            version != b"ff" && rest.first().is_none_or(|byte| *byte == b'-')
        };
        let has_dashes = [0, 33, 50].iter().all(|at| fields[*at] == b'-');
        if !is_complete || !has_dashes {
            return None;
        }
        parse_hex(version)?;
        let parent = Self {
            trace_id: parse_hex(&fields[1..33])?,
            span_id: u64::try_from(parse_hex(&fields[34..50])?).ok()?,
        };
        let flags = u8::try_from(parse_hex(&fields[51..53])?).ok()?;
        let is_sampled = flags & SAMPLED != 0;
        (parent.trace_id != 0 && parent.span_id != 0 && is_sampled).then_some(parent)
    }
}

/// The standard allows lower-case digits only.
fn parse_hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<TraceParent> {
        TraceParent::parse(text.as_bytes())
    }

    #[test]
    fn a_sampled_parent_is_parsed() {
        let parent = TraceParent {
            trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            span_id: 0x00f0_67aa_0ba9_02b7,
        };
        for text in [
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-a-later-version",
        ] {
            assert_eq!(parse(text), Some(parent), "{text}");
        }
    }

    #[test]
    fn invalid_and_unsampled_parents_are_ignored() {
        for text in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = TraceParent::parse(&bytes);
        }
    }
}
