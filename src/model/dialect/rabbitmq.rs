//! RabbitMQ's delayed message exchange, a community plugin. Its README: "publish messages with the
//! custom header `x-delay` expressing in milliseconds a delay time for the message". The delay must
//! be above 0 and at most 2^32 - 1; RabbitMQ routes all other messages at once.
//!
//! | header | value |
//! |---|---|
//! | `x-delay` | the delay in whole milliseconds; zero or less is delivered at once, as in RabbitMQ |
//!
//! A delay of 2^32 ms (49.7 days) or more is kept here, or rejected if it is above the route's
//! `max_delay`.

use super::{MILLIS_AFTER, ScheduleRequest};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::parsing::rejection::Rejection;

pub(super) const HEADERS: [&str; 1] = ["x-delay"];

pub(super) fn read<'a>(
    headers: &HeaderLookup<'a>,
) -> Result<Option<ScheduleRequest<'a>>, Rejection> {
    MILLIS_AFTER.read(headers, 0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, Row, check};
    use crate::model::{Dialect, Reason};

    /// The values of the README's examples, the ends of the plugin's range, and what its code makes
    /// of texts that are no integers.
    #[test]
    #[rustfmt::skip]
    fn the_values_mean_the_same_as_in_the_plugin_except_above_its_maximum() {
        check(Dialect::RabbitMq, &[
            Row(&["x-delay: 5000"], Is::After(5_000)),
            Row(&["x-delay: 1000"], Is::After(1_000)),
            Row(&["x-delay: 1"], Is::After(1)),
            Row(&["x-delay: 0"], Is::After(0)),
            Row(&["x-delay: -5000"], Is::After(-5_000)),
            Row(&["x-delay: 2592000000"], Is::After(2_592_000_000)),
            Row(&["x-delay: 4294967295"], Is::DeadLetter(Reason::DelayAboveMax)),
            Row(&["x-delay: 4294967296"], Is::DeadLetter(Reason::DelayAboveMax)),
            Row(&["x-delay: 5000.0"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["x-delay: 5s"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["x-delay: +5"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["X-Delay: 5000"], Is::Relayed),
            Row(&["x-delayed-type: direct"], Is::Relayed),
        ]);
    }
}
