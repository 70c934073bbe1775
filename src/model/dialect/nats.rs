//! NATS JetStream's message schedules: ADR-51, "JetStream Message Scheduler", and its headers.
//!
//! | header | there | here |
//! |---|---|---|
//! | `Nats-Schedule` | `@at <RFC 3339>`, `@every <duration>`, `@hourly` and the like, or six fields of cron | `@at`, one space, RFC 3339 as in `postdate-at`; anything else is rejected |
//! | `Nats-Schedule-Target` | the subject it is delivered to, required | as `postdate-to`; without it, the route's default |
//! | `Nats-Schedule-Source` | delivers the last message of that subject instead | rejected |
//! | `Nats-Schedule-TTL` | a time to live of the delivered message | rejected |
//! | `Nats-Schedule-Rollup` | replaces the messages of the target subject | rejected |
//! | `Nats-Schedule-Time-Zone` | for cron; the server rejects it with `@at` | rejected |
//!
//! A repeating schedule is rejected, and so is a delivery with a property that Postdate cannot set.
//! In NATS a later schedule on the same subject replaces the waiting one; here only one with the
//! same `postdate-id` does.

use super::{DueHeader, ScheduleRequest, missing_due, reject_header, unsupported};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::parsing::rejection::Rejection;
use crate::model::parsing::time_grammar::{self, DueSpec};

pub(super) const HEADERS: [&str; 6] = [
    "Nats-Schedule",
    "Nats-Schedule-Target",
    "Nats-Schedule-Source",
    "Nats-Schedule-TTL",
    "Nats-Schedule-Rollup",
    "Nats-Schedule-Time-Zone",
];
const SCHEDULE: usize = 0;
const TARGET: usize = 1;

const AT: DueHeader = DueHeader {
    parse: parse_at,
    reason: Reason::InvalidAt,
    accepts: "@at and an RFC 3339 time with its offset, as in @at 2027-01-31T09:00:00Z",
};

pub(super) fn read<'a>(
    headers: &HeaderLookup<'a>,
) -> Result<Option<ScheduleRequest<'a>>, Rejection> {
    if let Some(schedule) = headers.text(SCHEDULE)?
        && !schedule.starts_with("@at")
    {
        return Err(unsupported(
            HEADERS[SCHEDULE],
            schedule,
            "only @at is supported; a message is delivered once",
        ));
    }
    for index in TARGET + 1..HEADERS.len() {
        reject_header(
            headers,
            index,
            "only Nats-Schedule and Nats-Schedule-Target are supported",
        )?;
    }
    let delivery = AT
        .read(headers, SCHEDULE)?
        .ok_or_else(|| missing_due(headers, SCHEDULE))?;
    Ok(Some(ScheduleRequest {
        target: headers.text(TARGET)?,
        ..delivery
    }))
}

fn parse_at(text: &str) -> Option<DueSpec> {
    time_grammar::parse_rfc3339(text.strip_prefix("@at ")?).map(DueSpec::At)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, NOW, Row, check};
    use crate::model::{Dialect, Reason};

    const AT: &str = "Nats-Schedule: @at 2023-11-14T23:13:20Z";

    #[test]
    #[rustfmt::skip]
    fn a_single_schedule_is_accepted() {
        check(Dialect::Nats, &[
            Row(&["Nats-Schedule: @at 2009-11-10T23:00:00Z", "Nats-Schedule-Target: audit"], Is::AtTo(1_257_894_000_000, "audit")),
            Row(&[AT, "Nats-Schedule-Target: billing.eu"], Is::AtTo(NOW + 3_600_000, "billing.eu")),
            Row(&[AT], Is::At(NOW + 3_600_000)),
            Row(&["Nats-Schedule: @at 2023-11-15T00:13:20.5+01:00"], Is::At(NOW + 3_600_500)),
            Row(&["Nats-Schedule: @at 2023-11-14T23:13:20"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["Nats-Schedule: @at  2023-11-14T23:13:20Z"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["Nats-Schedule: @at 1700003600000"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["Nats-Schedule: @at"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&[AT, "Nats-Schedule-Target: other"], Is::DeadLetter(Reason::TargetNotAllowed)),
            Row(&[AT, "Nats-Schedule-Target: orders.delayed"], Is::DeadLetter(Reason::TargetIsSource)),
            Row(&[AT, "Nats-Schedule-Target: $SCHED.trigger.update_orders"], Is::DeadLetter(Reason::InvalidTarget)),
            Row(&[AT, "Nats-Schedule-Target: "], Is::DeadLetter(Reason::EmptyValue)),
            Row(&["Nats-Schedule-Target: audit"], Is::DeadLetter(Reason::MissingDue)),
            Row(&["nats-schedule: @at 2023-11-14T23:13:20Z"], Is::Relayed),
        ]);
    }

    /// Every other schedule and header that the ADR lists.
    #[test]
    #[rustfmt::skip]
    fn repeating_schedules_and_other_headers_are_rejected() {
        check(Dialect::Nats, &[
            Row(&["Nats-Schedule: @hourly"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&["Nats-Schedule: @midnight"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&["Nats-Schedule: @every 5m", "Nats-Schedule-Target: audit"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&["Nats-Schedule: 0 0 5 * * *"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&["Nats-Schedule: 2023-11-14T23:13:20Z"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[AT, "Nats-Schedule-Source: sensors.cnc.temperature"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[AT, "Nats-Schedule-TTL: 5m"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[AT, "Nats-Schedule-Rollup: sub"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&[AT, "Nats-Schedule-Time-Zone: Europe/Berlin"], Is::DeadLetter(Reason::DialectUnsupported)),
        ]);
    }
}
