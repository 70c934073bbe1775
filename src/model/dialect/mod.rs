//! Dialects: delay headers of other systems that a route can understand besides the control
//! headers. `systems` lists the headers of each.
//!
//! - A record speaks a dialect if it has one of its headers and its route lists the dialect. On any
//!   other route these headers have no meaning.
//! - Control headers have precedence. A record with `postdate-at` or `postdate-after` speaks no
//!   dialect; `postdate-to` and `postdate-id` replace the dialect's target and id.
//! - A record with headers of two dialects is rejected.
//! - The rules for time, target and id are the same as for the control headers.
//! - All headers of the spoken dialect are removed at delivery. They stay on dead letters and
//!   retries.

#[cfg(test)]
mod system_tests;
mod systems;
#[cfg(test)]
mod tests;

use crate::model::headers::header::Headers;
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::headers::header_name::stays_on_delivery;
use crate::model::message::Record;
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
use crate::model::parsing::rejection::{Quoted, Rejection};
use crate::model::parsing::time_grammar::{DueFormat, DueSpec, NATS_AT};
use systems::{SYSTEMS, System};

/// A system whose headers Postdate understands. The number is part of stored messages and is never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub(crate) enum Dialect {
    RabbitMq = 1,
    ActiveMq = 2,
    RocketMq = 3,
    Pulsar = 4,
    Nats = 5,
    QStash = 6,
    Karafka = 7,
    Etf1 = 8,
}

/// The meaning of a dialect's header.
#[derive(Clone, Copy)]
enum Meaning {
    /// The due time, unless an earlier header of the list gives one.
    Due(DueFormat),
    /// The due time. The record must not have another header that gives one.
    ExclusiveDue(DueFormat),
    /// The due time, without which the other headers have no meaning.
    RequiredDue(DueFormat),
    /// As [`Meaning::RequiredDue`]. Only `@at`, which is delivered once, is supported.
    NatsSchedule,
    Target,
    /// The key at the target, of any bytes.
    Key,
    /// Makes the record an envelope of Karafka. Its key is its unique id, by which it can be
    /// replaced and cancelled, and is not delivered.
    EnvelopeType,
    /// Rejected, except with this value, which requests nothing. The text explains the rejection.
    Unsupported(Option<&'static str>, &'static str),
}

impl Dialect {
    pub(crate) const ALL: [Self; 8] = [
        Self::RabbitMq,
        Self::ActiveMq,
        Self::RocketMq,
        Self::Pulsar,
        Self::Nats,
        Self::QStash,
        Self::Karafka,
        Self::Etf1,
    ];

    const fn system(self) -> &'static System {
        &SYSTEMS[self as usize - 1]
    }

    /// The name in the configuration and in `postdate-retry`.
    pub(crate) const fn name(self) -> &'static str {
        self.system().name
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.code() == code)
    }

    pub(crate) fn has_header(self, name: &[u8]) -> bool {
        self.header_index(name).is_some()
    }

    fn header_index(self, name: &[u8]) -> Option<usize> {
        let headers = self.system().headers;
        headers
            .iter()
            .position(|(header, _)| header.as_bytes() == name)
    }

    /// The record's key is the id of its message, and a null payload cancels that message.
    fn key_is_id(self) -> bool {
        self == Self::Etf1
    }

    /// The request of a record of this dialect. `None` if it requests nothing.
    fn interpret<'a>(
        self,
        found: &HeaderLookup<'a>,
        record: &Record<'a>,
    ) -> Result<Option<DialectRequest<'a>>, Rejection> {
        if self.key_is_id() && record.payload.is_none() {
            return Ok(Some(TOMBSTONE));
        }
        let (mut due, mut target, mut key_is_id) = (None, None, self.key_is_id());
        for (index, (header, meaning)) in self.system().headers.iter().enumerate() {
            let text = || found.text(index, header);
            let required = || text()?.ok_or_else(|| missing_due(header));
            match meaning {
                Meaning::Due(format) => {
                    if due.is_none()
                        && let Some(text) = text()?
                    {
                        due = Some((*header, format.parse_value(header, text)?));
                    }
                }
                Meaning::ExclusiveDue(format) => {
                    if let Some(text) = text()? {
                        let new = (*header, format.parse_value(header, text)?);
                        if let Some((other, _)) = due.replace(new) {
                            let detail = format!("the record has both {other} and {header}");
                            return Err(Rejection::new(DeadLetterReason::AtAndAfter, detail));
                        }
                    }
                }
                Meaning::RequiredDue(format) => {
                    due = Some((*header, format.parse_value(header, required()?)?));
                }
                Meaning::NatsSchedule => {
                    let schedule = required()?;
                    if !schedule.starts_with("@at") {
                        return Err(unsupported(header, schedule, AT_ONLY));
                    }
                    due = Some((*header, NATS_AT.parse_value(header, schedule)?));
                }
                Meaning::Target => target = text()?,
                Meaning::Key => _ = found.bytes(index, header)?,
                Meaning::EnvelopeType => match text()? {
                    None => {}
                    Some("schedule") => key_is_id = true,
                    Some("cancel" | "tombstone") => return Ok(Some(ENVELOPE_CANCEL)),
                    Some(other) => return Err(unsupported(header, other, ENVELOPE_TYPES)),
                },
                Meaning::Unsupported(except, why) => {
                    if let Some(value) = text()?
                        && Some(value) != *except
                    {
                        return Err(unsupported(header, value, why));
                    }
                }
            }
        }
        let dialect = self;
        Ok(due.map(|(header, due)| {
            DialectRequest::Schedule(ScheduleRequest {
                dialect,
                header,
                due,
                target,
                key_is_id,
            })
        }))
    }

    /// The key with which a message of this dialect is delivered.
    pub(crate) fn key_on_delivery<'a>(
        self,
        key: Option<&'a [u8]>,
        headers: Headers<'a>,
    ) -> Option<&'a [u8]> {
        let find = |meant: fn(&Meaning) -> bool| {
            let mut known = self.system().headers.iter();
            let (name, _) = known.find(|(_, meaning)| meant(meaning))?;
            headers.get(name)
        };
        let is_envelope = || find(|meaning| matches!(meaning, Meaning::EnvelopeType)).is_some();
        match find(|meaning| matches!(meaning, Meaning::Key)) {
            Some(key) => key,
            None => key.filter(|_| !is_envelope()),
        }
    }

    /// The filter for headers that stay on a delivered message of this dialect. There is one
    /// function per dialect, because a closure that captures the dialect would need an allocation
    /// per message.
    pub(crate) fn stays_on_delivery(self) -> fn(&[u8]) -> bool {
        fn stays<const INDEX: usize>(name: &[u8]) -> bool {
            stays_on_delivery(name) && !Dialect::ALL[INDEX].has_header(name)
        }
        let filters: [fn(&[u8]) -> bool; 8] = [
            stays::<0>, stays::<1>, stays::<2>, stays::<3>, stays::<4>, stays::<5>, stays::<6>,
            stays::<7>,
        ];
        filters[self as usize - 1]
    }
}

/// The dialects that a route understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dialects(u16);

impl Dialects {
    pub(crate) const fn has(self, dialect: Dialect) -> bool {
        self.0 & 1 << dialect as u8 != 0
    }

    const fn with(self, dialect: Dialect) -> Self {
        Self(self.0 | 1 << dialect as u8)
    }

    pub(in crate::model) fn iter(self) -> impl Iterator<Item = Dialect> {
        Dialect::ALL
            .into_iter()
            .filter(move |dialect| self.has(*dialect))
    }

    /// The dialect that has a header of this name, and the header's index. No name is in two
    /// dialects.
    fn find_header(self, name: &[u8]) -> Option<(Dialect, usize)> {
        self.iter()
            .find_map(|dialect| Some((dialect, dialect.header_index(name)?)))
    }
}

impl FromIterator<Dialect> for Dialects {
    fn from_iter<I: IntoIterator<Item = Dialect>>(dialects: I) -> Self {
        dialects.into_iter().fold(Self::default(), Self::with)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialectRequest<'a> {
    Schedule(ScheduleRequest<'a>),
    /// Cancels the waiting message of the record's key. The text names the header that asks for it.
    Cancel(&'static str),
}

/// A delivery that a dialect requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScheduleRequest<'a> {
    pub(super) dialect: Dialect,
    /// The header that gives the due time.
    pub(super) header: &'static str,
    pub(super) due: DueSpec,
    pub(super) target: Option<&'a str>,
    /// The record's key is the schedule's id: the waiting message of that id is replaced.
    pub(super) key_is_id: bool,
}

const TOMBSTONE: DialectRequest<'_> = DialectRequest::Cancel("a null payload with etf1's headers");
const ENVELOPE_CANCEL: DialectRequest<'_> =
    DialectRequest::Cancel("a schedule_source_type of cancel or tombstone");

const ENVELOPE_TYPES: &str = "only schedule, cancel and tombstone are supported";
const AT_ONLY: &str = "only @at is supported; a message is delivered once";

/// The request of a record in one of these dialects. `has_controls`: the record has a control
/// header.
pub(super) fn read_request<'a>(
    record: &Record<'a>,
    dialects: Dialects,
    has_controls: bool,
) -> Result<Option<DialectRequest<'a>>, Rejection> {
    if dialects == Dialects::default() {
        return Ok(None);
    }
    let mut spoken = Dialects::default();
    let mut found = HeaderLookup::default();
    for (name, value) in record.headers.iter() {
        if let Some((dialect, index)) = dialects.find_header(name) {
            spoken = spoken.with(dialect);
            found.record(index, value);
        }
    }
    let mut all = spoken.iter();
    match (all.next(), all.next()) {
        (Some(dialect), None) => dialect.interpret(&found, record),
        (Some(_), Some(_)) => {
            let names: Vec<_> = spoken.iter().map(Dialect::name).collect();
            let names = names.join(" and ");
            let detail = format!("the record has headers of {names}; use one of them");
            Err(Rejection::new(DeadLetterReason::DialectConflict, detail))
        }
        // A tombstone needs no header. Without a key it is an ordinary record.
        (None, _) => {
            let is_tombstone = record.payload.is_none()
                && record.key.is_some_and(|key| !key.is_empty())
                && dialects.iter().any(Dialect::key_is_id);
            Ok((is_tombstone && !has_controls).then_some(TOMBSTONE))
        }
    }
}

fn unsupported(header: &str, text: &str, why: &str) -> Rejection {
    Rejection::new(
        DeadLetterReason::DialectUnsupported,
        format!("{header} is {}: {why}", Quoted(text.as_bytes())),
    )
}

/// Rejects a record that has headers of the dialect, but not the one that gives the due time.
fn missing_due(header: &str) -> Rejection {
    let detail = format!("the record has other headers of {header}'s system, but not that one");
    Rejection::new(DeadLetterReason::MissingDue, detail)
}
