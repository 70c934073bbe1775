//! The id of one worker in its deployment.

use std::fmt;

/// Random, and new after each restart: a restarted process does not own the leases of its
/// predecessor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerId(pub(crate) u128);

impl WorkerId {
    /// Parses the text that `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_ours = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_ours
            .then(|| u128::from_str_radix(text, 16).ok().map(Self))
            .flatten()
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_worker_id_reads_back_from_its_text_and_foreign_text_is_rejected(id: u128, text: String) {
            prop_assert_eq!(WorkerId::parse(&WorkerId(id).to_string()), Some(WorkerId(id)));
            prop_assert!(WorkerId::parse(&text).is_none_or(|worker| worker.to_string().eq_ignore_ascii_case(&text)));
        }
    }
}
