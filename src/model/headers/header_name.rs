//! The names of Postdate's headers, and which headers stay on a record when it is sent. Names are
//! compared byte for byte, case included, on every broker. Other headers have no meaning to
//! Postdate. `CONTRIBUTING.md` tells how to add a control header.

/// A header that controls a delay. Producers write them; only Postdate writes `Retry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlHeader {
    /// The due time.
    At,
    /// The delay, counted from the record's own timestamp.
    After,
    /// The span over which due times are spread.
    Spread,
    /// The time after which the message is not delivered any more.
    Until,
    /// The target.
    To,
    /// The producer's id of the message.
    Id,
    /// The origin of the message that the record changes.
    Of,
    /// `schedule`, `cancel` or `reschedule`.
    Op,
    /// Where the answer to the record goes.
    ReplyTo,
    /// The requester's name for the record. The answer repeats it.
    RequestId,
    /// Written by Postdate, on a record that it sends back through the source.
    Retry,
}

impl ControlHeader {
    pub(in crate::model) const ALL: [Self; 11] = [
        Self::At,
        Self::After,
        Self::Spread,
        Self::Until,
        Self::To,
        Self::Id,
        Self::Of,
        Self::Op,
        Self::ReplyTo,
        Self::RequestId,
        Self::Retry,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::At => "postdate-at",
            Self::After => "postdate-after",
            Self::Spread => "postdate-spread",
            Self::Until => "postdate-until",
            Self::To => "postdate-to",
            Self::Id => "postdate-id",
            Self::Of => "postdate-of",
            Self::Op => "postdate-op",
            Self::ReplyTo => "postdate-reply-to",
            Self::RequestId => "postdate-request-id",
            Self::Retry => "postdate-retry",
        }
    }

    pub(in crate::model) fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|control| control.name().as_bytes() == name)
    }
}

/// A header that defines a schedule, on a record of a recurring route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScheduleHeader {
    Cron,
    Every,
    Zone,
    From,
    Until,
    Times,
    Missed,
    MissedWithin,
    Spread,
    Paused,
    Fire,
}

impl ScheduleHeader {
    pub(in crate::model) const ALL: [Self; 11] = [
        Self::Cron,
        Self::Every,
        Self::Zone,
        Self::From,
        Self::Until,
        Self::Times,
        Self::Missed,
        Self::MissedWithin,
        Self::Spread,
        Self::Paused,
        Self::Fire,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cron => "postdate-cron",
            Self::Every => "postdate-every",
            Self::Zone => "postdate-zone",
            Self::From => "postdate-from",
            Self::Until => "postdate-until",
            Self::Times => "postdate-times",
            Self::Missed => "postdate-missed",
            Self::MissedWithin => "postdate-missed-within",
            Self::Spread => "postdate-spread",
            Self::Paused => "postdate-paused",
            Self::Fire => "postdate-fire",
        }
    }

    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|header| header.name().as_bytes() == name)
    }
}

/// On every delivered record: the due time in epoch milliseconds.
pub(crate) const DUE: &str = "postdate-due";
/// On every delivered record: its origin, see [`crate::model::OriginFormat`].
pub(crate) const ORIGIN: &str = "postdate-origin";
/// On an answer: the origin of its request. An answer has no origin, because it is not the message
/// of the record.
pub(crate) const ANSWER: &str = "postdate-answer";
/// On an occurrence: the id of its schedule.
pub(crate) const SCHEDULE: &str = "postdate-schedule";
/// On an occurrence: the planned time of the next one in epoch milliseconds.
pub(crate) const NEXT: &str = "postdate-next";
/// On a dead letter: the code of a [`crate::model::DeadLetterReason`].
pub(crate) const ERROR: &str = "postdate-error";
/// On a dead letter: the explanation for a person.
pub(crate) const ERROR_DETAIL: &str = "postdate-error-detail";
/// On a redriven record: the origin of the first record, kept through further redrives.
pub(crate) const FIRST_ORIGIN: &str = "postdate-first-origin";
/// On a redriven record: the due time of the first record in epoch milliseconds, if it had one.
pub(crate) const FIRST_DUE: &str = "postdate-first-due";
/// Part of the detail of a dead letter that carries neither payload nor headers.
pub(crate) const BY_REFERENCE: &str = "; sent by reference: ";
/// On a record from a NATS stream: its source subject. Replaces the producer's own such header.
pub(crate) const SUBJECT: &str = "postdate-subject";

const OUTPUT: [&str; 7] = [DUE, ORIGIN, ANSWER, SCHEDULE, NEXT, ERROR, ERROR_DETAIL];

/// Returns `true` for headers that Postdate writes on delivered records. A value on the source
/// record is forged or left over, so it is replaced.
fn is_output(name: &[u8]) -> bool {
    OUTPUT.iter().any(|output| output.as_bytes() == name)
}

/// Returns `true` for headers that stay on a delivered record without a dialect. Control headers
/// would act again if the consumer sent the record to a source.
pub(crate) fn stays_on_delivery(name: &[u8]) -> bool {
    ControlHeader::from_name(name).is_none() && !is_output(name)
}

/// Returns `true` for headers that stay on an occurrence: those of its template.
pub(crate) fn stays_on_occurrence(name: &[u8]) -> bool {
    ScheduleHeader::from_name(name).is_none() && stays_on_delivery(name)
}

/// Returns `true` for headers that stay on a dead letter: everything that the producer wrote, so
/// that the record can be inspected and sent again. `postdate-retry` is not the producer's.
pub(crate) fn stays_on_dead_letter(name: &[u8]) -> bool {
    !is_output(name) && stays_on_retry(name)
}

/// Returns `true` for headers that stay on a retry: all except an older `postdate-retry`.
pub(crate) fn stays_on_retry(name: &[u8]) -> bool {
    ControlHeader::from_name(name) != Some(ControlHeader::Retry)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name; stays on a delivered record, on a dead letter, on a retry.
    const WAYS_OUT: &[(&str, [bool; 3])] = &[
        ("postdate-at", [false, true, true]),
        ("postdate-after", [false, true, true]),
        ("postdate-spread", [false, true, true]),
        ("postdate-until", [false, true, true]),
        ("postdate-to", [false, true, true]),
        ("postdate-id", [false, true, true]),
        ("postdate-of", [false, true, true]),
        ("postdate-op", [false, true, true]),
        ("postdate-reply-to", [false, true, true]),
        ("postdate-request-id", [false, true, true]),
        ("postdate-retry", [false, false, false]),
        ("postdate-due", [false, false, true]),
        ("postdate-origin", [false, false, true]),
        ("postdate-answer", [false, false, true]),
        ("postdate-error", [false, false, true]),
        ("postdate-schedule", [false, false, true]),
        ("postdate-cron", [true, true, true]),
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
        for control in ControlHeader::ALL {
            let name = control.name().as_bytes();
            assert_eq!(ControlHeader::from_name(name), Some(control));
            assert!(!is_output(name));
        }
        assert!(
            OUTPUT
                .iter()
                .all(|name| ControlHeader::from_name(name.as_bytes()).is_none())
        );
    }
}
