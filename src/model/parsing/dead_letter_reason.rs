//! The closed list of dead-letter codes, as `postdate-error` carries them.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal,)+) => {
        /// The code of a dead letter. A code is never renamed. New codes are announced in the docs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum DeadLetterReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DeadLetterReason {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            /// The value of `postdate-error`.
            pub(crate) fn code(self) -> &'static str {
                match self { $(Self::$name => $code,)+ }
            }

            pub(crate) fn from_code(code: &str) -> Option<Self> {
                match code { $($code => Some(Self::$name),)+ _ => None }
            }

            /// One line for the docs.
            #[cfg(test)]
            pub(crate) fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

reasons! {
    /// the record has no delay header, and the route (or `postdate-op: schedule` or `reschedule`) demands one
    MissingDue = "missing_due",
    /// a control header, or a dialect's, has a null or empty value
    EmptyValue = "empty_value",
    /// a control header's value, or a dialect's, is not UTF-8
    NotUtf8 = "not_utf8",
    /// `postdate-at`, or a dialect's header for a due time, is not of its grammar
    InvalidAt = "invalid_at",
    /// `postdate-after`, or a dialect's header for a delay, is not of its grammar
    InvalidAfter = "invalid_after",
    /// `postdate-spread` is not of its grammar
    InvalidSpread = "invalid_spread",
    /// `postdate-until` is not of its grammar
    InvalidUntil = "invalid_until",
    /// the due time lies further ahead of the record's timestamp than the route's max_delay
    DelayAboveMax = "delay_above_max",
    /// the record has both a due time and a delay: `postdate-at` and `postdate-after`, or a
    /// dialect's
    AtAndAfter = "at_and_after",
    /// the same control header, or a dialect's, appears twice on the record
    DuplicateHeader = "duplicate_header",
    /// the record has more headers, or more bytes of headers, than Postdate accepts
    TooManyHeaders = "too_many_headers",
    /// a delay on a record whose own timestamp is missing, before the year 2000, or too great to
    /// count from
    InvalidTimestamp = "invalid_timestamp",
    /// the record names no target and the route has no default
    NoTarget = "no_target",
    /// the target is not on the route's allow-list
    TargetNotAllowed = "target_not_allowed",
    /// the target is a source of this deployment: delivering there would make a loop
    TargetIsSource = "target_is_source",
    /// the target is not a name that the broker could have, or a reserved one
    InvalidTarget = "invalid_target",
    /// `postdate-id`, or a key that a dialect takes for the id, is not 1-128 of A-Z a-z 0-9 . _ : -
    InvalidId = "invalid_id",
    /// `postdate-of` is not an origin, the record has a `postdate-id` too, or the route has no
    /// `change_by_origin`
    InvalidOf = "invalid_of",
    /// `postdate-of` names a message of another partition
    WrongPartition = "wrong_partition",
    /// `postdate-op` is none of schedule, cancel and reschedule
    InvalidOp = "invalid_op",
    /// `postdate-op: cancel` or `reschedule` without `postdate-id` and `postdate-of`, or a dialect's
    /// cancel without key
    CancelWithoutId = "cancel_without_id",
    /// `postdate-retry` is not one that Postdate wrote for this partition
    InvalidRetry = "invalid_retry",
    /// the record has headers of two dialects that the route understands
    DialectConflict = "dialect_conflict",
    /// the record uses a dialect feature that Postdate does not support: to be delivered more than
    /// once, to a partition, ...
    DialectUnsupported = "dialect_unsupported",
    /// a header of a schedule is not of its grammar, or the headers contradict each other
    InvalidSchedule = "invalid_schedule",
    /// a schedule has no occurrence after the timestamp of its record
    NeverDue = "never_due",
    /// the quota of the route was used up when the record was read
    Quota = "quota",
    /// the target refused the record as too large, or it is larger than can be stored (248 MiB)
    TooLarge = "too_large",
    /// the target's broker denied access
    Unauthorized = "unauthorized",
    /// the target's broker refused the record as invalid
    InvalidRecord = "invalid_record",
    /// the target's broker cannot carry one of the record's headers as it is
    InvalidHeader = "invalid_header",
    /// the target had no room through all attempts
    TargetFull = "target_full",
    /// the target topic, or a stream behind the target subject, did not exist through all attempts
    UnknownTarget = "unknown_target",
    /// the target did not answer in time through all attempts
    TimedOut = "timed_out",
    /// the message would have been delivered later after its due than the route's overdue_after
    /// allows
    Overdue = "overdue",
    /// the message would have been delivered after its `postdate-until`
    Expired = "expired",
}

impl fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_unique_and_reads_back() {
        let codes: std::collections::BTreeSet<_> =
            DeadLetterReason::ALL.iter().map(|r| r.code()).collect();
        assert_eq!(codes.len(), DeadLetterReason::ALL.len());
        assert!(
            DeadLetterReason::ALL
                .iter()
                .all(|r| DeadLetterReason::from_code(r.code()) == Some(*r)
                    && !r.meaning().is_empty())
        );
        assert_eq!(DeadLetterReason::from_code("something_else"), None);
    }
}
