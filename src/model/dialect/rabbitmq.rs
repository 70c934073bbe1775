//! RabbitMQ's delayed message exchange, a community plugin. Its README ("Usage", "Performance Impact"): "publish messages with the custom
//! header `x-delay` expressing in milliseconds a delay time for the message"; the delay is to be "within range, ie: `Delay > 0,
//! Delay =< ?ERL_MAX_T`", which is 2^32 - 1. What is out of that range RabbitMQ routes at once.
//!
//! | header | value |
//! |---|---|
//! | `x-delay` | the delay: whole milliseconds. Zero and less go at once, as there |
//!
//! Another end of the range: a delay of 2^32 ms (49.7 days) and more is kept, or refused where it is above the route's `max_delay`, but
//! never delivered at once.

use super::{MILLIS_AFTER, ScheduleRequest};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::parsing::rejection::Rejection;

pub(super) const HEADERS: [&str; 1] = ["x-delay"];

pub(super) fn read<'a>(
    picked: &HeaderLookup<'a>,
) -> Result<Option<ScheduleRequest<'a>>, Rejection> {
    MILLIS_AFTER.read(picked, 0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, Row, check};
    use crate::model::{Dialect, Reason};

    /// The values of the README's examples, the ends of the plugin's range, and what its code makes of texts that are no integers.
    #[test]
    #[rustfmt::skip]
    fn the_plugins_values_mean_what_its_readme_says_but_for_the_upper_end() {
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
