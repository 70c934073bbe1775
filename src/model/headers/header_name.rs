//! The names of the message contract's headers, and which headers of a record stay on it on each way out. Names are compared byte for
//! byte, case included, on every broker; any other header is none of our business.

/// A header by which a producer (or, for `Retry`, Postdate itself) says what is to become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlHeader {
    /// The due time.
    At,
    /// The delay from the record's own timestamp.
    After,
    /// The target.
    To,
    /// The caller's id.
    Id,
    /// `schedule` or `cancel`.
    Op,
    /// Written by Postdate alone, on a record that it sends back through the source.
    Retry,
}

impl ControlHeader {
    pub(crate) const ALL: [Self; 6] = [
        Self::At,
        Self::After,
        Self::To,
        Self::Id,
        Self::Op,
        Self::Retry,
    ];
    /// By `Control as usize`.
    pub(crate) const NAMES: [&'static str; 6] = [
        "postdate-at",
        "postdate-after",
        "postdate-to",
        "postdate-id",
        "postdate-op",
        "postdate-retry",
    ];

    pub(crate) const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|control| control.name().as_bytes() == name)
    }
}

/// On every record handed on: the due time in epoch milliseconds.
pub(crate) const DUE: &str = "postdate-due";
/// On every record handed on: where it came from, see [`super::OriginFormat`].
pub(crate) const ORIGIN: &str = "postdate-origin";
/// On a dead letter: the code of a [`super::Reason`].
pub(crate) const ERROR: &str = "postdate-error";
/// On a dead letter: what was found, for a person.
pub(crate) const ERROR_DETAIL: &str = "postdate-error-detail";

/// On a record that was read from a NATS stream: the subject it came by. One that it brought along is replaced.
pub(crate) const SUBJECT: &str = "postdate-subject";

const OUTPUT: [&str; 4] = [DUE, ORIGIN, ERROR, ERROR_DETAIL];

pub(crate) fn is_control(name: &[u8]) -> bool {
    ControlHeader::from_name(name).is_some()
}

/// Whether Postdate writes this header on what it hands on. One that a record brought along is forged or left over: it is replaced.
pub(crate) fn is_written_by_postdate(name: &[u8]) -> bool {
    OUTPUT.iter().any(|output| output.as_bytes() == name)
}

/// Whether a record's header is still on it at its target, if it spoke no [`super::Dialect`]. The control headers are used up, and one that
/// stayed would work again if the target's reader sent the record on through a source.
pub(crate) fn stays_on_delivery(name: &[u8]) -> bool {
    !is_control(name) && !is_written_by_postdate(name)
}

/// Whether a record's header is still on it among the dead letters: what the producer wrote is there to be read, and to be sent again.
/// `postdate-retry` is not the producer's.
pub(crate) fn stays_on_dead_letter(name: &[u8]) -> bool {
    !is_written_by_postdate(name) && stays_on_retry(name)
}

/// Whether a record's header is still on it when it goes back through the source: all but an older `postdate-retry`.
pub(crate) fn stays_on_retry(name: &[u8]) -> bool {
    ControlHeader::from_name(name) != Some(ControlHeader::Retry)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, and whether it stays on delivery, on a dead letter, on a retry.
    const WAYS_OUT: &[(&str, [bool; 3])] = &[
        ("postdate-at", [false, true, true]),
        ("postdate-after", [false, true, true]),
        ("postdate-to", [false, true, true]),
        ("postdate-id", [false, true, true]),
        ("postdate-op", [false, true, true]),
        ("postdate-retry", [false, false, false]),
        ("postdate-due", [false, false, true]),
        ("postdate-origin", [false, false, true]),
        ("postdate-error", [false, false, true]),
        ("postdate-error-detail", [false, false, true]),
        ("Postdate-At", [true, true, true]),
        ("POSTDATE-RETRY", [true, true, true]),
        ("postdate-at ", [true, true, true]),
        ("postdate-", [true, true, true]),
        ("postdate-errors", [true, true, true]),
        ("content-type", [true, true, true]),
        ("", [true, true, true]),
    ];

    #[test]
    fn each_way_out_keeps_the_headers_that_are_not_ours() {
        for (name, stays) in WAYS_OUT {
            let name = name.as_bytes();
            let found = [
                stays_on_delivery(name),
                stays_on_dead_letter(name),
                stays_on_retry(name),
            ];
            assert_eq!(found, *stays, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn every_header_of_the_contract_is_either_control_or_output() {
        assert!(
            ControlHeader::ALL
                .iter()
                .all(
                    |control| ControlHeader::from_name(control.name().as_bytes()) == Some(*control)
                )
        );
        assert!(
            ControlHeader::ALL
                .iter()
                .all(|control| !is_written_by_postdate(control.name().as_bytes()))
        );
        assert!(OUTPUT.iter().all(|name| !is_control(name.as_bytes())));
    }
}
