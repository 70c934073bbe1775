//! A rejection: why a record is not accepted, as a code for programs and a sentence for people.

use super::dead_letter_reason::DeadLetterReason;
use std::fmt;

/// The detail is stored with the message and sent as a header: room for a sentence, but not for a
/// large value.
pub(in crate::model) const DETAIL_BYTES_MAX: usize = 512;

/// A detail shows this many bytes of a rejected value, which is enough to find its producer.
const QUOTED_BYTES_MAX: usize = 64;

const CUT: &str = "...";

/// Why a record is not accepted. The detail names the found and the accepted values in at most
/// [`DETAIL_BYTES_MAX`] bytes. It contains foreign bytes only as [`Quoted`], and never the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: DeadLetterReason,
    pub(crate) detail: String,
}

impl Rejection {
    pub(crate) fn new(reason: DeadLetterReason, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > DETAIL_BYTES_MAX {
            detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX - CUT.len()));
            detail.push_str(CUT);
        }
        Self { reason, detail }
    }

    pub(in crate::model) fn invalid_value(
        reason: DeadLetterReason,
        header: &str,
        value: &str,
        expected: &str,
    ) -> Self {
        let value = Quoted(value.as_bytes());
        Self::new(reason, format!("{header} is {value}; expected {expected}"))
    }
}

/// Foreign bytes in a text for people: quoted, cut, and escaped to printable ASCII, because the
/// text may be shown in a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.len();
        if bytes <= QUOTED_BYTES_MAX {
            return write!(f, "\"{}\"", self.0.escape_ascii());
        }
        let head = self.0[..QUOTED_BYTES_MAX].escape_ascii();
        write!(f, "\"{head}\"{CUT} ({bytes} bytes)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_detail_is_bounded_for_any_text(detail in "\\PC{0,400}") {
            let rejection = Rejection::new(DeadLetterReason::InvalidAt, detail.clone());
            prop_assert!(rejection.detail.len() <= DETAIL_BYTES_MAX);
            prop_assert!(rejection.detail == detail || rejection.detail.ends_with(CUT));
        }

        #[test]
        fn quoted_bytes_are_short_printable_ascii(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let text = Quoted(&bytes).to_string();
            prop_assert!(text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()));
            prop_assert!(text.len() < 300);
        }
    }

    #[test]
    fn quoted_bytes_cannot_leave_their_quotes() {
        assert_eq!(Quoted(b"abc").to_string(), r#""abc""#);
        assert_eq!(
            Quoted(b"a\"b\n\x1b[31m\0\xff").to_string(),
            r#""a\"b\n\x1b[31m\x00\xff""#
        );
        assert_eq!(
            Quoted(&[b'x'; 64]).to_string(),
            format!("\"{}\"", "x".repeat(64))
        );
        assert_eq!(
            Quoted(&[b'x'; 65]).to_string(),
            format!("\"{}\"... (65 bytes)", "x".repeat(64))
        );
    }
}
