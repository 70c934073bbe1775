//! Pulsar's delayed delivery: pulsar.apache.org/docs/concepts-messaging, "Delayed message
//! delivery". Pulsar's wire format has no header for it. The names are those of the clients'
//! message builders.
//!
//! | header | there | here |
//! |---|---|---|
//! | `deliverAt` | `TypedMessageBuilder.deliverAt`: "the timestamp is milliseconds and based on UTC" | whole milliseconds since 1970 |
//! | `deliverAfter` | `deliverAfter(delay, unit)`; milliseconds in clients without units, such as Node.js | whole milliseconds |
//!
//! A record with both is rejected, because Pulsar's clients do not agree on which one counts.

use super::{MILLIS_AFTER, MILLIS_AT, ScheduleRequest};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::parsing::rejection::Rejection;

pub(super) const HEADERS: [&str; 2] = ["deliverAt", "deliverAfter"];
const AT: usize = 0;
const AFTER: usize = 1;

pub(super) fn read<'a>(
    headers: &HeaderLookup<'a>,
) -> Result<Option<ScheduleRequest<'a>>, Rejection> {
    match (
        MILLIS_AT.read(headers, AT)?,
        MILLIS_AFTER.read(headers, AFTER)?,
    ) {
        (Some(_), Some(_)) => Err(Rejection::new(
            Reason::AtAndAfter,
            "the record has both deliverAt and deliverAfter",
        )),
        (at, after) => Ok(at.or(after)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, NOW, Row, check};
    use crate::model::{Dialect, Reason};

    /// `deliverAfter(3L, TimeUnit.MINUTES)` is the documentation's example.
    #[test]
    #[rustfmt::skip]
    fn both_headers_are_in_milliseconds() {
        let at = format!("deliverAt: {}", NOW + 180_000);
        check(Dialect::Pulsar, &[
            Row(&["deliverAfter: 180000"], Is::After(180_000)),
            Row(&[&at], Is::At(NOW + 180_000)),
            Row(&["deliverAt: 1600000000000"], Is::At(1_600_000_000_000)),
            Row(&["deliverAt: 1700000180"], Is::At(1_700_000_180)),
            Row(&["deliverAfter: -1"], Is::After(-1)),
            Row(&[&at, "deliverAfter: 180000"], Is::DeadLetter(Reason::AtAndAfter)),
            Row(&["deliverAfter: 3m"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["deliverAt: 2027-01-31T09:00:00Z"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["deliverat: 1"], Is::Relayed),
            Row(&["deliverAfterMs: 1"], Is::Relayed),
        ]);
    }
}
