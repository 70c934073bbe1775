//! The `traceparent` of W3C Trace Context: read, never written. What it says of a trace that its producer did not sample is nobody's business.

/// Where a producer's span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
}

/// `00-<trace>-<span>-<flags>`; a later version may have more behind that.
const LENGTH: usize = 55;
const SAMPLED: u8 = 1;

impl TraceParent {
    /// `None`: it is none, or its producer did not sample the trace.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(LENGTH)?;
        let (version, known) = (&known[..2], &known[2..]);
        let is_whole = if version == b"00" {
            rest.is_empty()
        } else {
            version != b"ff" && rest.first().is_none_or(|byte| *byte == b'-')
        };
        let dashes = [0, 33, 50].iter().all(|at| known[*at] == b'-');
        if !is_whole || !dashes {
            return None;
        }
        parse_hex(version)?;
        let context = Self {
            trace_id: parse_hex(&known[1..33])?,
            span_id: u64::try_from(parse_hex(&known[34..50])?).ok()?,
        };
        let flags = u8::try_from(parse_hex(&known[51..53])?).ok()?;
        (context.trace_id != 0 && context.span_id != 0 && flags & SAMPLED != 0).then_some(context)
    }
}

/// Lower case only, as the standard has it.
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

    #[test]
    fn a_sampled_context_is_read_and_nothing_else_is() {
        let read = |text: &str| TraceParent::parse(text.as_bytes());
        let context = TraceParent {
            trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            span_id: 0x00f0_67aa_0ba9_02b7,
        };
        assert_eq!(
            read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            Some(context)
        );
        assert_eq!(
            read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03"),
            Some(context)
        );
        assert_eq!(
            read("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-will-be"),
            Some(context)
        );
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
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            let _ = TraceParent::parse(&bytes);
        }
    }
}
