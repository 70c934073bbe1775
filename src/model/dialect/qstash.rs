//! Upstash QStash's delay: upstash.com/docs/qstash/features/delay, and the headers of its "Publish
//! a Message".
//!
//! | header | there | here |
//! |---|---|---|
//! | `Upstash-Not-Before` | "a unix timestamp in seconds" | whole seconds since 1970 |
//! | `Upstash-Delay` | `<value><unit>` of `s m h d`: `50s`, `1d10h30m`, `10h`, `1d` | `([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?`, at least one unit |
//! | `Upstash-Cron` | makes a repeating schedule | rejected |
//!
//! "When both headers are provided, `Upstash-Not-Before` will take precedence": `Upstash-Delay` is
//! then ignored. A delay without a unit is not documented, and is rejected.

use super::{DueHeader, SECONDS_AT, ScheduleRequest, reject_header};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::parsing::rejection::Rejection;
use crate::model::parsing::time_grammar::{self, DueSpec};

pub(super) const HEADERS: [&str; 3] = ["Upstash-Not-Before", "Upstash-Delay", "Upstash-Cron"];
const NOT_BEFORE: usize = 0;
const DELAY: usize = 1;
const CRON: usize = 2;

const UNITS_AFTER: DueHeader = DueHeader {
    parse: |text| time_grammar::parse_units_after(text).map(DueSpec::After),
    reason: Reason::InvalidAfter,
    accepts: "numbers with units, in the order d h m s, such as 50s or 1d10h30m",
};

pub(super) fn read<'a>(
    headers: &HeaderLookup<'a>,
) -> Result<Option<ScheduleRequest<'a>>, Rejection> {
    reject_header(
        headers,
        CRON,
        "a message is delivered once; send one message for each time",
    )?;
    match SECONDS_AT.read(headers, NOT_BEFORE)? {
        None => UNITS_AFTER.read(headers, DELAY),
        not_before => Ok(not_before),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Is, NOW, Row, check};
    use crate::model::{Dialect, Reason};

    /// The examples of the documentation's two pages, and what lies just beside its grammar.
    #[test]
    #[rustfmt::skip]
    fn delays_have_units_and_not_before_is_in_seconds() {
        let later = format!("Upstash-Not-Before: {}", NOW / 1_000 + 60);
        check(Dialect::QStash, &[
            Row(&["Upstash-Delay: 10s"], Is::After(10_000)),
            Row(&["Upstash-Delay: 1m"], Is::After(60_000)),
            Row(&["Upstash-Delay: 30m"], Is::After(1_800_000)),
            Row(&["Upstash-Delay: 2h"], Is::After(7_200_000)),
            Row(&["Upstash-Delay: 7d"], Is::After(604_800_000)),
            Row(&["Upstash-Delay: 50s"], Is::After(50_000)),
            Row(&["Upstash-Delay: 1d10h"], Is::After(122_400_000)),
            Row(&["Upstash-Delay: 1d10h30m"], Is::After(124_200_000)),
            Row(&["Upstash-Delay: 0s"], Is::After(0)),
            Row(&["Upstash-Not-Before: 1657104947"], Is::At(1_657_104_947_000)),
            Row(&[&later], Is::At(NOW + 60_000)),
            Row(&[&later, "Upstash-Delay: 1m"], Is::At(NOW + 60_000)),
            Row(&[&later, "Upstash-Delay: x"], Is::At(NOW + 60_000)),
            Row(&["Upstash-Delay: 60"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["Upstash-Delay: 250ms"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["Upstash-Delay: 30m2h"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["Upstash-Delay: -1m"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["Upstash-Delay: 1.5h"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["Upstash-Delay: 106751991168d"], Is::DeadLetter(Reason::InvalidAfter)),
            Row(&["Upstash-Not-Before: 1657104947000"], Is::DeadLetter(Reason::DelayAboveMax)),
            Row(&["Upstash-Not-Before: 9223372036854776"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["Upstash-Not-Before: 1m"], Is::DeadLetter(Reason::InvalidAt)),
            Row(&["Upstash-Cron: * * * * *", "Upstash-Delay: 1m"], Is::DeadLetter(Reason::DialectUnsupported)),
            Row(&["upstash-delay: 1m"], Is::Relayed),
            Row(&["Upstash-Retries: 3"], Is::Relayed),
        ]);
    }
}
