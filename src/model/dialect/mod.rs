//! Dialects: delay headers of other systems that a route can understand besides the control
//! headers. Each has a file here, which lists the documented, the accepted and the rejected
//! headers.
//!
//! - A record speaks a dialect if it has one of its headers and its route lists the dialect. On any
//!   other route these headers have no meaning.
//! - Control headers have precedence. A record with `postdate-at` or `postdate-after` speaks no
//!   dialect; `postdate-to` and `postdate-id` replace the dialect's target and id.
//! - A record with headers of two dialects is rejected.
//! - The rules for time, target and id are the same as for the control headers.
//! - All headers of the spoken dialect are removed at delivery. They stay on dead letters and
//!   retries.

mod activemq;
mod etf1;
mod karafka;
mod nats;
mod pulsar;
mod qstash;
mod rabbitmq;
mod rocketmq;
#[cfg(test)]
mod tests;

use crate::model::headers::header::Headers;
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::headers::header_name::stays_on_delivery;
use crate::model::message::Record;
use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::parsing::rejection::{Quoted, Rejection};
use crate::model::parsing::time_grammar::{self, DueSpec};

/// A system whose headers Postdate understands. The number is part of stored messages and is never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// The name in the configuration and in `postdate-retry`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::ActiveMq => "activemq",
            Self::RocketMq => "rocketmq",
            Self::Pulsar => "pulsar",
            Self::Nats => "nats",
            Self::QStash => "qstash",
            Self::Karafka => "karafka",
            Self::Etf1 => "etf1",
        }
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

    /// All headers of the dialect, accepted or rejected.
    const fn headers(self) -> &'static [&'static str] {
        match self {
            Self::RabbitMq => &rabbitmq::HEADERS,
            Self::ActiveMq => &activemq::HEADERS,
            Self::RocketMq => &rocketmq::HEADERS,
            Self::Pulsar => &pulsar::HEADERS,
            Self::Nats => &nats::HEADERS,
            Self::QStash => &qstash::HEADERS,
            Self::Karafka => &karafka::HEADERS,
            Self::Etf1 => &etf1::HEADERS,
        }
    }

    /// Returns `true` for a header of the dialect.
    pub(crate) fn has_header(self, name: &[u8]) -> bool {
        self.header_index(name).is_some()
    }

    fn header_index(self, name: &[u8]) -> Option<usize> {
        self.headers()
            .iter()
            .position(|header| header.as_bytes() == name)
    }

    fn read<'a>(
        self,
        headers: &HeaderLookup<'a>,
        record: &Record<'a>,
    ) -> Result<Option<DialectRequest<'a>>, Rejection> {
        let delivery = match self {
            Self::RabbitMq => rabbitmq::read(headers)?,
            Self::ActiveMq => activemq::read(headers)?,
            Self::RocketMq => rocketmq::read(headers)?,
            Self::Pulsar => pulsar::read(headers)?,
            Self::Nats => nats::read(headers)?,
            Self::QStash => qstash::read(headers)?,
            Self::Karafka => return karafka::read(headers).map(Some),
            Self::Etf1 => return etf1::read(headers, record).map(Some),
        };
        Ok(delivery.map(DialectRequest::Schedule))
    }

    /// The key with which a message of this dialect is delivered.
    pub(crate) fn key_on_delivery<'a>(
        self,
        key: Option<&'a [u8]>,
        headers: Headers<'a>,
    ) -> Option<&'a [u8]> {
        match self {
            Self::Karafka => karafka::key_on_delivery(key, headers),
            Self::Etf1 => etf1::key_on_delivery(key, headers),
            _ => key,
        }
    }

    /// The filter for headers that stay on a delivered message of this dialect. There is one
    /// function per dialect, because a closure that captures the dialect would need an allocation
    /// per message.
    pub(crate) fn stays_on_delivery(self) -> fn(&[u8]) -> bool {
        fn stays(dialect: Dialect, name: &[u8]) -> bool {
            stays_on_delivery(name) && dialect.header_index(name).is_none()
        }
        match self {
            Self::RabbitMq => |name| stays(Self::RabbitMq, name),
            Self::ActiveMq => |name| stays(Self::ActiveMq, name),
            Self::RocketMq => |name| stays(Self::RocketMq, name),
            Self::Pulsar => |name| stays(Self::Pulsar, name),
            Self::Nats => |name| stays(Self::Nats, name),
            Self::QStash => |name| stays(Self::QStash, name),
            Self::Karafka => |name| stays(Self::Karafka, name),
            Self::Etf1 => |name| stays(Self::Etf1, name),
        }
    }
}

/// The dialects that a route understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dialects(u16);

impl Dialects {
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn has(self, dialect: Dialect) -> bool {
        self.0 & 1 << dialect as u8 != 0
    }

    const fn with(self, dialect: Dialect) -> Self {
        Self(self.0 | 1 << dialect as u8)
    }

    fn iter(self) -> impl Iterator<Item = Dialect> {
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

/// The request of a record in a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialectRequest<'a> {
    Schedule(ScheduleRequest<'a>),
    /// Cancels the waiting message of the record's key. The text names the header that asks for it.
    Cancel(&'static str),
}

/// A delivery that a dialect requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScheduleRequest<'a> {
    /// The header that gives the due time.
    pub(super) header: &'static str,
    pub(super) due: DueSpec,
    pub(super) target: Option<&'a str>,
    /// The record's key is the schedule's id: the waiting message of that id is replaced.
    pub(super) key_is_id: bool,
}

/// The dialect that a record speaks, and its request. `None` if it speaks none.
pub(super) fn read<'a>(
    record: &Record<'a>,
    dialects: Dialects,
) -> Result<Option<(Dialect, DialectRequest<'a>)>, Rejection> {
    let mut spoken: Option<(Dialect, HeaderLookup<'a>)> = None;
    let mut all = Dialects::default();
    for (name, value) in record.headers {
        let Some((dialect, index)) = dialects.find_header(name) else {
            continue;
        };
        let (first, headers) =
            spoken.get_or_insert_with(|| (dialect, HeaderLookup::new(dialect.headers())));
        all = all.with(dialect);
        if *first == dialect {
            headers.record(index, value);
        }
    }
    let Some((dialect, headers)) = spoken else {
        return Ok(None);
    };
    let names: Vec<_> = all.iter().map(Dialect::name).collect();
    if names.len() > 1 {
        let detail = format!(
            "the record has headers of {}; use one of them",
            names.join(" and ")
        );
        return Err(Rejection::new(Reason::DialectConflict, detail));
    }
    Ok(dialect
        .read(&headers, record)?
        .map(|asked| (dialect, asked)))
}

/// As [`read`], for a record that has neither a control header nor a dialect's.
pub(super) fn read_without_headers<'a>(
    record: &Record<'a>,
    dialects: Dialects,
) -> Option<(Dialect, DialectRequest<'a>)> {
    let asked = if dialects.has(Dialect::Etf1) {
        etf1::read_without_headers(record)?
    } else {
        return None;
    };
    Some((Dialect::Etf1, asked))
}

/// The format of a header that gives a due time.
struct DueHeader {
    parse: fn(&str) -> Option<DueSpec>,
    reason: Reason,
    accepts: &'static str,
}

const MILLIS_AFTER: DueHeader = DueHeader {
    parse: |text| time_grammar::parse_millis_after(text).map(DueSpec::After),
    reason: Reason::InvalidAfter,
    accepts: "whole milliseconds",
};
const SECONDS_AFTER: DueHeader = DueHeader {
    parse: |text| time_grammar::parse_seconds_after(text).map(DueSpec::After),
    reason: Reason::InvalidAfter,
    accepts: "whole seconds",
};
const MILLIS_AT: DueHeader = DueHeader {
    parse: |text| time_grammar::parse_millis_at(text).map(DueSpec::At),
    reason: Reason::InvalidAt,
    accepts: "whole milliseconds since 1970",
};
const SECONDS_AT: DueHeader = DueHeader {
    parse: |text| time_grammar::parse_seconds_at(text).map(DueSpec::At),
    reason: Reason::InvalidAt,
    accepts: "whole seconds since 1970",
};

impl DueHeader {
    /// A delivery at the time of the header, to the default target. `None` if the record does not
    /// have the header.
    fn read<'a>(
        &self,
        headers: &HeaderLookup<'a>,
        index: usize,
    ) -> Result<Option<ScheduleRequest<'a>>, Rejection> {
        let Some(text) = headers.text(index)? else {
            return Ok(None);
        };
        let header = headers.name(index);
        let Some(when) = (self.parse)(text) else {
            let detail = format!(
                "{header} is {}; expected {}",
                Quoted(text.as_bytes()),
                self.accepts
            );
            return Err(Rejection::new(self.reason, detail));
        };
        Ok(Some(ScheduleRequest {
            header,
            due: when,
            target: None,
            key_is_id: false,
        }))
    }
}

/// Rejects a record that has the header, because Postdate does not support it.
fn reject_header(headers: &HeaderLookup<'_>, index: usize, why: &str) -> Result<(), Rejection> {
    let Some(text) = headers.text(index)? else {
        return Ok(());
    };
    Err(unsupported(headers.name(index), text, why))
}

/// As [`reject_header`], but accepts `0`, which requests nothing.
fn reject_unless_zero(
    headers: &HeaderLookup<'_>,
    index: usize,
    why: &str,
) -> Result<(), Rejection> {
    if headers.text(index)? == Some("0") {
        Ok(())
    } else {
        reject_header(headers, index, why)
    }
}

fn unsupported(header: &str, text: &str, why: &str) -> Rejection {
    Rejection::new(
        Reason::DialectUnsupported,
        format!("{header} is {}: {why}", Quoted(text.as_bytes())),
    )
}

/// Rejects a record that has headers of the dialect, but not the one that gives the due time.
fn missing_due(headers: &HeaderLookup<'_>, index: usize) -> Rejection {
    Rejection::new(
        Reason::MissingDue,
        format!(
            "the record has other headers of {}'s system, but not that one",
            headers.name(index)
        ),
    )
}
