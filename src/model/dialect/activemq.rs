//! ActiveMQ Classic's scheduler: activemq.apache.org/delay-and-schedule-message-delivery, which
//! lists four message properties.
//!
//! | header | there | here |
//! |---|---|---|
//! | `AMQ_SCHEDULED_DELAY` | long, "the time in milliseconds that a message will wait" | the delay in whole milliseconds; a negative one, which ActiveMQ rejects, is delivered at once |
//! | `AMQ_SCHEDULED_PERIOD` | long, milliseconds between repetitions | rejected, except `0` |
//! | `AMQ_SCHEDULED_REPEAT` | int, "the number of times to repeat" | rejected, except `0` |
//! | `AMQ_SCHEDULED_CRON` | String, a Cron entry | rejected |
//!
//! A repeating message is rejected, not delivered once: otherwise its producer would wait for the
//! repetitions.

use super::{MILLIS_AFTER, ScheduleRequest, reject_header, reject_unless_zero};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::parsing::rejection::Rejection;

pub(super) const HEADERS: [&str; 4] = [
    "AMQ_SCHEDULED_DELAY",
    "AMQ_SCHEDULED_PERIOD",
    "AMQ_SCHEDULED_REPEAT",
    "AMQ_SCHEDULED_CRON",
];
const DELAY: usize = 0;
const PERIOD: usize = 1;
const REPEAT: usize = 2;
const CRON: usize = 3;

const ONCE: &str = "a message is delivered once; send one message for each time";

pub(super) fn read<'a>(
    headers: &HeaderLookup<'a>,
) -> Result<Option<ScheduleRequest<'a>>, Rejection> {
    reject_header(headers, CRON, ONCE)?;
    reject_unless_zero(headers, PERIOD, ONCE)?;
    reject_unless_zero(headers, REPEAT, ONCE)?;
    MILLIS_AFTER.read(headers, DELAY)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, Row, check};
    use crate::model::{Dialect, Reason};

    /// The four examples of the page, and the properties one by one.
    #[test]
    #[rustfmt::skip]
    fn the_documented_properties_are_accepted_or_rejected() {
        let (delay, period, repeat) = ("AMQ_SCHEDULED_DELAY: 30000", "AMQ_SCHEDULED_PERIOD: 10000", "AMQ_SCHEDULED_REPEAT: 9");
        let cron = "AMQ_SCHEDULED_CRON: 0 * * * *";
        check(Dialect::ActiveMq, &[
            Row(&["AMQ_SCHEDULED_DELAY: 60000"], Is::After(60_000)),
            Row(&[delay, period, repeat], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[cron], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[cron, "AMQ_SCHEDULED_DELAY: 1000", "AMQ_SCHEDULED_PERIOD: 1000", repeat], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[delay, period], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[delay, repeat], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[delay, "AMQ_SCHEDULED_REPEAT: -1"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[delay, "AMQ_SCHEDULED_PERIOD: 0", "AMQ_SCHEDULED_REPEAT: 0"], Is::After(30_000)),
            Row(&["AMQ_SCHEDULED_PERIOD: 0", "AMQ_SCHEDULED_REPEAT: 0"], Is::Relayed),
            Row(&[delay, "AMQ_SCHEDULED_REPEAT: abc"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[delay, "AMQ_SCHEDULED_CRON: "], Is::DeadLetter(Reason::EmptyValue)),
            Row(&["AMQ_SCHEDULED_DELAY: -1"], Is::After(-1)),
            Row(&["AMQ_SCHEDULED_DELAY: 1.5"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["scheduledJobId: ID:1", delay], Is::After(30_000)),
            Row(&["scheduledJobId: ID:1"], Is::Relayed),
        ]);
    }
}
