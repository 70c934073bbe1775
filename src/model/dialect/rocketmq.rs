//! RocketMQ's timer messages: `setDeliverTimeMs`, `setDelayTimeMs` and `setDelayTimeSec` of the
//! client set the properties below; rocketmq.apache.org/docs/featureBehavior/02delaymessage. Cloud
//! offerings use `__STARTDELIVERTIME`, "a millisecond-precision Unix timestamp"
//! (`msg.setStartDeliverTime`).
//!
//! | header | there | here |
//! |---|---|---|
//! | `TIMER_DELAY_SEC` | the delay in seconds | whole seconds |
//! | `TIMER_DELAY_MS` | the delay in milliseconds | whole milliseconds |
//! | `TIMER_DELIVER_MS` | the due time in milliseconds | whole milliseconds since 1970 |
//! | `__STARTDELIVERTIME` | the due time in milliseconds | whole milliseconds since 1970 |
//! | `DELAY` | one of the broker's 18 delay levels, which override the timer | rejected, except `0` |
//! | `TIMER_DEL_UNIQKEY` | cancels a waiting message | rejected |
//!
//! The first header of this table counts, and the others are ignored. This is the order of the
//! broker's `HookUtils.transformTimerMessage`, which does not know the property of the clouds.
//!
//! The delays of the levels are in the broker's `messageDelayLevel`, which Postdate does not know.
//! RocketMQ reserves `DELAY` and `TIMER_DEL_UNIQKEY`, so they have no other meaning.

use super::{
    MILLIS_AFTER, MILLIS_AT, SECONDS_AFTER, ScheduleRequest, reject_header, reject_unless_zero,
};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::parsing::rejection::Rejection;

pub(super) const HEADERS: [&str; 6] = [
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    "__STARTDELIVERTIME",
    "DELAY",
    "TIMER_DEL_UNIQKEY",
];
const LEVEL: usize = 4;
const CANCEL: usize = 5;

pub(super) fn read<'a>(
    headers: &HeaderLookup<'a>,
) -> Result<Option<ScheduleRequest<'a>>, Rejection> {
    reject_header(
        headers,
        CANCEL,
        "cancel a message with postdate-op: cancel and its postdate-id",
    )?;
    reject_unless_zero(
        headers,
        LEVEL,
        "delay levels are not supported; give the delay in TIMER_DELAY_SEC or TIMER_DELAY_MS",
    )?;
    for (index, grammar) in [SECONDS_AFTER, MILLIS_AFTER, MILLIS_AT, MILLIS_AT]
        .iter()
        .enumerate()
    {
        if let Some(delivery) = grammar.read(headers, index)? {
            return Ok(Some(delivery));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, NOW, Row, check};
    use crate::model::{Dialect, Reason};

    const HOUR: i64 = 3_600_000;

    #[test]
    #[rustfmt::skip]
    fn the_timer_properties_are_read_in_the_order_of_the_broker() {
        let at = |name: &str, due: i64| format!("{name}: {due}");
        let (deliver, start) = (at("TIMER_DELIVER_MS", NOW + HOUR), at("__STARTDELIVERTIME", NOW + 2 * HOUR));
        let (deliver, start) = (deliver.as_str(), start.as_str());
        check(Dialect::RocketMq, &[
            Row(&[deliver], Is::At(NOW + HOUR)),
            Row(&[start], Is::At(NOW + 2 * HOUR)),
            Row(&["TIMER_DELAY_MS: 10"], Is::After(10)),
            Row(&["TIMER_DELAY_SEC: 10"], Is::After(10_000)),
            Row(&["TIMER_DELAY_SEC: 259200"], Is::After(259_200_000)),
            Row(&["TIMER_DELAY_SEC: 259201"], Is::After(259_201_000)),
            Row(&["TIMER_DELIVER_MS: 1600000000000"], Is::At(1_600_000_000_000)),
            Row(&["TIMER_DELAY_MS: -1"], Is::After(-1)),
            Row(&[start, deliver], Is::At(NOW + HOUR)),
            Row(&[start, deliver, "TIMER_DELAY_MS: 10"], Is::After(10)),
            Row(&[start, deliver, "TIMER_DELAY_MS: 10", "TIMER_DELAY_SEC: 10"], Is::After(10_000)),
            Row(&[deliver, "__STARTDELIVERTIME: x"], Is::At(NOW + HOUR)),
            Row(&[deliver, "TIMER_DELAY_SEC: x"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["TIMER_DELAY_SEC: 9223372036854776"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["TIMER_DELIVER_MS: 2027-01-31T09:00:00Z"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["TIMER_DELAY_MS: 1h"], Is::DeadLetter(Reason::InvalidAfter)),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn levels_and_cancels_are_rejected_and_never_delivered_at_once() {
        check(Dialect::RocketMq, &[
            Row(&["DELAY: 3"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&["DELAY: 3", "TIMER_DELAY_MS: 10"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&["DELAY: 0", "TIMER_DELAY_MS: 10"], Is::After(10)),
            Row(&["DELAY: 0"], Is::Relayed),
            Row(&["TIMER_DELAY_MS: 10", "TIMER_DEL_UNIQKEY: 7F0000"], Is::DeadLetter(Reason::DialectUnsupported)),
        ]);
    }
}
